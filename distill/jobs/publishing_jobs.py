"""The jobs `report`, `publish` and `glue_test`, which hand the results of runs to others.

The job `publish`, which uploads the student and the bundle of a run to the Hugging Face Hub. The repository has the
student at its top, so that `from_pretrained("owner/name")` loads it, and `bundle/`.
"""

import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.filesize import decimal
from rich.table import Table

from distill.core import storage
from distill.core.console import console, print_line, print_notice, silence_libraries
from distill.core.errors import OptionError, UnreachableError, UserError, first_line
from distill.core.files import CHECKSUMS, JsonObject, is_intact, make_directory, write_json, write_text
from distill.core.options import show_value
from distill.edge.bundle import Bundle
from distill.edge.decoder import Record
from distill.jobs.preflight import refuse_other_options
from distill.records import row_tables
from distill.records.choice import Choice
from distill.records.experiment import Outcome, read_experiment, read_runs
from distill.records.experiment_table import ExperimentTable, TablePage, describe_table
from distill.records.pages import Collection, write_collection
from distill.records.ranking import RANKING, Ranking
from distill.records.report import render_overview_card
from distill.records.row_tables import PaperFiles, write_paper_files
from distill.records.schema import Runs, fetch_runs, find_runs, read_record
from distill.records.verdict import ReportSettings, recommend
from distill.rows.formats import SUFFIXES, Row, read_rows


def run_report(config: DictConfig, *, wait: Callable[[float], None] = time.sleep) -> None:
    """Writes the report of `runs` into `report_dir`, with `refresh` again and again until Ctrl-C.

    Args:
        wait: waits for so many seconds.

    Raises:
        UserError: for options that have no effect, and a directory without runs.
    """
    refuse_other_options("report")
    if config.runs is None:
        raise UserError("job=report has no runs to report: add runs=DIR, the directory of a run, of a sweep or of runs")
    if config.refresh is not None and (type(config.refresh) is not int or config.refresh < 1):
        raise OptionError("refresh", config.refresh, "a whole number of seconds of at least 1, or null")
    runs = storage.local_path(config.runs)
    to = runs if config.report_dir is None else storage.local_path(config.report_dir)
    settings = read_settings(config)
    write(runs, to, settings, refresh=config.refresh)
    if config.refresh is None:
        return
    print_line(f"The report is written again every {config.refresh} s. Ctrl-C ends this")
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while True:
            wait(config.refresh)
            _write_pages(*_find(runs, settings), to, refresh=config.refresh)
    except KeyboardInterrupt:
        _write_pages(*_find(runs, settings), to)  # A page that no longer loads itself again.
    finally:
        signal.signal(signal.SIGINT, previous)


_DEFAULTS = ReportSettings()


def read_settings(config: DictConfig) -> ReportSettings:
    """Returns the settings of a report of several runs."""
    return cast(ReportSettings, instantiate(config.report)) if "report" in config else _DEFAULTS


def write(runs: Path, to: Path, settings: ReportSettings = _DEFAULTS, *, refresh: int | None = None) -> None:
    """Writes the report of the runs below a directory, and prints its tables.

    Raises:
        UserError: if there are no runs, or the report cannot be written.
    """
    found, table = _find(runs, settings)
    make_directory(to)
    written, files = _write_pages(found, table, to, refresh=refresh)
    if table is not None:
        for shown in table.terminal_tables():
            console.print(shown)
        for sentence in (*table.sentences, *(f"Published: {source}" for source in table.sources)):
            print_line(sentence)
    for group in written.groups if table is None else ():
        console.print(row_tables.terminal_table(group.rows, title=group.title))
        for sentence in filter(None, (group.names(), group.ranking)):
            print_line(sentence)
    if written.groups and table is None:
        print_line(row_tables.NOTE)
    for message in found.unreadable:
        print_line(f"Left out {message}")
    print_line(f"Report   {written.page}")
    if files is not None:
        print_line(f"Paper    {files.describe()}")


def _find(directory: Path, settings: ReportSettings) -> tuple[Runs, TablePage | None]:
    """Returns the runs below a directory, those of its cells alone if it has the table of an experiment.

    The page is that of the ranking, of the table, or of the choice among several students.
    """
    fetch_runs(directory)
    listed = read_runs(directory)
    table = None
    if listed is None:
        found = find_runs(directory)
    else:
        table = ExperimentTable(read_experiment(listed.content), listed.outcomes, listed.command)
        found = find_runs(directory) if table.directories else Runs([], [])
        wanted = set(table.directories)
        found = Runs([run for run in found.readable if run[0].resolve() in wanted], found.unreadable)
    if settings.rank is not None:
        command = ["python", "-m", "distill", *sys.argv[1:]]
        return found, Ranking.of(found.readable, settings.rank, settings.against, command).describe()
    if table is not None:
        return found, describe_table(table)
    choice = Choice.read(directory)
    return found, None if choice is None else choice.describe()


