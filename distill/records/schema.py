"""Shape of a run.json, and the runs below a directory whose run.json can be read."""

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Required

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, SchemaValidator, core_schema
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12.

from distill.core import storage
from distill.core.errors import UserError
from distill.core.files import JsonObject
from distill.records.run import RECORD, create_results, open_run

TEST: Final = "test"  # Splits that may stand first.
DEV: Final = "dev"
Interval = Annotated[list[float], Field(min_length=2, max_length=2)]


class BatchSensitivity(TypedDict, total=False):
    """An entry `batch_sensitivity` of an exported file in run.json and bundle.json.

    Attributes:
        max_probability_diff: largest difference of a probability between an example alone and in a batch; of numbers,
            as a share of their range.
        changed: share of the items whose prediction in a batch is another one than alone.
        examples: number of examples that were compared, the first ones of dev.
        batch: number of examples of a batch, at most.
    """

    max_probability_diff: float
    changed: float
    examples: int
    batch: int


class Abstention(TypedDict):
    """An entry `abstain` of an exported file in run.json.

    Attributes:
        threshold: the file abstains where its largest probability is below.
        share: share of the examples of each split on which it abstains.
        metrics: metrics of the other examples, named as those of a file. A split of which none is left has no metrics.
    """

    threshold: float
    share: dict[str, float]
    metrics: dict[str, float]


class Escalation(TypedDict):
    """An entry of the `escalate` of an exported file in run.json: a share of texts that is left to the teacher.

    Attributes:
        share: of dev that is left to the teacher; less is if several examples have the confidence of the threshold.
        threshold: the teacher predicts where the largest probability of the file is below.
        left: share of the examples of each split that are below.
        accuracy: of the teacher there and of the file elsewhere, for each split with labels of the data.
        interval: of the accuracy of a fresh sample as large as dev, its ends at 95%; None without labels of dev.
    """

    share: float
    threshold: float
    left: dict[str, float]
    accuracy: dict[str, float]
    interval: Interval | None


class SmallerVectors(TypedDict):
    """An entry of the `vectors` of a file in run.json: a form of its vectors, compared with those of torch on dev.

    Attributes:
        dimensions: number of first dimensions.
        precision: of the vectors of the corpus, `float32`, `int8` or `binary`.
        rescore: documents that are compared again for each one that is to be found; 0 for none.
        documents: whose vectors of the corpus are searched, the file's `own` ones or those of its `teacher`.
        metrics: on every split.
        kept: share of the metric of the torch model with its whole vectors; None if that is not above 0.
        drop: decrease of the metric, negative if it increased.
        interval: the ends of its 95% interval, by a paired bootstrap over the examples.
        gate: `passed`, `undecided` or `failed`.
        reason: the reason in words; None if it passed.
    """

    dimensions: int
    precision: str
    rescore: int
    documents: str
    metrics: dict[str, float]
    kept: float | None
    drop: float
    interval: Interval
    gate: str
    reason: str | None


class TypeRecall(TypedDict):
    """The decrease of one type's recall.

    Attributes:
        number: of the right answers of this type on dev.
        lost: of those that torch finds and the file does not.
        gained: of those that the file finds and torch does not.
        drop: decrease of the recall.
        interval: its ends at 95% for all judged types together, after Bonferroni.
    """

    number: int
    lost: int
    gained: int
    drop: float
    interval: Interval


class HeldRecall(TypedDict):
    """The recall of a type on dev that is held to the teacher's.

    Attributes:
        number: of the right answers of this type.
        file, student, teacher: the recalls of the file, of the torch model and of the teacher, which is above 0.
    """

    number: int
    file: float
    student: float
    teacher: float


class _Compared(TypedDict, total=False):
    """Comparison of a file with the torch model on dev. An earlier version may have left out fields.

    Attributes:
        max_probability_diff: largest difference of the probabilities; of numbers, as a share of their range.
        agreement: share of the items with the same prediction.
        metrics: metrics of the file, on every split; of a recipe that was tried, on dev.
        drop: decrease of the task's metric, negative if it increased; of a metric of which less is better, its increase
            as a share of that of the torch model.
        interval: the ends of the 95% interval of the drop, by a paired bootstrap over the examples.
        ece: expected calibration error; None for a task without probabilities.
    """

    max_probability_diff: float
    agreement: float
    metrics: Required[dict[str, float]]
    drop: float
    interval: Interval
    ece: float | None


