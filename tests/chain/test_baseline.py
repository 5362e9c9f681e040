"""Tests of the baseline: when `auto` trains it, the split of the comparison, and its bundle if the student is worse."""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase

import distill as d
from distill.chain import encoding, task_run
from distill.chain.plan import Student
from distill.chain.train import untaught
from distill.core import storage
from distill.core.contracts import Data, Scores
from distill.core.errors import Interrupted, OptionError, UserError
from distill.edge import __main__ as edge
from distill.export.bundle_writer import Exported
from distill.records.run import Run
from distill.records.schema import first_metric, first_split
from distill.training import fitting
from distill.training.statistics import Difference, is_worse
from tests.chain.test_seeds import NO_TIMING, write_metrics
from tests.conftest import LABELS, LOOSE, sentences, toy_bert

QUICK: dict[str, Any] = {"batch_size": 16, "precision": "32-true", "learning_rate": 3e-3, "accelerator": "cpu"}
WORSE = d.Objective(soft=d.SoftTargets())  # From a teacher of random weights.
EQUAL = d.Objective(soft=d.SoftTargets(weight=1e-9), hard=d.HardLabels())

Distill = Callable[..., d.Result]


@pytest.mark.parametrize(
    ("share", "rows", "expected"),
    [
        (0.279, 2_500, (True, "about 28% of the run")),
        (0.35, 10_000, (True, "about 35% of the run")),
        (0.351, 10_000, (False, "it would take about 35% of the run, more than a third")),
        (0.1, 10_001, (False, "10,001 labelled rows are more than 10,000")),
    ],
)
@pytest.mark.usefixtures("chosen_baseline")
def test_auto_trains_a_baseline_on_small_data_if_its_share_is_small(
    share: float, rows: int, expected: tuple[bool, str]
) -> None:
    assert encoding.decide_on_baseline(share, rows) == expected


def test_share_is_that_of_all_work() -> None:
    assert encoding.BaselineWork(teacher=40, outputs=10, student=24, baseline=20, export=6).share == 0.2


@pytest.mark.parametrize(
    ("difference", "interval", "selects", "expected"),
    [
        (-0.02, [-0.03, -0.01], "max", True),
        (-0.02, [-0.05, 0.01], "max", False),
        (0.02, [0.01, 0.03], "max", False),
        (-0.02, None, "max", True),
        (0.0, None, "max", False),
        (0.02, [0.01, 0.03], "min", True),
        (-0.02, [-0.03, -0.01], "min", False),
        (0.02, None, "min", True),
    ],
)
def test_worse_is_a_whole_interval_on_one_side(
    difference: float, interval: list[float] | None, selects: str, expected: bool
) -> None:
    compared: Difference = {"difference": difference, "interval": interval, "p": None, "over": "seeds", "number": 2}
    assert is_worse(compared, selects=selects) is expected


def test_test_stands_first_where_every_task_has_it() -> None:
    sizes = {"train": 8, "dev": 4, "test": 0}
    assert first_split({"examples": sizes}) == "dev"
    assert first_metric({"examples": sizes, "metric": "f1"}) == "f1"
    assert first_metric({"examples": sizes | {"test": 4}, "metric": "f1"}) == "test/f1"
    assert first_split({"examples": sizes | {"test": 4}, "has_test": False}) == "dev"
    assert first_split({"examples": sizes | {"test": 4}, "has_test": True}) == "test"


