"""Tests that spreads, paired t-tests and paired bootstraps give the values of independent formulas."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from distill.core.contracts import Scores
from distill.kinds.classification import OneClass
from distill.kinds.regression import NumberScores
from distill.kinds.token_classification import TagScores
from distill.training import statistics


def classified(labels: np.ndarray, right: np.ndarray) -> Scores:
    """Scores of a model with two classes that predicts the examples `right` rightly and the others wrongly."""
    predicted = np.where(right, labels, 1 - labels)
    return Scores({"logits": np.eye(2)[predicted]}, labels, np.arange(len(labels)))


def test_spread_is_the_mean_and_the_deviation_of_a_sample() -> None:
    assert statistics.spread([1.0, 2.0, 6.0]) == {"mean": 3.0, "std": pytest.approx(math.sqrt((4 + 1 + 9) / 2))}
    assert statistics.spread([0.5]) == {"mean": 0.5, "std": None}


def test_comparison_of_seeds_has_the_values_worked_out_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t = 2 sqrt(3), two degrees of freedom.
    result = statistics.compare_seeds([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    error, quantile = 1 / math.sqrt(3), 4.302653
    assert (result["difference"], result["over"], result["number"]) == (2.0, "seeds", 3)
    assert result["interval"] == pytest.approx([2 - quantile * error, 2 + quantile * error], abs=1e-5)
    t = 2 / error
    assert result["p"] == pytest.approx(1 - t / math.sqrt(t**2 + 2))  # Student's distribution with two degrees.


def test_comparison_of_seeds_is_the_paired_t_test_of_scipy() -> None:
    values, others = [0.91, 0.9, 0.93, 0.915], [0.9, 0.905, 0.91, 0.9]
    expected = stats.ttest_rel(values, others)
    result = statistics.compare_seeds(values, others)
    interval = expected.confidence_interval(0.95)
    assert result["p"] == pytest.approx(expected.pvalue)
    assert result["interval"] == pytest.approx([interval.low, interval.high])


@pytest.mark.parametrize(("values", "others"), [([0.9], [0.8]), ([0.9, 0.8], [0.8, 0.7]), ([0.5, 0.5], [0.5, 0.5])])
def test_differences_without_a_spread_have_no_interval(values: list[float], others: list[float]) -> None:
    result = statistics.compare_seeds(values, others)
    assert result["difference"] == pytest.approx(values[0] - others[0])
    assert (result["interval"], result["p"], result["number"]) == (None, None, len(values))


def test_bootstrap_of_accuracy_has_the_interval_of_the_normal_distribution() -> None:
    random = np.random.default_rng(1)
    labels, right, other = random.integers(2, size=2000), random.random(2000) < 0.9, random.random(2000) < 0.87
    result = statistics.compare_examples(OneClass(("accuracy",)), classified(labels, right), classified(labels, other))
    assert result is not None
    differences = right.astype(float) - other
    error = differences.std() / math.sqrt(2000)
    assert result["difference"] == pytest.approx(differences.mean())
    assert result["interval"] == pytest.approx(
        [differences.mean() - 1.96 * error, differences.mean() + 1.96 * error], abs=0.1 * error
    )
    assert result["p"] == pytest.approx(2 * stats.norm.sf(abs(differences.mean()) / error), abs=0.01)
    assert (result["over"], result["number"]) == ("examples", 2000)


def test_bootstrap_is_paired_and_the_same_in_every_run() -> None:
    """The order of the items does not matter, because examples are paired by their ids."""
    random = np.random.default_rng(2)
    labels, right = random.integers(2, size=300), random.random(300) < 0.8
    other = right.copy()
    other[:6] = ~other[:6]
    scoring, one, two = OneClass(("accuracy",)), classified(labels, right), classified(labels, other)
    shuffled = random.permutation(300)
    two = Scores({"logits": two.columns["logits"][shuffled]}, labels[shuffled], shuffled)
    first, second = (statistics.compare_examples(scoring, one, two) for _ in range(2))
    assert first == second
    assert first is not None
    assert first["interval"] is not None
    # Six examples differ; unpaired, the interval would have a half-width of 1.96 * sqrt(2 * 0.8 * 0.2 / 300) = 0.064.
    assert max(map(abs, first["interval"])) <= 12 / 300


def test_bootstrap_of_a_metric_that_is_no_mean_computes_it_anew_in_every_resample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "METRIC_RESAMPLES", 60)
    random = np.random.default_rng(3)
    labels, right, other = random.integers(2, size=80), random.random(80) < 0.95, random.random(80) < 0.6
    scoring = OneClass(("f1",))
    one, two = classified(labels, right), classified(labels, other)
    result = statistics.compare_examples(scoring, one, two)
    assert result is not None
    f1 = [f1_score(labels, scores.columns["logits"].argmax(axis=1)) for scores in (one, two)]
    assert result["difference"] == pytest.approx(f1[0] - f1[1])
    assert result["interval"] is not None
    low, high = result["interval"]
    assert 0 < low < result["difference"] < high
    assert result["p"] == pytest.approx(2 / 61)  # No resample is on the other side.
    assert statistics.compare_examples(scoring, one, two, only_means=True) is None


def test_bootstrap_of_tags_draws_sentences_and_not_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sentences have one entity of two words. The model finds that of the first sentence alone.

    A resample has the first sentence 0, 1 or 2 times, and then the F1 is 0, 2/3 or 1: other values come of words alone.
    """
    monkeypatch.setattr(statistics, "METRIC_RESAMPLES", 60)
    monkeypatch.setattr(TagScores, "spoil", lambda scoring, scores: None)  # Without the added examples.
    scoring = TagScores(("O", "B-x", "I-x"))
    labels, found = np.array([1, 2, 0, 1, 2]), np.array([1, 2, 0, 0, 0])
    example_id = np.array([0, 0, 0, 1, 1])
    seen: set[float] = set()
    original = scoring.metrics
    monkeypatch.setattr(
        TagScores, "metrics", lambda of_tags, of: seen.add(round(original(of)["f1"], 9)) or original(of)
    )
    one, nothing = (
        Scores({"logits": np.eye(3)[predicted]}, labels, example_id) for predicted in (found, np.zeros(5, int))
    )
    result = statistics.compare_examples(scoring, one, nothing)
    assert result is not None
    assert (result["difference"], result["number"]) == (pytest.approx(2 / 3), 2)
    assert seen == {0.0, round(2 / 3, 9), 1.0}


