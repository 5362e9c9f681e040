"""The decision from which headlines, tables and cards are made, the numbers it reads, and the names of options.

Numbers of a run.json that tables and sentences show, and their texts. Every page and the terminal write them alike:

- a metric, a probability and the agreement of two models with decimals: `0.9128`;
- a difference of two metrics in points, which are hundredths, and of a metric of which less is better in its own unit:
  `+0.8`;
- a share of a whole as a percentage: of the teacher's metric, the examples or the tokens: `98.7%`.

The decision from which the headline, tables, cards and terminal lines of a run are made. Its numbers are those of the
first split: test where a run has one with labels, because dev chose the checkpoint.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import Undefined
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass as checked_dataclass

from distill.core.files import JsonObject
from distill.core.options import STRICT, raise_option_errors, show_value
from distill.edge.bundle_files import needs_openvino
from distill.records.run import hide_values, whole_section
from distill.records.schema import DEV, first_split, metric_name

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from distill.training.statistics import Spread


Options = Mapping[str, object]
_MEASURED = "benchmark."


def flatten_options(node: object, name: str = "") -> dict[str, object]:
    """Returns the values of mappings in each other by their full names: `{"task.name": "sst2"}`."""
    if not isinstance(node, dict) or not node:
        return {name: node}
    prefix = f"{name}." if name else ""
    inner = (flatten_options(below, f"{prefix}{key}") for key, below in node.items())
    return {key: value for each in inner for key, value in each.items()}


def shorten_names(names: Iterable[str]) -> dict[str, str]:
    """Returns each full name with its shortest end that no other of the names has too.

    `objective.terms.soft.temperature` is `temperature`, and beside `objective.terms.cosine.temperature` it is
    `soft.temperature`.
    """
    full = list(dict.fromkeys(names))
    ends = {name: _list_ends(name) for name in full}
    return {
        name: next(
            (end for end in ends[name] if not any(end in ends[other] for other in full if other != name)), name
        )
        for name in full
    }  # fmt: skip


def _list_ends(name: str) -> list[str]:
    """Returns the ends of a name, the shortest first: `c`, `b.c` and `a.b.c`."""
    words = name.split(".")
    return [".".join(words[start:]) for start in reversed(range(len(words)))]


def describe_options(options: Options, names: Mapping[str, str] | None = None) -> str:
    """Returns options in one line: `temperature=2 weight=5`.

    Args:
        names: in place of the full ones.
    """
    names = names or {}
    return " ".join(f"{names.get(name, name)}={show_value(value)}" for name, value in options.items())


def describe_names(names: Mapping[str, str]) -> str | None:
    """Returns the full names of those that are shortened, in a sentence; None if none is."""
    words = [f"{short} is {full}" for full, short in names.items() if short != full]
    return f"Short names: {', '.join(words)}." if words else None


def select_options(options: Sequence[Options], typed: Collection[str]) -> list[Options]:
    """Returns the options that tell rows apart: names of groups, what was typed, and of the rest only what is needed.

    Those of the student come first. Those of the benchmark change no result, and are left out where others differ.

    Args:
        typed: the names on the command lines.
    """
    names = list(dict.fromkeys(name for row in options for name in row))
    values = {name: [repr(row.get(name)) for row in options] for name in names}
    varying = [name for name in names if len(set(values[name])) > 1]
    varying.sort(key=lambda name: name.startswith(_MEASURED))
    chosen = [name for name in varying if name.endswith(".name") or (name in typed and not name.startswith(_MEASURED))]
    keys = list(zip(*(values[name] for name in chosen), strict=True)) or [()] * len(options)
    for name in varying:
        finer = [(*key, value) for key, value in zip(keys, values[name], strict=True)]
        if name not in chosen and len(set(finer)) > len(set(keys)):
            chosen.append(name)
            keys = finer
    chosen.sort(key=lambda name: (not name.startswith("student."), names.index(name)))
    shown = {name: iter(hide_values([row[name] for row in options if name in row])) for name in chosen}
    return [{name.removesuffix(".name"): next(shown[name]) for name in chosen if name in row} for row in options]


Record = JsonObject
Number = float | Undefined | None  # Undefined is jinja's, for a value that the record lacks.
MISSING = "-"
# Cases. An interval that holds 0 and more than the margin is undecided. In the last three there is no interval, no
# baseline, and no teacher that the student learned from.
WEAK, BETTER, EQUAL, WORSE, UNDECIDED = "weak teacher", "better", "equal", "worse", "undecided"
UNKNOWN, NO_BASELINE, UNTAUGHT = "unknown", "no baseline", "untaught"
ROUNDING = 1e-9


def format_spread(spread: "Spread | None") -> str:
    """Returns a mean with its standard deviation: `0.9128 ± 0.0012`."""
    if spread is None:
        return MISSING
    return format_number(spread["mean"], ".4f") + ("" if spread["std"] is None else f" ± {spread['std']:.4f}")


def format_number(value: Number, specification: str, unit: str = "") -> str:
    """Returns a number with its unit, or a dash for one that is missing."""
    return MISSING if is_missing(value) else f"{value:{specification}}{unit}"


def is_missing(value: object) -> "TypeIs[Undefined | None]":
    """Returns whether the record lacks a value."""
    return value is None or isinstance(value, Undefined)


def format_megabytes(size: Number) -> str:
    """Returns a size in bytes as `4.1 MB`."""
    return MISSING if is_missing(size) else f"{size / 1e6:.1f} MB"


def format_millions(number: Number) -> str:
    """Returns a number of parameters as `17.4 M`."""
    return MISSING if is_missing(number) else f"{number / 1e6:.1f} M"


@dataclass(frozen=True)
class Unit:
    """The unit of differences of a metric: points, or where less of it is better that of the metric itself."""

    less_is_better: bool

    @classmethod
    def of(cls, task: Record) -> "Unit":
        """Returns that of a task's metric."""
        return cls(task.get("selects") == "min")

    @property
    def word(self) -> str:
        """Returns ` points`, which follow a difference; nothing for a metric of which less is better."""
        return "" if self.less_is_better else " points"

    def format(self, difference: float) -> str:
        """Returns a difference with its sign, a share in points: `+0.8`."""
        if self.less_is_better:
            return f"{round(difference, 3) + 0.0:+.3f}"
        return f"{round(100 * difference, 1) + 0.0:+.1f}"  # The sum makes 0 of -0.

    def format_ends(self, interval: Sequence[float]) -> str:
        """Returns the ends of an interval: `+0.2 to +1.4`."""
        return " to ".join(map(self.format, interval))

    def format_margin(self, margin: float) -> str:
        """Returns a margin: `1 point`, `2 points`, and percent of a metric of which less is better."""
        return f"{margin:g}%" if self.less_is_better else f"{margin:g} point{'s' * (margin != 1)}"

    def scale_margin(self, margin: float, other: float) -> float:
        """Returns a margin as a difference; where less is better, it is percent of the other model's metric."""
        return margin / 100 * (abs(other) if self.less_is_better else 1.0)

    def gain(self, difference: float) -> float:
        """Returns a difference of which more is better."""
        return -difference if self.less_is_better else difference

    def share_kept(self, value: float, teacher: float) -> float | None:
        """Returns the share of the teacher's metric that a student keeps; None if it means nothing.

        Of a metric of which less is better it is the teacher's as a share of the student's.
        """
        part, whole = (teacher, value) if self.less_is_better else (value, teacher)
        return part / whole if whole > 0 and teacher > 0 else None

    def judge(self, difference: Record, margin: float = 0.0) -> str:
        """Returns whether the first model of a difference is better than the second one, equal to it, or worse.

        Args:
            margin: in the unit of the metric; an interval that holds 0 and ends within it tells that both are equal.
        """
        ends = _interval(difference)
        if ends is None:
            return EQUAL if difference["difference"] == 0 else UNKNOWN
        low, high = sorted(map(self.gain, ends))
        if low > 0 or high < 0:
            return BETTER if low > 0 else WORSE
        return EQUAL if max(-low, high) <= margin + ROUNDING else UNDECIDED


