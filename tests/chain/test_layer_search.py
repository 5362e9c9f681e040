"""Tests of the search for the layers that a student starts from: its choice, its head, and what it cannot search."""

from pathlib import Path
from typing import Any

import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from transformers import BertForSequenceClassification, BertForTokenClassification, PreTrainedTokenizerBase

import distill as d
from distill.chain import student_search
from distill.chain.student_search import leave_out
from distill.core.errors import UserError
from distill.models.loading import find_head
from tests.chain.starts import TASK, TEXTS, distil_one_step
from tests.conftest import toy_bert
from tests.students.test_albert import toy


def test_the_layer_whose_loss_costs_least_is_left_out() -> None:
    calls: list[tuple[int, ...]] = []

    def score(layers: tuple[int, ...]) -> float:
        calls.append(layers)
        return sum({0: 5.0, 1: 1.0, 2: 4.0, 3: 2.0, 4: 3.0}[layer] for layer in layers)

    found = leave_out(5, 2, score)
    assert max(found, key=lambda layers: (len(layers) == 2, found[layers])) == (0, 2)
    assert len(calls) == 5 + 4 + 3


@pytest.fixture(scope="module")
def teacher(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: Any) -> d.Teacher:
    """A teacher whose layers 0 and 2 do all, and whose layers 1 and 3 add noise that the others do not read."""
    config = toy_bert(len(tokenizer), layers=4, initializer_range=0.2).config
    config.id2label, config.label2id = {0: "0", 1: "1"}, {"0": 0, "1": 1}
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        for number in (1, 3):
            for module in (model.bert.encoder.layer[number].attention.output, model.bert.encoder.layer[number].output):
                module.dense.weight.zero_()
                module.dense.bias.zero_()
    return d.Teacher(model, tokenizer, accept_weak=True, cache_dir=tmp_path_factory.mktemp("cache"))


def distil(teacher: d.Teacher, directory: Path, task: Any = TASK, **options: Any) -> dict[str, Any]:
    return distil_one_step(teacher, d.students.distilbert(depth=2, init="search", **options), task, directory)


def test_the_layers_that_explain_the_teachers_outputs_best_start_with_a_fitted_head(
    teacher: d.Teacher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = distil(teacher, tmp_path / "run")
    found = record["layer_search"]
    assert (found["chosen"], found["alternate"]) == ([0, 2], [0, 3])
    assert (found["tried"], found["greedy"], found["examples"]) == (6, False, 40)
    assert found["score"] > found["alternate_score"]
    assert found["score"] > 0.5
    assert record["student"]["layers"] == [0, 2]
    printed = " ".join(capsys.readouterr().out.split())
    assert "layers 0, 2, the best of 6 subsets: a fitted head explains" in printed
    # The learning rate is so small that the student is the one that the search has started.
    assert record["student"]["metrics"]["accuracy"] == found["dev"]["chosen"]


def test_more_subsets_than_can_be_tried_are_searched_greedily(
    teacher: d.Teacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(student_search, "MOST", 5)
    found = distil(teacher, tmp_path / "run", heads=1, ffn=16)["layer_search"]
    assert found["greedy"]
    assert found["tried"] in (4 + 3, 4 + 3 + 1)  # The alternate layers may be among the last three.


def test_vectors_have_no_head_to_fit(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    pairs = {"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": [float(n % 5) for n in range(40)]}
    task = d.tasks.Embedding(train=pairs, dev={name: column[:8] for name, column in pairs.items()}, max_length=24)
    torch.manual_seed(0)
    model = toy_bert(len(tokenizer), layers=4).bert
    record = distil(d.Teacher(model, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache"), tmp_path / "run", task)
    found = record["layer_search"]
    assert found["tried"] == 6
    assert found["dev"]["alternate"] == found["dev"]["alternate_fitted"]


def test_the_words_of_an_example_are_all_in_one_half(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [text.split() for text in TEXTS]
    rows = {"tokens": words, "tags": [["B-x" if len(word) > 4 else "O" for word in of] for of in words]}
    task = d.tasks.TokenClassification(tokens="tokens", tags="tags", train=rows, dev=rows, max_length=32)
    torch.manual_seed(0)
    config = toy_bert(len(tokenizer), layers=4, initializer_range=0.2).config
    config.id2label = dict(enumerate(task.read(tmp_path).labels))
    config.label2id = {label: number for number, label in config.id2label.items()}
    teacher = d.Teacher(
        BertForTokenClassification(config), tokenizer, accept_weak=True, cache_dir=tmp_path / "cache"
    )  # fmt: skip
    halves, fit = dict[int, set[bool]](), student_search._Search.fit

    def keep_halves(search: Any, layers: Any) -> Any:
        items = [search.task_run.task.select(batch) for batch in search.batches]
        examples = torch.cat([of.example_id() for of in items]).tolist()
        for example, is_fitted in zip(examples, search.fitted.tolist(), strict=True):
            halves.setdefault(example, set()).add(is_fitted)
        assert len(examples) > len(halves)  # Several words of an example.
        return fit(search, layers)

    monkeypatch.setattr(student_search._Search, "fit", keep_halves)
    distil(teacher, tmp_path / "run", task)
    assert sorted(map(len, halves.values())) == [1] * 40
    assert sum(True in of for of in halves.values()) == 20


# Refused


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("best", "student.init=best is unknown, expected teacher, random, search, general or a list like"),
        (["teacher", "zeros"], r"student.init=\['teacher', 'zeros'\] is unknown, expected teacher, random, search"),
        ([], r"student.init=\[\] is unknown"),
        (["random", "search"], r"student.init=\['random', 'search'\] combines random weights, which copy nothing"),
    ],
    ids=str,
)
def test_names_that_do_not_combine_are_refused(init: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_teacher(toy(), init=init)


def test_a_list_of_names_copies_the_teacher() -> None:
    assert from_teacher(toy(), init=["teacher", "search"]).inherited == from_teacher(toy()).inherited
    assert from_teacher(toy(), init=["random"]).inherited == {}


def test_layers_that_are_given_are_not_searched(teacher: d.Teacher, tmp_path: Path) -> None:
    message = r"student.init=search chooses the layers, and student.layers=last gives them: leave out one"
    with pytest.raises(UserError, match=message):
        distil(teacher, tmp_path / "run", layers="last")


def test_the_head_of_a_student_is_that_with_as_many_outputs() -> None:
    student = from_teacher(toy(num_labels=3))
    assert find_head(student, 3) is student.classifier
