"""Tests of the reader of tagged words: every source gives the same data, and bad input is named in one line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow.parquet
import pytest

from distill.core import storage
from distill.core.errors import OptionError, UserError
from distill.data.splits import LabelledData
from distill.kinds import TokenClassification
from distill.kinds.token_classification import place_sentences
from tests.data.conftest import Printed

NOWHERE = Path("unused")
WORDS = [["fly", "to", "new", "york"], ["now"], ["on", "monday"]]
TAGS = [["O", "O", "B-city", "I-city"], ["O"], ["O", "B-day"]]
NAMES = ("O", "B-city", "B-day", "I-city")
NUMBERS = [[NAMES.index(tag) for tag in tags] for tags in TAGS]
DEV = (WORDS[1:], TAGS[1:])
CLASSES = datasets.Features(
    {"tokens": datasets.List(datasets.Value("string")), "tags": datasets.List(datasets.ClassLabel(names=list(NAMES)))}
)
# The training sentences in every form in memory.
FORMS: dict[str, Any] = {
    "lists": (WORDS, TAGS),
    "columns": {"tokens": WORDS, "tags": TAGS},
    "pandas": pandas.DataFrame({"tokens": WORDS, "tags": TAGS}, index=[5, 3, 4]),
    "arrays in pandas": pandas.DataFrame({"tokens": map(np.array, WORDS), "tags": map(np.array, TAGS)}),
    "datasets": datasets.Dataset.from_dict({"tokens": WORDS, "tags": TAGS}),
    "class labels": datasets.Dataset.from_dict({"tokens": WORDS, "tags": NUMBERS}, features=CLASSES),
}


def read(**options: Any) -> LabelledData:
    return TokenClassification(**options).read(NOWHERE)


def content(data: LabelledData) -> Any:
    """Returns the words and the names of the tags of every split."""
    return {
        name: [
            [(word, data.labels[tag]) for word, tag in zip(words, tags, strict=True)]
            for words, tags in zip(split["words"], split["tags"], strict=True)
        ]
        for name, split in data.splits.items()
    }


def conll(words: list[list[str]], tags: list[list[str]], line: str = "{} {}\n", end: str = "\n") -> str:
    rows = zip(words, tags, strict=True)
    return end.join("".join(line.format(*pair) for pair in zip(*row, strict=True)) for row in rows)


def jsonl(words: list[list[str]], tags: list[Any]) -> str:
    return "".join(json.dumps({"tokens": w, "tags": t, "id": 7}) + "\n" for w, t in zip(words, tags, strict=True))


def write_parquet(path: Path, data: datasets.Dataset) -> None:
    pyarrow.parquet.write_table(data.data.table, path)


ReadConll = Callable[..., LabelledData]


@pytest.fixture
def read_conll(tmp_path: Path) -> ReadConll:
    """Writes the text of train, and of dev if it has another one, and reads both."""

    def write_and_read(train: str, dev: str | None = None, **options: Any) -> LabelledData:
        for name, text in (("train", train), ("dev", train if dev is None else dev)):
            (tmp_path / f"{name}.conll").write_bytes(text.encode())
        return read(data=tmp_path, **options)

    return write_and_read


EXPECTED = read(train=(WORDS, TAGS), dev=DEV)


@pytest.mark.parametrize("form", FORMS)
def test_sentences_in_memory_are_the_same_in_every_form(form: str) -> None:
    data = read(train=FORMS[form], dev=DEV)
    assert data.labels == NAMES
    assert content(data) == content(EXPECTED)
    assert data.sha256 == EXPECTED.sha256


@pytest.mark.parametrize("name", ["train.conll", "train.txt.gz", "train.jsonl", "train.jsonl.gz", "train.parquet"])
def test_files_are_the_same_in_every_format(name: str, tmp_path: Path) -> None:
    (tmp_path / "validation.txt").write_text(conll(*DEV), encoding="utf-8")
    if name.endswith("parquet"):
        write_parquet(tmp_path / name, FORMS["class labels"])
    else:
        text = jsonl(WORDS, TAGS) if "jsonl" in name else conll(WORDS, TAGS)
        (gzip.open if name.endswith("gz") else open)(tmp_path / name, "wb").write(text.encode())
    data = read(data=tmp_path)
    assert content(data) == content(EXPECTED)
    assert data.sha256 == EXPECTED.sha256


@pytest.mark.parametrize(
    "text",
    [
        conll(WORDS, TAGS, "{0}\tx\t{1}\ty\n"),  # Other columns.
        "-DOCSTART- x O y\n\n" + conll(WORDS, TAGS, "{0} x {1} y\n", end=" \n\n-DOCSTART- x O y\n"),
        "\ufeff" + conll(WORDS, TAGS, "{0} x {1} y\r\n", end="\r\n").removesuffix("\r\n"),
    ],
)
def test_columns_documents_and_line_ends_do_not_change_the_sentences(text: str, read_conll: ReadConll) -> None:
    for column in (2, -2):
        assert read_conll(text, conll(*DEV, "{0} x {1} y\n"), column=column).sha256 == EXPECTED.sha256


def test_the_column_of_the_words_can_be_chosen_and_words_may_have_spaces(read_conll: ReadConll) -> None:
    texts = [conll(*rows, "7\t{1}\t{0}\t\n") for rows in ((WORDS, TAGS), DEV)]  # A tab at the end is no field.
    assert read_conll(*texts, column=1, word_column=2).sha256 == EXPECTED.sha256
    assert read_conll(*texts, column=-2, word_column=-1).sha256 == EXPECTED.sha256
    data = read_conll("10\u00a0000 O\n\u2009 O\n\nnew york\tB-x\n")
    assert data.splits["train"]["words"] == [["10\u00a0000", "\u2009"], ["new york"]]


def test_numbers_have_the_names_of_the_option_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(jsonl(WORDS, NUMBERS))
    (tmp_path / "dev.jsonl").write_text(jsonl(*DEV))  # Names are possible too.
    order = ("B-city", "O", "I-city", "B-day")
    assert content(read(data=tmp_path, labels=list(NAMES))) == content(EXPECTED)
    assert read(data=tmp_path, labels=list(NAMES)).labels == NAMES
    (tmp_path / "train.jsonl").write_text(jsonl(WORDS, TAGS))
    assert read(data=tmp_path, labels=list(order)).labels == order


INDEX = "1 fly x O\n2 to x O\n{}new x B-city\n{}york x I-city\n\n{}now x O\n\n{}on x O\n{}monday x B-day\n"


@pytest.mark.parametrize(
    "text",
    [
        INDEX.format("3 ", "4 ", "1 ", "1 ", "2 "),  # Each sentence is counted anew.
        INDEX.format("3 ", "4 ", "5 ", "6 ", "7 "),
        "# newdoc\n# text = Fly\n" + INDEX.format("3-4 newyork x _\n3 ", "4 ", "1 ", "1 ", "2 "),  # CoNLL-U
        INDEX.replace(" ", "\t").format("3\t", "4\t", "1\t", "1\t", "1.1\t_\t_\tO\n2\t"),
    ],
)
def test_a_first_column_that_numbers_the_words_is_not_that_of_the_words(
    text: str, read_conll: ReadConll, printed: Printed
) -> None:
    assert read_conll(text, conll(*DEV)).sha256 == EXPECTED.sha256
    assert "the words are read from the second one; set task.word_column=0" in printed()


def test_words_that_are_numbers_are_read_and_reported(read_conll: ReadConll, printed: Printed) -> None:
    assert read_conll("7 a O\n7 b B-x\n3.5 c O\n").splits["train"]["words"] == [["7", "7", "3.5"]]
    expected = "train.conll: 67% of the words in column 0 are numbers, such as 7; if the words are in another column"
    assert expected in printed()


def test_comments_are_left_out_and_the_word_number_sign_is_not(read_conll: ReadConll, printed: Printed) -> None:
    text = "#\thttp://example.org\t[2009]\n# B-x\nword O\n\n# a comment of words\nfly O\n# O\n#tag B-x\n"
    assert read_conll(text).splits["train"]["words"] == [["#", "word"], ["fly", "#", "#tag"]]
    assert "lines of comments (# ...), which are left out: 2" in printed()


def test_the_text_of_a_sentence_is_a_column_or_a_comment(tmp_path: Path, printed: Printed) -> None:
    """It is taken where it has the words and nothing else."""
    texts = ["fly  to new york", "now!", "onmonday"]
    comments = "# text = {}\n{}\n"
    sentences = conll(WORDS, TAGS, end="\n\n").split("\n\n\n")
    (tmp_path / "train.conll").write_text("\n".join(map(comments.format, texts, sentences)))
    (tmp_path / "dev.conll").write_text(conll(*DEV))
    columns = {"tokens": WORDS, "tags": TAGS, "text": texts}
    for data in (read(data=tmp_path), read(train=columns, dev=DEV), read(train=pandas.DataFrame(columns), dev=DEV)):
        assert data.sha256 == EXPECTED.sha256
        assert data.splits["train"]["plain"] == ["fly  to new york", None, "onmonday"]
        first, _, last = place_sentences(data.splits["train"])
        assert first == ("fly  to new york", ((0, 3), (5, 7), (8, 11), (12, 16)))
        assert last == ("onmonday", ((0, 2), (2, 8)))
        assert "plain" not in data.splits["dev"].columns
    notice = "sentences without a text of the same words, so that their text is the words with spaces between: 1 of 3"
    assert printed().count(notice) == 3
    of_text = read(train={"text": WORDS, "tags": TAGS}, dev=DEV, tokens="text")
    assert "plain" not in of_text.splits["train"].columns


def test_words_of_languages_without_spaces_are_tagged_letter_by_letter(printed: Printed) -> None:
    words, tags = ["\u6211", "\u7231", "\u5317\u4eac", "\u5927\u5b66OK", "\u3002"], ["S-p", "O", "B-o", "E-o", "O"]
    rows = ([words, ["\u4e0a\u6d77\u5e02", "fly"]], [tags, ["S-c", "O"]])
    train = read(train=rows, dev=([words], [tags])).splits["train"]
    labels = ["O", "B-c", "B-o", "E-c", "E-o", "I-c", "I-o", "S-p"]
    assert train["words"][0] == ["\u6211", "\u7231", "\u5317", "\u4eac", "\u5927", "\u5b66", "OK", "\u3002"]
    assert [labels[tag] for tag in train["tags"][0]] == ["S-p", "O", "B-o", "I-o", "I-o", "I-o", "E-o", "O"]
    assert train["words"][1] == ["\u4e0a", "\u6d77", "\u5e02", "fly"]
    assert [labels[tag] for tag in train["tags"][1]] == ["B-c", "I-c", "E-c", "O"]
    assert "tagged letter by letter, as plain text is split: 2 of 2" in printed()
    named = ["O", "B-o", "E-o", "S-p", "S-c"]
    assert read(train=rows, dev=([words], [tags]), labels=named).splits["train"]["words"] == rows[0]


def test_a_test_split_without_tags_is_absent() -> None:
    hidden = datasets.Dataset.from_dict({"tokens": WORDS, "tags": [[-1] * len(words) for words in WORDS]})
    without = datasets.Dataset.from_dict({"tokens": WORDS})
    for test in (hidden, without):
        assert set(read(train=FORMS["lists"], dev=DEV, test=test).splits) == {"train", "dev"}
    assert set(read(train=FORMS["lists"], dev=DEV, test=DEV).splits) == {"train", "dev", "test"}


def test_a_data_set_of_the_hub_is_read_without_its_empty_sentences(
    monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    empty = datasets.Dataset.from_dict({"tokens": [*WORDS, []], "tags": [*NUMBERS, []]}, features=CLASSES)
    splits = datasets.DatasetDict({"train": empty, "validation": FORMS["class labels"]})
    monkeypatch.setattr(storage, "load_hub_dataset", lambda *names, **options: splits)
    data = read(hub_id="owner/name", name="toy")
    assert data.sizes() == {"train": 3, "dev": 3}
    assert "owner/name train: sentences without a word, which are left out: 1" in printed()


def test_tags_that_train_lacks_count_as_missed_and_are_reported(printed: Printed) -> None:
    dev, test = ([["york"]], [["E-city"]]), ([["oslo", "7", "y"]], [["S-city", "B-flight", "O"]])
    data = read(train=(WORDS, TAGS), dev=dev, test=test)
    assert set(data.labels) == {*NAMES, "E-city", "S-city", "B-flight"}
    out = printed()
    assert "the split dev: words with a tag that train lacks, which count as missed: 1 (E-city)" in out
    assert "the split test: words with a tag that train lacks, which count as missed: 2 (B-flight, S-city)" in out


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("fly O\nto\n", {}, "train.conll, line 2 has 1 field, and line 1 has 2, expected one number of fields in all"),
        ("a x O\n\nnew york x O\n", {"column": 2}, "train.conll, line 3 has 4 fields, and line 1 has 3"),
        ("fly\tO\nvitamin O\n", {}, "train.conll, line 2 has 1 field, and line 1 has 2"),  # Its tab is lost.
        ("fly\tO\nto\t\n", {}, "train.conll, line 2 is 'to\\t', expected a word and a tag in column -1"),
        ("fly O\n", {"word_column": 2}, "line 1 is 'fly O', expected a word in column 2 and a tag in column -1"),
        ("fly O\n", {"column": 0}, "train.conll: the words and the tags are both in column 0: set task.word_column"),
        ("fly\t\n", {}, "train.conll, line 1 is 'fly', expected a word and a tag in column -1"),
        ("fly\t\tB-x\n", {"column": 1}, "line 1 is 'fly\\t\\tB-x', expected a word and a tag in column 1"),
        ("\n\n-DOCSTART- O\n", {}, "train.conll is empty, expected a word and its tag on each line"),
        ("fly O\nto O\n", {}, "has the tag O alone, expected tags such as B-city: set task.column"),
        ("fly VB\n", {}, "train.conll, line 1: tag 'VB' is of no known scheme, expected O, B-TYPE, I-TYPE, E-TYPE"),
        ("fly O\n\na B-\n", {}, "train.conll, line 3: tag 'B-' is of no known scheme"),
        ("a O\nb O\rc B-x\n", {}, "train.conll, line 2 has a carriage return (\\r) without a line feed"),
        ("fly B-x\n", {"labels": ["O", "B-y"]}, "train.conll, line 1: tag 'B-x' is unknown, expected one of O, B-y"),
    ],
)
def test_invalid_conll_files_are_named(
    text: str, options: dict[str, Any], expected: str, read_conll: ReadConll
) -> None:
    with pytest.raises(UserError) as error:
        read_conll(text, conll(WORDS, TAGS), **options)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"tokens": ["a"], "tags": ["O", "O"]}, "tokens has 1 entries and tags 2, expected a tag for each word"),
        ({"tokens": [], "tags": []}, "column tokens is [], expected words: remove the sentence"),
        ({"tokens": "a b", "tags": ["O"]}, "column tokens is 'a b', expected a list of words"),
        ({"tokens": ["a"], "tags": "O"}, "column tags is 'O', expected a list of tags"),
        ({"tokens": ["a", " "], "tags": ["O", "O"]}, "word 2 of column tokens is ' ', expected text"),
        ({"tokens": ["\ud800"], "tags": ["O"]}, "contains the unpaired surrogate"),
        ({"tokens": ["a"], "tags": [1]}, "tag 1 is a number, expected names: name them with task.labels=[O,B-TYPE"),
        ({"tokens": ["a"], "tags": [True]}, "tag True is no name and no number of a tag"),
        ({"tokens": ["a"], "tags": ["B-town"]}, "tag B-town is of a type that train lacks, expected one of city, day"),
    ],
)
def test_invalid_rows_are_named(row: dict[str, Any], expected: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(jsonl(WORDS, TAGS))
    (tmp_path / "dev.jsonl").write_text(jsonl(WORDS[:1], TAGS[:1]) + json.dumps(row) + "\n")
    with pytest.raises(UserError) as error:
        read(data=tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'dev.jsonl'}, line 2")
    assert expected in str(error.value)
    with pytest.raises(UserError, match="the split dev, example 1: tag 4 is no index of the tags O, B-city"):
        read(train=FORMS["class labels"], dev=([["a"]], [[4]]), labels=list(NAMES))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"labels": ["B-x", "I-x"]}, "got labels=[B-x, I-x], expected the names of at least two tags, each once, one"),
        ({"labels": ["O", "B-x", "B-x"]}, "got labels=[O, B-x, B-x], expected the names of at least two tags, each o"),
        ({"labels": ["O"]}, "got labels=[O], expected the names of at least two tags, one of them O"),
        ({"tokens": "x", "tags": "x"}, "got tags=x, expected another column than that of task.tokens"),
        ({"dev_fraction": 1.0}, "got dev_fraction=1.0, expected a share between 0 and 1"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError) as error:
        TokenClassification(**options)
    assert expected in str(error.value)


def test_unlabelled_sentences_are_texts_or_lists_of_words(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("Fly to Oslo, please.\n\n  new   york\n")
    write_parquet(tmp_path / "more.parquet", datasets.Dataset.from_dict({"tokens": [["U.S.", "visit"]]}))
    data: dict[str, Any] = {"train": (WORDS, TAGS), "dev": DEV}
    assert read(**data, unlabelled=tmp_path).pool.rows.texts == ["U.S. visit", "Fly to Oslo , please .", "new york"]
    for unlabelled in (["fly on", "now"], [["fly", "on"], ["now"]], pandas.DataFrame({"text": ["fly on"]})):
        assert read(**data, unlabelled=unlabelled).pool.rows.texts == ["fly on"]  # The other one is a sentence of dev.
    pool = read(**data, unlabelled=[["fly", "on"], ["Now"], [], ["fly", "on"]]).pool
    assert pool.removed == {"empty": 1, "dev": 1, "train": 0, "doubled": 1}
