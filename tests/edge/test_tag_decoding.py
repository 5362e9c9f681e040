"""Tests of decoding tags: the likeliest valid sequence by hand and by brute force, and the same tags everywhere."""

import itertools
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from distill.core.contracts import Scores
from distill.core.errors import UserError
from distill.edge import Bundle
from distill.edge.decode import Tags
from distill.edge.decoder import Example
from distill.edge.patterns import Pattern
from distill.edge.words import TagScheme, locate_words, name_scheme
from distill.kinds.token_classification import TagScores
from tests.edge.conftest import ROOT, Write

BIO = ("O", "B-a", "I-a", "B-b", "I-b")
SCHEMES: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "BIO": (None, BIO),
    "IOB1": ("IOB1", BIO),
    "BIOES": (None, ("O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in "ab"))),
    "without types": (None, ("O", "B", "I", "E", "S")),
    "types that lack a prefix": (None, ("O", "I-a", "B-b", "S-c", "B-c", "I-c", "E-d", "B-e", "E-e")),
    "IOB1 of types that lack a prefix": ("IOB1", ("O", "I-a", "B-b", "B-c", "I-c")),
    "without O": (None, ("B-a", "I-a", "E-a")),
}


def is_valid(tags: Sequence[str], labels: Sequence[str], *, is_apart: bool) -> bool:
    """Returns whether tags are valid, word by word: whether an entity is open, and what may follow it."""
    if "O" not in labels:
        return True
    open_kind: str | None = None
    for tag in [*tags, "O"]:
        prefix, _, kind = tag.partition("-")
        has = {each: (f"{each}-{kind}" if "-" in tag else each) in labels for each in "BIE"}
        goes_on = open_kind == kind and prefix in ("I", "E")
        if is_apart:
            goes_on |= open_kind == kind and prefix == "B"
            begins = prefix != "B" or not has["I"]
        else:
            begins = prefix not in ("I", "E") or not has["B"]
        must_close = open_kind is not None and ("E-" + open_kind if open_kind else "E") in labels
        if not goes_on and (not begins or must_close):
            return False
        open_kind = kind if prefix in ("B", "I") else None
    return True


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())
def test_the_likeliest_valid_sequence_is_found(scheme: tuple[str | None, tuple[str, ...]]) -> None:
    name, labels = scheme
    random, tagger = np.random.default_rng(0), TagScheme(labels, name)
    for length in (1, 2, 3, 4, 4, 4):
        every = [
            sequence
            for sequence in itertools.product(range(len(labels)), repeat=length)
            if is_valid([labels[tag] for tag in sequence], labels, is_apart=name == "IOB1")
        ]
        logits = random.normal(size=(length, len(labels)))
        scores = logits[np.arange(length), np.array(every)].sum(axis=1)
        assert tagger.decode(logits).tolist() == list(every[int(scores.argmax())])


def test_a_sequence_by_hand_costs_less_than_the_most_probable_tags_that_are_invalid() -> None:
    scheme = TagScheme(["O", "B-x", "I-x"])
    #           O    B-x  I-x   of two sentences of two words each
    logits = np.array([[2.0, 1.5, 0.0], [0.0, 0.0, 1.0], [2.0, 1.0, 0.0], [0.0, 0.0, 0.5]])
    # O I-x is invalid. B-x I-x has 2.5 and O O has 2.0; of the second sentence B-x I-x has 1.5 and O O has 2.0.
    starts = np.array([True, False, True, False])
    assert scheme.decode(logits, starts).tolist() == [1, 2, 0, 0]
    # As one sentence, I-x after I-x is valid.
    assert scheme.decode(np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])).tolist() == [1, 2, 2]
    assert scheme.decode(np.zeros((0, 3))).tolist() == []


def test_valid_tags_are_kept_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(TagScheme, "_search")
    assert TagScheme(BIO).decode(np.eye(5)[[1, 2, 0, 3]]).tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize(
    ("sentences", "name"),
    [
        ([["B-a", "I-a", "O"], ["O", "I-b"]], "BIO"),  # A single beginning with I is a mistake.
        ([["I-a", "I-a", "B-a"], ["O", "I-b"]], "IOB1"),
        ([["O", "O"]], "BIO"),
    ],
)
def test_the_scheme_follows_from_the_entities_of_train(sentences: list[list[str]], name: str) -> None:
    assert name_scheme(BIO, [np.array(list(map(BIO.index, tags))) for tags in sentences]) == name
    assert name_scheme(["O", "I-a", "E-a"], [np.array([1, 2])]) == "BIOES"