def test_single_example_and_correlations_can_be_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "METRIC_RESAMPLES", 40)
    one = classified(np.array([1]), np.array([True]))
    result = statistics.compare_examples(OneClass(("accuracy",)), one, classified(np.array([1]), np.array([False])))
    assert result is not None
    assert (result["difference"], result["interval"]) == (1.0, [-1.0, 1.0])  # One example tells nothing.
    numbers = np.arange(12.0)
    scores = Scores({"logits": numbers[:, None]}, numbers, np.arange(12))
    result = statistics.compare_examples(NumberScores(("pearson",)), scores, scores)
    assert result is not None
    assert (result["difference"], result["p"]) == (0.0, 1.0)


@pytest.mark.parametrize(("examples", "width"), [(5, 3 / 7), (20, 3 / 22), (148, 3 / 150), (1000, 3 / 1002)])
def test_the_interval_of_two_models_that_predict_alike_is_that_of_the_rule_of_three(
    examples: int, width: float
) -> None:
    one = classified(np.arange(examples) % 2, np.full(examples, True))
    result = statistics.compare_examples(OneClass(("accuracy",)), one, one)
    assert result is not None
    assert result["interval"] == pytest.approx([-width, width])
    assert (result["difference"], result["p"]) == (0.0, 1.0)


