"""Ranks of a training: processes that are launched or started, calls in all of them, collectives, and memory.

Processes that torchrun or srun started, on any number of machines: their ranks, their store, and calls through it. The
environment variables of torchrun hold the ranks; under SLURM `connect` sets them. The store counts the calls.

Worker processes: all ranks but the first, which only take part in the calls of `run_in_ranks`. Such a process
belongs to one call (`run_worker`), or torchrun or srun started it and it serves all calls (`serve`). Rank 0 and the
workers of a call share a store, with the keys ready{rank}, done{rank}, failed{rank}, failures, failure and over.

Calls a function in all ranks of a process group, and what such a function uses: its rank and collectives. Example:
`run_in_ranks(fit, module, data, world_size=2, device=torch.device("cpu"))` returns what `fit(module, data)` returned
here. This process is rank 0, which does everything else alone. The other ranks are workers : those of
torchrun or srun, or else processes that live for one call. There is no state of ours between two
calls. Each has its own process group, because gloo closes a group for good when one rank fails.
"""

import ctypes
import gc
import io
import itertools
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.multiprocessing.spawn import start_processes
from transformers import PreTrainedConfig, PreTrainedModel

from distill.core.console import events, silence_libraries
from distill.core.errors import DistillError, UserError, first_line

_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # From proc(5): sets VmHWM to the current resident memory.


def reset_peak() -> bool:
    """Restarts the measurement of `peak_mb`; returns False where the system cannot do so.

    Memory that earlier work freed is given back to the system first, because it would count as resident.
    """
    gc.collect()
    _call_libc("malloc_trim", 0)
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def peak_mb() -> float:
    """Returns the largest resident memory since `reset_peak` in MB; Linux only."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    kibibytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kibibytes) * 1024 / 1e6


def keep_freed_memory() -> None:
    """Makes glibc reuse large freed blocks instead of returning them to the system.

    The gradients of a step are as large as the model, and the system clears every new page. Filling two gradients of
    47 MB took 102 ms, and 20 ms with reused memory.
    """
    trim_threshold, mmap_max = -1, -4  # From malloc.h.
    _call_libc("mallopt", mmap_max, 0)
    _call_libc("mallopt", trim_threshold, 2**31 - 1)


def _call_libc(name: str, *arguments: int) -> None:
    """Calls a function of glibc, which other C libraries lack."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
    if function is not None:
        function(*arguments)


_CONNECT_TIMEOUT = timedelta(minutes=5)
CALL_TIMEOUT = timedelta(days=365)  # Between two calls rank 0 may do anything.


def launched_world_size() -> int:
    """Returns the number of processes that torchrun or srun started; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1


def launched_rank() -> int:
    """Returns the rank of this process among those that torchrun or srun started."""
    return int(os.environ.get("RANK", 0))


def local_rank() -> int:
    """Returns the rank of this process among those on its machine."""
    return int(os.environ.get("LOCAL_RANK", 0))


def connect_ranks() -> Store | None:
    """Returns the store that the processes of torchrun or srun share; None where this process is the only one.

    Rank 0 keeps it until it ends and then calls `release`; the others call `serve_calls`.

    Raises:
        UserError: for variables of torchrun that are incomplete.
    """
    variables = os.environ
    # SLURM_NTASKS would not do: a batch script has it too, outside of srun.
    if "RANK" not in variables and int(variables.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        slurm = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}
        variables.update({name: variables[source] for name, source in slurm.items()})
        address = SLURMEnvironment.resolve_root_node_address(variables["SLURM_STEP_NODELIST"])
        variables.setdefault("MASTER_ADDR", address)
        variables.setdefault("MASTER_PORT", str(15_000 + int(variables["SLURM_JOB_ID"]) % 10_000))
    return open_store() if launched_world_size() > 1 else None


def open_store() -> Store:
    """Returns a connection to the store of torchrun, or of rank 0, which hosts it while it has a connection."""
    if not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise UserError("RANK and WORLD_SIZE are set, but not MASTER_ADDR and MASTER_PORT: set all, or none of them")
    store, _, _ = next(rendezvous("env://", timeout=_CONNECT_TIMEOUT))
    return PrefixStore(f"distill{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


def send_call(store: Store, device: str) -> Store:
    """Calls all workers, and returns the store of this call."""
    number = store.add("calls", 1)
    store.set(f"call{number}", device)
    return PrefixStore(str(number), store)


def receive_calls(store: Store) -> Iterator[tuple[Store, str]]:
    """Yields the store and the device of each call until rank 0 ends."""
    for number in itertools.count(1):
        try:
            store.wait([f"call{number}"], CALL_TIMEOUT)
            device = store.get(f"call{number}").decode()
        except RuntimeError:  # Rank 0 hosted the store, and has ended.
            return
        if not device:
            return
        yield PrefixStore(str(number), store), device


def release_ranks(store: Store) -> None:
    """Ends the workers."""
    send_call(store, "")


_CAPTURING = "transformers.utils.output_capturing"


class _Pickler(pickle.Pickler):
    """Omits the hooks of transformers, which cannot be pickled."""

    def reducer_override(self, value: object) -> Any:
        if not isinstance(value, nn.Module):
            return NotImplemented
        make, arguments, state = cast(tuple[Any, ...], value.__reduce_ex__(pickle.HIGHEST_PROTOCOL))[:3]
        hooks = state["_forward_hooks"].items()
        picklable = {number: hook for number, hook in hooks if getattr(hook, "__module__", "") != _CAPTURING}
        state = {**state, "_forward_hooks": OrderedDict(picklable)}
        if isinstance(value, PreTrainedModel):
            state.pop("_output_capturing_hooks_installed", None)  # Installed again when hidden states are requested.
            make, arguments = _create_model, (type(value), value.config)
        return make, arguments, state


def _create_model(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """Returns a model without weights; creating one registers the outputs that transformers can capture."""
    with torch.device("meta"):
        return model_class(config)


def dumps(value: object) -> bytes:
    """Returns the pickled value.

    Raises:
        UserError: if it cannot be pickled.
    """
    pickled = io.BytesIO()
    try:
        _Pickler(pickled, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"the training cannot be sent to other processes ({first_line(error)}): set trainer.devices=1"
        ) from error
    return pickled.getvalue()


class WorkerError(DistillError):
    """A worker raised an error, or died."""


def serve_calls(store: Store) -> None:
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


_START_TIMEOUT = timedelta(minutes=5)

T = TypeVar("T")


def run_in_ranks(
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


def get_rank() -> int:
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
def torch_threads(threads: int) -> Iterator[None]:
    """Lets torch compute with so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def limit_threads(local_world_size: int) -> AbstractContextManager[None]:
    """Gives this process its share of torch's threads while `local_world_size` processes use them."""
    return torch_threads(max(1, torch.get_num_threads() // local_world_size))


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
