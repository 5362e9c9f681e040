"""Tests of intervals over seeds and examples, against formulas and by how often equal models are told apart."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from distill.chain import breakdowns
from distill.core.contracts import Scores
from distill.kinds.classification import OneClass
from distill.kinds.regression import NumberScores
from distill.kinds.scoring import Scoring
from distill.kinds.token_classification import TagScores
from distill.training import statistics
from distill.training import statistics as parts
from distill.training.statistics import Measured, Parts, compare_values, estimate, measure_parts
from tests.training.test_statistics import classified


def measured(values: np.ndarray) -> Measured:
    """A share of right examples with its parts."""
    found = measure_parts(OneClass(("accuracy",)), classified(np.zeros(len(values), dtype=int), values > 0))
    return Measured(float(values.mean()), found)


def test_parts_of_a_mean_are_its_examples_and_those_of_other_metrics_have_their_mean() -> None:
    right = np.arange(30) % 3 > 0
    found = measure_parts(OneClass(("accuracy",)), classified(np.zeros(30, dtype=int), right))
    assert found is not None
    assert found.values == pytest.approx(right.astype(float))
    assert found.record()["values"].split()[:3] == ["0", "1", "1"]
    again = Parts.read(found.record())
    assert again is not None
    assert (again.values.tolist(), again.examples) == (right.astype(float).tolist(), 30)
    many = measure_parts(OneClass(("accuracy",)), classified(np.zeros(1050, dtype=int), np.arange(1050) % 4 > 0))
    assert many is not None
    assert (len(many.values), many.examples) == (parts.GROUPS, 1050)
    random = np.random.default_rng(0)
    numbers = random.normal(size=400)
    scores = Scores({"logits": (numbers + random.normal(size=400))[:, None]}, numbers, np.arange(400))
    of_pearson = measure_parts(NumberScores(("pearson",)), scores)
    assert of_pearson is not None
    value = NumberScores(("pearson",)).selecting_metric(scores)
    assert of_pearson.values.mean() == pytest.approx(value, abs=0.01)
    # The delta method of Fisher: the standard error is (1 - r^2) / sqrt(n).
    assert of_pearson.values.std(ddof=1) / 10 == pytest.approx((1 - value**2) / 20, rel=0.25)
    assert measure_parts(OneClass(("accuracy",)), classified(np.array([1]), np.array([True]))) is None


def test_seeds_and_examples_have_the_variance_of_readers_and_cases() -> None:
    """Three seeds on 40 examples; the mean squares are those of an analysis of variance of the differences."""
    random = np.random.default_rng(1)
    first, second = (random.random((3, 40)) < share for share in (0.8, 0.6))
    table = first.astype(float) - second
    rows, columns = table.mean(axis=1), table.mean(axis=0)
    seeds = 40 * rows.var(ddof=1)
    pair = np.append(columns, [1.0, -1.0])  # One more example of each model.
    examples = 3 * 40 * pair.var(ddof=1) / 40
    both = ((table - columns - rows[:, None] + table.mean()) ** 2).sum() / (2 * 39)
    variance = (seeds + max(0.0, examples - both)) / 120
    degrees = variance**2 / ((seeds / 120) ** 2 / 2 + (max(0.0, examples - both) / 120) ** 2 / 39)
    found = statistics.compare_seeds([*map(measured, first)], [*map(measured, second)])
    half = stats.t.ppf(0.975, degrees) * math.sqrt(variance)
    over_seeds = stats.t.ppf(0.975, 2) * math.sqrt(seeds / 120)
    widest, mean = max(half, over_seeds), rows.mean()
    assert (found["over"], found["number"], found["difference"]) == ("seeds and examples", 3, pytest.approx(mean))
    assert found["interval"] == pytest.approx([mean - widest, mean + widest])


def test_equal_seeds_have_the_interval_of_their_examples() -> None:
    """Without parts two models whose seeds all differ alike had no interval, and were called different."""
    right, other = np.arange(50) % 5 > 0, np.arange(50) % 5 > 1
    values, others = [measured(right)] * 3, [measured(other)] * 3
    found = statistics.compare_seeds(values, others)
    assert found["interval"] is not None
    assert found["interval"][1] - found["difference"] == pytest.approx(0.12, abs=0.01)
    assert statistics.compare_seeds([*map(float, values)], [*map(float, others)])["interval"] is None
    alone = estimate([measured(right), measured(other)], 50)
    assert alone is not None
    assert alone.over == "seeds and examples"


def test_a_mean_over_tasks_has_the_variance_of_independent_tasks() -> None:
    random = np.random.default_rng(2)
    tasks = [measured(random.random(size) < share) for size, share in ((60, 0.9), (100, 0.5))]
    mean = parts.average(tasks)
    assert mean == pytest.approx(sum(tasks) / 2)
    found = parts.estimate_error([mean], None)
    expected = sum(parts.estimate_error([task], None).error ** 2 for task in tasks) / 4  # type: ignore[union-attr]
    assert found is not None
    assert found.error == pytest.approx(math.sqrt(expected), rel=0.02)
    assert parts.average([tasks[0], 0.5]).parts is None


def test_rows_of_other_seeds_and_of_one_seed_are_paired_by_their_examples() -> None:
    random = np.random.default_rng(3)
    ability = random.normal(1, 1, 300)
    rows = [[measured(ability + random.normal(0, 0.1, 300) > 0) for _ in range(3)] for _ in range(2)]
    unpaired = compare_values(dict(enumerate(rows[0])), dict(enumerate(rows[1], 3)), 300)
    plain = compare_values({0: float(rows[0][0])}, {1: float(rows[1][0])}, 300)
    one = compare_values({0: rows[0][0]}, {1: rows[1][0]}, 300)
    assert unpaired is not None
    assert one is not None
    assert plain is not None
    assert (unpaired["over"], one["over"], one["number"]) == ("seeds and examples", "examples", 300)
    # The models share most of their errors, which an interval of independent models does not know.
    assert np.ptp(one["interval"] or 0) < 0.6 * np.ptp(plain["interval"] or 0)


def test_many_small_differences_have_no_added_example_of_the_largest_kind() -> None:
    random = np.random.default_rng(4)
    values, others = (np.clip(0.6 + 0.05 * random.normal(size=200), 0, 1) for _ in range(2))
    found = statistics.compare_means(values, others)
    expected = 1.96 * (values - others).std() / math.sqrt(200)
    assert found["interval"] is not None
    assert np.ptp(found["interval"]) / 2 == pytest.approx(expected, rel=0.1)  # 2.2 times as wide with a whole example.


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_the_interval_of_a_correlation_is_no_wider_than_its_examples_make_it(metric: str) -> None:
    """Two models of the same labels, whose correlations have the known variance of dependent ones (Steiger, 1980)."""
    random = np.random.default_rng(5)
    labels = random.normal(size=300)
    shared = random.normal(size=300)
    scoring, models = NumberScores((metric,)), []
    for _ in range(2):
        numbers = labels + 0.3 * shared + 0.3 * random.normal(size=300)
        models.append(Scores({"logits": numbers[:, None]}, labels, np.arange(300)))
    found = statistics.compare_examples(scoring, *models)
    r = [scoring.selecting_metric(of) for of in models]
    between = float(np.corrcoef(models[0].columns["logits"][:, 0], models[1].columns["logits"][:, 0])[0, 1])
    mean = sum(r) / 2
    covariance = between * (1 - 2 * mean**2) - 0.5 * mean**2 * (1 - 2 * mean**2 - between**2)
    error = math.sqrt(2 * ((1 - mean**2) ** 2 - covariance) / 300)
    assert found is not None
    assert found["interval"] is not None
    assert np.ptp(found["interval"]) / 2 == pytest.approx(1.96 * error, rel=0.3)  # It was up to four times as wide.


def scores_of(kind: str, ability: np.ndarray, random: np.random.Generator) -> tuple[Scoring, Scores]:
    """Scores of a model that is right where its ability is above 0; facts follow from the number of the example."""
    n = len(ability)
    if kind == "pearson":
        labels = np.sin(np.arange(n) * 1.7)
        return NumberScores(("pearson",)), Scores({"logits": (labels + 0.4 * ability)[:, None]}, labels, np.arange(n))
    if kind == "tags":  # One entity in each sentence of three words.
        labels = np.tile([0, 1, 0], n)
        predicted = labels.copy()
        predicted[1::3] = ability > 0
        predicted[::3] = random.random(n) < 0.1
        return TagScores(("O", "B-x")), Scores({"logits": np.eye(2)[predicted]}, labels, np.repeat(np.arange(n), 3))
    labels = np.arange(n) % 2
    return OneClass((kind,)), classified(labels, ability > 0)


def told_apart(kind: str, compare: Callable[..., statistics.Difference | None], *, students: int, trials: int) -> float:
    """The share of trials in which two models of the same ability, with their own examples, are told apart."""
    random, told = np.random.default_rng(6), 0
    for _ in range(trials):
        difficulty, models = 0.8 + random.normal(size=200), []
        for _ in range(2):
            shared = difficulty + 0.7 * random.normal(size=200)
            models.append([scores_of(kind, shared + 0.3 * random.normal(size=200), random) for _ in range(students)])
        found = compare(*models)
        interval = found["interval"] if found else None
        told += interval is not None and not interval[0] <= 0 <= interval[1]
    return told / trials


@pytest.mark.parametrize("kind", ["accuracy", "tags"])
def test_equal_models_of_one_seed_are_seldom_told_apart(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 500)

    def resampled(first: list[tuple[Scoring, Scores]], second: list[tuple[Scoring, Scores]]) -> statistics.Difference:
        [(scoring, of)], [(_, other)] = first, second
        found = statistics.compare_examples(scoring, of, other, most=100)
        assert found is not None
        return found

    trials = {"accuracy": 150, "pearson": 20, "tags": 20}[kind]
    assert told_apart(kind, resampled, students=1, trials=trials) <= 0.15


def test_tags_have_an_interval_without_a_baseline() -> None:
    """F1 of entities is no mean over examples, and is compared by the parts of its sentences."""
    random = np.random.default_rng(7)
    ability = 1 + random.normal(size=200)
    (scoring, student), (_, teacher) = (scores_of("tags", ability + random.normal(size=200), random) for _ in range(2))
    models = {"student": {"dev": student}, "baseline": None, "teacher": {"dev": teacher}}
    found = breakdowns.compare_models(scoring, models, breakdowns.record_parts(scoring, models), split="dev", seeds=1)
    resampled = statistics.compare_examples(scoring, student, teacher, most=200)
    assert resampled is not None
    assert list(found) == ["teacher"]
    assert (found["teacher"]["over"], found["teacher"]["number"], found["teacher"]["split"]) == ("examples", 200, "dev")
    assert found["teacher"]["difference"] == pytest.approx(resampled["difference"])
    assert np.ptp(found["teacher"]["interval"] or 0) == pytest.approx(np.ptp(resampled["interval"] or 0), rel=0.3)
