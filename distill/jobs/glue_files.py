"""The job `glue_test`, which writes the files of predictions that the test server of GLUE takes (arXiv 1804.07461)."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from distill.console import print_line, print_notice, silence_libraries
from distill.edge.bundle import Bundle
from distill.edge.decoder import Record
from distill.errors import UnreachableError, UserError
from distill.export.gate import recommended
from distill.jobs.overrides import refuse_other_options
from distill.readers.rows import SUFFIXES, Row, read_rows
from distill.records.collection import read_record
from distill.records.experiment_runs import Outcome, read_runs
from distill.storage import hub, mirror
from distill.storage.files import make_directory, write_text

TEST = "test"  # The directory within that of the table.
HUB = "nyu-mll/glue"
# For each task the files of the server: its name there -> the task whose test set it is of, and the split.
FILES: dict[str, dict[str, tuple[str, str]]] = {
    "cola": {"CoLA": ("cola", "test")},
    "mnli": {"MNLI-m": ("mnli", "test_matched"), "MNLI-mm": ("mnli", "test_mismatched"), "AX": ("ax", "test")},
    "mrpc": {"MRPC": ("mrpc", "test")},
    "qnli": {"QNLI": ("qnli", "test")},
    "qqp": {"QQP": ("qqp", "test")},
    "rte": {"RTE": ("rte", "test")},
    "sst2": {"SST-2": ("sst2", "test")},
    "stsb": {"STS-B": ("stsb", "test")},
    "wnli": {"WNLI": ("wnli", "test")},
}
NAMED = ("mnli", "qnli", "rte")  # The server takes the names of their classes, and the numbers of those of others.
LARGEST = 5.0  # Of the similarities of STS-B.
NO_TEXT = ("index", "idx", "id", "label", "score")


@dataclass(frozen=True)
class _Best:
    """The bundle of a row on a task, of the seed that is best on dev."""

    bundle: Path
    columns: Sequence[str]
    metric: float


def run_glue_test(config: DictConfig) -> None:
    """Writes `runs/test/ROW/CoLA.tsv` and so on for every row of a table with bundles.

    Raises:
        UserError: for options that have no effect, a directory without a table or without bundles, and test sets that
            cannot be read.
    """
    refuse_other_options("glue_test")
    if config.runs is None:
        raise UserError("job=glue_test has no table: add runs=DIR, the directory of +experiment=glue")
    silence_libraries()
    directory = mirror.local_path(config.runs)
    data = None if config.data is None else mirror.local_path(config.data)
    table = read_runs(directory)
    if table is None:
        raise UserError(f"{directory} has no table, expected the directory of +experiment=glue, like runs/tables/glue")
    best = _find_bundles(table.outcomes)
    if not best:
        raise UserError(f"{directory} has no bundle of a task of GLUE, expected those of rows with job=distill")
    for row, of_tasks in best.items():
        to = directory / TEST / row
        make_directory(to)
        written = [name for task, of in of_tasks.items() for name in _write(task, of, data, to)]
        print_line(f"{row}: {', '.join(f'{name}.tsv' for name in written) or 'none'} in {to}")
        missing = [name for files in FILES.values() for name in files if name not in written]
        if missing:
            print_notice(f"{row} has no {', '.join(missing)}: the server takes these from its sample submission")


def _find_bundles(outcomes: Sequence[Outcome]) -> dict[str, dict[str, _Best]]:
    """Returns the best bundle of each row on each task of GLUE."""
    best: dict[str, dict[str, _Best]] = defaultdict(dict)
    for outcome in outcomes:
        task = outcome.place.column
        if outcome.directory is None or task not in FILES or not (outcome.directory / "bundle").is_dir():
            continue
        record, config = read_record(outcome.directory), OmegaConf.load(outcome.directory / "config.yaml")
        chosen = recommended(record["export"])
        metrics = record["student"]["metrics"] if chosen is None else record["export"][chosen]["metrics"]
        found = _Best(outcome.directory / "bundle", list(config.task.text), metrics[record["task"]["metric"]])
        known = best[outcome.place.row].get(task)
        if known is None or found.metric > known.metric:
            best[outcome.place.row][task] = found
    return best


def _read(data: Path | None, task: str, split: str) -> list[Row] | None:
    """Returns the rows of a split in a directory or, without one, on the Hub; None if the directory lacks it."""
    if data is None:
        source = f"the test set {task} of GLUE"
        try:
            return list(hub.load_dataset(f"{HUB}:{task}", source, advice="", split=split))
        except UnreachableError as error:
            raise UserError(
                f"{source} is not in the cache and cannot be downloaded from the Hub: add data=DIR, a directory with "
                f"{task}/{split}.tsv"
            ) from error
    paths = [data / task / f"{split}{suffix}" for suffix in SUFFIXES]
    found = next((path for path in paths if path.is_file()), None)
    return None if found is None else [row for _, row in read_rows(found)]


def _write(task: str, best: _Best, data: Path | None, to: Path) -> Iterator[str]:
    """Writes the files of a task, and yields the names of those that have a test set.

    Args:
        data: the directory with a directory of each task; None for the Hub.
    """
    bundle: Bundle | None = None
    for name, (of_task, split) in FILES[task].items():
        rows = _read(data, of_task, split)
        if rows is None:
            continue
        bundle = bundle or Bundle(best.bundle)
        columns = _find_columns(rows, best.columns, f"{of_task}/{split}")
        texts = [[row.get(column) for column in columns] for row in rows]
        records = cast(list[Record], [of if len(of) > 1 else of[0] for of in texts])  # The decoder checks them.
        for number, record in enumerate(records, start=1):
            try:
                bundle.decoder.read(record)
            except UserError as error:
                raise UserError(f"the test set {of_task}/{split}, row {number}: {error}") from error
        predictions = bundle.predict(records)
        lines = [f"{number}\t{_show(task, bundle, prediction)}" for number, prediction in enumerate(predictions)]
        write_text(to / f"{name}.tsv", "\n".join(["index\tprediction", *lines]) + "\n")
        yield name


def _find_columns(rows: Sequence[Row], columns: Sequence[str], source: str) -> Sequence[str]:
    """Returns the columns of the texts, those of the training or what is left where they have other names."""
    names = list(rows[0]) if rows else list(columns)
    if set(columns) <= set(names):
        return columns
    left = [name for name in names if name not in NO_TEXT]
    if len(left) != len(columns):
        raise UserError(f"the test set {source} has the columns {', '.join(names)}, expected {', '.join(columns)}")
    return left


def _show(task: str, bundle: Bundle, prediction: Mapping[str, Any]) -> str:
    """Returns a prediction as the server reads it."""
    if "value" in prediction:
        return f"{min(LARGEST, max(0.0, prediction['value'])):.3f}"
    probabilities: Mapping[str, float] = prediction["probabilities"]
    label = max(probabilities, key=lambda name: probabilities[name])
    return label if task in NAMED else str(list(bundle.labels).index(label))
