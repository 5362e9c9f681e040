"""Do the data arrive whole: every row read, every example once an epoch, mistakes told in one line?"""

import gzip
import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from distill import data
from distill.data import Examples, LengthBuckets, Split, TaskData
from distill.errors import UnreachableError, UserError
from distill.tasks import SequenceTask
from tests.conftest import sentences

Row = tuple[Any, ...]
# Each of them has been lost, split or turned into nothing by a reader's guess.
AWKWARD = ('he said "no', '""', "NA", "null", "nan", "007", "a, b", "  spaced  ", "1e5", "#no comment", "it's")
TEXTS = (*AWKWARD, "caf\u00e9 \u2014 \u4f60\u597d")
ROWS: list[Row] = [(text, index % 2) for index, text in enumerate(TEXTS)]
DEV: list[Row] = [("good", 1), ("bad", 0)]
NUMBER = {"regression": True, "metrics": ["pearson"]}


def tsv(rows: list[Row], header: str = "sentence\tlabel") -> str:
    return "\n".join([header, *("\t".join(map(str, row)) for row in rows)]) + "\n"


def csv(rows: list[Row]) -> str:
    quoted = ('"' + str(text).replace('"', '""') + f'",{label}' for text, label in rows)
    return "\n".join(["sentence,label", *quoted]) + "\n"


def jsonl(rows: list[Row]) -> str:
    return "".join(json.dumps({"sentence": text, "label": label}) + "\n" for text, label in rows)


WRITERS: dict[str, Callable[[list[Row]], str]] = {".tsv": tsv, ".csv": csv, ".jsonl": jsonl}


def write(path: Path, rows: list[Row]) -> None:
    """In the format that the name asks for."""
    if path.suffix == ".parquet":
        import datasets

        texts, labels = zip(*rows, strict=True)
        datasets.Dataset.from_dict({"sentence": texts, "label": labels}).to_parquet(str(path))
        return
    content = WRITERS[path.name.removesuffix(".gz")[path.name.index(".") :]](rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TaskData]:
    """Writes files into a directory and reads it: contents by name, and options of the task."""

    def reading(files: dict[str, str | list[Row]], **options: Any) -> TaskData:
        directory = tmp_path / "data"
        directory.mkdir(exist_ok=True)
        for name, content in files.items():
            if isinstance(content, str):
                (directory / name).write_text(content, encoding="utf-8")
            else:
                write(directory / name, content)
        options = {"name": "toy", "text": ["sentence"], "data_dir": str(directory)} | options
        return data.read(SequenceTask(**options), cache_dir=tmp_path / "cache")

    return reading


Read = Callable[..., TaskData]

# Files


@pytest.mark.parametrize("suffix", data.SUFFIXES)
def test_every_format_is_read_whole(read: Read, suffix: str):
    splits = read({f"train{suffix}": ROWS, f"dev{suffix}": DEV}).splits
    assert splits["train"].texts == list(TEXTS)
    assert splits["train"].labels.tolist() == [label for _, label in ROWS]
    assert splits["train"].pairs is None
    assert splits["dev"].texts == ["good", "bad"]


def test_a_byte_order_mark_is_no_part_of_the_first_column(read: Read):
    splits = read({"train.csv": "\ufeff" + csv(ROWS), "dev.tsv": "\ufeff" + tsv(DEV)}).splits
    assert (splits["train"].texts, splits["dev"].texts) == (list(TEXTS), ["good", "bad"])


def test_validation_is_a_name_of_dev(read: Read):
    found = read({"train.tsv": ROWS, "validation.tsv": DEV, "test.tsv": [("fine", 1)]})
    assert found.splits["dev"].texts == ["good", "bad"]
    assert found.splits["test"].labels.tolist() == [1]


def test_a_test_split_without_labels_counts_as_absent(read: Read):
    assert set(read({"train.tsv": ROWS, "dev.tsv": DEV, "test.tsv": [("a", -1), ("b", -1)]}).splits) == {"train", "dev"}


