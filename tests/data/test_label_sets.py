"""Tests that several labels are read in the one way that they have, and refused where they have two or none."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest

from distill.core.errors import UserError
from distill.data.splits import LabelledData
from distill.kinds import Classification, Regression
from tests.data.conftest import Printed

NOWHERE = Path("nowhere")
VECTORS = [[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1]]
TEXTS = [f"text {number}" for number in range(len(VECTORS))]
DEV = ["dev 0", "dev 1"]


def read(labels_of_train: Any, labels_of_dev: Any = None, **options: Any) -> LabelledData:
    """Reads examples with these labels; those of dev are the first two of train unless they are given."""
    dev = labels_of_train[:2] if labels_of_dev is None else labels_of_dev
    return read_tables((TEXTS[: len(labels_of_train)], labels_of_train), (DEV[: len(dev)], dev), **options)


def read_tables(train: Any, dev: Any, **options: Any) -> LabelledData:
    return Classification(**{"text": "text", "multi_label": True, **options}, train=train, dev=dev).read(NOWHERE)


def frame(columns: dict[str, list[Any]], texts: list[str] = TEXTS) -> pandas.DataFrame:
    return pandas.DataFrame({"text": texts, **columns})


# Vectors of 0 and 1


@pytest.mark.parametrize(
    "values",
    [
        VECTORS,
        np.array(VECTORS, dtype=bool),
        list(np.array(VECTORS, dtype=np.float32)),
        [list(map(str, row)) for row in VECTORS],
        ["|".join(map(str, row)) for row in VECTORS],
        list(map(json.dumps, VECTORS)),
        list(map(str, np.array(VECTORS, dtype=bool).tolist())),
    ],
    ids=lambda values: type(values).__name__,
)
def test_vectors_of_0_and_1_are_no_indices(values: Any, printed: Printed) -> None:
    data = read(values)
    assert data.labels == ("0", "1", "2")
    assert data.splits["train"].labels.tolist() == VECTORS
    assert data.splits["dev"].labels.tolist() == VECTORS[:2]
    expected = "labels are read as 3 values of 0 and 1, one for each label, and named 0 to 2: name them with task.labe"
    assert expected in printed()


def test_vectors_take_the_names_of_the_task() -> None:
    assert read(VECTORS, labels=["c", "a", "b"]).labels == ("c", "a", "b")
    assert read(VECTORS, labels=["1", "2", "3"]).splits["train"].labels.tolist() == VECTORS
    assert read(VECTORS, label=["c", "a", "b"]).labels == ("c", "a", "b")
    held_out = Classification(
        text="text", multi_label=True, data=([f"text {n}" for n in range(40)], VECTORS * 10)
    ).read(NOWHERE)
    assert held_out.labels == ("0", "1", "2")
    assert sum(split.labels.sum() for split in held_out.splits.values()) == 60


def test_two_values_are_a_vector_if_one_of_them_is_there_twice() -> None:
    assert read([[0, 1], [1, 0], [1, 1]]).splits["train"].labels.tolist() == [[0, 1], [1, 0], [1, 1]]
    assert read([[0, 1], [1, 0]], [[0, 0], [1, 0]]).splits["train"].labels.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("values", "labels", "expected"),
    [
        ([[0, 2], [1], []], None, [[1, 0, 1], [0, 1, 0], [0, 0, 0]]),
        ([[0, 1], [1, 0]], ["a", "b", "c"], [[1, 1, 0], [1, 1, 0]]),
        ([[0], [1], [1]], ["a", "b"], [[1, 0], [0, 1], [0, 1]]),
        ([[1, 2], [2, 0]], None, [[0, 1, 1], [1, 0, 1]]),
        (["0|1", "1", "0"], None, [[1, 1], [0, 1], [1, 0]]),
    ],
)
def test_lists_that_cannot_be_vectors_are_indices(values: Any, labels: Any, expected: list[list[int]]) -> None:
    assert read(values, labels=labels).splits["train"].labels.tolist() == expected


LIKE_A_LIST = r"label .* looks like a list, expected every text as \[\"a\", \"b\"\], or"
TWO_WAYS = r"example 1: labels such as .* may be indices of labels, or a 0 or 1 for each of them: write the names of"


@pytest.mark.parametrize(
    ("values", "labels", "message"),
    [
        ([[0, 1], [1, 0]], None, TWO_WAYS),
        ([["0", "1"], None, ["1", "0"]], None, TWO_WAYS),
        ([0, 1], ["a", "b"], TWO_WAYS),
        ([0.0, 1.0, None], None, TWO_WAYS),
        ([True, False], ["a", "b"], TWO_WAYS),
        (VECTORS, ["a", "b"], "lists of 3 values of 0 and 1 do not fit the 2 labels a, b: expected one value for"),
        ([[1, 0, 0], [1, 0]], None, "as many values of 0 and 1 in every example, while .* example 2 has 2 values$"),
        ([[1, 0, 2], [0, 0, 3]], None, "example 2: label 0 is there twice, .* split train, example 1 has 2$"),
        ([[1, 0, 0], [], [0, 1, 1]], None, "example 2 has no labels, expected 3 values of 0 and 1"),
        ([[0.3, 0.7, 0.0], [1.0, 0.0, 0.0]], None, "example 1: label 0.3 is no label, expected names, indices, or 0"),
        ([[1, -1, -1], [-1, 1, -1]], None, "example 1: label -1 often marks an example without a label"),
        (["1 0 0", "0 1 1"], None, r"no text has '\|' between labels, and 100% have ' ': set \"task.separator=' '\""),
        (["100", "011"], None, r"example 1: label 100 looks like a 0 or 1 for each label, expected '\|' between them"),
        (["[1 0 0]", "[0 1 1]"], None, LIKE_A_LIST),
        (["['a']", "b"], None, LIKE_A_LIST),
        (["{'a', 'b'}", "{'b'}"], None, LIKE_A_LIST),
        (["['a', ['b']]", "['b']"], None, LIKE_A_LIST),
        (["['a', f()]", "['b']"], None, LIKE_A_LIST),
        (["[" * 5000 + "]" * 5000, "a"], None, LIKE_A_LIST),
    ],
)
def test_labels_that_have_two_readings_or_none_are_refused(values: Any, labels: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(values, labels=labels)
    assert len(str(caught.value).splitlines()) == 1


def test_vectors_are_no_indices_of_the_names_of_a_data_set() -> None:
    named = datasets.Sequence(datasets.ClassLabel(names=["no", "yes", "maybe"]))
    names = datasets.Features({"text": datasets.Value("string"), "label": named})
    indices = datasets.Dataset.from_dict({"text": TEXTS, "label": [[0, 2], [1], [], [2]]}, features=names)
    assert read_tables(indices, indices).splits["train"].labels.tolist() == [[1, 0, 1], [0, 1, 0], [0] * 3, [0, 0, 1]]
    vectors = datasets.Dataset.from_dict({"text": TEXTS, "label": VECTORS}, features=names)
    with pytest.raises(UserError, match=r"train, example 1: the labels \[1, 0, 0\] have an index twice, expected"):
        read_tables(vectors, vectors)


# A column for each label

COLUMNS = {"rude": [1, 0, 0, 1], "threat": [0, 1, 0, 1], "insult": [0, 1, 0, 1]}
NAMES = list(COLUMNS)


@pytest.mark.parametrize("kind", [int, str])
def test_a_column_for_each_label_is_read_with_all_others(kind: Any) -> None:
    table = frame({name: list(map(kind, values)) for name, values in COLUMNS.items()})
    data = read_tables(table, table[:2], label=NAMES, test=table.drop(columns=NAMES))
    assert data.labels == ("rude", "threat", "insult")
    splits = {name: split.labels.tolist() for name, split in data.splits.items()}
    assert splits == {"train": VECTORS, "dev": VECTORS[:2]}
    ordered = read_tables(table, table[:2], label=NAMES, labels=["insult", "rude", "threat"])
    assert ordered.splits["train"].labels.tolist() == [[0, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 1]]
    vectors, hidden = frame({"label": VECTORS}), frame({"label": [[-1, -1, -1]] * 4})
    assert list(read_tables(vectors, vectors, test=hidden).splits) == ["train", "dev"]
    assert read_tables(table, table[:2], label=NAMES, labels=["x", "y", "z"]).labels == ("x", "y", "z")


def test_a_frame_of_labels_beside_texts_names_them() -> None:
    labels = pandas.DataFrame(COLUMNS)
    data = read_tables((TEXTS, labels), (DEV, labels[:2]), label=NAMES)
    assert (data.labels, data.splits["train"].labels.tolist()) == (tuple(NAMES), VECTORS)
    with pytest.raises(UserError, match="the split train has no column label: it has text, rude, threat, insult;"):
        read_tables((TEXTS, labels), (DEV, labels[:2]))
    with pytest.raises(UserError, match="got labels with the columns text, rude, expected other names than of texts"):
        Classification(text="text", train=(TEXTS, labels.rename(columns={"threat": "text"})[["text", "rude"]]))
    with pytest.raises(UserError, match="got 3 texts and 4 labels"):
        Classification(text="text", train=(TEXTS[:3], labels))
    one = pandas.DataFrame({"any": list("abab")})
    assert Classification(text="text", train=(TEXTS, one), dev=(TEXTS, one)).read(NOWHERE).labels == ("a", "b")


FEWER = {name: COLUMNS[name] for name in NAMES[:2]}
TOPICS, MOODS = {"topic": list("abab")}, {"mood": list("abab")}
BOTH = "has the columns topic and mood, expected one of them, because an example has one label: "


@pytest.mark.parametrize(
    ("train", "dev", "options", "message"),
    [
        ({**COLUMNS, "rude": [1, 0, 2, 0]}, COLUMNS, {}, "train, example 3: column rude is 2, expected 0 or 1"),
        ({**COLUMNS, "rude": [1, None, 0, 0]}, COLUMNS, {}, "example 2: column rude is None, expected 0 or 1"),
        ({**COLUMNS, "rude": [0.5, 1, 0, 0]}, COLUMNS, {}, "example 1: column rude is 0.5, expected 0 or 1"),
        (COLUMNS, FEWER, {}, "the split dev has no column insult: it has text, rude, threat; task.label n"),
        (COLUMNS, COLUMNS, {"labels": ["x", "y", "rude"]}, "train has the classes rude, .* and task.labels x, y, rude"),
        ({**TOPICS, **MOODS}, MOODS, {"label": ["topic", "mood"], "multi_label": False}, f"the split train {BOTH}"),
        (TOPICS, MOODS, {"label": ["topic", "mood"]}, "train has the column topic and the split dev mood, expected"),
    ],
)
def test_columns_that_cannot_be_labels_are_refused(
    train: dict[str, Any], dev: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read_tables(frame(train), frame(dev), **{"label": NAMES, **options})


def test_an_example_with_one_label_has_one_column_for_it() -> None:
    table = frame({"topic": [1, 0, 1, 0], "mood": [0, 0, 1, 1]})
    with pytest.raises(UserError, match="the data .*has the columns topic and mood, expected one of them"):
        Regression(text="text", label=["topic", "mood"], data=table).read(NOWHERE)
    one = table.drop(columns="mood")
    data = Regression(text="text", label=["mood", "topic"], train=one, dev=one).read(NOWHERE)
    assert data.splits["train"].labels.tolist() == [1, 0, 1, 0]


# Texts with several labels


@pytest.mark.parametrize(
    ("values", "options", "labels"),
    [
        (["Sports, outdoor", "Food", "Art", "Sports, outdoor"], {}, ("Art", "Food", "Sports, outdoor")),
        (["book a flight", "book a hotel", "cancel", "cancel"], {}, ("book a flight", "book a hotel", "cancel")),
        (["a,b", "c", "a,b|c", "c"], {}, ("a,b", "c")),
        (["a,b", "a", "b", "a"], {"labels": ["a", "b", "a,b"]}, ("a", "b", "a,b")),
        (["[a]", "b", "[a]|b", "b"], {"labels": ["[a]", "b"]}, ("[a]", "b")),
        (["10", "11", "10", "11"], {}, ("10", "11")),
    ],
)
def test_names_may_have_what_separates_other_labels(values: Any, options: dict[str, Any], labels: Any) -> None:
    assert read(values, **options).labels == labels


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["rude", "threat", "rude#threat", "insult"], "no text has '|' between labels, and 20% have '#': set \"task"),
        (["a,b", "c,d", "e,f", "g"], "no text has '|' between labels, and 60% have ',': set \"task.separator=','\""),
        (["a|b", "a,b", "b,c", "c"], "only 20% of the texts have '|' between labels, and 40% have ',': set"),
        (["a", "b", "a, b", "c"], "set \"task.separator=','\", or name the labels with task.labels"),  # For a shell.
        (["a", "b", "a\nb", "c"], "set $'task.separator=\"\\n\"', or name the labels with task.labels"),
    ],
)
def test_labels_with_another_separator_are_refused(values: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read(values, values[-1:])
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "values",
    [
        ["['a']", "['b', 'a']", "[]", " ['b'] "],
        ['["a"]', '["b", "a"]', "[]", '["b"]'],
        ["['a',]", "[\"b\", 'a']", "", "['b']"],
    ],
)
def test_lists_that_are_written_as_text_are_read_with_a_notice(values: list[str], printed: Printed) -> None:
    assert read(values).splits["train"].labels.tolist() == [[1, 0], [1, 1], [0, 0], [0, 1]]
    assert "Notice: labels are read as lists, such as " in printed()


def test_a_list_as_text_is_no_class_unless_it_is_named() -> None:
    values = ["['a']", "['b']", "['a', 'b']", "['a']"]
    with pytest.raises(UserError, match=r"label \['a'\] is a list, expected one label: set task.multi_label=true, or"):
        read(values, multi_label=False)
    named = read(values, multi_label=False, labels=["['a']", "['b']", "['a', 'b']"])
    assert named.splits["train"].labels.tolist() == [0, 1, 2, 0]
