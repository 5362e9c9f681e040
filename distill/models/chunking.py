"""Students that read a long text in chunks."""

import copy
from dataclasses import dataclass
from typing import Literal, get_args

from transformers import PreTrainedModel

from distill.contracts import VECTOR_SETTINGS, Task
from distill.errors import UserError
from distill.models.forward import model_class
from distill.models.loading import auto_class_of
from distill.models.long_texts import AttentionOptions, attends_locally, rebuild, reserved_positions
from distill.models.modeling_chunked import ChunkedConfig

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
        if self.pooling not in get_args(ChunkPooling):
            known = ", ".join(get_args(ChunkPooling))
            raise UserError(f"student.chunk_pooling={self.pooling} is unknown, expected one of {known}")
        if self.chunk is None:
            if self.overlap or self.pooling != "mean":
                raise UserError("student.chunk_overlap and student.chunk_pooling are of chunks: add student.chunk=512")
            return
        if isinstance(self.chunk, bool) or not isinstance(self.chunk, int) or self.chunk < 3:
            raise UserError(f"got student.chunk={self.chunk}, expected a whole number of at least 3")
        most = self.chunk - 3
        if isinstance(self.overlap, bool) or not isinstance(self.overlap, int) or not 0 <= self.overlap <= most:
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
        return self._wrap(rebuild(student, type(student), config), create, special)

    def _check_pooling(self, settings: dict[str, object]) -> None:
        """Raises UserError for vectors that are no mean over all chunks."""
        if settings and (self.pooling != "mean" or settings["pooling"] != "mean"):
            raise UserError(
                f"got student.chunk_pooling={self.pooling} and task.pooling={settings['pooling']}, expected mean for "
                "both: the vector of a text is the mean of the tokens of its chunks"
            )

    def _wrap(
        self, reader: PreTrainedModel, create: type[PreTrainedModel], special: dict[str, int | None]
    ) -> PreTrainedModel:
        assert self.chunk is not None
        own = reader.config
        labels = {
            "id2label": dict(own.id2label), "label2id": dict(own.label2id), "problem_type": own.problem_type,
        }  # fmt: skip
        config = ChunkedConfig(
            encoder=own, chunk=self.chunk, chunk_overlap=self.overlap, chunk_pooling=self.pooling, **special, **labels
        )  # type: ignore[arg-type]
        chunked = create(config)
        chunked.model.load_state_dict(reader.state_dict())
        inherited = getattr(reader, "inherited", None)
        if inherited is not None:
            chunked.inherited = {f"model.{name}": source for name, source in inherited.items()}  # type: ignore[assignment]
        chunked.config.teacher_layers = getattr(own, "teacher_layers", None)
        return chunked.float().train(reader.training)
