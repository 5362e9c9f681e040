"""Hydra's callback that writes the report of a sweep at its end."""

from pathlib import Path

from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class SweepReport(Callback):
    """Writes the report into the sweep's directory. Hydra creates it for every command, so that it imports nothing."""

    def on_multirun_end(self, config: DictConfig, **kwargs: object) -> None:
        """Writes the report of the runs of this sweep."""
        from distill.console import print_notice
        from distill.errors import UserError
        from distill.jobs.report import write

        if config.get("dry_run"):
            return  # No run has written anything.
        directory = Path(str(config.hydra.sweep.dir))
        try:
            write(directory, directory)
        except UserError as error:  # Of a sweep whose every run was refused.
            print_notice(f"there is no report: {error}")
