"""Tests of what a notebook does with the Python API: plans, tables, figures, callbacks, own metrics, interrupts."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.core.errors import Interrupted, UserError
from distill.edge import __main__ as edge
from tests.conftest import LABELS, LOOSE, toy_bert

QUICK: dict[str, Any] = {"batch_size": 16, "precision": "32-true", "learning_rate": 3e-3}


class AtStep(Callback):
    """Calls a function at an optimizer step of the training of the student."""

    def __init__(self, step: int, function: Callable[[], object]) -> None:
        self.step, self.function = step, function
        self.steps = 0

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.steps += 1
        if trainer.global_step == self.step:
            self.function()


def margin(y_true: np.ndarray, y_score: np.ndarray) -> float:
    return float(np.abs(y_score - 0.5).mean())


def do_nothing() -> None:
    pass


def create_task(data_dir: Path) -> d.tasks.Classification:
    return d.tasks.Classification(
        text="sentence", name="toy", labels=LABELS, max_length=64, data=data_dir, unlabelled=None,
        metrics=["accuracy", margin],
    )  # fmt: skip


def distill(
    data_dir: Path, teacher: tuple[PreTrainedModel, PreTrainedTokenizerBase], root: Path, **options: Any
) -> d.Result:
    return d.distill(
        d.Teacher(*teacher, accept_weak=True, cache_dir=root / "cache"), d.students.distilbert(),
        create_task(data_dir), trainer=d.TrainerSettings(max_epochs=2, evaluations=2, **QUICK), export=LOOSE,
        benchmark=d.BenchmarkSettings(enabled=False), directory=root / "run", **{"baseline": False} | options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tokenizer: PreTrainedTokenizerBase) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A teacher with a head for the toy labels."""
    return toy_bert(len(tokenizer)), tokenizer


@pytest.fixture(scope="module")
def counter() -> AtStep:
    return AtStep(0, do_nothing)


@pytest.fixture(scope="module")
def result(
    data_dir: Path,
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    counter: AtStep,
    tmp_path_factory: pytest.TempPathFactory,
) -> d.Result:
    """A run with a baseline."""
    return distill(data_dir, loaded, tmp_path_factory.mktemp("result"), callbacks=counter, baseline=True)  # fmt: skip


def test_the_callbacks_are_those_of_the_student_and_the_baseline_has_copies(result: d.Result, counter: AtStep) -> None:
    assert counter.steps == result.record["training"]["steps"] > 1


def test_a_result_is_a_short_table(result: d.Result) -> None:
    lines = repr(result).splitlines()
    assert lines[0] == f"distilbert for toy: {result.directory}"
    assert [line.split("  ")[1] for line in lines[2:] if line.startswith("  student")] == [
        "student fp32",
        "student int8",
    ]
    html = result._repr_html_()
    assert html.count("<tr>") == len(result.overview().rows) + 1
    assert max(len(html), len(repr(result))) < 6000


