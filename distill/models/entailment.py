"""Logits of classes by natural language inference: does a text entail the hypothesis of each class?"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.errors import UserError
from distill.models.checks import longest

ENTAILMENT = "entail"  # The beginning of the name of the class that says that the text entails the hypothesis.


class EntailmentLogits(nn.Module):
    """Runs a model of natural language inference once for each class (Yin et al., arXiv 1909.00161).

    The logit of a class is that of entailment, so that the softmax is over the classes. Where each class has a
    probability of its own, it is the log-odds of entailment against contradiction, or against all other classes of a
    model without contradiction.

    Args:
        model: classifies pairs of a text and a hypothesis.
        hypotheses: the tokens that follow those of a text, of each class: `input_ids` and perhaps `token_type_ids`.
        independent: whether each class has a probability of its own.
        padding: id of the token that pads a batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        hypotheses: Sequence[Mapping[str, Sequence[int]]],
        *,
        independent: bool,
        padding: int,
    ) -> None:
        super().__init__()
        self.model, self.hypotheses, self.independent, self.padding = model, hypotheses, independent, padding
        names = {index: str(name).lower() for index, name in model.config.id2label.items()}
        self.entailment = find_entailment(model.config.id2label, type(model).__name__)
        opposite = [index for index, name in names.items() if name.startswith("contradict")]
        self.others = opposite or [index for index in names if index != self.entailment]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns the logits `[B, C]` in float32, for tokens and mask `[B, L]`."""
        # Tokens first and padding last, so that a hypothesis follows its text.
        order = (1 - attention_mask).argsort(dim=1, stable=True)
        ids, mask = input_ids.gather(1, order), attention_mask.gather(1, order)
        lengths = mask.sum(dim=1, keepdim=True)
        return torch.stack([self._score(ids, lengths, hypothesis) for hypothesis in self.hypotheses], dim=1)

    def _score(self, ids: Tensor, lengths: Tensor, hypothesis: Mapping[str, Sequence[int]]) -> Tensor:
        """Returns the logit of one class, `[B]`."""
        added = {name: torch.tensor(values, device=ids.device) for name, values in hypothesis.items()}
        size = len(added["input_ids"])
        places = lengths + torch.arange(size, device=ids.device)  # [B, tokens of the hypothesis]
        width = ids.shape[1] + size
        positions = torch.arange(width, device=ids.device)
        mask = (positions < lengths + size).long()
        padded = torch.nn.functional.pad(ids, (0, size), value=self.padding).masked_fill(mask == 0, self.padding)
        inputs = {"input_ids": padded.scatter(1, places, added["input_ids"].expand(len(ids), -1))}
        if "token_type_ids" in added:
            types = torch.zeros_like(padded)
            inputs["token_type_ids"] = types.scatter(1, places, added["token_type_ids"].expand(len(ids), -1))
        logits: Tensor = self.model(**inputs, attention_mask=mask).logits.float()
        entailment = logits[:, self.entailment]
        return entailment - logits[:, self.others].logsumexp(dim=1) if self.independent else entailment


def find_entailment(id2label: Mapping[int, str], source: str) -> int:
    """Returns the index of the class of entailment.

    Args:
        source: names the model in messages.

    Raises:
        UserError: for a model without exactly one.
    """
    found = [index for index, name in id2label.items() if str(name).lower().startswith(ENTAILMENT)]
    if len(found) != 1:
        raise UserError(
            f"{source} has the labels {', '.join(map(str, id2label.values()))}, expected those of natural language "
            "inference, one of them called entailment: give a model that is fine-tuned on pairs of premise and "
            "hypothesis, with the names of its labels as id2label in its config.json"
        )
    return int(found[0])


def tokenize_hypotheses(
    hypotheses: Sequence[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, max_length: int
) -> list[dict[str, list[int]]]:
    """Returns the tokens that follow those of a text if a hypothesis is the second text of a pair.

    Args:
        max_length: tokens of the longest text.

    Raises:
        UserError: for a tokenizer whose pairs do not begin with the tokens of the first text alone, and for texts that
            are too long with a hypothesis.
    """
    alone = tokenizer("text")["input_ids"]
    tokens = []
    for hypothesis in hypotheses:
        pair = tokenizer("text", hypothesis)
        if pair["input_ids"][: len(alone)] != alone:
            raise UserError(
                f"the tokenizer {type(tokenizer).__name__} has other tokens for a text in a pair than for the text "
                "alone: give a model of another family, such as BERT, RoBERTa or DeBERTa-v2"
            )
        tokens.append({name: pair[name][len(alone) :] for name in ("input_ids", "token_type_ids") if name in pair})
    added = max(len(values["input_ids"]) for values in tokens)
    limit = longest(model, tokenizer)
    if max_length + added > limit:
        raise UserError(
            f"task.max_length={max_length} and a hypothesis of {added} tokens are more than the {limit} that the model "
            f"reads: set task.max_length={limit - added}, which cuts longer texts"
        )
    return tokens
