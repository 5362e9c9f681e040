"""Tests that labels are names or indices for all splits together, and labels without a clear meaning are refused."""

from pathlib import Path
from typing import Any

import datasets
import pytest

from distill.core.errors import UserError
from distill.data.splits import LabelledData
from distill.kinds import Classification, Regression
from distill.rows.labels import LabelColumn, find_classes, natural_key, sort_classes, to_numbers
from tests.data.conftest import Printed

RATINGS = ["1", "2", "3", "4", "5"]


def table(values: list[Any], names: list[str] | None = None) -> datasets.Dataset:
    """Returns examples with these labels, of a `datasets.ClassLabel` if it has names. All texts are different."""
    texts = [f"text {index} of {len(values)}" for index in range(len(values))]
    data = datasets.Dataset.from_dict({"text": texts, "label": values})
    return data if names is None else data.cast_column("label", datasets.ClassLabel(names=names))


def read(train: Any, dev: Any, test: Any = None, *, kind: Any = Classification, **options: Any) -> LabelledData:
    """Reads examples with these labels."""
    splits = {"train": train, "dev": dev} if test is None else {"train": train, "dev": dev, "test": test}
    tables = {name: table(values) if isinstance(values, list) else values for name, values in splits.items()}
    data: LabelledData = kind(text="text", **tables, **options).read(Path("nowhere"))
    return data


def indices(data: LabelledData) -> dict[str, list[int]]:
    return {name: split.labels.tolist() for name, split in data.splits.items()}


# Names and indices


INDICES = "the labels 0, 1, 2, 3, 4 are read as indices of classes and not as names, because not all of them are names"
NAMED = "the labels 1, 2, 3, 4 are read as names of classes and not as indices: 1 is the class 1, not 2"
WHOLE = "the labels -2.0, 4.0, 10.0 are read as the whole numbers -2, 4, 10, because programs write them so in a"


@pytest.mark.parametrize(
    ("train", "dev", "labels", "expected", "notice"),
    [
        ([0, 1, 2, 3, 4], [4, 1], RATINGS, [0, 1, 2, 3, 4, 4, 1], INDICES),
        ([0, 1, 2, 3, 4], ["1", "2"], RATINGS, [0, 1, 2, 3, 4, 1, 2], INDICES),  # It follows from all splits.
        ([1, 2, 3, 4], [1.0, 2.0], RATINGS, [0, 1, 2, 3, 0, 1], NAMED),
        ([0, 1], [1], [0, 1], [0, 1, 1], None),
        ([0.0, 1.0], [1, 0], None, [0, 1, 1, 0], "the labels 0.0 and 0 are read as one class"),
        ([4.0, 10.0, -2.0], [4.0], None, [1, 2, 0, 1], WHOLE),
        ([1.0, 2.0], [2], ["2", "1"], [1, 0, 0], None),
        ([0.0, 1.0], [1], ["no", "yes"], [0, 1, 1], None),
        ([0, 1], [1], [1.0, 0.0], [1, 0, 0], "the labels"),
        (["1.x", "1.9", "1.10"], ["1.9"], None, [2, 1, 0, 1], None),
    ],
)
def test_numbers_are_names_or_indices_of_classes_and_a_notice_says_which(
    train: list[Any], dev: list[Any], labels: Any, expected: list[int], notice: str | None, printed: Printed
) -> None:
    data = read(train, dev, labels=labels)
    assert [*data.splits["train"].labels, *data.splits["dev"].labels] == expected
    output = printed()
    assert notice in output if notice else "the labels" not in output


def test_a_file_to_evaluate_may_have_both_spellings_of_whole_numbers_and_no_nan() -> None:
    column = LabelColumn("dev.csv", ["10.0", "4", "4.0", "10"])
    for names in (("4", "10"), ("4.0", "10.0")):
        assert find_classes(column, names, print).tolist() == [1, 0, 0, 1]
    with pytest.raises(UserError, match=r"dev.csv, example 2: label 'nan' is no number"):
        to_numbers(LabelColumn("dev.csv", ["1.5", "nan"]))