class _Judged(_Compared, total=False):
    """A file that was compared and judged.

    Attributes:
        reason: the reason of the gate in words; None if it passed.
        confidence: that of the interval whose upper end decides, more than 95% for one of several recipes.
        recipe: number format of the weights, in words; of a recipe that was tried, one of `quantization.RECIPES`.
        target: the processors that the file is right on, one of `edge.bundle_files.TARGETS`.
    """

    reason: str | None
    confidence: float
    recipe: str
    target: str


class FileComparison(_Compared, total=False):
    """Comparison of an exported file with the torch model.

    Attributes:
        max_abs_diff: largest difference of the logits; of a language model, of the log-probability of the right token.
        examples: number of examples of dev.
        resolution: the end of the interval of the drop for predictions that are those of torch; 0 if the metric cannot
            move, and None for a metric without a worst value.
        types: types of answers whose recall decreased, by name.
        recalls: the recalls of types of entities with enough right answers, by name; left out without any.
        ece_rise: increase of the expected calibration error.
    """

    max_abs_diff: float
    examples: int
    resolution: float | None
    types: dict[str, TypeRecall]
    recalls: dict[str, HeldRecall]
    ece_rise: float | None


class ExportedFile(FileComparison, _Judged, total=False):
    """An entry of run.json's `export`.

    Attributes:
        file: name in the bundle.
        bytes: size on disk, with the weights of a large model that are in a second file.
        gate: `passed`, `undecided`, `failed` or `unchecked`.
        abstain: the threshold below which it gives no label, with the share and the metrics that follow from it.
        escalate: shares of texts that are left to the teacher; empty for tasks without one class for each example.
        batch_sensitivity: how far its predictions depend on the other texts of a batch.
        batch_size: the number of texts that the bundle recommends to run together; None for any.
        vectors: the metric with smaller forms of its vectors; empty for tasks without vectors.
    """

    file: Required[str]
    bytes: Required[int]
    gate: Required[str]
    abstain: Abstention | None
    escalate: list[Escalation]
    batch_sensitivity: BatchSensitivity
    batch_size: int | None
    vectors: list[SmallerVectors]


class RecipeAttempt(_Judged, total=False):
    """An entry of run.json's `attempts`: a recipe that was tried.

    Attributes:
        words: the recipe in words.
        kept: names of the products whose matrices stay in float32.
        bytes, gate: as in `ExportedFile`.
        chosen: whether the bundle has the file.
        seconds: of writing the file, scoring it and, for `mixed` and `qat`, what comes before.
    """

    words: str
    kept: list[str]
    bytes: int
    gate: str
    chosen: bool
    seconds: float


