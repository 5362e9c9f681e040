"""Loss terms that learn from the data's own labels."""

from torch import Tensor

from distill.contracts import IGNORED, Items, Outputs
from distill.losses.term import Term, cross_entropy_sum, logits_of, masked, squared_error_sum


class HardLabels(Term):
    """Cross-entropy to the true classes of the labelled items; for a number the squared error."""

    needs_teacher = False

    def count(self, items: Items) -> Tensor:
        return items.labelled.sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        logits = logits_of(student)
        if items.likelihood == "gaussian":
            targets = items.labels[items.labelled].unsqueeze(-1)
            return squared_error_sum(logits[items.labelled], targets), self.count(items)
        return cross_entropy_sum(masked(logits, items.valid), items.labels), self.count(items)


class MaskedLanguageModelling(HardLabels):
    """Cross-entropy at the tokens chosen for prediction, and nowhere else (arXiv 1810.04805, section 3.1)."""

    over_vocabulary_only = True

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if not items.over_vocabulary:
            raise ValueError(
                f"mlm got logits of shape {list(logits_of(student).shape)}, expected those of a vocabulary: "
                "use it with a task over a vocabulary"
            )
        return super().forward(student, teacher, items)


class SegmentOrder(Term):
    """Cross-entropy of a prediction about two segments: did the second follow the first?

    Either against a segment from elsewhere, next-sentence prediction (arXiv 1810.04805, section 3.1), or against the
    same two segments in reverse, sentence-order prediction (arXiv 1909.11942, section 3.1). The model's
    `segment_logits [B, 2]` have 0 for the true order; `pair_labels [B]` are the batch's.
    """

    needs_teacher = False
    reads_logits = False
    over_vocabulary_only = True

    def count(self, items: Items) -> Tensor:
        return (items["pair_labels"] != IGNORED).sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.segment_logits is None:
            raise ValueError("got a model without a head for two segments, expected segment_logits [B, 2]")
        return cross_entropy_sum(student.segment_logits, items["pair_labels"]), self.count(items)