@pytest.mark.parametrize("word", ["nan", "NA", "-"])
def test_a_word_for_a_missing_label_is_a_class_only_if_it_is_named(word: str, printed: Printed) -> None:
    values = ["good", word, "bad"]
    data = read(values, ["good"])
    assert (data.labels, data.pool.rows.texts) == (("bad", "good"), ["text 1 of 3"])
    output = printed()
    assert f"the split train: 1 of 3 rows has no label, for which {word} counts too (example 2): only the" in output
    assert f"if {word} is a class, name all with task.labels=[{word},...]" in output
    with pytest.raises(UserError, match=r"has no label, for which .* \(example 2\): set task\.missing=drop to leave"):
        read(values, ["good"], missing="error")
    message = f"the split train, example 2: label {word} often marks an example without a label: remove these rows, or "
    with pytest.raises(UserError, match=message):
        read(values[:2], ["good"])  # One class alone would be left.
    lists = [["good", word], ["bad"]]
    with pytest.raises(UserError, match=message.replace("example 2", "example 1")):
        read(lists, [["good"]], multi_label=True)
    assert read(values, ["good"], labels=values).labels == tuple(values)
    assert read(table([0, 1, 2], values), ["good"]).labels == tuple(values)


@pytest.mark.parametrize(
    "classes",
    [
        ["-1", "1", "2", "2.5", "9", "10"],
        ["01", "1", "1.0"],
        ["1 star", "9 stars", "10 stars", "no stars"],
        ["9", "10", "a", "no"],
        [],
    ],
)
def test_numbers_in_classes_are_in_the_order_of_their_values(classes: list[str]) -> None:
    assert sort_classes(sorted(classes, reverse=True)) == classes


def test_numbers_in_names_are_in_the_order_of_their_values() -> None:
    names = ["temperature=10 weight=1", "temperature=2.5", "temperature=2", "layers=3"]
    assert sorted(names, key=natural_key) == [*reversed(names)]


# The names of a data set


def test_a_class_label_gives_its_names_in_its_order() -> None:
    names = ["pos", "neg", "none"]
    data = read(table([1, 0, 1], names), table([0], names))
    assert data.labels == tuple(names)
    assert indices(data) == {"train": [1, 0, 1], "dev": [0]}
    assert indices(read(table([1, 0], names), [2, 1]))["dev"] == [2, 1]
    assert indices(read(table([1, 0], names), ["none", "neg"]))["dev"] == [2, 1]
    assert indices(read(table([1, 0], names), table([1, 0], ["neg", "pos"])))["dev"] == [0, 1]
    formatted = table([1, 0], names).with_format("torch")
    assert indices(read(formatted, formatted)) == {"train": [1, 0], "dev": [1, 0]}


def test_the_names_of_the_task_replace_those_of_a_class_label() -> None:
    train, dev = table([1, 0], ["neg", "pos"]), table([1], ["neg", "pos"])
    assert read(train, dev, labels=["bad", "good"]).labels == ("bad", "good")
    assert indices(read(train, dev, labels=["bad", "good"])) == {"train": [1, 0], "dev": [1]}
    assert indices(read(train, dev, labels=["neg", "good"])) == {"train": [1, 0], "dev": [1]}
    assert indices(read(train, dev, labels=["pos", "neg"])) == {"train": [0, 1], "dev": [0]}  # The same words.
    assert indices(read(train, [1, 0], labels=["bad", "good"]))["dev"] == [1, 0]


def test_examples_of_a_class_label_without_a_label_are_left_out(printed: Printed) -> None:
    names = ["neg", "pos"]
    data = read(table([1, -1, 0, -1], names), table([0, -1], names), table([-1, -1], names))
    assert indices(data) == {"train": [1, 0], "dev": [0]}
    assert data.splits["train"].texts == ["text 0 of 4", "text 2 of 4"]
    assert data.pool.rows.texts == ["text 1 of 4", "text 3 of 4"]
    assert "the split train: 2 of 4 rows have no label, for which -1 counts too (examples 2 and 4): only" in printed()
    held_out = Classification(text="text", data=table([0, 1] * 10 + [-1], names)).read(Path("nowhere"))
    assert held_out.sizes() == {"train": 18, "dev": 2}


