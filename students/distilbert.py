"""The student with some of the teacher's layers: a DistilBERT from a BERT, the same class from other families.

It may have fewer heads and inner neurons in its layers, and narrow embeddings.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from transformers import BertConfig, DistilBertConfig, PreTrainedModel

from distill.core.contracts import Task
from distill.core.errors import UserError
from distill.core.options import show_value
from distill.models.architectures.modeling_narrow import ARCHITECTURES
from distill.models.forward import model_class
from distill.models.loading import auto_class_of
from distill.models.surgery.copies import Copies, copy_labels
from distill.models.surgery.initialization import GENERAL, GeneralSettings, Origins, names_general
from distill.models.surgery.layers import (
    Width,
    count_decoder_layers,
    decoder_layers_option,
    encoder_below_features,
    find_layer_prefix,
    is_whole,
    name_in_whole,
    renumber_layer,
    spread_layers,
    take_layers,
)
from distill.models.surgery.long_texts import Attention, Chunking, ChunkPooling, LongTexts

Layers = str | Sequence[int]

_BERT, _DISTILBERT = ARCHITECTURES["bert"], ARCHITECTURES["distilbert"]
# Parts of BERT's tensor names and their replacements in DistilBERT.
_BERT_TO_DISTILBERT = (
    *((f".{bert}.", f".{own}.") for bert, own in zip(_BERT.modules, _DISTILBERT.modules, strict=True)),
    ("bert.embeddings.", "distilbert.embeddings."),
    ("bert.encoder.layer.", "distilbert.transformer.layer."),
    ("bert.pooler.dense.", "pre_classifier."),
    ("cls.predictions.transform.dense.", "vocab_transform."),
    ("cls.predictions.transform.LayerNorm.", "vocab_layer_norm."),
    ("cls.predictions.bias", "vocab_projector.bias"),
    # Only if untied. The bias above is then not read, and the decoder's own comes later.
    ("cls.predictions.decoder.", "vocab_projector."),
)
DISTILBERT_EPS = 1e-12  # Of every LayerNorm. The configuration of a DistilBERT has no other.


def from_teacher(
    teacher: PreTrainedModel,
    *,
    layers: Layers = "alternate",
    depth: int | None = None,
    decoder_depth: int | None = None,
    init: str | Sequence[str] = "teacher",
    general: Mapping[str, Any] | None = None,
    start: str | None = None,
    heads: int | Sequence[int] | None = None,
    ffn: int | Sequence[int] | None = None,
    embedding_dim: int | None = None,
    prune: Literal["iterative"] | None = None,
    prune_steps: int = 4,
    prune_share: float = 0.25,
    origins: Origins | None = None,
    task: Task | None = None,
    attention: Attention = "own",
    window: int | None = None,
    global_tokens: int = 1,
    positions: int | None = None,
    chunk: int | None = None,
    chunk_overlap: int = 0,
    chunk_pooling: ChunkPooling = "mean",
) -> PreTrainedModel:
    """Creates a student with some of the teacher's layers, in training mode and float32.

    From a BERT it is a `DistilBertFor*` (arXiv 1910.01108) without token types, whose row of single sentences is added
    to the position embeddings, and without a pooler, which becomes `pre_classifier`. From other families, and from a
    BERT that no DistilBERT can describe, it is the teacher's class with fewer layers, in both halves of an
    encoder-decoder. From a BiLSTM on features it follows their encoder. `inherited` maps its tensors to the teacher's.

    Args:
        layers: as in `choose_layers`; indices are of an encoder, and a decoder behind it then has alternate layers.
        depth, decoder_depth: layers of the encoder and of a decoder behind it; by default half of them.
        heads, ffn, embedding_dim, prune, prune_steps, prune_share, origins: of a narrower one, as in `Width`.
        attention, window, global_tokens, positions: of a student for long texts, as in `LongTexts`.
        init, general, start, task, chunk, chunk_overlap, chunk_pooling: as in `check_init` and `Chunking`.

    Raises:
        UserError: for layers, attention or sizes that the student cannot have.
    """
    cut = Width(heads, ffn, embedding_dim, prune, prune_steps, prune_share)
    copies = check_init(init, general, heads=heads, ffn=ffn, embedding_dim=embedding_dim, prune=prune, chunk=chunk)
    long_texts = LongTexts("student", attention, window, global_tokens, positions)
    is_whole = encoder_below_features(teacher) is teacher
    cut.check(copies=copies, can_be_cut=is_whole and not chunk and not long_texts.is_set)
    importance = origins.importance if copies and origins else None
    student = cut.apply(_follow(teacher, layers, depth, decoder_depth, copies=copies), importance)
    return Chunking(chunk, chunk_overlap, chunk_pooling).apply(long_texts.apply(student), task, teacher=teacher)


def _follow(
    teacher: PreTrainedModel, layers: Layers, depth: int | None, decoder_depth: int | None, *, copies: bool
) -> PreTrainedModel:
    """Creates the student with some of the layers of a teacher, or of the encoder below a BiLSTM on its features."""
    encoder = encoder_below_features(teacher)
    decoder_depth = decoder_depth if encoder is teacher else None
    student = copy_layers(encoder, layers, depth, copies=copies, decoder_depth=decoder_depth)
    name_in_whole(student, encoder=encoder, whole=teacher)
    return student


def check_init(init: str | Sequence[str], general: Mapping[str, Any] | None = None, **chosen: object) -> bool:
    """Returns whether the student copies tensors of the teacher.

    Args:
        init: `teacher` copies tensors of the same shape, `random` none, and `search` those of layers that are chosen
            outside, by students that this function builds. `general` is `teacher`, whose encoder is replaced outside
            by that of a general stage. A list has names that combine.
        general: the options of that stage, as in `GeneralSettings`.
        chosen: options of the student that are chosen for one task, None where they are not given.

    Raises:
        UserError: for names that do not combine, and for other options of a general stage.
    """
    GeneralSettings.of(general)
    given = {name: value for name, value in chosen.items() if value is not None}
    if names_general(init) and given:
        name, value = next(iter(given.items()))
        raise UserError(
            f"student.init=general starts the students of all tasks from the same weights, and "
            f"student.{name}={show_value(value)} chooses them for one task: leave out one"
        )
    names = [init] if isinstance(init, str) else list(init)
    unknown = [name for name in names if name not in ("teacher", "random", "search", GENERAL)]
    if unknown or not names:
        shown = init if isinstance(init, str) else names
        raise UserError(
            f"student.init={shown} is unknown, expected teacher, random, search, general or a list like "
            "[teacher,search]"
        )
    if "random" in names and len(names) > 1:
        raise UserError(
            f"student.init={names} combines random weights, which copy nothing, with others: give one of them"
        )
    if "search" in names and GENERAL in names:
        raise UserError(
            f"student.init={names} combines the layers that suit one task with a general stage, which all tasks share: "
            "give one of them"
        )
    return names != ["random"]


def copy_layers(
    teacher: PreTrainedModel,
    layers: Layers,
    depth: int | None,
    *,
    copies: bool,
    own_class: bool = False,
    decoder_depth: int | None = None,
) -> PreTrainedModel:
    """Creates the student with the attention of its class.

    Args:
        copies: whether tensors of the teacher are copied.
        own_class: whether it is of the teacher's class from a BERT too.
        decoder_depth: layers of the decoder of an encoder-decoder; None for as many as `depth` makes.
    """
    teacher_layers = choose_layers(teacher.config.num_hidden_layers, layers, depth)
    decoder_layers = _choose_decoder_layers(teacher, layers, decoder_depth)
    is_distilbert = type(teacher.config) is BertConfig and not own_class and _is_distilbert(teacher)
    chosen = {find_layer_prefix(teacher): teacher_layers}
    if decoder_layers is not None:
        chosen[find_layer_prefix(teacher, decoder=True)] = decoder_layers
    if is_distilbert:
        student = _create_distilbert(teacher, len(teacher_layers)).float()
    else:
        student = _create_same_class(teacher, teacher_layers, decoder_layers).float()
    made = Copies(teacher, student)
    if copies:
        if not is_distilbert:
            _check_layers(teacher, student, chosen)
        is_encoder = teacher.base_model is teacher

        def rename(name: str) -> str | None:
            renumbered = renumber_layer(name, chosen)
            return _name_in_distilbert(renumbered, is_encoder) if renumbered and is_distilbert else renumbered

        made.copy_equal(rename)
        _copy_beside(teacher, student)
    student.config.teacher_layers = teacher_layers
    if decoder_layers is not None:
        student.config.teacher_decoder_layers = decoder_layers
    # An attribute of the object only, which is not saved.
    student.inherited = made.names  # type: ignore[assignment]
    return student.train()


def _choose_decoder_layers(teacher: PreTrainedModel, layers: Layers, depth: int | None) -> list[int] | None:
    """Returns the indices of the layers of an encoder-decoder's decoder to copy, None for a model without one."""
    total = count_decoder_layers(teacher.config)
    if total is None:
        if depth is not None:
            raise UserError(
                f"student.decoder_depth={depth} is for a teacher with an encoder and a decoder, and the teacher is a "
                f"{type(teacher).__name__}: leave it out, or take student.depth"
            )
        return None
    if depth is not None and not is_whole(depth, 1, total):
        raise UserError(f"student.decoder_depth={depth} is out of range: the teacher's decoder has {total} layers")
    return choose_layers(total, layers if isinstance(layers, str) else "alternate", depth)


