"""Loss terms and their weighted sum. `distill` has the same names."""

from distill.losses.attention import AttentionScoreMSE as AttentionScoreMSE
from distill.losses.attention import MiniLM as MiniLM
from distill.losses.attention import MiniLMv2 as MiniLMv2
from distill.losses.detection import GeneratorLoss as GeneratorLoss
from distill.losses.detection import ReplacedTokens as ReplacedTokens
from distill.losses.hidden_states import Cosine as Cosine
from distill.losses.hidden_states import HiddenStateMSE as HiddenStateMSE
from distill.losses.hidden_states import PatientKD as PatientKD
from distill.losses.labels import HardLabels as HardLabels
from distill.losses.labels import MaskedLanguageModelling as MaskedLanguageModelling
from distill.losses.labels import SegmentOrder as SegmentOrder
from distill.losses.labels import ThreeWayOrder as ThreeWayOrder
from distill.losses.logits import DecoupledKD as DecoupledKD
from distill.losses.logits import LogitMSE as LogitMSE
from distill.losses.logits import PseudoLabels as PseudoLabels
from distill.losses.logits import SoftTargets as SoftTargets
from distill.losses.objective import Objective as Objective
from distill.losses.spans import SpanBoundary as SpanBoundary
from distill.losses.term import Term as Term
from distill.losses.vectors import CosineRegression as CosineRegression
from distill.losses.vectors import EmbeddingMSE as EmbeddingMSE
from distill.losses.vectors import MarginMSE as MarginMSE
from distill.losses.vectors import MultipleNegatives as MultipleNegatives
from distill.losses.vectors import PairClassification as PairClassification
from distill.losses.vectors import PairwiseSimilarity as PairwiseSimilarity
from distill.losses.vectors import Triplet as Triplet
