"""Tests of the order in which recipes are tried, and of what is taken in the end. Files and scores are stand-ins."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from distill.core.contracts import Scores
from distill.export import gate, graph
from distill.export.quantization import RECIPES, ExportSettings, RecipeInput
from distill.export.recipe_search import RecipeSearch, closest
from distill.kinds.classification import OneClass
from distill.records.schema import RecipeAttempt
from tests.edge.conftest import Patch

EXAMPLES = 1000
LABEL = np.arange(EXAMPLES) % 2
PRODUCTS = ["a", "b", "c", "d"]  # Those with the largest outliers, as a multiple of the median channel, first.
CHANNELS = [[1.0, 1.0, 9.0], [2.0, 2.0, 16.0], [4.0, 4.0, 8.0], [9.0, 9.0, 9.0]]
OUTLIERS = {f"input of {name}": np.array(largest) for name, largest in zip(PRODUCTS, CHANNELS, strict=True)}


def scores_with(errors: int, noise: float = 0.0) -> Scores:
    """Scores of a model that is wrong on the first examples."""
    logits = np.full((EXAMPLES, 2), -1.0, dtype=np.float32)
    logits[np.arange(EXAMPLES), LABEL] = 1.0
    logits[:errors] = logits[:errors, ::-1]
    return Scores({"logits": logits * (1 + noise)}, LABEL, np.arange(EXAMPLES))


class Quantizer:
    """Stands in for the recipes: a file holds the name of its recipe, and `errors` says how many answers are wrong."""

    def __init__(self, monkeypatch: Patch, errors: Mapping[str, int]) -> None:
        self.errors = errors
        self.kept: list[list[str]] = []
        for name, recipe in RECIPES.items():
            write = self._dynamic if recipe.keeps_matrices or recipe.retrains else self._recipe(name)
            monkeypatch.setitem(RECIPES, name, replace(recipe, write=write))
        monkeypatch.setattr(RecipeInput, "products", PRODUCTS)
        products = [SimpleNamespace(name=name, source=f"input of {name}") for name in reversed(PRODUCTS)]
        monkeypatch.setattr(RecipeInput, "graph", lambda material: None)
        monkeypatch.setattr(graph, "find_products", lambda model: products)
        monkeypatch.setattr(RecipeInput, "largest", OUTLIERS)

    def _recipe(self, name: str) -> Any:
        return lambda material, path: path.write_text(name)

    def _dynamic(self, material: RecipeInput, path: Path, *, keep: list[str] = []) -> None:  # noqa: B006
        self.kept.append(list(keep))
        path.write_text("trained" if material.fp32.suffix == ".fp32" else "+".join(["mixed", *sorted(keep)]))

    def score(self, path: Path) -> Scores:
        name = path.read_text()
        # A matrix in float makes less noise, the one called c the least.
        noise = {"mixed+c": 0.01, "mixed+a": 0.02}.get(name, 0.05)
        return scores_with(self.errors.get(name, EXAMPLES), noise)


Found = tuple[list[RecipeAttempt], Quantizer]
Search = Callable[..., Found]


@pytest.fixture
def search(monkeypatch: Patch, tmp_path: Path) -> Search:
    """A function that searches with these errors of each recipe."""

    def run(errors: Mapping[str, int], *, target: str = "avx2", **settings: Any) -> Found:
        quantizer = Quantizer(monkeypatch, errors)
        loose = {"max_probability_diff": 1.0, "min_agreement": 0.9, "max_ece_rise": 1.0}
        scoring = OneClass(("accuracy", "f1"))
        search = RecipeSearch(
            RecipeInput(tmp_path / "model.onnx", 7), target, gate.TorchScores(scoring, {"dev": scores_with(0)}),
            quantizer.score, ExportSettings(**loose | settings), retrain=lambda path: path.write_text("trained"),
        )  # fmt: skip
        return search.run(tmp_path / "int8.onnx", tmp_path / "half.onnx"), quantizer

    return run


def names(attempts: list[RecipeAttempt], *, chosen: bool = False) -> list[str]:
    return [attempt["recipe"] for attempt in attempts if attempt["chosen"] or not chosen]


def test_the_first_recipe_that_passes_is_taken(search: Search, tmp_path: Path) -> None:
    attempts, _ = search({"smoothed": 50, "dynamic": 5, "mixed": 0})
    assert [(attempt["recipe"], attempt["gate"]) for attempt in attempts] == [
        ("smoothed", "failed"),
        ("dynamic", "passed"),
    ]
    assert names(attempts, chosen=True) == ["dynamic"]
    assert [path.name for path in tmp_path.iterdir()] == ["int8.onnx"]
    assert (tmp_path / "int8.onnx").read_text() == "dynamic"
    assert attempts[0]["drop"] == pytest.approx(0.05)
    assert attempts[0]["interval"][0] < 0.05 < attempts[0]["interval"][1]
    assert attempts[0]["bytes"] == len("smoothed")


def test_luck_is_not_called_a_pass(search: Search, tmp_path: Path) -> None:
    """Two of 1,000 answers are wrong. It may be up to 0.006 of all, which is more than twice 0.002."""
    attempts, _ = search({"dynamic": 2, "static": 0}, max_drop=0.002, recipes=["dynamic", "static"])
    assert [attempt["gate"] for attempt in attempts] == ["undecided", "passed"]
    assert attempts[0]["drop"] == pytest.approx(0.002)
    assert 0.005 < attempts[0]["interval"][1] < 0.008
    assert attempts[1]["interval"][1] == pytest.approx(3 / 1002)
    assert attempts[0]["reason"].startswith("the drop may be up to 0.00")
    assert attempts[1]["reason"] is None
    assert names(attempts, chosen=True) == ["static"]


def test_the_first_recipe_that_does_not_fail_is_taken_where_dev_could_pass_none(search: Search, tmp_path: Path) -> None:
    """Other recipes, and a training, would tell no more. With 1,000 examples nothing below 0.003 can be told."""
    errors = {"smoothed": 2, "dynamic": 1, "static": 0}
    attempts, _ = search(errors, max_drop=0.001, recipes=["smoothed", "dynamic"])
    assert [(attempt["recipe"], attempt["gate"]) for attempt in attempts] == [
        ("smoothed", "undecided"),  # It drops by more than the limit on dev, which may be noise.
        ("dynamic", "undecided"),
    ]
    needed = "dev has 1,000 examples, at least 1,714 are needed to tell a drop of 0.002"  # By intervals of 97.5%.
    assert [attempt["reason"] for attempt in attempts] == [
        f"drop 0.0020, the limit is 0.001, and it may be noise (95% interval from -0.0020): {needed}", needed,
    ]  # fmt: skip
    assert names(attempts, chosen=True) == ["dynamic"]
    attempts, _ = search({"float16": 0, "mixed": 5}, max_drop=0.001, recipes=["float16", "mixed"])
    assert [(attempt["recipe"], attempt["gate"], attempt["chosen"]) for attempt in attempts] == [
        ("float16", "undecided", True)
    ]
    assert (tmp_path / "half.onnx").read_text() == "float16"
    _, quantizer = search(
        {"mixed+c": 0}, max_drop=0.001, recipes=["mixed"], search_evaluations=8
    )  # fmt: skip
    assert quantizer.kept == [["a"], ["b"], ["c"], ["d"], ["c"]]  # The search ends with the first file too.


def test_recipes_share_the_error_of_a_pass(search: Search, tmp_path: Path) -> None:
    """Six wrong answers of 1,000, the limit, pass as the only recipe, and not as the second of several."""
    attempts, _ = search({"dynamic": 6}, max_drop=0.006, recipes=["dynamic"])
    assert [(attempt["gate"], attempt["confidence"]) for attempt in attempts] == [("passed", 0.95)]
    high = attempts[0]["interval"][1]
    attempts, _ = search(
        {"smoothed": 500, "dynamic": 6}, max_drop=0.006,
        recipes=["smoothed", "dynamic", "mixed", "qat"], search_evaluations=6,
    )  # fmt: skip
    assert [attempt["confidence"] for attempt in attempts] == pytest.approx(
        [0.975, 0.9875, 1 - 0.05 / 8 / 2, 1 - 0.05 / 8]  # `mixed` tries two files.
    )
    assert attempts[1]["gate"] == "undecided"
    assert attempts[1]["interval"][1] == high
    widened = 0.006 + (high - 0.006) * stats.norm.ppf(1 - 0.05 / 8) / stats.norm.ppf(0.975)
    assert widened > 0.012 > high
    reason = f"the drop may be up to {widened:.4f} (98.75% interval), the limit is 0.012: dev has 1,000 examples, about"
    assert attempts[1]["reason"].startswith(reason)


def test_undecided_recipes_are_ranked_by_the_end_of_their_intervals_and_not_by_their_drop() -> None:
    def attempt(recipe: str, gate: str, drop: float, high: float) -> Any:
        return {"recipe": recipe, "gate": gate, "drop": drop, "interval": [0.0, high]}

    wide, narrow = attempt("wide", "undecided", 0.001, 0.02), attempt("narrow", "undecided", 0.002, 0.01)
    failed = attempt("failed", "failed", 0.0, 0.0)
    for attempts in ([failed, wide, narrow], [narrow, wide, failed]):
        assert closest(attempts) is narrow


def test_the_smallest_drop_is_taken_if_all_fail(search: Search, tmp_path: Path) -> None:
    attempts, _ = search(
        {"dynamic": 3, "smoothed": 2, "static": 4}, max_drop=0.004, recipes=["dynamic", "smoothed", "static"],
        min_agreement=0.9999,
    )  # fmt: skip
    assert {attempt["gate"] for attempt in attempts} == {"failed"}
    assert names(attempts, chosen=True) == ["smoothed"]
    assert (tmp_path / "int8.onnx").read_text() == "smoothed"


def test_a_drop_of_nothing_tries_every_recipe(search: Search, tmp_path: Path) -> None:
    errors = {"dynamic": 9, "smoothed": 8, "mixed+c": 7, "mixed+a+c": 6, "static": 9, "weight_only": 5, "float16": 3,
              "trained": 4}  # fmt: skip
    attempts, _ = search(errors, max_drop=0.0, search_evaluations=6)
    assert names(attempts) == ["smoothed", "dynamic", "mixed", "static", "weight_only", "float16", "qat"]
    assert names(attempts, chosen=True) == ["qat"]
    best = closest(attempts)
    assert best is not None
    assert best["recipe"] == "float16"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["int8.onnx"]


def test_a_float16_file_that_passes_comes_beside_the_best_int8_file(search: Search, tmp_path: Path) -> None:
    attempts, _ = search({"float16": 0, "dynamic": 60, "static": 40})
    assert names(attempts)[-1] == "float16"
    assert names(attempts, chosen=True) == ["static", "float16"]
    assert (tmp_path / "half.onnx").read_text() == "float16"


def test_the_search_keeps_the_most_sensitive_matrices_until_the_file_passes(search: Search, tmp_path: Path) -> None:
    errors = {"mixed+c": 30, "mixed+a+c": 0}
    attempts, quantizer = search(errors, recipes=["mixed"], search_evaluations=8)
    # Each alone, then the two that make the logits better, together with the file that is kept.
    assert quantizer.kept == [["a"], ["b"], ["c"], ["d"], ["c"], ["c", "a"]]
    assert attempts[0]["kept"] == ["c", "a"]
    assert attempts[0]["words"] == "dynamic int8 with smoothed activations, 2 of 4 matrices in float32"
    assert attempts[0]["gate"] == "passed"
    # A file that passes at 95%, and not as one of four, does not end the search.
    _, quantizer = search({"mixed+c": 6, "mixed+a+c": 0}, recipes=["mixed"], search_evaluations=8, max_drop=0.006)
    assert quantizer.kept[-1] == ["c", "a"]


@pytest.mark.parametrize(("evaluations", "measured", "tried"), [(1, 1, 1), (4, 3, 1), (8, 4, 4)])
def test_the_search_stays_within_its_evaluations(search: Search, evaluations: int, measured: int, tried: int) -> None:
    attempts, quantizer = search({}, recipes=["mixed"], search_evaluations=evaluations)
    assert attempts[0]["confidence"] == pytest.approx(1 - 0.05 / tried)  # The files share the error of a pass.
    # The matrices with the largest outliers are measured.
    assert quantizer.kept[:measured] == [[name] for name in PRODUCTS[:measured]]
    assert len(quantizer.kept) == measured + tried


def test_a_target_that_this_machine_cannot_check_is_exported_unchecked(search: Search, monkeypatch: Patch) -> None:
    monkeypatch.setattr(gate, "this_target", lambda: "avx2")
    [attempt], _ = search({"dynamic": 500}, target="vnni")
    assert (attempt["recipe"], attempt["gate"], attempt["chosen"]) == ("smoothed", "unchecked", True)


def test_without_epochs_nothing_is_trained(search: Search) -> None:
    attempts, _ = search({}, recipes=["static", "qat"], qat_epochs=0)
    assert names(attempts) == ["static"]
