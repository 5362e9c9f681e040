"""The kinds of tasks, one a file: the only code that knows what a model's output looks like."""

from collections.abc import Mapping
from typing import Any

from distill.core.errors import UserError
from distill.kinds.autoregressive import BidirectionalLM, CausalLM, Denoising
from distill.kinds.classification import Classification
from distill.kinds.embedding import Embedding
from distill.kinds.masked_lm import MaskedLM, ReplacedTokenDetection
from distill.kinds.multiple_choice import MultipleChoice
from distill.kinds.multitask import MultiTask
from distill.kinds.question_answering import QuestionAnswering
from distill.kinds.regression import Regression
from distill.kinds.reranking import Reranking
from distill.kinds.seq2seq import MaskPredict, Seq2Seq
from distill.kinds.token_classification import TokenClassification
from distill.kinds.verbalizer import TextLabels

__all__ = [
    "BidirectionalLM",
    "CausalLM",
    "Classification",
    "Denoising",
    "Embedding",
    "MaskPredict",
    "MaskedLM",
    "MultiTask",
    "MultipleChoice",
    "QuestionAnswering",
    "Regression",
    "ReplacedTokenDetection",
    "Reranking",
    "Seq2Seq",
    "TextLabels",
    "TokenClassification",
]

# The classes of one task; a run of several has a bundle for each of them.
CLASSES: tuple[Any, ...] = (
    BidirectionalLM, CausalLM, Classification, Denoising, Embedding, MaskPredict, MaskedLM, MultipleChoice,
    QuestionAnswering, Regression, ReplacedTokenDetection, Reranking, Seq2Seq, TextLabels, TokenClassification,
)  # fmt: skip
_AUTO_CLASSES: Mapping[str, str] = {kind: each.auto_class for each in CLASSES for kind in each.kinds}


def find_auto_class(kind: str) -> str:
    """Returns the auto class of the models for a kind of task, which bundle.json and run.json name.

    Raises:
        UserError: for a kind that no class of tasks has.
    """
    if kind not in _AUTO_CLASSES:
        raise UserError(f"got the kind of task {kind}, expected one of {', '.join(_AUTO_CLASSES)}")
    return _AUTO_CLASSES[kind]
