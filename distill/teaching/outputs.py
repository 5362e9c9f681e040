"""What a teacher says about the examples of a split, asked once and kept."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.console import Meter, notice, say
from distill.data.batching import SCORED_TOKENS, Examples, scoring_steps
from distill.errors import NumericalError, UserError
from distill.losses import Objective
from distill.models.forward import moved, run_encoder, run_head, run_model
from distill.tasks import Task

ACCELERATOR_TOKENS = 16_384  # In a forward pass of the teacher on a GPU.


@dataclass(frozen=True)
class Answers:
    """Outputs of a teacher for one split, and what it took to have them: nothing in a run that finds them there.

    `kept` stands in for the teacher: `outputs(batch)` is what it would have said, `logits()` that of all examples.
    """

    kept: Any
    seconds: float

    def record(self) -> dict[str, Any]:
        """The `training.teacher_cache` of run.json."""
        return {"hit": self.seconds == 0, "bytes": self.kept.bytes()}


def check_cache(cache: Any, objective: Objective, task: Task) -> None:
    """UserError where `teacher.cache.enabled=true` cannot be."""
    _why_not_kept(cache, objective, task, hidden_gb=0.0)


def check_size(objective: Objective, task: Task, teacher: PreTrainedModel, examples: Any, cache: Any) -> None:
    """UserError where the outputs for the training would be kept and take more than allowed."""
    if objective.needs_teacher and _why_not_kept(cache, objective, task, hidden_gb=0.0) is None:
        cache.check_size(
            examples.lengths, logit_bytes=_logit_bytes(cache, examples, teacher, len(examples.lengths)),
            hidden_size=_kept_width(objective, teacher),
        )  # fmt: skip


def ask_for_training(
    teacher: Any,
    objective: Objective,
    task: Task,
    examples: Any,
    *,
    cache: Any,
    directory: Path,
    epochs: int = 1,
) -> tuple[Answers | None, str | None]:
    """The teacher's outputs for the training; or None, and why it is asked in every step instead.

    Of `examples` that are shown in several ways only those of so many `epochs` are asked for; None is a stream.
    """
    if not objective.needs_teacher:
        return None, None
    if examples is None:
        return None, "a stream shows a text once only"
    hidden_gb = cache.size_gb(examples.lengths, logit_bytes=0, hidden_size=teacher.model.config.hidden_size)
    why = _why_not_kept(cache, objective, task, hidden_gb=hidden_gb)
    if why is not None:
        return None, why
    found = ask_once(
        teacher.answering, examples, cache=cache, directory=directory, fingerprint=teacher.fingerprint,
        hidden_size=_kept_width(objective, teacher.model), epochs=epochs,
        vocabulary=teacher.model.config.vocab_size if task.answer == "vocabulary" else None,
    )  # fmt: skip
    return found, None


def _logit_bytes(cache: Any, examples: Any, teacher: PreTrainedModel, number: int) -> float:
    """What the logits of so many examples take, of which a vocabulary's are shortened."""
    of_one = teacher.config.num_labels * 4
    if examples.task.answer == "vocabulary":
        of_one = examples.lengths.mean() * examples.task.mask.probability * cache.item_bytes()
    return number * float(of_one)


def _why_not_kept(cache: Any, objective: Objective, task: Task, *, hidden_gb: float) -> str | None:
    needs = {output: objective.needing(output) for output in objective.needs}
    why: str | None = cache.obstacle(
        needs, fixed_inputs=task.fixed_inputs, hidden_gb=hidden_gb,
        wanting_all=objective.wanting_all_logits() if task.answer == "vocabulary" else (),
    )  # fmt: skip
    return why


def _kept_width(objective: Objective, teacher: PreTrainedModel) -> int | None:
    return int(teacher.config.hidden_size) if "hidden_states" in objective.needs else None


