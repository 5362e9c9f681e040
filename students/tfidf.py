"""The student without a teacher: logistic regression on the TF-IDF of words, fitted by scikit-learn."""

from functools import partial

import numpy as np
import torch
from pydantic import PositiveInt, SkipValidation
from transformers import PreTrainedModel

from distill.core.contracts import IGNORED, Scores, Task
from distill.core.errors import UserError
from distill.core.options import check_options
from distill.data.splits import LabelledData, Split
from distill.data.words import Fit, WordModel, fit_classes, fit_labels, fit_numbers, tune
from distill.models.architectures.modeling_tfidf import TfidfConfig, TfidfForSequenceClassification
from distill.text.vocabulary import WORD_TOKENS, make_word_tokenizer
from distill.training.module import dev_metrics


@check_options("student")
def from_teacher(
    teacher: object,
    *,
    task: SkipValidation[Task],
    rows: SkipValidation[LabelledData],
    max_length: PositiveInt | None = 10_000,
) -> PreTrainedModel:
    """Fits a student to labelled rows; C and `min_df` are those that are best on dev.

    The words of both texts of a pair are counted together.

    Args:
        teacher: not read.
        task: has whole texts with classes, labels or a number.
        max_length: words of a text that the student reads; None for `task.max_length`.

    Raises:
        UserError: for texts without labels or without words.
    """
    train, dev, scoring = _read(rows.splits["train"]), _read(rows.splits["dev"]), rows.scoring
    if not len(train[0]):
        raise UserError(f"student tfidf is fitted to labels, and train of task {task.info.name} has none")
    of_classes = partial(fit_classes, classes=len(rows.labels), weights=getattr(scoring, "weights", None))
    fits: dict[str, Fit] = {"softmax": of_classes, "sigmoid": fit_labels, "gaussian": fit_numbers}

    def score(logits: np.ndarray) -> float:
        scores = Scores({"logits": logits.astype(np.float32)}, dev[1], np.arange(len(logits)))
        return dev_metrics(scoring, scores)[scoring.metric] * (1 if scoring.selects == "max" else -1)

    found = tune(*train, fits[task.info.likelihood], dev=dev[0], score=score)
    student = _create(found, rows.labels)
    student.fitted = (  # type: ignore[assignment]
        f"fitted to {len(train[0]):,} rows by scikit-learn, with C={found.penalty:g} and "
        f"min_df={found.vectorizer.min_df}, the best on dev"
    )
    return student


def _read(split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Returns the texts with labels, those of a pair as one, and the labels."""
    texts = split.texts if split.pairs is None else list(map(" ".join, zip(split.texts, split.pairs, strict=True)))
    labels = split.labels
    is_unknown = labels == IGNORED if labels.dtype.kind == "i" else np.isnan(labels)
    is_known = ~is_unknown.reshape(len(split), -1).all(axis=1)
    return np.array(texts, dtype=object)[is_known], labels[is_known]


@torch.no_grad()
def _create(model: WordModel, labels: tuple[str, ...]) -> PreTrainedModel:
    words, special = model.vectorizer.get_feature_names_out().tolist(), len(WORD_TOKENS)
    student = TfidfForSequenceClassification(TfidfConfig(
        vocab_size=special + len(words), id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    ))  # fmt: skip
    student.embeddings.weight[special:] = torch.from_numpy(model.weights)
    student.bias.copy_(torch.from_numpy(model.bias))
    student.idf[:special], student.idf[special:] = 0, torch.from_numpy(model.vectorizer.idf_)
    student.tokenizer, student.inherited = make_word_tokenizer(words), {}  # type: ignore[assignment]
    return student
