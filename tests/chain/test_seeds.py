"""Tests of several seeds in one run: their numbers are those of single runs, also after an interruption."""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats
from transformers import PreTrainedTokenizerBase

import distill as d
from distill.chain import breakdowns, task_run
from distill.chain.train import SharedBaseline
from distill.core.contracts import Data, Scores
from distill.core.errors import Interrupted, OptionError
from distill.export.bundle_writer import Exported
from distill.training import fitting
from distill.training.module import split_metrics
from tests.conftest import LABELS, LOOSE, toy_bert

NO_TIMING = d.BenchmarkSettings(batches=[1], lengths=[8], enabled=False)
TRAINER: dict[str, Any] = {"batch_size": 16, "precision": "32-true", "learning_rate": 3e-3, "accelerator": "cpu"}


Distill = Callable[..., d.Result]


@pytest.fixture(scope="module")
def distill(tokenizer: PreTrainedTokenizerBase, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Distill:
    """Distils into a directory of this name, with one teacher and cache."""
    root, teacher = tmp_path_factory.mktemp("seeds"), toy_bert(len(tokenizer)).eval()

    def run(directory: str, *, seed: int = 0, **options: Any) -> d.Result:
        return d.distill(
            d.Teacher(teacher, tokenizer, cache_dir=root / "cache", accept_weak=True),
            d.students.distilbert(layers=[0]),
            d.tasks.Classification(text="sentence", labels=LABELS, data=data_dir, max_length=32),
            objective=d.Objective(soft=d.SoftTargets(temperature=2.0), hard=d.HardLabels()),
            trainer=d.TrainerSettings(max_steps=3, seed=seed, **TRAINER),
            seed=seed, directory=root / directory, export=LOOSE,
            **({"benchmark": NO_TIMING} | options),
        )  # fmt: skip

    return run


def write_metrics(directory: Path, *, splits: Data, scores: Mapping[str, Scores], **others: object) -> Exported:
    """Stands for `write_bundle`, which takes seconds: the files have the scores of the student in torch."""
    file: Any = {"bytes": 1, "max_abs_diff": 0.0, "max_probability_diff": 0.0, "agreement": 1.0, "drop": 0.0}
    file |= {"metrics": split_metrics(splits.scoring, scores), "gate": "passed", "recipe": "none"}
    formats = {name: file | {"file": f"{name}.onnx"} for name in ("fp32", "int8")}
    return Exported(formats, [], {name: dict(scores) for name in formats})


@pytest.fixture
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_run, "write_bundle", write_metrics)


@pytest.fixture(scope="module")
def several(distill: Distill) -> tuple[d.Result, str]:
    """A run with the seeds 3, 4 and 5 and their baselines, and what it printed."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setattr(task_run, "write_bundle", write_metrics)
        return distill("several", seed=3, seeds=3, baseline=True), printed.getvalue()


@contextmanager
def interrupted_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Interrupts the training with this number; yields a list that fills with the directories of all trainings."""
    original, seen = fitting.fit, list[str]()

    def fit(*arguments: Any, checkpoints: Path, **options: Any) -> fitting.Fit:
        seen.append(checkpoints.parent.name)
        if len(seen) == number:
            raise KeyboardInterrupt
        return original(*arguments, checkpoints=checkpoints, **options)

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "fit", fit)
        yield seen


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "student" / "model.safetensors")


def same_weights(one: Path, two: Path) -> bool:
    first, second = weights(one), weights(two)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.usefixtures("no_export")
def test_every_seed_has_the_weights_and_metrics_of_its_own_run(distill: Distill, several: tuple[d.Result, str]) -> None:
    result, _ = several
    single = distill("single", seed=4, baseline=True)
    assert same_weights(result.directory / "seeds" / "4", single.directory)
    assert not same_weights(result.directory, single.directory)
    assert [entry["seed"] for entry in result.record["seeds"]] == [3, 4, 5]
    assert (single.record["seeds"], single.summary) == ([], {})
    first, second, _ = result.record["seeds"]
    for name in ("retention", "export"):
        assert (second[name], first[name]) == (single.record[name], result.record[name])
    assert (second["metrics"], first["metrics"]) == (single.metrics, result.metrics)
    assert second["baseline"]["metrics"] == single.record["baseline"]["metrics"]
    assert second["comparison"] == single.comparison
    further = json.loads((result.directory / "seeds" / "4" / "seed.json").read_text())
    assert further["training"]["teacher_cache"]["hit"] is True
    assert (further["status"], further["seed"], further["teacher"]) == ("finished", 4, result.record["teacher"])


