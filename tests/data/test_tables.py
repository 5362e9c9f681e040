"""Tests that labelled files are read completely and that errors in them are reported in one line."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.core.errors import UnreachableError, UserError
from distill.data.profile import profile_data
from distill.data.splits import LabelledData, Split, text_split
from distill.kinds import Classification, Regression
from distill.rows.columns import SUFFIXES

Row = tuple[Any, ...]
# Texts that a reader lost, split or read as missing.
AWKWARD = ('he said "no', '""', "NA", "null", "nan", "007", "a, b", "  spaced  ", "1e5", "#no comment", "it's")
TEXTS = (*AWKWARD, "caf\u00e9 \u2014 \u4f60\u597d")
ROWS: list[Row] = [(text, index % 2) for index, text in enumerate(TEXTS)]
DEV: list[Row] = [("good", 1), ("bad", 0)]
NUMBER = {"kind": Regression, "metrics": ["pearson"]}


def tsv(rows: list[Row], header: str = "sentence\tlabel") -> str:
    return "\n".join([header, *("\t".join(map(str, row)) for row in rows)]) + "\n"


def csv(rows: list[Row]) -> str:
    quoted = ('"' + str(text).replace('"', '""') + f'",{label}' for text, label in rows)
    return "\n".join(["sentence,label", *quoted]) + "\n"


def jsonl(rows: list[Row]) -> str:
    return "".join(json.dumps({"sentence": text, "label": label}) + "\n" for text, label in rows)


WRITERS: dict[str, Callable[[list[Row]], str]] = {".tsv": tsv, ".csv": csv, ".jsonl": jsonl}


def write(path: Path, rows: list[Row]) -> None:
    """Writes rows in the format of the suffix."""
    if path.suffix == ".parquet":
        import datasets

        texts, labels = zip(*rows, strict=True)
        datasets.Dataset.from_dict({"sentence": texts, "label": labels}).to_parquet(str(path))
        return
    content = WRITERS[path.name.removesuffix(".gz")[path.name.index(".") :]](rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LabelledData]:
    """Writes files, given as contents by name, and reads their directory as the data of a task."""

    def write_and_read(
        files: dict[str, str | list[Row]], *, kind: Any = Classification, **options: Any
    ) -> LabelledData:
        directory = tmp_path / "data"
        directory.mkdir(exist_ok=True)
        for name, content in files.items():
            if isinstance(content, str):
                (directory / name).write_text(content, encoding="utf-8")
            else:
                write(directory / name, content)
        options = {"name": "toy", "text": ["sentence"], "data_dir": str(directory)} | options
        data: LabelledData = kind(**options).read(tmp_path / "cache")
        return data

    return write_and_read


Read = Callable[..., LabelledData]

# Files


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_is_read_completely(read: Read, suffix: str):
    splits = read({f"train{suffix}": ROWS, f"dev{suffix}": DEV}).splits
    assert splits["train"].texts == list(TEXTS)
    assert splits["train"].labels.tolist() == [label for _, label in ROWS]
    assert splits["train"].pairs is None
    assert splits["dev"].texts == ["good", "bad"]


def test_the_parts_of_a_split_are_read_in_their_order(read: Read, tmp_path: Path):
    """As the Hub names them; before, `train-00000-of-00002.parquet` was no train."""
    rows: list[Row] = [(f"text {number}", number % 2) for number in range(6)]
    parts = {f"train-0000{part}-of-00003.parquet": rows[2 * part : 2 * part + 2] for part in (2, 0, 1)}
    splits = read({**parts, "valid-00000-of-00001.parquet": DEV}).splits
    assert splits["train"].texts == [text for text, _ in rows]
    assert splits["train"].labels.tolist() == [label for _, label in rows]
    assert dict(profile_data(str(tmp_path / "data")).rows) == {"train": 6, "dev": 2}


def test_dev_is_held_out_of_train_where_the_splits_name_none_for_it(read: Read):
    rows: list[Row] = [(f"text {number}", number % 2) for number in range(20)]
    files: dict[str, str | list[Row]] = {"train.tsv": rows, "dev.tsv": [("not read", 1)], "test.tsv": DEV}
    splits = read(files, splits={"dev": []}, dev_fraction=0.2).splits
    assert list(splits) == ["train", "dev", "test"]
    assert splits["test"].texts == ["good", "bad"]
    assert sorted([*splits["train"].texts, *splits["dev"].texts]) == sorted(text for text, _ in rows)
    assert np.bincount(splits["dev"].labels).tolist() == [2, 2]  # Of each class alike.


# Errors


PART = "train-0000{}-of-00002.tsv"


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"dev.tsv": DEV}, {}, r"has no train file \(found dev\.tsv\), expected train with one of \.tsv, \.csv"),
        ({"test.tsv": DEV}, {"splits": {"dev": []}}, r"has no train file \(found test\.tsv\), expected train with one"),
        ({"dev.tsv": DEV, PART.format(0): ROWS}, {}, r"has 1 of the 2 files train-\.\.\.-of-00002 \(found train-00000"),
        ({"train.tsv": ROWS, "train-00000-of-00001.tsv": ROWS, "dev.tsv": DEV}, {}, r"has train.tsv and train-0"),
        ({"train.tsv": ROWS, "dev.tsv": DEV, "validation.csv": DEV}, {}, r"has dev\.tsv and validation\.csv, expected"),
        (
            {PART.format(0): ROWS, PART.format(1): "sentence\tstars\na\t1\n", "dev.tsv": DEV},
            {},
            r"train-00001-of-00002.tsv has the columns sentence, stars, and .*00000-of-00002.tsv has sentence, label",
        ),
        (
            {"train.jsonl": '{"sentence": 3, "label": 0}\n{"sentence": 4, "label": 1}\n', "dev.tsv": DEV},
            {},
            r"train\.jsonl: 2 of 2 rows have no text but 3 or the like in column sentence \(lines 1 and 2\): exp",
        ),
        (
            {"train.tsv": [("a", "3.5"), ("b", "good")], "dev.tsv": DEV},
            NUMBER,
            r"train\.tsv: 1 of 2 rows has a label that is no number, 'good' \(line 3\): for classes take task=classif",
        ),
        (
            {"train.tsv": [("a", "3.5"), ("b", "nan")], "dev.tsv": DEV},
            {"missing": "error", **NUMBER},
            r"1 of 2 rows has no label, for which nan counts too \(line 3\)",
        ),
        ({}, {**NUMBER, "data_dir": None}, r"task toy has no data of its own: give task\.data_dir=DIR"),
        ({}, {"data_dir": __file__}, r"test_tables\.py is of no known kind, expected one of \.tsv, \.csv"),
    ],
)
def test_invalid_files_are_named_in_the_error(read: Read, files: Any, options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message) as caught:
        read(files, **options)
    assert caught.value.exit_code == 2


# Numbers


def test_regression_labels_are_read_as_numbers(read: Read):
    data = read({"train.csv": csv([("a", "2.500"), ("b", "-1"), ("c", "1e1")]), "dev.tsv": [("d", 3)]}, **NUMBER)
    assert data.labels == ("label",)
    assert data.splits["train"].labels.tolist() == [2.5, -1.0, 10.0]
    assert data.splits["train"].labels.dtype == np.float32


def test_the_first_existing_label_column_is_used(read: Read):
    files = {"train.tsv": "sentence\tscore\na\t1\nb\t2\n", "dev.tsv": "sentence\tscore\na\t1\n"}
    data = read(files, **NUMBER, label=["label", "score"])
    assert data.labels == ("score",)
    with pytest.raises(UserError, match=r"has no column label or mark: it has sentence, score"):
        read({}, **NUMBER, label=["label", "mark"])


# Splits


def test_splits_are_read_from_the_file_names_of_the_task(read: Read):
    without_labels = "sentence\na\n"
    assert set(read({"train.tsv": ROWS, "validation.tsv": DEV, "test.tsv": without_labels}).splits) == {"train", "dev"}
    files = {"train.tsv": ROWS, "dev_matched.tsv": DEV, "dev_mismatched.tsv": DEV[::-1], "test.tsv": DEV}
    data = read(files, splits={"dev": ["matched", "dev_matched"], "mismatched": ["dev_mismatched"]})
    assert list(data.scored()) == ["dev", "test", "mismatched"]
    assert data.scored()["mismatched"].labels.tolist() == [0, 1]


def test_dev_is_a_stratified_part_of_a_single_file(read: Read, tmp_path: Path):
    rows = [(f"text {index}", "rare" if index % 5 == 0 else "often") for index in range(100)]
    file = tmp_path / "mine.tsv"
    write(file, rows)
    first, again = (read({}, data_dir=str(file), dev_fraction=0.2) for _ in range(2))
    train, dev = first.splits["train"], first.splits["dev"]
    assert (len(train), len(dev)) == (80, 20)
    assert sorted(train.texts + dev.texts) == sorted(text for text, _ in rows)
    assert first.labels == ("often", "rare")
    assert (train.labels.mean(), dev.labels.mean()) == (0.2, 0.2)
    assert first.sha256 == again.sha256
    write(file, [(f"text {index}", index / 2) for index in range(10)])
    assert len(read({}, data_dir=str(file), dev_fraction=0.3, **NUMBER).splits["dev"]) == 3


# Hub cache


def write_hub_cache(root: Path, splits: dict[str, list[Row]]) -> None:
    """Writes the files that the Hub's loader caches in `root` for the configuration `toy` of `owner/films`."""
    import datasets
    from datasets.arrow_writer import ArrowWriter
    from datasets.splits import SplitDict

    directory = root / "owner___films" / "toy" / "0.0.0" / f"{1:040}"
    directory.mkdir(parents=True)
    infos = SplitDict()
    for name, rows in splits.items():
        texts, labels = zip(*rows, strict=True)
        table = datasets.Dataset.from_dict({"sentence": texts, "label": labels})
        writer = ArrowWriter(path=str(directory / f"films-{name}.arrow"), features=table.features)
        writer.write_table(table.data.table)
        examples, size = writer.finalize()
        infos[name] = datasets.SplitInfo(name=name, num_bytes=size, num_examples=examples, dataset_name="films")
    datasets.DatasetInfo(
        features=table.features, splits=infos, builder_name="parquet", dataset_name="films", config_name="toy",
        version="0.0.0",
    ).write_to_directory(str(directory))  # fmt: skip


