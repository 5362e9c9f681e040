"""Calls a function in all ranks of a process group whose workers Ray Train starts, on the machines of a Ray cluster.

Here rank 0 is a worker too, because the machine of the command may have no GPU. So it works on copies of the arguments,
and what it changes has to be in the result; `distributed.run` is for the ranks of this machine, torchrun and srun.
"""

import os
import pickle
import shutil
import signal
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from distill.console import silence_libraries
from distill.errors import DistillError, OptionError, UserError, first_line
from distill.events import events
from distill.training.checkpoints import handle_signals
from distill.training.pickling import dumps
from distill.training.ray_cluster import check_ray, connect
from distill.training.workers import WorkerError

T = TypeVar("T")


def run(
    function: Callable[..., T],
    *arguments: object,
    world_size: int,
    device: torch.device,
    directory: Path,
    max_failures: int,
    **rank_zero_arguments: object,
) -> T:
    """Returns the result of `function(*arguments, **rank_zero_arguments)` in rank 0.

    Meanwhile the other ranks run `function(*arguments)`. The cluster is that of RAY_ADDRESS, or else of this machine.

    Args:
        directory: where Ray Train keeps its state while the call lasts; all machines see it.
        max_failures: how often all ranks are started again after one was lost.

    Raises:
        UserError: if Ray is not installed, the cluster is too small, or something cannot be pickled.
        WorkerError: if a worker failed or was lost; a DistillError of its own is raised here instead.
        KeyboardInterrupt: on Ctrl-C, which ends the workers at once.
    """
    check_ray("trainer.strategy=ray")
    payload = dumps((function, arguments, rank_zero_arguments))
    with connect(os.environ.get("RAY_ADDRESS"), option="RAY_ADDRESS", label_lines=False):
        import ray

        if ray.get_runtime_context().get_task_id() is not None:
            raise UserError(
                "trainer.strategy=ray needs the whole cluster, and this run is a task of hydra/launcher=ray: leave out "
                "one of them"
            )
        resources = allot_resources(ray.nodes(), world_size, device)
        config = {
            "payload": ray.put(payload),
            "directory": os.getcwd(),
            "threads": int(resources["CPU"]),
            "run": events.run,
        }
        try:
            with handle_signals(signal.default_int_handler, signal.SIGINT):  # Ray Train replaces and keeps it.
                return _train(config, resources, world_size, device, directory.absolute(), max_failures)  # type: ignore[no-any-return]
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _train(
    config: dict[str, Any],
    resources: dict[str, float],
    world_size: int,
    device: torch.device,
    directory: Path,
    max_failures: int,
) -> Any:
    """Returns the result of rank 0 of a training of Ray Train."""
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        _run_rank,
        train_loop_config=config,
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=world_size, use_gpu=device.type == "cuda", resources_per_worker=resources
        ),
        run_config=RunConfig(
            name="ray", storage_path=str(directory), failure_config=FailureConfig(max_failures=max_failures),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )  # fmt: skip
    try:
        result = trainer.fit().return_value
    except TrainingFailedError as error:
        raise find_cause(error, world_size) from error
    if result is None:  # The training was aborted.
        raise KeyboardInterrupt
    return pickle.loads(result)


def _run_rank(config: Mapping[str, Any]) -> bytes | None:
    """Runs the function in one worker; returns the result of rank 0."""
    import ray

    rank = ray.train.get_context().get_world_rank()
    os.chdir(config["directory"])  # Paths of the command are relative to it.
    torch.set_num_threads(config["threads"])
    silence_libraries()
    function, arguments, rank_zero_arguments = pickle.loads(ray.get(config["payload"]))
    if rank == 0:
        events.name_run(config["run"])
        return dumps(function(*arguments, **rank_zero_arguments))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Rank 0 prints.
    events.leave_to_rank_zero()
    warnings.simplefilter("ignore")
    function(*arguments)
    return None


def allot_resources(nodes: Iterable[Mapping[str, Any]], world_size: int, device: torch.device) -> dict[str, float]:
    """Returns the cores and GPUs of a worker: the most cores with which all workers fit on the machines.

    Raises:
        OptionError: if the cluster has too few.
    """
    kind = "GPU" if device.type == "cuda" else "CPU"
    machines = [(node["Resources"].get("CPU", 0), node["Resources"].get(kind, 0)) for node in nodes if node["Alive"]]

    def count_workers(cores: int) -> int:
        return sum(int(min(cpus // cores, number)) for cpus, number in machines)

    if count_workers(1) < world_size:
        raise OptionError(
            "trainer.devices", str(world_size), f"at most {count_workers(1)}, the {kind}s of the Ray cluster"
        )
    cores = 1
    while count_workers(cores + 1) >= world_size:
        cores += 1
    return {"CPU": cores} if kind == "CPU" else {"CPU": cores, "GPU": 1}


def find_cause(error: Exception, world_size: int) -> DistillError:
    """Returns the error of a worker: a DistillError of its own, or else the first one."""
    failures: Mapping[int, BaseException] = getattr(error, "worker_failures", {})
    for failure in failures.values():
        cause: BaseException | None = failure
        while cause is not None and not isinstance(cause, DistillError):
            cause = cause.__cause__
        if cause is not None:
            return cause
    for rank, failure in failures.items():
        return WorkerError(f"rank {rank} of {world_size}: {type(failure).__name__}: {first_line(failure)}")
    return WorkerError(f"the training with Ray failed: {first_line(error)}")
