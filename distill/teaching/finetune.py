"""A teacher that is ready to teach: as it is, kept from an earlier run, or fine-tuned first."""

import copy
import gc
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from lightning.pytorch.loggers import CSVLogger
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.console import console, duration, notice, say
from distill.data import batching, tables
from distill.errors import UnreachableError, UserError
from distill.files import CHECKSUMS, atomic_directory, hash_file, is_intact, write_json
from distill.losses import HardLabels, Objective
from distill.models.checks import check_length
from distill.tasks import SequenceTask
from distill.teaching.outputs import ask_once
from distill.training import checkpoints, fitting
from distill.training.module import DistillationModule, freeze, predict_splits
from distill.training.settings import Settings, check_budget, check_processes

KEPT_FORMAT = 3
# Called with a teacher's model, tokenizer and examples before it is trained; raises for what cannot follow it.
Rehearsal = Callable[[PreTrainedModel, PreTrainedTokenizerBase, dict[str, batching.Examples]], None]


class Teacher:
    """Who teaches, how well it does on the splits that are scored, and the seconds it took to train it in this run.

    `model` is the float32 model; `release` frees its memory until somebody asks for it again. `fingerprint` stands for
    everything that its answers depend on, the inputs aside.
    """

    def __init__(
        self,
        *,
        requested: str,
        resolved: str,
        substituted: bool,
        origin: str,
        tokenizer: PreTrainedTokenizerBase,
        load: Callable[[], PreTrainedModel],
        precision: str,
        weights: str,
        device: torch.device,
        seconds: float,
        model: PreTrainedModel | None = None,
    ) -> None:
        self.requested, self.resolved, self.substituted, self.origin = requested, resolved, substituted, origin
        self.tokenizer, self.precision, self.weights = tokenizer, precision, weights
        self.device, self.seconds = device, seconds
        self.metrics: dict[str, float] = {}
        self._load = load
        self._model = None if model is None else freeze(model)
        self._answering: PreTrainedModel | None = None
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def model(self) -> PreTrainedModel:
        if self._model is None:
            self._model = freeze(self._load())
        return self._model

    @property
    def fingerprint(self) -> str:
        return f"{self.weights}-{self.precision}"

    def answering(self) -> PreTrainedModel:
        """The model where and in the precision in which it answers."""
        dtype = getattr(torch, self.precision)
        if dtype == torch.float32 and self.device.type == "cpu":
            return self.model
        if self._answering is None:
            self._answering = freeze(copy.deepcopy(self.model).to(self.device, dtype))
        return self._answering

    def release(self) -> None:
        """Free the model's memory."""
        self._model = self._answering = None
        gc.collect()  # A frozen model refers to itself.

    def record(self) -> dict[str, Any]:
        """The `teacher` of run.json."""
        fields = ("requested", "resolved", "substituted", "origin", "precision", "metrics", "parameters")
        return {name: getattr(self, name) for name in fields}


@dataclass(frozen=True)
class Source:
    """Where a teacher comes from, as a class of `teachers/` gives it, and how to fine-tune it; None: never."""

    weights: Any
    settings: Settings | None


def locate(requested: Source, substitute: Callable[[], Source], task: SequenceTask) -> tuple[Source, bool]:
    """The source whose weights are there, and whether it is the substitute: a matter of seconds.

    Raises:
        UserError: when the weights cannot be had; only a task that comes with the program accepts a substitute.
    """
    try:
        requested.weights.locate()
        return requested, False
    except UnreachableError:
        if not task.builtin:
            raise
        stand_in = substitute()
        console.rule("ANOTHER TEACHER TEACHES", style="bold yellow")
        say(f"Asked for  {requested.weights.name}: its weights are not on this machine, and the Hub does not answer.")
        say(f"Instead    {stand_in.weights.resolved()}.", style="bold")
        say("All numbers below speak of that small teacher. With the files of yours at hand: teacher.path=DIR")
        console.rule(style="bold yellow")
        stand_in.weights.locate()
        return stand_in, True


