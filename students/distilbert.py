"""The student with fewer layers: a DistilBERT out of a BERT, the teacher's own class out of any other family."""

import copy
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from transformers import BertConfig, DistilBertConfig, PreTrainedModel

from distill.errors import UserError
from distill.models.loading import auto_class_of, model_class

Layers = str | Sequence[int]

# BERT's name for a tensor -> DistilBERT's, longest prefixes first.
_BERT_TO_DISTILBERT = (
    ("bert.embeddings.", "distilbert.embeddings."),
    ("attention.self.query.", "attention.q_lin."),
    ("attention.self.key.", "attention.k_lin."),
    ("attention.self.value.", "attention.v_lin."),
    ("attention.output.dense.", "attention.out_lin."),
    ("attention.output.LayerNorm.", "sa_layer_norm."),
    ("intermediate.dense.", "ffn.lin1."),
    ("output.dense.", "ffn.lin2."),
    ("output.LayerNorm.", "output_layer_norm."),
    ("bert.encoder.layer.", "distilbert.transformer.layer."),
    ("bert.pooler.dense.", "pre_classifier."),
    ("cls.predictions.transform.dense.", "vocab_transform."),
    ("cls.predictions.transform.LayerNorm.", "vocab_layer_norm."),
    ("cls.predictions.bias", "vocab_projector.bias"),
)


def from_teacher(
    teacher: PreTrainedModel,
    *,
    layers: Layers = "alternate",
    depth: int | None = None,
    init: Literal["teacher", "random"] = "teacher",
) -> PreTrainedModel:
    """A student of the teacher's width with some of its layers, in training mode and float32.

    A BERT gives a `DistilBertFor*` (arXiv 1910.01108): no token types, no pooler; the first token-type row, which
    every single sentence is given, is added to the position embeddings, and the pooler becomes `pre_classifier`.
    Any other family gives its own class with fewer layers. The student's `inherited` maps the names of its tensors
    to those of the teacher's that they were copied from.

    Args:
        layers: `alternate` (first and last kept, the rest evenly spaced), `first`, `last`, or indices from 0.
        depth: how many layers `alternate`, `first` and `last` take; half of the teacher's by default.
        init: `teacher` copies every tensor that fits, `random` only takes the shape.

    Raises:
        UserError: for layers that the teacher has not, or a teacher whose layers cannot be told apart.
    """
    if init not in ("teacher", "random"):
        raise UserError(f"student.init={init} is unknown, expected teacher or random")
    chosen = choose_layers(teacher.config.num_hidden_layers, layers, depth)
    if type(teacher.config) is BertConfig:
        student = _distilbert_like(teacher, len(chosen))
        inherited = _bert_names(teacher, student, chosen)
    else:
        student, inherited = _same_family(teacher, chosen)
    student.float()
    if init == "teacher":
        _copy(teacher, student, inherited)
    else:
        inherited = {}
    student.config.teacher_layers = chosen
    # A plain attribute of the object: it says where this student came from, it is no part of the model.
    student.inherited = inherited  # type: ignore[assignment]
    return student.train()


