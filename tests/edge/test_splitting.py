"""Tests of the splitters of plain text: which one follows from words, its words, and the same in Node."""

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from distill.core.errors import UserError
from distill.edge.words import SPLITTERS, Splitter, choose_splitter, locate_in_text, write_text

PUNCTUATED = [["O'Brien", "left", "AT&T", "in", "St.", "Paul", "."], ["He", "did", "n't", ",", "it", "'s", "3.5", "."]]
EDGES = Splitter.fit_edges([*PUNCTUATED, ["well", "...", "@anna", "#go", "!", "l'", "eau", "St.", "St."]])


def words(splitter: Splitter, text: str) -> list[str]:
    return [text[start:end] for start, end in splitter.split(text)]


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        ("punctuation", [["fly", "to", "oslo"]]),
        ("punctuation", [["(", "AT", "&", "T", ")", "3", ".", "5"]]),
        ("edges", PUNCTUATED),
        ("characters", [list("我爱北京。"), list("他在上海")]),
        ("characters", [["我", "爱", "北京", "。"], ["他", "在", "上海"]]),
        ("characters", [["我们", "爱", "北京", "。"], ["他们", "在", "上海", "。"]]),
        ("characters", [["ฉัน", "รัก", "กรุงเทพ"]]),  # No splitter knows its words; none should make one of them all.
    ],
)
def test_the_splitter_follows_the_words_of_the_data(name: str, sentences: list[list[str]]) -> None:
    assert choose_splitter(sentences, [None] * len(sentences)).name == name


def test_the_splitter_follows_the_text_of_the_data() -> None:
    sentences, texts = [["it's", "so,"], ["well.", "Well"]], ["it's so,", "well. Well"]
    assert choose_splitter(sentences, texts, known=[["'s"]]).name == "spaces"
    assert choose_splitter([["a", "-", "b"]], ["a-b"]).name == "punctuation"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("O'Brien left AT&T in St. Paul .", "O'Brien left AT&T in St. Paul ."),
        ("O'Neil left (AT&T).", "O'Neil left ( AT&T ) ."),
        ("He didn't, it's 3.5.", "He did n't , it 's 3.5 ."),
        ("well... @bob #stay!", "well ... @bob #stay !"),
        ("l'homme St.. ....", "l' homme St. . . ..."),
        ("\u2764\ufe0f\u2764\ufe0f caf\u00e9\u0301!", "\u2764\ufe0f \u2764\ufe0f caf\u00e9\u0301 !"),
        ("\u0939\u093f\u0928\u094d\u0926\u0940.", "\u0939\u093f\u0928\u094d\u0926\u0940 ."),
        ("'''", "'''"),
        (" \t", ""),
    ],
)  # fmt: skip
def test_edges_keeps_the_words_of_train_and_their_marks(text: str, expected: str) -> None:
    assert words(EDGES, text) == expected.split()


def test_letters_of_languages_without_spaces_are_words_by_themselves() -> None:
    splitter = Splitter("characters")
    found = words(splitter, "我爱Python3。が\u3099\u0e01\u0e34น")
    assert found == ["我", "爱", "Python3", "。", "が\u3099", "\u0e01\u0e34", "น"]
    assert words(splitter, "O'Brien") == ["O", "'", "Brien"]


@pytest.mark.parametrize(
    ("given", "joined", "attached"),
    [
        (["It", "'s", "(", "now", ")", "."], "It 's ( now ) .", "It's (now)."),
        (["l'", "eau", ",", "too"], "l' eau , too", "l'eau, too"),
        (["我", "爱", "New", "York", "。", "a"], "我爱New York。a", "我爱New York。a"),
    ],
)
def test_words_are_written_as_text(given: list[str], joined: str, attached: str) -> None:
    for attach, expected in ((False, joined), (True, attached)):
        text, spans = write_text(given, attach=attach)
        assert text == expected
        assert [text[start:end] for start, end in spans] == given


def test_words_are_located_in_a_text_that_has_nothing_else() -> None:
    assert locate_in_text(["AT&T", "left", "."], " AT&T  left.") == ((1, 5), (7, 11), (11, 12))
    assert locate_in_text(["left"], "AT&T left") is None
    assert locate_in_text(["AT&T"], "AT&T left") is None
    assert locate_in_text(["left", "AT&T"], "AT&T left") is None


def test_a_long_word_takes_no_quadratic_time() -> None:
    text = "(n't" * 20_000
    assert "".join(text[start:end] for start, end in EDGES.split(text)) == text


def test_a_splitter_is_read_as_it_was_written_and_another_one_refused() -> None:
    for splitter in (EDGES, *map(Splitter, SPLITTERS)):
        assert Splitter.parse({"splitter": json.loads(json.dumps(splitter.describe()))}) == splitter
    for value, expected in (
        ({"name": "sentences"}, "splitter .*, expected one of punctuation, edges, characters, spaces"),
        (None, "splitter None, expected one of"),
        ({"name": "edges", "whole": [7]}, r"splitter with whole \[7\], expected a list of texts"),
    ):
        with pytest.raises(UserError, match=f"decoding has (a|the) {expected}"):
            Splitter.parse({"splitter": value})


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_splitters_in_javascript_find_the_same_words() -> None:
    generator = random.Random(0)
    pieces = [
        "a", "St.", "O'Brien", "n't", "'s", "l'", "...", "..", ".", ",", "(", "@", "#", "'", "\u2019s", " ", " ", "\t",
        "我", "京", "。", "ก", "\u0e34", "\u0301", "\u2764\ufe0f", "\U0001f600", "\U00020000", "7", "_", "\u0939\u093f",
        "\x1c",
    ]  # fmt: skip
    texts = ["".join(generator.choices(pieces, k=8)) for _ in range(500)] + ["." * 70, "a" + "." * 64]
    splitters = [EDGES, *map(Splitter, SPLITTERS)]
    path = Path(__file__).parents[2] / "distill" / "edge" / "web" / "bundle.mjs"
    script = f"""
        import {{ split }} from {json.dumps(path.as_uri())};
        import {{ readFileSync }} from "node:fs";
        const {{ texts, splitters }} = JSON.parse(readFileSync(0, "utf8"));
        const words = (text, splitter) => split(text, splitter).map(([start, end]) => text.slice(start, end));
        console.log(JSON.stringify(splitters.map((splitter) => texts.map((text) => words(text, splitter)))));
    """
    content = json.dumps({"texts": texts, "splitters": [splitter.describe() for splitter in splitters]})
    command = ["node", "--input-type=module", "-e", script]
    found = json.loads(subprocess.run(command, input=content, capture_output=True, text=True, check=True).stdout)
    for splitter, of_splitter in zip(splitters, found, strict=True):
        for text, of_text in zip(texts, of_splitter, strict=True):
            assert of_text == words(splitter, text), (splitter.name, text)