def _interval(difference: Record | None) -> tuple[float, float] | None:
    low, high = (difference or {}).get("interval") or (None, None)
    return None if low is None or high is None else (float(low), float(high))


def first_timing(rows: Sequence[Record]) -> Record | None:
    """Returns the measurement at the smallest batch and length, None without one."""
    return min(rows, key=lambda row: (row["batch"], row["length"]), default=None)


def number_format(timing: Record) -> str:
    """Returns the number format of a timed ONNX file: `int8` of `onnx-int8`."""
    return str(timing["format"]).removeprefix("onnx-")


def describe_gate(file: Record) -> str:
    """Returns why a file did not pass its gate, as a sentence about it goes on after its name."""
    return f"{'failed its gate' if file['gate'] == 'failed' else 'is ' + file['gate']}: {file['reason']}"


def task_sections(record: Record) -> dict[str, Record]:
    """Returns the record of each of several tasks by name; none for a run on one task."""
    return {
        name: whole_section(record, section) | {"tasks": {}} for name, section in (record.get("tasks") or {}).items()
    }


BUNDLE, BASELINE_BUNDLE = "bundle", "baseline/bundle"
SUPERVISED = "supervised"  # The objective without a teacher.
BOTH = "seeds and examples"  # `over` of a difference in run.json.
MARGIN = 1.0  # Points within which two models are equal, where a run names no others.


