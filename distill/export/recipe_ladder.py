"""The ladder of quantization: recipes are tried in order, each scored from its file, until one passes the gate."""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

import numpy as np

from distill.console import print_line
from distill.contracts import Scores, Task
from distill.edge.model_files import count_bytes
from distill.errors import NumericalError
from distill.export import graph, quantization
from distill.export.gate import (
    FAILED,
    PASSED,
    UNCHECKED,
    UNDECIDED,
    Comparison,
    Verdict,
    compare,
    describe_blindness,
    judge,
)
from distill.export.quantization import Material
from distill.export.settings import ExportSettings

FLOAT16 = "float16"
FIRST_ROUND = 0.75  # Share of the search's evaluations that measure each matrix alone.
# The recipes that neither search nor train.
SIMPLE: Mapping[str, Callable[[Material, Path], None]] = {
    "dynamic": quantization.write_dynamic,
    "smoothed": functools.partial(quantization.write_dynamic, smoothed=True),
    "static": quantization.write_static,
    "weight_only": quantization.write_weight_only,
    "float16": quantization.write_float16,
}
WORDS = {
    "dynamic": "dynamic int8",
    "smoothed": "dynamic int8 with smoothed activations",
    "mixed": "dynamic int8 with smoothed activations, {kept} of {products} matrices in float32",
    "static": "static int8 with smoothed activations",
    "weight_only": "weights in int8 blocks of 128",
    "float16": "weights in float16",
    "qat": "dynamic int8 with smoothed activations after quantization-aware distillation",
}


class Rung(TypedDict):
    """An entry of run.json's `ladder`: a recipe that was tried.

    Attributes:
        recipe: one of `settings.RECIPES`.
        target: the processors that the file was written for.
        words: the recipe in words.
        kept: names of the products whose matrices stay in float32.
        bytes: size of the file.
        metrics, drop, interval, max_probability_diff, agreement, ece: as in `gate.Comparison`, on dev.
        gate, reason: as in `gate.ExportedFile`.
        chosen: whether the bundle has the file.
        seconds: of writing the file, scoring it and, for `mixed` and `qat`, what comes before.
    """

    recipe: str
    target: str
    words: str
    kept: list[str]
    bytes: int
    metrics: dict[str, float]
    drop: float
    interval: list[float]
    max_probability_diff: float
    agreement: float
    ece: float | None
    gate: str
    reason: str | None
    chosen: bool
    seconds: float


