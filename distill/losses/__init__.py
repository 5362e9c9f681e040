"""Loss terms and their weighted sum."""

from distill.losses.hidden_states import Cosine
from distill.losses.labels import HardLabels, MaskedLanguageModelling, SegmentOrder
from distill.losses.logits import LogitMSE, PseudoLabels, SoftTargets
from distill.losses.objective import Objective
from distill.losses.term import Term

__all__ = [
    "Cosine",
    "HardLabels",
    "LogitMSE",
    "MaskedLanguageModelling",
    "Objective",
    "PseudoLabels",
    "SegmentOrder",
    "SoftTargets",
    "Term",
]
