"""Hydra's sweeper `auto`: trains the students that can be right for some data, and recommends one file.

The teacher outputs are computed once. Each student is exported and gated, and the recommended file is the fastest one
whose metric on dev is about as good as that of the best.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from distill.core.console import print_line
from distill.core.errors import Failure, OptionError, UserError
from distill.core.options import show_value
from distill.edge.bundle_files import timed_name
from distill.jobs.sweepers import GridSweeper, lost_workers
from distill.records.schema import read_record
from distill.records.verdict import Results, recommend

_OPTION = "hydra.sweeper"


@dataclass(frozen=True)
class Candidate:
    """A student that was trained.

    Args:
        name: its options.
        directory: of its run.
        metric: of its recommended file on dev, more of which is better.
        ms: the p50 of one text of the smallest length; NaN without a benchmark.
        mb: size of the file.
    """

    name: str
    directory: Path
    metric: float
    ms: float
    mb: float


class AutoSweeper(GridSweeper):
    """Trains one student after the other, and recommends the fastest that is about as good as the best.

    Args:
        candidates: the options of each student, the fastest one first.
        tolerance: points of the metric on dev that the recommended file may be below the best one.
        ms, mb: limits of the recommended file; None for any.
        minutes: time after which no further student is begun; None for any.

    Raises:
        OptionError: for another value.
    """

    def __init__(
        self, candidates: Sequence[str], tolerance: float, ms: float | None, mb: float | None, minutes: float | None,
    ) -> None:  # fmt: skip
        super().__init__(max_batch_size=None)
        self.candidates = [str(candidate) for candidate in candidates]
        for name, value in {"tolerance": tolerance, "ms": ms, "mb": mb, "minutes": minutes}.items():
            least = 0 if name == "tolerance" else math.ulp(0)
            if value is not None and (not isinstance(value, int | float) or not value >= least):
                raise OptionError(f"{_OPTION}.{name}", show_value(value), "a number above 0, or null")
        self.tolerance, self.ms, self.mb, self.minutes = tolerance, ms, mb, minutes

    def sweep(self, arguments: list[str]) -> None:
        """Trains the students and prints the recommendation.

        Raises:
            UserError: if none was trained, or the limits allow none.
        """
        assert self.launcher is not None
        assert self.config is not None
        started, found, left_out = time.monotonic(), list[Candidate](), list[str]()
        fixed = [argument for argument in arguments if not argument.startswith("+student=")]
        if not any(argument.startswith("baseline=") for argument in fixed):
            fixed.append("baseline=false")
        print_line(f"Auto     {len(self.candidates)} students: {', '.join(map(_name, self.candidates))}")
        for number, candidate in enumerate(self.candidates):
            minutes = (time.monotonic() - started) / 60
            if self.minutes is not None and minutes > self.minutes:
                left_out.append(f"{_name(candidate)} was not begun after {minutes:.0f} minutes")
                continue
            print_line(f"Student  {number + 1} of {len(self.candidates)}: {_name(candidate)}", style="bold")
            options = [*fixed, *candidate.split()]
            with lost_workers(), cast(Any, self._job).tolerating():
                [result] = self.launcher.launch([options], initial_job_idx=number)
            value = result.return_value
            if isinstance(value, Path):
                one = read_candidate(value, _name(candidate))
                found += [] if one is None else [one]
                left_out += [f"{_name(candidate)}: no file passed its gate"] if one is None else []
            elif isinstance(value, Failure):
                left_out.append(f"{_name(candidate)}: {value.message}")
        for reason in left_out:
            print_line(f"Left out {reason}")
        if not self.config.dry_run:
            print_line(f"Choice   {self.recommend(found)}", style="bold")

    def recommend(self, found: Sequence[Candidate]) -> str:
        """Returns the recommendation in words.

        Raises:
            UserError: if there is no student, or the limits allow none.
        """
        if not found:
            raise UserError("no student was trained: see the reasons above")
        allowed = [
            of for of in found
            if (self.ms is None or of.ms <= self.ms) and (self.mb is None or of.mb <= self.mb)
        ]  # fmt: skip
        if not allowed:
            fastest, smallest = min(found, key=lambda of: of.ms), min(found, key=lambda of: of.mb)
            raise UserError(
                f"no student meets the limits: the fastest is {fastest.name} with {fastest.ms:.2f} ms, and the "
                f"smallest {smallest.name} with {smallest.mb:.1f} MB: raise {_OPTION}.ms or {_OPTION}.mb"
            )
        best = max(allowed, key=lambda of: of.metric)
        good = [of for of in allowed if 100 * (best.metric - of.metric) <= self.tolerance + 1e-9]
        chosen = min(good, key=lambda of: (of.ms, of.mb))
        beside = "the best" if chosen is best else f"{100 * (best.metric - chosen.metric):.1f} points below {best.name}"
        return (
            f"{chosen.name}: {chosen.metric:.4f} on dev ({beside}), {chosen.ms:.2f} ms, {chosen.mb:.1f} MB: "
            f"{chosen.directory / 'bundle'}"
        )


def _name(candidate: str) -> str:
    """Returns the options of a student as a name: `distilbert depth=2`."""
    return " ".join(option.removeprefix("+student=").removeprefix("student.") for option in candidate.split())


def read_candidate(directory: Path, name: str) -> Candidate | None:
    """Returns the recommended file of a finished run; None if no file passed its gate."""
    record = read_record(directory)
    if (chosen := recommend(record["export"])) is None:
        return None
    file, metric = record["export"][chosen], record["task"]["metric"]
    timing = Results(record).timing("student", timed_name(chosen, file["file"]))
    sign = -1 if record["task"].get("selects") == "min" else 1
    ms = math.nan if timing is None else float(timing["p50_ms"])
    return Candidate(name, directory, sign * file["metrics"][metric], ms, file["bytes"] / 1e6)
