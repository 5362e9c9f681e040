"""Lightning strategies for one rank, workers of Ray, and checkpoints from which a training resumes.

Calls a function in all ranks of a process group whose workers Ray Train starts, on the machines of a Ray cluster. Here
rank 0 is a worker too, because the machine of the command may have no GPU. So it works on copies of the arguments, and
what it changes has to be in the result; `processes.run_in_ranks` is for the ranks of this machine, torchrun and srun.
"""

import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import lightning as L
import torch
from lightning import Trainer
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from transformers import PreTrainedModel

from distill.core import storage
from distill.core.console import events, silence_libraries
from distill.core.errors import DistillError, OptionError, UserError, first_line
from distill.core.files import atomic_file
from distill.models.forward import ENCODE, run_encoder
from distill.training import processes
from distill.training.processes import WorkerError, dumps, get_rank, local_rank, world_size
from distill.training.ray_cluster import check_ray, connect

if TYPE_CHECKING:
    from distill.data.streams import StepStream


_STOPPING = (
    b"\nStopping after this step and saving a checkpoint. A second Ctrl-C stops at once and keeps the last one.\n"
)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target and renames it, so that a killed run leaves the last complete one."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object | None = None
    ) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as temporary, open(temporary, "wb") as file:
            torch.save(checkpoint, file)
        storage.send_changes(target.parent)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint whose checksums match; the tensors stay on the disk until they are used.

    Raises:
        UserError: if the file is missing or damaged.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing: remove {path.parent} to restart this training from the beginning")
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not compare the checksums that torch.save writes.
            if archive.testzip() is not None:
                raise _damaged(path)
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, KeyError, EOFError, ValueError, OSError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise _damaged(path) from error
    return checkpoint


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is damaged: remove {path.parent} to restart this training from the beginning")


