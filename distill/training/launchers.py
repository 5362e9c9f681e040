"""Processes that torchrun or srun started, on any number of machines: their ranks, their store, and calls through it.

The environment variables of torchrun hold the ranks; under SLURM `connect` sets them. The store counts the calls.
"""

import itertools
import os
from collections.abc import Iterator
from datetime import timedelta

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from distill.errors import UserError

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


def connect() -> Store | None:
    """Returns the store that the processes of torchrun or srun share; None where this process is the only one.

    Rank 0 keeps it until it ends and then calls `release`; the others call `workers.serve`.

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


def release(store: Store) -> None:
    """Ends the workers."""
    send_call(store, "")
