"""Tests of multiple choice: columns, answers, items and metrics by hand, and bundles."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import pandas
import pytest
import torch
from distill.builtin.students import bilstm
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import BertForMultipleChoice, PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import IGNORED, Scores
from distill.core.errors import OptionError, UserError
from distill.data.batches import scoring_steps
from distill.edge.bundle_files import session
from distill.edge.decode import Choices
from distill.edge.decoder import MASKED
from distill.kinds import MultipleChoice
from distill.models.forward import run_model, takes_choices
from distill.models.loading import load_directory
from distill.teachers.prepared import compare_with_constant
from tests.conftest import BAD, GOOD, toy_bert

Columns = dict[str, list[Any]]


def questions(count: int, *, first: int = 0) -> Columns:
    """Returns questions with two to four choices, of which the good one is right."""
    rows: Columns = {"question": [], "choices": [], "answer": []}
    for number in range(first, first + count):
        size = 2 + number % 3
        choices = [BAD[(number + place) % 4] for place in range(size)]
        choices[(number // 2) % size] = GOOD[number % 4]
        rows["question"].append(f"which film is {number}")
        rows["choices"].append(choices)
        rows["answer"].append((number // 2) % size)
    return rows


def without_answers(rows: Columns) -> list[dict[str, Any]]:
    return [{"question": q, "choices": c} for q, c in zip(rows["question"], rows["choices"], strict=True)]


@pytest.fixture(scope="module")
def task() -> MultipleChoice:
    return MultipleChoice(train=questions(96), dev=questions(24, first=96), max_length=24)


def toy_chooser(vocabulary: int, **options: Any) -> PreTrainedModel:
    config = toy_bert(vocabulary, layers=2, **options).config
    torch.manual_seed(0)
    return BertForMultipleChoice(config).eval()


# Columns and answers


@pytest.mark.parametrize(
    ("choices", "answers", "expected"),
    [
        ([["a", "b"], ["c", "d", "e"]], [1, 0], [1, 0]),
        ([["a", "b"], ["c", "d", "e"]], ["0", "2"], [0, 2]),
        ([["a", "b"], ["c", "d", "e"]], [2, 1], [1, 0]),  # Numbers, because no index of two choices is 2.
        ([["a", "b"], ["c", "d", "e"]], ["b", "C"], [1, 2]),  # Letters.
        ([["no", "yes"], ["red", "blue", "green"]], ["yes", "red"], [1, 0]),
        ([["2", "1", "0"], ["0", "2", "1"]], ["2", "1"], [0, 2]),  # Texts, which are indices too.
        ([["B", "A"], ["A", "B"]], ["B", "B"], [0, 1]),  # Texts, which are letters too.
        ([["2", "1", "0"], ["0", "2", "1"]], [2, 1], [2, 1]),  # Numbers are no texts.
        ([{"text": ["a", "b"], "label": ["1", "2"]}, {"text": ["c", "d"], "label": ["A", "B"]}], ["1", "B"], [0, 1]),
        ([[{"text": "a", "label": "A"}, {"text": "b", "label": "B"}]] * 2, ["B", "A"], [1, 0]),
    ],
)
def test_an_answer_is_a_name_an_index_a_number_a_letter_or_a_text(
    choices: list[Any], answers: list[Any], expected: list[int]
) -> None:
    frame = pandas.DataFrame({"question": ["one", "two"], "choices": choices, "answer": answers})
    data = MultipleChoice(train=frame, dev=frame).read(Path())
    assert data.splits["train"].labels.tolist() == expected
    assert data.splits["train"].records()[0]["question"] == "one"
    assert all(isinstance(text, str) for of in data.splits["train"]["choices"] for text in of)


@pytest.mark.parametrize(
    ("choices", "answers", "notice"),
    [
        ([["a", "b"], ["c", "d", "e"]], [1, 0], None),
        ([["a", "b"], ["c", "d", "e"]], [2, 1], "as numbers of the choices, counted from 1"),
        (
            [["a", "b"], ["c", "d", "e"]], [1, 1],
            "as indices of the choices, counted from 0, and not as numbers of the choices, counted from 1, which they "
            "could be too",
        ),
        (
            [["2", "1", "0"], ["0", "2", "1"]], ["2", "1"],
            "as texts of the choices, and not as indices of the choices, counted from 0, which they could be too",
        ),
        ([["0", "1"], ["0", "1"]], ["1", "0"], None),  # Both readings are the same.
    ],
)  # fmt: skip
def test_a_reading_that_is_not_the_only_one_is_shown(
    choices: list[list[str]], answers: list[Any], notice: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"question": ["one", "two"], "choices": choices, "answer": answers}
    MultipleChoice(train=rows, dev={**rows, "question": ["three", "four"]}).read(Path())
    printed = " ".join(capsys.readouterr().out.split())
    assert printed == ("" if notice is None else f"Notice: the answers are read {notice}")


def test_a_text_that_two_choices_have_is_no_answer() -> None:
    """The rows with it are read as something else, or refused."""
    twice = {"question": ["one", "two"], "choices": [["yes", "no", "yes"], ["yes", "no"]], "answer": ["yes", "no"]}
    with pytest.raises(UserError, match="expected the text of one of"):
        MultipleChoice(train=twice, dev=twice).read(Path())
    other = {**twice, "answer": ["no", "no"]}
    assert MultipleChoice(train=other, dev=other).read(Path()).splits["train"].labels.tolist() == [1, 1]
    numbers = {**twice, "choices": [["0", "1", "0"], ["1", "0"]], "answer": ["0", "1"]}
    assert MultipleChoice(train=numbers, dev=numbers).read(Path()).splits["train"].labels.tolist() == [0, 1]


def test_columns_of_single_choices_may_be_empty_at_the_end(tmp_path: Path) -> None:
    for name in ("train", "validation"):
        (tmp_path / f"{name}.csv").write_text("q,one,two,three,key,text\nwhy,a,b,c,3,ab\nhow,d,e,,1,\n")
    names: dict[str, Any] = {"question": "q", "choices": ["one", "two", "three"], "answer": ["label", "key"]}
    data = MultipleChoice(data=tmp_path, **names).read(tmp_path)
    assert data.splits["dev"]["choices"] == [["a", "b", "c"], ["d", "e"]]
    assert data.splits["dev"].labels.tolist() == [2, 0]
    other = MultipleChoice(data=tmp_path, **names | {"choices": [["list"], ["one", "two", "three"]], "context": "text"})
    again = other.read(tmp_path)
    assert again.splits["dev"].records()[1] == {"question": "how", "choices": ["d", "e"], "context": ""}
    assert again.sha256 != data.sha256


def test_a_split_without_answers_is_absent_and_one_table_is_split() -> None:
    rows = questions(30)
    classes = datasets.Dataset.from_dict(rows).cast_column("answer", datasets.ClassLabel(names=list("0123")))
    hidden = classes.remove_columns("answer").add_column("answer", [-1] * 30)
    data = MultipleChoice(data=datasets.DatasetDict(train=classes, validation=classes, test=hidden)).read(Path())
    assert data.sizes() == {"train": 30, "dev": 30}
    assert data.splits["dev"].labels.tolist() == rows["answer"]
    held_out = MultipleChoice(data=classes, dev_fraction=0.2, train_examples=10).read(Path())
    assert held_out.sizes() == {"train": 10, "dev": 6}
    records = MultipleChoice(train=(without_answers(rows), rows["answer"]), dev=classes).read(Path())
    assert records.splits["train"].records() == data.splits["train"].records()


BAD_ROWS: dict[str, tuple[Columns, str]] = {
    "no choices": ({"choices": [["a", "b"], []]}, r"example 2: column choices is \[\], no choices, expected at least"),
    "one choice": ({"choices": [["a"], ["a", "b"]]}, r"column choices is \['a'\], one choice, expected at least two"),
    "a text": ({"choices": ["a", "b"]}, "column choices is 'a', expected a list of choices: columns of single"),
    "an empty choice": ({"choices": [["a", " "], ["a", "b"]]}, "example 1: column choices: choice 2 is ' ', expected"),
    "an empty question": ({"question": ["q", " "]}, "example 2: column question is ' ', expected text"),
    "an answer outside": ({"answer": [0, 7]}, "example 2: answer 7 is none of its 2 choices, expected an index from 0"),
    "a letter outside": ({"answer": ["A", "Z"]}, "answer 'Z' is none of its 2 choices, expected a letter from A to B"),
    "another text": ({"answer": ["a", "x"], "choices": [["aa", "a"], ["xy", "y"]]}, "answer 'x' is none of its 2"),
    "an answer without a name": (
        {"answer": ["P", "R"], "choices": [{"text": ["a", "b"], "label": ["P", "Q"]}] * 2},
        "answer 'R' is none of its 2 choices, expected one of the names P, Q",
    ),
    "no answer": ({"answer": ["0", ""]}, r"these rows: the split train: 1 of 2 rows \(example 2\)"),
    "equal names": (
        {"choices": [{"text": ["a", "b"], "label": ["A", "A"]}] * 2},
        r"names its choices \['A', 'A'\], expected 2 different names",
    ),
    "no question": ({"question": None}, "has no column question: it has choices, answer; name yours with task.quest"),
    "no column of choices": ({"choices": None}, "has no column choices: it has question, answer"),
    "no column of answers": ({"answer": None}, "has no column answer: it has question, choices"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", BAD_ROWS)
def test_invalid_rows_are_named_in_the_error(mistake: str) -> None:
    changes, expected = BAD_ROWS[mistake]
    rows: dict[str, Any] = {"question": ["q", "r"], "choices": [["a", "b"], ["a", "b"]], "answer": [0, 1]} | changes
    table = {name: values for name, values in rows.items() if values is not None}
    with pytest.raises(UserError, match=expected):
        MultipleChoice(train=table, dev=table).read(Path())


def test_columns_are_one_list_or_several() -> None:
    with pytest.raises(OptionError, match=r"got choices=\[a, \[b\]\], expected names of columns, or lists of them"):
        MultipleChoice(choices=["a", ["b"]], train=questions(4), dev=questions(4))


# Items


def test_sequences_are_the_question_with_each_choice_and_the_context_before_both(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    rows = {"question": ["which", "what"], "choices": [["one", "two", "six"], ["a", "b"]], "answer": [2, 0]}
    for context in (None, "about"):
        table = rows | ({} if context is None else {"about": ["long ago", ""]})
        task = MultipleChoice(train=table, dev=table, context=context)
        dev = task.encode(task.read(Path()), tokenizer, None)["dev"]
        batch = dev[[1, 0]]
        first = ["what", "which" if context is None else "long ago"]  # An empty context is none.
        second = ["a", "b"]
        second += ["one", "two", "six"] if context is None else ["which one", "which two", "which six"]
        expected = tokenizer([first[0]] * 2 + [first[1]] * 3, second, padding=True, return_tensors="pt")
        length = expected["input_ids"].shape[1]
        assert torch.equal(batch["input_ids"][:, :length], expected["input_ids"])
        assert torch.equal(batch["token_type_ids"][:, :length], expected["token_type_ids"])
        assert batch["valid"].tolist() == [[True, True, False], [True, True, True]]
        assert batch["example_id"].tolist() == [1, 0]
        lengths = expected["attention_mask"].sum(dim=1)
        assert dev.tokens.tolist() == [int(lengths[2:].sum()), int(lengths[:2].sum())]


def test_a_longer_example_takes_up_its_longest_sequence_for_every_choice(tokenizer: PreTrainedTokenizerBase) -> None:
    task = MultipleChoice(train=questions(96), dev=questions(24))
    examples = task.encode(task.read(Path()), tokenizer, None)["dev"]
    for step in scoring_steps(examples.lengths, 400):
        batch = examples[step]
        assert len(batch["input_ids"]) == int(batch["valid"].sum())
        assert batch["input_ids"].numel() <= 400
    assert (examples.lengths % 4 == 0).all()
    assert examples.tokens.sum() == sum(int(examples[[row]]["attention_mask"].sum()) for row in range(24))


def test_logits_are_those_of_padded_choices(task: MultipleChoice, tokenizer: PreTrainedTokenizerBase) -> None:
    """The same numbers as the model gives `[B, K, L]` of all choices, and nothing where there is no choice."""
    model = toy_chooser(len(tokenizer))
    assert takes_choices(model)
    assert not takes_choices(toy_bert(len(tokenizer)))
    batch = task.encode(task.read(Path()), tokenizer, None)["dev"][[0, 1, 2]]
    items = task.select(batch)
    assert items.valid is not None
    assert items.valid.sum(dim=1).tolist() == [2, 3, 4]
    with torch.no_grad():
        logits = task.run(model, batch, items, frozenset()).at(items).logits
        for row, (first, last) in enumerate([(0, 2), (2, 5), (5, 9)]):
            inputs = {name: batch[name][first:last][None] for name in ("input_ids", "attention_mask", "token_type_ids")}
            torch.testing.assert_close(logits[row, : last - first], model(**inputs).logits[0], atol=1e-5, rtol=1e-4)
            assert (logits[row, last - first :] == MASKED).all()


# Scores


def test_metrics_and_weakness_match_values_by_hand() -> None:
    data = MultipleChoice(train=questions(4), dev=questions(4)).read(Path())
    scoring = data.scoring
    absent = [MASKED, MASKED]
    logits = np.array([[1.0, 0.0, *absent], [0.0, 2.0, 1.0, MASKED], [0.0, 0.0, 0.0, 3.0], [5.0, 0.0, 0.0, 0.0]])
    scores = Scores({"logits": logits}, np.array([0, 2, 3, 1]), np.arange(4))
    assert scoring.metrics(scores) == {"accuracy": 0.5}
    assert scoring.example_metric(scores).tolist() == [1, 0, 1, 0]
    assert compare_with_constant(scoring, {"dev": scores}).weakness is None
    table = scoring.tabulate(scores, data, examples=4)
    assert (table["label"], table["prediction"]) == ([0, 2, 3, 1], [0, 1, 3, 0])
    assert table["probability"][0] == pytest.approx(1 / (1 + np.exp(-1)))
    assert scoring.calibration_error(scores) is not None
    first = Scores({"logits": logits}, np.array([1, 0, 0, 0]), np.arange(4))
    assert compare_with_constant(scoring, {"dev": first}).weakness.endswith(
        ' on the 4 examples of dev: accuracy 0.250 against 0.750 of "always choice 1"'
    )
    # The first question has no third choice, so that it gets the first one.
    third = Scores({"logits": logits}, np.array([0, 2, 2, 2]), np.arange(4))
    [constant] = scoring.constants(third)
    assert (constant.answer, scoring.predictions(constant.predict(third)).tolist()) == ("always choice 3", [0, 2, 2, 2])


# Bundles


def test_the_bundle_takes_records_with_different_numbers_of_choices(golden_run: Callable[[str], Path]) -> None:
    bundle = d.Bundle(golden_run("choices") / "bundle", model="fp32")
    assert (bundle.manifest["labels"], bundle.manifest["decoder"], bundle.pair) == ([], "choices", True)
    records = without_answers(questions(7, first=96))
    together, alone = bundle.predict(records), [bundle.predict([record])[0] for record in records]
    for record, prediction, other in zip(records, together, alone, strict=True):
        assert prediction["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
        assert len(prediction["probabilities"]) == len(record["choices"])
        assert sum(prediction["probabilities"]) == pytest.approx(1)
        assert prediction["probability"] == max(prediction["probabilities"])
        assert prediction["choice"] in (None, record["choices"][prediction["index"]])
    bundle.threshold = 1.0
    [withheld] = bundle.predict(records[:1])
    assert withheld["choice"] is None
    assert bundle.decoder.format(withheld).startswith("(no label)\t0.")
    with pytest.raises(UserError, match="have different numbers of choices, expected one: call item_logits"):
        bundle.logits(cast(Any, records))


def test_the_exported_graph_takes_any_number_of_choices(golden_run: Callable[[str], Path]) -> None:
    run = golden_run("choices")
    start = load_directory(run / "student", "AutoModelForMultipleChoice", None, trust_remote_code=False)
    model, graph = start.model.eval(), session(run / "bundle" / "model.onnx")
    assert (start.fits, type(model).__name__) == (True, "DistilBertForMultipleChoice")
    for batch, choices, length in ((1, 2, 7), (3, 5, 1), (2, 1, 24), (1, 4, 16)):
        ids = np.random.default_rng(length).integers(5, model.config.vocab_size, (batch, choices, length))
        mask = np.ones_like(ids)
        mask[-1, -1, max(1, length // 2) :] = 0
        feed = {"input_ids": ids, "attention_mask": mask}
        with torch.no_grad():
            expected = model(**{name: torch.from_numpy(array) for name, array in feed.items()}).logits.numpy()
        assert expected.shape == (batch, choices)
        np.testing.assert_allclose(graph.run(["logits"], feed)[0], expected, atol=2e-5)


def test_a_bilstm_compares_every_choice_with_its_question(
    task: MultipleChoice, tokenizer: PreTrainedTokenizerBase
) -> None:
    teacher = toy_chooser(len(tokenizer))
    teacher.config.sep_token_id = tokenizer.sep_token_id
    student = bilstm.from_teacher(teacher, task=task, embedding_dim=16, hidden_dim=8, classifier_dim=12).eval()
    assert takes_choices(student)
    assert student.pre_classifier.in_features == 4 * 16  # [u; v; u * v; |u - v|]
    batch = task.encode(task.read(Path()), tokenizer, None)["dev"][[0, 1, 2]]
    output = run_model(student, batch, frozenset({"hidden_states"}))
    assert output.hidden_states[0].shape == (*batch["input_ids"].shape, 16)
    of_two = student(batch["input_ids"][None, 2:5], batch["attention_mask"][None, 2:5]).logits
    torch.testing.assert_close(of_two, output.logits[2:5].T)


@pytest.mark.parametrize("labels", [1, 2])
def test_a_teacher_of_another_kind_does_not_fit(
    task: MultipleChoice, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, labels: int
) -> None:
    """The head of a number has the same tensors."""
    model = toy_bert(len(tokenizer), layers=1)
    model.config.num_labels = labels
    teacher = d.Teacher(type(model)(model.config), tokenizer, cache_dir=tmp_path)
    expected = (
        "does not fit task multiple_choice: its head is that of a BertForSequenceClassification, and the task needs a "
        "BertForMultipleChoice; to have it fine"
    )
    with pytest.raises(UserError, match=expected):
        d.distill(teacher, d.students.distilbert(), task, directory=tmp_path / "run")


# Records of a bundle


def test_a_record_is_a_question_with_choices_and_perhaps_a_context() -> None:
    decoder = Choices([], True, {}, Tokenizer(WordLevel()))
    example = decoder.read({"question": "why", "choices": ["a", "b"], "label": 1})
    assert example.sequences() == [("why", "a"), ("why", "b")]
    with_context = decoder.read({"question": "why", "choices": ["a", "b"], "context": "so"})
    assert with_context.sequences() == [("so", "why a"), ("so", "why b")]
    for context in (None, ""):
        record = {"question": "why", "choices": ["a", "b"], "context": context}
        assert decoder.read(record).sequences() == example.sequences()
    assert decoder.parse("why\ta\tb") == {"question": "why", "choices": ["a", "b"]}
    prediction = decoder.decode(example, [decoder.select(example, [], np.array([[0.0], [np.log(3)]]))])
    assert prediction == {"choice": "b", "index": 1, "probability": 0.75, "probabilities": [0.25, 0.75]} | {
        "probability": pytest.approx(0.75), "probabilities": pytest.approx([0.25, 0.75])
    }  # fmt: skip
    assert decoder.format(prediction) == "b\t0.7500"


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("why", r"got 'why', expected \{\"question\": ..., \"choices\": \[...\]\}"),
        ({"question": "why"}, "expected .*question"),
        ({"question": " ", "choices": ["a", "b"]}, "expected a question of text, and a context of text or none"),
        ({"question": "why", "choices": ["a", "b"], "context": 3}, "a context of text or none"),
        ({"question": "why", "choices": ["a"]}, "expected a list of at least two choices"),
        ({"question": "why", "choices": ["a", ""]}, "expected choices of text"),
        ({"question": "why", "choices": ["a", "\ud800"]}, "expected Unicode"),
    ],
)
def test_records_of_another_form_are_refused(record: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        Choices([], True, {}, Tokenizer(WordLevel())).read(record)


# Unlabelled questions


def test_unlabelled_questions_have_no_answer(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    rows = without_answers(questions(6, first=300))
    (tmp_path / "more.jsonl").write_text("\n".join(json.dumps(row | {"answer": 9}) for row in rows))
    task = MultipleChoice(train=questions(12), dev=questions(6, first=12), unlabelled=tmp_path / "more.jsonl")
    data = task.read(tmp_path)
    assert (len(data.pool), task.info.unlabelled) == (6, "given")
    train = task.encode(data, tokenizer, None)["train"]
    batch = train[[12, 0, 13]]  # The labelled ones come first in a data set.
    items = task.select(batch)
    assert items.labels.tolist()[::2] == [IGNORED, IGNORED]
    assert items.labelled.tolist() == [False, True, False]
    assert len(batch["input_ids"]) == int(batch["valid"].sum())
    alone = train[[13]]
    length = int(alone["attention_mask"].sum(dim=1).max())
    assert torch.equal(batch["input_ids"][-len(alone["input_ids"]) :, :length], alone["input_ids"][:, :length])
    (tmp_path / "plain.txt").write_text("why\n")
    for source, expected in (("plain.txt", "has questions with choices: give a table with the columns question and ch"),
                             ("nowhere.csv", "is no file and no directory")):  # fmt: skip
        with pytest.raises(UserError, match=expected):
            MultipleChoice(train=questions(4), dev=questions(4), unlabelled=tmp_path / source).read(tmp_path)
