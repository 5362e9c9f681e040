"""Tests of several tasks with one student: metrics, losses, refusals, and whole runs."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.chain.plan import Plan, check_plan
from distill.chain.task_run import TaskRun
from distill.core.contracts import TASK_ID, Scores
from distill.core.errors import OptionError, UserError
from distill.edge.__main__ import main
from distill.export.latency import Budget
from distill.kinds import Classification, MaskedLM, MultiTask, Regression
from distill.kinds.classification import LabelSets, OneClass
from distill.kinds.multitask import join_scorings
from distill.kinds.regression import NumberScores
from distill.models.loading import load_directory
from distill.models.wrappers import SeveralHeads, share_encoder
from distill.records.report import render_overview_card, summary_cells
from distill.records.run import Run
from distill.teachers.signal import check_teachers
from distill.training.module import DistillationModule, dev_metrics
from tests.conftest import LABELS, LOOSE, SETTINGS, sentences, toy_bert
from tests.jobs.conftest import Command, command

assert command

NO_TIMING = d.BenchmarkSettings(batches=[1], lengths=[8], enabled=False)
NAMES = ("films", "pairs")
HEAD = "AutoModelForSequenceClassification"


def similarity(rows: list[tuple[str, int]]) -> dict[str, list[Any]]:
    """Returns pairs of texts with 5 for the same label and 0 for another one."""
    pairs = list(zip(rows, rows[1:] + rows[2:3], strict=True))
    return {
        "one": [first for (first, _), _ in pairs], "two": [second for _, (second, _) in pairs],
        "score": [5.0 * (i % 3 == 0) for i in range(len(pairs))],
    }  # fmt: skip


def columns_of(rows: list[tuple[str, int]]) -> tuple[list[str], list[int]]:
    return [text for text, _ in rows], [label for _, label in rows]


def make_task(bank: list[str] | None = None, **options: Any) -> MultiTask:
    films = Classification(
        bank=bank, text="text", labels=LABELS, name="films", metrics=["accuracy"], max_length=32,
        train=columns_of(sentences(48)), dev=columns_of(sentences(16)),
    )  # fmt: skip
    pairs = Regression(
        text=["one", "two"], label="score", name="pairs", max_length=48,
        train=similarity(sentences(24)), dev=similarity(sentences(12)),
    )  # fmt: skip
    return MultiTask(tasks={"films": films, "pairs": pairs}, **options)


def make_models(vocabulary: int) -> dict[str, PreTrainedModel]:
    films = toy_bert(vocabulary).eval()
    config = toy_bert(vocabulary, seed=1).config
    config.num_labels = 1
    torch.manual_seed(2)
    return {"films": films, "pairs": type(films)(config).eval()}


def scores_of(logits: list[list[float]], labels: list[Any]) -> Scores:
    return Scores({"logits": np.array(logits)}, np.array(labels), np.arange(len(labels)))


# The task


def test_metrics_are_those_of_the_tasks_and_their_mean() -> None:
    """Three of four classes are right, and the numbers are in a line: (0.75 + 1) / 2."""
    films = scores_of([[1, 0], [1, 0], [0, 1], [0, 1]], [0, 0, 1, 0])
    pairs = scores_of([[1], [2], [3]], [0, 2, 4])
    scoring = join_scorings({"films": OneClass(("accuracy",)), "pairs": NumberScores(("pearson",))})
    metrics = scoring.metrics(Scores.of_tasks({0: films, 1: pairs}))
    assert metrics == pytest.approx({"mean": 0.875, "films/accuracy": 0.75, "pairs/pearson": 1.0})
    assert scoring.metrics(Scores.of_tasks({0: films})) == {"films/accuracy": 0.75}


def test_thresholds_of_one_of_several_tasks_decide_no_row_that_chose_them() -> None:
    random, sets = np.random.default_rng(0), LabelSets(("macro_f1",), separator="|", labels=("a", "b"))
    labels = (random.random((40, 2)) < 0.3).astype(float)
    one, films = scores_of(random.normal(size=(40, 2)).tolist(), labels.tolist()), scores_of([[1, 0]], [0])
    scoring = join_scorings({"films": OneClass(("accuracy",)), "sets": sets})
    metrics = dev_metrics(scoring, Scores.of_tasks({0: films, 1: one}))
    assert metrics["sets/macro_f1"] == dev_metrics(sets, one)["macro_f1"]
    assert metrics["sets/macro_f1"] < sets.metrics(replace(one, decoding=sets.fit_decoder(one)))["macro_f1"]


def test_a_step_on_several_tasks_has_the_mean_loss_of_all_their_items(tokenizer: PreTrainedTokenizerBase) -> None:
    """Cross-entropy of two examples of one task and squared error of one of the other, over three items."""
    task, models = make_task(), make_models(len(tokenizer))
    student = share_encoder({name: from_teacher(model) for name, model in models.items()}, name="toy")
    module = DistillationModule(student=student, objective=d.Objective(hard=d.HardLabels()), task=task)
    student.eval()
    ids = torch.randint(5, 60, (2, 7), generator=torch.Generator().manual_seed(0))
    films = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "example_id": torch.arange(2)}
    pairs = {name: column[:1] for name, column in films.items()}
    films |= {"labels": torch.tensor([0, 1]), TASK_ID: torch.tensor([0, 0])}
    pairs |= {"labels": torch.tensor([3.0]), TASK_ID: torch.tensor([1])}
    counts = module._counts(films) + module._counts(pairs)
    loss = sum(module.losses(batch, counts)[0] for batch in (films, pairs))
    inputs = {name: films[name] for name in ("input_ids", "attention_mask")}
    logits = student.head("films")(**inputs).logits
    number = student.head("pairs")(**{name: column[:1] for name, column in inputs.items()}).logits
    expected = torch.nn.functional.cross_entropy(logits, films["labels"], reduction="sum") + (number[0, 0] - 3.0) ** 2
    torch.testing.assert_close(loss, expected / 3)


def test_heads_share_one_encoder_and_start_from_their_teachers(tokenizer: PreTrainedTokenizerBase) -> None:
    models = make_models(len(tokenizer))
    own = {name: from_teacher(model) for name, model in models.items()}
    classifiers = {name: model.classifier.weight.clone() for name, model in own.items()}
    student = share_encoder(own, name="toy")
    assert student.head("pairs").base_model is student.head("films").base_model is student.base_model
    for name, weight in classifiers.items():
        assert torch.equal(student.head(name).classifier.weight, weight)
    names = [name for name, _ in student.named_parameters()]
    assert len(names) == len(set(names)) == len(student.inherited)  # type: ignore[arg-type]
    assert sum(p.numel() for p in student.parameters()) < 1.2 * sum(p.numel() for p in own["films"].parameters())


def test_tasks_that_cannot_be_learned_together_are_refused() -> None:
    one = make_task().tasks["films"]
    with pytest.raises(OptionError, match=r"got tasks=\[films\], expected at least two tasks, as in"):
        MultiTask(tasks={"films": one})
    with pytest.raises(OptionError, match=r"got tasks=a/b, expected names of letters, digits, _ and -"):
        MultiTask(tasks={"films": one, "a/b": one})
    with pytest.raises(UserError, match=r"task mlm \(masked_lm\) cannot be one of several"):
        MultiTask(tasks={"films": one, "mlm": MaskedLM()})
    with pytest.raises(OptionError, match=r"got sampling=2, expected size, even, or a number from 0 to 1"):
        make_task(sampling=2)


# Whole runs


def run(root: Path, tokenizer: PreTrainedTokenizerBase, export: d.ExportSettings) -> d.Result:
    teachers = {
        name: d.Teacher(model, tokenizer, name=name, cache_dir=root / "cache", accept_weak=True)
        for name, model in make_models(len(tokenizer)).items()
    }
    trainer = d.TrainerSettings(max_steps=2, batch_size=8, learning_rate=3e-3, precision="32-true", accelerator="cpu")
    return d.distill(
        d.Teacher.by_task(teachers), d.students.distilbert(layers=[0, 3]), make_task(sampling="even"),
        trainer=trainer, export=export, benchmark=NO_TIMING, directory=root / "run", baseline=True,
    )  # fmt: skip


def test_the_record_has_the_baseline_of_each_task(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    record = run(tmp_path, tokenizer, d.ExportSettings(enabled=False)).record
    assert (record["status"], record["task"]["tasks"], list(record["tasks"])) == ("finished", list(NAMES), list(NAMES))
    assert record["training"]["steps"] == 2
    for model in ("teacher", "student", "baseline"):
        metrics = record[model]["metrics"]
        own = {name: record["tasks"][name][model]["metrics"] for name in NAMES}
        assert metrics["films/accuracy"] == own["films"]["accuracy"]
        assert metrics["mean"] == pytest.approx((own["films"]["accuracy"] + own["pairs"]["pearson"]) / 2)
    assert all(record["tasks"][name]["comparison"].keys() == {"teacher", "baseline"} for name in NAMES)
    rows = summary_cells(record)[1:]
    assert [row[0] for row in rows] == [*NAMES, "mean"]
    films = {model: record["tasks"]["films"][model]["metrics"]["accuracy"] for model in ("student", "baseline")}
    assert f"{100 * (films['student'] - films['baseline']):+.1f}" in rows[0]


def test_each_bundle_predicts_as_its_head_and_the_encoder_is_one(golden_run: Callable[[str], Path]) -> None:
    directory = golden_run("multi")
    result = d.Result(directory, json.loads((directory / "run.json").read_text(encoding="utf-8")))
    records: dict[str, list[Any]] = {"sst2": ["a lovely film", "dull"], "stsb": [["a lovely film", "dull"]] * 2}
    starts = {name: load_directory(directory / "student" / name, HEAD, None, trust_remote_code=False)
              for name in records}  # fmt: skip
    first, second = (start.model.base_model.state_dict() for start in starts.values())
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    for name, bundle in result.bundles.items():
        fp32 = d.Bundle(bundle.directory, model="fp32")
        texts = records[name]
        columns = [texts] if name == "sst2" else [list(column) for column in zip(*texts, strict=True)]
        inputs = starts[name].tokenizer(*columns, padding=True, return_tensors="pt")
        with torch.no_grad():
            model = starts[name].model.eval()
            expected = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        np.testing.assert_allclose(np.concatenate(fp32.item_logits(texts)), expected, atol=1e-4)
        assert len(d.Bundle(bundle.directory, model="int8").predict(texts)) == 2


@pytest.mark.slow
def test_baseline_of_each_task_whose_head_is_worse_is_exported(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskRun, "is_worse", property(lambda part: part.name == "pairs"))
    result = run(tmp_path, tokenizer, replace(LOOSE, recipes=("dynamic",)))
    films, pairs = (result.record["tasks"][name]["baseline"] for name in NAMES)
    assert "export" not in films
    assert pairs["export"].keys() == {"fp32", "int8"}
    assert pairs["export"]["fp32"]["metrics"] == pytest.approx(pairs["metrics"], abs=1e-4)
    for kind in ("bundle", "student"):
        assert [path.name for path in (result.directory / "baseline" / kind).iterdir()] == ["pairs"]
    card = (result.directory / "baseline" / "bundle" / "pairs" / "README.md").read_text(encoding="utf-8")
    assert "# distilbert-baseline for pairs" in card
    assert len(d.Bundle(result.directory / "baseline" / "bundle" / "pairs").predict([["dull", "a lovely film"]])) == 1
    with pytest.raises(UserError, match="a run on several tasks has no baseline_bundle: see the directories in"):
        _ = result.baseline_bundle


def test_weights_are_shared_and_checked(
    golden_run: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = golden_run("multi")
    shared = json.loads((run / "run.json").read_text(encoding="utf-8"))["shared"]
    bundle = shutil.copytree(run / "bundle", tmp_path / "bundle")
    sizes = {path.name: path.stat().st_size for path in bundle.glob("*.data")}
    assert sizes == shared["files"]
    assert sizes.keys() == {"model.onnx.data", "model.int8.onnx.data"}
    models = [*bundle.glob("*/*.onnx"), *bundle.glob("*.data")]
    assert sum(path.stat().st_size for path in models) == shared["bytes"] < shared["separate"]
    assert main([str(bundle / "sst2"), "a lovely film"]) == 0
    assert main([str(bundle), "a lovely film"]) == 2
    assert f"it has one for each of sst2, stsb: open {bundle / 'sst2'}" in capsys.readouterr().err
    data = bundle / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match=r"\.\./model\.onnx\.data is damaged: its SHA-256"):
        d.Bundle(bundle / "stsb", model="fp32")
    data.unlink()
    with pytest.raises(UserError, match=r"stsb is incomplete: \.\./model\.onnx\.data is missing"):
        d.Bundle(bundle / "stsb", model="fp32")


def test_a_run_is_published_if_the_files_of_every_task_are_whole_and_passed(
    golden_run: Callable[[str], Path], tmp_path: Path, command: Command
) -> None:
    directory = shutil.copytree(golden_run("multi"), tmp_path / "run")
    run = Run(directory, json.loads((directory / "run.json").read_text(encoding="utf-8")))
    publish = ["job=publish", f"run={directory}", "repo=me/toy", "dry_run=true"]
    files = [file for section in run.record["tasks"].values() for file in section["export"].values()]

    def save(*gates: str) -> None:
        for file, gate in zip(files, gates, strict=True):
            file["gate"] = gate
        run.save()

    save(*["passed"] * 4)
    code, output, error = command(*publish)
    assert code == 0, error
    names = {line.split()[1] for line in output.splitlines() if line.startswith("│")}
    assert names >= {"sst2/model.safetensors", "stsb/model.safetensors", "bundle/sst2/model.int8.onnx"}
    assert names >= {"README.md", "bundle/README.md", "bundle/model.onnx.data", "bundle/stsb/bundle.json"}
    card = render_overview_card(run.record, is_repository=True)
    assert "distill.edge path/to/this/repository/bundle/sst2" in card
    save("passed", "passed", "failed", "failed")
    code, _, error = command(*publish)
    assert (code, len(error.splitlines())) == (2, 1), error
    assert "run for stsb passed its gate (model.onnx failed, model.int8.onnx failed)" in error
    save(*["passed"] * 4)
    (directory / "bundle" / "model.onnx.data").write_bytes(b"other weights")
    code, _, error = command(*publish)
    assert (code, len(error.splitlines())) == (2, 1), error
    assert "bundle is damaged or was changed" in error


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": Budget(mb=9)}, "budget chooses the depth of a student with one head, and task="),
        ({"trainer": replace(SETTINGS, devices=2)}, "trainer.devices would give each process another head"),
        ({"trainer": replace(SETTINGS, strategy="fsdp")}, "trainer.strategy=fsdp is for several processes"),
        ({"augment": d.TangAugmentation()}, "augment changes the texts of one task, and task=multi"),
        ({"export": d.ExportSettings(vocabulary="trained")}, "export.vocabulary=trained chooses the pieces of one"),
        ({"bank": ["a text"]}, "bank is for the texts of one task, and task=multi has"),
        ({"by_task": {"films": None}}, r"got teacher.paths=\[films\], expected a directory for each task: films, p"),
    ],
)
def test_options_of_one_task_are_refused(options: dict[str, Any], message: str) -> None:
    task = make_task(**{name: options.pop(name) for name in ("bank",) if name in options})
    source: Any = SimpleNamespace(by_task=options.pop("by_task", {}))
    plan = Plan(task, d.Objective(hard=d.HardLabels()), SETTINGS, d.ExportSettings(), NO_TIMING, Path())
    with pytest.raises(UserError, match=message):
        check_plan(source, replace(plan, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["task.tasks=[sst2,rte]", "task.tasks.rte.max_length=1"], "got task.tasks.rte.max_length=1, expected at"),
        (["task.tasks=[sst2,rte]", "task.tasks.rte.data=x"], "there is no option task.tasks.rte.data"),
        (["task.tasks=[sst2,rte]", "job=finetune"], "job=finetune trains a teacher for one task, and task=multi has"),
        (["task=sst2", "+teacher=by_task", "teacher.paths={sst2:.}"],
         "expected a directory for each task: one path, because task=sst2 is one task"),
        (["task=sst2", "task.tasks=[rte,mrpc]"], "task.tasks is for task=multi and task=text_labels, and this run"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_is_refused_in_one_line(
    options: list[str], message: str, command: Command, encoder_dir: Path
) -> None:
    teacher = [] if "+teacher=by_task" in options else ["+teacher=pretrained", f"teacher.path={encoder_dir}"]
    task = [] if "task=sst2" in options else ["task=multi"]
    student = [] if "job=finetune" in options else ["+student=distilbert"]
    code, _, error = command(*teacher, *student, *task, *options)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


def test_a_student_without_an_encoder_of_its_own_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    model = toy_bert(len(tokenizer)).bert
    with pytest.raises(UserError, match=r"student bare \(BertModel\) has no encoder apart from its head"):
        share_encoder({"a": model, "b": model}, name="bare")
    other = {"a": toy_bert(len(tokenizer)), "b": toy_bert(len(tokenizer), layers=2)}
    with pytest.raises(UserError, match=r"student toy has another encoder for task b \(BertModel\) than for task a"):
        share_encoder(other, name="toy")
    assert isinstance(share_encoder({"a": other["a"], "b": toy_bert(len(tokenizer))}, name="toy"), SeveralHeads)


def test_teachers_of_other_sizes_are_refused_before_one_is_fine_tuned(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    sources = {}
    for name, layers in (("films", 2), ("pairs", 1)):
        toy_bert(len(tokenizer), layers=layers).bert.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        sources[name] = d.Teacher.from_pretrained(str(tmp_path / name)).source
    expected = r"task pairs \(.*pairs\) has an encoder of another size than that of task films .*take objective=hinton"
    with pytest.raises(UserError, match=expected):
        check_teachers(sources, d.Objective(soft=d.SoftTargets(), cosine=d.Cosine()))
    check_teachers(sources, d.Objective(soft=d.SoftTargets()))