@pytest.fixture(scope="module")
def with_test(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy data with a test split of 40 examples."""
    directory = tmp_path_factory.mktemp("with_test")
    for name in ("train", "dev"):
        (directory / f"{name}.tsv").write_bytes((data_dir / f"{name}.tsv").read_bytes())
    lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in sentences(40))]
    (directory / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def distill(tokenizer: PreTrainedTokenizerBase, with_test: Path, tmp_path_factory: pytest.TempPathFactory) -> Distill:
    """Distils into a directory of this name, from a teacher of random weights that fits the task."""
    root, model = tmp_path_factory.mktemp("chosen"), toy_bert(len(tokenizer)).eval()

    def run(directory: str, *, steps: int = 24, data: Path = with_test, fits: bool = True, **options: Any) -> d.Result:
        task = d.tasks.Classification(
            text="sentence", labels=LABELS, data=data, max_length=32, metrics=["accuracy"], name="toy"
        )
        name = {} if fits else {"name": directory}
        teacher = d.Teacher(
            model if fits else model.base_model, tokenizer, cache_dir=root / "cache", accept_weak=True, **name
        )
        ready = teacher if fits else teacher.fit(task, max_epochs=4, evaluations=1, **QUICK)
        return d.distill(
            ready, d.students.distilbert(layers=[0]), task,
            trainer=d.TrainerSettings(max_steps=steps, **QUICK), directory=root / directory,
            **({"objective": EQUAL, "export": LOOSE, "benchmark": NO_TIMING} | options),
        )  # fmt: skip

    return run


@pytest.fixture
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_run, "write_bundle", write_metrics)


@pytest.mark.usefixtures("no_export", "chosen_baseline")
def test_default_counts_the_fine_tuning_also_if_it_is_cached(
    distill: Distill, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = distill("tuned", steps=3, fits=False)
    choice = whole.record["baseline_choice"]
    assert (choice["trained"], choice["reason"]) == (True, f"about {choice['share']:.0%} of the run")
    assert 0.01 < choice["share"] < 0.1
    assert whole.record["teacher"]["origin"] == "kept"  # `fit` has fine-tuned it before.
    assert set(whole.comparison) == {"baseline", "teacher"}
    assert f"baseline trained too, {choice['reason']}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("no_export")
def test_work_is_that_of_forward_passes(
    distill: Distill,
    with_test: Path,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The teacher has 4 epochs with an evaluation each, the student 3 of 4 steps of one, and one evaluation."""
    counted = list[encoding.BaselineWork]()
    count_work = encoding.count_work

    def count(*arguments: Any) -> encoding.BaselineWork:
        counted.append(count_work(*arguments))
        return counted[-1]

    monkeypatch.setattr(encoding, "count_work", count)
    result = distill("counted", steps=3, fits=False)
    task = d.tasks.Classification(text="sentence", labels=LABELS, data=with_test, max_length=32)
    examples = task.encode(task.read(tmp_path), tokenizer, None)
    train, dev, test = (sum(examples[name].lengths) for name in ("train", "dev", "test"))
    student = AutoModelForSequenceClassification.from_pretrained(result.directory / "student")
    of_student, of_teacher = (
        sum(tensor.numel() for name, tensor in model.named_parameters() if "embeddings." not in name or "Norm" in name)
        for model in (student, toy_bert(len(tokenizer)))
    )
    training = of_student * (3 * train * 3 / 4 + dev)
    assert counted == [
        encoding.BaselineWork(
            teacher=pytest.approx(of_teacher * (3 * train * 4 + 4 * dev)),
            outputs=pytest.approx(of_teacher * (train + dev + test)),
            student=pytest.approx(training), baseline=pytest.approx(training),
            export=pytest.approx(of_student * 2 * (dev + test)),
        )
    ]  # fmt: skip


@pytest.mark.usefixtures("no_export", "chosen_baseline")
def test_default_leaves_out_a_baseline_that_costs_too_much(
    distill: Distill, capsys: pytest.CaptureFixture[str]
) -> None:
    result = distill("costly", steps=30)
    choice = result.record["baseline_choice"]
    assert (choice["trained"], result.record["baseline"]) == (False, None)
    assert 0.35 < choice["share"] < 0.5
    assert choice["reason"] == f"it would take about {choice['share']:.0%} of the run, more than a third"
    printed = " ".join(capsys.readouterr().out.split())
    assert f"baseline not trained, because {choice['reason']}: baseline=true trains it" in printed
    with pytest.raises(UserError, match=r"the run has no baseline \(it would take .*\): set baseline=True"):
        _ = result.baseline_bundle


@pytest.mark.usefixtures("no_export", "chosen_baseline")
def test_default_has_no_baseline_beside_an_objective_without_a_teacher(
    distill: Distill, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = d.Objective(name="supervised", terms={"hard": d.HardLabels()})
    result = distill("labels", steps=3, objective=labels, fits=False)
    expected = {
        "trained": False,
        "reason": "objective supervised has no teacher either",
        "share": None,
        "possible": False,
    }
    assert result.record["baseline_choice"] == expected
    assert "baseline" not in capsys.readouterr().out


@pytest.mark.usefixtures("no_export")
def test_resumed_training_keeps_its_choice(distill: Distill, monkeypatch: pytest.MonkeyPatch) -> None:
    first = distill("resumed", steps=3, fits=False)
    choice = first.record["baseline_choice"]
    assert choice["trained"] is False  # The shared fixture has this limit.
    monkeypatch.setattr(encoding, "LARGEST_SHARE", 1.0)
    Run(first.directory, {**first.record, "status": "running"}).save()
    resumed = distill("resumed", steps=3, fits=False, resume=True)
    assert resumed.record["baseline_choice"] == choice
    assert resumed.record["baseline"] is None


@pytest.mark.parametrize(("value", "got"), [("maybe", "maybe"), (None, "null"), ("true", "'true'")])
def test_other_values_are_refused(distill: Distill, value: Any, got: str) -> None:
    with pytest.raises(OptionError, match=f"got baseline={got}, expected auto, true, false or same_start"):
        distill(f"refused-{value}", baseline=value)


@pytest.fixture(scope="module")
def result(distill: Distill) -> d.Result:
    """A run whose student is worse than its baseline."""
    return distill("worse", steps=80, objective=WORSE, baseline=True)


def test_comparisons_are_on_the_split_that_stands_first(result: d.Result, distill: Distill) -> None:
    record = result.record
    for name in ("baseline", "teacher"):
        compared = record["comparison"][name]
        expected = result.metrics["test/accuracy"] - record[name]["metrics"]["test/accuracy"]
        assert compared["difference"] == pytest.approx(expected)
        assert (compared["split"], compared["over"], compared["number"]) == ("test", "examples", 40)
    assert "40 test examples" in result.report()


def test_baseline_of_a_worse_student_is_exported(result: d.Result, capsys: pytest.CaptureFixture[str]) -> None:
    metrics, files = result.record["baseline"]["metrics"], result.record["baseline"]["export"]
    assert metrics["test/accuracy"] > 0.9 > result.metrics["test/accuracy"]
    assert {name: file["gate"] for name, file in files.items()} == {"fp32": "passed", "int8": "passed"}
    assert files["fp32"]["metrics"] == pytest.approx(metrics)
    assert result.record["export"]["fp32"]["metrics"] == pytest.approx(result.metrics)
    assert result.record["benchmark"] == []
    assert result.record["student"]["name"] == "distilbert"
    directory = result.directory / "baseline"
    assert edge.main([str(directory / "bundle"), "a lovely and moving film"]) == 0
    assert capsys.readouterr().out.startswith("positive")
    assert not (directory / "run.json").exists()
    saved = json.loads((result.directory / "run.json").read_text())
    assert saved["baseline"] == result.record["baseline"]


def test_bundle_and_model_of_the_baseline_have_the_same_weights(result: d.Result) -> None:
    directory, text = result.directory / "baseline" / "student", "a stale and stupid film"
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    encoded = AutoTokenizer.from_pretrained(directory)(text, return_tensors="pt")
    with torch.inference_mode():
        expected = model(**{name: encoded[name] for name in ("input_ids", "attention_mask")}).logits.softmax(-1).max()
    [prediction] = d.Bundle(result.directory / "baseline" / "bundle", model="fp32").predict([text])
    assert prediction["probability"] == pytest.approx(float(expected), abs=1e-5)
    assert result.baseline_bundle.directory == directory.parent / "bundle"


def test_cards_of_the_baseline_say_that_it_had_no_teacher(result: d.Result) -> None:
    for name in ("bundle", "student"):
        card = (result.directory / "baseline" / name / "README.md").read_text()
        assert "# distilbert-baseline for toy" in card
        assert "Trained **without a teacher**, on the labels alone" in card
        assert "The student with the teacher is worse: -" in card
        assert "knowledge-distillation" not in card
        assert "Distilled from" not in card
        assert "| baseline int8 |" in card
    assert "Distilled from" in (result.directory / "bundle" / "README.md").read_text()


@pytest.mark.usefixtures("no_export")
def test_baseline_of_an_equal_student_is_not_exported(distill: Distill, capsys: pytest.CaptureFixture[str]) -> None:
    equal = distill("equal", steps=3, baseline=True)
    assert equal.comparison["baseline"]["difference"] == 0
    assert not (equal.directory / "baseline" / "bundle").exists()
    assert "Baseline  " not in capsys.readouterr().out
    with pytest.raises(UserError, match="the baseline was not exported, because the student is not worse: take bundle"):
        _ = equal.baseline_bundle


@pytest.mark.usefixtures("no_export")
@pytest.mark.parametrize(("value", "start"), [(True, "pretrained"), ("same_start", "teacher")])
def test_a_baseline_starts_from_the_pretrained_encoder_or_with_same_start_from_the_student(
    distill: Distill, monkeypatch: pytest.MonkeyPatch, value: Any, start: str
) -> None:
    begun = dict[str, dict[str, Any]]()
    fit = fitting.fit

    def record(module: Any, *arguments: Any, title: str, **options: Any) -> Any:
        begun[title] = copy.deepcopy(module.student.state_dict())
        return fit(module, *arguments, title=title, **options)

    monkeypatch.setattr(fitting, "fit", record)
    result = distill(f"start-{start}", steps=4, fits=False, baseline=value)
    table = "distilbert.embeddings.word_embeddings.weight"
    pretrained = toy_bert(begun["student"][table].shape[0]).base_model.get_input_embeddings().weight
    assert torch.equal(begun["baseline"][table], pretrained) is (start == "pretrained")
    assert not torch.equal(begun["student"][table], pretrained)
    is_same = all(torch.equal(tensor, begun["student"][name]) for name, tensor in begun["baseline"].items())
    assert is_same is (start == "teacher")
    assert result.record["baseline"]["start"] == start
    words = {"pretrained": "from the pre-trained encoder", "teacher": "from the teacher's own layers"}[start]
    assert f"the same student trained without a teacher {words} (" in result.verdict


def test_a_baseline_has_nothing_that_was_fitted_to_the_teacher() -> None:
    tensors, changes = (torch.ones(2, 2), torch.ones(2)), {"layer": torch.ones(2)}
    student = Student("mine", lambda teacher: teacher, head=tensors, encoder_changes=changes)
    plans: list[Any] = [SimpleNamespace(baseline=choice) for choice in (True, "same_start")]
    started = [untaught(student, [], plan)[0] for plan in plans]
    assert [(start.head, start.encoder_changes) for start in started] == [(None, None), (tensors, changes)]


@pytest.mark.usefixtures("no_export")
def test_runs_that_differ_in_the_teachers_part_share_a_baseline(
    distill: Distill, capsys: pytest.CaptureFixture[str]
) -> None:
    first = distill("shared-1", steps=6, baseline=True, objective=WORSE)
    assert "Baseline: trained before" not in capsys.readouterr().out
    second = distill("shared-2", steps=6, baseline=True)
    printed = capsys.readouterr().out.replace("\n", "")
    assert (
        f"Baseline: trained before, reused from {second.directory.parent / 'cache' / 'baselines' / 'toy-'}" in printed
    )
    for name in ("metrics", "seconds"):
        assert first.record["baseline"][name] == second.record["baseline"][name]
    assert first.metrics != second.metrics
    for name in ("metrics.csv", "checkpoints/best.ckpt"):
        assert (second.directory / "baseline" / name).read_bytes() == (first.directory / "baseline" / name).read_bytes()


@pytest.mark.usefixtures("no_export")
def test_a_baseline_is_trained_beside_a_cache_that_cannot_be_written(
    distill: Distill, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = distill("writable", steps=5)  # The cache has all but a baseline.
    root = first.directory.parent / "cache"
    entries = sorted(root.glob("baselines/*"))
    monkeypatch.setattr(storage.os, "access", lambda path, _: not Path(path).is_relative_to(root))
    result = distill("read-only", steps=5, baseline=True)
    assert result.record["baseline"]["seconds"] > 0
    assert sorted(root.glob("baselines/*")) == entries


@pytest.mark.usefixtures("no_export")
def test_baseline_of_another_training_or_a_damaged_one_is_trained(
    distill: Distill, capsys: pytest.CaptureFixture[str]
) -> None:
    before = distill("before", steps=8, baseline=True)
    assert "reused from" not in capsys.readouterr().out  # Others were trained for other numbers of steps.
    for entry in (before.directory.parent / "cache" / "baselines").iterdir():
        (entry / "metrics.csv").write_text("cut off")
    after = distill("after", steps=8, baseline=True)
    printed = capsys.readouterr().out
    assert "reused from" not in printed
    assert "is damaged and made again" in printed
    assert after.record["baseline"]["seconds"] != before.record["baseline"]["seconds"]


@pytest.mark.usefixtures("no_export")
def test_several_seeds_are_compared_on_test_and_the_first_baseline_is_exported(
    distill: Distill, capsys: pytest.CaptureFixture[str]
) -> None:
    several = distill("several", objective=WORSE, baseline=True, seeds=2)
    compared = several.comparison["baseline"]
    entries = several.record["seeds"]
    differences = [of["metrics"]["test/accuracy"] - of["baseline"]["metrics"]["test/accuracy"] for of in entries]
    assert compared["difference"] == pytest.approx(sum(differences) / 2)
    assert (compared["split"], compared["over"], compared["interval"][1] < 0) == (
        "test", "seeds and examples", True,
    )  # fmt: skip
    assert several.comparison["teacher"]["split"] == "test"
    files = several.record["baseline"]["export"]
    assert files["fp32"]["metrics"] == entries[0]["baseline"]["metrics"]
    assert len(list(several.directory.rglob("baseline/bundle"))) == 1
    assert f"Baseline {several.directory / 'baseline' / 'bundle'}" in capsys.readouterr().out.replace("\n", "")


def test_run_that_stopped_in_the_export_of_the_baseline_goes_on(
    distill: Distill, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list[Path]()

    def write_once(directory: Path, *, splits: Data, scores: Mapping[str, Scores], **others: object) -> Exported:
        written.append(directory)
        if len(written) == 2:
            raise KeyboardInterrupt
        return write_metrics(directory, splits=splits, scores=scores)

    monkeypatch.setattr(task_run, "write_bundle", write_once)
    with pytest.raises(Interrupted):
        distill("stopped", objective=WORSE, baseline=True)
    resumed = distill("stopped", objective=WORSE, baseline=True, resume=True)
    assert len(written) == 4
    assert resumed.record["status"] == "finished"
    assert resumed.record["baseline"]["export"]["fp32"]["metrics"] == resumed.record["baseline"]["metrics"]
    assert resumed.record["baseline_choice"]["trained"] is True
