"""Lightning strategies for one rank: a single device, replicas of the model (ddp, ray) or shards of it (fsdp)."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, cast

import torch
from lightning import Trainer
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from transformers import PreTrainedModel

from distill.models.forward import ENCODE, run_encoder
from distill.training.distributed import rank, world_size
from distill.training.launchers import local_rank

_REMARK = b"find_unused_parameters=True was specified"


def select_devices(device: torch.device) -> list[int] | int:
    """Returns Lightning's `devices` of this rank: its own GPU where there are several ranks, else one device."""
    if device.type != "cuda" or world_size() == 1:
        return 1
    return [local_rank() % torch.cuda.device_count()]


def create_strategy(name: str, device: torch.device) -> Strategy:
    """Returns Lightning's strategy of this rank."""
    if world_size() == 1:
        # Lightning sets the current GPU from this device, and torch refuses to do so without an index.
        return SingleDeviceStrategy(device=torch.device("cuda", 0) if device.type == "cuda" else device)
    if name == "fsdp":
        mesh = {"data_parallel_size": world_size(), "tensor_parallel_size": 1}
        sharded = ModelParallelStrategy(**mesh, save_distributed_checkpoint=False)  # type: ignore[arg-type]
        sharded.cluster_environment = _ExistingProcessGroup()
        return sharded
    # With `find_unused_parameters` a pooler that no loss reads may stay without a gradient. It also fixes the order in
    # which gradients are added: DDP would change that after the first step, and a resumed training begins with another.
    if name == "ray":
        return _create_ray_strategy(find_unused_parameters=True)
    return _QuietDDPStrategy(cluster_environment=_ExistingProcessGroup(), find_unused_parameters=True)


def _create_ray_strategy(**options: Any) -> Strategy:
    """Returns the strategy of a worker of Ray Train, which knows its device."""
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment

    class QuietRayStrategy(_QuietDDPStrategy, RayDDPStrategy):
        """Ray's DDP without the remark."""

    return QuietRayStrategy(cluster_environment=RayLightningEnvironment(), **options)


def prepare_trainer(trainer: Trainer, name: str) -> Trainer:
    """Returns the trainer of this rank, which Ray Train has checked if it has started the rank."""
    if name != "ray" or world_size() == 1:
        return trainer
    from ray.train import lightning

    return cast(Trainer, lightning.prepare_trainer(trainer))


def shard_module(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shards the parameters over all ranks: each layer in a list of layers by itself, then the remaining ones.

    A layer's parameters are gathered when it computes; each rank has its shard of the optimizer's state too
    (FSDP, arXiv 2304.11277).
    """
    lists = [child for child in module.modules() if isinstance(child, nn.ModuleList)]
    for layers in reversed(lists):  # The inner ones of nested lists first.
        for layer in layers:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    # Methods besides `forward` that use the parameters: an encoder without its head, and some terms of an objective.
    if isinstance(module, PreTrainedModel):
        setattr(module, ENCODE, MethodType(run_encoder, module))
        register_fsdp_forward_method(module, ENCODE)
    else:
        register_fsdp_forward_method(module, "totals")


class _QuietDDPStrategy(DDPStrategy):
    """DDP without the remark that every parameter was used; C++ writes it to stderr before the first backward pass."""

    _first_backward_done = False

    def pre_backward(self, closure_loss: Tensor) -> None:
        if self._first_backward_done:
            super().pre_backward(closure_loss)
            return
        self._first_backward_done = True
        with _without_lines(_REMARK):
            super().pre_backward(closure_loss)


@contextmanager
def _without_lines(remark: bytes) -> Iterator[None]:
    """Leaves out the lines with `remark` of what C++ writes to stderr in this context; the others follow at its end."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            os.write(2, b"".join(line for line in held if remark not in line))


class _ExistingProcessGroup(ClusterEnvironment):
    """The ranks of the process group that `distributed.run` has initialized; each sees one device, its own."""

    creates_processes_externally = True
    main_address, main_port = "", 0  # Unused, because the group exists.

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return world_size()

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return rank()

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return 0
