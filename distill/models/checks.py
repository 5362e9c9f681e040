"""Checks that a model can do what a training will ask of it."""

import sys
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.errors import UserError
from distill.losses import Objective
from distill.models.forward import run_model


def check_vocabulary(teacher: PreTrainedModel, student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """One line about who reads which tokens.

    A student that was trained before says with its `vocabulary` what each token was to it.

    Raises:
        UserError: where that differs from the teacher's tokenizer, or a token would be out of a model's reach.
    """
    theirs: Mapping[str, int] = getattr(student, "vocabulary", {})
    ours = tokenizer.get_vocab()
    differing = [token for token, number in ours.items() if theirs.get(token) != number] if theirs else []
    if differing:
        token = min(differing, key=lambda token: ours[token])
        raise UserError(
            f"teacher and student read different tokens: {token!r} is {ours[token]} to the teacher and "
            f"{theirs.get(token, 'nothing')} to the student, {len(differing):,} of {len(ours):,} differ: "
            "take a student with the teacher's tokenizer"
        )
    sizes = {"teacher": teacher.config.vocab_size, "student": student.config.vocab_size}
    for name, size in sizes.items():
        if len(tokenizer) > size:
            raise UserError(f"the tokenizer has {len(tokenizer):,} tokens and the {name} embeds {size:,} only")
    return f"teacher and student read the same {len(tokenizer):,} tokens, by the teacher's tokenizer"


def longest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens that the model can read."""
    # Some families keep positions of their table to themselves, and only their tokenizer knows.
    positions = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    return int(min(positions, tokenizer.model_max_length))


def check_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int, *, who: str) -> None:
    """Raises UserError for examples that may be longer than the model can read."""
    limit = longest(model, tokenizer)
    if max_length > limit:
        raise UserError(f"task.max_length={max_length}, but the {who} reads {limit} tokens at most")


def check_outputs(objective: Objective, **models: PreTrainedModel) -> None:
    """UserError where a term needs what one of the models does not give."""
    for who, model in models.items():
        output = try_out(model, objective.needs)
        for name in sorted(objective.needs):
            if not getattr(output, name, None):
                terms = ", ".join(objective.needing(name))
                raise UserError(
                    f"objective {objective.name}: the term {terms} needs {name}, which the {who} "
                    f"({type(model).__name__}) does not give: set its weight to 0, or take another objective"
                )


def check_head(student: PreTrainedModel, teacher: PreTrainedModel, *, name: str) -> None:
    """Raises UserError for a student whose logits have another shape than the teacher's."""
    expected, shape = list(try_out(teacher).logits.shape), list(try_out(student).logits.shape)
    if shape != expected:
        raise UserError(
            f"student {name} ({type(student).__name__}) has logits of shape {shape} for four tokens, expected "
            f"{expected} as the teacher's: take +student=distilbert"
        )


@torch.no_grad()
def try_out(model: PreTrainedModel, needs: frozenset[str] = frozenset()) -> Any:
    """What the model says of one text of four tokens."""
    tokens = torch.ones((1, 4), dtype=torch.long, device=model.device)
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # Its warning says half of what those say who ask here.
    output = run_model(model, {"input_ids": tokens, "attention_mask": tokens}, needs)
    transformers.logging.set_verbosity(verbosity)
    return output


def count_parameters(model: PreTrainedModel) -> int:
    """All parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
