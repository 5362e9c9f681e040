"""Several processes that train as one: the first does everything else alone, and calls the others to a training.

They are started here, on this machine, or by torchrun or SLURM, on any number of machines. Each waits for calls, and
ends when the first one does. Every call has a process group of its own, so that one that fails leaves nothing behind.
"""

import contextlib
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from distill.console import quiet
from distill.errors import DistillError, UserError
from distill.training.travel import packed

_PATIENCE = 10.0  # Seconds.
_FOREVER = timedelta(days=3650)
_WORKER = "from distill.training.processes import work; work()"


class ProcessError(DistillError):
    """Another process failed, or died."""


@dataclass(frozen=True)
class Seat:
    """Which of `world` processes this is, over all machines, and which of those on its own (`local`)."""

    rank: int = 0
    world: int = 1
    local: int = 0


def launched() -> Seat:
    """This process's seat among those that torchrun or SLURM have started; alone where they have not."""
    here = os.environ
    if "RANK" in here and "WORLD_SIZE" in here:
        return Seat(int(here["RANK"]), int(here["WORLD_SIZE"]), int(here.get("LOCAL_RANK", 0)))
    # Not SLURM_NTASKS, which a batch script has too: its processes begin with srun, and steps are srun's.
    if int(here.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return Seat(int(here["SLURM_PROCID"]), int(here["SLURM_STEP_NUM_TASKS"]), int(here["SLURM_LOCALID"]))
    return Seat()


# What a training asks


def total(values: Tensor) -> Tensor:
    """The sum over all processes that train; alone, the values themselves."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def anyone(says_so: bool) -> bool:
    """Whether one of the processes that train says so."""
    flag = torch.tensor(int(says_so))
    return bool(total(flag))


def gathered(value: Any) -> list[Any]:
    """What each of the processes that train has, in the order of their numbers."""
    found = [value] * world()
    if dist.is_initialized():
        dist.all_gather_object(found, value)
    return found


def rank() -> int:
    """This process's number among those that train."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many train."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local_gpu() -> int:
    """The number of this process's own GPU."""
    return _seat.local % torch.cuda.device_count()


# The first process


@contextmanager
def threads(share: int) -> Iterator[None]:
    """A share of this process's threads, so that all on this machine together have as many as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // share))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def together(count: int, function: Callable[..., Any], *arguments: Any, device: torch.device, **own: Any) -> Any:
    """What `function(*arguments, **own)` returns here, while `count - 1` other processes run `function(*arguments)`.

    Function and arguments are pickled. When one process fails all of them stop.

    Raises:
        ProcessError: where another process failed; its own error, if that is one of ours.
    """
    global _crew
    if _crew is not None and _crew.world != count:
        end()
    if _crew is None:
        _crew = _started(count)
    return _crew.call(function, arguments, own, device)


def join() -> bool:
    """Find the processes that torchrun or SLURM have started; whether this is one that waits to be called."""
    global _crew, _seat
    _seat = launched()
    if _seat.world == 1:
        return False
    store = _store(_seat)
    if _seat.rank > 0:
        _quiet()
        _serve(store)
        return True
    _crew = _Crew(store, _seat.world, [])
    return False


def end(launched_too: bool = False) -> None:
    """End the processes that were started here; with `launched_too` nobody needs those of a launcher any more."""
    global _crew
    if _crew is not None and (_crew.workers or launched_too):
        _crew.end()
        _crew = None


class _Worker:
    """A process that was started here; what it says is kept in a file, and shown where it dies."""

    def __init__(self, rank: int, world: int, port: int, threads: int) -> None:
        self.rank, self.world = rank, world
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        # In a session of its own: Ctrl-C is for the first process, which tells the others.
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(rank), str(world), str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._said, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip

    def check(self, patience: float = 0.0) -> None:
        """ProcessError where it has ended."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        raise ProcessError(": ".join([f"process {self.rank + 1} of {self.world} {how}", *lines[-1:]]))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._said.close()


class _Crew:
    """All processes, as the first one sees them: a store that everyone reaches, and the calls that went through it."""

    def __init__(self, store: Store, world: int, workers: list[_Worker]) -> None:
        self.store, self.world, self.workers = store, world, workers
        self._calls, self._lost = 0, False

    def call(self, function: Callable[..., Any], arguments: Any, own: dict[str, Any], device: torch.device) -> Any:
        if self._lost:
            raise ProcessError("a training before this one failed, and not all of its processes came back: start anew")
        work = packed((function, arguments))
        call = self._next(device.type)
        with threads(len(self.workers) + 1):
            try:
                self._wait(call, "ready")
                with _group(call, device.type, 0, self.world):
                    _broadcast(work)
                    del work  # As large as the models.
                    result = function(*arguments, **own)
                    self._wait(call, "done")
                    call.set("over", "")
            except BaseException as error:
                cause = self._cause(call, error)
                end()
                self._lost = not self.workers and not self._all_back(call)
                if cause is error:
                    raise
                raise cause from error
        return result

    def end(self) -> None:
        self._next("")
        for worker in self.workers:
            worker.end()
        if not self.workers:  # The store may go with this process: first they must have read it.
            keys, end = [f"left{rank}" for rank in range(1, self.world)], time.monotonic() + _PATIENCE
            while not self._lost and not self.store.check(keys) and time.monotonic() < end:
                time.sleep(0.02)

    def _next(self, what: str) -> Store:
        self._calls += 1
        self.store.set(str(self._calls), what)
        return PrefixStore(f"call{self._calls}", self.store)

    def _wait(self, call: Store, what: str) -> None:
        """Wait until all others say so, or one of them has failed."""
        keys = [f"{what}{rank}" for rank in range(1, self.world)]
        while not call.check(keys):
            if call.check(["failure1"]):
                raise _failure(call)
            for worker in self.workers:
                worker.check()
            time.sleep(0.02)

    def _all_back(self, call: Store) -> bool:
        """Whether all others have left a call that failed; one that waits for this process never does."""
        end = time.monotonic() + _PATIENCE
        while call.add("failures", 0) < self.world - 1 and time.monotonic() < end:
            time.sleep(0.02)
        return call.add("failures", 0) >= self.world - 1

    def _cause(self, call: Store, error: BaseException) -> BaseException:
        """Why a call failed: an error of torch's here may only say that another process is gone."""
        if isinstance(error, DistillError) or not isinstance(error, Exception):
            return error
        if call.check(["failure1"]):
            return _failure(call)
        try:
            for worker in self.workers:
                worker.check(patience=1.0)
        except ProcessError as died:
            return died
        return error


def _started(count: int) -> _Crew:
    """As many processes on this machine, this one among them."""
    # Not TCPStore's own socket, which would listen to other machines too.
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    threads = max(1, torch.get_num_threads() // count)
    return _Crew(store, count, [_Worker(rank, count, port, threads) for rank in range(1, count)])


def _failure(call: Store) -> BaseException:
    """The first error of another process."""
    error = pickle.loads(call.get("failure1"))
    assert isinstance(error, BaseException)
    return error


# The others


def work() -> None:
    """What a process does that was started by `_Worker`."""
    global _seat
    rank, world, port = (int(argument) for argument in sys.argv[1:])
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    _seat = Seat(rank, world, rank)
    _quiet()
    _serve(TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))


def _end_with_the_first() -> None:
    """Its end of the pipe closes when it ends, however that may be, and whatever this process is waiting for."""
    sys.stdin.buffer.read()
    os._exit(1)


def _quiet() -> None:
    """The first process says what there is to say, and tells when to stop."""
    warnings.simplefilter("ignore")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _serve(store: Store) -> None:
    """Answer calls until the first process ends."""
    quiet()
    number = 0
    while True:
        number += 1
        try:
            store.wait([str(number)], _FOREVER)
            device = store.get(str(number)).decode()
        except RuntimeError:  # The store is the first process's, and gone.
            return
        if not device:
            store.set(f"left{_seat.rank}", "")
            return
        _answer(PrefixStore(f"call{number}", store), device)


def _answer(call: Store, device: str) -> None:
    """Take part in one call; what goes wrong here is told to the first process."""
    try:
        call.set(f"ready{_seat.rank}", "")
        with _group(call, device, _seat.rank, _seat.world):
            try:
                function, arguments = pickle.loads(_broadcast(None))
                function(*arguments)
                call.set(f"done{_seat.rank}", "")
                call.wait(["over"], _FOREVER)
            except BaseException as error:  # Told while the group stands: when it falls the others ask why.
                _tell(call, error)
    except RuntimeError as error:  # Of the group, or of the store, which is gone when the first process is.
        with contextlib.suppress(RuntimeError):
            _tell(call, error)
    gc.collect()  # Module and trainer refer to each other, and keep the group's connections open.


def _tell(call: Store, error: BaseException) -> None:
    call.set(f"failure{call.add('failures', 1)}", pickle.dumps(_told(error)))  # type: ignore[arg-type]


def _told(error: BaseException) -> BaseException:
    """An error as it can be sent."""
    if isinstance(error, DistillError):
        return error
    if not isinstance(error, Exception):  # Ctrl-C, or what Lightning makes of it.
        return KeyboardInterrupt()
    line = (str(error).strip() or "no message").splitlines()[0]
    told = ProcessError(f"process {_seat.rank + 1} of {_seat.world}: {type(error).__name__}: {line}")
    told.add_note("".join(traceback.format_exception(error)))
    return told


# All of them

_seat = Seat()
_crew: _Crew | None = None


def _store(seat: Seat) -> Store:
    """The store of processes that a launcher has started; the first one has it, or torchrun itself."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if host is None and "RANK" not in os.environ:
        host = SLURMEnvironment.resolve_root_node_address(os.environ["SLURM_STEP_NODELIST"])
    if port is None and "RANK" not in os.environ:
        port = str(15_000 + int(os.environ["SLURM_JOB_ID"]) % 10_000)
    if host is None or port is None:
        raise UserError("RANK and WORLD_SIZE are set, but not MASTER_ADDR and MASTER_PORT: set all, or none of them")
    theirs = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(host, int(port), is_master=seat.rank == 0 and not theirs, wait_for_workers=False)
    return PrefixStore(f"distill{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


@contextmanager
def _group(store: Store, device: str, rank: int, world: int) -> Iterator[None]:
    """A process group for one call: gloo, and nccl for what is on a GPU."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    if device == "cuda":
        torch.cuda.set_device(local_gpu())
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _broadcast(content: bytes | None) -> bytes:
    """What the first process has, in all of them."""
    box = [content]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    assert box[0] is not None
    return box[0]