def ask_once(
    model: Callable[[], PreTrainedModel],
    examples: Examples,
    *,
    cache: Any,
    directory: Path,
    fingerprint: str,
    hidden_size: int | None = None,
    vocabulary: int | None = None,
    title: str = "teacher",
    epochs: int = 1,
) -> Answers:
    """The outputs for all examples of a split, from the cache or from the teacher, which is loaded only if asked.

    Args:
        cache: the `teacher.cache` of the configuration.
        directory: of all kept outputs; those of this split lie below, under a digest of all they depend on.
        fingerprint: of the teacher: its weights, the order of its labels, its precision.
        hidden_size: keep the last hidden states too, which are so wide.
        vocabulary: the logits are of so many tokens, and are shortened.
        epochs: of examples that are shown in several ways, one in each epoch, ask about those that come in so many.

    Raises:
        UserError: where there is no room for them.
    """
    parts = [cache.layout(), fingerprint, examples.digest, hidden_size]
    if vocabulary is not None:
        parts.append(cache.top_k)
    visits = examples.visits or 1
    kept = cache.open(
        directory / hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20], np.tile(examples.lengths, visits),
        hidden_size=hidden_size, vocabulary=vocabulary,
    )  # fmt: skip
    for path in kept.damaged:
        notice(f"{path} is damaged: the teacher is asked again")
    asked = min(epochs, visits) * len(examples)
    missing = kept.missing(asked)
    if not missing:
        return Answers(kept, 0.0)
    began = time.perf_counter()
    teacher = model()
    size = cache.make_room(kept, asked, _logit_bytes(cache, examples, teacher, asked))
    total = sum(last - first for first, last in missing)
    say(f"Teacher: answers {total:,} examples once, {size} in {kept.directory}")
    with Meter(title, total, unit="examples") as meter:
        for first, last in missing:
            said, states = _ask(
                teacher, examples, cache, kept.lengths[first:last], first=first, hidden=hidden_size is not None,
                vocabulary=vocabulary is not None, done=meter.advance,
            )  # fmt: skip
            _check_finite(said, states)
            kept.add(first, said, states)
    return Answers(kept, time.perf_counter() - began)


def _check_finite(said: Mapping[str, Tensor], states: Tensor | None) -> None:
    if not all(values.isfinite().all() for values in said.values()):
        raise NumericalError("the teacher's logits are not finite: check its weights, or set teacher.precision=float32")
    if states is not None and not states.isfinite().all():
        raise UserError(
            f"the teacher's hidden states pass {torch.finfo(torch.float16).max:,.0f}, the most that float16 holds: "
            "set teacher.cache.hidden=false"
        )


@torch.inference_mode()
def _ask(
    teacher: PreTrainedModel,
    examples: Any,
    cache: Any,
    lengths: np.ndarray,
    *,
    first: int,
    hidden: bool,
    vocabulary: bool,
    done: Callable[[int], None],
) -> tuple[dict[str, Tensor], Tensor | None]:
    """What to keep of the logits of the examples from `first` on, of these lengths, in their order.

    And `hidden [tokens, H]` (float16), all tokens of these examples one after the other.
    """
    needs = frozenset({"hidden_states"}) if hidden else frozenset[str]()
    starts = lengths.cumsum() - lengths
    # Written into one array: views of every batch would keep all of them.
    states = torch.empty(int(lengths.sum()), teacher.config.hidden_size if hidden else 0, dtype=torch.float16)
    logits = torch.empty(0 if vocabulary else len(lengths), teacher.config.num_labels)
    items: list[dict[str, Tensor]] = [{} for _ in lengths]
    profile = torch.zeros(teacher.config.vocab_size if vocabulary else 0, device=teacher.device)
    on_cpu = teacher.device.type == "cpu"
    for micro_batch in scoring_steps(lengths, SCORED_TOKENS if on_cpu else ACCELERATOR_TOKENS):
        batch = moved(examples[[first + index for index in micro_batch]], teacher.device)
        if vocabulary:
            output = run_encoder(teacher, batch, needs)
            head = run_head(teacher, output, output.last_hidden_state[batch["items"]])
            log_probs = head.logits[0].float().log_softmax(dim=-1)
            profile += log_probs.sum(dim=0)
            counts = batch["items"].sum(dim=1).cpu()
            of_each = {name: values.split(counts.tolist()) for name, values in cache.shortened(log_probs).items()}
            for row, index in enumerate(micro_batch):
                items[index] = {name: values[row] for name, values in of_each.items()} | {
                    "counts": counts[row : row + 1]
                }
        else:
            output = run_model(teacher, batch, needs)
            logits[micro_batch] = output.logits.float().cpu()
        if hidden:
            last_states, mask = output.hidden_states[-1].half().cpu(), batch["attention_mask"].bool().cpu()
            for row, index in enumerate(micro_batch):
                states[starts[index] : starts[index] + lengths[index]] = last_states[row, mask[row]]
        done(len(micro_batch))
    found = {"logits": logits}
    if vocabulary:
        found = {name: torch.cat([of_one[name] for of_one in items]) for name in items[0]}
        found["profile"] = (profile / found["counts"].sum().clamp(min=1)).half().cpu()
    return found, states if hidden else None
