"""Worker processes: all ranks but the first, which only take part in the calls of `distributed.run`.

Such a process belongs to one call (`run_worker`), or torchrun or srun started it and it serves all calls (`serve`).
Rank 0 and the workers of a call share a store, with the keys ready{rank}, done{rank}, failed{rank}, failures, failure
and over.
"""

import gc
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from distill.console import silence_libraries
from distill.errors import DistillError
from distill.events import events
from distill.training.launchers import CALL_TIMEOUT, launched_rank, launched_world_size, local_rank, receive_calls


class WorkerError(DistillError):
    """A worker raised an error, or died."""


def serve(store: Store) -> None:
    """Takes part in every call of rank 0 until it ends: the whole life of a worker that a launcher started."""
    _silence()
    for call, device in receive_calls(store):
        _join_call(call, launched_rank(), launched_world_size(), device)


def run_worker(index: int, port: int, world_size: int, device: str, threads: int) -> None:
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
    """Leaves messages, events and signals to rank 0."""
    silence_libraries()
    events.leave_to_rank_zero()
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
    store.set(f"failed{rank}", "")


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
