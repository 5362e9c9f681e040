"""The search for a recipe of quantization: each is scored from its file, in order, until one passes the gate."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from distill.core.console import print_line
from distill.core.contracts import Scores
from distill.core.errors import NumericalError
from distill.edge.bundle_files import count_bytes
from distill.export import gate, graph
from distill.export.quantization import INT8, RECIPES, ExportSettings, Recipe, RecipeInput, write_with_encoder
from distill.records.schema import FileComparison, RecipeAttempt

FIRST_ROUND = 0.75  # Share of the search's evaluations that measure each matrix alone.


@dataclass
class RecipeSearch:
    """Tries recipes for one target.

    Args:
        material: the float32 file.
        target: the processors that the files are written for.
        torch: the scores of the model, which are compared with those of the files.
        score: scores a file on dev.
        settings: of the export.
        retrain: trains the student with quantized weights and activations, and writes it in float32; None if it cannot
            be trained.
    """

    material: RecipeInput
    target: str
    torch: gate.TorchScores
    score: Callable[[Path], Scores]
    settings: ExportSettings
    retrain: Callable[[Path], object] | None = None

    def run(self, int8: Path, half: Path) -> list[RecipeAttempt]:
        """Writes the file of the best int8 recipe to `int8` and, if `float16` was reached and passed, one to `half`.

        Returns all recipes that were tried. The best one is the first that is accepted: it passed, or it did not fail
        on a dev split on which no file could pass, so that other recipes would tell no more. If none was, the best one
        is the undecided one whose interval ends lowest, else the one with the smallest drop.
        """
        attempts, best = list[RecipeAttempt](), None
        for name, confidence in self._list_recipes().items():
            candidate = int8.with_name(f"{int8.stem}.{name}.onnx")
            try:
                attempt, is_accepted = self._try(name, candidate, confidence)
            except NumericalError as error:
                print_line(f"  {error}: the recipe {name} is left out")
                graph.remove_model(candidate)
                continue
            attempts.append(attempt)
            print_line(f"  {attempt['bytes'] / 1e6:.1f} MB, {attempt['gate']}: {describe(attempt)}")
            if RECIPES[name].format != INT8:
                if is_accepted:
                    graph.move(candidate, half)
                    attempt["chosen"] = True
            elif best is None or _rank(attempt) < _rank(best):
                if best is not None:
                    best["chosen"] = False
                graph.move(candidate, int8)
                best, attempt["chosen"] = attempt, True
            graph.remove_model(candidate)
            # Of files that cannot be checked the first is as good as any.
            if is_accepted or attempt["gate"] == gate.UNCHECKED:
                break
        return attempts

    def _list_recipes(self) -> dict[str, float]:
        """Returns the recipes that may be tried, each with the confidence with which it must pass.

        `mixed` is itself a series of files that are tried until one passes, which share its error alike.
        """
        can_train = self.retrain is not None and self.settings.qat_epochs
        names = [name for name in self.settings.recipes if can_train or not RECIPES[name].retrains]
        files = {name: self._count_files()[1] if RECIPES[name].keeps_matrices else 1 for name in names}
        every = zip(names, gate.split_error(len(names)), strict=True)
        return {name: 1 - (1 - confidence) / files[name] for name, confidence in every}

    def _count_files(self) -> tuple[int, int]:
        """Returns how many matrices `mixed` measures alone, and how many files it tries after that at most."""
        evaluations = self.settings.search_evaluations
        measured = min(len(self.material.products), max(1, int(FIRST_ROUND * evaluations)))
        return measured, max(1, min(measured, evaluations - measured))

    def _try(self, name: str, path: Path, confidence: float) -> tuple[RecipeAttempt, bool]:
        """Returns the attempt of a recipe, and whether it is accepted."""
        started = time.perf_counter()
        kept = self._write(name, path, confidence)
        comparison = self.torch.compare({"dev": self.score(path)})
        verdict = gate.judge(comparison, self.settings, target=self.target, confidence=confidence)
        attempt: RecipeAttempt = {
            "recipe": name, "target": self.target,
            "words": RECIPES[name].words.format(kept=len(kept), products=len(self.material.products)), "kept": kept,
            "bytes": count_bytes(path), "metrics": comparison["metrics"], "drop": comparison["drop"],
            "interval": comparison["interval"], "max_probability_diff": comparison["max_probability_diff"],
            "agreement": comparison["agreement"], "ece": comparison["ece"],
            "gate": verdict.gate, "reason": verdict.reason, "confidence": confidence, "chosen": False,
            "seconds": round(time.perf_counter() - started, 2),
        }  # fmt: skip
        return attempt, self._accepts(verdict, comparison, confidence)

    def _accepts(self, verdict: gate.GateVerdict, comparison: FileComparison, confidence: float) -> bool:
        is_blind = gate.describe_blindness(comparison, self.settings, confidence) is not None
        is_near = comparison["drop"] <= self.settings.max_drop + gate.ROUNDING
        return verdict.gate == gate.PASSED or (verdict.gate == gate.UNDECIDED and is_blind and is_near)

    def _write(self, name: str, path: Path, confidence: float) -> list[str]:
        """Writes the file of a recipe; returns the names of the products whose matrices stay in float32."""
        recipe = RECIPES[name]
        if recipe.keeps_matrices:
            return self._keep_matrices(recipe, path, confidence)
        if recipe.retrains:
            assert self.retrain is not None
            trained = path.with_suffix(".fp32")
            self.retrain(trained)
            write_with_encoder(recipe.write, replace(self.material, fp32=trained), path)
            graph.remove_model(trained)
        else:
            write_with_encoder(recipe.write, self.material, path)
        return []

    def _keep_matrices(self, recipe: Recipe, path: Path, confidence: float) -> list[str]:
        """Keeps matrices in float32, the most sensitive ones first, until the file passes or evaluations run out.

        Three quarters of the evaluations measure how far the logits are from those of torch if one matrix alone stays
        in float. If there are more matrices, those with the largest outliers in their activations are measured.
        """
        measured, tried = self._count_files()
        errors = {name: self._error(recipe, path, [name]) for name in self._by_outliers()[:measured]}
        order = sorted(errors, key=lambda name: errors[name])
        kept: list[str] = []
        for name in order[:tried]:
            kept.append(name)
            write_with_encoder(recipe.write, self.material, path, keep=kept)
            comparison = self.torch.compare({"dev": self.score(path)})
            verdict = gate.judge(comparison, self.settings, confidence=confidence)
            if self._accepts(verdict, comparison, confidence):
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

    def _error(self, recipe: Recipe, path: Path, keep: list[str]) -> float:
        write_with_encoder(recipe.write, self.material, path, keep=keep)
        column = self.torch.scoring.compared_column
        values, expected = (scores.columns[column] for scores in (self.score(path), self.torch.scores["dev"]))
        return float(np.square(values - expected).mean())


def closest(attempts: list[RecipeAttempt]) -> RecipeAttempt | None:
    """Returns the attempt that came closest to passing; None if one passed."""
    if any(attempt["gate"] == gate.PASSED for attempt in attempts):
        return None
    return min(attempts, key=_rank, default=None)


def _rank(attempt: RecipeAttempt) -> tuple[int, float]:
    """Orders attempts, the best one first."""
    order = {gate.PASSED: 0, gate.UNCHECKED: 0, gate.UNDECIDED: 1, gate.FAILED: 2}[attempt["gate"]]
    return order, attempt["interval"][1] if order == 1 else attempt["drop"]


def describe(attempt: RecipeAttempt) -> str:
    """Returns an attempt in words: the recipe, its drop with the interval, the agreement, and why it did not pass."""
    low, high = attempt["interval"]
    return (
        f"{attempt['words']}, with a drop of {attempt['drop']:.4f} (95% interval {low:.4f} to {high:.4f}) and an "
        f"agreement of {attempt['agreement']:.4f}{': ' + attempt['reason'] if attempt['reason'] else ''}"
    )
