"""Plugins of Hydra: the default sweeper, and the registration of all of ours."""

import sys
from collections.abc import Iterable
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, cast

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from distill.errors import DistillError, Failure, Interrupted, first_line
from distill.jobs.ray_launcher import RayLauncher, name_runs

# Hydra creates plugins of these names alone, wherever their classes are.
_PREFIX = "hydra_plugins.distill."


_GOES_ON = "the same command with resume=true goes on"


class Job(Protocol):
    """The job of a sweep, which reports the errors that launchers bring back from other processes."""

    def collect(self, failures: Iterable[tuple[str, Failure]]) -> None:
        """Reports the errors, each with the options of its run."""


class GridSweeper(BasicSweeper):
    """Hydra's basic sweeper, every combination of the values, which reports the runs that failed in other processes."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Receives the sweep from Hydra."""
        self._job = cast(Job, task_function)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> Any:
        """Runs all combinations and returns their results in batches.

        Raises:
            Interrupted: on Ctrl-C while runs of other processes were waited for.
            DistillError: if a launcher lost a worker and does not start its run again.
        """
        try:
            batches = super().sweep(arguments)
        except KeyboardInterrupt as error:
            raise Interrupted(f"interrupted while runs were going on; {_GOES_ON}") from error
        except _errors_of_lost_workers() as error:
            raise DistillError(f"a launcher lost the worker of a run ({first_line(error)}); {_GOES_ON}") from error
        results = [result for batch in batches for result in batch]
        names = name_runs([result.overrides or [] for result in results])
        values = [(name, result.return_value) for name, result in zip(names, results, strict=True)]
        self._job.collect((name, value) for name, value in values if isinstance(value, Failure))
        return batches


def _errors_of_lost_workers() -> tuple[type[Exception], ...]:
    """Returns the errors that joblib and submitit raise for a worker that died."""
    if "submitit" not in sys.modules:
        return (BrokenProcessPool,)
    from submitit.core.utils import FailedJobError, UncompletedJobError

    return BrokenProcessPool, FailedJobError, UncompletedJobError


def register_plugins() -> None:
    """Makes our plugins known to Hydra. Their YAMLs are in `conf/hydra`."""
    for plugin in (GridSweeper, RayLauncher):
        Plugins.instance().class_name_to_class[_PREFIX + plugin.__name__] = plugin
