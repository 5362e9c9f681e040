"""Causal language modelling on raw text: the items are all tokens but the first of a sequence.

The classes are the tokens of the vocabulary.

>>> from distill.tasks import CausalLM
>>> CausalLM(data="path/to/text", max_length=64).info.fixed_inputs
True
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distill.contracts import Batch, Items, Outputs, Scores, TaskInfo
from distill.errors import OptionError
from distill.losses import HardLabels, Term
from distill.tasks.masked_lm import TextData, TextTask, TokenScores
from distill.text.sequences import SIZE_COLUMNS, SequenceSettings, open_corpus

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

PACKINGS = ("full_sentences", "doc_sentences", "sentence")


@dataclass(frozen=True)
class CausalText(TextData):
    """A corpus of raw text and its sequences, of which every token is predicted from those before it."""

    objective = "causal_language_modelling"

    @property
    def scoring(self) -> "NextTokenScores":
        """The scores of tokens."""
        scoring = self.token_scores()
        return NextTokenScores(scoring.settings, tokens=scoring.tokens, counts=scoring.counts)

    @property
    def terms(self) -> dict[str, Term]:
        """The prediction of the next token."""
        return {"hard": HardLabels()}


class NextTokenScores(TokenScores):
    """The cross-entropies and the predictions of all tokens but the first of each sequence."""

    def score(self, outputs: Outputs, items: Items) -> "dict[str, Tensor]":
        """Cross-entropy, prediction and correctness of every item, with the bytes and the words of its text."""
        return super().score(outputs, items) | self.measure(items)

    def measure(self, items: Items) -> "dict[str, Tensor]":
        """Bytes of the text that end with the token of each item, and words that begin in them.

        The token of an item is behind its position. Only dev has these columns.
        """
        names = [name for name in SIZE_COLUMNS if name in items.batch]
        return {name: items[name].flatten()[items.index + 1] for name in names} if items.index is not None else {}

    def rescore(self, scores: Scores, logits: Sequence[np.ndarray]) -> Scores:
        measured = {name: column for name, column in scores.columns.items() if name in SIZE_COLUMNS}
        rescored = super().rescore(scores, logits)
        return replace(rescored, columns={**rescored.columns, **measured})

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The metrics of tokens, and two that do not depend on the tokenizer.

        `word_perplexity` is the exponential of the loss of all tokens divided by the number of words, and
        `bits_per_byte` their loss in bits divided by the number of bytes.
        """
        metrics, columns = super().metrics(scores), scores.columns
        if all(name in columns for name in SIZE_COLUMNS):  # Not of a constant prediction.
            loss = float(columns["loss"].astype(np.float64).sum())
            size, words = (float(columns[name].sum()) for name in SIZE_COLUMNS)
            metrics["word_perplexity"] = float(np.exp(loss / max(words, 1.0)))
            metrics["bits_per_byte"] = loss / math.log(2) / max(size, 1.0)
        return metrics

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        return {}

    def describe(self, splits: TextData) -> dict[str, Any]:
        return {
            "labels": [],
            "answer": "vocabulary",
            "packing": self.settings.packing,
            "max_length": self.settings.max_length,
            **splits.describe_cleaning(),
            "pipeline_tag": "text-generation",
            "prediction": "Predicts the next token of a text.",
            "example": 'generate "Once upon a time"',
        }


class CausalLM(TextTask):
    """Causal language modelling: every token of a sequence is predicted from those before it (GPT-2 and its relatives).

    Documents are separated by the token for the end of a text, across which the next document is predicted too. No
    token is predicted from another sequence.

    Args:
        name: names the task in records and directories.
        data: a file or a folder, as `data_dir`.
        data_dir: a folder or a file of text; None for `hub_id`, or the built-in sentences.
        packing: `full_sentences`, `doc_sentences` or `sentence`, as in `packing.Packer`.
        prompt: the first tokens of a sequence, as their number or as a share of it, that a teacher which writes texts
            continues, and a student that learns on its own texts.
        options: the other fields of `SequenceSettings`, without those of masks and pairs.

    Raises:
        ValueError: for an option that is out of range.
    """

    kinds = ("causal_lm",)
    auto_class = "AutoModelForCausalLM"
    generates = True

    def __init__(
        self,
        *,
        name: str = "clm",
        data: str | Path | None = None,
        data_dir: str | Path | None = None,
        packing: str = "full_sentences",
        prompt: int | float = 0.25,
        **options: Any,
    ) -> None:
        data_dir = data_dir if data is None else data
        if packing not in PACKINGS:
            raise OptionError("packing", packing, f"one of {', '.join(PACKINGS)}")
        self.settings = settings = SequenceSettings(
            mask=None, data_dir=None if data_dir is None else str(data_dir), packing=packing,
            prompt=prompt if self.generates else None, **options,
        )  # fmt: skip
        self.info = TaskInfo(
            name=name, kind=self.kinds[0], auto_class=self.auto_class, likelihood="softmax", decoder="continuation",
            max_length=settings.max_length, builtin=settings.builtin, raw_text=self.raw_text, classes_are_tokens=True,
            caches_outputs=False, generates=self.generates, prompt=settings.prompt,
        )  # fmt: skip

    def read(self, cache_dir: Path) -> CausalText:
        return CausalText(open_corpus(self.settings, cache_dir), self.settings)

    def select(self, batch: Batch) -> Items:
        """The tokens that follow another one, each at the position of the token before it, in the order of the batch.

        The label of an item is thus the token behind its position, and padding is neither, on whichever side it is.
        """
        mask = batch["attention_mask"].bool()
        # The last column has no token behind it.
        index = (mask[:, :-1] & mask[:, 1:]).nonzero()  # [n, 2]
        row, position = index.unbind(dim=-1)
        labels = batch["input_ids"][row, position + 1].long()
        return Items(
            batch=batch, row=row, labels=labels, labelled=labels >= 0, index=row * mask.shape[1] + position,
            classes_are_tokens=True,
        )  # fmt: skip

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the model without its head, which computes logits at the items alone."""
        from distill.models.chunked_logits import run_encoder_pass

        return run_encoder_pass(model, batch, items, needs)
