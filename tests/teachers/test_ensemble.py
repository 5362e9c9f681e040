"""Tests that the signals of several teachers act as one, of ensembles, and of a live signal."""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import TASK_ID, Batch, Items, Outputs, Signal
from distill.core.errors import UserError
from distill.edge.decoder import MASKED, softmax
from distill.losses import DecoupledKD, HardLabels, HiddenStateMSE, Objective, SoftTargets
from distill.teachers.signal import Live, Mean, SignalByTask
from distill.teachers.source import mix_logits, normalize_shares
from distill.text.vocabulary import train_word_pieces
from distill.training.module import NOTHING
from distill.training.processes import dumps
from tests.conftest import LABELS, sentences, toy_bert
from tests.jobs.conftest import Command, command
from tests.teachers.conftest import TASK

assert command


class Fixed(Signal):
    """A cached signal with the same logits for every batch."""

    bytes, seconds = 0, 0.0

    def __init__(self, name: str, size: int, seconds: float, logits: list[list[float]]) -> None:
        self.name, self.bytes, self.seconds, self.logits = name, size, seconds, torch.tensor(logits)

    def describe(self) -> str:
        return self.name

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        return Outputs(logits=self.logits)


FIRST, SECOND = Fixed("a", 3, 0.5, [[0.0, 0.0], [2.0, 0.0]]), Fixed("b", 4, 0.25, [[4.0, 0.0], [0.0, 2.0]])
BATCH = {"example_id": torch.arange(2), "labels": torch.tensor([0, 1]), TASK_ID: torch.tensor([1, 1])}


def items_of(batch: Batch) -> Items:
    labels = batch["labels"]
    return Items(batch, row=torch.arange(len(labels)), labels=labels, labelled=labels >= 0)


@pytest.mark.parametrize("signal", [SignalByTask([FIRST, SECOND]), Mean([FIRST, SECOND], (0.5, 0.5), "gaussian")])
def test_several_signals_have_the_sums_of_sizes_and_durations(signal: SignalByTask | Mean) -> None:
    assert (signal.reason, signal.bytes, signal.seconds, signal.describe()) == (None, 7, 0.75, "a; b")


def test_a_batch_is_taught_by_the_teacher_of_its_task_and_nothing_has_no_outputs() -> None:
    items = items_of(BATCH)
    assert torch.equal(SignalByTask([FIRST, SECOND])(BATCH, items).at(items).logits, SECOND.logits)
    outputs = NOTHING(BATCH, items)
    assert (outputs.whole(), outputs.at(items).logits, outputs.chunk_size) == (Outputs(), None, None)


def test_the_mean_of_some_items_is_that_of_their_logits() -> None:
    items = items_of(BATCH)
    outputs = Mean([FIRST, SECOND], (0.75, 0.25), "gaussian")(BATCH, items)
    assert outputs.whole().logits is None
    assert outputs.at(items).logits.tolist() == [[1.0, 0.0], [1.5, 0.5]]
    last = outputs.at(items.part(1, 2))
    assert last.logits_at(2.0).tolist() == [[1.5, 0.5]]


