"""Loss terms of a generator that replaces tokens, and of a discriminator that detects them (arXiv 2003.10555)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from distill.contracts import Items, Outputs
from distill.losses.term import Term, cross_entropy_sum, get_logits, in_chunks

WEIGHT = 50.0  # Of the detection in ELECTRA's sum, because its loss is far smaller than the generator's.


class ReplacedTokens(Term):
    """Binary cross-entropy of the detection of replaced tokens (ELECTRA, arXiv 2003.10555, section 2).

    `-log p(replaced)` at a token that was replaced and `-log p(original)` at another one, with p the softmax of the two
    logits, which is the paper's sigmoid of their difference. It is the mean over all tokens but the padding, special
    ones included, as in the authors' code. A sampled token that equals the one of the text is original.
    """

    needs_teacher = False
    replaced_only = True

    def __init__(self, *, weight: float = WEIGHT) -> None:
        super().__init__(weight=weight)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.replaced is None:
            raise ValueError("got outputs without replaced tokens, expected [n] for the items: use it with task=rtd")
        return F.cross_entropy(get_logits(student).float(), student.replaced.long(), reduction="sum"), self.count(items)


class GeneratorLoss(Term):
    """Cross-entropy of the generator at the masked tokens, its masked language modelling (arXiv 2003.10555, section 2).

    The generator learns from this alone: no gradient of the detection passes through the sampled tokens.
    """

    needs_teacher = False
    reads_logits = False
    replaced_only = True

    def count(self, items: Items) -> Tensor:
        return items.labelled.sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        generator = student.generator
        if generator is None:
            raise ValueError("got outputs without those of a generator, expected them: use it with task=rtd")

        def total(masked: Items) -> Tensor:
            return cross_entropy_sum(get_logits(generator.at(masked)), masked.labels)

        sums = list(in_chunks(total, items.masked_tokens(), generator.chunk_size))
        return torch.stack(sums).sum(), self.count(items)