def prepare(
    source: Source,
    *,
    requested: str,
    substituted: bool,
    task: SequenceTask,
    splits: tables.TaskData,
    cache_dir: Path,
    run_directory: Path,
    device: torch.device,
    rehearse: Rehearsal,
    resume: bool = False,
) -> tuple[Teacher, dict[str, batching.Examples]]:
    """Load the teacher, fine-tune it if its head does not fit the task, and tokenize with its tokenizer.

    A fine-tuned teacher is kept in the cache under a fingerprint of weights, data and settings. Before the training,
    `rehearse` is called with what is to become the teacher, so that what cannot follow it fails early. With `resume`
    a fine-tuning that was begun in `run_directory` goes on.

    Raises:
        UserError: when it would have to be fine-tuned and must not be.
    """
    directory = cache_dir / "teachers" / f"{source.weights.name}-{task.name}-{_fingerprint(source, task, splits)[:16]}"
    seconds, origin = 0.0, "kept"
    examples: dict[str, batching.Examples] | None = None
    if source.settings is not None and _is_kept(directory):
        say(f"Teacher: fine-tuned before, reused from {directory}")
    else:
        start = _start(source, task, splits)
        _check(start, source.settings, task)
        if start.fits:
            origin = "as it is"
        elif source.settings is None:
            raise UserError(
                f"teacher {source.weights.resolved()} does not fit task {task.name}: {start.reason}; "
                "leave out teacher.finetune=false to have it fine-tuned first"
            )
        else:
            examples = batching.tokenize(splits, task, start.tokenizer, cache_dir=cache_dir)
            rehearse(start.model, start.tokenizer, examples)
            say(f"Teacher: {source.weights.resolved()} is fine-tuned on {task.name} first, {start.reason}")
            seconds = _finetune(
                start, source.settings, task, splits, examples, kept=directory, directory=run_directory / "teacher",
                identity={"data": splits.sha256, "start": source.weights.fingerprint()}, resume=resume,
            )  # fmt: skip
            origin = "fine-tuned"
    if origin == "as it is":
        weights = _digest([source.weights.fingerprint(), task.auto_class, splits.labels])
        tokenizer, load, model = start.tokenizer, lambda: _start(source, task, splits).model, start.model
    else:
        weights = hash_file(directory / CHECKSUMS)
        tokenizer, model = transformers.AutoTokenizer.from_pretrained(directory), None
        load = partial(_load, directory, task)
    teacher = Teacher(
        requested=requested, resolved=source.weights.resolved(), substituted=substituted, origin=origin,
        tokenizer=tokenizer, load=load, precision=source.weights.precision, weights=weights, seconds=seconds,
        device=device, model=model,
    )  # fmt: skip
    return teacher, examples or batching.tokenize(splits, task, tokenizer, cache_dir=cache_dir)


def _start(source: Source, task: SequenceTask, splits: tables.TaskData) -> Any:
    """The teacher as it comes; a head that it lacks is drawn, the same one each time."""
    torch.manual_seed(0 if source.settings is None else source.settings.seed)
    start = source.weights.load(task.auto_class, splits.labels, splits.splits["train"].texts)
    adopt_special_tokens(start.model, start.tokenizer)
    return start


def _check(start: Any, settings: Settings | None, task: SequenceTask) -> None:
    """What can be wrong with it for this task; tells what it has to say."""
    check_length(start.model, start.tokenizer, task, who="teacher")
    if settings is not None:
        check_budget(settings.batch_tokens, task, "teacher.finetune")
        check_processes(settings, "teacher.finetune")
    for text in start.notices:
        notice(text)


