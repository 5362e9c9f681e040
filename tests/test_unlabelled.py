"""Tests of whole runs and trainings with texts that only the teacher labels."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.chain import distillation
from distill.data import batches
from distill.data.batches import MixedExamples
from distill.kinds import Classification, Regression
from distill.losses import Cosine, HardLabels, LogitMSE, Objective, PseudoLabels, SoftTargets
from distill.training import fitting, hyperparameters
from distill.training.module import DistillationModule
from tests.conftest import LABELS, LOOSE, SETTINGS, Toy, equal, last_state, live, sentences, toy_bert, weights

TIMING = d.BenchmarkSettings(batches=[1], lengths=[8], seconds=0.01, teacher=False)
ROWS = sentences(48)
DATA: dict[str, Any] = {
    "train": ([text for text, _ in ROWS], [LABELS[label] for _, label in ROWS]),
    "dev": ([f"{text} dev" for text, _ in ROWS[:16]], [LABELS[label] for _, label in ROWS[:16]]),
}
UNLABELLED = [f"{text} new" for text, _ in sentences(80)] + [f"{text} dev" for text, _ in ROWS[:16]]


def classification(**options: Any) -> Classification:
    return Classification(text="sentence", labels=LABELS, name="toy", max_length=48, **{**DATA, **options})


def read_evaluated_steps(path: Path) -> list[int]:
    with open(path, newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file) if row["dev/accuracy"]]


def test_a_run_mixes_its_texts_and_records_them(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in ("export", "close_run"):  # The export has its own tests.
        monkeypatch.setattr(distillation, stage, lambda *arguments: None)
    source = d.Teacher(teacher, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache")
    task = classification(unlabelled=UNLABELLED, unlabelled_share=0.25)
    trainer = d.TrainerSettings(learning_rate=1e-3, batch_size=8, max_epochs=2, precision="32-true", seed=1)
    result = d.distill(
        source, d.students.distilbert(), task, trainer=trainer, baseline=True, benchmark=TIMING,
        objective=Objective(soft=SoftTargets(), hard=HardLabels()), directory=tmp_path / "run",
        export=LOOSE, augment=d.TangAugmentation(copies=2, p_mask=0.5, p_pos=0.0),
    )  # fmt: skip
    record = result.record
    unlabelled = record["task"]["unlabelled"]
    augmentation = unlabelled.pop("augmentation")
    assert (augmentation["method"], augmentation["made"], augmentation["p_mask"]) == ("tang", 96, 0.5)
    assert 40 < augmentation["examples"] == 96 - sum(augmentation["removed"].values())
    removed = {"empty": 0, "dev": 16, "train": 0, "doubled": 0}
    examples = 80 + augmentation["examples"]
    sources = [
        {"name": "texts without a label", "examples": 80, "from": "data in memory"},
        {"name": "changed copies", "examples": examples - 80, "from": "augment=tang, 2 of each row"},
    ]
    assert 0.5 < unlabelled.pop("sureness") < 1.0
    assert unlabelled == {"examples": examples, "share": 0.25, "removed": removed, "truncated": 0, "sources": sources}
    assert record["task"]["examples"] == {"train": 48, "dev": 16, "test": 0}
    # An epoch has 48 labelled examples in steps of 6, each with 2 unlabelled ones.
    assert (record["training"]["steps"], record["training"]["epochs"]) == (16, 2)
    last = torch.load(tmp_path / "run" / "baseline" / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] == 16
    assert last["seen"][0] == 16 * 8  # Steps of the same size, all of them labelled.
    evaluated = [read_evaluated_steps(tmp_path / "run" / name) for name in ("metrics.csv", "baseline/metrics.csv")]
    assert evaluated == [[7, 15], [7, 15]]  # Its epochs of 6 steps are shorter.


def test_labels_alone_are_learned_without_the_texts_in_as_many_steps(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for stage in ("export", "close_run"):
        monkeypatch.setattr(distillation, stage, lambda *arguments: None)
    task = classification(unlabelled=UNLABELLED, unlabelled_share=0.25)
    trainer = d.TrainerSettings(learning_rate=1e-3, batch_size=8, max_epochs=2, precision="32-true", evaluations=2)
    d.distill(
        d.Teacher(teacher, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache"), d.students.distilbert(), task,
        trainer=trainer, objective=Objective(hard=HardLabels()), directory=tmp_path / "run", benchmark=TIMING,
        export=LOOSE, seeds=2,
    )  # fmt: skip
    for seed in (tmp_path / "run", tmp_path / "run" / "seeds" / "1"):
        last = torch.load(seed / "checkpoints" / "last.ckpt", weights_only=True)
        assert (last["global_step"], last["seen"][0]) == (16, 16 * 8)  # All of them are labelled.
        assert read_evaluated_steps(seed / "metrics.csv") == [3, 7, 11, 15]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["task"]["unlabelled"]["share"] == 0.0
    expected = "objective custom learns from labels alone, and the texts of task.unlabelled have none"
    assert expected in " ".join(capsys.readouterr().out.split())


def mixed_toy(tokenizer: PreTrainedTokenizerBase, directory: Path, **options: Any) -> Toy:
    """Builds a training on labelled and unlabelled texts, whose teacher runs in every step."""
    task = classification(unlabelled=UNLABELLED)
    data = task.read(directory)
    examples = task.encode(data, tokenizer, None)
    settings = replace(SETTINGS, **{"batch_size": 8, **options})
    loaders = batches.all_loaders(examples, **settings.batches())
    teacher, objective = toy_bert(len(tokenizer)), Objective(soft=SoftTargets(), hard=HardLabels())
    torch.manual_seed(0)
    module = DistillationModule(
        student=from_teacher(teacher), objective=objective, task=task, scoring=data.scoring,
        signal=live(teacher, objective, task), settings=settings, steps_per_epoch=len(loaders["train"]),
    )  # fmt: skip
    return Toy(module, loaders, settings, tokenizer, directory)


def test_a_resumed_mixed_training_ends_with_the_same_weights(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"checkpoint_steps": 5, "accumulate": 2}
    whole = mixed_toy(tokenizer, tmp_path / "whole", **options)
    fit = whole.fit()
    assert (fit.steps, fit.epochs) == (12, 2)
    stopped = mixed_toy(tokenizer, tmp_path / "stopped", **options)
    original = stopped.module.training_step

    def training_step(*arguments: Any) -> None:
        if stopped.module.global_step == 8:
            raise RuntimeError("stopped")
        original(*arguments)

    monkeypatch.setattr(stopped.module, "training_step", training_step)
    with pytest.raises(RuntimeError, match="stopped"):
        stopped.fit()
    resumed = mixed_toy(tokenizer, tmp_path / "stopped", **options)
    resumed.fit(resume=True)
    assert equal(last_state(resumed), last_state(whole))
    assert equal(weights(resumed.module), weights(whole.module))


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_terms_that_need_labels_skip_unlabelled_examples(
    kind: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    texts, other = [text for text, _ in ROWS[:6]], UNLABELLED[:5]
    if kind == "classes":
        task: Any = Classification(
            text="a", train=(texts, [0, 1] * 3), dev=(["x", "y"], [0, 1]), unlabelled=other, max_length=48
        )
        terms: dict[str, Any] = {"hard": HardLabels(), "soft": SoftTargets(), "pseudo": PseudoLabels()}
    else:
        numbers = [0.5, 1.0, -2.0, 3.0, 0.0, 1.5]
        task = Regression(
            text="a", train=(texts, numbers), dev=(["x", "y"], [0.0, 1.0]), unlabelled=other, max_length=48
        )
        terms = {"hard": HardLabels(), "soft": SoftTargets(), "mse": LogitMSE()}
    train = task.encode(task.read(tmp_path), tokenizer, None)["train"]
    assert isinstance(train, MixedExamples)
    labels = 2 if kind == "classes" else 1
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        initializer_range=0.3, num_labels=labels, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    student, teacher = BertForSequenceClassification(config), BertForSequenceClassification(config)
    objective = Objective(terms=terms)
    module = DistillationModule(student=student, objective=objective, task=task, signal=live(teacher, objective, task))
    mixed = train[list(range(len(train)))]
    alone = train.labelled[list(range(6))]
    items = task.select(mixed)
    assert module.objective.counts(items).tolist() == [6, 11, 11]
    loss, sums = module.losses(mixed)
    _, labelled_sums = module.losses(alone)
    torch.testing.assert_close(sums[0], labelled_sums[0])
    assert sums[1] > labelled_sums[1]
    assert loss.isfinite()
    # A micro-batch without a label has a finite gradient.
    only = {name: values[6:] for name, values in mixed.items()}
    module.losses(only, module.objective.counts(items))[0].backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in student.parameters())


def test_a_short_training_labels_only_the_texts_that_it_shows(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("distill.teachers.output_cache.SHARD_TOKENS", 256)
    monkeypatch.setattr(fitting, "fit", _no_training)
    source = d.Teacher(teacher, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache")
    many = [f"{text} number {number}" for number in range(20) for text, _ in sentences(40)]
    trainer = d.TrainerSettings(learning_rate=1e-3, batch_size=8, max_epochs=1, precision="32-true")
    with pytest.raises(_Stopped):
        d.distill(
            source, d.students.distilbert(), classification(unlabelled=many), trainer=trainer,
            objective=Objective(soft=SoftTargets()), directory=tmp_path / "run",
        )  # fmt: skip
    [outputs] = [path for path in (tmp_path / "cache" / "outputs").iterdir() if len(list(path.iterdir())) > 4]
    shards = len(list(outputs.glob("*.safetensors")))
    task = classification(unlabelled=many)
    train = task.encode(task.read(tmp_path), tokenizer, None)["train"]
    tokens = int(train.lengths[: 48 + 48].sum())
    assert shards == pytest.approx(tokens / 256, abs=2)
    shutil.rmtree(outputs)
    # With hidden states it computes none that it does not show: a shard may hold more.
    capsys.readouterr()
    monkeypatch.setattr("distill.teachers.output_cache.SHARD_TOKENS", 256_000)
    with pytest.raises(_Stopped):
        d.distill(
            source, d.students.distilbert(), classification(unlabelled=many), trainer=trainer,
            objective=Objective(soft=SoftTargets(), cosine=Cosine()), directory=tmp_path / "hidden",
        )  # fmt: skip
    expected = f"the training shows 96 examples, fewer than the {len(train)} that caching computes"
    assert expected in json.loads((tmp_path / "hidden" / "run.json").read_text())["teacher_outputs"]["reason"]


BANK = [f"{text} and more of number {number}." for number, (text, _) in enumerate(sentences(40))]


@pytest.mark.usefixtures("copies")
def test_copies_and_a_bank_are_labelled_by_default_as_far_as_they_fit(
    encoder_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = classification(bank=[*BANK, *(f"{text} dev" for text, _ in ROWS[:16])])
    source = d.Teacher.from_pretrained(encoder_dir, accept_weak=True, cache_dir=tmp_path / "cache")
    source.fit(task, max_steps=6, max_epochs=None, batch_size=8, precision="32-true", learning_rate=1e-3)
    monkeypatch.setattr(fitting, "fit", _no_training)
    trainer = d.TrainerSettings(learning_rate=1e-3, batch_size=8, max_epochs=2, precision="32-true")
    records = []
    for seed in (0, 1):
        with pytest.raises(_Stopped):
            d.distill(
                source, d.students.distilbert(), task, trainer=trainer, directory=tmp_path / str(seed), seed=seed,
                objective=Objective(soft=SoftTargets()),
            )  # fmt: skip
        records.append(json.loads((tmp_path / str(seed) / "run.json").read_text())["task"]["unlabelled"])
    # A fine-tuning of 48 examples, a training of 96 in half of the layers and 48 outputs are 336 passes. Half of them
    # fit: 28 sentences with 3 passes each, half of these, and then 1 copy of each row and 12 sentences more.
    copies, bank = records[0]["sources"]
    assert (copies["name"], copies["from"]) == ("changed copies", "augment=tang, 1 of each row")
    assert bank == {"name": "bank", "examples": 40, "from": "of 56 sentences of data in memory"}
    assert records[0]["examples"] == copies["examples"] + 40
    assert 0.5 <= records[0]["sureness"] <= 1.0
    assert records[1] == records[0]
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("encodes 56 sentences once") == 1
    assert "40 sentences of the bank (of 56 sentences of data in memory); 50% of the examples of every step" in out
    assert "bank: 56 sentences, encoded once; left out 9 of 10 copies of each row and 16 of 56 sentences of" in out


@pytest.mark.usefixtures("copies")
def test_large_data_has_no_copies(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(fitting, "fit", _no_training)
    monkeypatch.setattr(hyperparameters, "SMALL_ROWS", 47)
    source = d.Teacher(teacher, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache")
    trainer = d.TrainerSettings(learning_rate=1e-3, batch_size=8, max_epochs=1, precision="32-true")
    with pytest.raises(_Stopped):
        d.distill(
            source, d.students.distilbert(), classification(), trainer=trainer, objective=Objective(soft=SoftTargets()),
            directory=tmp_path / "run",
        )  # fmt: skip
    assert "no copies of 48 rows, because auto makes them of up to 47" in " ".join(capsys.readouterr().out.split())


class _Stopped(Exception):
    pass


def _no_training(*arguments: Any, **options: Any) -> None:
    raise _Stopped
