"""A teacher that is ready to teach: as it is, kept from an earlier run, or fine-tuned first."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from lightning.pytorch.loggers import CSVLogger
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill import batches, data, fitting
from distill.errors import UnreachableError, UserError
from distill.files import is_intact, whole_directory, write_json
from distill.losses import HardLabels, Objective
from distill.module import DistillationModule, freeze, predict_splits
from distill.preflight import check_length, duration
from distill.progress import console, notice, say
from distill.tasks import SequenceTask

KEPT_FORMAT = 2
# Called with a teacher's model and tokenizer before that is trained; raises for a student that cannot follow it.
Rehearsal = Callable[[PreTrainedModel, PreTrainedTokenizerBase], None]


@dataclass(frozen=True)
class Teacher:
    """Who teaches, how well it does on the splits that are scored, and the seconds it took to train it in this run."""

    requested: str
    resolved: str
    substituted: bool
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fingerprint: str
    origin: str
    metrics: dict[str, float]
    seconds: float

    def record(self) -> dict[str, Any]:
        """The `teacher` of run.json."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        fields = ("requested", "resolved", "substituted", "origin", "metrics")
        return {**{name: getattr(self, name) for name in fields}, "parameters": parameters}


@dataclass(frozen=True)
class Source:
    """Where a teacher comes from, as a class of `teachers/` gives it, and how to fine-tune it; None: never."""

    weights: Any
    settings: fitting.Settings | None


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
    splits: data.TaskData,
    cache_dir: Path,
    run_directory: Path,
    rehearse: Rehearsal,
) -> Teacher:
    """Load the teacher, fine-tune it if its head does not fit the task, and score it on dev.

    A fine-tuned teacher is kept in the cache under a fingerprint of weights, data and settings. Before the training,
    `rehearse` is called with what is to become the teacher, so that what cannot follow it fails early.

    Raises:
        UserError: when it would have to be fine-tuned and must not be, or does worse than the majority class.
    """
    fingerprint = _fingerprint(source, task, splits)
    kept = cache_dir / "teachers" / f"{source.weights.name}-{task.name}-{fingerprint[:16]}"
    seconds = 0.0
    if source.settings is not None and _is_kept(kept):
        say(f"Teacher: fine-tuned before, reused from {kept}")
        origin = "kept"
    else:
        start = source.weights.load(task.auto_class, splits.labels, splits.splits["train"].texts)
        check_length(start.model, start.tokenizer, task, who="teacher")
        _adopt_special_tokens(start.model, start.tokenizer)
        for text in start.notices:
            notice(text)
        if start.fits:
            origin = "as it is"
            model, tokenizer = start.model, start.tokenizer
        elif source.settings is None:
            raise UserError(
                f"teacher {source.weights.resolved()} does not fit task {task.name}: {start.reason}; "
                "leave out teacher.finetune=false to have it fine-tuned first"
            )
        else:
            rehearse(start.model, start.tokenizer)
            say(f"Teacher: {source.weights.resolved()} is fine-tuned on {task.name} first, {start.reason}")
            seconds = _finetune(start, source.settings, task, splits, kept, run_directory / "teacher")
            origin = "fine-tuned"
    if origin != "as it is":
        model, tokenizer = _load(kept, task)
    model = freeze(model)
    logits = predict_splits(model, batches.evaluation_loaders(splits, task, tokenizer))
    metrics = task.split_metrics(logits, splits.scored_labels())
    if not task.regression:
        _check_majority(task.predictions(logits["dev"]), splits.splits["dev"].labels, source.weights.resolved())
    return Teacher(
        requested, source.weights.resolved(), substituted, model, tokenizer, fingerprint, origin, metrics, seconds
    )


def _fingerprint(source: Source, task: SequenceTask, splits: data.TaskData) -> str:
    settings = None
    if source.settings is not None:
        settings = asdict(replace(source.settings, precision=source.settings.resolved_precision()))
    parts = [KEPT_FORMAT, source.weights.fingerprint(), splits.sha256, task.metric, task.max_length, settings]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _finetune(
    start: Any,
    settings: fitting.Settings,
    task: SequenceTask,
    splits: data.TaskData,
    kept: Path,
    directory: Path,
) -> float:
    """Fine-tune on the hard labels, keep the result in `kept`, and return the seconds it took."""
    began = time.perf_counter()
    loaders = batches.loaders(splits, task, start.tokenizer, **settings.batches())
    module = DistillationModule(
        student=start.model.float(),
        objective=Objective(name="supervised", terms={"hard": HardLabels()}),
        task=task,
        **settings.optimization(len(loaders["train"])),
    )
    estimate = fitting.estimate_seconds(module, loaders["train"], loaders["dev"], settings)
    length = f"{module.total_steps:,} steps of {settings.batch_size * settings.accumulate} examples"
    say(f"         {length}, {settings.resolved_precision()}, about {duration(estimate)}, once")
    fitting.fit(
        module,
        loaders["train"],
        loaders["dev"],
        settings=settings,
        checkpoints=directory / "checkpoints",
        logger=CSVLogger(str(directory), name="", version=""),
        title="teacher",
    )
    model = module.student.to(start.model.dtype)
    with whole_directory(kept) as temporary:
        model.save_pretrained(temporary)
        start.tokenizer.save_pretrained(temporary)
        write_json(temporary / "distill.json", {"task": task.name, "data": splits.sha256, "settings": asdict(settings)})
    fitting.remove_checkpoints(directory / "checkpoints")  # The result is kept whole in the cache.
    return time.perf_counter() - began


def _is_kept(kept: Path) -> bool:
    """Whether the kept teacher is there; a damaged one is made again."""
    if kept.is_dir() and not is_intact(kept):
        notice(f"the kept teacher {kept} is damaged and made again")
        return False
    return kept.is_dir()


def _load(kept: Path, task: SequenceTask) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    auto_class = getattr(transformers, task.auto_class)
    model = auto_class.from_pretrained(kept, dtype=torch.float32, use_safetensors=True)
    return model, transformers.AutoTokenizer.from_pretrained(kept)


def _adopt_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
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
