"""Computes the teacher's outputs for the examples of a split once and reads them from the cache afterwards."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.console import ProgressMeter, print_line, print_notice
from distill.contracts import Batch, EncodedSplits, Examples, Items, Outputs, Scores, Signal, Stream, Task
from distill.data.batching import scored_tokens, scoring_steps
from distill.data.mixing import MixedExamples, labelled_only, seen_examples, shown_in_epoch
from distill.errors import NumericalError, UserError
from distill.losses import Objective
from distill.models.forward import count_outputs, run_encoder, to_device
from distill.storage import mirror
from distill.storage.files import JsonObject
from distill.teaching.output_cache import (
    Cached,
    HiddenLayers,
    OutputCache,
    library_versions,
    pack_logits,
    split_items,
)
from distill.teaching.signal import Live, Mean
from distill.teaching.top_k import take_top_k
from distill.training.evaluate import Columns, concatenate, score_items
from distill.training.module import NOTHING


class HiddenStatesOverflow(UserError):
    """Hidden states too large for float16."""

    reason = f"the teacher's hidden states pass {torch.finfo(torch.float16).max:,.0f}, the most that float16 holds"

    def __init__(self) -> None:
        super().__init__(f"{self.reason}: set teacher.cache.hidden=false")


@dataclass(frozen=True)
class Computation:
    """Everything that the outputs of a teacher depend on except the examples.

    Args:
        model: loads the teacher; called only if outputs are missing.
        fingerprint: digest of the teacher's weights, labels and precision.
        task: runs the model.
        cache: the rules for caching.
        directory: directory of all cached outputs. Those of a split are in a subdirectory named by a digest.
        device: type of the device of the forward passes. The digest covers it, and the versions of the libraries.
        only_hidden: whether the model is an encoder without a head, of which only hidden states are cached.
    """

    model: Callable[[], PreTrainedModel]
    fingerprint: str
    task: Task
    cache: OutputCache
    directory: Path
    device: str = "cpu"
    only_hidden: bool = False


class Teacher(Protocol):
    """A prepared teacher, whose model may have to be loaded."""

    @property
    def model(self) -> PreTrainedModel:
        """Returns the float32 model."""
        ...

    @property
    def fingerprint(self) -> str:
        """Returns a digest of everything that its outputs depend on except the examples and the device."""
        ...

    @property
    def device(self) -> torch.device:
        """Returns the device of its forward passes."""
        ...

    @property
    def members(self) -> "Sequence[Teacher]":
        """Returns the teachers of an ensemble, else the teacher itself."""
        ...

    @property
    def shares(self) -> tuple[float, ...]:
        """Returns the weight of each of them."""
        ...

    def running(self) -> PreTrainedModel:
        """Returns the model on the device and in the precision of its forward passes."""
        ...


def check_cache(cache: OutputCache, objective: Objective, task: Task, *, is_ensemble: bool = False) -> None:
    """Raises UserError if the outputs cannot be cached and must be: for an ensemble, or by `teacher.cache.enabled`."""
    reason = _obstacle(cache, objective, task)
    if is_ensemble and objective.needs_teacher:
        _refuse_to_run(reason)


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
            lengths, logit_bytes=_logit_bytes(cache, task, examples, teacher, len(lengths)),
            hidden=hidden,
        )  # fmt: skip


def hidden_layers(objective: Objective, *, student: PreTrainedModel, teacher: PreTrainedModel) -> HiddenLayers | None:
    """Returns the teacher's hidden states that the objective reads, None without any."""
    depth = int(teacher.config.num_hidden_layers)
    layers = objective.teacher_layers(int(student.config.num_hidden_layers), depth)
    return HiddenLayers(int(teacher.config.hidden_size), depth, layers) if layers else None