def _write_pages(
    found: Runs, table: TablePage | None, to: Path, *, refresh: int | None = None
) -> tuple[Collection, PaperFiles | None]:
    """Writes the report as `write_collection` does, and sends it to the URL that `to` is the copy of.

    The files for a paper are not written again and again, as a page is that a browser loads again.
    """
    written = write_collection(found, to, refresh=refresh, table=table)
    if table is not None and table.record is not None:
        write_json(to / RANKING, table.record)
    files = None
    if refresh is None:
        files = write_paper_files(to, written.report.markdown, written.report.figures, tables=written.tables)
        storage.try_send(files.directory)
    storage.try_send(to, skip=storage.BELOW)
    return written, files


CARD = "README.md"


def run_publish(config: DictConfig) -> None:
    """Uploads the student and the bundle of `run` to `repo`, or with `dry_run` lists them.

    Raises:
        UserError: for options that have no effect, a run that cannot be published, and what the Hub refuses.
    """
    refuse_other_options("publish")
    if config.run is None:
        raise UserError("job=publish has no run: add run=DIR, the directory of a finished run of job=distill")
    if config.repo is None:
        raise UserError("job=publish has no repository to upload to: add repo=OWNER/NAME")
    _check_repo(config.repo)
    if not isinstance(config.private, bool):
        raise OptionError("private", show_value(config.private), "true or false")
    run = storage.local_path(config.run)
    storage.fetch(run)
    card_text = _read_card(run, _check_run(run))
    with tempfile.TemporaryDirectory() as directory:
        card = Path(directory) / CARD
        write_text(card, _write_license(card_text, config.job.license))
        files = dict(sorted((_list_files(run) | {CARD: card}).items()))
        _show_upload(files, config.repo, "private" if config.private else "public")
        if config.dry_run:
            print_line("Nothing was sent (dry_run=true)")
            return
        silence_libraries()
        print_line(f"Published  {_send(files, config.repo, private=config.private)}")