def test_a_data_set_of_the_hub_is_read_from_the_cache(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    options = {"data_dir": None, "hub_id": "owner/films:toy"}
    with pytest.raises(UnreachableError, match=r"owner/films:toy is not in the cache and cannot be .* task\.data_dir"):
        read({}, **options)
    write_hub_cache(tmp_path / "hub", {"train": ROWS, "validation": DEV, "test": [("a", -1)]})
    data = read({}, **options)
    assert set(data.splits) == {"train", "dev"}
    assert data.splits["train"].texts == list(TEXTS)
    assert data.splits["dev"].labels.tolist() == [1, 0]
    shutil.rmtree(tmp_path / "hub")
    write_hub_cache(tmp_path / "hub", {"train": ROWS})
    with pytest.raises(UserError, match=r"owner/films:toy has no split dev or validation or valid: it has train"):
        read({}, **options)


# Reproducibility


def test_a_sample_is_reproducible_and_keeps_texts_with_their_labels(read: Read):
    rows = [(f"text {index}", index % 2) for index in range(50)]
    files = {"train.tsv": rows, "dev.tsv": rows}
    first, again = (read(files, train_examples=20, dev_examples=7) for _ in range(2))
    assert first.splits["train"].texts == again.splits["train"].texts
    assert (len(first.splits["train"]), len(first.splits["dev"])) == (20, 7)
    assert len(set(first.splits["train"].texts)) == 20
    for split in first.splits.values():
        assert split.labels.tolist() == [int(text.split()[1]) % 2 for text in split.texts]
    assert first.sha256 == again.sha256
    assert len(read(files, train_examples=100).splits["train"]) == 50


def test_the_digest_depends_only_on_the_content(read: Read):
    digests = [
        read(files, **options).sha256
        for files, options in (
            ({"train.tsv": ROWS, "dev.tsv": DEV}, {}),
            ({"train.tsv": [("other", 0), *ROWS[1:]]}, {}),
            ({"train.tsv": [(TEXTS[0], 1), *ROWS[1:]]}, {}),
            ({"train.tsv": ROWS}, {"train_examples": 5}),
            ({"train.tsv": ROWS}, {"labels": ["no", "yes"]}),
            ({"dev.tsv": DEV[::-1]}, {}),
        )
    ]
    assert len(set(digests)) == len(digests)
    assert read({"dev.tsv": DEV}, name="another").sha256 == digests[0]


def test_columns_of_lists_and_arrays_are_selected_and_joined():
    columns = {"name": ["a", "b"], "parts": [["x", "y"], ["z"]], "all": ["a x y", "b z"], "labels": np.array([1, 0])}
    split = Split(columns, ("name", "parts"), lambda row: (row["parts"], int(row["labels"])), whole="all")
    last = split.select(np.array([1]))
    assert split.records() == [(["x", "y"], 1), (["z"], 0)]
    assert list((split + last).compared_texts()) == [("a", "x", "y"), ("b", "z"), ("b", "z")]
    assert ((split + last).labels.tolist(), (split + last)["all"]) == ([1, 0, 0], ["a x y", "b z", "b z"])
    assert (split.texts, list(last.all_texts())) == (["a x y", "b z"], ["b", "z", "b z"])
    assert split.text_columns() == {"name": ["a", "b"], "parts": [["x", "y"], ["z"]]}
    assert (split.with_columns(labels=np.array([7, 8])).labels.tolist(), split.labels.tolist()) == ([7, 8], [1, 0])


def test_only_an_example_that_needs_all_of_its_texts_is_empty_without_one():
    train = text_split(["who", "when"], ["it is here", "it is here"])
    data = {needed: LabelledData((), {"train": train}, "", needs_all_texts=needed) for needed in (False, True)}
    assert [data[needed].is_empty(("who", "")) for needed in (False, True)] == [False, True]
    assert all(of.is_empty(("", "")) for of in data.values())
    assert [data[needed].texts() for needed in (False, True)] == [["who", "when"], ["who", "when", "it is here"]]
