"""The connection of this process to a Ray cluster: one that runs, or one of this machine for the time of use."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from distill.core.errors import OptionError, UserError, first_line
from distill.core.options import require_package

_CONNECT_SECONDS = 5.0
_OBJECT_STORE_BYTES = 256 * 2**20  # In /dev/shm. It holds the arguments of runs and trainings, never their data.


def check_ray(option: str) -> None:
    """Raises UserError if Ray, which the option needs, is not installed."""
    require_package("ray", option, extra="ray", name="Ray")


@contextmanager
def connect(address: str | None, *, option: str, label_lines: bool) -> Iterator[None]:
    """Connects this process to a Ray cluster, unless it is connected already, and disconnects it on exit.

    Args:
        address: `HOST:PORT` of the head, or `auto` for the one of this machine; None starts a cluster of this machine
            with all of its cores, which ends on exit.
        option: name of the option of `address`, for messages.
        label_lines: begins each line that a worker prints with the name of its task; otherwise Ray prints no warnings.

    Raises:
        UserError: if there is no Ray head at the address, or it refuses the connection.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Nothing leaves the machine unless asked.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # It prints a remark on itself.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # Equal lines of two runs are no repetition.
    import ray

    if ray.is_initialized():  # In a task of Ray.
        yield
        return
    if address is not None:
        _check_address(address, option)
    # Ray Train warns every second where there is no dashboard. This setting leaves out the labels too.
    logs = None if label_lines else ray.LoggingConfig(log_level="ERROR")
    start = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES} if address is None else {}
    handler = signal.getsignal(signal.SIGTERM)  # Ray replaces it.
    try:
        ray.init(address="local" if address is None else address, logging_level="ERROR", logging_config=logs, **start)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"got {option}={address}, but Ray cannot connect: {first_line(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _check_address(address: str, option: str) -> None:
    """Raises OptionError if nothing listens at the address, for which Ray itself would wait for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise OptionError(option, address, "HOST:PORT of a Ray head, auto, or null for a cluster of this machine")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"got {option}={address}, but there is no Ray head ({first_line(error)}): start one with "
            "`ray start --head`, or leave it out for a cluster of this machine"
        ) from error
