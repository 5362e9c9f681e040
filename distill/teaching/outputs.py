"""The signal of a teacher in a training: cached outputs, or a teacher that runs in every step, and the reason."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.contracts import Examples, Learnable, Signal, Stream, Task
from distill.data.batching import scoring_steps
from distill.data.mixing import MixedExamples, labelled_only, seen_examples, shown_in_epoch
from distill.errors import UserError
from distill.losses import Objective
from distill.losses.term import get_logits
from distill.models.forward import to_device
from distill.storage.files import JsonObject
from distill.teaching.computation import (
    Computation,
    HiddenStatesOverflow,
    cache_outputs,
    count_logit_bytes,
    count_visited,
    fill_outputs,
    open_outputs,
)
from distill.teaching.draws import Draws
from distill.teaching.output_cache import Cached, HiddenLayers, OutputCache
from distill.teaching.prepared import PreparedTeacher
from distill.teaching.signal import Live, Mean
from distill.teaching.top_k import TopK
from distill.training.module import NOTHING

WRITES = "the student writes some of the texts"


def check_cache(cache: OutputCache, objective: Objective, task: Task, *, is_ensemble: bool = False) -> None:
    """Raises UserError if the outputs cannot be cached and must be: for an ensemble, or by `teacher.cache.enabled`."""
    reason = _obstacle(cache, objective, task)
    if is_ensemble and objective.needs_teacher:
        _refuse_to_run(reason)
    if reason is None:
        _keep(cache, objective, task)


def _keep(cache: OutputCache, objective: Objective, task: Task) -> Draws | TopK | None:
    """Returns what is cached of logits over a vocabulary, None for other tasks; raises UserError as `check_cache`."""
    return cache.over_vocabulary(objective.drawn_at()) if task.info.classes_are_tokens else None


def _refuse_to_run(reason: str | None) -> None:
    """Raises UserError if there is a reason why the teachers of an ensemble would run in every step."""
    if reason is not None:
        raise UserError(
            f"an ensemble teaches from cached outputs, and {reason}: take another objective, or one teacher"
        )


def check_size(
    objective: Objective,
    task: Task,
    teacher: PreTrainedModel,
    examples: Examples,
    cache: OutputCache,
    *,
    student: PreTrainedModel,
    epochs: int | None = None,
) -> None:
    """Raises UserError if the outputs for a training of so many epochs must be cached and exceed the allowed size."""
    if not objective.needs_teacher or _obstacle(cache, objective, task) is not None:
        return
    hidden = hidden_layers(objective, student=student, teacher=teacher)
    if hidden is None or not cache.is_optional:
        lengths = examples.tokens[: seen_examples(examples, epochs)]
        cache.check_size(
            lengths, logit_bytes=count_logit_bytes(cache, task, examples, teacher, len(lengths)),
            hidden=hidden,
        )  # fmt: skip


def hidden_layers(objective: Objective, *, student: PreTrainedModel, teacher: PreTrainedModel) -> HiddenLayers | None:
    """Returns the teacher's hidden states that the objective reads, None without any."""
    depth = int(teacher.config.num_hidden_layers)
    layers = objective.teacher_layers(int(student.config.num_hidden_layers), depth)
    return HiddenLayers(int(teacher.config.hidden_size), depth, layers) if layers else None


def teacher_logits(
    teacher: PreparedTeacher, task: Learnable, examples: Examples | Stream, signal: Signal, *, most: int
) -> list[Tensor]:
    """Returns the teacher's logits on labelled examples of train, batches of `[n, C]` in float32 on the CPU.

    Args:
        signal: has the logits if they are cached; otherwise the teacher runs.
        most: number of examples, which are evenly spaced.
    """
    labelled = labelled_only({"train": examples})["train"]
    assert isinstance(labelled, Examples)  # A stream has no vectors.
    return _logits_of(np.arange(len(labelled)), teacher, task, labelled, signal, most=most)


def measure_sureness(
    teacher: PreparedTeacher, task: Task, examples: Examples | Stream, signal: Signal, *, most: int
) -> float | None:
    """Returns the mean of the teacher's largest probability on the texts that only it labels.

    Of labels with a sigmoid each, it is the mean of the probabilities of what is likelier, the label or its absence.

    Args:
        most: number of texts, which are evenly spaced among those of the first epoch.

    Returns:
        None without such texts, and for outputs that are no probabilities.
    """
    if not isinstance(examples, MixedExamples) or task.info.likelihood not in ("softmax", "sigmoid"):
        return None
    drawn = np.arange(len(examples.labelled), examples.seen(1))
    if not len(drawn):
        return None
    logits = torch.cat(_logits_of(drawn, teacher, task, examples, signal, most=most))
    if task.info.likelihood == "softmax":
        return float(logits.softmax(dim=-1).amax(dim=-1).mean())
    return float(logits.abs().sigmoid().mean())


@torch.no_grad()
def _logits_of(
    indices: np.ndarray, teacher: PreparedTeacher, task: Learnable, examples: Examples, signal: Signal, *, most: int
) -> list[Tensor]:
    """Returns the teacher's logits on at most so many of these examples, as `teacher_logits`."""
    chosen = indices[np.linspace(0, len(indices) - 1, min(most, len(indices))).astype(int)]
    logits, is_cached = [], signal.bytes > 0
    for rows in scoring_steps(examples.lengths[chosen]):
        batch = to_device(examples[chosen[rows].tolist()], torch.device("cpu") if is_cached else teacher.device)
        items = task.select(batch)
        outputs = signal(batch, items) if is_cached else task.run(teacher.running(), batch, items, frozenset())
        logits.append(get_logits(outputs.at(items)).float().cpu())
    return logits