def test_objects_are_shown_by_what_they_are(
    result: d.Result, data_dir: Path, loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> None:
    assert repr(result.bundle) == f"Bundle({str(result.directory / 'bundle')!r}, model={result.bundle.model!r})"
    bundle = dict(result.bundle.overview().rows)
    assert bundle["labels"] == ", ".join(LABELS)
    assert "margin" in bundle["metrics"]
    task = create_task(data_dir)
    assert repr(task) == f"Classification(name='toy', data={str(data_dir)!r})"
    assert dict(task.overview().rows)["columns"] == "sentence, label"
    teacher = d.Teacher(*loaded, name="big")
    assert repr(teacher) == "Teacher('big (BertForSequenceClassification)')"
    assert dict(d.Teacher.ensemble([teacher, teacher]).overview().rows)["shares"] == "0.50, 0.50"
    assert repr(d.students.distilbert(layers=[0])) == "Student('distilbert', layers=[0], init='teacher')"
    several = d.tasks.MultiTask(tasks={"a": task, "b": task})
    assert [row[0] for row in several.overview().rows] == ["a", "b"]
    for shown in (task, teacher, several, d.students.bilstm(), d.tasks.MaskedLM(), result.bundle):
        assert shown._repr_html_().startswith("<div><p><strong>")


def test_one_text_has_one_prediction(result: d.Result) -> None:
    assert result.bundle.predict("a lovely film") == result.bundle.predict(["a lovely film"])[0]


@pytest.mark.usefixtures("drawn")
def test_figures_are_shown_and_belong_to_the_caller(result: d.Result) -> None:
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    plots = result.plot()
    assert len(plots) >= 3
    assert all(isinstance(figure, Figure) for figure in plots)
    assert plots[0] is plots[0]
    assert plots[-1] is plots[len(plots) - 1]
    assert pyplot.get_fignums() == []
    assert plots[0]._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    html = plots._repr_html_()
    assert html.count("<svg") == html.count("<figcaption>") == len(plots)
    assert "<script" not in html
    with pytest.raises(IndexError):
        plots[len(plots)]


def test_own_metrics_are_in_the_record_the_report_and_the_bundle(
    result: d.Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert result.metrics.keys() == {"accuracy", "margin"}
    assert result.record["teacher"]["metrics"].keys() == {"accuracy", "margin"}
    for file in result.record["export"].values():
        assert file["metrics"]["margin"] == pytest.approx(result.metrics["margin"], abs=0.2)
    assert "margin" in result.report()
    assert result.bundle.manifest["own_metrics"] == ["margin"]
    rows = tmp_path / "rows.csv"
    rows.write_text(f"text,label\na lovely film,{LABELS[1]}\na dull mess,{LABELS[0]}\n")
    assert edge.main([str(result.directory / "bundle"), "--evaluate", str(rows)]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("accuracy\t")
    assert "margin\t" not in output.out
    expected = "notice: left out margin: functions of the run that trained the bundle, which a bundle lacks\n"
    assert output.err == expected


def test_a_plan_is_the_summary_of_the_run_and_leaves_nothing(
    data_dir: Path,
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from distill.chain import distillation

    monkeypatch.chdir(tmp_path)
    teacher = d.Teacher(*loaded, accept_weak=True, cache_dir=tmp_path / "cache")
    planned = d.plan(
        teacher, d.students.distilbert(), create_task(data_dir), baseline=False,
        trainer=d.TrainerSettings(max_steps=1, **QUICK),
    )  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}
    shown: list[list[tuple[str, object]]] = []
    monkeypatch.setattr(distillation, "show_summary", shown.append)
    d.distill(
        teacher, d.students.distilbert(), create_task(data_dir), baseline=False,
        trainer=d.TrainerSettings(max_steps=1, **QUICK), export=d.ExportSettings(enabled=False),
        directory=tmp_path / "run",
    )  # fmt: skip
    depends_on_outputs = ("teacher", "teacher outputs", "training")  # A plan computes no outputs, and times differ.
    rows, expected = dict(planned.rows), {name: str(value) for name, value in shown[0]}
    assert rows.keys() == expected.keys()
    assert {name for name in rows if rows[name] != expected[name]} <= {*depends_on_outputs}
    assert rows["training"].startswith("1 steps in 32-true, about ")
    assert repr(planned).splitlines()[0] == "Before training"
    assert repr(planned).splitlines()[-1] == "Nothing was trained."
    assert planned._repr_html_().count("<tr>") == len(planned.rows)


def test_a_run_that_a_callback_and_an_interrupt_stopped_ends_with_the_same_weights(
    result: d.Result, data_dir: Path, loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase], tmp_path: Path
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("by zero")

    last = result.record["training"]["steps"]
    with pytest.raises(UserError, match="^the callback AtStep failed in on_train_batch_end"):
        distill(data_dir, loaded, tmp_path, callbacks=[AtStep(last - 1, fail)])
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "failed"
    expected = (
        "UserError: the callback AtStep failed in on_train_batch_end (ZeroDivisionError: by zero): correct it and"
    )
    assert record["error"].startswith(expected)
    handler = signal.getsignal(signal.SIGINT)
    interrupt = AtStep(last - 1, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted, match=r"last.ckpt holds the training so far; distill\(..., resume=True\) goes on"):
        distill(data_dir, loaded, tmp_path, callbacks=interrupt, resume=True)
    assert signal.getsignal(signal.SIGINT) is handler
    resumed = distill(data_dir, loaded, tmp_path, resume=True)
    assert resumed.record["status"] == "finished"
    weights, expected = (load_file(of.directory / "student" / "model.safetensors") for of in (resumed, result))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert resumed.metrics == result.metrics


def test_a_teacher_has_callbacks_and_is_another_one_with_them(
    data_dir: Path, tokenizer: PreTrainedTokenizerBase, teacher: PreTrainedModel, tmp_path: Path
) -> None:
    encoder, task = teacher.base_model, create_task(data_dir)
    counter = AtStep(0, do_nothing)
    options = {"max_steps": 2, **QUICK}
    fitted = d.Teacher(encoder, tokenizer, cache_dir=tmp_path).fit(task, callbacks=counter, **options)
    assert counter.steps == 2
    fitted.fit(task, callbacks=AtStep(0, do_nothing), **options)  # It is in the cache.
    assert len(list((tmp_path / "teachers").glob("loaded-toy-*"))) == 1
    d.Teacher(encoder, tokenizer, cache_dir=tmp_path).fit(task, **options)
    assert len(list((tmp_path / "teachers").glob("loaded-toy-*"))) == 2
    with pytest.raises(Interrupted, match="interrupted: the teacher is not fine-tuned; fit begins again"):
        d.Teacher(encoder, tokenizer, cache_dir=tmp_path).fit(
            task, callbacks=AtStep(1, lambda: os.kill(os.getpid(), signal.SIGINT)), max_steps=3, **QUICK
        )


TEXTS, ANSWERS = ["a lovely film", "a dull mess", "a joy", "a bore"], ["good", "bad", "good", "bad"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": {"review": TEXTS, "label": ANSWERS}}, "the split train has no column text: it has review, label"),
        ({"train": {"text": TEXTS, "stars": ANSWERS}}, "the split train has no column label: it has text, stars; name"),
        ({"dev": {"text": TEXTS}}, "the split dev has no column label: it has text; name yours with task.text"),
        ({"train": (TEXTS, [None] * 4)}, "the split train has no value in the column label: all 4 are None; name"),
        ({"train": (TEXTS, ANSWERS[:3])}, "got 4 texts and 3 labels, expected as many of both"),
        ({"data": {"text": TEXTS}, "train": None, "dev": None}, "the data has no column label: it has text; name"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["mapping", "dataset"])
def test_columns_and_labels_that_are_missing_in_memory_are_refused_at_once(
    options: dict[str, Any], message: str, form: str
) -> None:
    import datasets
    import pandas

    convert = {"mapping": dict, "frame": pandas.DataFrame, "dataset": datasets.Dataset.from_dict}[form]
    given = {name: convert(table) if isinstance(table, dict) else table for name, table in options.items()}
    with pytest.raises(UserError) as error:
        d.tasks.Classification(**{"text": "text", "train": (TEXTS, ANSWERS), "dev": (TEXTS, ANSWERS)} | given)
    assert str(error.value).startswith(message)


def test_tags_and_answers_that_are_missing_in_memory_are_refused_at_once() -> None:
    words = {"tokens": [["a"], ["b"]]}
    with pytest.raises(UserError, match="the split train has no column tags: it has tokens; name yours with task.tok"):
        d.tasks.TokenClassification(train=words, dev=words | {"tags": [["O"], ["O"]]})
    with pytest.raises(UserError, match="the data has no column answers: it has question, context; a question needs"):
        d.tasks.QuestionAnswering(data={"question": ["a"], "context": ["b"]})


def test_a_test_split_without_labels_is_no_mistake(tmp_path: Path) -> None:
    task = d.tasks.Classification(train=(TEXTS, ANSWERS), dev=(TEXTS, ANSWERS), test={"text": TEXTS}, text="text")
    assert set(task.read(tmp_path).splits) == {"train", "dev"}
