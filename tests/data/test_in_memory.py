"""Tests that data in memory is read like the same rows in files, and other types are refused in one line."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest

from distill.core.errors import OptionError, UserError
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


def test_data_may_be_a_path(data_of_files: LabelledData, tmp_path: Path):
    assert equal_data(read(Classification(text="sentence", data=tmp_path / "data"), tmp_path), data_of_files)
    assert equal_data(read(Classification(text="sentence", data=str(tmp_path / "data")), tmp_path), data_of_files)


def test_categories_of_a_frame_are_their_values(tmp_path: Path):
    frame = pandas.DataFrame({"sentence": TRAIN_TEXTS, "label": pandas.Categorical(TRAIN_LABELS)})
    data = read(Classification(text="sentence", train=frame, dev=(DEV_TEXTS, DEV_LABELS)), tmp_path)
    assert data.labels == ("bad", "good")
    assert data.splits["train"].labels.tolist() == [1, 0, 1, 0]


def test_splits_may_be_a_mapping_or_a_dataset_dict(data_of_files: LabelledData, tmp_path: Path):
    tables = {"train": FORMS["pandas"], "dev": (DEV_TEXTS, DEV_LABELS)}
    assert equal_data(read(Classification(text="sentence", data=tables), tmp_path), data_of_files)
    dev = datasets.Dataset.from_dict({"sentence": DEV_TEXTS, "label": DEV_LABELS})
    by_name = datasets.DatasetDict({"train": FORMS["datasets"], "validation": dev, "test": dev})
    data = read(Classification(text="sentence", data=by_name), tmp_path)
    assert list(data.scored()) == ["dev", "test"]
    assert data.splits["test"].texts == DEV_TEXTS
    del by_name["test"]
    assert equal_data(read(Classification(text="sentence", data=by_name), tmp_path), data_of_files)


def test_a_test_split_and_splits_of_other_names_are_scored(tmp_path: Path):
    dev = (DEV_TEXTS, DEV_LABELS)
    task = Classification(text="sentence", train=FORMS["lists"], dev=dev, test=dev)
    assert list(read(task, tmp_path).scored()) == ["dev", "test"]
    data = {"train": FORMS["lists"], "dev_matched": dev, "dev_mismatched": dev}
    task = Classification(text="sentence", data=data, splits={"dev": ["dev_matched"], "other": ["dev_mismatched"]})
    assert list(read(task, tmp_path).scored()) == ["dev", "other"]


@pytest.mark.parametrize(
    "form",
    [
        "lists",
        "pandas",
    ],
)
def test_dev_is_held_out_of_a_single_table_like_of_a_single_file(tmp_path: Path, form: str):
    texts, labels = (
        [f"text {index}" for index in range(50)],
        ["rare" if index % 5 == 0 else "often" for index in range(50)],
    )
    columns = {"sentence": texts, "label": labels}
    lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in zip(texts, labels, strict=True))]
    (tmp_path / "mine.tsv").write_text("\n".join(lines) + "\n")
    forms = {
        "lists": (texts, labels),
        "columns": columns,
        "pandas": pandas.DataFrame(columns),
        "datasets": datasets.Dataset.from_dict(columns),
    }
    data = read(Classification(text="sentence", data=forms[form], dev_fraction=0.2), tmp_path)
    assert (len(data.splits["train"]), len(data.splits["dev"])) == (40, 10)
    assert data.splits["dev"].labels.mean() == 0.2
    assert equal_data(
        data, read(Classification(text="sentence", data=tmp_path / "mine.tsv", dev_fraction=0.2), tmp_path)
    )


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


def test_numbers_are_the_labels_of_a_regression(tmp_path: Path):
    train = (TRAIN_TEXTS, [0.5, 1, 2.25, -3])
    data = read(Regression(text="sentence", label="score", train=train, dev=(DEV_TEXTS, [1.0, 2.0])), tmp_path)
    assert data.labels == ("score",)
    assert data.splits["train"].labels.tolist() == [0.5, 1.0, 2.25, -3.0]
    assert data.splits["train"].labels.dtype == np.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"train": TRAIN_TEXTS, "dev": (DEV_TEXTS, DEV_LABELS)},
            "got data of type list, expected a path, (texts, labels)",
        ),
        ({"data": 3}, "got data of type int, expected a path, (texts, labels), a mapping of columns, a pandas frame"),
        ({"data": {"train": 3, "dev": 4}}, "got data of type int, expected a path"),
        ({"train": (TRAIN_TEXTS, TRAIN_LABELS[:3])}, "got 4 texts and 3 labels, expected as many of both"),
        (
            {"data": FORMS["lists"], "train": FORMS["lists"], "dev": (DEV_TEXTS, DEV_LABELS)},
            "got data and train and dev, expected one of them: leave out the other",
        ),
        (
            {"text": ["one", "two"], "data": ([("a", "b"), "c d"], [0, 1])},
            "got the text 'c d', expected 2 texts for one, two",
        ),
        (
            {"text": ["one", "two"], "data": ([("a", "b"), ("c", "d", "e")], [0, 1])},
            "got the text ('c', 'd', 'e'), expected 2 texts for one, two",
        ),
        (
            {"text": ["one", "two"], "data": ([("a", "b"), None], [0, 1])},
            "got the text None, expected 2 texts for one, two",
        ),
        (
            {"train": {"sentence": ["a", "b"], "label": [1]}},
            "got columns of unequal lengths (sentence 2, label 1), expected as many rows in each",
        ),
        ({"train": {"sentence": ["a", "b"], "label": 1}}, "got label of type int, expected a list or an array"),
        ({"train": ({"a", "b"}, [0, 1])}, "got texts of type set, expected a list or an array"),
        ({"train": (["a", "b"], [10**30, 1])}, "the data cannot be made a table ("),
        ({"train": ("some text", [1])}, "got texts of type str, expected a list or an array"),
        ({"train": (["a", "b"], [0, "one"])}, "the data cannot be made a table ("),
    ],
)
def test_data_that_cannot_be_a_table_is_refused_in_one_line(options: dict[str, Any], message: str):
    with pytest.raises(UserError) as caught:
        Classification(**{"text": "sentence", **options})
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": FORMS["lists"]}, "the data has no split dev, expected train and dev: it has train"),
        (
            {"train": {"text": ["a"], "label": [1]}, "dev": (DEV_TEXTS, DEV_LABELS)},
            "the split train has no column sentence: it has text, label; name yours with task.text=[...]",
        ),
        (
            {"train": (["a", " "], [0, 1]), "dev": (DEV_TEXTS, [0, 1]), "missing": "error"},
            "the split train: 1 of 2 rows has no text (example 2): set task.missing=drop to leave them out",
        ),
        (
            {"train": ([3, 4], [0, 1]), "dev": (DEV_TEXTS, [0, 1])},
            "the split train: 2 of 2 rows have no text but 3 or the like in column sentence (examples 1 and 2): ex",
        ),
        (
            {"train": FORMS["lists"], "dev": (DEV_TEXTS, ["good", "odd"])},
            "the split dev, example 2: label 'odd' is unknown, expected one of bad, good",
        ),
        (
            {"data": {"sentence": ["a", "b", "c"], "label": [0, 0, 1]}},
            "the data cannot be split with task.dev_fraction=0.1 so that train and dev hold every class",
        ),
    ],
)
def test_invalid_rows_in_memory_are_named_in_the_error(options: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(UserError) as caught:
        read(Classification(**{"text": "sentence", **options}), tmp_path)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_texts_and_labels_need_no_name_of_a_column(tmp_path: Path) -> None:
    train, dev = (TRAIN_TEXTS, TRAIN_LABELS), (DEV_TEXTS, DEV_LABELS)
    named = read(Classification(text="sentence", train=train, dev=dev), tmp_path)
    for data in ({"train": train, "dev": dev}, {"data": {"train": train, "dev": dev}}):
        assert equal_data(read(Classification(**data), tmp_path), named)
    assert equal_data(read(Classification(train=(iter(TRAIN_TEXTS), TRAIN_LABELS), dev=dev), tmp_path), named)
    pairs = [[text, "so it is"] for text in TRAIN_TEXTS]
    numbers = read(Regression(train=(pairs, [1, 2, 3, 4]), dev=(pairs, [1, 2, 3, 4])), tmp_path)
    assert numbers.splits["dev"].pairs == ["so it is"] * 4


@pytest.mark.parametrize(
    "data",
    [
        {"data_dir": "mydata"},
        {"train": COLUMNS, "dev": COLUMNS},
        {"train": (TRAIN_TEXTS, TRAIN_LABELS), "dev": COLUMNS},
        {"train": ([{"title": "a"}, {"title": "b"}], ["x", "y"])},
        {},
    ],
)
def test_other_data_need_the_name_of_the_column(data: dict[str, Any]) -> None:
    with pytest.raises(
        OptionError, match="got no text, expected the column of the texts, or the two columns of a pair"
    ):
        Classification(**data)
