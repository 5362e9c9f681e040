"""Loss terms and their weighted sum."""

from distill.losses.attention import AttentionScoreMSE, MiniLM, MiniLMv2
from distill.losses.hidden_states import Cosine, HiddenStateMSE, PatientKD
from distill.losses.labels import HardLabels, MaskedLanguageModelling, SegmentOrder
from distill.losses.logits import DecoupledKD, LogitMSE, PseudoLabels, SoftTargets
from distill.losses.objective import Objective
from distill.losses.term import Term
from distill.losses.vectors import (
    CosineRegression,
    EmbeddingMSE,
    MarginMSE,
    MultipleNegatives,
    PairClassification,
    PairwiseSimilarity,
    Triplet,
)

__all__ = [
    "AttentionScoreMSE",
    "Cosine",
    "CosineRegression",
    "DecoupledKD",
    "EmbeddingMSE",
    "HardLabels",
    "HiddenStateMSE",
    "LogitMSE",
    "MarginMSE",
    "MaskedLanguageModelling",
    "MiniLM",
    "MiniLMv2",
    "MultipleNegatives",
    "Objective",
    "PairClassification",
    "PairwiseSimilarity",
    "PatientKD",
    "PseudoLabels",
    "SegmentOrder",
    "SoftTargets",
    "Term",
    "Triplet",
]