def _check_repo(repo: str) -> None:
    """Raises UserError for a name that the Hub does not accept."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise OptionError("repo", show_value(repo), "owner/name in letters, digits, -, _ and .") from error
    if "/" not in repo:
        raise OptionError("repo", repo, "owner/name, with your name or that of an organization before the slash")


def _check_run(run: Path) -> JsonObject:
    """Returns the record of a run.

    Raises:
        UserError: for a run that is not finished, failed a gate, or is damaged.
    """
    record = read_record(run)
    if record["status"] != "finished":
        raise UserError(
            f"{run} is not finished, its status is {record['status']}: python -m distill resume={run} goes on with it"
        )
    sections = (record.get("tasks") or {"": record}).items()
    exports = {name: section["export"] for name, section in sections if section["export"]}
    for name, export in exports.items():
        if recommend(export) is None:
            failed = ", ".join(f"{file['file']} {file['gate']}" for file in export.values())
            raise UserError(
                f"no exported file of {run}{f' for {name}' if name else ''} passed its gate ({failed}): distil the "
                "student again with other options, or with export.enabled=false to publish it without a bundle"
            )
    if exports and record["teacher"].get("substituted"):
        print_notice(f"the teacher of {run} is a substitute, which the model card says")
    for name in ("student", *(["bundle"] if exports else [])):
        for directory in {path.parent for path in (run / name).rglob(CHECKSUMS)} or {run / name}:
            if not is_intact(directory):
                raise UserError(
                    f"{directory} is damaged or was changed, because its checksums do not match: run it again"
                )
    return record


def _read_card(run: Path, record: JsonObject) -> str:
    """Returns the model card of a run, or of several tasks an overview of their directories.

    Raises:
        UserError: for a run without a student.
    """
    if record.get("tasks") and (run / "student").is_dir():
        return render_overview_card(record, is_repository=True)
    card = run / "student" / CARD
    if not card.is_file():
        raise UserError(f"{run} has no student with a model card: give a run of job=distill")
    return card.read_text(encoding="utf-8")


def _list_files(run: Path) -> dict[str, Path]:
    """Returns the files of the student and of the bundle, and the wheel, by their names in the repository."""
    student, bundle = run / "student", run / "bundle"
    files = {path.relative_to(student).as_posix(): path for path in _walk(student) if path.name != CHECKSUMS}
    files |= {path.name: path for path in run.glob("*.whl")}
    return files | {f"bundle/{path.relative_to(bundle).as_posix()}": path for path in _walk(bundle)}


def _walk(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(".")]


def _write_license(card: str, license: str | None) -> str:
    """Returns a model card with this licence in its header; None leaves it as it is."""
    from huggingface_hub import ModelCard

    loaded = ModelCard(card, ignore_metadata_errors=True)
    if license is not None:
        loaded.data.license = license
    elif loaded.data.license is None:
        print_notice("the model card names no licence, because the teacher's is not known: job.license=NAME sets one")
    return str(loaded)


def _show_upload(files: Mapping[str, Path], repo: str, visibility: str) -> None:
    """Prints the files with their sizes, and the repository."""
    table = Table("file", "size")
    table.columns[1].justify = "right"
    sizes = {name: path.stat().st_size for name, path in files.items()}
    for name, size in sizes.items():
        table.add_row(name, decimal(size))
    console.print(table)
    from huggingface_hub import constants

    total = decimal(sum(sizes.values()))
    print_line(f"{len(files)} files, {total}, to {constants.ENDPOINT}/{repo} ({visibility} if it is new)")


def _send(files: Mapping[str, Path], repo: str, *, private: bool) -> str:
    """Uploads the files in one commit; returns the address of the repository.

    Raises:
        UserError: without a token, and for what the Hub refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, errors, get_token

    if get_token() is None:
        raise UserError("there is no token of the Hub: run `hf auth login`, or set HF_TOKEN to one that may write")
    api = HfApi(library_name="distill")
    try:
        url = api.create_repo(repo, private=private, exist_ok=True)
        operations = [CommitOperationAdd(name, str(path)) for name, path in files.items()]
        api.create_commit(repo, operations, commit_message="Upload the student and its bundle")
    except errors.OfflineModeIsEnabled as error:
        raise UserError("HF_HUB_OFFLINE is set, which forbids uploads: unset it") from error
    except (OSError, errors.HTTPError) as error:  # The base class of the errors of the client's HTTP library.
        raise UserError(
            f"the Hub refuses the upload to {repo} or does not respond ({first_line(error)}): check that the "
            "name is yours and that the token may write"
        ) from error
    return str(url)


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
    directory = storage.local_path(config.runs)
    data = None if config.data is None else storage.local_path(config.data)
    table = read_runs(directory)
    if table is None:
        raise UserError(f"{directory} has no table, expected the directory of +experiment=glue, like runs/tables/glue")
    best = _find_bundles(table.outcomes)
    if not best:
        raise UserError(f"{directory} has no bundle of a task of GLUE, expected those of rows with job=distill")
    for row, of_tasks in best.items():
        to = directory / TEST / row
        make_directory(to)
        written = [name for task, of in of_tasks.items() for name in _write_predictions(task, of, data, to)]
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
        chosen = recommend(record["export"])
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
            return list(storage.load_hub_dataset(f"{HUB}:{task}", source, advice="", split=split))
        except UnreachableError as error:
            raise UserError(
                f"{source} is not in the cache and cannot be downloaded from the Hub: add data=DIR, a directory with "
                f"{task}/{split}.tsv"
            ) from error
    paths = [data / task / f"{split}{suffix}" for suffix in SUFFIXES]
    found = next((path for path in paths if path.is_file()), None)
    return None if found is None else [row for _, row in read_rows(found)]


def _write_predictions(task: str, best: _Best, data: Path | None, to: Path) -> Iterator[str]:
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
        lines = [
            f"{number}\t{_show_prediction(task, bundle, prediction)}" for number, prediction in enumerate(predictions)
        ]
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


def _show_prediction(task: str, bundle: Bundle, prediction: Mapping[str, Any]) -> str:
    """Returns a prediction as the server reads it."""
    if "value" in prediction:
        return f"{min(LARGEST, max(0.0, prediction['value'])):.3f}"
    probabilities: Mapping[str, float] = prediction["probabilities"]
    label = max(probabilities, key=lambda name: probabilities[name])
    return label if task in NAMED else str(list(bundle.labels).index(label))