def test_every_place_that_chooses_tags_chooses_the_same() -> None:
    """The most probable tags of half of the sentences are invalid."""
    random, lengths = np.random.default_rng(1), [1, 4, 6, 3, 5]
    logits = random.normal(size=(sum(lengths), len(BIO))).astype(np.float32)
    rows, ids = np.split(logits, np.cumsum(lengths)[:-1]), np.repeat(np.arange(5), lengths)
    for scheme in ("BIO", "IOB1"):
        scoring = TagScores(BIO, scheme_name=scheme)
        scores = Scores({"logits": logits}, np.zeros(len(logits), dtype=int), ids)
        expected = np.split(scoring.predictions(scores), np.cumsum(lengths)[:-1])
        assert any(of.tolist() != row.argmax(axis=-1).tolist() for of, row in zip(expected, rows, strict=True))
        decoder = Tags(BIO, False, scoring.fit_decoder(scores), tokenizer=None)  # type: ignore[arg-type]
        for row, tags in zip(rows, expected, strict=True):
            words = locate_words(["word"] * len(row))
            entities = decoder.decode(Example("word " * len(row), words=words), [(words, row)])["entities"]
            found = zip(*scoring.scheme.find(tags), strict=True)
            assert [(of["type"], of["start"] // 5, of["end"] // 5 + 1) for of in entities] == [
                (scoring.scheme.types[kind], first, last) for first, last, kind in found
            ]
        # A resample reads the tags that the whole split has.
        assert scoring.metrics(scoring.condense(scores)) == scoring.metrics(scores)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_known_words_of_a_sentence_that_is_cut_are_a_sequence_by_themselves(side: str) -> None:
    """What is cut off closes no entity and opens none: E-x begins one on the left, and B-x ends one on the right."""
    labels, names = ["O", "B-x", "E-x", "S-x"], ["B-x", "E-x"]
    known = names[1:] if side == "left" else names[:1]
    words = locate_words(["known"])
    logits = np.array([[2.0 if label in known else 1.0 if label == "S-x" else 0.0 for label in labels]])
    assert labels[int(logits.argmax())] == known[0]
    decoder = Tags(labels, False, {"splitter": {"name": "spaces"}}, tokenizer=None)  # type: ignore[arg-type]
    [entity] = decoder.decode(Example("known cut" if side == "right" else "known", words=words), [(words, logits)])[
        "entities"
    ]
    assert (entity["text"], entity["score"]) == ("known", pytest.approx(np.exp(1) / (np.exp([0, 0, 1, 2]).sum())))


def test_an_unknown_scheme_is_refused(write: Write) -> None:
    decoding = {"splitter": {"name": "punctuation"}, "scheme": "BILOU"}
    with pytest.raises(UserError, match="decoding has the scheme 'BILOU', expected one of BIO, IOB1, BIOES"):
        Bundle(write("tags", decoding=decoding))


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_tags_of_a_browser_are_those_of_python() -> None:
    random, cases = np.random.default_rng(2), []
    for name, labels in SCHEMES.values():
        for length in (0, 1, 5, 9):
            logits = random.normal(size=(length, len(labels))).astype(np.float32)
            logits[length // 2 :] = np.round(logits[length // 2 :])  # Several paths may be alike.
            cases.append((logits, labels, name))
    path: Path = ROOT / "distill" / "edge" / "web" / "bundle.mjs"
    script = f"""
        import {{ decodeTags }} from {json.dumps(path.as_uri())};
        import {{ readFileSync }} from "node:fs";
        console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map((values) => decodeTags(...values))));
    """
    content = json.dumps([(logits.tolist(), labels, name) for logits, labels, name in cases])
    command = ["node", "--input-type=module", "-e", script]
    found = json.loads(subprocess.run(command, input=content, capture_output=True, text=True, check=True).stdout)
    for (logits, labels, name), tags in zip(cases, found, strict=True):
        scheme = TagScheme(labels, name)
        assert scheme.decode(logits).tolist() == (scheme._search(logits.astype(float)).tolist() if len(tags) else [])
        assert tags == scheme.decode(logits).tolist()


# A bundle of a page whose tokens are words and whose logits are given, without the libraries of the page.
TAGGING = """
import { readFileSync } from "node:fs";
const { path, description, records } = JSON.parse(readFileSync(0, "utf8")), { Bundle } = await import(path);
class Tensor { constructor(type, data) { this.data = data; } }
const predictions = [];
for (const [text, logits] of records) {
  const tokenizer = { encode: (part) => ({ ids: (part.match(/[^ ]+/g) ?? []).map((word) => word.length) }) };
  const session = { run: async () => ({ logits: { data: logits.flat() } }) };
  predictions.push(await new Bundle(description, tokenizer, session, Tensor).predict(text));
}
console.log(JSON.stringify(predictions));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_a_page_tags_a_text_as_python_with_patterns_beside() -> None:
    """Most of the likeliest tags are invalid, and some entities overlap a match."""
    text, random = "\U0001f600 to a@b.org on 1.2.2030 from Oslo", np.random.default_rng(3)
    decoding = {
        "splitter": {"name": "spaces"}, "scheme": "BIO",
        "patterns": [Pattern.create("email").describe(), Pattern("day", r"\d{1,2}\.\d{1,2}\.\d{4}").describe()],
    }  # fmt: skip
    decoder = Tags(BIO, False, decoding, tokenizer=None)  # type: ignore[arg-type]
    example = decoder.read(text)
    rows = [random.normal(size=(len(example.words), len(BIO))).astype(np.float32) for _ in range(8)]
    description = {
        "decoder": "tags", "decoding": decoding, "labels": BIO, "max_length": 99, "truncation_side": "right",
        "unknown": None, "special": {"single": [{"text": 0, "type": 0}]}, "inputs": ["input_ids"],
    }  # fmt: skip
    path = (ROOT / "distill" / "edge" / "web" / "bundle.mjs").as_uri()
    content = {"path": path, "description": description, "records": [(text, row.tolist()) for row in rows]}
    command = ["node", "--input-type=module", "-e", TAGGING]
    done = subprocess.run(command, input=json.dumps(content), capture_output=True, text=True, check=True)
    for row, found in zip(rows, json.loads(done.stdout), strict=True):
        expected = decoder.decode(example, [(example.words, row)])["entities"]
        scores = [entity.pop("score") for entity in expected]
        assert [entity.pop("score") for entity in found["entities"]] == pytest.approx(scores)
        assert found["entities"] == expected
        assert {"a@b.org", "1.2.2030"} <= {entity["text"] for entity in expected}
