"""Calls a function in all ranks of a process group, and what such a function uses: its rank and collectives.

Example: `distributed.run(fit, module, data, world_size=2, device=torch.device("cpu"))` returns what `fit(module, data)`
returned here. This process is rank 0, which does everything else alone; the other ranks are workers (`workers.py`).

There is no state of ours between two calls: torch holds the process group, and a call has its own, because gloo closes
a group for good when one rank fails.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distill.errors import DistillError
from distill.training.pickling import dumps
from distill.training.workers import CALL_TIMEOUT, START_TIMEOUT, broadcast, get_workers, process_group


def run(
    function: Callable[..., Any], *arguments: Any, world_size: int, device: torch.device, **rank_zero_arguments: Any
) -> Any:
    """Returns `function(*arguments, **rank_zero_arguments)` of this process, which is rank 0 of a process group.

    Meanwhile every worker runs `function(*arguments)`. Function and arguments are pickled, so a script that calls this
    needs `if __name__ == "__main__"`. When one rank fails, all stop.

    Raises:
        WorkerError: when a worker failed; a DistillError of its own is raised here instead.
        UserError: for what cannot be pickled.
    """
    payload = dumps((function, arguments))
    with get_workers(world_size, device.type) as workers:
        workers.wait("ready", START_TIMEOUT)
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
                # An error of gloo may be the consequence of a worker's. This is looked up before the group is left,
                # because all workers fail then.
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


def all_gather(value: Any) -> list[Any]:
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