def test_a_pair_has_two_columns(read: Read):
    header = "question\tanswer\tlabel\n"
    files = {"train.tsv": header + "q1\ta1\t0\nq2\ta2\t1\n", "dev.tsv": header + "q3\ta3\t1\n"}
    found = read(files, text=["question", "answer"]).splits
    assert (found["train"].texts, found["train"].pairs) == (["q1", "q2"], ["a1", "a2"])
    assert (found["dev"].texts, found["dev"].pairs) == (["q3"], ["a3"])


# Labels


def test_labels_by_name_are_in_the_order_of_the_alphabet(read: Read):
    found = read({"train.tsv": [("a", "pos"), ("b", "neg"), ("c", "neutral")], "dev.tsv": [("d", "pos"), ("e", "neg")]})
    assert found.labels == ("neg", "neutral", "pos")
    assert found.splits["train"].labels.tolist() == [2, 0, 1]
    assert found.splits["dev"].labels.tolist() == [2, 0]


def test_labels_by_number_are_in_the_order_of_their_values(read: Read):
    found = read({"train.tsv": [("a", 10), ("b", 9), ("c", -2)], "dev.tsv": [("d", 10)]})
    assert found.labels == ("-2", "9", "10")
    assert found.splits["train"].labels.tolist() == [2, 1, 0]
    assert found.splits["dev"].labels.tolist() == [2]


def test_the_training_split_decides_whatever_dev_holds(read: Read):
    found = read({"train.tsv": [("a", "x"), ("b", "y")], "dev.tsv": [("c", "y")]})
    assert found.labels == ("x", "y")
    assert found.splits["dev"].labels.tolist() == [1]


def test_numbers_stand_for_the_names_that_the_task_gives(read: Read):
    names = ["negative", "positive"]
    found = read({"train.tsv": [("a", 1), ("b", 0)], "dev.tsv": [("c", "positive"), ("d", "negative")]}, labels=names)
    assert found.labels == tuple(names)
    assert found.splits["train"].labels.tolist() == [1, 0]
    assert found.splits["dev"].labels.tolist() == [1, 0]


