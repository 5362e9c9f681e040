"""Which words a prediction rests on: gradient times input, and integrated gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.contracts import Batch
from distill.models.forward import run_model

STEPS = (32, 128, 512)  # Of the integral (Gauss-Legendre): more where the sum misses its limit by more than this:
TOLERANCE = 0.01
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_BEGINS = ("▁", "Ġ")  # Before pieces that begin a word, in vocabularies that do not mark those that continue one.


@dataclass(frozen=True)
class Attribution:
    """What the words of a text add to the score of the predicted class.

    Attributes:
        words: of the text, without special tokens.
        product: gradient times input of each word (arXiv 1704.02685, section 2).
        integrated: integrated gradients from padding as the baseline (arXiv 1703.01365, equation 1). Of the baseline
            only the embeddings of tokens are those of padding: their positions and masks are those of the text, also
            in RoBERTa and other models that number positions by the tokens that are no padding.
        missing: by how much the sum of `integrated` over all tokens misses the difference of the scores of text and
            baseline, which it equals in the limit (there, proposition 1).
    """

    words: Sequence[str]
    product: Sequence[float]
    integrated: Sequence[float]
    missing: float


def attribute(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch: Batch) -> Attribution:
    """Returns the attributions of the largest logit of one example.

    The score is the largest logit of the example, of all its items together where it has several.

    Args:
        batch: of one sequence of tokens, `[1, L]`.
    """
    from captum.attr import IntegratedGradients

    table, ids = _embeddings(model), batch["input_ids"]
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    with torch.no_grad():
        embedded = table(ids)  # [1, L, H]
        baseline = table(ids.masked_fill(~special, int(tokenizer.pad_token_id or 0)))
    score = _scorer(model, batch)
    for steps in STEPS:
        values, delta = IntegratedGradients(score).attribute(
            embedded, baseline, n_steps=steps, internal_batch_size=STEPS[0], return_convergence_delta=True
        )
        missing = float(delta.abs().max())
        if missing <= TOLERANCE:
            break
    product = _gradient_times_input(score, embedded)
    words, groups = _words(tokenizer, ids[0].tolist())
    integrated = _sum_words(values.sum(dim=-1)[0], groups)
    return Attribution(words, _sum_words(product, groups), integrated, missing)


def _embeddings(model: PreTrainedModel) -> nn.Module:
    """Returns the table of embeddings by which a model reads a text, of an encoder-decoder that of its encoder."""
    reader = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    return cast(nn.Module, reader.get_input_embeddings())


def _scorer(model: PreTrainedModel, batch: Batch) -> Callable[[Tensor], Tensor]:
    """Returns the function of embeddings `[B, L, H]` whose values `[B]` are the logit that was largest for the example.

    All that the model makes of the ids themselves, such as positions, stays as it is in the example.
    """
    inputs = {name: column for name, column in batch.items() if name in _INPUTS}
    with torch.no_grad():
        chosen = int(run_model(model, batch).logits.flatten().argmax())

    def score(embedded: Tensor) -> Tensor:
        repeated = {name: column.expand(len(embedded), -1) for name, column in inputs.items()}
        # Behind the text are tokens of a Longformer that fill its window.
        handle = _embeddings(model).register_forward_hook(
            lambda module, ids, output: torch.cat([embedded, output[:, embedded.shape[1] :]], dim=1)
        )
        try:
            found: Tensor = run_model(model, repeated).logits.flatten(1)[:, chosen]
        finally:
            handle.remove()
        return found

    return score


def _gradient_times_input(score: Callable[[Tensor], Tensor], embedded: Tensor) -> Tensor:
    """Returns the product of the gradient and the embedding of each token, `[L]`."""
    leaf = embedded.detach().requires_grad_()
    [gradient] = torch.autograd.grad(score(leaf).sum(), leaf)
    return (gradient * embedded).sum(dim=-1)[0]


def _words(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> tuple[list[str], list[int | None]]:
    """Returns the words of the tokens, and the word that each token belongs to, None for a special one."""
    words: list[str] = []
    groups: list[int | None] = []
    marks_words = any(piece.startswith(_BEGINS) for piece in tokenizer.tokenize("a word"))
    for token, piece in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        if token in tokenizer.all_special_ids:
            groups.append(None)
            continue
        is_unmarked = marks_words and not piece.startswith(_BEGINS)
        if not words or not (piece.startswith("##") or is_unmarked):
            words.append("")
        words[-1] += piece.removeprefix("##").lstrip("".join(_BEGINS))
        groups.append(len(words) - 1)
    return words, groups


def _sum_words(values: Tensor, groups: Sequence[int | None]) -> list[float]:
    sums = [0.0] * (max((group for group in groups if group is not None), default=-1) + 1)
    for value, group in zip(values.tolist(), groups, strict=True):
        if group is not None:
            sums[group] += value
    return sums
