"""Cores that this process may use: those of its affinity, within the quota of its control groups."""

import os
from collections.abc import Iterator
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def usable_processors() -> frozenset[int]:
    """Returns the numbers of the logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # Not on macOS and Windows.
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def count_cores() -> int:
    """Returns the number of cores that this process may use, at least 1.

    Two logical processors of one core count once, because a matrix product gains nothing from the second one. A quota
    of 1.5 cores counts as one, because with two threads it would be used up before a period ends.
    """
    processors = usable_processors()
    cores = len({_read(TOPOLOGY / f"cpu{number}/topology/thread_siblings_list") or number for number in processors})
    return max(1, min([cores, *map(int, _quotas())]))


def _quotas() -> Iterator[float]:
    """Yields the quotas, in cores, of the process's control groups and of those that they are in.

    A container may see its own group as the root of the tree, while the name of the group is that of the host.
    """
    for line in (_read(OWN_GROUPS) or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        for tree in (GROUPS, GROUPS / "unified") if number == "0" else (GROUPS / controllers, GROUPS / "cpu"):
            inner = tree / group.lstrip("/")
            for directory in (inner, *inner.parents):
                if not directory.is_relative_to(tree):
                    break
                quota = _read_quota(directory)
                if quota is not None:
                    yield quota


def _read_quota(directory: Path) -> float | None:
    """Returns the quota of a control group in cores; None if it has none."""
    quota, _, period = (_read(directory / "cpu.max") or "").partition(" ")
    if not period:  # Version 1 of control groups.
        quota, period = (_read(directory / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # `max`, or no file.
        return None
    return cores if cores > 0 else None  # Version 1 has -1 for no quota.


def _read(path: Path) -> str | None:
    """Returns the text of a file without white space around it; None for one that cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
