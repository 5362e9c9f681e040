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
        np.array(VECTORS),
        np.array(VECTORS, dtype=bool),
        np.array(VECTORS, dtype=np.float32),
        list(np.array(VECTORS, dtype=np.int8)),
        [tuple(map(bool, row)) for row in VECTORS],
        [list(map(float, row)) for row in VECTORS],
        [list(map(str, row)) for row in VECTORS],
        ["|".join(map(str, row)) for row in VECTORS],
        list(map(json.dumps, VECTORS)),
        list(map(str, np.array(VECTORS, dtype=bool).tolist())),
        pandas.Series(VECTORS),
    ],
    ids=lambda values: type(values).__name__,
)
def test_vectors_of_0_and_1_are_no_indices(values: Any, capsys: pytest.CaptureFixture[str]) -> None:
    data = read(values)
    assert data.labels == ("0", "1", "2")
    assert data.splits["train"].labels.tolist() == VECTORS
    assert data.splits["dev"].labels.tolist() == VECTORS[:2]
    expected = "labels are read as 3 values of 0 and 1, one for each label, and named 0 to 2: name them with task.labe"
    assert expected in capsys.readouterr().out


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
        ([[0], [1], [0, 1]], None, [[1, 0], [0, 1], [1, 1]]),
        ([[0, 1], [1, 0]], ["a", "b", "c"], [[1, 1, 0], [1, 1, 0]]),
        ([[0], [1], [1]], ["a", "b"], [[1, 0], [0, 1], [0, 1]]),
        ([[0, 1], [1, 0], []], ["a", "b"], [[1, 1], [1, 1], [0, 0]]),
        ([[1, 2], [2, 0]], None, [[0, 1, 1], [1, 0, 1]]),
        (["0|1", "1", "0"], None, [[1, 1], [0, 1], [1, 0]]),
    ],
)
def test_lists_that_cannot_be_vectors_are_indices(values: Any, labels: Any, expected: list[list[int]]) -> None:
    assert read(values, labels=labels).splits["train"].labels.tolist() == expected


TWO_WAYS = r"example 1: labels such as .* may be indices of labels, or a 0 or 1 for each of them: write the names of"


@pytest.mark.parametrize(
    ("values", "labels", "message"),
    [
        ([[0, 1], [1, 0]], None, TWO_WAYS),
        ([[0, 1], [1, 0]], ["a", "b"], TWO_WAYS),
        ([["0", "1"], None, ["1", "0"]], None, TWO_WAYS),
        ([[0], [1]], None, TWO_WAYS),
        ([0, 1], None, TWO_WAYS),
        ([0, 1], ["a", "b"], TWO_WAYS),
        ([0.0, 1.0, None], None, TWO_WAYS),
        (["0", "1"], None, TWO_WAYS),
        ([True, False], ["a", "b"], TWO_WAYS),
        (
            VECTORS,
            ["a", "b"],
            r"lists of 3 values of 0 and 1 do not fit the 2 labels a, b: expected one value for",
        ),
        ([[1, 0, 0], [1, 0]], None, "as many values of 0 and 1 in every example, while .* example 2 has 2 values$"),
        (
            [[1, 0, 2], [0, 0, 3]],
            None,
            "example 2: label 0 is there twice, .*, while the split train, example 1 has 2$",
        ),
        ([["x", "y"], ["0", "0"]], None, "example 2: label 0 is there twice"),
        ([[1, 0, 0], None, [0, 1, 1]], None, "example 2 has no labels, expected 3 values of 0 and 1"),
        ([[1, 0, 0], [], [0, 1, 1]], None, "example 2 has no labels, expected 3 values of 0 and 1"),
        ([[0.3, 0.7, 0.0], [1.0, 0.0, 0.0]], None, "example 1: label 0.3 is no label, expected names, indices, or 0"),
        ([[1, -1, -1], [-1, 1, -1]], None, "example 1: label -1 often marks an example without a label"),
        ([[1, 0, None], [0, 1, 0]], None, "example 2: label 0 is there twice"),
        (["[1 0 0]", "[0 1 1]"], None, r"example 1: label \[1 0 0\] looks like a list, expected every text as"),
        (["1 0 0", "0 1 1"], None, "no text has '|' between labels, and 100% have ' ': set \"task.separator=' '\""),
        (["100", "011"], None, r"example 1: label 100 looks like a 0 or 1 for each label, expected '\|' between them"),
    ],
)
def test_labels_that_have_two_readings_or_none_are_refused(values: Any, labels: Any, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("has '|'", r"has '\|'")) as caught:
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
    assert {name: split.labels.tolist() for name, split in data.splits.items()} == {
        "train": VECTORS, "dev": VECTORS[:2],
    }  # fmt: skip
    ordered = read_tables(table, table[:2], label=NAMES, labels=["insult", "rude", "threat"])
    assert ordered.splits["train"].labels.tolist() == [[0, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 1]]
    hidden = frame({"label": [[-1, -1, -1]] * 4})
    assert list(read_tables(frame({"label": VECTORS}), frame({"label": VECTORS}), test=hidden).splits) == [
        "train",
        "dev",
    ]
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


