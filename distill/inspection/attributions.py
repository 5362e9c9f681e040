"""Which words a prediction rests on: gradient times input, and integrated gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.contracts import Batch
from distill.models.forward import run_model

STEPS = 32  # Of the integral (Gauss-Legendre).
_BEGINS = ("▁", "Ġ")  # Before pieces that begin a word, in vocabularies that do not mark those that continue one.


@dataclass(frozen=True)
class Attribution:
    """What the words of a text add to the score of the predicted class.

    Attributes:
        words: of the text, without special tokens.
        product: gradient times input of each word (arXiv 1704.02685, section 2).
        integrated: integrated gradients from padding as the baseline (arXiv 1703.01365, equation 1).
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
    from captum.attr import LayerIntegratedGradients

    embeddings = model.get_input_embeddings()
    ids = batch["input_ids"]
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    baseline = ids.masked_fill(~special, int(tokenizer.pad_token_id or 0))
    score = _scorer(model, batch)
    integral = LayerIntegratedGradients(score, embeddings)
    values, missing = integral.attribute(
        ids, baseline, n_steps=STEPS, internal_batch_size=STEPS, return_convergence_delta=True
    )
    product = _gradient_times_input(score, embeddings, ids)
    words, groups = _words(tokenizer, ids[0].tolist())
    integrated = _sum_words(values.sum(dim=-1)[0], groups)
    return Attribution(words, _sum_words(product, groups), integrated, float(missing.abs().max()))


def _scorer(model: PreTrainedModel, batch: Batch) -> Callable[[Tensor], Tensor]:
    """Returns the function of token ids `[B, L]` whose values `[B]` are the logit that was largest for the example."""
    others = {name: column for name, column in batch.items() if name in ("attention_mask", "token_type_ids")}
    with torch.no_grad():
        logits = run_model(model, batch).logits.flatten()
    chosen = int(logits.argmax())

    def score(ids: Tensor) -> Tensor:
        repeated = {name: column.expand(len(ids), -1) for name, column in others.items()}
        found: Tensor = run_model(model, {"input_ids": ids, **repeated}).logits.flatten(1)[:, chosen]
        return found

    return score


def _gradient_times_input(score: Callable[[Tensor], Tensor], embeddings: nn.Module, ids: Tensor) -> Tensor:
    """Returns the product of the gradient and the embedding of each token, `[L]`."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, arguments: object, output: Tensor) -> Tensor:
        kept.append(output if output.requires_grad else output.requires_grad_())
        return output

    handle = embeddings.register_forward_hook(keep)
    try:
        [gradient] = torch.autograd.grad(score(ids).sum(), kept[:1])
    finally:
        handle.remove()
    return (gradient * kept[0]).sum(dim=-1)[0].detach()


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