def test_summary_and_comparison_follow_from_the_seeds(several: tuple[d.Result, str]) -> None:
    result, printed = several
    students, baselines = (
        np.array([of["metrics"]["accuracy"] for of in entries])
        for entries in (result.record["seeds"], [entry["baseline"] for entry in result.record["seeds"]])
    )
    summary = result.summary["accuracy"]
    assert (summary["mean"], summary["std"]) == pytest.approx((students.mean(), students.std(ddof=1)))
    assert summary["files"]["int8"] == summary["files"]["fp32"] == {"mean": summary["mean"], "std": summary["std"]}
    assert summary["baseline"]["mean"] == pytest.approx(baselines.mean())
    assert len(set(students - baselines)) > 1  # Otherwise there is no test.
    over_seeds = stats.ttest_rel(students, baselines)
    compared = result.comparison["baseline"]
    assert compared["difference"] == pytest.approx((students - baselines).mean())
    # The examples are in the interval too, so that it is never narrower than that over the seeds alone.
    interval = over_seeds.confidence_interval(0.95)
    assert (compared["over"], compared["number"]) == ("seeds and examples", 3)
    assert compared["p"] >= over_seeds.pvalue
    assert compared["interval"][0] < interval.low < interval.high < compared["interval"][1]
    against = result.comparison["teacher"]["difference"]
    assert against == pytest.approx(students.mean() - result.record["teacher"]["metrics"]["accuracy"])
    assert "for 3 seeds" in printed
    assert printed.count("Before training") == 1
    low, high = (f"{100 * end:+.1f}" for end in compared["interval"])
    sentence = f"With the teacher: {100 * compared['difference']:+.1f} points of accuracy, 95% interval {low} to {high}"
    documents = [result.report(), (result.directory / "bundle" / "README.md").read_text()]
    for text in documents:
        assert f"{sentence}, 3 seeds" in text
        assert result.verdict.partition(". ")[2] in " ".join(text.split())  # After the title, which is bold.
    for text in (printed, *documents):
        assert f"; 95% interval {low} to {high})" in text
        assert "(mean of 3 seeds; " in text
        assert f"{summary['mean']:.4f} ± {summary['std']:.4f}" in text
        assert "are those of seed 3, the first one and not the best" in text


def test_the_summary_has_the_files_that_all_seeds_have() -> None:
    exports = [{"fp32": 0.5, "int8": 0.25}, {"fp32": 0.75, "fp16": 0.75}, {"fp32": 1.0, "int8": 0.5}]
    entries: list[dict[str, Any]] = [
        {
            "seed": seed, "metrics": {"accuracy": of["fp32"]}, "baseline": None,
            "export": {file: {"metrics": {"accuracy": value}} for file, value in of.items()},
        }
        for seed, of in enumerate(exports)
    ]  # fmt: skip
    for order in (entries, [entries[1], entries[0], entries[2]]):
        assert breakdowns.summarize_metric("accuracy", order)["files"] == {"fp32": {"mean": 0.75, "std": 0.25}}


@pytest.mark.usefixtures("no_export")
def test_interrupted_run_goes_on_with_the_first_unfinished_seed_and_ends_with_the_same_numbers(
    distill: Distill, several: tuple[d.Result, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = several
    monkeypatch.setattr(SharedBaseline, "fetch", lambda *_: None)  # The baselines of the whole run are in the cache.
    with (
        interrupted_at(4, monkeypatch) as seen,
        pytest.raises(Interrupted, match="seeds/4/checkpoints/last.ckpt holds"),
    ):
        distill("run", seed=3, seeds=3, baseline=True)
    assert seen == ["run", "baseline", "4", "baseline"]
    with interrupted_at(0, monkeypatch) as seen:
        resumed = distill("run", seed=3, seeds=3, baseline=True, resume=True)
    assert seen == ["4", "baseline", "5", "baseline"]
    without_times = [
        [{**entry, "seconds": 0, "baseline": entry["baseline"]["metrics"]} for entry in result.record["seeds"]]
        for result in (whole, resumed)
    ]
    assert without_times[0] == without_times[1]
    assert resumed.summary == whole.summary
    assert resumed.comparison == whole.comparison
    for seed in ("", "seeds/4", "seeds/5"):
        assert same_weights(resumed.directory / seed, whole.directory / seed)


@pytest.mark.parametrize(
    ("seeds", "got"), [(0, "0"), (-1, "-1"), (True, "true"), ("two", "two"), (1.5, "1.5"), (None, "null")]
)
def test_number_of_seeds_that_cannot_be_is_refused(distill: Distill, seeds: Any, got: str) -> None:
    with pytest.raises(OptionError, match=f"got seeds={got}, expected a whole number of at least 1"):
        distill(f"refused-{got}", seeds=seeds)


def test_last_seed_must_be_a_seed(distill: Distill) -> None:
    with pytest.raises(
        OptionError, match="got seeds=2, expected a last seed of at most 4294967295, and it is 429496729"
    ):
        distill("refused", seed=2**32 - 1, seeds=2)
