"""Loss terms that learn from the labels of the data."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from distill.contracts import IGNORED, TARGET_LENGTHS, Items, Outputs
from distill.losses.term import (
    EncoderSize,
    Term,
    binary_cross_entropy_sum,
    cross_entropy_sum,
    get_logits,
    mask_logits,
    squared_error_sum,
)
from distill.options import check_arguments

Smoothing = Annotated[float, Field(ge=0, lt=1, description="a number of at least 0 and below 1")]


class HardLabels(Term):
    """Cross-entropy to the true classes of the labelled items, or the squared error of a regression.

    Where an item has any number of labels, it is the mean binary cross-entropy of the C labels y with the sigmoid s,
    `-1/C sum_c (y_c log s(z_c) + (1 - y_c) log(1 - s(z_c)))`, as `torch.nn.BCEWithLogitsLoss` has it.
    With weights of the items it is `sum_i w_i CE_i / sum_i w_i`, as `torch.nn.CrossEntropyLoss(weight=...)` has it.

    Args:
        smoothing: the share of each label that all classes of the item get alike, from 0 up to 1 (Szegedy et al.,
            arXiv 1512.00567, section 7): `(1 - s) CE + s/C sum_c -log softmax(z)_c`. It is for classes of which one is
            right.
    """

    needs_teacher = False

    @check_arguments
    def __init__(self, *, weight: float = 1.0, smoothing: Smoothing = 0.0) -> None:
        super().__init__(weight=weight)
        self.smoothing = float(smoothing)
        if smoothing:
            self.likelihoods = frozenset({"softmax"})

    def count(self, items: Items) -> Tensor:
        return items.labelled.sum() if items.weights is None else items.weights[items.labelled].sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        logits = get_logits(student)
        if items.likelihood == "gaussian":
            targets = items.labels[items.labelled].unsqueeze(-1)
            return squared_error_sum(logits[items.labelled], targets), self.count(items)
        if items.likelihood == "sigmoid":
            return binary_cross_entropy_sum(logits[items.labelled], items.labels[items.labelled]), self.count(items)
        logits = mask_logits(logits, items.valid)
        total = cross_entropy_sum(logits, items.labels, items.weights)
        if self.smoothing:
            total = (1 - self.smoothing) * total + self.smoothing * _uniform_sum(logits, items)
        return total, self.count(items)


def _uniform_sum(logits: Tensor, items: Items) -> Tensor:
    """Returns the sum of the cross-entropies of the labelled items to all of their classes alike."""
    labelled = items.labelled
    log_probs = logits[labelled].float().log_softmax(dim=-1)
    if items.valid is None:
        losses = -log_probs.mean(dim=-1)
    else:
        valid = items.valid[labelled]
        losses = -log_probs.masked_fill(~valid, 0.0).sum(dim=-1) / valid.sum(dim=-1)
    return (losses if items.weights is None else losses * items.weights[labelled]).sum()


class MaskedLanguageModelling(HardLabels):
    """Cross-entropy at the tokens chosen for prediction (arXiv 1810.04805, section 3.1)."""

    tokens_only = True

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if not items.classes_are_tokens:
            raise ValueError(
                f"mlm got logits of shape {list(get_logits(student).shape)}, expected those of a vocabulary: "
                "use it with a task over a vocabulary"
            )
        return super().forward(student, teacher, items)


class SegmentOrder(Term):
    """Cross-entropy of the prediction whether the second segment follows the first one.

    In negatives, the second segment is from elsewhere (next-sentence prediction, arXiv 1810.04805, section 3.1), or the
    two segments are swapped (sentence-order prediction, arXiv 1909.11942, section 3.1). Class 0 of the model's
    `segment_logits [B, 2]` and of the batch's `pair_labels [B]` is the true order.
    """

    needs_teacher = False
    reads_logits = False
    tokens_only = True
    needs_data = "pairs of segments in two orders (task.pair=nsp or task.pair=sop)"
    label_columns = frozenset({"pair_labels"})

    def count(self, items: Items) -> Tensor:
        return (items["pair_labels"] != IGNORED).sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.segment_logits is None:
            raise ValueError("got a model without a head for two segments, expected segment_logits [B, 2]")
        return cross_entropy_sum(student.segment_logits, items["pair_labels"]), self.count(items)


class TargetLength(Term):
    """Cross-entropy of the length of a target in tokens (Ghazvininejad et al., arXiv 1904.09324, section 3.3).

    The classes of the model's `length_logits [B, M+1]` are the lengths from 0. The batch has `target_lengths [B]`.
    """

    needs_teacher = False
    reads_logits = False
    tokens_only = True
    needs_data = "the lengths of targets with masks (task=mask_predict)"
    label_columns = frozenset({TARGET_LENGTHS})

    def count(self, items: Items) -> Tensor:
        return torch.tensor(len(items[TARGET_LENGTHS]), device=items.labels.device)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.length_logits is None:
            raise ValueError("got a model that predicts no lengths, expected length_logits [B, M+1]")
        return cross_entropy_sum(student.length_logits, items[TARGET_LENGTHS]), self.count(items)


class ThreeWayOrder(Term):
    """Cross-entropy of the prediction whether the second segment is the next one, the previous one, or of another text.

    The sentence structural objective of StructBERT (Wang et al., arXiv 1908.04577, section 2.2). The classes 0, 1 and 2
    of the batch's `order_labels [B]` are in this order.

    Unlike in the paper, the term owns the layer that predicts, and this layer reads the last hidden state of the first
    token without the pooler between them. It thus suits encoders without a pooler, and a saved model has no head more.
    """

    needs_teacher = False
    reads_logits = False
    tokens_only = True
    needs_data = "pairs of segments in three orders (task.pair=three_way)"
    label_columns = frozenset({"order_labels"})

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.classifier: nn.Linear | None = None

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        """Creates the layer that predicts, with random weights."""
        self.classifier = nn.Linear(student.width, 3)

    def count(self, items: Items) -> Tensor:
        return (items["order_labels"] != IGNORED).sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.last_hidden_state is None:
            raise ValueError("got outputs without last_hidden_state, expected those of a task whose classes are tokens")
        if self.classifier is None:
            raise ValueError("the order has no layer yet: call connect() with the size of the encoder first")
        first = items["attention_mask"].int().argmax(dim=1)  # With padding on the left it is not token 0.
        rows = torch.arange(len(first), device=first.device)
        logits = self.classifier(student.last_hidden_state[rows, first])
        return cross_entropy_sum(logits, items["order_labels"]), self.count(items)