def earlier_decision(record: JsonObject, checkpoint: Path) -> JsonObject | None:
    """Returns the `teacher_outputs` of run.json if a training continues from `checkpoint`, None if it begins."""
    decision: JsonObject | None = record["teacher_outputs"] if checkpoint.is_file() else None
    return decision


def outputs_for_training(
    teacher: PreparedTeacher,
    objective: Objective,
    task: Task,
    examples: Examples | Stream,
    *,
    student: PreTrainedModel,
    cache: OutputCache,
    directory: Path,
    epochs: float = 1.0,
    earlier: JsonObject | None = None,
) -> Signal:
    """Returns the teacher's outputs for the training: cached ones, or those of a teacher that runs in every step.

    Args:
        examples: the training split.
        epochs: number of epochs of the training, a fraction if it ends within one.
        earlier: the decision of `earlier_decision`, which a resumed training keeps.

    Raises:
        UserError: if the outputs of an ensemble cannot be cached.
    """
    if not objective.needs_teacher:
        return NOTHING
    if not isinstance(examples, Examples):
        return run_live(teacher, task, objective, "a stream shows a text once only")
    first, *others = teacher.members
    hidden = hidden_layers(objective, student=student, teacher=first.model)
    reason = WRITES if objective.writing is not None else None
    reason = reason or _obstacle(
        cache, objective, task, hidden_gb=cache.size_gb(examples.tokens, logit_bytes=0, hidden=hidden),
        unnamed_layers=objective.needing_unnamed_layers(
            student.config.num_hidden_layers, first.model.config.num_hidden_layers
        ),
    )  # fmt: skip
    outputs = reason or _cache_or_reason(
        replace(computation_of(first, task, cache, directory), kept=_keep(cache, objective, task)),
        examples, first.model, hidden, objective, epochs, earlier,
    )  # fmt: skip
    if isinstance(outputs, str):
        if others:
            _refuse_to_run(outputs)
        return run_live(teacher, task, objective, outputs)
    if not others:
        return outputs
    further = [
        cache_outputs(computation_of(other, task, cache, directory), examples, epochs=epochs) for other in others
    ]
    return Mean([outputs, *further], teacher.shares, task.info.likelihood)


def run_live(teacher: PreparedTeacher, task: Learnable, objective: Objective, reason: str) -> Signal:
    """Returns the outputs of a teacher that runs in every step for this reason, if the objective reads them."""
    return Live(teacher.running(), task, objective, reason=reason) if objective.needs_teacher else NOTHING


def _cache_or_reason(
    computation: Computation,
    examples: Examples,
    teacher: PreTrainedModel,
    hidden: HiddenLayers | None,
    objective: Objective,
    epochs: float,
    earlier: JsonObject | None,
) -> Cached | str:
    """Returns the cached outputs of one teacher, or the reason why optional ones are not cached."""
    if hidden is None or not computation.cache.is_optional or (earlier is not None and earlier["cached"]):
        return cache_outputs(computation, examples, hidden=hidden, epochs=epochs)
    if earlier is not None:
        return str(earlier["reason"])
    outputs = _cache_if_possible(computation, examples, teacher, hidden, epochs)
    readers = ", ".join(objective.needing("hidden_states"))
    return f"{readers} reads hidden states, and {outputs}" if isinstance(outputs, str) else outputs


def computation_of(teacher: PreparedTeacher, task: Task, cache: OutputCache, directory: Path) -> Computation:
    """Returns the computation of the outputs of one teacher."""
    return Computation(teacher.running, teacher.fingerprint, task, cache, directory, device=teacher.device.type)


def _cache_if_possible(
    computation: Computation, examples: Examples, teacher: PreTrainedModel, hidden: HiddenLayers, epochs: float
) -> Cached | str:
    """Returns the outputs with hidden states, or the reason why they are not cached.

    The decision depends on the options, the data and the free space of the disk, and not on what is cached already,
    except that cached outputs need no space.
    """
    cache, shown = computation.cache, int(epochs * shown_in_epoch(examples))
    outputs = open_outputs(computation, examples, hidden)
    number = outputs.covering(count_visited(examples, epochs))
    if shown < number:
        return f"the training shows {shown:,} examples, fewer than the {number:,} that caching computes"
    shortage = cache.shortage(outputs, number, count_logit_bytes(cache, computation.task, examples, teacher, number))
    if shortage is not None:
        return shortage
    try:
        return fill_outputs(computation, examples, outputs, number)
    except HiddenStatesOverflow as error:
        return error.reason


def _obstacle(
    cache: OutputCache,
    objective: Objective,
    task: Task,
    *,
    hidden_gb: float = 0.0,
    unnamed_layers: Sequence[str] = (),
) -> str | None:
    return cache.obstacle(
        {output: objective.needing(output) for output in objective.needs},
        fixed_inputs=task.info.fixed_inputs,
        by_default=task.info.caches_outputs,
        hidden_gb=hidden_gb,
        needing_all=objective.needing_all_logits() if task.info.classes_are_tokens else (),
        unnamed_layers=unnamed_layers,
    )
