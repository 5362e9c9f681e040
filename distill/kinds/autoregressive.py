"""Language modelling on raw text, token by token: in one direction, in each of both, and of denoised texts.

Causal language modelling on raw text: the items are all tokens but the first of a sequence. The classes are the tokens
of the vocabulary.

>>> from distill.kinds import CausalLM
>>> CausalLM(data="path/to/text", max_length=64).info.fixed_inputs
True

Bidirectional language modelling on raw text: the next and the previous token are predicted, each from one direction.
The items are all tokens but the first of a sequence, from those before it, and all but the last, from those behind it.

>>> from distill.kinds import BidirectionalLM
>>> BidirectionalLM(data="path/to/text", max_length=64).info.fixed_inputs
True

Denoising of raw text for encoder-decoders: the items are the tokens of the target, the classes the vocabulary.

>>> from distill.kinds import Denoising
>>> Denoising(data="path/to/text", corruption=["permutation", "infilling"]).info.generates
True
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import ModelOutput

from distill.core.contracts import Batch, Items, Outputs, Scores
from distill.core.errors import OptionError, UserError
from distill.kinds.masked_lm import TextData, TextTask, TokenScores
from distill.kinds.seq2seq import TargetTask, ends_texts
from distill.models.decoding import run_encoder_pass
from distill.text.corruptions import Corruption
from distill.text.packing import SIZE_COLUMNS
from distill.text.sequences import Packing, Sequences
from distill.text.streaming import StreamedText

PACKINGS = ("full_sentences", "doc_sentences", "sentence")


def check_packing(packing: Packing) -> Packing:
    """Returns a packing of single sequences; raises OptionError for that of pairs."""
    if packing not in PACKINGS:
        raise OptionError("packing", packing, f"one of {', '.join(PACKINGS)}")
    return packing


class NextTokenScores(TokenScores):
    """The cross-entropies and the predictions of all tokens but the first of each sequence."""

    def score(self, outputs: Outputs, items: Items) -> dict[str, Tensor]:
        """Cross-entropy, prediction and correctness of every item, with the bytes and the words of its text."""
        return super().score(outputs, items) | self.measure(items)

    def measure(self, items: Items) -> dict[str, Tensor]:
        """Bytes of the text that end with the token of each item, and words that begin in them.

        The token of an item is behind its position. Only dev has these columns.
        """
        names = [name for name in SIZE_COLUMNS if name in items.batch]
        return {name: items[name].flatten()[items.index + 1] for name in names} if items.index is not None else {}

    def rescore(self, scores: Scores, logits: Sequence[np.ndarray]) -> Scores:
        measured = {name: column for name, column in scores.columns.items() if name in SIZE_COLUMNS}
        rescored = super().rescore(scores, logits)
        return rescored.with_columns(**measured)

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
    decoder = "continuation"
    caches_outputs = False
    generates = True
    objective = "causal_language_modelling"
    scores: ClassVar[type[NextTokenScores]] = NextTokenScores

    def __init__(
        self,
        *,
        name: str = "clm",
        data: str | Path | None = None,
        data_dir: str | Path | None = None,
        packing: Packing = "full_sentences",
        prompt: int | float = 0.25,
        **options: Any,
    ) -> None:
        prompt_of_texts = prompt if self.generates else None
        super().__init__(
            name, data, data_dir, mask=None, packing=check_packing(packing), prompt=prompt_of_texts, **options
        )  # fmt: skip
        self.prompt = self.settings.prompt

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


DIRECTIONS = ("forwards", "backwards")


class BothDirections(NextTokenScores):
    """The cross-entropies and the predictions of the next and the previous tokens."""

    def score(self, outputs: Outputs, items: Items) -> dict[str, Tensor]:
        """Cross-entropy, prediction, correctness and direction of every item."""
        _, _, direction = find_predictions(items.batch)
        return super().score(outputs, items) | {"direction": direction[items.span]}

    def measure(self, items: Items) -> dict[str, Tensor]:
        """Nothing, because a token is predicted twice."""
        return {}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The metrics of both directions together, and of a model's scores the perplexity of each."""
        metrics, loss = super().metrics(scores), scores.columns["loss"].astype(np.float64)
        if "direction" in scores.columns:  # Not of a constant prediction.
            for number, name in enumerate(DIRECTIONS):
                metrics[f"perplexity_{name}"] = float(np.exp(loss[scores.columns["direction"] == number].mean()))
        return metrics

    def describe(self, splits: TextData) -> dict[str, Any]:
        return super().describe(splits) | {
            "pipeline_tag": "feature-extraction",
            "prediction": "Predicts the next and the previous token of a text.",
        }


