"""Tests of the Python API: the documented blocks run, and the API and the command give the same results."""

import ast
import copy
import doctest
import errno
import importlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from distill.builtin.teachers.loaded import Loaded
from distill.builtin.teachers.pretrained import Pretrained
from safetensors.torch import load_file, save_file
from tokenizers.normalizers import Lowercase, Prepend, Sequence
from transformers import BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill import __main__ as command_line
from distill import api
from distill.core.errors import WHEEL, UserError
from tests.conftest import LABELS, LOOSE, LOOSE_OPTIONS, sentences
from tests.documents import PAGES, read_blocks

QUICK: dict[str, Any] = {"batch_size": 16, "precision": "32-true", "learning_rate": 3e-3}
TIMING = d.BenchmarkSettings(batches=[1], lengths=[8], seconds=0.02)
PYTHON = [page for page in PAGES if read_blocks(page, "python")]


@pytest.fixture
def teacher_dir(teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Path:
    """A teacher with a head for the toy labels."""
    teacher.save_pretrained(tmp_path / "teacher")
    tokenizer.save_pretrained(tmp_path / "teacher")
    return tmp_path / "teacher"


@pytest.mark.slow
@pytest.mark.parametrize("document", PYTHON, ids=lambda path: path.name)
def test_every_python_block_runs(
    document: Path, data_dir: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a document run one after the other, with a small encoder in place of the Hub's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTILL_CACHE", str(tmp_path / "cache"))
    shutil.copytree(data_dir, tmp_path / "data" / "sst2")
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=128,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    predictions = {"label": [0, 1], "teacher_prediction": [0, 1], "int8_prediction": [1, 1]}
    pandas.DataFrame(predictions).to_parquet(tmp_path / "predictions.parquet")
    names: dict[str, Any] = {"TIMING": TIMING, "LOOSE": LOOSE}
    for block in read_blocks(document, "python"):
        block = block.replace("google-bert/bert-base-uncased", str(tmp_path / "encoder"))
        block = block.replace("max_epochs=3)", f"max_epochs=15, **{QUICK})")
        # A student of so few steps may lose more in int8 than a gate allows.
        options = 'directory="runs/first", export=LOOSE, benchmark=TIMING'
        block = block.replace('directory="runs/first"', options)
        exec(compile(ast.parse(block), document.name, "exec"), names)
    if "result" in names:
        assert names["result"].record["status"] == "finished"
        assert (tmp_path / "runs" / "first" / "bundle" / "bundle.json").is_file()
        assert (tmp_path / "runs" / "first" / WHEEL).is_file()


def distill_by_api(teacher_dir: Path, data: Any, root: Path, **options: Any) -> d.Result:
    known = {"labels": LABELS, "metrics": ["accuracy"]}
    task = d.tasks.Classification(text="sentence", name="sst2", max_length=64, **known, **data)
    teacher = d.Teacher.from_pretrained(teacher_dir, accept_weak=True, cache_dir=root / "cache")
    trainer = d.TrainerSettings(max_epochs=2, seed=3, **QUICK)
    return d.distill(
        teacher,
        d.students.distilbert(),
        task,
        trainer=trainer,
        seed=3,
        directory=root / "run",
        **({"export": LOOSE, "benchmark": TIMING} | options),
    )


def test_the_api_and_the_command_give_the_same_results(
    teacher_dir: Path, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = distill_by_api(teacher_dir, {"data": data_dir}, tmp_path, logger=d.loggers.TensorBoard())
    events = b"".join(path.read_bytes() for path in (result.directory / "tensorboard").iterdir())
    assert b"final/int8/accuracy" in events
    assert b'"student": "distilbert"' in events
    arguments = [
        "distill", "+teacher=pretrained", f"teacher.path={teacher_dir}", "teacher.accept_weak=true",
        "+student=distilbert", "task=sst2",
        f"task.data_dir={data_dir}", "task.max_length=64", "trainer=fixed", "trainer.max_epochs=2", "seed=3",
        "benchmark.enabled=false", *LOOSE_OPTIONS, f"cache_dir={tmp_path / 'other'}", f"output_dir={tmp_path / 'runs'}",
        *(f"trainer.{name}={value}" for name, value in QUICK.items()),
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", arguments)
    assert command_line.main() == 0
    [path] = (tmp_path / "runs").rglob("run.json")
    record = json.loads(path.read_text())
    for name in ("task", "objective", "retention", "student"):
        assert record[name] == result.record[name], name
    assert record["teacher"]["metrics"] == result.record["teacher"]["metrics"]
    for name, row in record["export"].items():
        assert row == result.record["export"][name]
    weights, expected = (load_file(d / "student" / "model.safetensors") for d in (path.parent, result.directory))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_a_full_disk_ends_the_run_instead(
    teacher_dir: Path, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("cannot write") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("distill.chain.task_run.write_dynamic", fail)
    with pytest.raises(RuntimeError, match="cannot write"):
        distill_by_api(teacher_dir, {"data": data_dir}, tmp_path)
    [record] = (json.loads(path.read_text()) for path in tmp_path.rglob("run.json"))
    assert record["status"] == "failed"


def test_the_defaults_are_those_of_the_configuration() -> None:
    from distill import api
    from distill.chain import plan
    from distill.jobs import execution
    from distill.jobs.execution import instantiate
    from tests.jobs.test_config import compose_config

    config = compose_config("+teacher=pretrained", "teacher.path=.", "+student=distilbert")
    assert instantiate(config.trainer) == d.TrainerSettings.auto()
    assert instantiate(config.teacher.finetune) == api.FINETUNE
    embedded = execution.build_source(compose_config("+teacher=embedded", "+student=distilbert"))
    assert embedded.finetune == api.FINETUNE_NEW
    assert vars(embedded.weights) == vars(d.Teacher.embedded().source.weights)
    assert instantiate(config.export) == d.ExportSettings()
    built = instantiate(config.benchmark)
    assert (list(built.batches), list(built.lengths)) == (list(api.BENCHMARK.batches), list(api.BENCHMARK.lengths))
    assert built.seconds == api.BENCHMARK.seconds
    task = d.tasks.Classification(text="sentence", data="nowhere")
    assert instantiate(config.objective).record() == plan.default_objective(task).record()
    text = compose_config("task=mlm", "objective=language_model")
    assert instantiate(text.objective).record() == plan.default_objective(instantiate(text.task)).record()


def test_data_in_memory_has_the_digest_of_the_files(teacher_dir: Path, data_dir: Path, tmp_path: Path) -> None:
    import datasets
    import pandas

    rows = {name: tuple(zip(*sentences(count), strict=True)) for name, count in (("train", 64), ("dev", 24))}
    frames = {name: pandas.DataFrame({"sentence": texts, "label": labels}) for name, (texts, labels) in rows.items()}
    tables = datasets.DatasetDict({name: datasets.Dataset.from_pandas(frame) for name, frame in frames.items()})
    expected = d.tasks.Classification(text="sentence", labels=LABELS, data=data_dir).read(tmp_path)
    lists = {name: (list(texts), list(labels)) for name, (texts, labels) in rows.items()}
    assert d.tasks.Classification(text="sentence", labels=LABELS, **lists).read(tmp_path).sha256 == expected.sha256
    for table in (frames, tables):
        task = d.tasks.Classification(text="sentence", labels=LABELS, data=table)
        assert task.read(tmp_path).sha256 == expected.sha256


def test_loaded_models_are_distilled_and_not_modified(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data_dir: Path, tmp_path: Path
) -> None:
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    student = from_teacher(teacher, layers=[0])
    start = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    task = d.tasks.Classification(text="sentence", labels=LABELS, data=data_dir, max_length=64)
    result = d.distill(
        d.Teacher(teacher, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache"), student, task,
        trainer=d.TrainerSettings(max_steps=2, **QUICK), export=d.ExportSettings(enabled=False),
        directory=tmp_path / "run",
    )  # fmt: skip
    assert result.record["teacher"]["origin"] == "as it is"
    assert result.record["teacher"]["resolved"] == "loaded (BertForSequenceClassification)"
    assert all(torch.equal(teacher.state_dict()[name], tensor) for name, tensor in before.items())
    assert all(torch.equal(student.state_dict()[name], tensor) for name, tensor in start.items())
    again = d.distill(
        d.Teacher(teacher, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache"), student, task,
        directory=tmp_path / "run", resume=True,
    )  # fmt: skip
    assert again.record == result.record


def test_one_seed_reaches_the_weights_and_the_training() -> None:
    steps = d.TrainerSettings(max_steps=1, **QUICK)
    assert api._join_seeds(None, None) == (0, d.TrainerSettings.auto())
    assert api._join_seeds(7, None) == (7, d.TrainerSettings.auto(seed=7))
    assert api._join_seeds(7, steps) == (7, replace(steps, seed=7))
    assert api._join_seeds(None, replace(steps, seed=3)) == (3, replace(steps, seed=3))
    with pytest.raises(UserError, match="got seed=7 and a trainer with seed=3, expected one seed: leave out either"):
        api._join_seeds(7, replace(steps, seed=3))


def test_a_loaded_model_that_changes_is_another_teacher(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    weights = Loaded(copy.deepcopy(teacher), copy.deepcopy(tokenizer))
    weights.model.config.architectures = None  # As in a model that was never saved.
    keys = [weights.fingerprint(), weights.fingerprint()]
    weights.model.save_pretrained(tmp_path)
    weights.tokenizer(["a", "a b"], padding=True, truncation=True, max_length=4)  # It keeps these settings.
    assert {*keys, weights.fingerprint()} == {keys[0]}
    with torch.no_grad():
        weights.model.classifier.bias.data.add_(1)
    keys.append(weights.fingerprint())
    weights.model.config.id2label = {0: "x", 1: "y"}
    keys.append(weights.fingerprint())
    weights.tokenizer.backend_tokenizer.normalizer = Lowercase()
    keys.append(weights.fingerprint())
    assert len(set(keys)) == 4


def test_files_that_change_are_another_teacher(teacher_dir: Path) -> None:
    weights = Pretrained(name="toy", path=str(teacher_dir))
    keys = [weights.fingerprint(), weights.fingerprint()]
    assert keys[0] == keys[1]
    tensors = load_file(teacher_dir / "model.safetensors")
    tensors["classifier.bias"] += 1
    save_file(tensors, teacher_dir / "model.safetensors", {"format": "pt"})
    keys.append(weights.fingerprint())
    (teacher_dir / "1_Pooling").mkdir()
    (teacher_dir / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    keys.append(weights.fingerprint())
    (teacher_dir / "1_Pooling" / "config.json").write_text('{"pooling_mode": "max"}')
    keys.append(weights.fingerprint())
    assert len(set(keys)) == 4
    shutil.rmtree(teacher_dir)
    with pytest.raises(UserError, match="is no directory"):
        weights.fingerprint()


def test_a_tokenizer_whose_normalizer_was_changed_teaches_as_it_is(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    changed = copy.deepcopy(tokenizer)
    changed.backend_tokenizer.normalizer = Sequence([Prepend("a "), Lowercase()])
    start = Loaded(teacher, changed).load("AutoModelForSequenceClassification", LABELS, ())
    assert start.fits
    assert start.tokenizer("Film")["input_ids"] == changed("Film")["input_ids"] != tokenizer("Film")["input_ids"]


def test_a_teacher_was_fitted_to_its_own_tasks_alone(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data_dir: Path, tmp_path: Path
) -> None:
    first, second, third = (
        d.tasks.Classification(name=name, text="sentence", labels=LABELS, data=data_dir, max_length=64)
        for name in "abc"
    )
    fitted = d.Teacher(teacher, tokenizer, cache_dir=tmp_path)
    assert fitted.source_for(first).finetune is None
    fitted.fit(first, max_epochs=1).fit(second, max_epochs=2)  # Its head fits, so that nothing is trained.
    for task, epochs in ((first, 1), (second, 2)):
        settings = fitted.source_for(task).finetune
        assert settings is not None
        assert settings.max_epochs == epochs
    assert fitted.source_for(third).finetune is None
    several = fitted.source_for(d.tasks.MultiTask(tasks={"x": first, "y": third}))
    assert several.of_task("x") == fitted.source_for(first)
    assert several.of_task("y").finetune is None


def test_errors_are_raised_with_the_messages_of_the_command(teacher_dir: Path, data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty: give another directory, or resume=True"):
        distill_by_api(teacher_dir, {"data": data_dir}, tmp_path)
    task = d.tasks.Classification(text="review", data=data_dir)
    teacher = d.Teacher.from_pretrained(teacher_dir, cache_dir=tmp_path / "cache")
    with pytest.raises(UserError, match="has no column review: it has sentence, label"):
        teacher.fit(task)
    with pytest.raises(UserError, match="got resume=True without a directory"):
        d.distill(teacher, d.students.distilbert(), task, resume=True)
    with pytest.raises(AttributeError, match="module 'distill' has no attribute 'Tacher'"):
        d.Tacher  # noqa: B018


def test_every_public_name_can_be_read() -> None:
    for name in d.__all__:
        assert getattr(d, name) is not None
        assert name in dir(d)


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import distill", ("torch", "transformers", "numpy", "pydantic")),
        ("import distill; distill.Bundle", ("torch", "transformers", "hydra")),
    ],
)
def test_heavy_packages_are_imported_only_when_needed(program: str, absent: tuple[str, ...]) -> None:
    check = f"{program}; import sys; sys.exit(bool(set({absent!r}) & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False, cwd=Path(d.__file__).parents[1]).returncode == 0


EXAMPLES = [
    path for path in sorted(Path(d.__file__).parent.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_of_a_docstring_runs(path: Path) -> None:
    name = ".".join(path.relative_to(Path(d.__file__).parents[1]).with_suffix("").parts)
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0