def score(
    teacher: Teacher,
    task: SequenceTask,
    splits: tables.TaskData,
    examples: dict[str, batching.Examples],
    *,
    cache: Any,
    directory: Path,
) -> None:
    """Fill in the teacher's metrics on the splits that are scored; its answers are kept unless `cache` is turned off.

    Raises:
        UserError: when it does worse than the majority class.
    """
    if cache.enabled is False or not task.fixed_inputs:
        logits = predict_splits(teacher.answering(), batching.evaluation_loaders(examples))
    else:
        logits = {
            name: ask_once(
                teacher.answering, examples[name], cache=cache, directory=directory, fingerprint=teacher.fingerprint,
                title=f"teacher on {name}",
            ).kept.logits()
            for name in splits.scored()
        }  # fmt: skip
    teacher.metrics = task.split_metrics(logits, splits.scored_labels())
    if not task.regression:
        _check_majority(task.predictions(logits["dev"]), splits.splits["dev"].labels, teacher.resolved)


def _fingerprint(source: Source, task: SequenceTask, splits: tables.TaskData) -> str:
    settings = None
    if source.settings is not None:
        settings = asdict(replace(source.settings, precision=source.settings.resolved_precision()))
        for name in ("checkpoint_steps", "devices", "strategy"):
            settings.pop(name)  # Has no part in the result.
        if source.settings.processes() > 1:  # A step sees the batches of all of them.
            settings["processes"] = source.settings.processes()
    return _digest([KEPT_FORMAT, source.weights.fingerprint(), splits.sha256, task.metric, task.max_length, settings])


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _finetune(
    start: Any,
    settings: Settings,
    task: SequenceTask,
    splits: tables.TaskData,
    examples: dict[str, batching.Examples],
    *,
    kept: Path,
    directory: Path,
    identity: dict[str, Any],
    resume: bool,
) -> float:
    """Fine-tune on the hard labels, keep the result in `kept`, and return the seconds it took."""
    began = time.perf_counter()
    loaders = batching.loaders(examples, **settings.batches())
    module = DistillationModule(
        student=start.model,
        objective=Objective(name="supervised", terms={"hard": HardLabels()}),
        task=task,
        **settings.optimization(len(loaders["train"])),
    )
    estimate = fitting.estimate_seconds(module, loaders["train"], loaders["dev"], settings)
    length = f"{module.total_steps:,} steps of {settings.step_size()}"
    say(f"         {length}, {settings.resolved_precision()}, about {duration(estimate)}, once")
    fitting.fit(
        module, loaders["train"], loaders["dev"], settings=settings, checkpoints=directory / "checkpoints",
        logger=CSVLogger(str(directory), name="", version=""), title="teacher", identity=identity, resume=resume,
    )  # fmt: skip
    with atomic_directory(kept, reuse_intact=True) as temporary:
        module.student.save_pretrained(temporary)
        start.tokenizer.save_pretrained(temporary)
        write_json(temporary / "distill.json", {"task": task.name, "data": splits.sha256, "settings": asdict(settings)})
    checkpoints.remove(directory / "checkpoints")  # The result is kept whole in the cache.
    del module
    gc.collect()  # Module and trainer refer to each other, and hold the optimizer's state.
    return time.perf_counter() - began


def _is_kept(kept: Path) -> bool:
    """Whether the kept teacher is there; a damaged one is made again."""
    if kept.is_dir() and not is_intact(kept):
        notice(f"the kept teacher {kept} is damaged and made again")
        return False
    return kept.is_dir()


def _load(kept: Path, task: SequenceTask) -> PreTrainedModel:
    auto_class = getattr(transformers, task.auto_class)
    model: PreTrainedModel = auto_class.from_pretrained(kept, dtype=torch.float32, use_safetensors=True)
    return model


def adopt_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """The tokenizer's separator and padding in the model's configuration, where a student finds them."""
    model.config.sep_token_id = tokenizer.sep_token_id
    if getattr(model.config, "pad_token_id", None) is None:  # What there is decides where positions begin.
        model.config.pad_token_id = tokenizer.pad_token_id


def _check_majority(predicted: np.ndarray, labels: np.ndarray, name: str) -> None:
    accuracy, majority = float((predicted == labels).mean()), float(np.bincount(labels).max() / len(labels))
    if accuracy < majority:
        raise UserError(
            f"teacher {name} has an accuracy of {accuracy:.3f} on dev, always answering the majority class has "
            f"{majority:.3f}: check that its labels mean the task's, or train it for longer"
        )
