"""Models for long texts: more positions, local attention in place of full, and chunks."""

import copy
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from transformers import LongformerConfig, PreTrainedConfig, PreTrainedModel, RobertaConfig
from typing_extensions import TypedDict  # That of `typing` knows its bases from Python 3.12 on.

from distill.core.contracts import VECTOR_SETTINGS, Task
from distill.core.errors import UserError
from distill.models.architectures import modeling_local
from distill.models.architectures.modeling_chunked import ChunkedConfig
from distill.models.forward import model_class
from distill.models.loading import Start, auto_class_of
from distill.models.surgery.copies import copy_labels, pass_on
from distill.models.surgery.layers import check_size, is_whole, position_tables, reserved_positions
from distill.models.vectors import AUTO

Attention = Literal["own", "local", "full"]
WINDOW = 256  # Of a model whose teacher has none.
# Entries of a configuration that belong to its class.
_OF_CLASS = ("model_type", "architectures", "auto_map", "transformers_version", "dtype")


class AttentionOptions(TypedDict, total=False):
    """The options of a model for long texts.

    Attributes:
        attention: `own` is that of its class; `local` attends to the tokens nearby, as a Longformer does; `full` makes
            either full.
        window: tokens around each token that local attention reads, half of them on each side; by default its own, or
            256.
        global_tokens: number of first tokens with full attention among local ones; by default 1.
        positions: number of tokens that the model reads, by repeating its table of positions; by default as it is.
    """

    attention: Attention
    window: int | None
    global_tokens: int
    positions: int | None


def _check_name(option: str, given: str, known: tuple[str, ...]) -> None:
    """Raises UserError for an option that is none of its known names."""
    if given not in known:
        raise UserError(f"{option}={given} is unknown, expected one of {', '.join(known)}")