@dataclass
class RecipeLadder:
    """Tries recipes for one target.

    Args:
        material: the float32 file.
        target: the processors that the files are written for.
        task: compares the predictions.
        reference: the scores of the torch model by split.
        score: scores a file on dev.
        settings: of the export.
        resolution: that of `gate.measure_resolution`.
        retrain: trains the student with quantized weights and activations, and writes it in float32; None if it cannot
            be trained.
    """

    material: Material
    target: str
    task: Task
    reference: Mapping[str, Scores]
    score: Callable[[Path], Scores]
    settings: ExportSettings
    resolution: float | None
    retrain: Callable[[Path], object] | None = None

    def climb(self, int8: Path, half: Path) -> list[Rung]:
        """Writes the file of the best int8 recipe to `int8` and, if `float16` was reached and passed, one to `half`.

        Returns all recipes that were tried. The best one is the first that is accepted: it passed, or it did not fail
        on a dev split on which no file could pass, so that other recipes would tell no more. If none was, the best one
        is the undecided one whose interval ends lowest, else the one with the smallest drop.
        """
        rungs, best = list[Rung](), None
        for name in self.settings.recipes:
            if name == "qat" and (self.retrain is None or not self.settings.qat_epochs):
                continue
            candidate = int8.with_name(f"{int8.stem}.{name}.onnx")
            try:
                rung, is_accepted = self._try(name, candidate)
            except NumericalError as error:
                print_line(f"  {error}: the recipe {name} is left out")
                graph.remove_model(candidate)
                continue
            rungs.append(rung)
            print_line(f"  {rung['bytes'] / 1e6:.1f} MB, {rung['gate']}: {describe(rung)}")
            if name == FLOAT16:
                if is_accepted:
                    graph.move(candidate, half)
                    rung["chosen"] = True
            elif best is None or _rank(rung) < _rank(best):
                if best is not None:
                    best["chosen"] = False
                graph.move(candidate, int8)
                best, rung["chosen"] = rung, True
            graph.remove_model(candidate)
            if is_accepted or rung["gate"] == UNCHECKED:  # Of files that cannot be checked the first is as good as any.
                break
        return rungs

    def _try(self, name: str, path: Path) -> tuple[Rung, bool]:
        """Returns the rung of a recipe, and whether it is accepted."""
        started = time.perf_counter()
        kept = self._write(name, path)
        comparison = self._compare(path)
        verdict = judge(comparison, self.settings, target=self.target)
        rung: Rung = {
            "recipe": name, "target": self.target,
            "words": WORDS[name].format(kept=len(kept), products=len(self.material.products)), "kept": kept,
            "bytes": count_bytes(path), "metrics": comparison["metrics"], "drop": comparison["drop"],
            "interval": comparison["interval"], "max_probability_diff": comparison["max_probability_diff"],
            "agreement": comparison["agreement"], "ece": comparison["ece"],
            "gate": verdict.gate, "reason": verdict.reason, "chosen": False,
            "seconds": round(time.perf_counter() - started, 2),
        }  # fmt: skip
        return rung, self._accepts(verdict, comparison)

    def _accepts(self, verdict: Verdict, comparison: Comparison) -> bool:
        is_blind = describe_blindness(comparison, self.settings) is not None
        return verdict.gate == PASSED or (verdict.gate == UNDECIDED and is_blind)

    def _write(self, name: str, path: Path) -> list[str]:
        """Writes the file of a recipe; returns the names of the products whose matrices stay in float32."""
        if name == "mixed":
            return self._search(path)
        if name == "qat":
            assert self.retrain is not None
            trained = path.with_suffix(".fp32")
            self.retrain(trained)
            quantization.write_dynamic(replace(self.material, fp32=trained), path, smoothed=True)
            graph.remove_model(trained)
        else:
            SIMPLE[name](self.material, path)
        return []

    def _compare(self, path: Path) -> Comparison:
        return compare({"dev": self.score(path)}, self.reference, task=self.task, resolution=self.resolution)

    def _search(self, path: Path) -> list[str]:
        """Keeps matrices in float32, the most sensitive ones first, until the file passes or evaluations run out.

        Three quarters of the evaluations measure how far the logits are from those of torch if one matrix alone stays
        in float. If there are more matrices, those with the largest outliers in their activations are measured.
        """
        names = self._by_outliers()
        evaluations = self.settings.search_evaluations
        measured = names[: max(1, int(FIRST_ROUND * evaluations))]
        errors = {name: self._error(path, [name]) for name in measured}
        order = sorted(errors, key=lambda name: errors[name])
        kept: list[str] = []
        for name in order[: max(1, evaluations - len(measured))]:
            kept.append(name)
            quantization.write_dynamic(self.material, path, keep=kept, smoothed=True)
            comparison = self._compare(path)
            if self._accepts(judge(comparison, self.settings), comparison):
                break
        return kept

    def _by_outliers(self) -> list[str]:
        """Returns the products, those with the largest outliers in their inputs first."""
        products = graph.find_products(self.material.graph())
        largest = self.material.largest
        excess = {
            product.name: largest[product.source].max() / max(float(np.median(largest[product.source])), 1e-9)
            for product in products
        }
        return sorted(excess, key=lambda name: -excess[name])

    def _error(self, path: Path, keep: list[str]) -> float:
        quantization.write_dynamic(self.material, path, keep=keep, smoothed=True)
        column = self.task.scoring.compared_column
        values, expected = (scores.columns[column] for scores in (self.score(path), self.reference["dev"]))
        return float(np.square(values - expected).mean())


def closest(rungs: list[Rung]) -> Rung | None:
    """Returns the rung that came closest to passing; None if one passed."""
    if any(rung["gate"] == PASSED for rung in rungs):
        return None
    return min(rungs, key=_rank, default=None)


def _rank(rung: Rung) -> tuple[int, float]:
    """Orders rungs, the best one first."""
    order = {PASSED: 0, UNCHECKED: 0, UNDECIDED: 1, FAILED: 2}[rung["gate"]]
    return order, rung["interval"][1] if order == 1 else rung["drop"]


def describe(rung: Rung) -> str:
    """Returns a rung in words: the recipe, its drop with the interval, the agreement, and why it did not pass."""
    low, high = rung["interval"]
    return (
        f"{rung['words']}, with a drop of {rung['drop']:.4f} (95% interval {low:.4f} to {high:.4f}) and an agreement "
        f"of {rung['agreement']:.1%}{': ' + rung['reason'] if rung['reason'] else ''}"
    )
