"""How Lightning trains in one of several processes: copies of a model that agree (ddp), or parts of one (fsdp)."""

import os
from types import MethodType

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from transformers import PreTrainedModel

from distill.models.forward import ENCODE, run_encoder
from distill.training.processes import local_gpu, rank, world


def device_number(device: torch.device) -> list[int] | int:
    """What Lightning's `devices` is in this process: its own GPU, where there are several, or one CPU."""
    if device.type != "cuda" or world() == 1:
        return 1
    return [local_gpu()]


def strategy(name: str, device: torch.device) -> Strategy:
    """How Lightning trains in this process."""
    if world() == 1:
        return SingleDeviceStrategy(device=device)
    if name == "fsdp":
        mesh = {"data_parallel_size": world(), "tensor_parallel_size": 1}
        sharded = ModelParallelStrategy(**mesh, save_distributed_checkpoint=False)  # type: ignore[arg-type]
        sharded.cluster_environment = _Environment()
        return sharded
    # With `find_unused_parameters` a pooler that no loss reads may stay without a gradient. It also keeps the order in
    # which gradients are added: DDP would change that after the first step, and a resumed training begins with another.
    return _DDP(cluster_environment=_Environment(), find_unused_parameters=True)


def shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Spread the weights over all processes: of each layer in a list of layers, then what is left.

    A layer's are gathered when it computes, and its gradients where they are kept; so each process has its share of the
    optimizer's state too (FSDP, arXiv 2304.11277).
    """
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    for layers in reversed(lists):  # One within another first.
        for layer in layers:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    # The other ways in, besides a call of the whole: an encoder without its head, and some terms of an objective.
    if isinstance(module, PreTrainedModel):
        setattr(module, ENCODE, MethodType(run_encoder, module))
        register_fsdp_forward_method(module, ENCODE)
    else:
        register_fsdp_forward_method(module, "totals")


class _DDP(DDPStrategy):
    """Without the remark that every parameter was used, which goes past all filters to the file of errors."""

    _heard = False

    def pre_backward(self, closure_loss: Tensor) -> None:
        if self._heard:
            super().pre_backward(closure_loss)
            return
        self._heard = True
        errors, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        try:
            super().pre_backward(closure_loss)
        finally:
            os.dup2(errors, 2)
            os.close(errors)
            os.close(nowhere)


class _Environment(ClusterEnvironment):
    """Tells Lightning that all processes are there; each sees its own device as the only one."""

    creates_processes_externally = True
    main_address, main_port = "", 0  # The group is made already.

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return world()

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