@dataclass(frozen=True)
class LongTexts:
    """Changes of a model for long texts.

    Args:
        role: `student` or `teacher`, whose options they are.
        attention: `own` keeps that of the model's class; `local` makes it that of Longformer in a form that exports;
            `full` makes that of a Longformer, or of a model with local attention, full.
        window: tokens around each token that it attends to, half of them on each side; None is that of the model, or
            256 if it has none.
        global_tokens: number of first tokens that attend to all tokens, and all tokens to them.
        positions: number of tokens that the model reads; its table of positions is repeated (arXiv 2004.05150, section
            5). None keeps the table.

    Raises:
        UserError: for a value out of range, or an option that has no use.
    """

    role: Literal["student", "teacher"]
    attention: Attention = "own"
    window: int | None = None
    global_tokens: int = 1
    positions: int | None = None

    def __post_init__(self) -> None:
        _check_name(f"{self.role}.attention", self.attention, get_args(Attention))
        if self.window is not None:
            check_size(f"{self.role}.window", self.window, least=2)
        if self.positions is not None:
            check_size(f"{self.role}.positions", self.positions)
        check_size(f"{self.role}.global_tokens", self.global_tokens, least=0)
        if self.window is not None and self.window % 2:
            raise UserError(
                f"got {self.role}.window={self.window}, expected an even number: half of it is on each side of a token"
            )
        if self.attention != "local" and self.window is not None:
            raise UserError(f"{self.role}.window is of local attention: add {self.role}.attention=local")

    @property
    def is_set(self) -> bool:
        """Returns whether a model is changed at all."""
        return self.attention != "own" or self.positions is not None

    def key(self) -> str:
        """Returns a description for keys of caches, empty if nothing is changed."""
        return repr(self) if self.is_set else ""

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the model with these changes, in the same mode; the given one is not changed.

        Raises:
            UserError: for a family without such a form, a window as long as the text, more global tokens than half a
                window, or fewer positions than there are.
        """
        if not self.is_set:
            return model
        config, create = copy.deepcopy(model.config), type(model)
        if self.attention != "own":
            create, config = self._convert(model)
        if self.positions is not None:
            self._check_positions(model, self.positions)
            config.max_position_embeddings = self.positions + reserved_positions(model)
        if self.attention == "local":
            self._check_window(config, int(config.max_position_embeddings) - reserved_positions(model))
        return rebuild(model, create, config)

    def _convert(self, model: PreTrainedModel) -> tuple[type[PreTrainedModel], PreTrainedConfig]:
        """Returns the class with this attention and the same head, and its configuration."""
        own, local = type(model.config), modeling_local.CONFIGS
        full = _PATTERNS | {config: family for family, config in local.items()}
        target = full.get(own)  # None for a family whose attention is full.
        values = {name: value for name, value in model.config.to_dict().items() if name not in _OF_CLASS}
        window, _ = values.pop("attention_window", None), values.pop("global_tokens", None)
        if self.attention == "local":
            target = local.get(target or own)
            values["attention_window"] = self.window or _largest(window) or WINDOW
            values["global_tokens"] = self.global_tokens
        created = None if target is None else model_class(auto_class_of(model), target)
        if target is None or created is None:
            families = full if self.attention == "full" else [*local, *_PATTERNS]
            known = ", ".join(config.__name__.removesuffix("Config") for config in families)
            raise UserError(
                f"{self.role}.attention={self.attention} is for models of {known}, and this is a "
                f"{type(model).__name__}: leave it out, or take another teacher"
            )
        return created, target(**values)

    def _check_positions(self, model: PreTrainedModel, positions: int) -> None:
        """Raises UserError for a number of positions that the table of a model cannot have."""
        tables = position_tables(model)
        if not tables:
            raise UserError(
                f"{self.role}.positions is for models with a table of positions, and a {type(model).__name__} has "
                "none: leave it out"
            )
        least = next(iter(tables.values())).num_embeddings - reserved_positions(model)
        if positions < least:
            raise UserError(f"got {self.role}.positions={positions}, expected at least the {least} that the model has")

    def _check_window(self, config: PreTrainedConfig, positions: int) -> None:
        """Raises UserError for a window that is the whole text, and for more global tokens than half of a window."""
        if config.attention_window >= positions:
            raise UserError(
                f"{self.role}.window={config.attention_window} is as long as the {positions} tokens that the "
                f"{self.role} reads: take a smaller one, or leave out {self.role}.attention=local"
            )
        if self.global_tokens > config.attention_window // 2:
            raise UserError(
                f"got {self.role}.global_tokens={self.global_tokens}, expected 0 to {config.attention_window // 2}, "
                f"half of the window {config.attention_window}"
            )


def lengthen(start: Start, long_texts: LongTexts) -> Start:
    """Returns a loaded model with the changes, and a tokenizer that cuts no text below the positions."""
    if long_texts.positions is not None:
        start.tokenizer.model_max_length = max(start.tokenizer.model_max_length, long_texts.positions)
    return replace(start, model=long_texts.apply(start.model), lengthens=True)


def rebuild(model: PreTrainedModel, create: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """Returns a model of this class and configuration with the tensors of another one, and in its mode.

    A longer table of positions repeats the rows. Its `inherited`, if any, has the new names of its tensors.
    """
    changed = create(config)
    old, new = f"{model.base_model_prefix}.", f"{changed.base_model_prefix}."
    expected, own = changed.state_dict(), model.state_dict()
    renamed = {(new + name.removeprefix(old) if name.startswith(old) else name): name for name in own}
    tensors = {name: own[source] for name, source in renamed.items() if name in expected}
    for table in list(position_tables(changed))[:1]:
        tensors[table] = repeat_rows(tensors[table], len(expected[table]), reserved=reserved_positions(model))
    changed.load_state_dict(tensors)
    pass_on(model, changed, {name: renamed[name] for name in tensors})
    return changed.float().train(model.training)


# Families whose own long attention cannot be exported, and the family that has their other layers.
_PATTERNS: dict[type[PreTrainedConfig], type[PreTrainedConfig]] = {LongformerConfig: RobertaConfig}


def _largest(window: int | list[int] | None) -> int | None:
    """Returns the window of a configuration, which may have one for each layer."""
    return max(window) if isinstance(window, list | tuple) else window


def repeat_rows(table: Tensor, rows: int, *, reserved: int = 0) -> Tensor:
    """Repeats the rows `[P, H]` of a table of positions behind the reserved ones, `[rows, H]`."""
    repeated = table[reserved:]
    times = -(-(rows - reserved) // len(repeated))
    return torch.cat([table[:reserved], repeated.repeat(times, 1)])[:rows]


def attends_locally(model: PreTrainedModel) -> bool:
    """Returns whether each token attends only to those near it."""
    return getattr(model.config, "attention_window", None) is not None


def check_exportable(model: PreTrainedModel, name: str) -> None:
    """Raises UserError for a student whose attention cannot be exported to ONNX."""
    if type(model.config) in _PATTERNS:
        raise UserError(
            f"student {name} ({type(model).__name__}) cannot be exported to ONNX, because its attention depends on "
            "values of the text: add student.attention=local, which has the same pattern, or export.enabled=false"
        )
    if any(type(module).__name__.endswith("GatedDeltaNet") for module in model.modules()):
        raise UserError(
            f"student {name} ({type(model).__name__}) cannot be exported to ONNX, because its linear attention "
            "changes a state once for each token, and a file would have the steps of one length: take +student=bilstm, "
            "which follows a teacher of any family, or export.enabled=false"
        )


ChunkPooling = Literal["mean", "max", "learned"]


class LongTextOptions(AttentionOptions, total=False):
    """The options of a student for long texts.

    Attributes:
        chunk: tokens of the chunks in which the student reads a text; by default it reads the whole text at once.
        chunk_overlap: tokens that a chunk has in common with the one before it; by default 0.
        chunk_pooling: of the scores of the chunks: `mean`, `max`, or `learned`, a mean with weights from their vectors.
    """

    chunk: int | None
    chunk_overlap: int
    chunk_pooling: ChunkPooling


@dataclass(frozen=True)
class Chunking:
    """The chunks that a student reads.

    Args:
        chunk: tokens of a chunk with its first and last special token; None for a student that reads whole texts.
        overlap: tokens that a chunk has in common with the one before it.
        pooling: of the scores of the chunks: `mean`, `max`, or `learned`, a mean with weights from their vectors.

    Raises:
        UserError: for a value out of range.
    """

    chunk: int | None = None
    overlap: int = 0
    pooling: ChunkPooling = "mean"

    def __post_init__(self) -> None:
        _check_name("student.chunk_pooling", self.pooling, get_args(ChunkPooling))
        if self.chunk is None:
            if self.overlap or self.pooling != "mean":
                raise UserError("student.chunk_overlap and student.chunk_pooling are of chunks: add student.chunk=512")
            return
        check_size("student.chunk", self.chunk, least=3)
        most = self.chunk - 3
        if not is_whole(self.overlap, 0, most):
            raise UserError(
                f"got student.chunk_overlap={self.overlap}, expected 0 to {most}: a chunk of {self.chunk} tokens has "
                "two special tokens and at least one new one"
            )

    def apply(self, student: PreTrainedModel, task: Task | None, *, teacher: PreTrainedModel) -> PreTrainedModel:
        """Returns a model that reads chunks by this one, in the same mode.

        Its `inherited`, if any, has the new names of its tensors.

        Args:
            teacher: its configuration has the special tokens.

        Raises:
            UserError: for a task that has no scores to pool, or a student that cannot read such a chunk.
        """
        if self.chunk is None:
            return student
        if attends_locally(student):
            raise UserError(
                f"student.chunk reads chunks with full attention, and this is a {type(student).__name__}: leave out "
                "student.attention=local, or set student.attention=full"
            )
        create = model_class(auto_class_of(student), ChunkedConfig)
        if create is None or (task is not None and task.info.pair):
            kind = type(student).__name__ if task is None else f"task {task.info.name} ({task.info.kind})"
            raise UserError(
                f"student.chunk is for classes, numbers and vectors of single texts, and not for {kind}: take "
                "student.attention=local"
            )
        self._check_pooling({} if task is None else task.info.model_settings.get(VECTOR_SETTINGS, {}))
        config = copy.deepcopy(student.config)
        names = ("cls_token_id", "sep_token_id", "pad_token_id")
        special = {name: getattr(teacher.config, name, None) for name in names}
        if None in special.values():
            missing = ", ".join(name for name, value in special.items() if value is None)
            raise UserError(f"student.chunk puts special tokens around each chunk, and the tokenizer has no {missing}")
        positions = int(config.max_position_embeddings) - reserved_positions(student)
        if self.chunk > positions:
            raise UserError(f"student.chunk={self.chunk}, but the student reads {positions} tokens at most")
        config.max_position_embeddings = self.chunk + reserved_positions(student)
        reader = rebuild(student, type(student), config)
        chunked = create(ChunkedConfig(
            encoder=reader.config, chunk=self.chunk, chunk_overlap=self.overlap, chunk_pooling=self.pooling, **special,
            **copy_labels(reader.config),
        ))  # fmt: skip
        chunked.model.load_state_dict(reader.state_dict())
        pass_on(reader, chunked, {f"model.{name}": name for name in reader.state_dict()})
        chunked.config.teacher_layers = getattr(reader.config, "teacher_layers", None)
        return chunked.float().train(reader.training)

    def _check_pooling(self, settings: dict[str, object]) -> None:
        """Raises UserError for vectors that are no mean over all chunks."""
        if settings and (self.pooling != "mean" or settings["pooling"] not in (AUTO, "mean")):
            raise UserError(
                f"got student.chunk_pooling={self.pooling} and task.pooling={settings['pooling']}, expected mean for "
                "both: the vector of a text is the mean of the tokens of its chunks"
            )
