"""What a teacher says about the examples of a split, asked once and kept."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from distill.batches import SCORED_TOKENS, Examples, scoring_steps
from distill.errors import NumericalError, UserError
from distill.losses import Objective
from distill.module import moved, run_model
from distill.progress import Meter, notice, say
from distill.tasks import SequenceTask

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


def check_cache(cache: Any, objective: Objective, task: SequenceTask) -> None:
    """UserError where `teacher.cache.enabled=true` cannot be."""
    _why_not_kept(cache, objective, task, hidden_gb=0.0)


def check_size(
    objective: Objective, task: SequenceTask, teacher: PreTrainedModel, examples: Examples, cache: Any
) -> None:
    """UserError where the outputs for the training would be kept and take more than allowed."""
    if objective.needs_teacher and _why_not_kept(cache, objective, task, hidden_gb=0.0) is None:
        cache.check_size(
            examples.lengths, classes=teacher.config.num_labels, hidden_size=_kept_width(objective, teacher)
        )


def ask_for_training(
    teacher: Any, objective: Objective, task: SequenceTask, examples: Examples, *, cache: Any, directory: Path
) -> tuple[Answers | None, str | None]:
    """The teacher's outputs for the training; or None, and why it is asked in every step instead."""
    if not objective.needs_teacher:
        return None, None
    hidden_gb = cache.size_gb(examples.lengths, classes=0, hidden_size=teacher.model.config.hidden_size)
    why = _why_not_kept(cache, objective, task, hidden_gb=hidden_gb)
    if why is not None:
        return None, why
    found = ask_once(
        teacher.answering, examples, cache=cache, directory=directory, fingerprint=teacher.fingerprint,
        hidden_size=_kept_width(objective, teacher.model),
    )  # fmt: skip
    return found, None


def _why_not_kept(cache: Any, objective: Objective, task: SequenceTask, *, hidden_gb: float) -> str | None:
    needs = {output: objective.needing(output) for output in objective.needs}
    why: str | None = cache.obstacle(needs, fixed_inputs=task.fixed_inputs, hidden_gb=hidden_gb)
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
    title: str = "teacher",
) -> Answers:
    """The outputs for all examples of a split, from the cache or from the teacher, which is loaded only if asked.

    Args:
        cache: the `teacher.cache` of the configuration.
        directory: of all kept outputs; those of this split lie below, under a digest of all they depend on.
        fingerprint: of the teacher: its weights, the order of its labels, its precision.
        hidden_size: keep the last hidden states too, which are so wide.

    Raises:
        UserError: where there is no room for them.
    """
    parts = json.dumps([cache.layout(), fingerprint, examples.digest, hidden_size])
    kept = cache.open(
        directory / hashlib.sha256(parts.encode()).hexdigest()[:20], examples.lengths, hidden_size=hidden_size
    )
    for path in kept.damaged:
        notice(f"{path} is damaged: the teacher is asked again")
    missing = kept.missing()
    if not missing:
        return Answers(kept, 0.0)
    began = time.perf_counter()
    teacher = model()
    size = cache.make_room(kept, teacher.config.num_labels)
    total = sum(last - first for first, last in missing)
    say(f"Teacher: answers {total:,} examples once, {size} in {kept.directory}")
    with Meter(title, total, unit="examples") as meter:
        for first, last in missing:
            said = _ask(teacher, examples, first, last, hidden=hidden_size is not None, done=meter.advance)
            _check_finite(said)
            kept.add(first, **said)
    return Answers(kept, time.perf_counter() - began)


def _check_finite(said: dict[str, Any]) -> None:
    if not said["logits"].isfinite().all():
        raise NumericalError("the teacher's logits are not finite: check its weights, or set teacher.precision=float32")
    if said["hidden"] is not None and not said["hidden"].isfinite().all():
        raise UserError(
            f"the teacher's hidden states pass {torch.finfo(torch.float16).max:,.0f}, the most that float16 holds: "
            "set teacher.cache.hidden=false"
        )


@torch.inference_mode()
def _ask(
    teacher: PreTrainedModel, examples: Examples, first: int, last: int, *, hidden: bool, done: Callable[[int], None]
) -> dict[str, Any]:
    """`logits [n, C]` and `hidden [tokens, H]` (float16) of the examples from first to last, in their order."""
    needs = frozenset({"hidden_states"}) if hidden else frozenset[str]()
    lengths = examples.lengths[first:last]
    starts = lengths.cumsum() - lengths
    width = teacher.config.hidden_size if hidden else 0
    logits = torch.empty(last - first, teacher.config.num_labels)
    states = torch.empty(int(lengths.sum()), width, dtype=torch.float16)
    on_cpu = teacher.device.type == "cpu"
    for micro_batch in scoring_steps(lengths, SCORED_TOKENS if on_cpu else ACCELERATOR_TOKENS):
        batch = moved(examples[[first + index for index in micro_batch]], teacher.device)
        output = run_model(teacher, batch, needs)
        logits[micro_batch] = output.logits.float().cpu()
        if hidden:
            last_states, mask = output.hidden_states[-1].half().cpu(), batch["attention_mask"].bool().cpu()
            for row, index in enumerate(micro_batch):
                states[starts[index] : starts[index] + lengths[index]] = last_states[row, mask[row]]
        done(len(micro_batch))
    return {"logits": logits, "hidden": states if hidden else None}