def choose_layers(total: int, layers: Layers, depth: int | None = None) -> list[int]:
    """Returns the indices of the teacher's layers to copy: `alternate`, `first` or `last` ones, or those of a list.

    `alternate` has the first, the last and evenly spaced ones between them. It selects 0, 2, 4, 7, 9, 11 for 6 out of
    12 layers, as the authors of DistilBERT did.

    Raises:
        UserError: if the name is unknown, or indices are out of range, repeated or missing.
    """
    if isinstance(layers, int):
        raise UserError(
            f"student.layers={layers} is one number: student.depth={layers} copies this many layers, "
            f"student.layers=[{layers}] copies this one"
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
            return spread_layers(total, depth)
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


def _is_distilbert(bert: PreTrainedModel) -> bool:
    """Returns whether a DistilBERT with the layers of this BERT can compute the same in training and evaluation."""
    config = bert.config
    # The dropout of a DistilBERT's head for tokens is that of its layers.
    is_for_tokens = auto_class_of(bert) == "AutoModelForTokenClassification"
    has_own_dropout = config.classifier_dropout not in (None, config.hidden_dropout_prob)
    return config.layer_norm_eps == DISTILBERT_EPS and not config.is_decoder and not (is_for_tokens and has_own_dropout)


def _create_distilbert(teacher: PreTrainedModel, depth: int) -> PreTrainedModel:
    """Returns a DistilBERT with random weights, the teacher's sizes and the same kind of head."""
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
        seq_classif_dropout=bert.hidden_dropout_prob if bert.classifier_dropout is None else bert.classifier_dropout,
        qa_dropout=0.0,  # BERT has none there.
        pad_token_id=bert.pad_token_id,
        tie_word_embeddings=bert.tie_word_embeddings,
        **copy_labels(bert),
    )
    student: PreTrainedModel = student_class(config)
    return student


