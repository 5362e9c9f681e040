"""Hydra's sweeper `auto`: trains the students that can be right for some data, and recommends one file.

The teacher outputs are computed once. Each student is exported and gated, all files are timed in turns, and
`distill.records.choice` recommends one.
"""

import contextlib
import io
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser

from distill.core.console import format_duration, print_line, stages
from distill.core.errors import Failure, UserError
from distill.core.files import make_directory
from distill.core.options import show_value
from distill.jobs.sweepers import GridSweeper, lost_workers
from distill.records.schema import read_record

_NOT_NEEDED = ("baseline", "benchmark.teacher")  # The teacher is timed as a candidate.
_PRUNER = "distill.jobs.pruning.StudentPruner"


class AutoSweeper(GridSweeper):
    """Trains one student after the other, and recommends the fastest that is about as good as the best.

    Args:
        candidates: the options of each student. A later one ends at a third of its steps where it is behind an earlier
            one beyond noise.
        tolerance: points of the metric on dev that the recommended file may be below the best one.
        ms, mb: limits of the recommended file; None for any.
        minutes: of the whole sweep; students that do not fit are left out; None for any.

    Raises:
        UserError: for another value.
    """

    def __init__(
        self, candidates: Sequence[str], tolerance: float, ms: float | None, mb: float | None, minutes: float | None,
    ) -> None:  # fmt: skip
        super().__init__(max_batch_size=None)
        self.candidates = {_name(str(candidate)): str(candidate).split() for candidate in candidates}
        for name, value in {"tolerance": tolerance, "ms": ms, "mb": mb, "minutes": minutes}.items():
            least = 0 if name == "tolerance" else math.ulp(0)
            if value is not None and (not isinstance(value, int | float) or not value >= least):
                raise UserError(f"got auto.{name}={show_value(value)}, expected a number above 0, or null")
        self.tolerance, self.ms, self.mb, self.minutes = tolerance, ms, mb, minutes

    def sweep(self, arguments: list[str]) -> None:
        """Trains the students, and writes the choice into the directory of the sweep.

        Raises:
            UserError: if none was trained, or the limits allow none.
        """
        assert self.config is not None
        if "tasks" in self.config.task:
            raise UserError(
                "+student=auto chooses the student of one task, and this command has several: run each alone"
            )
        started, directory = time.monotonic(), Path(str(self.config.hydra.sweep.dir))
        self._given = [argument for argument in arguments if not argument.startswith("+student=")]
        assert self.hydra_context is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        if swept := [of for of in parser.parse_overrides(self._given) if of.is_sweep_override()]:
            raise UserError(
                f"+student=auto tries several students with the same options: give one value in {swept[0].input_line}"
            )
        given = {argument.partition("=")[0] for argument in self._given}
        self._given += [f"{name}=false" for name in _NOT_NEEDED if name not in given]
        left_out, found = self._plan(), dict[str, Path]()
        if self.config.dry_run:
            return
        stages.expect_runs(len(self.candidates) - len(left_out))
        for name in [name for name in self.candidates if name not in left_out]:
            minutes = (time.monotonic() - started) / 60
            if self.minutes is not None and minutes > self.minutes:
                left_out[name] = f"it was not begun after {minutes:.0f} minutes"
                continue
            if (other := self._find_same(name, found)) is not None:
                left_out[name] = f"it is {other}"
                continue
            print_line(f"Student  {name}", style="bold")
            result = self._run(name, self._pruning(list(found.values())))
            if isinstance(result, Path):
                found[name] = result
            else:
                left_out[name] = result.message
        self._choose(found, left_out, directory, started)

    def _run(self, name: str, options: Sequence[str]) -> Path | Failure:
        """Returns the run of a candidate, or why it has none."""
        assert self.launcher is not None
        with lost_workers(), cast(Any, self._job).tolerating():
            number = list(self.candidates).index(name)
            [result] = self.launcher.launch(
                [[*self._given, *self.candidates[name], *options]], initial_job_idx=number
            )  # fmt: skip
        value = result.return_value  # Raises the error of a run that was none of ours.
        return value if isinstance(value, Path | Failure) else Failure(0, "nothing was trained (dry_run=true)")

    def _plan(self) -> dict[str, str]:
        """Prints how long each candidate takes; returns those that are refused or do not fit into the time."""
        print_line(f"Plan     of {len(self.candidates)} students from one teacher, each exported and gated")
        left_out, seconds, teacher = dict[str, str](), dict[str, float](), 0.0
        for name in self.candidates:
            with contextlib.redirect_stdout(io.StringIO()):
                result = self._run(name, ["dry_run=true", "resume=false"])
            if isinstance(result, Failure) and result.exit_code:
                left_out[name] = result.message
                continue
            expected = {stage: of for stage, of in stages.foreseen.items() if stage != "imports"}
            teacher = max(teacher, expected.pop("teacher", 0.0))
            seconds[name] = sum(expected.values())
            print_line(f"         {name}: {format_duration(seconds[name])}")
        for name in sorted(seconds, key=seconds.__getitem__, reverse=True):
            if self.minutes is not None and teacher + sum(seconds.values()) > 60 * self.minutes:
                left_out[name] = f"its {format_duration(seconds.pop(name))} do not fit into {self.minutes:g} minutes"
        if not seconds and len(set(left_out.values())) == 1:  # It is no matter of the student.
            raise UserError(next(iter(left_out.values())))
        for name, reason in left_out.items():
            print_line(f"Left out {name}: {reason}")
        print_line(
            f"         {format_duration(teacher + sum(seconds.values()))} at most, {format_duration(teacher)} of them "
            "for the teacher; a student that is behind another one ends at a third of its steps"
        )
        return left_out

    def _find_same(self, name: str, found: Mapping[str, Path]) -> str | None:
        """Returns the candidate that has as many layers of the teacher, where that is half of them."""
        student, *options = self.candidates[name]
        for other, directory in found.items():
            layers = read_record(directory)["student"].get("layers") or []
            if self.candidates[other] == [student] and options == [f"student.depth={len(layers)}"]:
                return other
        return None

    def _pruning(self, finished: Sequence[Path]) -> list[str]:
        """Returns the option that ends a student which is behind those that are finished and within the limits."""
        from distill.jobs.pruning import find_least

        least = find_least(finished, mb=self.mb)
        return [] if least is None else [f"+logger.pruner={{_target_:{_PRUNER},least:{least}}}"]

    def _choose(self, found: dict[str, Path], left_out: dict[str, str], directory: Path, started: float) -> None:
        """Times the files in turns, and writes the choice."""
        from distill.jobs.measuring_jobs import measure_candidates
        from distill.records.choice import Choice

        assert self.config is not None
        command = ["python", "-m", "distill", *sys.argv[1:]]
        candidates = measure_candidates(found, self.config)
        left_out |= dict.fromkeys(found.keys() - {of.name for of in candidates}, "no file passed its gate")
        choice = Choice(
            candidates, left_out, self.tolerance, self.ms, self.mb, command, time.monotonic() - started
        )  # fmt: skip
        if candidates:
            make_directory(directory)
            choice.write(directory)
        if choice.recommended is None:
            for name, reason in left_out.items():
                print_line(f"Left out {name}: {reason}")
            raise UserError(choice.describe_limits())


def _name(candidate: str) -> str:
    """Returns the options of a student as a name: `distilbert depth=2`."""
    return " ".join(option.removeprefix("+student=").removeprefix("student.") for option in candidate.split())