def test_columns_are_read_from_csv(tmp_path: Path) -> None:
    rows = [f"text {number},{','.join(map(str, row))}" for number, row in enumerate(VECTORS)]
    (tmp_path / "train.csv").write_text("\n".join(["text,rude,threat,insult", *rows, ""]))
    (tmp_path / "dev.csv").write_text("insult,text,rude,threat\n1,x,0,0\n")
    (tmp_path / "test.csv").write_text("text,rude,threat,insult\nx,-1,-1,-1\n")
    data = Classification(text="text", multi_label=True, label=NAMES, data=tmp_path).read(NOWHERE)
    assert (data.labels, data.splits["dev"].labels.tolist()) == (tuple(NAMES), [[0, 0, 1]])
    assert list(data.splits) == ["train", "dev"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rude": [1, 0, 2, 0]},
            "the split train, example 3: column rude is 2, expected 0 or 1, because there is a c",
        ),
        ({"rude": ["a", "b", "a", "b"]}, "example 1: column rude is 'a', expected 0 or 1"),
        ({"rude": [1, None, 0, 0]}, "example 2: column rude is None, expected 0 or 1"),
        ({"rude": [1, -1, 0, 0]}, "example 2: column rude is -1, expected 0 or 1"),
        ({"rude": [0.5, 1, 0, 0]}, "example 1: column rude is 0.5, expected 0 or 1"),
    ],
)
def test_columns_of_other_values_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_tables(frame({**COLUMNS, **changes}), frame(COLUMNS), label=NAMES)


def test_columns_that_a_split_lacks_are_refused() -> None:
    with pytest.raises(UserError, match="the split dev has no column insult: it has text, rude, threat; task.label n"):
        read_tables(frame(COLUMNS), frame({name: COLUMNS[name] for name in NAMES[:2]}), label=NAMES)
    with pytest.raises(UserError, match="the split train has the classes rude, .* and task.labels x, y, rude: exp"):
        read_tables(frame(COLUMNS), frame(COLUMNS), label=NAMES, labels=["x", "y", "rude"])


@pytest.mark.parametrize("kind", [Classification, Regression])
def test_several_columns_of_one_label_are_refused(kind: Any) -> None:
    table = frame({"topic": [1, 0, 1, 0], "mood": [0, 0, 1, 1]})
    message = "the split train has the columns topic and mood, expected one of them, because an example has one label: "
    with pytest.raises(UserError, match=message):
        kind(text="text", label=["topic", "mood"], train=table, dev=table).read(NOWHERE)
    with pytest.raises(UserError, match="the data .*has the columns topic and mood, expected one of them"):
        kind(text="text", label=["topic", "mood"], data=table).read(NOWHERE)
    one = table.drop(columns="mood")
    assert len(kind(text="text", label=["mood", "topic"], train=one, dev=one).read(NOWHERE).splits["train"]) == 4


def test_columns_of_other_names_in_other_splits_are_refused() -> None:
    table = frame({"topic": list("abab")})
    for options in ({"multi_label": False}, {}):
        with pytest.raises(
            UserError, match="the split train has the column topic and the split dev mood, expected the"
        ):
            read_tables(table, table.rename(columns={"topic": "mood"}), label=["topic", "mood"], **options)


# Texts with several labels


@pytest.mark.parametrize("separator", [",", "#", "\n", "\t", " ", "&"])
def test_labels_with_another_separator_are_refused(separator: str) -> None:
    values = ["rude", "threat", f"rude{separator}threat", "insult"]
    with pytest.raises(UserError) as caught:
        read(values, ["rude"])
    expected = f"example 3: no text has '|' between labels, and 20% have {separator!r}: set "
    assert expected in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert read(values, separator=separator).labels == ("insult", "rude", "threat")


def test_the_option_of_a_separator_is_written_for_a_shell() -> None:
    for separator, option in ((", ", "\"task.separator=','\""), ("\n", "$'task.separator=\"\\n\"'")):
        with pytest.raises(UserError) as caught:
            read(["a", "b", f"a{separator}b"])
        assert f"set {option}, or name the labels with task.labels" in str(caught.value)


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


def test_a_separator_of_a_few_texts_does_not_hide_another_one() -> None:
    message = (
        r"example 2: only 20% of the texts have '\|' between labels, and 40% have ',': set \"task\.separator=','\""
    )
    with pytest.raises(UserError, match=message):
        read(["a|b", "a,b", "b,c", "c"], ["c"])
    with pytest.raises(UserError, match=r"no text has '\|' between labels, and 60% have ','"):
        read(["a,b", "c,d", "e,f", "g"], ["g"])


@pytest.mark.parametrize(
    "values",
    [
        ["['a']", "['b', 'a']", "[]", " ['b'] "],
        ['["a"]', '["b", "a"]', "[]", '["b"]'],
        ["['a',]", "[\"b\", 'a']", "", "['b']"],
    ],
)
def test_lists_that_are_written_as_text_are_read_with_a_notice(
    values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert read(values).splits["train"].labels.tolist() == [[1, 0], [1, 1], [0, 0], [0, 1]]
    assert "Notice: labels are read as lists, such as " in capsys.readouterr().out


@pytest.mark.parametrize(
    "values",
    [
        ["['a']", "b"],
        ["['a' 'b']", "['b']"],
        ["{'a', 'b'}", "{'b'}"],
        ["('a', 'b')", "('b',)"],
        ["[a, b]", "[b]"],
        ["['a', ['b']]", "['b']"],
        ["['a', f()]", "['b']"],
        ["[" * 5000 + "]" * 5000, "a"],
    ],
)
def test_what_looks_like_a_list_and_is_none_is_refused(values: list[str]) -> None:
    with pytest.raises(UserError, match=r"label .* looks like a list, expected every text as \[\"a\", \"b\"\], or"):
        read(values)


def test_a_list_as_text_is_no_class_unless_it_is_named() -> None:
    values = ["['a']", "['b']", "['a', 'b']", "['a']"]
    with pytest.raises(UserError, match=r"label \['a'\] is a list, expected one label: set task.multi_label=true, or"):
        read(values, multi_label=False)
    named = read(values, multi_label=False, labels=["['a']", "['b']", "['a', 'b']"])
    assert named.splits["train"].labels.tolist() == [0, 1, 2, 0]