def teacher_logits(
    teacher: Teacher, task: Task, examples: Examples | Stream, signal: Signal, *, most: int
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
    teacher: Teacher, task: Task, examples: Examples | Stream, signal: Signal, *, most: int
) -> float | None:
    """Returns the mean of the teacher's largest probability on the texts that only it labels.

    Of labels with a sigmoid each, it is the mean of the probabilities of what is likelier, the label or its absence.

    Args:
        most: number of texts, which are evenly spaced among those of the first epoch.

    Returns:
        None without such texts, and for outputs that are no probabilities.
    """
    if not isinstance(examples, MixedExamples) or task.likelihood not in ("softmax", "sigmoid"):
        return None
    drawn = np.arange(len(examples.labelled), examples.seen(1))
    if not len(drawn):
        return None
    logits = torch.cat(_logits_of(drawn, teacher, task, examples, signal, most=most))
    if task.likelihood == "softmax":
        return float(logits.softmax(dim=-1).amax(dim=-1).mean())
    return float(logits.abs().sigmoid().mean())


@torch.no_grad()
def _logits_of(
    indices: np.ndarray, teacher: Teacher, task: Task, examples: Examples, signal: Signal, *, most: int
) -> list[Tensor]:
    """Returns the teacher's logits on at most so many of these examples, as `teacher_logits`."""
    chosen = indices[np.linspace(0, len(indices) - 1, min(most, len(indices))).astype(int)]
    logits, is_cached = [], signal.bytes > 0
    for rows in scoring_steps(examples.lengths[chosen]):
        batch = to_device(examples[chosen[rows].tolist()], torch.device("cpu") if is_cached else teacher.device)
        items = task.select(batch)
        outputs = signal(batch, items) if is_cached else task.run(teacher.running(), batch, items, frozenset())
        logits.append(outputs.at(items).logits.float().cpu())
    return logits


def earlier_decision(record: JsonObject, checkpoint: Path) -> JsonObject | None:
    """Returns the `teacher_outputs` of run.json if a training continues from `checkpoint`, None if it begins."""
    decision: JsonObject | None = record["teacher_outputs"] if checkpoint.is_file() else None
    return decision


