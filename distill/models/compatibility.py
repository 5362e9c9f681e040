"""Checks that teacher and student suit a training."""

import sys
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import AttentionVectors, Examples, Likelihood, Task, TaskInfo
from distill.core.errors import UserError
from distill.losses import Objective
from distill.losses.term import EncoderSize
from distill.models.architectures.modeling_chunked import ChunkedPreTrainedModel
from distill.models.forward import NAME, attention_width, count_heads, fills_targets, has_plain_scores, try_model
from distill.models.surgery.layers import count_decoder_layers, position_tables, read_positions, reserved_rows
from distill.models.surgery.long_texts import attends_locally
from distill.models.vectors import vector_width

_EXAMPLES_PER_CALL = 512


def check_vocabulary(teacher: PreTrainedModel, student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Checks that teacher and student have the same vocabulary, and returns the result in one line.

    A student trained before has its `vocabulary` as an attribute.

    Raises:
        UserError: if it differs from the teacher's, or a model has fewer embeddings than the tokenizer has tokens.
    """
    student_ids: Mapping[str, int] = getattr(student, "vocabulary", {})
    teacher_ids = tokenizer.get_vocab()
    differing = [token for token, index in teacher_ids.items() if student_ids.get(token) != index]
    if student_ids and differing:
        token = min(differing, key=lambda token: teacher_ids[token])
        raise UserError(
            f"teacher and student read different tokens: {token!r} has the id {teacher_ids[token]} for the "
            f"teacher and {student_ids.get(token, 'none')} for the student, {len(differing):,} of {len(teacher_ids):,} "
            "differ: use a student with the teacher's tokenizer"
        )
    sizes = {"teacher": teacher.config.vocab_size, "student": student.config.vocab_size}
    for name, size in sizes.items():
        if len(tokenizer) > size:
            raise UserError(f"the tokenizer has {len(tokenizer):,} tokens and the {name} embeds {size:,} only")
    return f"teacher and student read the same {len(tokenizer):,} tokens, by the teacher's tokenizer"


def match_spare_rows(
    student: PreTrainedModel, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> str | None:
    """Gives a student over the vocabulary as many rows as the teacher has, so that both have the same logits.

    Either may have more rows than the tokenizer has tokens, such as a multiple of 64. Nothing reads these.

    Returns:
        The change in words, None without one.
    """
    rows, expected = student.config.vocab_size, teacher.config.vocab_size
    if rows != expected and min(rows, expected) >= len(tokenizer):
        student.resize_token_embeddings(expected, mean_resizing=False)
        return (
            f"the student has {rows:,} rows of embeddings and the teacher {expected:,}, for {len(tokenizer):,} tokens: "
            "the student gets as many as the teacher"
        )
    return None


def longest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, writes: bool = False) -> int:
    """Returns the largest number of tokens that the model can read, or that its decoder `writes`."""
    if isinstance(model, ChunkedPreTrainedModel):
        return int(tokenizer.model_max_length)
    positions = read_positions(model.config, writes=writes) or sys.maxsize
    for table in position_tables(model).values():
        positions = min(positions, table.num_embeddings - reserved_rows(table))
    return int(min(positions, tokenizer.model_max_length))


def check_length(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int, *, who: str, lengthens: bool = False
) -> None:
    """Raises UserError if an example may be longer than the model can read.

    Args:
        lengthens: whether the model has an option `positions`, as in `LongTexts`.
    """
    limit = longest(model, tokenizer)
    if max_length > limit:
        can_repeat = lengthens and position_tables(model)
        more = f", or {who}.positions={max_length}, which repeats positions" if can_repeat else ""
        raise UserError(
            f"task.max_length={max_length}, but the {who} reads {limit} tokens at most: set task.max_length={limit}, "
            f"which cuts longer texts{more}"
        )


def check_target_length(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_target: int | None, *, who: str
) -> None:
    """Raises UserError if a target may be longer than the model can write; None is a task without targets."""
    limit = longest(model, tokenizer, writes=True)
    if max_target is not None and max_target > limit:
        raise UserError(
            f"task.max_target={max_target}, but the {who} writes {limit} tokens at most: set task.max_target={limit}"
        )


def check_filling(model: PreTrainedModel, info: TaskInfo, name: str) -> None:
    """Raises UserError for a student that fills targets in a task whose tokens are written one by one, or reversely."""
    fills = fills_targets(model)
    if fills and info.taught_by is None:
        raise UserError(
            f"student {name} fills all tokens of a target at once, and those of task={info.name} are predicted one "
            "after another: take task=mask_predict, or +student=distilbert"
        )
    if not fills and info.taught_by is not None:
        raise UserError(
            f"student {name} ({type(model).__name__}) writes no targets by filling masks, as task={info.name} has it: "
            "take +student=mask_predict, or task=seq2seq"
        )


def check_outputs(objective: Objective, **models: PreTrainedModel) -> None:
    """Raises UserError if a term needs an output that one of the models lacks, or attention of all pairs of tokens."""
    terms = ", ".join(sorted({term for name in ("attentions", NAME) for term in objective.needing(name)}))
    for role, model in models.items():
        if terms and attends_locally(model):
            raise UserError(
                f"objective {objective.name}: the term {terms} compares the attention of all pairs of tokens, and the "
                f"{role} ({type(model).__name__}) attends to those nearby "
                "alone: set its weight to 0, or take objective=distilbert, whose term cosine reads hidden states"
            )
        output = run_sample(model, objective.needs)
        for name in sorted(objective.needs):
            if not getattr(output, name, None) or (name == NAME and not _has_all_vectors(model, output[name])):
                terms = ", ".join(objective.needing(name))
                raise UserError(
                    f"objective {objective.name}: the term {terms} needs {name.replace('_', ' ')}, which the {role} "
                    f"({type(model).__name__}) does not give: set its weight to 0, or take another objective"
                )


def _has_all_vectors(model: PreTrainedModel, vectors: Mapping[int, AttentionVectors]) -> bool:
    """Returns whether a sample of four tokens gave the queries, keys and values of every layer."""
    heads = count_heads(model.config)
    shapes = {tensor.shape for layer in vectors.values() for tensor in layer}
    return len(vectors) == model.config.num_hidden_layers and {tuple(shape[:3]) for shape in shapes} == {(1, heads, 4)}


def _has_all_layers(model: PreTrainedModel) -> bool:
    """Returns whether the model gives hidden states of the embeddings and of every layer, all of one width."""
    states = run_sample(model, frozenset({"hidden_states"})).hidden_states
    return [s.shape[-1] for s in states] == [model.config.hidden_size] * (model.config.num_hidden_layers + 1)


def check_sizes(objective: Objective, *, teacher: PreTrainedModel, student: PreTrainedModel) -> None:
    """Raises UserError if a term cannot compare encoders of these sizes, or their kinds of attention."""
    for role, model in {"teacher": teacher, "student": student}.items():
        if (terms := objective.names_where(lambda term: term.maps_layers)) and not _has_all_layers(model):
            raise UserError(
                f"objective {objective.name}: the term {', '.join(terms)} needs hidden states of the embeddings and of "
                f"every layer in one width, which the {role} ({type(model).__name__}) does not give: take "
                "objective=distilbert, whose term cosine reads the last ones alone"
            )
        terms = objective.names_where(lambda term: term.compares_heads)
        if terms and not _multiplies_queries_and_keys(model):
            raise UserError(
                f"objective {objective.name}: the term {', '.join(terms)} compares attention scores Q K^T / sqrt(D), "
                f"and the attention of the {role} ({type(model).__name__}) has others (rotary or relative positions): "
                "take objective=minilmv2, which compares queries with queries"
            )
    objective.check_sizes(encoder_size(student), encoder_size(teacher))


def check_data(objective: Objective, task: Task, examples: Examples) -> None:
    """Raises UserError if a term has no example of train to learn from."""
    missing, first = objective.needing_data(), 0
    while missing and first < len(examples):
        last = min(len(examples), first + _EXAMPLES_PER_CALL)
        items = task.select(examples[range(first, last)])
        missing = {name: needs for name, needs in missing.items() if not objective.count(name, items) > 0}
        first = last
    for name, needs in missing.items():
        raise UserError(
            f"objective {objective.name}: the term {name} learns from {needs}, and train of task {task.info.name} has "
            f"none: set objective.terms.{name}.weight=0, or give such data"
        )


def encoder_size(model: PreTrainedModel) -> EncoderSize:
    """Returns the size of a model's encoder."""
    width = attention_width(model)
    heads = None if width is None else count_heads(model.config)
    return EncoderSize(
        model.config.hidden_size, model.config.num_hidden_layers, heads=heads, attention_width=width,
        decoder_layers=count_decoder_layers(model.config), vector=vector_width(model.config),
    )  # fmt: skip


@torch.no_grad()
def _multiplies_queries_and_keys(model: PreTrainedModel) -> bool:
    """Returns whether the attention probabilities of the model follow from its queries and keys alone."""
    implementation, is_training = model.config._attn_implementation, model.training
    model.eval()
    model.set_attn_implementation("eager")  # The only one that returns probabilities.
    try:
        tokens = torch.arange(1, 9, device=model.device).unsqueeze(0) % model.config.vocab_size
        batch = {"input_ids": _end_text(model, tokens), "attention_mask": torch.ones_like(tokens)}
        output = try_model(model, batch, frozenset({"attentions", NAME}))
    finally:
        model.set_attn_implementation(implementation)
        model.train(is_training)
    return has_plain_scores(output.attentions or (), output[NAME])


def check_head(student: PreTrainedModel, teacher: PreTrainedModel, *, name: str, likelihood: Likelihood) -> None:
    """Raises UserError if the student's logits have another shape than the teacher's; vectors may be wider."""
    expected, shape = list(run_sample(teacher).logits.shape), list(run_sample(student).logits.shape)
    if likelihood == "vector":
        expected[-1] = shape[-1]
    if shape != expected:
        raise UserError(
            f"student {name} ({type(student).__name__}) has logits of shape {shape} for four tokens, expected "
            f"{expected} as the teacher's: take +student=distilbert"
        )


@torch.no_grad()
def run_sample(model: PreTrainedModel, needs: frozenset[str] = frozenset()) -> Any:
    """Returns the model's output for one text of four tokens."""
    mask = torch.ones((1, 4), dtype=torch.long, device=model.device)
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # The checks report errors themselves.
    try:
        return try_model(model, {"input_ids": _end_text(model, mask), "attention_mask": mask}, needs)
    finally:
        transformers.logging.set_verbosity(verbosity)


def _end_text(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Returns the tokens with the one that ends a text of an encoder-decoder, which the head of a BART reads."""
    end = model.config.eos_token_id if model.config.is_encoder_decoder else None
    return tokens if end is None else torch.cat([tokens[:, :-1], torch.full_like(tokens[:, -1:], end)], dim=1)


def count_parameters(model: PreTrainedModel) -> int:
    """Returns the number of parameters, tied ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
