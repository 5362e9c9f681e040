"""Computes a teacher's outputs for the examples of a split once, and reads them from the cache afterwards."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.console import ProgressMeter, print_line, print_notice
from distill.contracts import Batch, EncodedSplits, Examples, Items, Outputs, Scores, Signal, Task
from distill.data.batching import scored_tokens, scoring_steps
from distill.data.mixing import seen_examples
from distill.errors import NumericalError, UserError
from distill.models.forward import count_outputs, run_encoder, to_device
from distill.storage import mirror
from distill.tasks.scoring import Scoring
from distill.teaching.columns import pack_logits, split_items
from distill.teaching.draws import Draws
from distill.teaching.output_cache import Cached, HiddenLayers, OutputCache, library_versions
from distill.teaching.top_k import TopK
from distill.training.evaluate import Columns, concatenate, score_items


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
        kept: what is cached of logits over a vocabulary; None for all logits.
        only_hidden: whether the model is an encoder without a head, of which only hidden states are cached.
    """

    model: Callable[[], PreTrainedModel]
    fingerprint: str
    task: Task
    cache: OutputCache
    directory: Path
    device: str = "cpu"
    kept: Draws | TopK | None = None
    only_hidden: bool = False


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
    return fill_outputs(
        computation, examples, open_outputs(computation, examples, hidden), count_visited(examples, epochs), title=title
    )


def count_visited(examples: Examples, epochs: float) -> int:
    """Returns the number of examples that these epochs show, each with every one of its inputs."""
    return seen_examples(examples, math.ceil(epochs))


def open_outputs(computation: Computation, examples: Examples, hidden: HiddenLayers | None) -> Cached:
    """Returns those outputs of a split that are cached."""
    cache, kept = computation.cache, computation.kept
    environment = {"device": computation.device, **library_versions()}
    parts: list[object] = [environment, computation.fingerprint, examples.digest, hidden and hidden.key()]
    if kept is not None:
        parts.append(kept.key())
    visits = examples.visits or 1
    outputs = cache.open(
        computation.directory / cache.key(*parts),
        np.tile(examples.tokens, visits),
        hidden=hidden,
        kept=kept,
    )
    for path in outputs.damaged:
        print_notice(f"{path} is damaged: the teacher computes it again")
    return outputs