def outputs_for_training(
    teacher: Teacher,
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
    reason = _obstacle(
        cache, objective, task, hidden_gb=cache.size_gb(examples.tokens, logit_bytes=0, hidden=hidden),
        unnamed_layers=objective.needing_unnamed_layers(
            student.config.num_hidden_layers, first.model.config.num_hidden_layers
        ),
    )  # fmt: skip
    outputs = reason or _cache_or_reason(
        computation_of(first, task, cache, directory), examples, first.model, hidden, objective, epochs, earlier
    )
    if isinstance(outputs, str):
        if others:
            _refuse_to_run(outputs)
        return run_live(teacher, task, objective, outputs)
    if not others:
        return outputs
    further = [
        cache_outputs(computation_of(other, task, cache, directory), examples, epochs=epochs) for other in others
    ]
    return Mean([outputs, *further], teacher.shares, task.likelihood)


def run_live(teacher: Teacher, task: Task, objective: Objective, reason: str) -> Signal:
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


def computation_of(teacher: Teacher, task: Task, cache: OutputCache, directory: Path) -> Computation:
    """Returns the computation of the outputs of one teacher."""
    return Computation(teacher.running, teacher.fingerprint, task, cache, directory, device=teacher.device.type)


def cache_outputs(
    computation: Computation,
    examples: Examples,
    *,
    hidden: HiddenLayers | None = None,
    title: str = "teacher",
    epochs: float = 1.0,
) -> Cached:
    """Returns the outputs for all examples of a split, and computes those that are not cached.

    Args:
        hidden: the hidden states that are cached too; None caches only logits.
        title: title of the progress bar.
        epochs: number of epochs to compute outputs for, if the inputs of an example differ between epochs.

    Raises:
        UserError: if there is no room for them.
        NumericalError: if logits are not finite.
    """
    return _fill(computation, examples, _open(computation, examples, hidden), _visited(examples, epochs), title=title)


def _cache_if_possible(
    computation: Computation, examples: Examples, teacher: PreTrainedModel, hidden: HiddenLayers, epochs: float
) -> Cached | str:
    """Returns the outputs with hidden states, or the reason why they are not cached.

    The decision depends on the options, the data and the free space of the disk, and not on what is cached already,
    except that cached outputs need no space.
    """
    cache, shown = computation.cache, int(epochs * shown_in_epoch(examples))
    outputs = _open(computation, examples, hidden)
    number = outputs.covering(_visited(examples, epochs))
    if shown < number:
        return f"the training shows {shown:,} examples, fewer than the {number:,} that caching computes"
    shortage = cache.shortage(outputs, number, _logit_bytes(cache, computation.task, examples, teacher, number))
    if shortage is not None:
        return shortage
    try:
        return _fill(computation, examples, outputs, number)
    except HiddenStatesOverflow as error:
        return error.reason


def _visited(examples: Examples, epochs: float) -> int:
    """Returns the number of examples that these epochs show, each with every one of its inputs."""
    return seen_examples(examples, math.ceil(epochs))


def _open(computation: Computation, examples: Examples, hidden: HiddenLayers | None) -> Cached:
    """Returns those outputs of a split that are cached."""
    cache, task = computation.cache, computation.task
    environment = {"device": computation.device, **library_versions()}
    parts = [environment, computation.fingerprint, examples.digest, hidden and hidden.key()]
    if task.over_vocabulary:
        parts.append(cache.top_k)
    visits = examples.visits or 1
    outputs = cache.open(
        computation.directory / cache.key(*parts),
        np.tile(examples.tokens, visits),
        hidden=hidden,
        top_k=task.over_vocabulary,
    )
    for path in outputs.damaged:
        print_notice(f"{path} is damaged: the teacher computes it again")
    return outputs


def _fill(
    computation: Computation, examples: Examples, outputs: Cached, number: int, *, title: str = "teacher"
) -> Cached:
    """Returns the outputs once those of the first `number` that are missing are computed, in whole shards."""
    cache, task = computation.cache, computation.task
    missing = outputs.missing(number)
    if not missing:
        return outputs
    number = outputs.covering(number)
    start = time.perf_counter()
    teacher = computation.model()
    logit_bytes = 0.0 if computation.only_hidden else _logit_bytes(cache, task, examples, teacher, number)
    size = cache.make_room(outputs, number, logit_bytes)
    total = sum(last - first for first, last in missing)
    kind = "features" if computation.only_hidden else "outputs"
    print_line(f"Teacher: computes the {kind} for {total:,} examples once, {size} in {outputs.directory}")
    with ProgressMeter(title, total, unit="examples") as meter:
        for first, last in missing:
            columns, states = _compute(
                teacher, task, examples, cache, outputs.lengths[first:last], first=first,
                hidden=outputs.hidden, only_hidden=computation.only_hidden, done=meter.advance,
            )  # fmt: skip
            _check_finite(columns, states)
            outputs.add(first, columns, states)
    mirror.try_send(outputs.directory)
    outputs.seconds = time.perf_counter() - start
    return outputs


def cached_scores(computation: Computation, examples: EncodedSplits) -> dict[str, Scores]:
    """Returns the teacher's scores on every split except `train`, by example, from its cached logits."""
    scores = {}
    for name, split in examples.items():
        if name == "train" or not isinstance(split, Examples):
            continue
        outputs = cache_outputs(computation, split, title=f"teacher on {name}")
        scores[name] = concatenate(_score_cached(computation.task, split, outputs)).by_example()
    return scores


def _score_cached(task: Task, split: Examples, outputs: Signal) -> Iterator[tuple[Columns, Columns]]:
    for step in scoring_steps(split.lengths):
        batch = split[step]
        items = task.select(batch)
        logits = outputs(batch, items).at(items).logits
        yield score_items(task, Outputs(logits=logits), items)


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
        fixed_inputs=task.fixed_inputs,
        hidden_gb=hidden_gb,
        needing_all=objective.needing_all_logits() if task.over_vocabulary else (),
        unnamed_layers=unnamed_layers,
    )


def _logit_bytes(cache: OutputCache, task: Task, examples: Examples, teacher: PreTrainedModel, number: int) -> float:
    """Returns the size of the logits of `number` examples, in bytes."""
    classes = examples.classes_per_item or count_outputs(teacher)
    item_bytes = cache.item_bytes(classes, over_vocabulary=task.over_vocabulary)
    return number * examples.items_per_example * item_bytes