def test_the_classes_of_a_parquet_file_are_those_of_its_data_set(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        table([1, 0, -1], ["no", "maybe"]).to_parquet(str(tmp_path / f"{split}.parquet"))
    data = Classification(text="text", data=tmp_path).read(tmp_path)
    assert data.labels == ("no", "maybe")
    assert indices(data) == {"train": [1, 0], "dev": [1, 0]}


def test_a_test_split_whose_labels_are_all_empty_is_left_out() -> None:
    for values in ([-1, -1], [-1.0], [None, None], ["", " "], ["-1"]):
        assert set(read([0, 1], [1], values).splits) == {"train", "dev"}


# Errors

ERROR: dict[str, Any] = {"missing": "error"}
REFUSED: dict[str, tuple[list[Any], list[Any], dict[str, Any], str]] = {
    "an index beyond the names": (
        [0, 1], [2], {"labels": ["no", "yes"]},
        "the split dev, example 1: label '2' is unknown, expected one of no, yes, or all labels from 0 to 1",
    ),
    "names and indices": (
        ["no", "yes"], [0, 1], {"labels": ["no", "yes"]},
        "the split dev, example 1: label 0 is an index and no of the split train, example 1 a name, expected only",
    ),
    "a name that the task lacks": (
        ["no", "yes"], ["no", "maybe"], {"labels": ["no", "yes"]},
        "the split dev, example 2: label 'maybe' is unknown, expected one of no, yes, or",
    ),
    "white space after a label": (
        ["pos", "neg"], ["pos", "pos "], {},
        "the split dev, example 2: label 'pos ' looks like 'pos' of the split train, example 1, expected one of them",
    ),
    "an invisible character": (["pos", "neg", "\u200bpos"], ["pos"], {}, r"label '\u200bpos' looks like 'pos'"),
    "-1 among indices": (
        [0, 1, -1], [0], {},
        "the split train, example 3: label -1 often marks an example without a label: remove these rows, or name the "
        "classes with task.labels=[-1,0,1]",
    ),
    "-1 as a float": ([0.0, -1.0, 1.0], [1.0], {}, "the split train, example 2: label -1.0 often marks an example"),
    "-1 where the task names others": ([0, 1, -1], [0], {"labels": ["a", "b"], **ERROR}, "-1 counts too (example 3)"),
    "no label": (["a", "b", None], ["a"], ERROR, "the split train: 1 of 3 rows has no label (example 3): set task.mis"),
    "a label that is not a number": ([0.0, 1.0, float("nan")], [0.0], ERROR, "1 of 3 rows has no label (example 3)"),
    "an infinite label": ([0.0, 1.0, float("inf")], [0.0], {}, "label inf is no name and no number of a class"),
    "a list as a label": ([[0], [1]], [[0]], {}, "example 1: label [0] is no name and no number of a class"),
    "a boolean as a number": ([True, False], [True], {"kind": Regression}, "a label that is no number, True"),
    "a number beyond float32": ([1e39, 2.0], [1.0], {"kind": Regression}, "a label that is no number, 1e+39"),
    "a decimal comma": (["1,5", "2"], ["1"], {"kind": Regression}, "label that is no number, '1,5'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_labels_without_a_clear_meaning_are_refused(case: str) -> None:
    train, dev, options, message = REFUSED[case]
    with pytest.raises(UserError) as caught:
        read(train, dev, **options)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 2


def test_other_names_than_those_of_a_class_label_are_refused() -> None:
    for own, given in ((["neg", "pos"], ["pos", "other"]), (["neg", "neutral", "pos"], ["bad", "good"])):
        with pytest.raises(UserError, match="expected the same names, or as many others in the same order"):
            read(table([1, 0], own), table([1], own), labels=given)
    names = ["neg", "pos"]
    none = "the split train has no row with a text and a label: 0 of 2 have no text, and 2 others no"
    with pytest.raises(UserError, match=none):
        read(table([-1, -1], names), table([0], names))
    with pytest.raises(UserError, match="the split dev, example 1: label '2' is unknown, expected one of neg, pos"):
        read(table([0, 1], names), [2])


def test_a_number_and_a_text_as_labels_of_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text('{"text": "a", "label": 1}\n')
    for values in ('0, "one"', '0, "0"', "0, true", '"true", true'):
        first, second = values.split(", ")
        (tmp_path / "train.jsonl").write_text(
            f'{{"text": "a", "label": {first}}}\n{{"text": "b", "label": {second}}}\n'
        )
        with pytest.raises(
            UserError,
            match=r"train\.jsonl: of 2 rows 1 has .* \(line 1\) and 1 has .* \(line 2\): expected labels of one",
        ):
            Classification(text="text", data=tmp_path).read(tmp_path)