def _name_in_distilbert(name: str, is_encoder: bool) -> str:
    """Returns the name of a tensor of a BERT in a DistilBERT; those of an encoder without a head have no prefix."""
    renamed = f"bert.{name}" if is_encoder else name
    for old, new in _BERT_TO_DISTILBERT:
        renamed = renamed.replace(old, new, 1)
    return renamed.removeprefix("distilbert.") if is_encoder else renamed


def _create_same_class(
    teacher: PreTrainedModel, teacher_layers: Sequence[int], decoder_layers: Sequence[int] | None
) -> PreTrainedModel:
    """Returns a model of the teacher's class with fewer layers and random weights."""
    config = take_layers(teacher.config, teacher_layers)
    if decoder_layers is not None and (option := decoder_layers_option(config)) is not None:
        setattr(config, option, len(decoder_layers))
    student: PreTrainedModel = type(teacher)(config)
    return student


def _check_layers(teacher: PreTrainedModel, student: PreTrainedModel, chosen: Mapping[str, Sequence[int]]) -> None:
    """Raises UserError if a layer would compute something else in its place in the student than in the teacher."""
    scales = getattr(teacher.config, "scale_attn_by_inverse_layer_idx", False)
    for prefix, layers in chosen.items():
        if scales and list(layers) != list(range(len(layers))):
            raise UserError(
                f"student.layers={list(layers)} moves layers, and a {type(teacher).__name__} with "
                "scale_attn_by_inverse_layer_idx divides the attention scores of a layer by its place: take "
                "student.layers=first"
            )
        for place, index in enumerate(layers):
            names = (
                {name for name, _ in model.get_submodule(f"{prefix}{number}").named_parameters()}
                for model, number in ((teacher, index), (student, place))
            )
            differing = set.symmetric_difference(*names)
            if differing:
                raise UserError(
                    f"student.layers={list(layers)} puts layer {index} of a {type(teacher).__name__} in the place of "
                    f"layer {place}, and only one of them has {min(differing)}: leave layer {min(index, place)} where "
                    "it is, as student.layers=alternate does"
                )


@torch.no_grad()
def _copy_beside(teacher: PreTrainedModel, student: PreTrainedModel) -> None:
    """Copies what is no parameter of the student's own: the bias of a BART, and the token types of a BERT."""
    student_buffers = dict(student.named_buffers())
    for name, buffer in teacher.named_buffers():
        if name.endswith("final_logits_bias") and name in student_buffers:  # That of BART and its relatives.
            student_buffers[name].copy_(buffer)
    if isinstance(student.config, DistilBertConfig) and type(teacher.config) is BertConfig:
        # A DistilBERT adds no token-type row, and its first layer was trained with one.
        token_types = teacher.base_model.embeddings.token_type_embeddings.weight
        student.base_model.embeddings.position_embeddings.weight.add_(token_types[0])