def _check_finite(columns: Mapping[str, Tensor], states: Tensor | None) -> None:
    if not all(values.isfinite().all() for values in columns.values()):
        raise NumericalError("the teacher's logits are not finite: check its weights, or set teacher.precision=float32")
    if states is not None and not states.isfinite().all():
        raise HiddenStatesOverflow


@torch.inference_mode()
def _compute(
    teacher: PreTrainedModel,
    task: Task,
    examples: Examples,
    cache: OutputCache,
    lengths: np.ndarray,
    *,
    first: int,
    hidden: HiddenLayers | None,
    only_hidden: bool,
    done: Callable[[int], None],
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Computes the arguments of `Cached.add` for the examples from `first` on, which have these tokens.

    With `only_hidden` there are no columns, and `teacher` is an encoder.

    Returns the columns, and the float16 hidden states `[tokens, H]`, of several layers `[tokens, layers, H]`, or None.
    """
    needs = frozenset({"hidden_states"} if hidden else ())
    width, layers = (hidden.width, hidden.layers) if hidden else (0, ())
    starts = lengths.cumsum() - lengths
    # Copied into one array, because views would keep the outputs of all batches in memory.
    states = torch.empty(int(lengths.sum()), len(layers), width, dtype=torch.float16)
    per_example, counts = [dict[str, Tensor]() for _ in lengths], torch.ones(len(lengths), dtype=torch.long)
    profile = torch.zeros(teacher.config.vocab_size if task.over_vocabulary else 0, device=teacher.device)
    padded = examples.lengths[np.arange(first, first + len(lengths)) % len(examples)]
    for micro_batch in scoring_steps(padded, scored_tokens(teacher.device)):
        batch = to_device(examples[[first + index for index in micro_batch]], teacher.device)
        if only_hidden:
            hidden_states = run_encoder(teacher, batch, needs).hidden_states
        else:
            items = task.select(batch)
            outputs = task.run(teacher, batch, items, needs)
            hidden_states = outputs.whole().hidden_states
            columns = _pack(outputs.at(items).logits, items, task, cache, profile)
            counts[micro_batch] = torch.bincount(items.row, minlength=len(micro_batch)).cpu()
            split = split_items(columns, counts[micro_batch])
            for row, index in enumerate(micro_batch):
                per_example[index] = {name: values[row] for name, values in split.items()}
        if hidden:
            by_example = _token_states(hidden_states, batch, hidden).split(lengths[micro_batch].tolist())
            for index, tokens in zip(micro_batch, by_example, strict=True):
                states[starts[index] : starts[index] + lengths[index]] = tokens
        done(len(micro_batch))
    result = {name: torch.cat([columns[name] for columns in per_example]) for name in per_example[0]}
    if not bool((counts == 1).all()):
        result["counts"] = counts
    if task.over_vocabulary:
        result |= {"counts": counts, "profile": (profile / counts.sum().clamp(min=1)).half().cpu()}
    return result, states.squeeze(1) if hidden else None


def _pack(logits: Tensor | None, items: Items, task: Task, cache: OutputCache, profile: Tensor) -> dict[str, Tensor]:
    """Returns the columns of the items of a batch; over a vocabulary their log-probabilities are added to `profile`."""
    assert logits is not None
    if not task.over_vocabulary:
        return pack_logits(logits.float().cpu(), items.valid)
    log_probs = logits.float().log_softmax(dim=-1)
    profile += log_probs.sum(dim=0)
    return take_top_k(log_probs, cache.top_k)


def _token_states(hidden_states: Sequence[Tensor] | None, batch: Batch, hidden: HiddenLayers) -> Tensor:
    """Returns the hidden states of all tokens except padding, `[tokens, layers, H]` (float16) on the CPU."""
    assert hidden_states is not None
    # Counted from the end, because the last one is that of the last layer in every family.
    chosen = [hidden_states[layer - hidden.depth - 1].half() for layer in hidden.layers]
    mask = batch["attention_mask"].bool()
    return torch.stack([states[mask] for states in chosen], dim=1).cpu()
