"""Tests of teachers that know the classes by their names alone, from natural language inference."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.teachers.zero_shot import ZeroShot, _order_words
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import OptionError, UserError
from distill.edge.decoder import softmax
from distill.kinds import Classification, Regression
from distill.models.wrappers import EntailmentLogits, LabelledEncoder, tokenize_hypotheses
from distill.teachers.stages import best_temperature
from tests.conftest import LOOSE_OPTIONS, sentences
from tests.jobs.conftest import Command, command

assert command

INFERENCE = ("contradiction", "entailment", "neutral")
WORDS = ("dull", "lovely")


def save_inference(directory: Path, tokenizer: PreTrainedTokenizerBase, labels: tuple[str, ...] = INFERENCE) -> Path:
    """Saves a small model of natural language inference with random weights."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=80, initializer_range=0.5, id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def inference(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    return save_inference(tmp_path / "inference", tokenizer)


def load(directory: Path) -> PreTrainedModel:
    return BertForSequenceClassification.from_pretrained(directory).eval()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("independent", [False, True])
@torch.no_grad()
def test_logits_are_those_of_the_pairs_of_text_and_hypothesis(
    inference: Path, tokenizer: PreTrainedTokenizerBase, side: str, independent: bool
) -> None:
    model, texts = load(inference), ["a dull film", "warm and clever and funny acting", "a bore"]
    hypotheses = [f"this film is {word} ." for word in (*WORDS, "funny and warm")]
    tokens = tokenize_hypotheses(hypotheses, model, tokenizer, max_length=40)
    logits = EntailmentLogits(model, tokens, independent=independent, padding=0)
    batch = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt")
    expected = []
    for hypothesis in hypotheses:
        pairs = tokenizer(texts, [hypothesis] * 3, padding=True, return_tensors="pt")
        scores = model(**pairs).logits
        expected.append(scores[:, 1] - scores[:, 0] if independent else scores[:, 1])
    torch.testing.assert_close(logits(batch["input_ids"], batch["attention_mask"]), torch.stack(expected, dim=1))


