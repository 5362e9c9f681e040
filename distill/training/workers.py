"""Worker processes: all ranks but the first, which only take part in the calls of `distributed.run`.

Each call starts its own workers on this machine and kills them at its end, unless torchrun or srun started them
(`launchers.py`), which then `serve` until rank 0 ends. There is no state of ours: rank 0 and the
workers of a call share a store, with the keys ready{rank}, done{rank}, over, failures and failure.

`torch.multiprocessing` starts the workers. The elastic launcher does not fit (tried with torch 2.13): `elastic_launch`
returns when all ranks have ended, so rank 0 would be a child, and what it changed in the module would be lost, as with
Lightning's `ddp_spawn`. In a thread beside rank 0 it logs tracebacks, and turns each error into ChildFailedError. Its
`start_processes` replaces the caller's handlers of SIGINT and SIGTERM, with which a training stops after a step.
"""

import gc
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.multiprocessing.spawn import start_processes

from distill.console import quiet
from distill.errors import DistillError
from distill.training.launchers import (
    launched_rank,
    launched_world_size,
    local_rank,
    open_store,
    receive_calls,
    send_call,
)

START_TIMEOUT = timedelta(minutes=5)
CALL_TIMEOUT = timedelta(days=365)  # Between two calls rank 0 may do anything.


class WorkerError(DistillError):
    """A worker raised an error, or died."""


# Rank 0


@dataclass(frozen=True)
class Workers:
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
                    f"some of {len(keys)} workers are not {state} after {timeout.total_seconds():.0f} s: an earlier "
                    "training may have failed in which they still are; run the command again"
                )
            time.sleep(0.02)

    def find_failure(self, timeout: float = 0.0) -> BaseException | None:
        """Returns the first error of a worker; waits `timeout` seconds for one that is about to die."""
        end = time.monotonic() + timeout
        failure: BaseException | None = None
        for rank, process in enumerate(self.processes, start=1):
            process.join(max(0.0, end - time.monotonic()))
            if (code := process.exitcode) is not None:
                cause = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                failure = failure or WorkerError(f"rank {rank} of {self.world_size} {cause}")
        if self.store.check(["failure"]):
            failure = pickle.loads(self.store.get("failure"))
        return failure


@contextmanager
def get_workers(world_size: int, device: str) -> Iterator[Workers]:
    """Calls the workers that a launcher started, or starts them here, to be killed at the end."""
    if launched_world_size() > 1:
        yield Workers(send_call(open_store(), device), world_size)
        return
    listening = socket.create_server(("127.0.0.1", 0))  # TCPStore's own socket would listen to other machines too.
    port = listening.getsockname()[1]
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    arguments = (port, world_size, device, max(1, torch.get_num_threads() // world_size))
    with _blocked(signal.SIGINT):  # Workers inherit it: Ctrl-C is for rank 0, and all stop after the same step.
        processes = start_processes(_run_worker, arguments, nprocs=world_size - 1, join=False).processes
    try:
        yield Workers(store, world_size, processes)
    finally:
        for process in processes:
            process.kill()
            process.join()


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """Holds back a signal until the end."""
    resource_tracker.ensure_running()  # `multiprocessing` would start it below, which unblocks the signal.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# Workers


def serve(store: Store) -> None:
    """Takes part in every call of rank 0 until it ends: the whole life of a worker that a launcher started."""
    _silence()
    for call, device in receive_calls(store):
        _join_call(call, launched_rank(), launched_world_size(), device)


def _run_worker(index: int, port: int, world_size: int, device: str, threads: int) -> None:
    """Takes part in the one call for which this process was started."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.environ["LOCAL_RANK"] = str(index + 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    torch.set_num_threads(threads)
    _silence()
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    _join_call(store, index + 1, world_size, device)


def _exit_with_parent() -> None:
    """Ends this process when rank 0 ends, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _silence() -> None:
    """Leaves messages and signals to rank 0."""
    quiet()
    warnings.simplefilter("ignore")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _join_call(store: Store, rank: int, world_size: int, device: str) -> None:
    """Runs the function of one call in this worker, and reports an error to rank 0."""
    try:
        store.set(f"ready{rank}", "")
        with process_group(store, rank, world_size, device):
            try:
                function, arguments = pickle.loads(broadcast(None))
                function(*arguments)
                store.set(f"done{rank}", "")
                store.wait(["over"], CALL_TIMEOUT)
            except BaseException as error:  # Before the group is left, because the other ranks fail then.
                _report(store, error, rank, world_size)
    except RuntimeError as error:  # Of the group or the store: rank 0 may have ended.
        with suppress(RuntimeError):
            _report(store, error, rank, world_size)
    gc.collect()  # Module and trainer refer to each other, and keep the group's connections open.


def _report(store: Store, error: BaseException, rank: int, world_size: int) -> None:
    """Sends the error to rank 0, which raises the first one."""
    if not isinstance(error, Exception):  # KeyboardInterrupt, or the SystemExit that Lightning makes of it.
        error = KeyboardInterrupt()
    elif not isinstance(error, DistillError):
        line = (str(error).strip() or "no message").splitlines()[0]
        note = "".join(traceback.format_exception(error))
        error = WorkerError(f"rank {rank} of {world_size}: {type(error).__name__}: {line}")
        error.add_note(note)
    if store.add("failures", 1) == 1:
        store.set("failure", pickle.dumps(error))  # type: ignore[arg-type]


# Both


@contextmanager
def process_group(store: Store, rank: int, world_size: int, device: str) -> Iterator[None]:
    """Initializes the default process group: gloo, and NCCL for tensors on a GPU."""
    if device == "cuda":
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def broadcast(payload: bytes | None) -> bytes:
    """Returns the payload of rank 0."""
    payloads = [payload]
    dist.broadcast_object_list(payloads, src=0, device=torch.device("cpu"))
    assert payloads[0] is not None
    return payloads[0]
