"""Calls a function in all ranks of a process group, and what such a function uses: its rank and collectives.

Example: `distributed.run(fit, module, data, world_size=2, device=torch.device("cpu"))` returns what `fit(module, data)`
returned here. This process is rank 0, which does everything else alone. The other ranks are workers (`workers.py`):
those of torchrun or srun (`launchers.py`), or else processes that live for one call. There is no state of ours between
two calls. Each has its own process group, because gloo closes a group for good when one rank fails.
"""

import gc
import multiprocessing
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.multiprocessing.spawn import start_processes

from distill.errors import DistillError
from distill.training.launchers import CALL_TIMEOUT, launched_world_size, open_store, send_call
from distill.training.pickling import dumps
from distill.training.workers import WorkerError, broadcast, process_group, run_worker

_START_TIMEOUT = timedelta(minutes=5)

T = TypeVar("T")


def run(
    function: Callable[..., T], *arguments: object, world_size: int, device: torch.device, **rank_zero_arguments: object
) -> T:
    """Returns `function(*arguments, **rank_zero_arguments)` of this process, which is rank 0 of a process group.

    Meanwhile every worker runs `function(*arguments)`. Function and arguments are pickled, so a script that calls this
    needs `if __name__ == "__main__"`. When one rank fails, all stop.

    Raises:
        WorkerError: when a worker failed; a DistillError of its own is raised here instead.
        UserError: for what cannot be pickled.
    """
    payload = dumps((function, arguments))
    with _get_workers(world_size, device.type) as workers:
        workers.wait("ready", _START_TIMEOUT)
        local_world_size = len(workers.processes) + 1
        with limit_threads(local_world_size), process_group(workers.store, 0, world_size, device.type):
            try:
                broadcast(payload)
                del payload  # As large as the models.
                result = function(*arguments, **rank_zero_arguments)
                workers.wait("done", CALL_TIMEOUT)
                workers.store.set("over", "")
            except DistillError:
                raise
            except Exception as error:
                # A worker's error may be the cause of gloo's here. Look before this rank leaves the group, because the
                # workers fail when it does.
                if (failure := workers.find_failure(timeout=1.0)) is not None:
                    raise failure from error
                raise
    return result


def rank() -> int:
    """Returns the rank of this process; 0 outside of `run`."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Returns the number of ranks; 1 outside of `run`."""
    return dist.get_world_size() if dist.is_initialized() else 1


def all_reduce(tensor: Tensor) -> Tensor:
    """Sums `tensor` over all ranks, in place, and returns it."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def any_rank(flag: bool) -> bool:
    """Returns whether `flag` is true in at least one rank."""
    return bool(all_reduce(torch.tensor(int(flag))))


def all_gather(value: T) -> list[T]:
    """Returns the value of every rank, in the order of ranks; values are pickled."""
    values = [value] * world_size()
    if dist.is_initialized():
        dist.all_gather_object(values, value)
    return values


@contextmanager
def limit_threads(local_world_size: int) -> Iterator[None]:
    """Gives this process its share of torch's threads while `local_world_size` processes use them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // local_world_size))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Workers:
    """The workers of one call as rank 0 sees them; `processes` are those that were started for it."""

    store: Store
    world_size: int
    processes: Sequence[BaseProcess] = ()

    def wait(self, state: str, timeout: timedelta) -> None:
        """Waits until every worker has reached `state`, or raises the error of the one that failed."""
        end = time.monotonic() + timeout.total_seconds()
        keys = [f"{state}{rank}" for rank in range(1, self.world_size)]
        while not self.store.check(keys):
            if (failure := self.find_failure()) is not None:
                raise failure
            if time.monotonic() > end:
                raise WorkerError(
                    f"not all of {len(keys)} workers were {state} after {timeout.total_seconds():.0f} s: they did not "
                    "start, or did not return from an earlier training that failed; run the command again"
                )
            time.sleep(0.02)

    def find_failure(self, timeout: float = 0.0) -> BaseException | None:
        """Returns the error of a worker that died, or the first that was reported; waits so many seconds for a death.

        A death is the cause where there are both, because the other workers report their lost connections.
        """
        end = time.monotonic() + timeout
        for rank, process in enumerate(self.processes, start=1):
            process.join(max(0.0, end - time.monotonic()))
            if (code := process.exitcode) is not None and not self.store.check([f"failed{rank}"]):
                cause = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                return WorkerError(f"rank {rank} of {self.world_size} {cause}")
        if not self.store.check(["failure"]):
            return None
        failure: BaseException = pickle.loads(self.store.get("failure"))
        return failure


@contextmanager
def _get_workers(world_size: int, device: str) -> Iterator[_Workers]:
    """Calls the workers that a launcher started, or starts them here, to be killed at the end."""
    if launched_world_size() > 1:
        gc.collect()  # A trainer of an earlier call that failed may hold connections that its workers wait for.
        yield _Workers(send_call(open_store(), device), world_size)
        return
    # The elastic launcher does not fit (tried with torch 2.13): `elastic_launch` returns when all ranks have ended, so
    # rank 0 would be a child, and what it changed in the module would be lost, as with Lightning's `ddp_spawn`. In a
    # thread beside rank 0 it logs tracebacks, and turns each error into ChildFailedError. Its `start_processes`
    # replaces the caller's handlers of SIGINT and SIGTERM, with which a training stops after a step.
    listening = socket.create_server(("127.0.0.1", 0))  # TCPStore's own socket would listen to other machines too.
    port = listening.getsockname()[1]
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    arguments = (port, world_size, device, max(1, torch.get_num_threads() // world_size))
    method = start_method(device)
    with _blocked(signal.SIGINT):  # Workers inherit it: Ctrl-C is for rank 0, and all stop after the same step.
        processes = start_processes(
            run_worker, arguments, nprocs=world_size - 1, join=False, start_method=method
        ).processes
    try:
        yield _Workers(store, world_size, processes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def start_method(device: str) -> str:
    """Returns the way to start workers of one call.

    `forkserver` imports everything once, in a process that then forks the workers of all calls, so that those of later
    calls start at once. A process that imported torch must not be forked on macOS, nor before it uses CUDA.
    """
    if sys.platform != "linux" or device != "cpu":
        return "spawn"
    multiprocessing.get_context("forkserver").set_forkserver_preload(["distill.training.fitting"])
    return "forkserver"


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """Holds back a signal until the end."""
    resource_tracker.ensure_running()  # `multiprocessing` would start it below, which unblocks the signal.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
