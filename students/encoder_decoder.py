"""The student whose halves both begin with layers of one encoder: a BART of any depth in each half."""

from transformers import PreTrainedModel

from distill.core.errors import UserError
from distill.models.forward import writes_targets
from distill.models.loading import ENCODER, find_directory, load_directory
from distill.models.surgery.initialization import build_encoder_decoder


def from_teacher(
    teacher: PreTrainedModel,
    *,
    path: str | None,
    depth: int | None = None,
    decoder_depth: int | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Creates a student from the encoder in `path`, in training mode and float32, as `build_encoder_decoder` does.

    The student's `vocabulary` maps the tokens that it was trained with to their ids.

    Args:
        path: a directory written by `save_pretrained`, with weights in safetensors and the tokenizer's files.
        depth, decoder_depth: number of layers of each half; None for all of the encoder's.

    Raises:
        UserError: if the teacher writes no text for a text, or there is no such encoder in `path`.
    """
    if path is None:
        raise UserError("student encoder_decoder begins with an encoder: give student.path=DIR")
    if not writes_targets(teacher):
        raise UserError(
            f"student encoder_decoder writes a text for a text, and the teacher is a {type(teacher).__name__}: take "
            "task=seq2seq, or another student"
        )
    return from_encoder(path, depth, decoder_depth, trust_remote_code=trust_remote_code).train()


def from_encoder(
    path: str, depth: int | None, decoder_depth: int | None, *, trust_remote_code: bool
) -> PreTrainedModel:
    """Returns a BART whose halves both begin with layers of the encoder in `path`, as `build_encoder_decoder` does."""
    directory = find_directory(path, "student.path")
    start = load_directory(directory, ENCODER, None, trust_remote_code=trust_remote_code)
    student = build_encoder_decoder(start.model, start.tokenizer, "student", depth=depth, decoder_depth=decoder_depth)
    # Attributes of the object only, which are not saved. What it inherits is of the encoder, and not of the teacher.
    student.inherited = {}  # type: ignore[assignment]
    student.vocabulary = start.tokenizer.get_vocab()  # type: ignore[assignment]
    return student