class PortableModelCheckpoint(ModelCheckpoint):
    """A ModelCheckpoint whose state holds file names in place of paths, so that the directory of a run can be moved.

    Lightning forgets the best score where the directory has changed, and the next evaluation overwrites `best.ckpt`.
    It also takes an evaluation after every step (`val_check_interval=1`) for one at the end of every epoch (1.0), and
    saves nothing in between. This class saves after every evaluation.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(save_on_train_epoch_end=False, **options)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        directory = Path(str(self.dirpath))
        paths = {
            name: str(directory / Path(state_dict[name]).name) if state_dict.get(name) else ""
            for name in ("best_model_path", "kth_best_model_path", "last_model_path")
        }
        best = {str(directory / Path(path).name): score for path, score in state_dict.get("best_k_models", {}).items()}
        if paths["best_model_path"] and not Path(paths["best_model_path"]).is_file():
            raise UserError(f"{paths['best_model_path']} is missing: remove {directory} to restart this training")
        super().load_state_dict({**state_dict, **paths, "best_k_models": best, "dirpath": self.dirpath})


class StepSource(Protocol):
    """The source of the steps of a training: the sampler of its batches, or a stream."""

    rank: int
    skip: int


class Checkpoints(Callback):
    """Writes `path` every `every` optimizer steps. After a signal it writes `path` and stops the training.

    Args:
        identity: properties of the training; a resumed training must have the same ones.
        steps: source of the steps. It skips the first `skip` steps of the next epoch; `place` is the position in a
            stream.
    """

    def __init__(self, path: Path, *, every: int | None, identity: Mapping[str, object], steps: StepSource) -> None:
        self.path, self.every, self.identity, self.steps = path, every, dict(identity), steps
        self.stopping = self._synchronized = False
        self._due = False

    def skip_finished_steps(self) -> None:
        """Skips the steps that the checkpoint's epoch had finished.

        Raises:
            UserError: if the checkpoint is damaged or belongs to another training.
        """
        checkpoint = load_checkpoint(self.path)
        try:
            identity, done, places = checkpoint["identity"], checkpoint["steps_of_epoch"], checkpoint["places"]
        except KeyError as error:
            raise _damaged(self.path) from error
        names = self.identity.keys() | identity.keys()
        other = sorted(name for name in names if identity.get(name) != self.identity.get(name))
        if other:
            raise UserError(
                f"{self.path} belongs to another training with different {' and '.join(other)}: run the command "
                "without resume"
            )
        self.steps.skip = done
        if (place := places[processes.get_rank()]) is not None:
            cast("StepStream", self.steps).place = place

    @contextmanager
    def stop_on_signals(self) -> Iterator[None]:
        """Stops the training after the current step on Ctrl-C and SIGTERM, and at once on a second signal.

        Raises:
            KeyboardInterrupt: if the signal arrived during the last step.
        """
        with handle_signals(self._stop, signal.SIGINT, signal.SIGTERM):
            yield
        if self.stopping:  # The signal came in the last step.
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if processes.get_rank() > 0:  # Only rank 0 prints, and only there a second signal stops at once.
            self.stopping = True
            return
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        os.write(2, _STOPPING)  # print is not safe in a signal handler.

    def _synchronize(self) -> None:
        """Stops all processes with a checkpoint of this step if one of them got a signal.

        They exchange after every step whether one of them did, so that all of them stop after the same step.
        """
        if not self._synchronized and processes.any_rank(self.stopping):
            self.stopping = self._synchronized = self._due = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._stop)  # Lightning has installed its own handler.

    def on_train_batch_start(self, trainer: L.Trainer, *args: object) -> None:
        if self._synchronized and not self._due:
            raise KeyboardInterrupt

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Writes the checkpoint that is due.

        No checkpoint is written after a step that ends the epoch or is followed by an evaluation on dev, because a
        resumed training would skip the end of the epoch and the evaluation. After an evaluation a ModelCheckpoint
        writes `path`. After the end of an epoch `path` is written after the next step.
        """
        self._synchronize()
        self._due |= self.every is not None and trainer.global_step % self.every == 0
        step = trainer.fit_loop.epoch_loop.total_batch_idx + 1  # Evaluations are counted across epochs.
        evaluates = trainer.should_stop or step % cast(int, trainer.val_check_batch) == 0
        if self._due and not evaluates and not trainer.is_last_batch:
            trainer.save_checkpoint(self.path, weights_only=False)
            self._due = False

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._synchronize()
        self._due = False  # A ModelCheckpoint writes `path` here.

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["identity"] = self.identity
        # Each process reads its own documents.
        checkpoint["places"] = processes.all_gather(getattr(self.steps, "place", None))


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], object], *signals: signal.Signals) -> Iterator[None]:
    """Handles these signals with `handler` in this context; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)


def remove_checkpoints(directory: Path) -> None:
    """Removes the checkpoints of a training whose result is saved elsewhere."""
    for path in (directory / "best.ckpt", directory / "last.ckpt", *directory.glob("soup*.ckpt")):
        path.unlink(missing_ok=True)
    directory.rmdir()


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
    if name != "ray":
        return _QuietDDPStrategy(cluster_environment=_ExistingProcessGroup(), find_unused_parameters=True)
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment

    class QuietRayStrategy(_QuietDDPStrategy, RayDDPStrategy):
        """Ray's DDP, which knows the device of its worker, without the remark."""

    return QuietRayStrategy(cluster_environment=RayLightningEnvironment(), find_unused_parameters=True)


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
    """The ranks of the process group that `processes.run_in_ranks` has initialized; each sees one device, its own."""

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
        return get_rank()

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return 0


T = TypeVar("T")


def _check_whole(task_id: str | None) -> None:
    """Raises UserError for a run that is a task of a cluster."""
    if task_id is not None:
        raise UserError(
            "trainer.strategy=ray needs the whole cluster, and this run is a task of hydra/launcher=ray: leave out "
            "one of them"
        )