# Mistakes


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (
            {"train.tsv": ROWS},
            {},
            r"has no dev or validation file \(found train\.tsv\), expected dev or",
        ),
        ({"dev.tsv": DEV}, {}, r"has no train file \(found dev\.tsv\), expected train with one of \.tsv, \.csv"),
        ({}, {}, r"has no train file \(found nothing\)"),
        ({"train.tsv": "", "dev.tsv": DEV}, {}, r"train\.tsv is empty, expected a header and examples"),
        ({"train.tsv": "sentence\tlabel\n", "dev.tsv": DEV}, {}, r"train\.tsv has a header and no examples"),
        ({"train.tsv": ROWS, "dev.tsv": "sentence\tlabel\n"}, {}, r"dev\.tsv has a header and no examples"),
        (
            {"train.tsv": ROWS, "dev.tsv": DEV},
            {"text": ["text"], "label": "class"},
            r"train\.tsv has no column text, class: it has sentence, label; name yours with task\.text=",
        ),
        (
            {"train.tsv": ROWS, "dev.tsv": "sentence\tkind\na\t1\n"},
            {},
            r"dev\.tsv has no column label: it has sentence, kind",
        ),
        (
            {"train.tsv": ROWS, "dev.tsv": [("good", 1), ("odd", 2)]},
            {},
            r"dev\.tsv, example 2: label '2' is unknown, expected one of 0, 1",
        ),
        (
            {"train.tsv": [("a", "yes"), ("b", "no")], "dev.tsv": DEV},
            {},
            r"dev\.tsv, example 1: label '1' is unknown, expected one of no, yes",
        ),
        (
            {"train.tsv": [("a", 1), ("b", 1)], "dev.tsv": DEV},
            {},
            r"train\.tsv has one class only \(1\)",
        ),
        (
            {"train.tsv": [("a", 1), ("  ", 0)], "dev.tsv": DEV},
            {},
            r"train\.tsv, example 2: column sentence is '  ', expected text",
        ),
        (
            {"train.jsonl": '{"sentence": 3, "label": 0}\n{"sentence": 4, "label": 1}\n', "dev.tsv": DEV},
            {},
            r"train\.jsonl, example 1: column sentence is 3, expected text",
        ),
        ({"train.jsonl": "no json\n", "dev.tsv": DEV}, {}, r"train\.jsonl cannot be read: "),
        ({"train.tsv": "sentence\tlabel\na\t0\n\tb\t1\n", "dev.tsv": DEV}, {}, r"train\.tsv cannot be read: "),
        ({"train.tsv": "sentence\tlabel\na\t0\tmore\nb\t1\tx\n", "dev.tsv": DEV}, {}, r"train\.tsv cannot be read: "),
        ({"train.tsv.gz": "no gzip\n", "dev.tsv": DEV}, {}, r"train\.tsv\.gz cannot be read: "),
        ({"train.parquet": "no parquet\n", "dev.tsv": DEV}, {}, r"train\.parquet cannot be read: "),
        ({"train.tsv": [("a", 0), ("b", 1), ("c", "")], "dev.tsv": DEV}, {}, r"train\.tsv, example 3: label "),
        ({"train.tsv": "sentence\tlabel\na\t0\nb\nc\t1\n", "dev.tsv": DEV}, {}, r"train\.tsv, example 2: label "),
        ({"train.jsonl": [("a", 0), ("b", 1), ("c", None)], "dev.tsv": DEV}, {}, r"train\.jsonl, example 3: label "),
        (
            {"train.jsonl": [("a", 0), ("b", "one")], "dev.tsv": DEV},
            {},
            r"label '1' is unknown, expected one of 0, one",
        ),
        (
            {"train.tsv": [("a", "3.5"), ("b", "good")], "dev.tsv": DEV},
            NUMBER,
            r"train\.tsv, example 2: label 'good' is no number; for classes take task=classification",
        ),
        ({"train.tsv": [("a", "3.5"), ("b", "nan")], "dev.tsv": DEV}, NUMBER, r"example 2: label 'nan' is no number"),
        ({"train.jsonl": [("a", 3), ("b", None)], "dev.tsv": DEV}, NUMBER, r"example 2: label None is no number"),
    ],
)
def test_a_mistake_in_the_files_is_told(read: Read, files: Any, options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message) as told:
        read(files, **options)
    assert told.value.exit_code == 2


def test_a_directory_that_is_not_there_is_told(read: Read):
    with pytest.raises(UserError, match=r"task\.data_dir=/nowhere does not exist, expected a directory with train"):
        read({}, data_dir="/nowhere")


def test_a_task_without_data_says_what_to_give(read: Read):
    with pytest.raises(UserError, match=r"task toy has no data of its own: give task\.data_dir=DIR"):
        read({}, data_dir=None)


