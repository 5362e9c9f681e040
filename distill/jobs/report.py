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
from distill.records.collection import Runs, find_runs
from distill.records.collection_report import Collection, write_collection
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
            _write(find_runs(runs), to, refresh=config.refresh)
    except KeyboardInterrupt:
        _write(find_runs(runs), to)  # A page that no longer loads itself again.
    finally:
        signal.signal(signal.SIGINT, previous)


def write(runs: Path, to: Path, *, refresh: int | None = None) -> None:
    """Writes the report of the runs below a directory, and prints its tables.

    Raises:
        UserError: if there are no runs, or the report cannot be written.
    """
    found = find_runs(runs)
    make_directory(to)
    written, files = _write(found, to, refresh=refresh)
    for group in written.groups:
        console.print(row_table.terminal_table(group.rows, title=group.title))
        for sentence in filter(None, (group.names(), group.ranking)):
            print_line(sentence)
    if written.groups:
        print_line(row_table.NOTE)
    for message in found.unreadable:
        print_line(f"Left out {message}")
    print_line(f"Report   {written.page}")
    if files is not None:
        print_line(f"Paper    {files.describe()}")


def _write(found: Runs, to: Path, *, refresh: int | None = None) -> tuple[Collection, PaperFiles | None]:
    """Writes the report as `write_collection` does, and sends it to the URL that `to` is the copy of.

    The files for a paper are not written again and again, as a page is that a browser loads again.
    """
    written = write_collection(found, to, refresh=refresh)
    files = None
    if refresh is None:
        files = write_paper_files(to, written.report.markdown, written.report.figures, tables=written.tables)
        mirror.try_send(files.directory)
    mirror.try_send(to, skip=mirror.BELOW)
    return written, files