@dataclass(frozen=True)
class Against:
    """The student in torch beside another model.

    Attributes:
        metric: of the other model, on the split of the verdict.
        difference: the student's metric minus this one.
        interval: of the difference, at 95%; None where the split has none.
        elsewhere: the difference of run.json, where it is that on another split, which is dev.
        outcome: BETTER, EQUAL or WORSE than the other model by the interval of either split, UNDECIDED where it does
            not tell, and UNKNOWN without one.
        doubt: what an undecided interval leaves open; None for another outcome.
        over: of the interval of either split, as in run.json; None without one.
    """

    metric: float
    difference: float
    interval: tuple[float, float] | None
    elsewhere: JsonObject | None
    outcome: str
    doubt: "Doubt | None" = None
    over: str | None = None


@dataclass(frozen=True)
class Doubt:
    """The differences that an interval does not exclude.

    Attributes:
        worse, better: by how much the first model may be worse or better, both at least 0.
        over, number: as in run.json, `examples` and how many.
        split: of the interval.
        needed: examples with which the interval would tell, if the difference stayed the same; None over seeds.
    """

    worse: float
    better: float
    over: str
    number: int
    split: str
    needed: int | None

    @classmethod
    def of(cls, difference: Record, unit: Unit, margin: float) -> "Doubt":
        """Returns what an undecided difference leaves open.

        Both sides of an interval fall with the root of the number of examples. It tells once the side towards 0 is at
        most the difference itself, or both sides are at most what the margin leaves beside the difference.
        """
        low, high = sorted(map(unit.gain, difference["interval"]))
        value, number = unit.gain(difference["difference"]), int(difference["number"])
        below, above = max(0.0, value - low), max(0.0, high - value)
        ways = {abs(value): below if value > 0 else above, margin - abs(value): max(below, above)}
        shrink = max((enough / side for enough, side in ways.items() if side > 0), default=0.0)
        needed = None
        if difference["over"] == "examples" and shrink > 0:
            needed = max(number + 1, math.ceil(number / shrink**2))
            needed = math.ceil(needed / (step := 10 ** max(0, len(str(needed)) - 2))) * step  # Two digits.
        split = difference.get("split") or DEV
        return cls(max(0.0, -low), max(0.0, high), difference["over"], number, split, needed)


@dataclass(frozen=True)
class Weakness:
    """A teacher that is not known to be better than the best constant prediction.

    Attributes:
        answer: the constant prediction in words.
        metric: of the teacher.
        constant: that of the constant prediction.
        split: of the two.
        difference: the teacher minus the constant.
        interval: of the difference, at 95%; None without one.
    """

    answer: str
    metric: float
    constant: float
    split: str
    difference: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Verdict:
    """The decision about a student.

    Attributes:
        split: that stands first, `test` or `dev`.
        case: one of the cases above.
        student: its metric in torch.
        baseline: the student beside its baseline; None without one.
        teacher: the student beside its teacher; None if it was not scored.
        weakness: None for a teacher that is better than a constant prediction, or not compared with one.
        constant: the best constant prediction in words, if the student is no better or predicts just that.
        share: of the teacher's metric that the student keeps, from 0 to 1; None where it means nothing.
        file: the format of the recommended file; None if none passed.
        bundle: directory of the bundle to deploy, `bundle` or `baseline/bundle`; None if there is none.
        seeds: number of students.
    """

    split: str
    case: str
    student: "Spread"
    baseline: Against | None
    teacher: Against | None
    weakness: Weakness | None
    constant: str | None
    share: float | None
    file: str | None
    bundle: str | None
    seeds: int


def recommend(export: Mapping[str, Any]) -> str | None:
    """Returns the format that the bundle recommends: the smallest that passed its gate, else the smallest undecided.

    A file for OpenVINO is never recommended, because a bundle runs where openvino is not installed.

    Args:
        export: the files of a record, or of a bundle that is written.
    """
    for gate in ("passed", "undecided"):
        names = [name for name, file in export.items() if file["gate"] == gate and not needs_openvino(file["file"])]
        if names:
            return min(names, key=lambda name: int(export[name]["bytes"]))
    return None