def test_broken_characters_are_told(read: Read, tmp_path: Path):
    read({"train.tsv": ROWS, "dev.tsv": DEV})
    (tmp_path / "data" / "dev.tsv").write_bytes("sentence\tlabel\ncaf\u00e9\t1\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"dev\.tsv cannot be read: .*utf-8"):
        read({})


# Numbers


def test_numbers_are_read_as_they_stand(read: Read):
    found = read({"train.csv": csv([("a", "2.500"), ("b", "-1"), ("c", "1e1")]), "dev.tsv": [("d", 3)]}, **NUMBER)
    assert found.labels == ("label",)
    assert found.splits["train"].labels.tolist() == [2.5, -1.0, 10.0]
    assert found.splits["train"].labels.dtype == np.float32


def test_the_first_label_column_that_is_there_is_the_label(read: Read):
    files = {"train.tsv": "sentence\tscore\na\t1\nb\t2\n", "dev.tsv": "sentence\tscore\na\t1\n"}
    found = read(files, **NUMBER, label=["label", "score"])
    assert found.labels == ("score",)
    with pytest.raises(UserError, match=r"has no column label or mark: it has sentence, score"):
        read({}, **NUMBER, label=["label", "mark"])


# Splits


def test_a_split_has_the_names_that_the_task_gives_it(read: Read):
    files = {"train.tsv": ROWS, "dev_matched.tsv": DEV, "dev_mismatched.tsv": DEV[::-1], "test.tsv": DEV}
    found = read(files, splits={"dev": ["matched", "dev_matched"], "mismatched": ["dev_mismatched"]})
    assert list(found.scored()) == ["dev", "test", "mismatched"]
    assert found.scored_labels()["mismatched"].tolist() == [0, 1]


def test_a_test_split_without_a_label_column_counts_as_absent(read: Read):
    files = {"train.tsv": ROWS, "dev.tsv": DEV, "test.tsv": "sentence\na\n"}
    assert set(read(files).splits) == {"train", "dev"}


def test_dev_is_taken_from_a_single_file_class_by_class(read: Read, tmp_path: Path):
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
    numbers = read({}, data_dir=str(_numbered(tmp_path)), dev_fraction=0.3, **NUMBER)
    assert len(numbers.splits["dev"]) == 3


def _numbered(directory: Path) -> Path:
    write(directory / "numbers.tsv", [(f"text {index}", index / 2) for index in range(10)])
    return directory / "numbers.tsv"


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("mine.tsv", [("a", 0), ("b", 0), ("c", 1)], r"cannot be split with task\.dev_fraction=0\.1 so that train"),
        ("mine.txt", None, r"mine\.txt is of no known kind, expected one of \.tsv, \.csv"),
        ("mine.csv", "text,label\na,1\nb,0\n", r"mine\.csv has no column sentence: it has text, label"),
    ],
)
def test_a_single_file_that_does_not_do_is_told(read: Read, tmp_path: Path, name: str, rows: Any, message: str):
    file = tmp_path / name
    if isinstance(rows, list):
        write(file, rows)
    else:
        file.write_text(rows or "anything")
    with pytest.raises(UserError, match=message):
        read({}, data_dir=str(file))


# The Hub's cache


def cached(root: Path, splits: dict[str, list[Row]]) -> None:
    """Lay out in `root` what the loader keeps of the configuration `toy` of `owner/films`."""
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


def test_a_data_set_of_the_hub_is_found_in_its_cache(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    options = {"data_dir": None, "hub_id": "owner/films:toy"}
    with pytest.raises(
        UnreachableError, match=r"data set owner/films:toy is neither in the cache nor .* task\.data_dir"
    ):
        read({}, **options)
    cached(tmp_path / "hub", {"train": ROWS, "validation": DEV, "test": [("a", -1)]})
    found = read({}, **options)
    assert set(found.splits) == {"train", "dev"}
    assert found.splits["train"].texts == list(TEXTS)
    assert found.splits["dev"].labels.tolist() == [1, 0]


def test_a_data_set_of_the_hub_without_dev_is_told(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    cached(tmp_path / "hub", {"train": ROWS})
    with pytest.raises(UserError, match=r"owner/films:toy has no split dev or validation: it has train"):
        read({}, data_dir=None, hub_id="owner/films:toy")


# What is read is the same each time


def test_a_sample_is_the_same_every_time_and_keeps_text_and_label_together(read: Read):
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


def test_the_digest_changes_with_the_content_alone(read: Read):
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


# Buckets

quick = settings(max_examples=60, deadline=None, derandomize=True)
some_lengths = st.lists(st.integers(3, 128), min_size=1, max_size=200).map(np.array)
sizes = {"batch_size": st.integers(1, 20), "accumulate": st.integers(1, 4), "pool": st.integers(1, 5)}


@quick
@given(some_lengths, st.fixed_dictionaries(sizes), st.booleans(), st.integers(0, 3))
def test_every_example_comes_once_an_epoch(lengths: np.ndarray, sizes: dict[str, int], shuffle: bool, epoch: int):
    buckets = LengthBuckets(lengths, **sizes, shuffle=shuffle)
    buckets.set_epoch(epoch)
    steps = list(buckets)
    assert sorted(chain(*chain(*steps))) == list(range(len(lengths)))
    assert len(steps) == len(buckets)
    assert all(len(step) == sizes["accumulate"] for step in steps[:-1])
    assert all(1 <= len(micro_batch) <= sizes["batch_size"] for step in steps for micro_batch in step)


def test_the_order_follows_from_seed_and_epoch():
    lengths = np.random.default_rng(0).integers(3, 128, size=100)

    def order(seed: int, epoch: int) -> list[list[list[int]]]:
        buckets = LengthBuckets(lengths, batch_size=8, seed=seed)
        buckets.set_epoch(epoch)
        return list(buckets)

    assert order(0, 0) == order(0, 0)
    assert len({str(order(seed, epoch)) for seed, epoch in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))}) == 5


