"""Losses and scores over a vocabulary: logits at the tokens that are read, some at a time, and never of all at once."""

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from distill.losses import Objective
from distill.models.forward import ENCODE, run_encoder, run_head

LOGITS_AT_ONCE = 2**25  # Numbers: 128 MiB in float32, about 1,100 tokens of BERT's vocabulary.
# Runs a function of the teacher and of these arguments; None where there is no teacher.
Ask = Callable[..., Any]


def totals(student: PreTrainedModel, objective: Objective, batch: Mapping[str, Tensor], ask: Ask) -> Tensor:
    """Each term's sum `[terms]` over a batch whose items are tokens, `items [B, L]`.

    The heads see the tokens whose logits some term reads. Where those are many, they come in parts, whose logits are
    forgotten and computed once more for the gradient: what is held does not grow with the batch.
    """
    told = ask(run_encoder, batch, objective.needs)
    said = _encoded(student, batch, objective.needs)
    read = objective.reads(batch)
    states = said.last_hidden_state[read]  # [n, H]
    told_states = told.last_hidden_state[read] if hasattr(told, "last_hidden_state") else None
    rows = {name: batch[name][read] for name in ("items", "labels", "attention_mask")}

    def of_part(states: Tensor, first: int, last: int) -> Tensor:
        part = {name: values[first:last].unsqueeze(0) for name, values in rows.items()}
        teacher_output = None
        if told_states is not None:
            teacher_output = ask(run_head, told, told_states[first:last])
        elif told is not None:
            teacher_output = told.part(first, last)
        return objective.totals(run_head(student, said, states), teacher_output, part, of_logits=True)

    found = _of_the_rest(student, objective, batch, said, told)
    at_once = max(1, LOGITS_AT_ONCE // student.config.vocab_size)
    if len(states) <= at_once:
        return found + of_part(states, 0, len(states))
    for first in range(0, len(states), at_once):
        last = min(len(states), first + at_once)
        found = found + checkpoint(
            of_part, states[first:last], first, last, use_reentrant=False, preserve_rng_state=False
        )
    return found


def _of_the_rest(
    student: PreTrainedModel, objective: Objective, batch: Mapping[str, Tensor], said: Any, told: Any
) -> Tensor:
    """The sums of the terms that read no logits of tokens."""
    outputs = SimpleNamespace(hidden_states=getattr(said, "hidden_states", None))
    if "pair_labels" in batch:
        # The head of the segments reads the pooled output, whatever tokens there are.
        output = run_head(student, said, said.last_hidden_state[:, 0])
        outputs.seq_relationship_logits = output.seq_relationship_logits
    return objective.totals(outputs, told, batch, of_logits=False)


def logits_at_items(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> Tensor:
    """Logits `[n, V]` of the n items of a batch, float32."""
    said = _encoded(model, batch)
    found: Tensor = run_head(model, said, said.last_hidden_state[batch["items"]]).logits[0]
    return found.float()


def _encoded(model: PreTrainedModel, batch: Mapping[str, Tensor], needs: frozenset[str] = frozenset()) -> Any:
    """What the encoder says; one whose weights are spread over processes has its own way to gather them for that."""
    encode: Callable[..., Any] = getattr(model, ENCODE, partial(run_encoder, model))
    return encode(batch, needs)


def token_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Of `logits [n, V]` and the tokens that they should name `[n]`: cross-entropy and whether it did, `[n, 2]`."""
    return torch.stack(
        [F.cross_entropy(logits.float(), labels, reduction="none"), (logits.argmax(dim=-1) == labels).float()], dim=-1
    )