def run_in_ray(
    function: Callable[..., T],
    *arguments: object,
    world_size: int,
    device: torch.device,
    directory: Path,
    max_failures: int,
    **rank_zero_arguments: object,
) -> T:
    """Returns the result of `function(*arguments, **rank_zero_arguments)` in rank 0.

    Meanwhile the other ranks run `function(*arguments)`, in the cluster of RAY_ADDRESS, or else of this machine.

    Args:
        directory: where Ray Train keeps its state while the call lasts; all machines see it.
        max_failures: how often all ranks are started again after one was lost.

    Raises:
        UserError: if Ray is not installed, the cluster is too small, or something cannot be pickled.
        WorkerError: if a worker failed or was lost; a DistillError of its own is raised here instead.
        KeyboardInterrupt: on Ctrl-C, which ends the workers at once.
    """
    check_ray("trainer.strategy=ray")
    payload = dumps((function, arguments, rank_zero_arguments))
    with connect(os.environ.get("RAY_ADDRESS"), option="RAY_ADDRESS", label_lines=False):
        import ray
        from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig, TrainingFailedError
        from ray.train.torch import TorchConfig, TorchTrainer

        _check_whole(ray.get_runtime_context().get_task_id())
        resources = allot_resources(ray.nodes(), world_size, device)
        config = {"payload": ray.put(payload), "directory": os.getcwd(), "run": events.run}
        config["threads"] = int(resources["CPU"])
        is_cuda, place = device.type == "cuda", str(directory.absolute())
        backend = TorchConfig(backend="cpu:gloo,cuda:nccl" if is_cuda else "gloo")
        scaling = ScalingConfig(num_workers=world_size, use_gpu=is_cuda, resources_per_worker=resources)
        failures, logging = FailureConfig(max_failures=max_failures), LoggingConfig(log_level="ERROR")
        run = RunConfig(name="ray", storage_path=place, failure_config=failures, logging_config=logging)
        options = {"torch_config": backend, "scaling_config": scaling, "run_config": run}
        trainer = TorchTrainer(_run_rank, train_loop_config=config, **options)
        try:
            with handle_signals(signal.default_int_handler, signal.SIGINT):  # Ray Train replaces and keeps it.
                result = trainer.fit().return_value
        except TrainingFailedError as error:
            raise find_cause(error, world_size) from error
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    if result is None:  # The training was aborted.
        raise KeyboardInterrupt
    return cast(T, pickle.loads(result))


def _run_rank(config: Mapping[str, Any]) -> bytes | None:
    """Runs the function in one worker; returns the result of rank 0."""
    import ray

    rank = ray.train.get_context().get_world_rank()
    os.chdir(config["directory"])  # Paths of the command are relative to it.
    torch.set_num_threads(config["threads"])
    silence_libraries()
    function, arguments, rank_zero_arguments = pickle.loads(ray.get(config["payload"]))
    if rank == 0:
        events.name_run(config["run"])
        return dumps(function(*arguments, **rank_zero_arguments))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Rank 0 prints.
    events.leave_to_rank_zero()
    warnings.simplefilter("ignore")
    function(*arguments)
    return None


def allot_resources(nodes: Iterable[Mapping[str, Any]], world_size: int, device: torch.device) -> dict[str, float]:
    """Returns the cores and GPUs of a worker: the most cores with which all workers fit on the machines.

    Raises:
        OptionError: if the cluster has too few.
    """
    kind = "GPU" if device.type == "cuda" else "CPU"
    machines = [(node["Resources"].get("CPU", 0), node["Resources"].get(kind, 0)) for node in nodes if node["Alive"]]

    def count_workers(cores: int) -> int:
        return sum(int(min(cpus // cores, number)) for cpus, number in machines)

    if count_workers(1) < world_size:
        raise OptionError(
            "trainer.devices", str(world_size), f"at most {count_workers(1)}, the {kind}s of the Ray cluster"
        )
    cores = 1
    while count_workers(cores + 1) >= world_size:
        cores += 1
    return {"CPU": cores} if kind == "CPU" else {"CPU": cores, "GPU": 1}


def find_cause(error: Exception, world_size: int) -> DistillError:
    """Returns the error of a worker: a DistillError of its own, or else the first one."""
    failures: Mapping[int, BaseException] = getattr(error, "worker_failures", {})
    for failure in failures.values():
        cause: BaseException | None = failure
        while cause is not None and not isinstance(cause, DistillError):
            cause = cause.__cause__
        if cause is not None:
            return cause
    for rank, failure in failures.items():
        return WorkerError(f"rank {rank} of {world_size}: {type(failure).__name__}: {first_line(failure)}")
    return WorkerError(f"the training with Ray failed: {first_line(error)}")