def test_the_global_random_state_has_no_part_in_the_order():
    lengths = np.arange(3, 103)
    orders = []
    for seed in (0, 1):
        np.random.seed(seed)
        torch.manual_seed(seed)
        orders.append(list(LengthBuckets(lengths, batch_size=8)))
    assert orders[0] == orders[1]


def padded(lengths: np.ndarray, steps: list[list[list[int]]]) -> int:
    return sum(len(micro_batch) * max(lengths[micro_batch]) for step in steps for micro_batch in step)


def test_buckets_pad_less_than_a_random_order():
    random = np.random.default_rng(0)
    lengths = random.geometric(0.05, size=1000) + 2
    shuffled = [[chunk.tolist()] for chunk in np.array_split(random.permutation(1000), 63)]
    waste = [
        padded(lengths, steps) / lengths.sum() - 1 for steps in (list(LengthBuckets(lengths, batch_size=16)), shuffled)
    ]
    assert waste[0] < 0.2 * waste[1]


def test_buckets_are_drawn_anew_so_that_examples_meet_others():
    lengths = np.full(64, 9)
    buckets = LengthBuckets(lengths, batch_size=8)
    companions = set()
    for epoch in range(3):
        buckets.set_epoch(epoch)
        companions |= {frozenset(micro_batch) for step in buckets for micro_batch in step if 0 in micro_batch}
    assert len(companions) == 3


def test_without_shuffling_the_longest_come_first():
    lengths = np.array([5, 9, 3, 9, 7])
    assert list(LengthBuckets(lengths, batch_size=2, shuffle=False)) == [[[1, 3]], [[4, 0]], [[2]]]


@pytest.mark.parametrize("sizes", [{"batch_size": 0}, {"batch_size": 4, "accumulate": 0}])
def test_buckets_of_nothing_are_refused(sizes: dict[str, int]):
    with pytest.raises(UserError, match="expected at least 1 of each"):
        LengthBuckets(np.arange(9), **sizes)


# Batches


TASK = SequenceTask(name="toy", text=["sentence"])


def split_of(*texts: str, pairs: list[str] | None = None) -> Split:
    return Split(texts=list(texts), pairs=pairs, labels=np.arange(len(texts)) % 2)


