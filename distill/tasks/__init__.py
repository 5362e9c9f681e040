"""The kinds of tasks, one a file: the only code that knows what a model's output looks like."""

from collections.abc import Mapping
from typing import Any

from distill.errors import UserError
from distill.tasks.bidirectional_lm import BidirectionalLM
from distill.tasks.causal_lm import CausalLM
from distill.tasks.classification import Classification
from distill.tasks.denoising import Denoising
from distill.tasks.embedding import Embedding
from distill.tasks.mask_predict import MaskPredict
from distill.tasks.masked_lm import MaskedLM
from distill.tasks.multi import MultiTask
from distill.tasks.multiple_choice import MultipleChoice
from distill.tasks.question_answering import QuestionAnswering
from distill.tasks.regression import Regression
from distill.tasks.replaced_tokens import ReplacedTokenDetection
from distill.tasks.reranking import Reranking
from distill.tasks.seq2seq import Seq2Seq
from distill.tasks.text_labels import TextLabels
from distill.tasks.token_classification import TokenClassification

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