def test_a_live_teacher_computes_what_the_objective_reads(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    batch = {**tokenizer(["a film", "the plot"], return_tensors="pt", padding=True), "labels": torch.tensor([0, 1])}
    batch["example_id"] = torch.arange(2)
    items = TASK.select(batch)
    for terms, depth in (({"hidden": HiddenStateMSE()}, 5), ({"soft": SoftTargets(), "hard": HardLabels()}, None)):
        live = Live(teacher, TASK, Objective(terms=terms), reason="a test")
        outputs = live(batch, items)
        hidden_states = outputs.whole().hidden_states
        assert (None if hidden_states is None else len(hidden_states)) == depth
        assert not outputs.at(items).logits.requires_grad
        assert live.seconds > 0
        assert (live.reason, live.bytes, live.describe()) == ("a test", 0, "")
    again = pickle.loads(dumps(live))
    assert torch.equal(again(batch, items).at(items).logits, outputs.at(items).logits)


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


def test_the_mean_is_that_of_the_numbers_and_weights_are_shares() -> None:
    mixed = mix_logits([torch.tensor([[2.0]]), torch.tensor([[4.0]])], (0.75, 0.25), "gaussian")
    torch.testing.assert_close(mixed, torch.tensor([[2.5]]))
    assert normalize_shares(None, 2) == (0.5, 0.5)
    assert normalize_shares([3, 1], 2) == (0.75, 0.25)


def test_a_class_that_an_item_cannot_have_stays_impossible() -> None:
    logits = torch.tensor([[1.0, 1.0, MASKED]])
    mixed = mix_logits([logits, logits], (0.5, 0.5), "softmax")
    assert mixed.isfinite().all()
    torch.testing.assert_close(mixed.softmax(dim=-1), torch.tensor([[0.5, 0.5, 0.0]]))


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
    trainer = d.TrainerSettings(max_epochs=1, batch_size=16, learning_rate=3e-3, precision="32-true")

    def distill(weights: list[float]) -> d.Result:
        return d.distill(
            d.Teacher.ensemble(teachers, weights=weights), d.students.distilbert(), task, trainer=trainer,
            directory=tmp_path / str(weights[0]), export=d.ExportSettings(enabled=False),
        )  # fmt: skip

    record = distill([1.0, 3.0]).record["teacher"]
    assert capsys.readouterr().out.count("computes the outputs for 64 examples") == 2
    members = [(row["resolved"].split()[0], row["share"]) for row in record["members"]]
    assert members == [("first", 0.25), ("second", 0.75)]
    assert record["parameters"] == 2 * sum(p.numel() for p in teachers[0].source.weights.model.parameters())
    assert record["metrics"]["accuracy"] == pytest.approx(_accuracy_of_the_mean(teachers, [0.25, 0.75]))
    distill([3.0, 1.0])
    assert "computes the outputs" not in capsys.readouterr().out


def _accuracy_of_the_mean(teachers: list[d.Teacher], shares: list[float]) -> float:
    texts, labels = zip(*sentences(24), strict=True)
    total: Any = 0.0
    for share, teacher in zip(shares, teachers, strict=True):
        encoded = teacher.source.weights.tokenizer(list(texts), padding=True, return_tensors="pt")
        with torch.no_grad():
            total += share * softmax(teacher.source.weights.model.eval()(**encoded).logits.numpy())
    return float(np.mean(total.argmax(axis=-1) == np.array(labels)))


def test_teachers_with_other_tokens_have_no_term_on_tokens(
    teachers: list[d.Teacher], data_dir: Path, tmp_path: Path
) -> None:
    tokenizer = train_word_pieces(["other words than before"] * 4, 60)
    other = toy_bert(len(tokenizer))
    other.config.id2label, other.config.label2id = (
        getattr(teachers[0].source.weights.model.config, name) for name in ("id2label", "label2id")
    )
    strange = d.Teacher(other, tokenizer, name="strange", cache_dir=tmp_path / "cache")
    task = d.tasks.Classification(text="sentence", data=data_dir, labels=LABELS, name="toy", max_length=64)
    with pytest.raises(UserError, match="the term cosine compares the states of tokens, and teacher and student read"):
        d.distill(
            d.Teacher.ensemble([teachers[0], strange]), d.students.distilbert(), task, directory=tmp_path / "run",
            objective=d.Objective(cosine=d.Cosine()),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["teacher.paths={one}"], "expected a list of directories, as in teacher.paths=[one,other]"),
        (["objective=minilm"], "an ensemble teaches from cached outputs, and minilm reads attention"),
        (["task=stsb_embedding", "objective=embedding"],
         "an ensemble is for other tasks than task=stsb_embedding: give one teacher"),
        (["job=finetune", "~student"], "job=finetune trains one model: an ensemble is for job=distill"),
    ],
)  # fmt: skip
def test_an_ensemble_that_cannot_be_is_refused(
    options: list[str], message: str, command: Command, encoder_dir: Path, data_dir: Path
) -> None:
    given = {"+teacher": "ensemble", "teacher.paths": "[{one},{one}]", "+student": "distilbert", "task": "sst2"}
    given |= {"task.data_dir": str(data_dir)} | dict(option.partition("=")[::2] for option in options)
    if given.pop("~student", None) is not None:
        del given["+student"]
    code, _, error = command(*(f"{name}={value}".format(one=encoder_dir) for name, value in given.items()))
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