@dataclass(frozen=True)
class Results:
    """The numbers of a run.json, or of one of its several tasks, and the decision that they lead to.

    A model is `teacher`, `constant`, `student` (in torch), `baseline` (in torch), or the format of a student's file.
    """

    record: Record

    @property
    def task(self) -> Record:
        """Returns the `task` of run.json."""
        found: Record = self.record["task"]
        return found

    @property
    def unit(self) -> Unit:
        """Returns the unit of differences of the task's metric."""
        return Unit.of(self.task)

    @property
    def margin(self) -> float:
        """Returns the points within which the models of a run are called equal."""
        margin = self.record.get("margin")
        return MARGIN if margin is None else float(margin)

    @property
    def split(self) -> str:
        """Returns `first_split`, or dev for a run whose model has no metric on test."""
        model = self.record.get("student") or self.record.get("teacher") or {}
        split = first_split(self.task)
        return split if metric_name(self.task, split) in (model.get("metrics") or {}) else DEV

    def measure(self, model: str, split: str | None = None) -> "Spread | None":
        """Returns the task's metric of a model on a split, by default the first one; None if it is not known."""
        return self.measure_metric(model, metric_name(self.task, split or self.split))

    def measure_metric(self, model: str, metric: str) -> "Spread | None":
        """Returns a metric by its name in run.json: of several seeds their mean with the standard deviation."""
        record = self.record
        summary = (record.get("summary") or {}).get(metric) or {}
        files = record.get("export") or {}
        spreads = {"student": summary if "mean" in summary else None, "baseline": summary.get("baseline")}
        spread = (spreads | (summary.get("files") or {})).get(model)
        if spread:
            return {"mean": float(spread["mean"]), "std": spread.get("std")}
        owner = self._constant if model == "constant" else files.get(model) or record.get(model)
        value = ((owner or {}).get("metrics") or {}).get(metric)
        return None if value is None else {"mean": float(value), "std": None}

    @property
    def _constant(self) -> Record:
        return (self.record.get("teacher") or {}).get("constant") or {}

    @property
    def constant_answer(self) -> str:
        """Returns the best constant prediction in words."""
        return str(self._constant.get("answer") or "always the same")

    def timing(self, model: str, format: str) -> Record | None:
        """Returns the measurement of a model at its smallest batch and length, None without one."""
        rows = self.record["benchmark"]
        return first_timing([row for row in rows if row["model"] == model and row["format"] == format])

    def fastest_teacher_file(self) -> Record | None:
        """Returns the measurement of the teacher's fastest ONNX file at the smallest batch and length, or None."""
        rows = self.record["benchmark"]
        reference = first_timing([row for row in rows if row["model"] == "student"])
        if reference is None:
            return None
        own = [
            row
            for row in rows
            if row["model"] == "teacher" and row["format"].startswith("onnx-")
            and all(row[name] == reference[name] for name in ("batch", "length", "threads"))
        ]  # fmt: skip
        return min(own, key=lambda row: float(row["p50_ms"]), default=None)

    def teacher_bytes(self) -> int | None:
        """Returns the size of the teacher's ONNX file, else of its weights in float32; None if neither is known."""
        file, parameters = self.timing("teacher", "onnx-fp32"), self.record["teacher"].get("parameters")
        return file["bytes"] if file else 4 * parameters if parameters else None

    def conditions(self) -> str | None:
        """Returns batch size, length, threads and processor of the times, and whether it was busy with other work.

        None without times.
        """
        rows = self.record.get("benchmark") or ()
        timing = first_timing(rows)
        if timing is None:
            return None
        processor = (self.record.get("environment") or {}).get("cpu") or "an unknown processor"
        shape = timing["batch"], timing["length"]
        busy = any(row.get("disturbed") for row in rows if (row["batch"], row["length"]) == shape)
        threads = f"{format_number(timing['threads'], 'd')} thread{'s' if timing['threads'] != 1 else ''}"
        where = f"{threads} of {processor}{', busy with other work' if busy else ''}"
        return f"batch {timing['batch']}, length {timing['length']}, {where}"

    def find_weakness(self) -> Weakness | None:
        """Returns the teacher beside the best constant prediction if it is not better by more than noise.

        Both are compared on the split of their difference, which is dev.
        """
        known = (self.record.get("teacher") or {}).get("against_constant") or {}
        split = known.get("split") or DEV
        teacher, constant = self.measure("teacher", split), self.measure("constant", split)
        if teacher is None or constant is None:
            return None
        difference = known.get("difference", teacher["mean"] - constant["mean"])
        outcome = self.unit.judge({"interval": None, **known, "difference": difference})
        if outcome == BETTER or (outcome == UNKNOWN and self.unit.gain(difference) > 0):
            return None
        return Weakness(self.constant_answer, teacher["mean"], constant["mean"], split, difference, _interval(known))

    def find_constant(self) -> str | None:
        """Returns the best constant prediction in words if the student is no better than that; else None.

        The two are compared on the split that stands first, without an interval, and on dev if only that has both.
        """
        for split in dict.fromkeys((self.split, DEV)):
            student, constant = self.measure("student", split), self.measure("constant", split)
            if student is not None and constant is not None:
                is_better = self.unit.gain(student["mean"] - constant["mean"]) > ROUNDING
                return None if is_better else self.constant_answer
        return None

    def share_of_teacher(self, value: float) -> float | None:
        """Returns the share of the teacher's metric on the first split that a model keeps, from 0 to 1.

        None where it means nothing: of a metric of which less is better, of a teacher that is not above 0 or no better
        than a constant prediction, and of a model that is better than its teacher.
        """
        teacher, constant = self.measure("teacher"), self.measure("constant")
        if self.unit.less_is_better or teacher is None or teacher["mean"] <= 0 or self.find_weakness() is not None:
            return None
        if constant is not None and teacher["mean"] <= constant["mean"]:
            return None
        share = value / teacher["mean"]
        return share if 0 <= share <= 1 else None

    def decide(self) -> Verdict | None:
        """Returns the verdict on the student; None without a scored student."""
        student, export = self.measure("student"), self.record.get("export") or {}
        if student is None:
            return None
        baseline, weakness = self._compare("baseline", student), self.find_weakness()
        prefers_baseline = baseline is not None and baseline.outcome == WORSE
        baseline_export = (self.record.get("baseline") or {}).get("export")
        return Verdict(
            split=self.split, case=self._choose_case(baseline, weakness), student=student, baseline=baseline,
            teacher=self._compare("teacher", student), weakness=weakness, constant=self.find_constant(),
            share=self.share_of_teacher(student["mean"]), file=recommend(export),
            bundle=BASELINE_BUNDLE if prefers_baseline and baseline_export else BUNDLE if export else None,
            seeds=max(1, len(self.record.get("seeds") or [])),
        )  # fmt: skip

    def _compare(self, name: str, student: "Spread") -> Against | None:
        """Returns the student beside its baseline or its teacher; None without that, or without a metric of it."""
        other = self.measure(name)
        if other is None:
            return None
        known = (self.record.get("comparison") or {}).get(name)
        if known is None:
            return Against(other["mean"], student["mean"] - other["mean"], None, None, UNKNOWN)
        here = known if (known.get("split") or DEV) == self.split else None
        margin = self.unit.scale_margin(self.margin, other["mean"])
        outcome = self.unit.judge(known, margin)
        return Against(
            metric=other["mean"], difference=here["difference"] if here else student["mean"] - other["mean"],
            interval=_interval(here), elsewhere=None if here else known, outcome=outcome,
            doubt=Doubt.of(known, self.unit, margin) if outcome == UNDECIDED else None, over=known["over"],
        )  # fmt: skip

    def _choose_case(self, baseline: Against | None, weakness: Weakness | None) -> str:
        # The card of an exported baseline is about a student that is `untaught`.
        objective = (self.record.get("objective") or {}).get("name")
        if objective == SUPERVISED or self.record["student"].get("untaught"):
            return UNTAUGHT
        if weakness is not None:
            return WEAK
        return NO_BASELINE if baseline is None else baseline.outcome


@raise_option_errors
@checked_dataclass(frozen=True, config=STRICT)
class RecordSettings:
    """Settings of the record of a run, the keys of `record` in `conf/config.yaml`.

    Args:
        texts: whether files in the run's directory may hold texts of the data; False leaves them out.
    """

    texts: bool = True


@raise_option_errors
@checked_dataclass(frozen=True, config=STRICT)
class ReportSettings:
    """Settings of what a report says, the keys of `report` in `conf/config.yaml`.

    Args:
        margin: points of the metric within which two models are called equal, if the 95% interval of their difference
            lies within it; percent of a metric of which less is better.
        rank: option whose values a report of several runs ranks; None for none.
        against: value of `rank` that the others are compared with; None for hinton, or the first one.
    """

    margin: PositiveFloat = MARGIN
    rank: str | None = None
    against: str | None = None
