"""The choice among several students of one teacher: the recommended file, and the page that says why."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from distill.core.console import format_duration
from distill.core.errors import UserError
from distill.core.files import JsonObject, write_json
from distill.records.comparison import FileResult, Row, compare_runs
from distill.records.experiment_table import VALUES, TablePage
from distill.records.plots import Figure, Point, draw_cost, find_pareto
from distill.records.row_tables import LatexTable
from distill.records.run import hide_in_text, show_command
from distill.records.schema import DEV, TEST, read_record
from distill.records.verdict import MISSING, Results, Unit, format_number
from distill.training.statistics import Estimate, count_share_examples, estimate

FILE = "choice.json"  # In the directory of a sweep.
WORDS = "tfidf"  # The candidate that learns nothing of the teacher.


@dataclass(frozen=True)
class Candidate:
    """A student that was tried.

    Args:
        name: its options.
        directory: of its run.
        format: of the file that its bundle recommends.
        ms: the median time of one text of dev, in turns with the other candidates; None where nothing was timed.
        joules: that the machine takes for such a text; None where it does not count them.
    """

    name: str
    directory: Path
    format: str
    ms: float | None = None
    joules: float | None = None

    @cached_property
    def record(self) -> JsonObject:
        """The record of its run."""
        return read_record(self.directory)

    @cached_property
    def row(self) -> Row:
        """Its run as a row of a report."""
        return compare_runs([(self.directory, self.record)])[0]

    @property
    def file(self) -> FileResult:
        """The recommended file."""
        return self.row.files[self.format]

    @property
    def mb(self) -> float:
        """Its size."""
        return (self.file.bytes or 0) / 1e6

    def estimate(self, split: str) -> Estimate | None:
        """Returns the metric of the file on a split with its interval; None without one."""
        values = list(self.file.metrics[split].values())
        return estimate(values, count_share_examples(self.row.task, split))

    @property
    def millijoules(self) -> float | None:
        """The energy for a text, in mJ."""
        return None if self.joules is None else 1000 * self.joules

    @property
    def gain(self) -> float:
        """The metric on dev, signed so that more is better."""
        found = self.estimate(DEV)
        return float("-inf") if found is None else self.row.unit.gain(found.value)

    @property
    def lead(self) -> float:
        """By how much it is better than its teacher on dev."""
        value = None if self.row.teacher is None else self.row.teacher.metrics[DEV]
        return 0.0 if value is None else self.gain - self.row.unit.gain(value)


@dataclass(frozen=True)
class Choice:
    """The candidates, and the limits within which one is recommended.

    Args:
        left_out: the reason of each student that has no file.
        tolerance: points of the metric on dev that the recommended file may be below the best one.
        ms, mb: limits of the recommended file; None for any.
        command: of the sweep.
        seconds: that it took.
    """

    candidates: Sequence[Candidate]
    left_out: Mapping[str, str]
    tolerance: float
    ms: float | None
    mb: float | None
    command: Sequence[str]
    seconds: float

    @classmethod
    def read(cls, directory: Path) -> "Choice | None":
        """Returns the choice of a sweep; None if it has none.

        Raises:
            UserError: if its file is damaged.
        """
        path = directory / FILE
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            candidates = [
                Candidate(**{**of, "directory": (directory / of["directory"]).resolve()})
                for of in content.pop("candidates")
            ]
            return cls(candidates=candidates, **content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is damaged ({error}): run +student=auto again") from error

    def write(self, directory: Path) -> None:
        """Writes the choice into the directory of its sweep."""
        content = asdict(self)
        for of in content["candidates"]:
            of["directory"] = os.path.relpath(of["directory"], directory)
        write_json(directory / FILE, content)

    def is_allowed(self, one: Candidate) -> bool:
        """Returns whether a candidate is within the limits; one that was not timed is within that of the time."""
        return (self.ms is None or one.ms is None or one.ms <= self.ms) and (self.mb is None or one.mb <= self.mb)

    @cached_property
    def allowed(self) -> list[Candidate]:
        """The candidates within the limits, the best on dev first."""
        return sorted(filter(self.is_allowed, self.candidates), key=lambda of: -of.gain)

    @cached_property
    def recommended(self) -> Candidate | None:
        """The fastest candidate that is not below the best one by more than the tolerance; None if none is allowed."""
        if not self.allowed:
            return None
        best = self.allowed[0]
        margin = best.row.unit.scale_margin(self.tolerance, best.gain) + 1e-9
        return min((of for of in self.allowed if best.gain - of.gain <= margin), key=_cost)

    def sentences(self) -> Iterator[str]:
        """Yields the recommendation, what test promises, and what it is compared with."""
        chosen, words = self.recommended, next((of for of in self.candidates if of.name == WORDS), None)
        if words is not None and words.lead > 0:
            lead = _points(words.lead, words.row.unit)
            yield (
                f"TF-IDF with a linear model is {lead} better on dev than the teacher, which has "
                "not learned these rows: train it longer, or take another one"
            )
        if chosen is None:
            yield self.describe_limits()
            return
        best, unit, metric = self.allowed[0], chosen.row.unit, chosen.row.task["metric"]
        behind = f"{_points(best.gain - chosen.gain, unit)} behind {best.name}"
        yield (
            f"Take {chosen.name}: {metric} {_show(chosen.estimate(DEV))} on dev "
            f"({'the best' if chosen is best else behind}), {_ms(chosen)}, "
            f"{chosen.mb:.1f} MB: {chosen.directory / 'bundle'}"
        )
        if faster := [of for of in self._front() if _cost(of) < _cost(chosen)]:
            shown = [f"{of.name} ({_ms(of)}, {_points(best.gain - of.gain, unit)} behind)" for of in faster]
            yield f"Faster: {', '.join(shown)}"
        if chosen is words:
            yield "TF-IDF with a linear model is enough for these rows: no student of the teacher is better"
        if (tested := chosen.estimate(TEST)) is not None:
            yield f"Promised: {metric} {_show(tested)} on test, which chose nothing"
        else:
            yield "There is no test: dev has chosen the file, so that new texts may have a lower score"
        if answer := Results(chosen.record).find_constant():
            yield f"It is no better than {answer}"

    def describe_limits(self) -> str:
        """Returns that no candidate is within the limits, in words."""
        if not self.candidates:
            return "no student has a file: see the reasons above"
        fastest, smallest = min(self.candidates, key=_cost), min(self.candidates, key=lambda of: of.mb)
        return (
            f"no student meets the limits: the fastest is {fastest.name} with {_ms(fastest)}, "
            f"and the smallest {smallest.name} with {smallest.mb:.1f} MB: raise auto.ms or auto.mb"
        )

    def describe(self) -> TablePage:
        """Returns the page of the choice."""
        sentences = list(self.sentences())
        caption = f"Students of one teacher, tried in {format_duration(self.seconds)}"
        return TablePage(
            title=caption, tables={VALUES: LatexTable("choice", f"{caption}. {sentences[0]}.", self._cells())},
            sentences=[*sentences, *(f"Left out: {name}: {reason}" for name, reason in self.left_out.items())],
            reference="", sources=[], command=show_command(hide_in_text(word) for word in self.command),
            figures={VALUES: list(self._figures())},
        )  # fmt: skip

    def _cells(self) -> list[tuple[str, ...]]:
        """Returns the header and the rows of the table, the best on dev first, and the best constant."""
        rows = sorted(self.candidates, key=lambda of: -of.gain)
        metric, front = rows[0].row.task["metric"], self._front()
        constant = (rows[0].record["teacher"] or {}).get("constant") or {"answer": "", "metrics": {}}
        value = constant["metrics"].get(metric)
        columns = {
            "student": [*(of.name for of in rows), constant["answer"]],
            "file": [*(of.format if of.file.passed else f"{of.format}, gate undecided" for of in rows), MISSING],
            f"{metric} on dev": [*(_show(of.estimate(DEV)) for of in rows), format_number(value, ".4f")],
            f"{metric} on test": [*(_show(of.estimate(TEST)) for of in rows), MISSING],
            "ms": [*(format_number(of.ms, ".2f") for of in rows), MISSING],
            "mJ": [*(format_number(of.millijoules, ".2f") for of in rows), MISSING],
            "MB": [*(f"{of.mb:.1f}" for of in rows), MISSING],
            "front": [*("yes" if of in front else "" for of in rows), ""],
            "choice": [*("take this" if of is self.recommended else "" for of in rows), ""],
        }
        columns = {name: cells for name, cells in columns.items() if set(cells) != {MISSING}}
        cells = [tuple(columns), *zip(*columns.values(), strict=True)]
        return cells if value is not None else cells[:-1]

    def _front(self) -> list[Candidate]:
        """Returns the candidates of which no other one is as fast and better."""
        front = find_pareto([Point(_cost(of)[0], of.gain, of.name) for of in self.candidates])
        names = {point.series for point in front}
        return [of for of in self.candidates if of.name in names]

    def _figures(self) -> Iterator[Figure]:
        """Yields the metric against time, size and energy."""
        costs = {
            "ms for a text": lambda of: of.ms, "MB": lambda of: of.mb,
            "mJ for a text": lambda of: of.millijoules,
        }  # fmt: skip
        row = self.candidates[0].row
        metric = f"{row.task['metric']} on dev"
        for cost, read in costs.items():
            points = [
                Point(value, found.value, of.name, found.interval) for of in self.candidates
                if (value := read(of)) and (found := of.estimate(DEV))
            ]  # fmt: skip
            if points:
                yield draw_cost(
                    points, metric=metric, cost=cost, caption=f"{metric} against {cost}, bars are 95% intervals",
                    lower_is_better=row.unit.less_is_better,
                )  # fmt: skip


def _cost(one: Candidate) -> tuple[float, float]:
    """Returns what is small for a fast candidate; those that were not timed are ordered by their size."""
    return (one.mb if one.ms is None else one.ms), one.mb


def _ms(one: Candidate) -> str:
    return format_number(one.ms, ".2f", " ms")


def _points(difference: float, unit: Unit) -> str:
    """Returns a difference without its sign: `0.4 points`."""
    return f"{unit.format(difference)[1:]}{unit.word}"


def _show(found: Estimate | None) -> str:
    """Returns a metric with its interval: `0.9128 (0.8901 to 0.9310)`."""
    if found is None:
        return MISSING
    interval = "" if found.interval is None else f" ({found.interval[0]:.3f} to {found.interval[1]:.3f})"
    return f"{found.value:.4f}{interval}"
