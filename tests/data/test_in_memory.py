"""Tests that data in memory is read like the same rows in files, and other types are refused in one line."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest

from distill.core.errors import UserError
from distill.data.splits import LabelledData
from distill.kinds import Classification, Regression

TRAIN_TEXTS = ["a lovely film", "a dull mess", "warm and clever", "stale and cold"]
TRAIN_LABELS = ["good", "bad", "good", "bad"]
DEV_TEXTS, DEV_LABELS = ["a joy", "a bore"], ["good", "bad"]
COLUMNS = {"sentence": TRAIN_TEXTS, "label": TRAIN_LABELS}
# The training rows in every supported form.
FORMS: dict[str, Any] = {
    "lists": (TRAIN_TEXTS, TRAIN_LABELS),
    "arrays": (np.array(TRAIN_TEXTS), np.array(TRAIN_LABELS)),
    "columns": COLUMNS,
    "columns of arrays": {name: np.array(column) for name, column in COLUMNS.items()},
    "pandas": pandas.DataFrame(COLUMNS, index=[7, 3, 9, 1]),
    "categories": pandas.DataFrame({"sentence": TRAIN_TEXTS, "label": pandas.Categorical(TRAIN_LABELS)}),
    "datasets": datasets.Dataset.from_dict(COLUMNS),
}


def read(task: Classification | Regression, directory: Path) -> LabelledData:
    return task.read(directory / "cache")


def equal_data(data: LabelledData, other: LabelledData) -> bool:
    """Returns whether labels, rows and digests are equal."""
    return (
        data.labels == other.labels
        and data.splits.keys() == other.splits.keys()
        and data.sha256 == other.sha256
        and all(
            split.texts == other.splits[name].texts
            and split.pairs == other.splits[name].pairs
            and np.array_equal(split.labels, other.splits[name].labels)
            for name, split in data.splits.items()
        )
    )


@pytest.fixture
def data_of_files(tmp_path: Path) -> LabelledData:
    """The rows, written to files and read by a task."""
    directory = tmp_path / "data"
    directory.mkdir()
    for split, texts, labels in (("train", TRAIN_TEXTS, TRAIN_LABELS), ("dev", DEV_TEXTS, DEV_LABELS)):
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in zip(texts, labels, strict=True))]
        (directory / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return read(Classification(text="sentence", data_dir=directory), tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_data_in_memory_is_read_like_the_same_rows_in_files(data_of_files: LabelledData, tmp_path: Path, form: str):
    data = read(Classification(text="sentence", train=FORMS[form], dev=(DEV_TEXTS, DEV_LABELS)), tmp_path)
    assert data.labels == ("bad", "good")
    assert data.splits["train"].texts == TRAIN_TEXTS
    assert data.splits["train"].labels.tolist() == [1, 0, 1, 0]
    assert equal_data(data, data_of_files)


def test_splits_may_be_a_mapping_or_a_dataset_dict(data_of_files: LabelledData, tmp_path: Path):
    assert equal_data(read(Classification(text="sentence", data=str(tmp_path / "data")), tmp_path), data_of_files)
    tables = {"train": FORMS["pandas"], "dev": (DEV_TEXTS, DEV_LABELS)}
    assert equal_data(read(Classification(text="sentence", data=tables), tmp_path), data_of_files)
    dev = datasets.Dataset.from_dict({"sentence": DEV_TEXTS, "label": DEV_LABELS})
    by_name = datasets.DatasetDict({"train": FORMS["datasets"], "validation": dev, "test": dev})
    data = read(Classification(text="sentence", data=by_name), tmp_path)
    assert list(data.scored()) == ["dev", "test"]
    assert data.splits["test"].texts == DEV_TEXTS
    del by_name["test"]
    assert equal_data(read(Classification(text="sentence", data=by_name), tmp_path), data_of_files)


def test_pairs_may_be_tuples_lists_or_two_columns(tmp_path: Path):
    pairs = [("q1", "a1"), ("q2", "a2")]
    columns = {"question": ["q1", "q2"], "answer": ["a1", "a2"], "label": [0, 1]}
    tasks = [
        Classification(text=["question", "answer"], train=train, dev=(pairs, [0, 1]))
        for train in ((pairs, [0, 1]), ([list(pair) for pair in pairs], [0, 1]), columns)
    ]
    for task in tasks:
        data = read(task, tmp_path)
        assert task.info.pair
        assert (data.splits["train"].texts, data.splits["train"].pairs) == (["q1", "q2"], ["a1", "a2"])
        assert data.splits["train"].records() == [["q1", "a1"], ["q2", "a2"]]
        assert equal_data(data, read(tasks[0], tmp_path))


DEV = (DEV_TEXTS, DEV_LABELS)
DOUBLED = pandas.DataFrame([["a", 1, 2]], columns=["text", "label", "label"])
PAIRS = {"text": ["one", "two"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": TRAIN_TEXTS, "dev": DEV}, "got data of type list, expected a path, (texts, labels)"),
        ({"train": (TRAIN_TEXTS, TRAIN_LABELS[:3])}, "got 4 texts and 3 labels, expected as many of both"),
        ({"data": FORMS["lists"], "train": FORMS["lists"], "dev": DEV}, "got data and train and dev, expected one of"),
        ({**PAIRS, "data": ([("a", "b"), "c d"], [0, 1])}, "got the text 'c d', expected 2 texts for one, two"),
        ({**PAIRS, "data": ([("a", "b"), ("c",)], [0, 1])}, "got the text ('c',), expected 2 texts for one, two"),
        ({**PAIRS, "data": ([("a", "b"), None], [0, 1])}, "got the text None, expected 2 texts for one, two"),
        ({"train": {"sentence": ["a", "b"], "label": [1]}}, "got columns of unequal lengths (sentence 2, label 1)"),
        ({"train": {"sentence": ["a", "b"], "label": 1}}, "got label of type int, expected a list or an array"),
        ({"train": ({"a", "b"}, [0, 1])}, "got texts of type set, expected a list or an array"),
        ({"train": ("some text", [1])}, "got texts of type str, expected a list or an array"),
        ({"train": (["a", "b"], [10**30, 1])}, "the data cannot be made a table ("),
        ({"train": (["a", "b"], [0, "one"])}, "the data cannot be made a table ("),
        ({"data": DOUBLED}, "the data cannot be made a table (Duplicate column names found: "),
        ({"train": FORMS["lists"]}, "the data has no split dev, expected train and dev: it has train"),
        ({"train": COLUMNS, "dev": DEV, "text": "title"}, "has no column title: it has sentence, label; name"),
        ({"train": FORMS["lists"], "dev": (DEV_TEXTS, ["good", "odd"])}, "split dev, example 2: label 'odd' is unk"),
        ({"train": FORMS["lists"], "dev": COLUMNS, "text": None}, "got no text, expected the column of the texts, or"),
        ({"data_dir": "mydata", "text": None}, "got no text, expected the column of the texts, or"),
        ({"train": ([{"a": "b"}], ["x"]), "text": None}, "got no text, expected the column of the texts, or"),
    ],
)
def test_data_that_cannot_be_a_table_is_refused_in_one_line(options: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(UserError) as caught:
        read(Classification(**{"text": "sentence", **options}), tmp_path)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 2


def test_texts_and_labels_need_no_name_of_a_column(tmp_path: Path) -> None:
    train, dev = (TRAIN_TEXTS, TRAIN_LABELS), (DEV_TEXTS, DEV_LABELS)
    named = read(Classification(text="sentence", train=train, dev=dev), tmp_path)
    for data in ({"train": train, "dev": dev}, {"data": {"train": train, "dev": dev}}):
        assert equal_data(read(Classification(**data), tmp_path), named)
    assert equal_data(read(Classification(train=(iter(TRAIN_TEXTS), TRAIN_LABELS), dev=dev), tmp_path), named)
    pairs = [[text, "so it is"] for text in TRAIN_TEXTS]
    numbers = read(Regression(train=(pairs, [1, 2, 3, 4]), dev=(pairs, [1, 2, 3, 4])), tmp_path)
    assert numbers.splits["dev"].pairs == ["so it is"] * 4
    assert (numbers.splits["train"].labels.tolist(), numbers.splits["train"].labels.dtype) == ([1, 2, 3, 4], np.float32)
