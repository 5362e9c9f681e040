"""The kinds of tasks, one a file: the only code that knows what a model's output looks like."""

from distill.tasks.classification import Classification
from distill.tasks.embedding import Embedding
from distill.tasks.masked_lm import MaskedLM
from distill.tasks.multi import MultiTask
from distill.tasks.multiple_choice import MultipleChoice
from distill.tasks.question_answering import QuestionAnswering
from distill.tasks.regression import Regression
from distill.tasks.token_classification import TokenClassification

__all__ = [
    "Classification",
    "Embedding",
    "MaskedLM",
    "MultiTask",
    "MultipleChoice",
    "QuestionAnswering",
    "Regression",
    "TokenClassification",
]