def test_a_batch_is_padded_to_its_own_longest_example(tokenizer: PreTrainedTokenizerBase):
    examples = Examples(split_of("a film", "a lovely and moving film", "dull"), tokenizer, 128)
    steps = list(data.loader(examples, TASK, tokenizer, [[[1, 0], [2]]]))  # type: ignore[arg-type]
    (batch, single) = steps[0]
    lengths = examples.lengths.tolist()
    assert batch.keys() == {"input_ids", "attention_mask", "token_type_ids", "labels", "items", "example_id"}
    assert [batch[name].shape for name in ("input_ids", "attention_mask", "token_type_ids")] == [(2, lengths[1])] * 3
    assert single["input_ids"].shape == (1, lengths[2])
    assert batch["attention_mask"].sum(dim=1).tolist() == [lengths[1], lengths[0]]
    assert (batch["input_ids"][1, lengths[0] :] == tokenizer.pad_token_id).all()
    assert (batch["labels"].tolist(), batch["example_id"].tolist()) == ([1, 0], [1, 0])
    assert batch["items"].tolist() == [True, True]
    assert {name: batch[name].dtype for name in ("input_ids", "labels", "items")} == {
        "input_ids": torch.int64,
        "labels": torch.int64,
        "items": torch.bool,
    }
    assert tokenizer.decode(batch["input_ids"][0], skip_special_tokens=True) == "a lovely and moving film"


def test_the_second_text_of_a_pair_has_token_type_one(tokenizer: PreTrainedTokenizerBase):
    examples = Examples(split_of("a film", "dull", pairs=["i loved every minute", "a bore"]), tokenizer, 128)
    (batch,) = next(iter(data.loader(examples, TASK, tokenizer, [[[0, 1]]])))  # type: ignore[arg-type]
    first = len(tokenizer("a film")["input_ids"])
    total = int(examples.lengths[0])
    assert batch["token_type_ids"][0].tolist() == [0] * first + [1] * (total - first)
    assert batch["token_type_ids"][1].sum() == len(tokenizer("a bore")["input_ids"]) - 1
    assert not batch["token_type_ids"][1][~batch["attention_mask"][1].bool()].any()


def test_what_was_cut_is_counted(tokenizer: PreTrainedTokenizerBase):
    texts = ("a film", "a lovely and moving film", "a dull and lifeless mess")
    whole = Examples(split_of(*texts), tokenizer, 128)
    assert whole.truncated == 0
    longest = int(whole.lengths.max())
    assert Examples(split_of(*texts), tokenizer, longest).truncated == 0
    cut = Examples(split_of(*texts), tokenizer, 5)
    assert cut.truncated == 2
    assert cut.lengths.max() == 5
    pairs = Examples(split_of("a film", "a lovely and moving film", pairs=["a joy"] * 2), tokenizer, 8)
    assert (pairs.truncated, pairs.lengths.max()) == (1, 8)


def test_dev_comes_longest_first_and_whole(tokenizer: PreTrainedTokenizerBase):
    texts = [text for text, _ in sentences(24)]
    examples = Examples(split_of(*texts), tokenizer, 128)
    batches = [batch for step in data.evaluation_loader(examples, TASK, tokenizer, 5) for batch in step]
    assert sorted(chain(*(batch["example_id"].tolist() for batch in batches))) == list(range(24))
    widths = [batch["input_ids"].shape[1] for batch in batches]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == examples.lengths.max()


def test_the_loaders_of_a_training(read: Read, tokenizer: PreTrainedTokenizerBase):
    rows = sentences(22)
    splits = read({"train.tsv": rows, "dev.tsv": rows[:6]})
    loaders = data.loaders(splits, TASK, tokenizer, batch_size=4, accumulate=2, seed=0)
    steps = list(loaders["train"])
    assert len(steps) == len(loaders["train"]) == 3  # six micro-batches, two a step
    for batch in chain(*steps):
        for ids, mask, label, example in zip(
            *(batch[name] for name in ("input_ids", "attention_mask", "labels", "example_id")), strict=True
        ):
            text, expected = rows[example]
            assert ids[mask.bool()].tolist() == tokenizer(text)["input_ids"]
            assert label == expected
    assert sum(len(batch["example_id"]) for step in loaders["dev"] for batch in step) == 6