class BidirectionalLM(CausalLM):
    """Bidirectional language modelling (ELMo, arXiv 1802.05365, section 3.1).

    A model of two directions predicts every token of a sequence from those before it and, apart from that, from those
    behind it. No token is predicted from another sequence.

    Args:
        name: names the task in records and directories.
        options: the other arguments of `CausalLM`.
    """

    kinds = ("bidirectional_lm",)
    auto_class = "AutoModelForPreTraining"
    generates = False
    objective = "bidirectional_language_modelling"
    scores = BothDirections

    def __init__(self, *, name: str = "bilm", **options: Any) -> None:
        super().__init__(name=name, **options)

    def encode(
        self, data: TextData, tokenizer: PreTrainedTokenizerBase, cache_dir: Path | None
    ) -> dict[str, Sequences | StreamedText]:
        splits = super().encode(data, tokenizer, cache_dir)
        for split in splits.values():
            if isinstance(split, Sequences):
                split.items_per_example *= len(DIRECTIONS)
        return splits

    def select(self, batch: Batch) -> Items:
        """The next and the previous token of each token, in the order of the batch; both are items of that token."""
        row, position, direction = find_predictions(batch)
        labels = batch["input_ids"][row, position + 1 - 2 * direction].long()
        return Items(batch=batch, row=row, labels=labels, labelled=labels >= 0, classes_are_tokens=True)

    def run(self, model: PreTrainedModel, batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the model without its head, which computes logits at the items alone."""

        def select_states(encoded: ModelOutput) -> Tensor:
            states: Tensor | None = encoded.get("direction_states")  # [B, L, 2, D]
            if states is None:
                raise UserError(
                    f"a {type(model).__name__} reads both sides of a token at once, and task {self.name} needs a "
                    "model of two directions: take +teacher=bilm, or task=mlm"
                )
            return states[find_predictions(batch)]

        return run_encoder_pass(model, batch, items, needs, select_states=select_states)


def find_predictions(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Returns row, position and direction of the tokens `[n]` that predict the next (0) or the previous token (1).

    Both must be tokens of the text, on whichever side the padding is.
    """
    mask = batch["attention_mask"].bool()
    both = mask[:, :-1] & mask[:, 1:]
    row, position, direction = torch.stack([F.pad(both, (0, 1)), F.pad(both, (1, 0))], dim=-1).nonzero().unbind(dim=-1)
    return row, position, direction


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


class Denoising(TargetTask, TextTask):
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
    caches_outputs = True
    objective = "denoising"
    scores = DenoisingScores

    def __init__(
        self,
        *,
        name: str = "denoising",
        data: str | Path | None = None,
        data_dir: str | Path | None = None,
        corruption: str | Sequence[str] = "t5_spans",
        noise: float | None = None,
        mean_span: float = 3.0,
        packing: Packing = "full_sentences",
        **options: Any,
    ) -> None:
        names = (corruption,) if isinstance(corruption, str) else tuple(corruption)
        super().__init__(
            name, data, data_dir, mask=None, packing=check_packing(packing),
            corruption=Corruption(names, noise, mean_span), **options,
        )  # fmt: skip
        self.fixed_inputs, self.max_target = self.settings.masking == "static", self.max_length

    def encode(
        self, data: TextData, tokenizer: PreTrainedTokenizerBase, cache_dir: Path | None
    ) -> dict[str, Sequences | StreamedText]:
        """Packs the corpus, as `TextTask`.

        Raises:
            UserError: for a tokenizer that puts no token for its end behind a text, or has no tokens that the
                corruption needs, and for sequences too short or too long for the corruption.
        """
        if not ends_texts(tokenizer):
            raise UserError(
                f"the tokenizer ({type(tokenizer).__name__}) puts no token for its end (eos_token) behind a text, from "
                "which a decoder learns to stop: use one whose post-processor adds it, such as T5's or BART's"
            )
        return TextTask.encode(self, data, tokenizer, cache_dir)