@pytest.mark.parametrize("lost", [0, 1, 5])
def test_the_interval_of_a_few_lost_examples_ends_near_the_exact_one(lost: int) -> None:
    """The exact one is that of Clopper and Pearson for a share of lost examples."""
    right = np.arange(2000) >= lost
    result = statistics.compare_examples(
        OneClass(("accuracy",)), classified(np.arange(2000) % 2, np.full(2000, True)),
        classified(np.arange(2000) % 2, right),
    )  # fmt: skip
    assert result is not None
    assert result["interval"] is not None
    exact = stats.binomtest(lost, 2000).proportion_ci(0.95).high
    assert 0.8 * exact <= result["interval"][1] <= 1.05 * exact


def test_bootstrap_of_f1_and_of_correlations_is_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models differ in a few of 300 examples, so that their difference varies less than the metric of each."""
    monkeypatch.setattr(statistics, "METRIC_RESAMPLES", 100)
    random = np.random.default_rng(4)
    labels, right = random.integers(2, size=300), random.random(300) < 0.8
    other = right.copy()
    other[:4] = ~other[:4]
    f1 = OneClass(("f1",))
    numbers = random.normal(size=300)
    noisy = numbers + random.normal(size=300)
    shifted = noisy + 0.01 * random.normal(size=300)
    pearson = [Scores({"logits": values[:, None]}, numbers, np.arange(300)) for values in (noisy, shifted)]
    for scoring, one, two in (
        (f1, classified(labels, right), classified(labels, other)), (NumberScores(("pearson",)), *pearson),
    ):  # fmt: skip
        result = statistics.compare_examples(scoring, one, two)
        assert result is not None
        assert result["interval"] is not None
        alone = [scoring.metrics(_sampled(one, random))[scoring.metric] for _ in range(100)]
        assert np.ptp(result["interval"]) < 1.96 * np.std(alone)  # Unpaired it is 5.5 standard deviations wide.


def test_bootstrap_of_means_is_that_of_examples() -> None:
    random = np.random.default_rng(0)
    labels = np.zeros(200, dtype=int)
    right, other = random.random(200) < 0.8, random.random(200) < 0.6
    expected = statistics.compare_examples(
        OneClass(("accuracy",)), classified(labels, right), classified(labels, other)
    )
    assert statistics.compare_means(right.astype(float), other.astype(float)) == expected


def test_bootstrap_of_a_corpus_draws_examples_with_their_counts() -> None:
    # A share of all words: the examples have 1 to 5 words each.
    random = np.random.default_rng(0)
    words = random.integers(1, 6, 300)
    right = [random.binomial(words, share) for share in (0.7, 0.6)]
    first, second = (np.stack([of, words], axis=1).astype(float) for of in right)
    worst = np.stack([np.zeros(300), words], axis=1)

    def combine(rows: np.ndarray) -> float:
        return float(rows[:, 0].sum() / rows[:, 1].sum())

    result = statistics.compare_corpora(first, second, worst, combine=combine)
    expected = combine(first) - combine(second)
    # The delta method: the variance of the mean of the residuals of a ratio.
    residuals = (right[0] - right[1] - expected * words) / words.mean()
    deviation = residuals.std(ddof=1) / math.sqrt(300)
    assert result["difference"] == pytest.approx(expected)
    assert result["interval"] == pytest.approx([expected - 1.96 * deviation, expected + 1.96 * deviation], abs=0.01)
    alike = statistics.compare_corpora(first, first, worst, combine=combine)
    low, high = alike["interval"] or (0.0, 0.0)
    assert low < alike["difference"] == 0.0 < high


def _sampled(scores: Scores, random: np.random.Generator) -> Scores:
    """Returns a resample of the examples."""
    drawn = random.integers(len(scores.labels), size=len(scores.labels))
    return Scores({"logits": scores.columns["logits"][drawn]}, scores.labels[drawn], scores.example_id)