# The fields of run.json that reports read, in its own form. One whose name ends in `!` or `!?` has to be there, and one
# whose name ends in `?` may be null.
_METRICS = {str: float | None}
_MODEL = {"metrics!": _METRICS, "requested?": str, "parameters?": int, "before?": _METRICS, "notices?": [str]}
_DIFFERENCE = {
    "difference!": float, "interval!?": Interval, "p!?": float, "over!": str, "number!": int, "split?": str,
}  # fmt: skip
_STEP = {
    "step!": int, "layers!": [int], "heads!": [int], "neurons!": [int], "removed!": float, "before?": float,
    "after?": float,
}  # fmt: skip
_PARTS = {str: {str: {"examples!": int, "values!": str}}}
_BASELINE = {
    "metrics!": _METRICS, "export?": {str: ExportedFile}, "seconds?": float, "stopped_early?": int, "start?": str,
    "pruning?": [_STEP],
}  # fmt: skip
_SPREAD = {"mean!": float, "std!?": float}
_BY_GROUP = {str: {str: {str: _METRICS}}}  # By split, model and group.
_RECORD: dict[str, Any] = {
    "job!": str, "error?": str, "command?": [str], "settings?": dict[str, Any], "seed?": int,
    "task?": {
        "name!": str, "metric!": str, "examples!": {str: int}, "has_test?": bool, "labels?": [str], "selects?": str,
        "example?": str, "choices?": int, "packing?": str,
        "unlabelled?": {
            "share": float, "sources": [{"name": str, "examples": int, "from": str}], "sureness?": float,
        },
        "cleaning?": {"rules!": str, "lines!": int, "kept!": int, "dropped!": {str: int}},
    },
    "objective?": {"name?": str, "terms?": {str: {"weight?": float}}},
    "teacher?": {
        "resolved!": str, **_MODEL, "origin?": str,
        "adapted?": {
            "text!": str, "steps!": int, "words": int, "pieces_per_word": {"before!": float, "after!": float},
        },
        "constant?": {"answer?": str, "metrics!": _METRICS},
        "against_constant?": _DIFFERENCE, "dollars_per_million_texts?": float, "milliseconds?": float,
    },
    "student?": {"name!": str, **_MODEL},
    "baseline?": _BASELINE,
    "baseline_choice?": {"trained!": bool, "reason!": str, "share?": float, "possible": bool},
    "retention?": _METRICS,
    "training?": {
        "seconds!": float, "dev_losses?": {str: float}, "steps?": int, "fitted?": str, "precision?": str,
        "examples_per_second?": float, "tokens_per_second?": float, "padding?": float, "stopped_early?": int,
        "soup?": {"steps!": [int], "taken!": bool},
        "teacher_seconds?": float, "teacher_cache?": {"hit": bool, "bytes": int},
        "chosen?": {str: {"value!": float | str | bool | None, "reason!": str}},
    },
    "export?": {str: ExportedFile},
    "benchmark?": [{
        "model!": str, "format!": str, "batch!": int, "length!": int, "threads!": int, "bytes!": int,
        "p50_ms!": float, "p90_ms!": float, "p99_ms!": float, "runs": int, "disturbed": bool,
    }],
    "dev_pass?": [{"model!": str, "format!": str, "seconds!": float}],
    "attempts?": [RecipeAttempt],
    "budget?": {
        "mb?": float, "ms?": float,
        "tried": [{"depth?": int, "width?": float, "bytes": int, "p50_ms?": float, "fits": bool}],
        "delivered?": {
            "format!": str, "file!": str, "recipe!?": str, "bytes!": int, "p50_ms!": float, "length!": int,
            "threads!": int, "disturbed!": bool, "fits!": bool,
        },
    },
    "pruning?": [_STEP],
    "seconds?": {str: float},
    "seeds?": [{
        "seed!": int, "metrics!": _METRICS, "export!": {str: ExportedFile}, "retention?": _METRICS,
        "baseline?": _BASELINE, "comparison?": {str: _DIFFERENCE}, "parts?": _PARTS, "seconds?": float,
    }],
    "summary?": {str: {**_SPREAD, "files": {str: _SPREAD}, "baseline?": _SPREAD}},
    "comparison?": {str: _DIFFERENCE},
    "parts?": _PARTS,
    "margin?": float,
    "breakdown?": _BY_GROUP,
    "lengths?": _BY_GROUP,
    "cuts?": _BY_GROUP,
    "texts?": {
        str: {"sources!": int, "beams!": int, "comparison!": {str: {str: {str: _DIFFERENCE}}},
              "lengths!": {str: {str: _METRICS}}},
    },
    "environment?": {"cpu?": str, "isa?": [str], "cores?": int, "threads?": int, "accelerator?": str},
}  # fmt: skip


def _create_schema(form: Any) -> CoreSchema:
    """Returns the schema of a form: the fields of a mapping by name, the only value of a list, or a type."""
    if isinstance(form, list):
        return core_schema.list_schema(_create_schema(form[0]))
    if not isinstance(form, dict):
        return TypeAdapter(form).core_schema
    if str in form:
        return core_schema.dict_schema(core_schema.str_schema(), _create_schema(form[str]))
    fields = {}
    for name, inner in form.items():
        schema = _create_schema(inner)
        schema = core_schema.nullable_schema(schema) if name.endswith("?") else schema
        fields[name.rstrip("!?")] = core_schema.typed_dict_field(schema, required="!" in name)
    return core_schema.typed_dict_schema(fields)


_SCHEMA = SchemaValidator(_create_schema(_RECORD))
_FIELDS = [name.rstrip("!?") for name in _RECORD]
# Fields of a run that has no results yet, where they are not null.
_EMPTY = {**create_results(), "attempts": [], "seconds": {}, "environment": {}}


def first_split(task: Mapping[str, Any]) -> str:
    """Returns the split whose metrics stand first: test if it has labels, else dev, which chose the checkpoints.

    Args:
        task: the `task` of run.json. Several tasks have test if each of them has it (`has_test`).
    """
    return TEST if task.get("has_test", task["examples"].get(TEST)) else DEV


def metric_name(task: Mapping[str, Any], split: str) -> str:
    """Returns the name of the task's metric on a split among the metrics of a model."""
    return str(task["metric"]) if split == DEV else f"{split}/{task['metric']}"


def first_metric(task: Mapping[str, Any]) -> str:
    """Returns the name of the task's metric on `first_split` among the metrics of a model."""
    return metric_name(task, first_split(task))


