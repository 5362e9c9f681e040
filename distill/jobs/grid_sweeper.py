"""Hydra's sweeper `grid`, the default one, and what all sweepers share: lost workers and runs that failed."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol, cast

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from distill.errors import DistillError, Failure, Interrupted, UserError, first_line
from distill.jobs import slurm
from distill.jobs.quoting import quote_overrides
from distill.jobs.ray_launcher import name_runs
from distill.stages import stages
from distill.storage import mirror

_GOES_ON = "the same command with resume=true goes on"


class FailureCollector(Protocol):
    """The runner of a sweep, which reports the errors that launchers bring back from other processes."""

    def collect(self, failures: Iterable[tuple[str, Failure]]) -> None:
        """Reports the errors, each with the options of its run."""


class GridSweeper(BasicSweeper):
    """Hydra's basic sweeper, every combination of the values, which reports the runs that failed in other processes."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Receives the sweep from Hydra."""
        check_directory(config)
        slurm.prepare(config)
        self._job = cast(FailureCollector, task_function)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def _parse_config(self) -> list[str]:
        """Returns the options that a YAML file sweeps, with quotes around texts as on the command line."""
        return quote_overrides(super()._parse_config(), ())

    def sweep(self, arguments: list[str]) -> Any:
        """Runs all combinations and returns their results in batches.

        Raises:
            Interrupted: on Ctrl-C while runs of other processes were waited for.
            DistillError: if a launcher lost a worker and does not start its run again.
        """
        with lost_workers():
            batches = super().sweep(arguments)
        report_failures(self._job, [result for batch in batches for result in batch])
        return batches

    def get_job_batch(self) -> Sequence[Sequence[str]]:
        """Returns the options of the next runs; the first time, announces how many runs there are."""
        assert self.config is not None
        assert self.overrides is not None
        if self.batch_index == 0 and not self.config.dry_run:  # A plan has the time of each run.
            stages.expect_runs(sum(map(len, self.overrides)))
        return super().get_job_batch()


def check_directory(config: DictConfig) -> None:
    """Raises UserError for a URL of a YAML file, which Hydra would take for a path."""
    if mirror.is_url(config.hydra.sweep.dir):
        raise UserError(
            f"hydra.sweep.dir={config.hydra.sweep.dir} of a YAML file is no path: give the URL on the command line"
        )


@contextmanager
def lost_workers() -> Iterator[None]:
    """Raises what happens to a launcher that waits for runs in other processes as an error of one line.

    Raises:
        Interrupted: on Ctrl-C.
        DistillError: if the launcher lost a worker and does not start its run again.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted while runs were going on; {_GOES_ON}") from error
    except _errors_of_lost_workers() as error:
        raise DistillError(f"a launcher lost the worker of a run ({first_line(error)}); {_GOES_ON}") from error


def report_failures(job: FailureCollector, results: Sequence[JobReturn]) -> None:
    """Reports the runs that failed in other processes, each by the options that not all runs share."""
    names = name_runs([result.overrides or [] for result in results])
    values = [(name, result.return_value) for name, result in zip(names, results, strict=True)]
    job.collect((name, value) for name, value in values if isinstance(value, Failure))


def _errors_of_lost_workers() -> tuple[type[Exception], ...]:
    """Returns the errors that joblib and submitit raise for a worker that died."""
    if "submitit" not in sys.modules:
        return (BrokenProcessPool,)
    from submitit.core.utils import FailedJobError, UncompletedJobError

    return BrokenProcessPool, FailedJobError, UncompletedJobError
