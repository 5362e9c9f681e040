"""The student whose layers share their weights and whose embeddings are narrow: an ALBERT of the teacher's width."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt
from torch import nn
from transformers import AlbertConfig, PreTrainedConfig, PreTrainedModel

from distill.core.errors import UserError
from distill.core.options import check_options
from distill.models.architectures.modeling_shared_albert import SharedAlbertConfig
from distill.models.forward import model_class
from distill.models.loading import auto_class_of
from distill.models.surgery.copies import Copies, copy_labels
from distill.models.surgery.embeddings import EmbeddingTables, factorize_embeddings
from distill.models.surgery.layers import encoder_below_features, list_parts, name_in_whole

COPIED = ("first", "last", "mean", "random")
# Modules of the heads of an ALBERT, and their names in other families.
_HEADS = {
    "pooler": ("pooler", "pooler.dense", "classifier.dense", "pre_classifier"),
    "classifier": ("classifier", "classifier.out_proj"),
    "qa_outputs": ("qa_outputs",),
    "sop_classifier.classifier": ("sop_classifier.classifier", "cls.seq_relationship"),
    # Of the same widths only if that of the embeddings is.
    "predictions.dense": (
        "predictions.dense", "generator_predictions.dense", "cls.predictions.transform.dense", "lm_head.dense",
        "vocab_transform",
    ),
    "predictions.LayerNorm": (
        "predictions.LayerNorm", "generator_predictions.LayerNorm", "cls.predictions.transform.LayerNorm",
        "lm_head.layer_norm", "vocab_layer_norm",
    ),
}  # fmt: skip


@check_options("student")
def from_teacher(
    teacher: PreTrainedModel,
    *,
    embedding_dim: Annotated[int, Field(ge=2)] | None = 128,
    groups: PositiveInt = 1,
    depth: PositiveInt | None = None,
    share: Literal["all", "attention", "ffn", "none"] = "all",
    table: Literal["svd", "ridge"] = "ridge",
    layer: str | int = "last",
    init: Literal["teacher", "random"] = "teacher",
    start: str | None = None,
) -> PreTrainedModel:
    """Creates an ALBERT (arXiv 1909.11942) of the teacher's width and head, in training mode and float32.

    It is an `AlbertFor*`, or with `share=attention` and `share=ffn` a model of `modeling_shared_albert`.
    From a BiLSTM on features it is what it would be from their encoder, with a new head. Its `inherited` maps the names
    of its tensors to those of the teacher's tensors that they were made from.

    Args:
        embedding_dim: width of the embeddings, at most the teacher's; None uses the teacher's.
        groups: number of groups of layers that share their weights.
        depth: number of layers; by default half of the teacher's.
        share: what the layers of a group share: `all` of their weights, their `attention`, their feed-forward network
            (`ffn`), or `none`.
        table: the initial embeddings and their projection to the width of the layers: `svd` projects by the principal
            directions of the teacher's normalized embeddings, `ridge` fits the projection back to these.
        layer: which of the teacher's layers each set of weights is copied from. A set has the layers of the teacher
            that are as deep as its own, and takes the `first`, the `last` or the `mean` of them. An index chooses a
            layer for a student with one set. `random` copies none.
        init: `random` copies nothing at all.
        start: another encoder, which is then the `teacher` here, with its tokenizer.

    Raises:
        UserError: for an option that is out of range, or a teacher with another kind of head or of layers.
    """
    encoder = encoder_below_features(teacher)
    total = _count_layers(encoder)
    depth = max(1, total // 2) if depth is None else depth
    _check_sets(layer, total=total, depth=depth, share=share, groups=groups)
    student = _create_student(encoder, embedding_dim=embedding_dim, groups=groups, depth=depth, share=share)
    copies = Copies(encoder, student)
    if init == "teacher":
        if layer != "random":
            student.config.teacher_layers = _copy_layers(copies, encoder, student, layer)
        factorize_embeddings(copies, encoder, student, method=table)
        _copy_head(copies, encoder, student)
    student.inherited = copies.names  # type: ignore[assignment]  # An attribute of the object only, which is not saved.
    name_in_whole(student, encoder=encoder, whole=teacher)
    return student.train()


def _count_layers(teacher: PreTrainedModel) -> int:
    """Returns the number of the teacher's layers; raises UserError for a teacher without attention."""
    if getattr(teacher.config, "num_attention_heads", None) is None:
        raise UserError(
            f"student albert cannot follow a {type(teacher).__name__}, which has no attention: take +student=bilstm"
        )
    return int(teacher.config.num_hidden_layers)


def _check_sets(layer: str | int, *, total: int, depth: int, share: str, groups: int) -> None:
    """Raises UserError for sizes out of range, groups that share nothing, and a layer that several sets have."""
    if depth > total:
        raise UserError(f"student.depth={depth} is out of range: the teacher has {total} layers")
    if groups > depth:
        raise UserError(f"student.groups={groups} is above the student's layers: expected 1 to {depth}, or more depth")
    if share == "none" and groups != 1:
        raise UserError(f"student.share=none shares nothing in groups: leave out student.groups={groups}")
    if isinstance(layer, bool) or not isinstance(layer, int):
        if layer not in COPIED:
            raise UserError(f"student.layer={layer} is unknown, expected {', '.join(COPIED)} or an index")
    elif not 0 <= layer < total:
        raise UserError(f"student.layer={layer} is out of range, expected an index from 0 to {total - 1}")
    elif share != "all" or groups != 1:
        raise UserError(
            f"student.layer={layer} is one layer, and the student has several sets of weights: take first, last or mean"
        )


