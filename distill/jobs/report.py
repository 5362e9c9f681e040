"""The job `report`, which writes the report of one run or of many, and the same at the end of a sweep."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig

from distill.console import console, print_line
from distill.errors import OptionError, UserError
from distill.jobs.overrides import refuse_other_options
from distill.records import row_table
from distill.records.collection import Runs, fetch_runs, find_runs
from distill.records.collection_report import Collection, write_collection
from distill.records.experiment import read_experiment
from distill.records.experiment_report import TablePage, describe_table
from distill.records.experiment_runs import read_runs
from distill.records.experiment_table import ExperimentTable
from distill.records.paper_files import PaperFiles, write_paper_files
from distill.storage import mirror
from distill.storage.files import make_directory


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
    runs = mirror.local_path(config.runs)
    to = runs if config.report_dir is None else mirror.local_path(config.report_dir)
    write(runs, to, refresh=config.refresh)
    if config.refresh is None:
        return
    print_line(f"The report is written again every {config.refresh} s. Ctrl-C ends this")
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while True:
            wait(config.refresh)
            found, table = _find(runs)
            _write(found, to, refresh=config.refresh, table=table)
    except KeyboardInterrupt:
        found, table = _find(runs)
        _write(found, to, table=table)  # A page that no longer loads itself again.
    finally:
        signal.signal(signal.SIGINT, previous)


def write(runs: Path, to: Path, *, refresh: int | None = None) -> None:
    """Writes the report of the runs below a directory, and prints its tables.

    Raises:
        UserError: if there are no runs, or the report cannot be written.
    """
    found, table = _find(runs)
    make_directory(to)
    written, files = _write(found, to, refresh=refresh, table=table)
    if table is not None:
        for shown in table.terminal_tables():
            console.print(shown)
        for sentence in (*table.sentences, *(f"Published: {source}" for source in table.sources)):
            print_line(sentence)
    for group in written.groups if table is None else ():
        console.print(row_table.terminal_table(group.rows, title=group.title))
        for sentence in filter(None, (group.names(), group.ranking)):
            print_line(sentence)
    if written.groups and table is None:
        print_line(row_table.NOTE)
    for message in found.unreadable:
        print_line(f"Left out {message}")
    print_line(f"Report   {written.page}")
    if files is not None:
        print_line(f"Paper    {files.describe()}")


def _find(directory: Path) -> tuple[Runs, TablePage | None]:
    """Returns the runs below a directory, those of its cells alone if it has the table of an experiment."""
    fetch_runs(directory)
    listed = read_runs(directory)
    if listed is None:
        return find_runs(directory), None
    table = ExperimentTable(read_experiment(listed.content), listed.outcomes, listed.command)
    found = find_runs(directory) if table.directories else Runs([], [])
    wanted = set(table.directories)
    readable = [(path, record) for path, record in found.readable if path.resolve() in wanted]
    return Runs(readable, found.unreadable), describe_table(table)


def _write(
    found: Runs, to: Path, *, refresh: int | None = None, table: TablePage | None = None
) -> tuple[Collection, PaperFiles | None]:
    """Writes the report as `write_collection` does, and sends it to the URL that `to` is the copy of.

    The files for a paper are not written again and again, as a page is that a browser loads again.
    """
    written = write_collection(found, to, refresh=refresh, table=table)
    files = None
    if refresh is None:
        files = write_paper_files(to, written.report.markdown, written.report.figures, tables=written.tables)
        mirror.try_send(files.directory)
    mirror.try_send(to, skip=mirror.BELOW)
    return written, files