def fill_outputs(
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
    logit_bytes = 0.0 if computation.only_hidden else count_logit_bytes(cache, task, examples, teacher, number)
    size = cache.make_room(outputs, number, logit_bytes)
    total = sum(last - first for first, last in missing)
    kind = "features" if computation.only_hidden else "outputs"
    print_line(f"Teacher: computes the {kind} for {total:,} examples once, {size} in {outputs.directory}")
    with ProgressMeter(title, total, unit="examples") as meter:
        for first, last in missing:
            columns, states = _compute(
                teacher, computation, examples, outputs.lengths[first:last], first=first, hidden=outputs.hidden,
                done=meter.advance,
            )  # fmt: skip
            _check_finite(columns, states)
            outputs.add(first, columns, states)
    mirror.try_send(outputs.directory)
    outputs.seconds = time.perf_counter() - start
    return outputs


def cached_scores(computation: Computation, scoring: Scoring, examples: EncodedSplits) -> dict[str, Scores]:
    """Returns the teacher's scores on every split except `train`, by example, from its cached logits."""
    scores = {}
    for name, split in examples.items():
        if name == "train" or not isinstance(split, Examples):
            continue
        outputs = cache_outputs(computation, split, title=f"teacher on {name}")
        scores[name] = concatenate(_score_cached(computation.task, scoring, split, outputs)).by_example()
    return scores


def _score_cached(task: Task, scoring: Scoring, split: Examples, outputs: Signal) -> Iterator[tuple[Columns, Columns]]:
    for step in scoring_steps(split.lengths):
        batch = split[step]
        items = task.select(batch)
        yield score_items(scoring, outputs(batch, items), items)


def count_logit_bytes(
    cache: OutputCache, task: Task, examples: Examples, teacher: PreTrainedModel, number: int
) -> float:
    """Returns the size of the logits of `number` examples, in bytes."""
    classes = examples.classes_per_item or count_outputs(teacher)
    item_bytes = cache.bytes_per_item if task.info.classes_are_tokens else 4 * classes
    return number * examples.items_per_example * item_bytes


def _check_finite(columns: Mapping[str, Tensor], states: Tensor | None) -> None:
    if not all(values.isfinite().all() for values in columns.values()):
        raise NumericalError("the teacher's logits are not finite: check its weights, or set teacher.precision=float32")
    if states is not None and not states.isfinite().all():
        raise HiddenStatesOverflow


@torch.inference_mode()
def _compute(
    teacher: PreTrainedModel,
    computation: Computation,
    examples: Examples,
    lengths: np.ndarray,
    *,
    first: int,
    hidden: HiddenLayers | None,
    done: Callable[[int], None],
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Computes the arguments of `Cached.add` for the examples from `first` on, which have these tokens.

    Of an encoder alone there are no columns.

    Returns the columns, and the float16 hidden states `[tokens, H]`, of several layers `[tokens, layers, H]`, or None.
    """
    task, needs = computation.task, frozenset({"hidden_states"} if hidden else ())
    width, layers = (hidden.width, hidden.layers) if hidden else (0, ())
    starts = lengths.cumsum() - lengths
    # Copied into one array, because views would keep the outputs of all batches in memory.
    states = torch.empty(int(lengths.sum()), len(layers), width, dtype=torch.float16)
    per_example, counts = [dict[str, Tensor]() for _ in lengths], torch.ones(len(lengths), dtype=torch.long)
    profile = torch.zeros(teacher.config.vocab_size if computation.kept else 0, device=teacher.device)
    generator = torch.Generator().manual_seed(first)  # The same draws whenever this part is computed.
    padded = examples.lengths[np.arange(first, first + len(lengths)) % len(examples)]
    for micro_batch in scoring_steps(padded, scored_tokens(teacher.device)):
        batch = to_device(examples[[first + index for index in micro_batch]], teacher.device)
        if computation.only_hidden:
            hidden_states = run_encoder(teacher, batch, needs).hidden_states
        else:
            items = task.select(batch)
            outputs = task.run(teacher, batch, items, needs)
            hidden_states = outputs.hidden_states
            columns = _pack_parts(outputs, items, computation, profile, generator)
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
    if computation.kept is not None:
        result |= {"counts": counts, "profile": (profile / counts.sum().clamp(min=1)).half().cpu()}
    return result, states.squeeze(1) if hidden else None


def _pack_parts(
    outputs: Outputs, items: Items, computation: Computation, profile: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Returns the columns of the items of a batch, whose logits over a vocabulary are computed in chunks."""
    parts = [
        _pack(outputs.at(part).logits, part, computation, profile, generator)
        for part in items.parts(outputs.chunk_size)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _pack(
    logits: Tensor | None, items: Items, computation: Computation, profile: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Returns the columns of the items of a batch; over a vocabulary their log-probabilities are added to `profile`."""
    assert logits is not None
    if computation.kept is None:
        return pack_logits(logits.float().cpu(), items.valid)
    log_probs = logits.float().log_softmax(dim=-1)
    profile += log_probs.sum(dim=0)
    return computation.kept.pack(log_probs, generator)


def _token_states(hidden_states: Sequence[Tensor] | None, batch: Batch, hidden: HiddenLayers) -> Tensor:
    """Returns the hidden states of all tokens except padding, `[tokens, layers, H]` (float16) on the CPU."""
    assert hidden_states is not None
    # Counted from the end, because the last one is that of the last layer in every family.
    chosen = [hidden_states[layer - hidden.depth - 1].half() for layer in hidden.layers]
    mask = batch["attention_mask"].bool()
    return torch.stack([states[mask] for states in chosen], dim=1).cpu()
