"""Tests of metrics and agreement against values worked out by hand, and of the options of a task."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.core.contracts import Scores, Task
from distill.core.errors import OptionError, UserError
from distill.kinds import Classification, MaskedLM, Regression
from distill.kinds.classification import OneClass
from distill.kinds.masked_lm import TokenScores
from distill.kinds.regression import NumberScores
from distill.training.module import split_metrics

CLASSES = OneClass(("accuracy", "f1", "matthews"))
NUMBER = NumberScores(("pearson", "spearman", "mae"))


def scores_of(logits: np.ndarray, labels: np.ndarray | None = None) -> Scores:
    """Returns the scores of examples in order."""
    return Scores({"logits": logits}, np.zeros(len(logits), int) if labels is None else labels, np.arange(len(logits)))


def test_metrics_of_a_classification_match_values_by_hand() -> None:
    # Predicted 1, 1, 1, 0 against 1, 1, 0, 0: two of three are right among the positive, none is missed.
    logits = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [1.0, 0.0]])
    metrics = CLASSES.metrics(scores_of(logits, np.array([1, 1, 0, 0])))
    assert list(metrics) == ["accuracy", "f1", "matthews"]
    assert metrics["accuracy"] == 0.75
    assert metrics["f1"] == pytest.approx(0.8)
    assert metrics["matthews"] == pytest.approx((2 * 1 - 1 * 0) / np.sqrt(3 * 2 * 2 * 1))


def spam_filter(**options: Any) -> Classification:
    """Returns a task whose classes are named by its data, ham and spam, with F1."""
    tables = {"train": (["a", "b"], ["ham", "spam"]), "dev": (["c", "d"], ["spam", "ham"])}
    return Classification(**({"text": "text", "metrics": ["accuracy", "f1"]} | tables | options))


def test_f1_is_that_of_the_positive_class_or_the_mean_of_both() -> None:
    # Of ham two of three predictions are right and none is missed, of spam one prediction is right and one is missed.
    logits, labels = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([0, 0, 1, 1])
    for positive, expected in (("ham", 0.8), ("spam", 2 / 3)):
        data = spam_filter(positive=positive).read(Path("nowhere"))
        assert data.scoring.metrics(scores_of(logits, labels))["f1"] == pytest.approx(expected)
        assert data.scoring.describe(data)["positive"] == positive
        assert data.scoring.summary(data) == f"0 ham, 1 spam; F1 of {positive}"
    data = spam_filter().read(Path("nowhere"))  # None is known to be positive: the mean of both.
    with warnings.catch_warnings(action="error"):
        assert data.scoring.metrics(scores_of(logits, labels))["f1"] == pytest.approx((0.8 + 2 / 3) / 2)
    assert data.scoring.summary(data) == "0 ham, 1 spam; F1 of both, averaged (task.positive=NAME for that of one)"


@pytest.mark.parametrize("names", [("f1",), ("macro_f1",)])
def test_a_mean_f1_is_that_of_the_classes_with_a_row_whatever_a_model_predicts(names: tuple[str, ...]) -> None:
    """One row of 50 that is given a class without rows is one mistake, and no class of which all are missed."""
    scoring, labels = OneClass(names, classes=("a", "b", "c")), np.arange(50) % 2
    five_wrong, two_wrong = labels.copy(), labels.copy()
    five_wrong[:5] = 1 - labels[:5]
    two_wrong[:2] = (2, 0)
    values = [scoring.selecting_metric(scores_of(np.eye(3)[each], labels)) for each in (five_wrong, two_wrong)]
    assert values[0] == pytest.approx((2 * 22 / (25 + 24) + 2 * 23 / (25 + 26)) / 2)
    assert values[1] == pytest.approx((2 * 24 / (25 + 25) + 2 * 24 / (25 + 24)) / 2)
    assert values[1] > 0.95 > values[0]


def test_the_macro_f1_of_two_classes_selects_checkpoints_without_a_positive_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logits, labels = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([0, 0, 1, 1])
    for positive in (None, "spam"):
        task = spam_filter(metrics=["macro_f1", "f1"], class_weights="balanced", positive=positive)
        data = task.read(Path("nowhere"))
        assert data.scoring.metric == "macro_f1"
        assert data.scoring.selecting_metric(scores_of(logits, labels)) == pytest.approx((0.8 + 2 / 3) / 2)
    assert "no row of" not in "".join(capsys.readouterr())
    three = {"train": (["a", "b", "c"] * 8, ["x", "y", "z"] * 8), "dev": (["d", "e"], ["x", "y"])}
    spam_filter(**three).read(Path("nowhere"))
    assert "dev has no row of z: the mean F1 is that of the other 2 classes" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("options", "positive"),
    [
        (
            {"labels": ["not_equivalent", "equivalent"], "train": (["a", "b"], [1, 0]), "dev": (["c"], [1])},
            "equivalent",
        ),
        ({"labels": ["spam", "ham"]}, "ham"),
        ({"train": (["a", "b"], [1, 0]), "dev": (["c"], [1])}, "1"),
        ({"train": (["a", "b"], [1.0, 0.0]), "dev": (["c"], [1.0])}, "1"),
        ({"train": (["a", "b"], [True, False]), "dev": (["c"], [True])}, "True"),
        ({"train": (["a", "b"], [1, 2]), "dev": (["c"], [1]), "positive": 1}, "1"),
        ({"train": (["a", "b", "c"], ["x", "y", "z"]), "dev": (["d"], ["x"])}, None),
        ({"metrics": ["accuracy", "matthews"]}, None),
    ],
)
def test_the_positive_class_of_named_or_numbered_classes_is_the_second(
    options: dict[str, Any], positive: str | None
) -> None:
    task = spam_filter(**options)
    data = task.read(Path("nowhere"))
    assert data.scoring.describe(data)["positive"] == positive


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["f1"]}, "F1 is that of one of the two classes ham and spam: set task.positive=ham or task.pos"),
        (
            {"metrics": ["f1", "accuracy"], "train": (["a", "b"], [1, 2]), "dev": (["c"], [1])},
            "set task.positive=1 or task.positive=2",
        ),
        ({"positive": "eggs"}, "got task.positive=eggs, expected ham or spam"),
        (
            {"train": (["a", "b", "c"], ["ham", "spam", "eggs"]), "positive": "ham"},
            "got task.positive=ham, expected null, because the task has 3 classes",
        ),
    ],
)
def test_an_unknown_positive_class_is_refused_with_the_names(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        spam_filter(**options).read(Path("nowhere"))
    assert caught.value.exit_code == 2


def test_the_digest_of_the_data_depends_on_the_positive_class() -> None:
    """It is a part of the key of a fine-tuned teacher, whose checkpoint F1 may select."""
    plain, second, first = (
        spam_filter(metrics=["accuracy"], **options).read(Path("nowhere")).sha256
        for options in ({}, {"positive": "spam"}, {"positive": "ham"})
    )
    assert plain == second != first


def test_metrics_of_a_regression_match_values_by_hand() -> None:
    logits, labels = np.array([[1.0], [2.0], [4.0]]), np.array([10.0, 20.0, 30.0])
    metrics = NUMBER.metrics(scores_of(logits, labels))
    assert metrics["spearman"] == pytest.approx(1.0)
    assert metrics["pearson"] == pytest.approx(np.corrcoef([1, 2, 4], [10, 20, 30])[0, 1])
    assert metrics["mae"] == pytest.approx((9 + 18 + 26) / 3)


def test_a_correlation_with_a_constant_is_zero() -> None:
    metrics = NUMBER.metrics(scores_of(np.full((3, 1), 2.5), np.array([1.0, 2.0, 3.0])))
    assert (metrics["pearson"], metrics["spearman"], metrics["mae"]) == (0.0, 0.0, pytest.approx(2.5 / 3))


def test_metrics_of_other_splits_than_dev_are_named_after_the_split() -> None:
    right, wrong = (scores_of(np.array([row]), np.array([1])) for row in ([0.0, 1.0], [1.0, 0.0]))
    scoring = OneClass(("accuracy",))
    assert split_metrics(scoring, {"dev": right, "test": wrong}) == {"accuracy": 1.0, "test/accuracy": 0.0}


def test_agreement_is_the_share_of_equal_or_near_predictions() -> None:
    reference = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert CLASSES.agreement(scores_of(np.flip(reference, 0)), scores_of(reference)) == 0.5
    numbers = np.array([[0.0], [5.0], [10.0], [3.0]])
    # 5% of the range is 0.5.
    near = numbers + np.array([[0.4], [-0.4], [0.6], [0.0]])
    assert NUMBER.agreement(scores_of(near), scores_of(numbers)) == 0.75
    assert NUMBER.agreement(scores_of(np.zeros((2, 1))), scores_of(np.zeros((2, 1)))) == 1.0


def test_the_calibration_error_is_the_gap_between_probability_and_accuracy() -> None:
    """Four items at 0.9 of which three are right, one at 0.6 that is wrong: (4 x 0.15 + 1 x 0.6) / 5."""
    logits = np.log([[0.1, 0.9], [0.1, 0.9], [0.9, 0.1], [0.9, 0.1], [0.4, 0.6]])
    labels = np.array([1, 1, 0, 1, 0])
    assert CLASSES.calibration_error(scores_of(logits, labels)) == pytest.approx(0.24)
    certain = np.array([[0.0, 100.0]])  # A probability of 1 is in the last bin.
    assert CLASSES.calibration_error(scores_of(certain, np.array([1]))) == pytest.approx(0.0)
    assert NUMBER.calibration_error(scores_of(np.zeros((2, 1)))) is None


def test_the_probability_difference_is_the_largest_over_all_items() -> None:
    reference = np.log([[0.5, 0.5], [0.2, 0.8]])
    other = np.log([[0.5, 0.5], [0.3, 0.7]]) + 7  # The same probabilities whatever is added to the logits.
    assert CLASSES.probability_diff(scores_of(other), scores_of(reference)) == pytest.approx(0.1)
    numbers = np.array([[0.0], [5.0], [10.0], [3.0]])
    assert NUMBER.probability_diff(scores_of(numbers + 0.5), scores_of(numbers)) == pytest.approx(0.05)
    # A student that predicts nearly the same for all texts is compared with the range of the labels.
    constant, labels = np.array([[2.0], [2.0]]), np.array([0.0, 5.0])
    assert NUMBER.probability_diff(scores_of(constant + 0.5), scores_of(constant, labels)) == pytest.approx(0.1)
    losses = [Scores({"loss": -np.log([0.5, share])}, np.zeros(2), np.arange(2)) for share in (0.25, 0.5)]
    assert TokenScores(MaskedLM().settings).probability_diff(*losses) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (Classification, {"text": ["a", "b", "c"]}, "expected one column or the two of a pair"),
        (Classification, {"metrics": []}, "expected a list of some of accuracy"),
        (Classification, {"labels": ["a"]}, r"got labels=\[a\], expected at least two names"),
        (Classification, {"labels": ["a", "a"]}, "expected at least two names, each once"),
        (Classification, {"labels": [True, False]}, "expected at least two names, quoted if YAML's true or false"),
        (Regression, {"metrics": ["accuracy"]}, r"got metrics=\[accuracy\], expected a list of some of pearson, spear"),
        (Regression, {"metrics": ["mae"]}, r"got metrics=\[mae\], expected pearson or spearman first"),
        (Classification, {"labels": ["a", "a "]}, r"got labels=\[a, a \], expected at least two names, each once"),
        (Classification, {"labels": ["a", "b"], "positive": "c"}, "got positive=c, expected a or b"),
        (Classification, {"labels": ["a", "b", "c"], "positive": "c"}, "got positive=c, expected null, because the ta"),
        (Classification, {"positive": True}, "got positive=true, expected the name of a class, quoted if YAML's true"),
        (Classification, {"dev_fraction": 1.0}, "got dev_fraction=1.0, expected a share between 0 and 1"),
        (Classification, {"max_length": 2}, "expected at least 3 tokens"),
        (Classification, {"train_examples": 0}, "got train_examples=0, expected a whole number of at least 1 or null"),
    ],
)
def test_invalid_options_are_refused(
    kind: type[Classification] | type[Regression], options: dict[str, object], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        kind(**({"name": "toy", "text": ["text"]} | options))


def test_a_regression_takes_no_label_names() -> None:
    with pytest.raises(OptionError, match=r"got labels=\[a, b\], expected one of the options text, label, name"):
        Regression(text="text", labels=["a", "b"])


@pytest.mark.parametrize(
    ("task", "notice"),
    [
        (
            Classification(text="text", train=(["a", "b"] * 8, ["no", "yes"] * 8), dev=(["c", "d"], ["no", "no"])),
            "dev has one class only, no: its accuracy says nothing of the others",
        ),
        (
            Regression(text="text", train=(["a", "b"] * 8, [0.5, 2.0] * 8), dev=(["c", "d"], [1.5, 1.5])),
            "all numbers of dev are 1.5, so that pearson is 0 whatever a model predicts: give a dev with different",
        ),
    ],
)
def test_a_dev_split_of_one_class_or_number_is_a_notice(
    task: Task, notice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task.read(tmp_path)
    assert notice in " ".join("".join(capsys.readouterr()).split())
