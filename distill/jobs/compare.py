"""The job `compare`, which writes one table of several runs, and the same at the end of a sweep."""

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from distill.console import console, print_line, print_notice
from distill.errors import UserError
from distill.files import write_text
from distill.records import comparison
from distill.records.report import render_table


def run_compare(config: DictConfig) -> None:
    """Compares the runs below `job.runs`, or those of a sweep, and writes `comparison.md` and `comparison.csv` there.

    Raises:
        UserError: for options that have no effect, and a directory without runs.
    """
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    ignored = [option for option in given if not option.startswith(("job=", "job."))]
    if ignored:
        raise UserError(f"job=compare reads only job.*: leave out {' '.join(ignored)}")
    if config.job.runs is None:
        raise UserError("job=compare has no runs to compare: add job.runs=DIR, the directory of a sweep or of runs")
    write_tables(Path(str(config.job.runs)).expanduser(), "comparison")


def write_tables(directory: Path, name: str) -> None:
    """Prints the table of the runs of a directory, and writes it there as `name.md` and `name.csv`."""
    rows = comparison.compare_runs(comparison.find_runs(directory))
    header, *cells = comparison.table(rows)
    text = f"# Comparison of {len(rows)} settings\n\n{render_table(header, cells)}\n\n{comparison.NOTE}\n"
    write_text(directory / f"{name}.md", text)
    write_text(directory / f"{name}.csv", comparison.to_csv(rows))
    console.print(comparison.terminal_table(rows))
    print_line(comparison.NOTE)
    print_line(f"Table    {directory / f'{name}.md'}")


class SweepTable(Callback):
    """Writes the table at the end of a sweep, into the sweep's directory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_multirun_end(self, config: DictConfig, **kwargs: object) -> None:
        """Writes the table of the runs of this sweep."""
        try:
            write_tables(Path(str(config.hydra.sweep.dir)), self.name)
        except UserError as error:  # Of a sweep whose every run was refused.
            print_notice(f"there is no table: {error}")
