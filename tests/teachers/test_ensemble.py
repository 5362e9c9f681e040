"""Tests of several teachers that teach as one."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.teachers.vocabulary import train_word_pieces
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import Items, Outputs
from distill.core.errors import UserError
from distill.edge.decoder import MASKED, softmax
from distill.losses import DecoupledKD, SoftTargets
from distill.teachers.signal import Mean
from distill.teachers.source import mix_logits, normalize_shares
from tests.conftest import LABELS, LOOSE, sentences, toy_bert
from tests.jobs.conftest import Command, command
from tests.teachers.test_signal import Fixed

assert command


def test_the_mean_is_that_of_the_probabilities() -> None:
    """0.75 * (0.9, 0.1) + 0.25 * (0.5, 0.5) = (0.8, 0.2), whatever constant the logits have besides."""
    first, second = torch.tensor([[0.9, 0.1]]).log() + 7.0, torch.zeros(1, 2)
    mixed = mix_logits([first, second], (0.75, 0.25), "softmax")
    torch.testing.assert_close(mixed.exp(), torch.tensor([[0.8, 0.2]]))


def test_soft_targets_are_the_mean_of_the_softened_probabilities() -> None:
    """At a temperature of 2, (0.9, 0.1) is softened to (3, 1) / 4 and (0.5, 0.5) stays: 0.5 * 0.75 + 0.5 * 0.5 = 0.625.

    The softened mean (0.7, 0.3) would be 0.604.
    """
    signals = [Fixed("first", 0, 0.0, [[math.log(0.9), math.log(0.1)]]), Fixed("second", 0, 0.0, [[0.0, 0.0]])]
    items = Items({}, row=torch.tensor([0]), labels=torch.tensor([0]), labelled=torch.tensor([True]))
    teacher = Mean(signals, (0.5, 0.5), "softmax")({}, items).at(items)
    softened = teacher.logits_at(2.0)
    assert softened is not None
    torch.testing.assert_close(teacher.logits, torch.tensor([[0.7, 0.3]]).log())
    torch.testing.assert_close((softened / 2).softmax(dim=-1), torch.tensor([[0.625, 0.375]]))
    for term in (SoftTargets(temperature=2.0), DecoupledKD(temperature=2.0)):
        losses = [term(Outputs(torch.zeros(1, 2)), of, items)[0] for of in (teacher, Outputs(softened))]
        torch.testing.assert_close(*losses)
    # Of a label of its own, the probabilities 0.9 and 0.5.
    labels = mix_logits([torch.tensor([[9.0]]).log(), torch.zeros(1, 1)], (0.5, 0.5), "sigmoid", temperature=2.0)
    torch.testing.assert_close((labels / 2).sigmoid(), torch.tensor([[0.625]]))


def test_the_mean_is_that_of_the_numbers() -> None:
    mixed = mix_logits([torch.tensor([[2.0]]), torch.tensor([[4.0]])], (0.75, 0.25), "gaussian")
    torch.testing.assert_close(mixed, torch.tensor([[2.5]]))


def test_a_class_that_an_item_cannot_have_stays_impossible() -> None:
    logits = torch.tensor([[1.0, 1.0, MASKED]])
    mixed = mix_logits([logits, logits], (0.5, 0.5), "softmax")
    assert mixed.isfinite().all()
    torch.testing.assert_close(mixed.softmax(dim=-1), torch.tensor([[0.5, 0.5, 0.0]]))


def test_weights_are_shares() -> None:
    assert normalize_shares(None, 2) == (0.5, 0.5)
    assert normalize_shares([3, 1], 2) == (0.75, 0.25)


@pytest.fixture
def teachers(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data_dir: Path, tmp_path: Path
) -> list[d.Teacher]:
    other = toy_bert(len(tokenizer), seed=1)
    other.config.id2label, other.config.label2id = teacher.config.id2label, teacher.config.label2id
    return [
        d.Teacher(model, tokenizer, name=name, cache_dir=tmp_path / "cache", accept_weak=True)
        for name, model in (("first", teacher), ("second", other))
    ]


def test_an_ensemble_teaches_and_each_of_its_teachers_runs_once(
    teachers: list[d.Teacher], data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = d.tasks.Classification(text="sentence", data=data_dir, labels=LABELS, name="toy", max_length=64)
    timing = d.BenchmarkSettings(batches=[1], lengths=[8], seconds=0.02)
    trainer = d.TrainerSettings(max_epochs=1, batch_size=16, learning_rate=3e-3, precision="32-true")

    def distill(weights: list[float], **options: Any) -> d.Result:
        return d.distill(
            d.Teacher.ensemble(teachers, weights=weights), d.students.distilbert(), task, trainer=trainer,
            directory=tmp_path / str(weights[0]), benchmark=timing,
            **({"export": LOOSE} | options),
        )  # fmt: skip

    record = distill([1.0, 3.0]).record["teacher"]
    output = capsys.readouterr().out
    assert output.count("computes the outputs for 64 examples") == 2
    assert [(row["resolved"].split()[0], row["share"]) for row in record["members"]] == [
        ("first", 0.25),
        ("second", 0.75),
    ]
    assert record["parameters"] == 2 * sum(p.numel() for p in teachers[0].source.weights.model.parameters())
    expected = _accuracy_of_the_mean(teachers, [0.25, 0.75])
    assert record["metrics"]["accuracy"] == pytest.approx(expected)
    assert (tmp_path / "1.0" / "bundle" / "model.int8.onnx").is_file()
    distill([3.0, 1.0], export=d.ExportSettings(enabled=False))
    assert "computes the outputs" not in capsys.readouterr().out


def _accuracy_of_the_mean(teachers: list[d.Teacher], shares: list[float]) -> float:
    texts, labels = zip(*sentences(24), strict=True)
    total: Any = 0.0
    for share, teacher in zip(shares, teachers, strict=True):
        encoded = teacher.source.weights.tokenizer(list(texts), padding=True, return_tensors="pt")
        with torch.no_grad():
            total += share * softmax(teacher.source.weights.model.eval()(**encoded).logits.numpy())
    return float(np.mean(total.argmax(axis=-1) == np.array(labels)))


def test_teachers_with_other_tokens_are_refused(teachers: list[d.Teacher], data_dir: Path, tmp_path: Path) -> None:
    tokenizer = train_word_pieces(["other words than before"] * 4, 60)
    other = toy_bert(len(tokenizer))
    other.config.id2label, other.config.label2id = (
        getattr(teachers[0].source.weights.model.config, name) for name in ("id2label", "label2id")
    )
    strange = d.Teacher(other, tokenizer, name="strange", cache_dir=tmp_path / "cache")
    task = d.tasks.Classification(text="sentence", data=data_dir, labels=LABELS, name="toy", max_length=64)
    with pytest.raises(UserError, match=r"teacher strange \(.*\) reads other tokens than first \(.*the same tokenizer"):
        d.distill(d.Teacher.ensemble([teachers[0], strange]), d.students.distilbert(), task, directory=tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["teacher.paths={one}"], "expected a list of directories, as in teacher.paths=[one,other]"),
        (["teacher.paths=[{one},{one}]", "teacher.weights=[1,0]"], "expected null or 2 positive numbers"),
        (["teacher.paths=[{one},{one}]", "objective=minilm"],
         "an ensemble teaches from cached outputs, and minilm reads attention"),
        (["teacher.paths=[{one},{one}]", "task=mlm", "objective=language_model"],
         "an ensemble is for other tasks than task=mlm: give one teacher"),
        (["teacher.paths=[{one},{one}]", "task=stsb_embedding", "objective=embedding"],
         "an ensemble is for other tasks than task=stsb_embedding: give one teacher"),
    ],
)  # fmt: skip
def test_an_ensemble_that_cannot_be_is_refused(
    options: list[str], message: str, command: Command, encoder_dir: Path, data_dir: Path
) -> None:
    given = [option.format(one=encoder_dir) for option in options]
    code, _, error = command(
        "+teacher=ensemble", "+student=distilbert", "task=sst2", f"task.data_dir={data_dir}", *given
    )
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


def test_one_model_is_fine_tuned_at_a_time(command: Command, encoder_dir: Path) -> None:
    code, _, error = command(
        "job=finetune", "+teacher=ensemble", f"teacher.paths=[{encoder_dir},{encoder_dir}]", "task=sst2"
    )
    assert (code, error) == (2, "error: job=finetune trains one model: an ensemble is for job=distill\n")
