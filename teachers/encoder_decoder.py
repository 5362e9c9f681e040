"""An encoder-decoder as the teacher, whose halves both begin with the layers of one encoder."""

import hashlib
import json
from collections.abc import Iterable, Sequence

from distill.core.errors import UserError
from distill.models.forward import SEQ2SEQ
from distill.models.loading import ENCODER, Start
from distill.models.surgery.initialization import build_encoder_decoder

from .pretrained import Pretrained


class EncoderDecoder(Pretrained):
    """The weights of an encoder in both halves (arXiv 1907.12461), to be fine-tuned before they teach.

    Args:
        name: name of the teacher in records and directories.
        path, id, revision, precision, trust_remote_code: of the encoder, as in `Pretrained`.
        depth, decoder_depth: as in `build_encoder_decoder`.
    """

    def __init__(
        self,
        *,
        name: str,
        id: str | None = None,
        path: str | None = None,
        revision: str | None = None,
        precision: str = "float32",
        trust_remote_code: bool = False,
        depth: int | None = None,
        decoder_depth: int | None = None,
    ) -> None:
        super().__init__(
            name=name, id=id, path=path, revision=revision, precision=precision, trust_remote_code=trust_remote_code
        )
        self.depth, self.decoder_depth = depth, decoder_depth

    def resolved(self) -> str:
        """Returns the name in records."""
        return f"{self.name} of {super().resolved()}"

    def fingerprint(self) -> str:
        """Returns a digest of the encoder and the numbers of layers."""
        parts = [super().fingerprint(), self.depth, self.decoder_depth]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def load(
        self, auto_class: str, labels: Sequence[str] | None, texts: Iterable[str], *, problem_type: str | None = None
    ) -> Start:
        """Returns the model, whose cross-attention is random, and its tokenizer.

        Raises:
            UserError: for a task whose models write no text, and an encoder that cannot be one of its halves.
        """
        if auto_class != SEQ2SEQ:
            raise UserError(
                f"teacher {self.name} writes a text for a text, and the task needs an {auto_class}: take task=seq2seq, "
                f"or +teacher=pretrained with the encoder itself"
            )
        start = super().load(ENCODER, None, texts)
        model = build_encoder_decoder(
            start.model, start.tokenizer, "teacher", depth=self.depth, decoder_depth=self.decoder_depth
        )
        fresh = sorted(name for name, _ in model.named_parameters() if ".encoder_attn" in name)
        return Start(
            model, start.tokenizer, fits=False, reason="its cross-attention is not trained", notices=start.notices,
            fresh=fresh,
        )  # fmt: skip