@torch.no_grad()
def test_a_model_without_contradiction_compares_entailment_with_all_else(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = load(save_inference(tmp_path / "two", tokenizer, ("entailment", "not_entailment")))
    tokens = tokenize_hypotheses(["dull .", "lovely ."], model, tokenizer, max_length=40)
    batch, pair = tokenizer("a film", return_tensors="pt"), tokenizer("a film", "lovely .", return_tensors="pt")
    logits = EntailmentLogits(model, tokens, independent=True, padding=0)(
        **{k: batch[k] for k in ("input_ids", "attention_mask")}
    )
    scores = model(**pair).logits
    torch.testing.assert_close(logits[:, 1], scores[:, 0] - scores[:, 1])


@torch.no_grad()
def test_hidden_states_are_those_of_the_text_alone(inference: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    model = load(inference)
    tokens = tokenize_hypotheses(["dull .", "lovely ."], model, tokenizer, max_length=40)
    labels = EntailmentLogits(model, tokens, independent=False, padding=0)
    batch = tokenizer(["a dull film"], return_tensors="pt")
    output = LabelledEncoder(model, labels)(**batch, output_hidden_states=True)
    expected = model.bert(**batch, output_hidden_states=True).hidden_states
    assert len(output.hidden_states) == 3
    torch.testing.assert_close(output.hidden_states[-1], expected[-1])
    assert output.logits.shape == (1, 2)


def test_the_temperature_is_that_of_the_least_cross_entropy() -> None:
    """Logits of (6, 0) with a right class three times of four: the odds of 3 are those of 6 / 5.46."""
    logits = torch.tensor([[6.0, 0.0]]).repeat(400, 1)
    labels = torch.tensor([0, 0, 0, 1] * 100)
    assert best_temperature(logits, labels) == pytest.approx(6 / np.log(3), rel=0.03)
    several = torch.stack([labels == 0, labels == 1], dim=1).float()
    assert best_temperature(torch.tensor([[6.0, -6.0]]).repeat(400, 1), several) == pytest.approx(
        6 / np.log(3), rel=0.03
    )


def write_data(root: Path) -> Path:
    directory = root / "films"
    directory.mkdir()
    for name, rows in (("train", sentences(64)), ("dev", sentences(24))):
        lines = ["sentence\tlabel", *(f"{text}\t{WORDS[label]}" for text, label in rows)]
        (directory / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


def options(root: Path, inference: Path, *further: str) -> list[str]:
    return [
        "+teacher=zero_shot", f"teacher.path={inference}", "teacher.labels=[lovely,dull]", "+student=distilbert",
        "teacher.accept_weak=true", "task=classification", "task.text=[sentence]", "task.max_length=40",
        "trainer.max_epochs=1", "trainer.batch_size=16", "trainer.precision=32-true", "benchmark.seconds=0.01",
        "benchmark.batches=[1]", "benchmark.lengths=[8]", f"cache_dir={root / 'cache'}", f"output_dir={root / 'runs'}",
        *LOOSE_OPTIONS, *further,
    ]  # fmt: skip


def read_run(root: Path) -> dict[str, Any]:
    [path] = (root / "runs").rglob("run.json")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def test_a_student_learns_from_the_names_of_the_classes(
    inference: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase, command: Command
) -> None:
    """The student learns the probabilities, of which the hypothesis of each class has given one."""
    data = write_data(tmp_path)
    code, output, error = command(*options(tmp_path, inference, f"task.data_dir={data}", "objective=distilbert"))
    assert code == 0, error
    assert output.count("computes the outputs for 64 examples") == 1
    record = read_run(tmp_path)
    teacher = record["teacher"]
    assert (teacher["origin"], teacher["resolved"]) == ("zero-shot", str(inference))
    model, texts = load(inference), [text for text, _ in sentences(24)]
    logits = []
    for word in WORDS:
        pairs = tokenizer(texts, [f"This text is about {word}."] * 24, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits.append(model(**pairs).logits[:, 1].numpy())
    expected = np.mean(softmax(np.stack(logits, axis=1)).argmax(axis=1) == [label for _, label in sentences(24)])
    assert teacher["metrics"]["accuracy"] == pytest.approx(expected)
    assert {row["model"] for row in record["benchmark"]} == {"student"}
    assert (next((tmp_path / "runs").rglob("bundle")) / "model.int8.onnx").is_file()


MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "other labels": (
        ("teacher.labels=[dull,funny]", "task.labels=[dull,lovely]"),
        "teacher.labels has dull, funny, and the classes of the task are dull, lovely: name these in teacher.labels",
    ),
    "texts that are too long with a hypothesis": (
        ("task.max_length=79",),
        "task.max_length=79 and a hypothesis of ",
    ),
    "attention": (
        ("objective=minilm",),
        "reads attention vectors, and the teacher zero_shot gives class probabilities, with the hidden states",
    ),
    "no student": (("job=finetune", "~student"), "job=finetune trains a model, and teacher zero_shot has class"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_end_before_anything_is_trained(
    inference: Path, tmp_path: Path, command: Command, mistake: str
) -> None:
    further, message = MISTAKES[mistake]
    given = options(tmp_path, inference, f"task.data_dir={write_data(tmp_path)}", *further)
    if "job=finetune" in further:
        given = ["job=finetune", *given[:3], f"task.data_dir={tmp_path / 'films'}"]
    if any(option.startswith("teacher.labels=") for option in further):
        given.remove("teacher.labels=[lovely,dull]")
    code, _, error = command(*given)
    assert code == 2, error
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_a_class_has_words_of_its_own_in_the_hypothesis() -> None:
    teacher = ZeroShot(name="zero_shot", path=".", labels={"1": "sport", "0": "politics"})
    assert teacher.words == {"1": "sport", "0": "politics"}
    wrong: list[Any] = ["sport", ["dull"], ["dull", "Dull"], {"dull": "film", "lovely": "film"}]
    for labels in wrong:
        with pytest.raises(
            OptionError, match=r"^got teacher.labels=.*, expected at least two labels, each once, as in"
        ):
            ZeroShot(name="zero_shot", path=".", labels=labels)
    sentence = r"^got teacher.hypothesis=About sport., expected a sentence with \{\} once, in the place of the label"
    with pytest.raises(OptionError, match=sentence):
        ZeroShot(name="zero_shot", path=".", labels=["sport", "politics"], hypothesis="About sport.")
    with pytest.raises(UserError, match="gives probabilities of classes of texts, and task regression is regression:"):
        teacher.check(Regression(text="text"))
    with pytest.raises(UserError, match="compares a text with a hypothesis, and an example of task classification is"):
        teacher.check(Classification(text=["one", "other"]))
    with pytest.raises(UserError, match="teacher zero_shot has no weights: give teacher.path=DIR"):
        ZeroShot(name="zero_shot", labels=["sport", "politics"])


def test_words_are_in_the_order_of_the_classes_of_the_task() -> None:
    assert _order_words({"Lovely": "fun", "dull": "a bore"}, ["dull", "lovely"]) == ["a bore", "fun"]


def test_a_model_of_another_task_is_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, command: Command
) -> None:
    other = save_inference(tmp_path / "other", tokenizer, ("LABEL_0", "LABEL_1"))
    code, _, error = command(*options(tmp_path, other, f"task.data_dir={write_data(tmp_path)}"))
    assert code == 2
    assert f"{other} has the labels LABEL_0, LABEL_1, expected those of natural language inference" in error
