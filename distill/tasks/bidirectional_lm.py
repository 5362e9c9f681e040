"""Bidirectional language modelling on raw text: the next and the previous token are predicted, each from one direction.

The items are all tokens but the first of a sequence, from those before it, and all but the last, from those behind it.

>>> from distill.tasks import BidirectionalLM
>>> BidirectionalLM(data="path/to/text", max_length=64).info.fixed_inputs
True
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from distill.contracts import Batch, Items, Outputs, Scores
from distill.errors import UserError
from distill.tasks.causal_lm import CausalLM, CausalText, NextTokenScores
from distill.tasks.masked_lm import TextData
from distill.text.sequences import Sequences, open_corpus

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.modeling_outputs import ModelOutput

    from distill.text.stream import StreamedText

DIRECTIONS = ("forwards", "backwards")


@dataclass(frozen=True)
class BidirectionalText(CausalText):
    """A corpus of raw text and its sequences, of which every token is predicted from either side."""

    objective = "bidirectional_language_modelling"

    @property
    def scoring(self) -> "BothDirections":
        """The scores of tokens in either direction."""
        scoring = self.token_scores()
        return BothDirections(scoring.settings, tokens=scoring.tokens, counts=scoring.counts)


class BothDirections(NextTokenScores):
    """The cross-entropies and the predictions of the next and the previous tokens."""

    def score(self, outputs: Outputs, items: Items) -> "dict[str, Tensor]":
        """Cross-entropy, prediction, correctness and direction of every item."""
        _, _, direction = find_predictions(items.batch)
        return super().score(outputs, items) | {"direction": direction[items.span]}

    def measure(self, items: Items) -> "dict[str, Tensor]":
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

    def __init__(self, *, name: str = "bilm", **options: Any) -> None:
        super().__init__(name=name, **options)

    def read(self, cache_dir: Path) -> BidirectionalText:
        return BidirectionalText(open_corpus(self.settings, cache_dir), self.settings)

    def encode(
        self, data: TextData, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None
    ) -> "dict[str, Sequences | StreamedText]":
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

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the model without its head, which computes logits at the items alone."""
        from distill.models.chunked_logits import run_encoder_pass

        def select_states(encoded: "ModelOutput") -> "Tensor":
            states: Tensor | None = encoded.get("direction_states")  # [B, L, 2, D]
            if states is None:
                raise UserError(
                    f"a {type(model).__name__} reads both sides of a token at once, and task {self.info.name} needs a "
                    "model of two directions: take +teacher=bilm, or task=mlm"
                )
            return states[find_predictions(batch)]

        return run_encoder_pass(model, batch, items, needs, select_states=select_states)


def find_predictions(batch: Batch) -> "tuple[Tensor, Tensor, Tensor]":
    """Returns row, position and direction of the tokens `[n]` that predict the next (0) or the previous token (1).

    Both must be tokens of the text, on whichever side the padding is.
    """
    mask = batch["attention_mask"].bool()
    both = mask[:, :-1] & mask[:, 1:]
    row, position, direction = torch.stack([F.pad(both, (0, 1)), F.pad(both, (1, 0))], dim=-1).nonzero().unbind(dim=-1)
    return row, position, direction