def _create_student(
    teacher: PreTrainedModel, *, embedding_dim: int | None, groups: int, depth: int, share: str
) -> PreTrainedModel:
    """Returns the student with random weights; raises UserError if no ALBERT has the teacher's head."""
    config, tables = teacher.config, EmbeddingTables.of(teacher)
    table_width, rows = tables.words.embedding_dim, tables.position_rows()
    positions = _read(config, "max_position_embeddings", default=512) if rows is None else len(rows)
    dropout = _read(config, "hidden_dropout_prob", "dropout", "embedding_dropout", default=0.1)
    options: dict[str, Any] = {
        "vocab_size": tables.words.num_embeddings,
        "embedding_size": min(embedding_dim or table_width, table_width),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": depth,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": _read(config, "intermediate_size", "hidden_dim", default=4 * config.hidden_size),
        "hidden_act": _read(config, "hidden_act", "activation", "hidden_activation", default="gelu"),
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": _read(
            config, "attention_probs_dropout_prob", "attention_dropout", default=dropout
        ),
        "classifier_dropout_prob": _read(
            config, "classifier_dropout_prob", "classifier_dropout", "seq_classif_dropout", default=dropout
        ),
        "max_position_embeddings": positions,
        "type_vocab_size": 2 if tables.types is None else tables.types.num_embeddings,
        "layer_norm_eps": _read(config, "layer_norm_eps", "norm_eps", default=1e-12),
        "initializer_range": _read(config, "initializer_range", default=0.02),
        "pad_token_id": config.pad_token_id,
        "bos_token_id": getattr(config, "bos_token_id", None),
        "eos_token_id": getattr(config, "eos_token_id", None),
        **copy_labels(config),
    }
    sets = {"all": (groups, groups), "attention": (groups, depth), "ffn": (depth, groups), "none": (depth, depth)}
    attention_groups, ffn_groups = sets[share]
    if attention_groups == ffn_groups:
        student_config = AlbertConfig(num_hidden_groups=ffn_groups, **options)
    else:
        student_config = SharedAlbertConfig(attention_groups=attention_groups, ffn_groups=ffn_groups, **options)
    student_class = model_class(auto_class_of(teacher), type(student_config))
    if student_class is None:
        raise UserError(f"student albert cannot follow a {type(teacher).__name__}: no ALBERT has its head")
    return student_class(student_config).float()


def _read(config: PreTrainedConfig, *names: str, default: Any) -> Any:
    """Returns the first of these settings that a configuration has."""
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if value is not None), default)


def _copy_layers(copies: Copies, teacher: PreTrainedModel, student: PreTrainedModel, layer: str | int) -> list[int]:
    """Copies layers of the teacher, and returns their numbers."""
    sources, targets = list_parts(teacher), list_parts(student)
    if not sources:
        raise UserError(
            f"student albert cannot copy the layers of a {type(teacher).__name__}, which are none of BERT's layout "
            "(BERT, RoBERTa, ELECTRA, ALBERT, DistilBERT, MPNet, Longformer): student.layer=random copies its "
            "embeddings alone"
        )
    total, depth = len(sources), len(targets)
    copied: set[int] = set()
    for name in targets[0]:
        for module in dict.fromkeys(parts[name] for parts in targets):
            places = [place for place, parts in enumerate(targets) if parts[name] is module]
            run = [index for place in places for index in range(place * total // depth, (place + 1) * total // depth)]
            chosen = {"first": run[:1], "last": run[-1:], "mean": run}.get(str(layer)) or [int(layer)]
            copies.copy_module(module, *(sources[index][name] for index in chosen))
            copied.update(chosen)
    return sorted(copied)


def _copy_head(copies: Copies, teacher: PreTrainedModel, student: PreTrainedModel) -> None:
    """Copies the pooler, and the parts of the head that have the same sizes."""
    own, others = _list_heads(student), _list_heads(teacher)
    for name in own.keys() & _HEADS.keys():
        source = next((others[other] for other in _HEADS[name] if other in others), None)
        if source is not None and source.weight.shape == own[name].weight.shape:
            copies.copy_module(own[name], source)
    bias, wanted = (getattr(model.get_output_embeddings(), "bias", None) for model in (student, teacher))
    if bias is not None and wanted is not None:
        copies.copy(bias, wanted)


def _list_heads(model: PreTrainedModel) -> dict[str, nn.Linear | nn.LayerNorm]:
    """Returns the linear layers and norms of a model by name, those of its encoder without its prefix."""
    prefix = f"{model.base_model_prefix}."
    return {
        name.removeprefix(prefix): module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.LayerNorm)
    }
