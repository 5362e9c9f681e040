"""Hydra's launcher `ray`: every run of a sweep is a task of a Ray cluster.

Ray starts a task again when its worker is lost. The run then resumes from its checkpoint, because run.py finds the
directory that the lost worker had begun.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from distill.errors import Failure, Interrupted, OptionError, first_line
from distill.training.ray_cluster import check_ray, connect

_OPTION = "hydra.launcher"


@dataclass(frozen=True)
class _Sweep:
    """All that a worker needs for the runs of a sweep."""

    context: HydraContext
    config: DictConfig
    function: TaskFunction
    singletons: dict[Any, Any]
    directory: str
    threads: int


class RayLauncher(Launcher):
    """Runs the jobs of a sweep as tasks of a Ray cluster.

    Args:
        address: `HOST:PORT` of a Ray head, or `auto`; None starts a cluster of this machine for the sweep.
        num_cpus: cores of a run, which are its threads.
        num_gpus: GPUs of a run.
        max_retries: how often a run is started again after its worker was lost.

    Raises:
        UserError: from `setup`, if Ray is not installed or an option is out of range.
    """

    def __init__(self, *, address: str | None, num_cpus: int, num_gpus: float, max_retries: int) -> None:
        self.address, self.num_cpus, self.num_gpus, self.max_retries = address, num_cpus, num_gpus, max_retries

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Receives the sweep from Hydra."""
        check_ray("hydra/launcher=ray")
        if type(self.num_cpus) is not int or self.num_cpus < 1:
            raise OptionError(f"{_OPTION}.num_cpus", str(self.num_cpus), "a whole number of cores of at least 1")
        if type(self.num_gpus) not in (int, float) or self.num_gpus < 0:
            raise OptionError(f"{_OPTION}.num_gpus", str(self.num_gpus), "a number of GPUs of at least 0")
        if type(self.max_retries) is not int or self.max_retries < 0:
            raise OptionError(f"{_OPTION}.max_retries", str(self.max_retries), "a whole number of at least 0")
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs and returns their results in the same order.

        Raises:
            Interrupted: on Ctrl-C and SIGTERM, after the runs have written their checkpoints.
            UserError: if there is no cluster, or it is too small for a run.
        """
        import ray

        setup_globals()
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        with connect(self.address, option=f"{_OPTION}.address", label_lines=True):
            self.check_resources()
            sweep = _Sweep(
                self.hydra_context, self.config, self.task_function, Singleton.get_state(), os.getcwd(), self.num_cpus
            )
            shared = ray.put(sweep)
            remote = ray.remote(_run)
            resources = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "max_retries": self.max_retries}
            names = name_runs(job_overrides)
            tasks = [
                remote.options(name=name, **resources).remote(shared, list(overrides), initial_job_idx + number)
                for number, (name, overrides) in enumerate(zip(names, job_overrides, strict=True))
            ]
            _wait(tasks)
            return [_result(task, overrides) for task, overrides in zip(tasks, job_overrides, strict=True)]

    def check_resources(self) -> None:
        """Raises OptionError if no machine of the cluster can run a task; it would wait forever."""
        import ray

        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for option, name, number in (("num_cpus", "CPU", self.num_cpus), ("num_gpus", "GPU", self.num_gpus)):
            most = max((machine.get(name, 0) for machine in machines), default=0)
            if number > most:
                raise OptionError(
                    f"{_OPTION}.{option}", str(number), f"at most {most:g}, what the largest machine of the cluster has"
                )


def name_runs(job_overrides: Sequence[Sequence[str]]) -> list[str]:
    """Returns the options of each run that not all runs share; `run` for a run without any."""
    common = set.intersection(*(set(overrides) for overrides in job_overrides))
    return [" ".join(option for option in overrides if option not in common) or "run" for overrides in job_overrides]


def _wait(tasks: Sequence[Any]) -> None:
    """Waits until all tasks have ended. On Ctrl-C it stops them, and a second Ctrl-C does not wait for them."""
    import ray

    pending = list(tasks)
    try:
        while pending:
            _, pending = ray.wait(pending)
    except (KeyboardInterrupt, SystemExit) as error:  # Ray makes the second of SIGTERM.
        print(
            f"\nStopping {len(pending)} of {len(tasks)} runs with a checkpoint. A second Ctrl-C stops them at once.",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        for task in pending:
            ray.cancel(task)
        with contextlib.suppress(KeyboardInterrupt):
            ray.wait(pending, num_returns=len(pending))
        raise Interrupted(
            f"interrupted: {len(tasks) - len(pending)} of {len(tasks)} runs ended before; the same command with "
            "resume=true goes on"
        ) from error


def _result(task: Any, overrides: Sequence[str]) -> JobReturn:
    """Returns the result of a task, a Failure if all of its workers were lost."""
    import ray

    try:
        result: JobReturn = ray.get(task)
    except ray.exceptions.RayError as error:
        result = JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED)
        result.return_value = Failure(1, f"the worker of a run was lost ({first_line(error)}): run the command again "
                                         "with resume=true")  # fmt: skip
    return result


def _run(sweep: _Sweep, overrides: list[str], number: int) -> JobReturn:
    """Runs one job in a worker of Ray."""
    os.chdir(sweep.directory)  # Paths of the command are relative to it.
    package = str(Path(__file__).resolve().parents[1])
    sys.path[:] = [path for path in sys.path if path != package]  # Ray adds the directory of `python -m distill`.
    os.environ["OMP_NUM_THREADS"] = str(sweep.threads)
    import torch

    torch.set_num_threads(sweep.threads)
    setup_globals()
    Singleton.set_state(sweep.singletons)
    config = sweep.context.config_loader.load_sweep_config(sweep.config, overrides)
    with open_dict(config):
        config.hydra.job.id = config.hydra.job.num = number
    return run_job(
        hydra_context=sweep.context, task_function=sweep.function, config=config, job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )  # fmt: skip