def fill_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the record with a null or empty value for each field that it lacks, as one without results does."""
    return {**record, **{name: record.get(name) or _EMPTY.get(name) for name in _FIELDS}}


def check_record(record: Mapping[str, Any]) -> None:
    """Raises ValueError, with the name of the field, if one that a report reads is missing or of another type."""
    try:
        _SCHEMA.validate_python(record)
    except ValidationError as error:
        [first, *_] = error.errors()
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    results = [name for name in ("export", "baseline", "seeds", "summary") if record.get(name)]
    missing = [name for name in ("task", "teacher", "student") if not record.get(name)]
    if results and missing:
        raise ValueError(f"it has {results[0]} and no {missing[0]}")


# The lists of a sweep's runs in its directory, one of each process, so that none needs a lock. A line is the directory
# of a run relative to that of the sweep, a tab, and the run's launch.
SWEEP_RUNS = "runs*.txt"
TABLE = "table.json"  # The cells of an experiment with their runs, in the directory of its sweep.
# Files of a run that no report reads.
UNREAD = ("*.ckpt", "*.safetensors", "*.onnx", "*.onnx.data", "*.xml", "*.bin", "*tokenizer.json", "*vocab.txt")


@cache
def _own_list(process: int) -> str:
    """Returns the name of the lists that this process writes, which no process of any machine has."""
    return SWEEP_RUNS.replace("*", f".{uuid.uuid4().hex}")


def add_run(sweep: Path, directory: Path, launch: str) -> None:
    """Adds a run to the list of its sweep that this process writes."""
    with open(sweep / _own_list(os.getpid()), "a", encoding="utf-8") as file:
        file.write(f"{os.path.relpath(directory, sweep)}\t{launch}\n")
    storage.try_send(sweep)


def find_launched(sweep: Path, launch: str) -> Path | None:
    """Returns the directory of the run that an earlier worker began with this `launch`."""
    storage.fetch_files(sweep, SWEEP_RUNS)
    found = [path for path, other in _read_launches(sweep) if other == launch]
    return found[-1] if found else None


def _read_launches(sweep: Path) -> list[tuple[Path, str]]:
    """Returns the directory and the launch of each run of a sweep, oldest first."""
    lists = [listed.read_text(encoding="utf-8").splitlines() for listed in sweep.glob(SWEEP_RUNS)]
    columns = [line.partition("\t") for lines in sorted(lists) for line in lines]
    return [((sweep / path).resolve(), launch) for path, _, launch in columns]


@dataclass(frozen=True)
class Runs:
    """The runs below a directory, oldest first, and one message for each run.json that cannot be read."""

    readable: Sequence[tuple[Path, JsonObject]]
    unreadable: Sequence[str]


def find_runs(directory: Path) -> Runs:
    """Returns the runs of a sweep, or all runs below a directory.

    Raises:
        UserError: if there is none.
    """
    fetch_runs(directory)
    given = f"runs={storage.address(directory)}"
    if not directory.is_dir():
        raise UserError(f"{given} is no directory: give that of a run or a sweep, or one with runs below it")
    if any(directory.glob(SWEEP_RUNS)):
        found = list(dict.fromkeys(path for path, _ in _read_launches(directory)))
    else:
        found = sorted((path.parent for path in directory.rglob(RECORD)), key=lambda path: (path.name, str(path)))
    readable: list[tuple[Path, JsonObject]] = []
    unreadable: list[str] = []
    for path in found:
        try:
            readable.append((path, read_record(path)))
        except UserError as error:
            unreadable.append(str(error))
    if not readable and not unreadable:
        raise UserError(f"{given} has no runs: give the directory of a run or a sweep, or one with runs below it")
    return Runs(readable, unreadable)


def fetch_runs(directory: Path) -> None:
    """Fetches from the URL of a directory what reports read: of a sweep's runs, or of all runs below it.

    Raises:
        UserError: if the URL cannot be read.
    """
    if not storage.is_copy(directory):
        return
    for pattern in (SWEEP_RUNS, TABLE):
        storage.fetch_files(directory, pattern)
    if not any(directory.glob(SWEEP_RUNS)):
        storage.fetch_holders(directory, RECORD, skip=UNREAD)
    for path in dict.fromkeys(path for path, _ in _read_launches(directory)):
        storage.fetch(path, skip=UNREAD)


def read_record(directory: Path) -> JsonObject:
    """Returns the record of a run, in which every field that a report reads is there and of the right type.

    Raises:
        UserError: if it is no run, or its record is damaged.
    """
    record = open_run(directory).record
    try:
        check_record(record)
    except ValueError as error:
        raise UserError(f"{directory / RECORD} is damaged: {error}") from error
    return fill_record(record)
