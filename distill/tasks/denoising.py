"""Denoising of raw text for encoder-decoders: the items are the tokens of the target, the classes the vocabulary.

>>> from distill.tasks import Denoising
>>> Denoising(data="path/to/text", corruption=["permutation", "infilling"]).info.generates
True
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.contracts import Batch, Items, Outputs, Scores, TaskInfo
from distill.errors import OptionError, UserError
from distill.losses import HardLabels, Term
from distill.tasks.causal_lm import PACKINGS
from distill.tasks.masked_lm import TextData, TextTask, TokenScores
from distill.tasks.seq2seq import ends_texts, run_halves, select_targets
from distill.text.corruptions import Corruption
from distill.text.sequences import SequenceSettings, open_corpus

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.text.sequences import Sequences
    from distill.text.stream import StreamedText


@dataclass(frozen=True)
class DenoisedText(TextData):
    """A corpus of raw text whose sequences are corrupted; an encoder-decoder writes what is missing, or all of it."""

    objective = "denoising"

    @property
    def scoring(self) -> "DenoisingScores":
        """The scores of tokens."""
        scoring = self.token_scores()
        return DenoisingScores(scoring.settings, tokens=scoring.tokens, counts=scoring.counts)

    @property
    def terms(self) -> dict[str, Term]:
        """The prediction of the tokens of the target."""
        return {"hard": HardLabels()}

    def encode(
        self, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None
    ) -> "dict[str, Sequences | StreamedText]":
        """Packs the corpus, as `TextData`.

        Raises:
            UserError: for a tokenizer that puts no token for its end behind a text, or has no tokens that the
                corruption needs, and for sequences too short or too long for the corruption.
        """
        if not ends_texts(tokenizer):
            raise UserError(
                f"the tokenizer ({type(tokenizer).__name__}) puts no token for its end (eos_token) behind a text, from "
                "which a decoder learns to stop: use one whose post-processor adds it, such as T5's or BART's"
            )
        return super().encode(tokenizer, cache_dir)


class DenoisingScores(TokenScores):
    """The cross-entropies and the predictions of the tokens of the targets, each after the right ones before it."""

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        return {}

    def describe(self, splits: TextData) -> dict[str, Any]:
        assert self.settings.corruption is not None
        return {
            "labels": [],
            "answer": "vocabulary",
            "packing": self.settings.packing,
            "corruption": list(self.settings.corruption.names),
            "max_length": self.settings.max_length,
            **splits.describe_cleaning(),
            "pipeline_tag": "text2text-generation",
            "prediction": "Restores a corrupted text.",
        }


class Denoising(TextTask):
    """Pre-training of an encoder-decoder, which reads a corrupted text and writes what is missing, or all of the text.

    Documents are separated by the token for the end of a text, which no corruption hides or moves; none moves a token
    to another document.

    Args:
        name: names the task in records and directories.
        data: a file or a folder, as `data_dir`.
        data_dir: a folder or a file of text; None for `hub_id`, or the built-in sentences.
        corruption: one of `distill.text.corruptions.CORRUPTIONS`, or several whose target is the whole text.
        noise: share of the tokens that is hidden; None for that of the corruption's paper.
        mean_span: mean length of spans in tokens.
        packing: `full_sentences`, `doc_sentences` or `sentence`, as in `packing.Packer`.
        options: the other fields of `SequenceSettings`, without those of masks and pairs.

    Raises:
        ValueError: for an option that is out of range.
        UserError: for several corruptions that exclude each other.
    """

    kinds = ("denoising",)
    auto_class = "AutoModelForSeq2SeqLM"

    def __init__(
        self,
        *,
        name: str = "denoising",
        data: str | Path | None = None,
        data_dir: str | Path | None = None,
        corruption: str | Sequence[str] = "t5_spans",
        noise: float | None = None,
        mean_span: float = 3.0,
        packing: str = "full_sentences",
        **options: Any,
    ) -> None:
        data_dir = data_dir if data is None else data
        if packing not in PACKINGS:
            raise OptionError("packing", packing, f"one of {', '.join(PACKINGS)}")
        names = (corruption,) if isinstance(corruption, str) else tuple(corruption)
        self.settings = settings = SequenceSettings(
            mask=None, data_dir=None if data_dir is None else str(data_dir), packing=packing,
            corruption=Corruption(names, noise, mean_span), **options,
        )  # fmt: skip
        self.info = TaskInfo(
            name=name, kind=self.kinds[0], auto_class=self.auto_class, likelihood="softmax", decoder="seq2seq",
            max_length=settings.max_length, builtin=settings.builtin, raw_text=self.raw_text, classes_are_tokens=True,
            fixed_inputs=settings.masking == "static", generates=True, max_target=settings.max_length,
        )  # fmt: skip

    def read(self, cache_dir: Path) -> DenoisedText:
        return DenoisedText(open_corpus(self.settings, cache_dir), self.settings)

    def select(self, batch: Batch) -> Items:
        """The tokens of the targets, in the order of the batch."""
        return select_targets(batch)

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs both halves without the head, which computes logits at the items alone."""
        return run_halves(model, batch, items, needs)
