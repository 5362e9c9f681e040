"""Tests of the ranks of an option's values over tasks, with numbers worked out by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from scipy import stats

from distill.core.errors import UserError
from distill.jobs.publishing_jobs import run_report
from distill.records.experiment_table import DIFFERENCES, VALUES
from distill.records.ranking import RANKING, Ranking
from distill.records.run import Run, open_run
from distill.records.schema import find_runs
from distill.training.statistics import Difference, compare_all, compare_values, smallest_shown
from tests.records.test_comparison import write_run

SEEDS = (0, 1, 2)


def write_runs(root: Path, values: dict[str, dict[str, list[float]]], **more: Any) -> None:
    """Writes a run of the values of each seed for each task and objective, with `more` in its record."""
    for task, of in values.items():
        for number, (name, scores) in enumerate(of.items()):
            by_seed = dict(zip(SEEDS, scores, strict=False))
            directory = write_run(root / task, number, name.partition(" ")[0], by_seed, variant=name)
            found = open_run(directory).record
            Run(directory, found | {"task": {**found["task"], "name": task}} | more).save()


def rank(root: Path, against: str | None = None, option: str = "objective") -> Ranking:
    return Ranking.of(find_runs(root).readable, option, against, ["distill"])


# Four objectives on three tasks, without noise: ranks 1 2 3 4, 1 2 3 4 and 2 1 4 3.
ALIKE: dict[str, dict[str, list[float]]] = {
    "a": {"best": [0.9] * 3, "hinton": [0.8] * 3, "cka": [0.7] * 3, "rkd": [0.6] * 3},
    "b": {"best": [0.5] * 3, "hinton": [0.4] * 3, "cka": [0.3] * 3, "rkd": [0.2] * 3},
    "c": {"best": [0.8] * 3, "hinton": [0.9] * 3, "cka": [0.6] * 3, "rkd": [0.7] * 3},
}


def test_ranks_friedman_and_the_critical_difference_by_hand(tmp_path: Path) -> None:
    write_runs(tmp_path, ALIKE)
    found = rank(tmp_path)
    means = [4 / 3, 5 / 3, 10 / 3, 11 / 3]
    assert found.ranks == pytest.approx(dict(zip(("best", "hinton", "cka", "rkd"), means, strict=True)))
    assert (found.values, found.against) == (["best", "hinton", "cka", "rkd"], "hinton")
    chi_square = 12 * 3 / (4 * 5) * (sum(mean**2 for mean in means) - 4 * 25 / 4)
    friedman = found.friedman()
    assert friedman is not None
    assert friedman[0] == pytest.approx(chi_square)
    assert found.critical_difference() == pytest.approx(
        2.569 * math.sqrt(4 * 5 / (6 * 3)), abs=1e-3
    )  # Demsar, table 5.
    assert found.halves() == pytest.approx(1.0)


def test_equal_numbers_share_a_rank_and_errors_are_turned(tmp_path: Path) -> None:
    write_runs(tmp_path, {"a": {"hinton": [2.0, 2.0], "rkd": [1.0, 2.0]}})
    text = json.dumps([json.loads(path.read_text()) for path in tmp_path.rglob("run.json")])
    for path, record in zip(tmp_path.rglob("run.json"), json.loads(text.replace('"max"', '"min"')), strict=True):
        Run(path.parent, record).save()
    found = rank(tmp_path)  # A single task has a rank for each seed: 2 and 1, then 1.5 and 1.5.
    assert found.ranks == {"rkd": 1.25, "hinton": 1.75}
    assert found.friedman() is None
    assert found.describe().tables[DIFFERENCES].cells[1][:2] == ["rkd", "a"]


def test_the_setting_that_is_best_on_dev_counts(tmp_path: Path) -> None:
    write_runs(tmp_path, {"a": {"hinton": [0.5, 0.6], "rkd one": [0.7, 0.6], "rkd two": [0.8, 0.7]}})
    found = rank(tmp_path)
    entry = found.entries["a"]["rkd"]
    assert (dict(entry.row.scores), entry.setting, entry.settings) == ({0: 0.8, 1: 0.7}, "variant=rkd two", 2)
    assert any(sentence.endswith("of rkd.") for sentence in found.describe().sentences)


def test_ranks_are_of_the_largest_part_without_gaps(tmp_path: Path) -> None:
    values = {task: dict(of) for task, of in ALIKE.items()}
    values["d"] = {"hinton": [0.5] * 3, "rkd": [0.6] * 3}  # Numbers, which two objectives cannot learn.
    write_runs(tmp_path, values)
    found = rank(tmp_path)
    assert (sorted(found.part[0]), found.part[1]) == (["best", "cka", "hinton", "rkd"], ["a", "b", "c"])
    page = found.describe()
    assert "Not in the ranks, because a value lacks a task: d." in page.sentences
    assert [row[:3] for row in page.tables[VALUES].cells[1:]][-1] == ["rkd", "3.7", "0.6000 ± 0.0000"]
    assert ["rkd", "d"] in [row[:2] for row in page.tables[DIFFERENCES].cells]


def test_a_task_with_other_options_is_another_task(tmp_path: Path) -> None:
    for number, rows in enumerate((100, 200)):
        for place, name in enumerate(("hinton", "rkd")):
            write_run(
                tmp_path / f"{rows}", place, name, {0: 0.5 + number / 10}, task={"name": "toy", "train_examples": rows}
            )
    assert list(rank(tmp_path).entries) == ["toy train_examples=100", "toy train_examples=200"]


def test_costs_are_factors_of_the_seconds_of_a_step(tmp_path: Path) -> None:
    write_runs(tmp_path / "1", {"a": {"hinton": [0.5]}}, training={"seconds": 10.0, "steps": 100})
    write_runs(tmp_path / "2", {"a": {"rkd": [0.6]}}, training={"seconds": 15.0, "steps": 100})
    found = rank(tmp_path)
    assert (found.cost("rkd"), found.cost("hinton")) == (pytest.approx(1.5), 1.0)


def test_a_report_of_any_sweep_ranks_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(tmp_path, ALIKE)
    settings = {"_target_": "distill.records.verdict.ReportSettings", "rank": "objective", "against": "cka"}
    run_report(OmegaConf.create({"runs": str(tmp_path), "report_dir": None, "refresh": None, "report": settings}))
    record = json.loads((tmp_path / RANKING).read_text())
    assert record["ranks"]["best"] == pytest.approx(4 / 3)
    assert record["tasks"]["a"]["rkd"]["values"] == {"0": 0.6, "1": 0.6, "2": 0.6}
    assert "Differences from cka" in capsys.readouterr().out
    markdown = (tmp_path / "report.md").read_text()
    assert markdown.startswith("# Ranks by objective")
    assert "<svg" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"option": "objectve"},
            r"report.rank=objectve ranks nothing, because no run has it \(did you mean objective\?",
        ),
        ({"option": "student"}, "report.rank=student ranks nothing, because all runs have the same one"),
        (
            {"against": "hint"},
            "report.against=hint is no objective of the runs, expected one of best, hinton, cka, rkd",
        ),
    ],
)
def test_what_cannot_be_ranked_is_said(tmp_path: Path, options: dict[str, str], words: str) -> None:
    write_runs(tmp_path, ALIKE)
    with pytest.raises(UserError, match=words):
        rank(tmp_path, **options)


def read(difference: Difference | None) -> tuple[float, float, float]:
    """Returns p, and the ends of the interval."""
    assert difference is not None
    assert difference["p"] is not None
    assert difference["interval"] is not None
    low, high = difference["interval"]
    return difference["p"], low, high


def test_intervals_of_several_comparisons_hold_together() -> None:
    random = np.random.default_rng(0)
    others = dict(enumerate(random.normal(size=8)))
    shifts = {"none": 0.0, "little": 1.0, "much": 4.0}
    values = {
        name: {seed: of + shift + random.normal() for seed, of in others.items()} for name, shift in shifts.items()
    }
    alone = {name: read(compare_values(of, others, None)) for name, of in values.items()}
    together = {name: read(of) for name, of in compare_all(values, others, None).items()}
    order = sorted(values, key=lambda name: alone[name][0])
    steps = np.array([3, 2, 1]) * [alone[name][0] for name in order]
    assert [together[name][0] for name in order] == pytest.approx(np.minimum(1, np.maximum.accumulate(steps)).tolist())
    number = 3
    for name in order:
        p, low, high = together[name]
        wider = stats.t.ppf(1 - 0.025 / number, 7) / stats.t.ppf(0.975, 7)
        assert high - low == pytest.approx(wider * (alone[name][2] - alone[name][1]))
        assert (low > 0 or high < 0) == (p < 0.05)
        number -= p < 0.05
    assert number < 3
    half, none = (alone["none"][2] - alone["none"][1]) / 2, compare_values(values["none"], others, None)
    assert none is not None
    assert smallest_shown(none) == pytest.approx(half * (1.95996 + 0.84162) / 1.95996, rel=1e-4)
    assert smallest_shown({**none, "interval": None}) is None