def choose_layers(total: int, layers: Layers, depth: int | None = None) -> list[int]:
    """Indices of the teacher's layers to keep, ascending for the named choices.

    `alternate` of 6 out of 12 is 0, 2, 4, 7, 9, 11, the choice of DistilBERT's authors.

    Raises:
        UserError: for an unknown name, and for indices that are out of range, repeated or none at all.
    """
    if isinstance(layers, int):
        raise UserError(
            f"student.layers={layers} is one number: student.depth={layers} takes so many, [{layers}] that one"
        )
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int)):
        raise UserError(f"student.depth={depth} is no whole number: the teacher has {total} layers")
    if isinstance(layers, str):
        depth = max(1, total // 2) if depth is None else depth
        if not 1 <= depth <= total:
            raise UserError(f"student.depth={depth} is out of range: the teacher has {total} layers")
        if layers == "first":
            return list(range(depth))
        if layers == "last":
            return list(range(total - depth, total))
        if layers == "alternate":
            return _evenly_spaced(total, depth)
        raise UserError(f"student.layers={layers} is unknown, expected alternate, first, last or indices like [0,2,4]")
    if depth is not None:
        raise UserError(f"student.depth={depth} and student.layers={list(layers)} both choose layers: give one of them")
    chosen = list(layers)
    if not chosen:
        raise UserError(f"student.layers=[] keeps no layer, expected indices from 0 to {total - 1}")
    for index in chosen:
        if isinstance(index, bool) or not isinstance(index, int):
            raise UserError(f"student.layers has {index!r}, expected whole numbers from 0 to {total - 1}")
        if not 0 <= index < total:
            raise UserError(
                f"student.layers has {index}, expected indices from 0 to {total - 1}: the teacher has {total} layers"
            )
    if len(set(chosen)) < len(chosen):
        raise UserError(f"student.layers={chosen} repeats a layer: name each layer once")
    return chosen


def _evenly_spaced(total: int, depth: int) -> list[int]:
    """First and last kept, the others at even distances, each rounded to the nearest layer, halves downwards."""
    if depth == 1:
        return [0]
    return [math.ceil(index * (total - 1) / (depth - 1) - 0.5) for index in range(depth)]


def _distilbert_like(teacher: PreTrainedModel, depth: int) -> PreTrainedModel:
    """A fresh DistilBERT of the teacher's sizes, with the same kind of head."""
    bert = teacher.config
    student_class = model_class(auto_class_of(teacher), DistilBertConfig)
    if student_class is None:
        raise UserError(f"student distilbert cannot follow a {type(teacher).__name__}: no DistilBERT has its head")
    config = DistilBertConfig(
        vocab_size=bert.vocab_size,
        max_position_embeddings=bert.max_position_embeddings,
        n_layers=depth,
        n_heads=bert.num_attention_heads,
        dim=bert.hidden_size,
        hidden_dim=bert.intermediate_size,
        dropout=bert.hidden_dropout_prob,
        attention_dropout=bert.attention_probs_dropout_prob,
        activation=bert.hidden_act,
        initializer_range=bert.initializer_range,
        seq_classif_dropout=bert.hidden_dropout_prob,
        pad_token_id=bert.pad_token_id,
        tie_word_embeddings=bert.tie_word_embeddings,
        id2label=dict(bert.id2label),
        label2id=dict(bert.label2id),
        problem_type=bert.problem_type,
    )
    student: PreTrainedModel = student_class(config)
    return student


def _bert_names(teacher: PreTrainedModel, student: PreTrainedModel, chosen: Sequence[int]) -> dict[str, str]:
    """Student tensor -> teacher tensor, for those that are in both and of one shape."""
    teacher_tensors, student_tensors = dict(teacher.named_parameters()), dict(student.named_parameters())
    position = {teacher_layer: student_layer for student_layer, teacher_layer in enumerate(chosen)}
    inherited = {}
    for teacher_name, tensor in teacher_tensors.items():
        student_name = _renumbered(teacher_name, "bert.encoder.layer.", position)
        if student_name is None:
            continue
        for old, new in _BERT_TO_DISTILBERT:
            student_name = student_name.replace(old, new, 1)
        if student_name in student_tensors and student_tensors[student_name].shape == tensor.shape:
            inherited[student_name] = teacher_name
    return inherited


def _same_family(teacher: PreTrainedModel, chosen: Sequence[int]) -> tuple[PreTrainedModel, dict[str, str]]:
    """A fresh model of the teacher's class with `len(chosen)` layers, and student tensor -> teacher tensor."""
    prefix = _layer_list(teacher)
    config = copy.deepcopy(teacher.config)
    config.num_hidden_layers = len(chosen)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[index] for index in chosen]
    student = type(teacher)(config)
    position = {teacher_layer: student_layer for student_layer, teacher_layer in enumerate(chosen)}
    student_tensors = dict(student.named_parameters())
    inherited = {}
    for teacher_name, tensor in teacher.named_parameters():
        student_name = _renumbered(teacher_name, prefix, position)
        if student_name is None or student_name not in student_tensors:
            continue
        if student_tensors[student_name].shape == tensor.shape:
            inherited[student_name] = teacher_name
    return student, inherited


def _layer_list(teacher: PreTrainedModel) -> str:
    """The name, with a dot at its end, of the list that holds the encoder's layers."""
    total = teacher.config.num_hidden_layers
    for name, module in teacher.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == total and total > 0:
            return f"{name}."
    raise UserError(
        f"a {type(teacher).__name__} has no {total} separate layers to choose from (it may share one set of "
        "weights): it can teach a student of another architecture, not give its layers to distilbert"
    )


def _renumbered(name: str, prefix: str, position: dict[int, int]) -> str | None:
    """The tensor's name with the student's layer number in place of the teacher's; None for a layer left out."""
    if not name.startswith(prefix):
        return name
    index, _, rest = name.removeprefix(prefix).partition(".")
    new = position.get(int(index))
    return None if new is None else f"{prefix}{new}.{rest}"


@torch.no_grad()
def _copy(teacher: PreTrainedModel, student: PreTrainedModel, inherited: dict[str, str]) -> None:
    teacher_tensors, student_tensors = dict(teacher.named_parameters()), dict(student.named_parameters())
    for student_name, teacher_name in inherited.items():
        student_tensors[student_name].copy_(teacher_tensors[teacher_name])
    token_types = teacher_tensors.get("bert.embeddings.token_type_embeddings.weight")
    positions = student_tensors.get("distilbert.embeddings.position_embeddings.weight")
    if token_types is not None and positions is not None:
        # A DistilBERT adds no token-type row; without this one its first layer sees another input than it knows.
        positions += token_types[0]
