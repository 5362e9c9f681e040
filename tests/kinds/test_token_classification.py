"""Tests of tagging: entities by hand, labels on first pieces, and a bundle."""

import copy
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import IGNORED, Scores
from distill.core.errors import UserError
from distill.data.batches import MixedExamples
from distill.edge import decode
from distill.edge.__main__ import main
from distill.edge.words import TagScheme, cut_between_words, find_first_pieces, join_words, locate_words, split_words
from distill.kinds import TokenClassification
from distill.kinds.token_classification import PREDICTION, TagScores

CITIES, DAYS = ("boston", "new york", "denver", "san jose"), ("monday", "friday", "sunday")


def sentences(count: int) -> list[tuple[list[str], list[str]]]:
    """Returns sentences with tags for cities and days that follow from the words."""
    rows = []
    for number in range(count):
        words, tags = ["fly", "to"], ["O", "O"]
        for kind, name in (("city", CITIES[number % 4]), ("day", DAYS[number % 3])):
            for position, word in enumerate(name.split()):
                words.append(word)
                tags.append(f"{'I' if position else 'B'}-{kind}")
        rows.append((words, tags))
    return rows


def write(path: Path, rows: list[tuple[list[str], list[str]]]) -> None:
    text = "\n\n".join("\n".join(f"{word} {tag}" for word, tag in zip(*row, strict=True)) for row in rows)
    path.write_text(text + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def conll(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("conll")
    write(directory / "train.conll", sentences(64))
    write(directory / "dev.txt", sentences(12))
    return directory


def find_entities(tags: list[str]) -> list[tuple[str, int, int]]:
    """Returns the type, the first and the last (exclusive) word of each entity."""
    labels = sorted(set(tags))
    scheme = TagScheme(labels)
    entities = scheme.find(np.array([labels.index(tag) for tag in tags], dtype=int))
    return [(scheme.types[kind], first, last) for first, last, kind in zip(*entities, strict=True)]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["O", "B-a", "I-a", "O"], [("a", 1, 3)]),
        (["B-a", "B-a", "I-b", "I-b"], [("a", 0, 1), ("a", 1, 2), ("b", 2, 4)]),
        (["I-a", "I-a", "B-a"], [("a", 0, 2), ("a", 2, 3)]),  # IOB1; and I- after O starts an entity.
        (["S-a", "B-a", "I-a", "E-a", "E-a"], [("a", 0, 1), ("a", 1, 4), ("a", 4, 5)]),  # BIOES
        (["B", "I", "O", "I"], [("", 0, 2), ("", 3, 4)]),  # Tags without a type.
        (["O", "O"], []),
        ([], []),
    ],
)
def test_entities_follow_the_rule_of_conlleval(tags: list[str], expected: list[tuple[str, int, int]]) -> None:
    assert find_entities(tags) == expected


def test_entity_metrics_match_values_by_hand(conll: Path) -> None:
    scoring = TokenClassification(data=conll).read(conll).scoring
    assert scoring.labels == ("O", "B-city", "B-day", "I-city")
    # Two sentences: [B-city I-city O] and [B-day]. Of three entities one is right; two are expected.
    labels, predicted = np.array([1, 3, 0, 2]), np.array([1, 0, 1, 2])
    scores = Scores({"logits": np.eye(4)[predicted]}, labels, np.array([7, 7, 7, 9]))
    metrics = scoring.metrics(scores)
    assert metrics == pytest.approx({"f1": 0.4, "precision": 1 / 3, "recall": 1 / 2, "accuracy": 0.5})
    # An entity ends with its sentence.
    joined = Scores({PREDICTION: np.array([1, 3])}, np.array([1, 3]), np.array([0, 1]))
    assert scoring.metrics(joined)["f1"] == 1.0


def list_chunks(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Returns the type, the first and the last (exclusive) word of each chunk, word by word as the script conlleval."""
    chunks, before, first = set(), ("O", ""), 0
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        if chunk_ends(*before, prefix, kind):
            chunks.add((before[1], first, place))
        if chunk_begins(*before, prefix, kind):
            first = place
        before = (prefix, kind)
    return chunks


def chunk_ends(old: str, old_kind: str, new: str, new_kind: str) -> bool:
    if old in ("E", "S"):
        return True
    return old in ("B", "I") and (new in ("B", "S", "O") or old_kind != new_kind)


def chunk_begins(old: str, old_kind: str, new: str, new_kind: str) -> bool:
    if new in ("B", "S"):
        return True
    return new in ("I", "E") and (old in ("O", "E", "S") or old_kind != new_kind)


def f1_of(correct: int, found: int, true: int) -> dict[str, float]:
    precision, recall = correct / found if found else 0.0, correct / true if true else 0.0
    f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
    return {"f1": f1, "precision": precision, "recall": recall}


SCHEMES = {
    "BIO": ["O", "B-a", "I-a", "B-b", "I-b", "B-b-c", "I-b-c"],
    "BIOES": ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in "ab")],
    "without types": ["O", "B", "I", "E", "S"],
}


@pytest.mark.parametrize("labels", SCHEMES.values(), ids=SCHEMES.keys())
def test_metrics_equal_conlleval_on_any_tags(labels: list[str]) -> None:
    tag = st.sampled_from(labels)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.lists(st.lists(st.tuples(tag, tag), min_size=1, max_size=7), min_size=1, max_size=5))
    def check(sentences: list[list[tuple[str, str]]]) -> None:
        scoring = TagScores(tuple(labels))
        true, predicted = (
            np.array([labels.index(pair[side]) for pairs in sentences for pair in pairs]) for side in (0, 1)
        )
        example_id = np.repeat(np.arange(len(sentences)), [len(pairs) for pairs in sentences])
        scores = Scores({PREDICTION: predicted}, true, example_id)
        every = [[list_chunks(side) for side in zip(*pairs, strict=True)] for pairs in sentences]
        metrics, by_type = scoring.metrics(scores), scoring.breakdown(scores)
        del metrics["accuracy"]
        for kind, values in [(None, metrics), *by_type.items()]:
            counts = [0, 0, 0]
            for true_chunks, found in every:
                for place, chunks in enumerate((true_chunks & found, found, true_chunks)):
                    counts[place] += sum(kind in (None, of) for of, _, _ in chunks)
            expected = f1_of(*counts) | ({} if kind is None else {"number": counts[2]})
            assert values == pytest.approx(expected, abs=1e-9)

    check()


def test_first_pieces_are_found_by_character_offsets() -> None:
    words = locate_words(["new", "york", "?"])
    assert words == ((0, 3), (4, 8), (9, 10))
    # [CLS] new yo ##rk ? [SEP]
    offsets, special = [(0, 0), (0, 3), (4, 6), (6, 8), (9, 10), (0, 0)], [1, 0, 0, 0, 0, 1]
    assert find_first_pieces(words, offsets, special) == [1, 2, 4]
    assert find_first_pieces(words, [*offsets[:3], (0, 0)], [1, 0, 0, 1]) == [1, 2, None]
    assert split_words("Paris, 7.") == ((0, 5), (5, 6), (7, 8), (8, 9))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Zu\u0308rich is", ["Zu\u0308rich", "is"]),
        ("\u0939\u093f\u0928\u094d\u0926\u0940, 7", ["\u0939\u093f\u0928\u094d\u0926\u0940", ",", "7"]),
        ("\u2764\ufe0flove", ["\u2764\ufe0f", "love"]),  # A heart in colour.
        ("a_b-c\u0301", ["a_b", "-", "c\u0301"]),
        ("\u0301a", ["\u0301", "a"]),
    ],
)
def test_combining_marks_belong_to_the_word_before(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in split_words(text)] == words


def test_words_of_one_token_are_joined() -> None:
    """`AT&T is U.S.` in the tokens `AT&T`, `is`, `U`, `.S.`, and behind them a word that was cut off."""
    text = "AT&T is U.S. now"
    offsets, special = [(0, 4), (5, 7), (8, 9), (9, 12), (0, 0)], [0, 0, 0, 0, 1]
    joined, firsts = join_words(split_words(text), offsets, special)
    assert [text[start:end] for start, end in joined] == ["AT&T", "is", "U", ".S."]
    assert firsts == [0, 1, 2, 3]


def test_the_score_of_an_entity_is_the_mean_probability_of_its_tags(tokenizer: PreTrainedTokenizerBase) -> None:
    tags = decode.Tags(["O", "B-city", "I-city"], False, {"splitter": {"name": "spaces"}}, tokenizer.backend_tokenizer)
    example = tags.read("to new york")
    probabilities = np.array([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.0, 0.1, 0.9]])
    [entity] = tags.decode(example, [(example.words, np.log(probabilities + 1e-30))])["entities"]
    assert entity == {"text": "new york", "type": "city", "score": pytest.approx(0.75), "start": 3, "end": 11}


def test_a_token_of_two_words_stands_for_the_first_one() -> None:
    # [CLS] "new york" ? [SEP], where the first piece has both words.
    offsets, special = [(0, 0), (0, 8), (9, 10), (0, 0)], [1, 0, 0, 1]
    assert find_first_pieces(locate_words(["new", "york", "?"]), offsets, special) == [1, None, 2]


@given(
    pieces=st.lists(st.integers(0, 4), max_size=8), length=st.integers(2, 20), side=st.sampled_from(["left", "right"])
)
def test_sentences_are_cut_between_words_as_late_as_possible(pieces: list[int], length: int, side: str) -> None:
    """The words have these numbers of pieces, one letter each."""
    words = locate_words(["x" * max(1, count) for count in pieces])
    spans = [(start + k, start + k + 1) for (start, _), count in zip(words, pieces, strict=True) for k in range(count)]
    offsets, special = [(0, 0), *spans, (0, 0)], [1, *(0 for _ in spans), 1]
    kept = cut_between_words(words, offsets, special, length=length, side=side)
    assert len(kept) <= length
    assert {0, len(spans) + 1} <= set(kept)
    counts = pieces if side == "right" else pieces[::-1]
    whole = max(number for number in range(len(counts) + 1) if sum(counts[:number]) <= length - 2)
    inside = [token for token in kept if not special[token]]
    assert len(inside) == sum(counts[:whole])
    first = 1 if side == "right" else 1 + len(spans) - len(inside)
    assert inside == list(range(first, first + len(inside)))


def test_words_without_a_token_are_not_scored_and_reported(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ([["a", "\u200d", "film", "\ufeff"]], [["O", "B-x", "I-x", "O"]])  # BERT leaves out such characters.
    task = TokenClassification(train=rows, dev=rows)
    for _ in range(2):  # Computed and from the cache.
        data = task.read(tmp_path)
        dev = task.encode(data, tokenizer, tmp_path)["dev"]
        assert [data.labels[tag] for tag in task.select(dev[[0]]).labels] == ["O", "I-x"]
        assert "dev: words that have no token, which are left out: 2" in capsys.readouterr().out


def test_sentences_without_tags_are_items_without_labels(tokenizer: PreTrainedTokenizerBase) -> None:
    task = TokenClassification(
        train=ROWS,
        dev=ROWS,
        unlabelled=["a joy, stale and cold", "funny"],
        unlabelled_share=0.4,
        class_weights="balanced",
    )
    train = task.encode(task.read(Path("unused")), tokenizer, None)["train"]
    assert isinstance(train, MixedExamples)
    assert train.items_per_example == pytest.approx((3 + 2 + 6 + 1) / 4)
    items = task.select(train[[3, 0, 2, 1]])
    assert items.row.tolist() == [0] * train_items(train, 3) + [1] * 3 + [2] * train_items(train, 2) + [3] * 2
    assert items.labelled.tolist() == [row in (1, 3) for row in items.row.tolist()]
    assert set(items.labels[~items.labelled].tolist()) == {IGNORED}
    assert items.weights is not None
    assert (items.weights[~items.labelled] == 0).all()
    assert (items.weights[items.labelled] > 0).all()


def train_items(train: MixedExamples, example: int) -> int:
    return int((train[[example]]["labels"] != IGNORED).sum())


ROWS = ([["a", "lovely", "film"], ["funny", "film"]], [["O", "B-x", "I-x"], ["O", "B-x"]])


def test_the_digest_of_tokens_depends_on_the_words(tokenizer: PreTrainedTokenizerBase) -> None:
    one, two = (
        TokenClassification(train=rows, dev=ROWS)
        for rows in (([["new york"]], [["B-x"]]), ([["new", "york"]], [["B-x", "O"]]))
    )
    digests = {task.encode(task.read(Path("unused")), tokenizer, None)["train"].digest for task in (one, two)}
    assert len(digests) == 2  # The outputs of a teacher are cached under it.


def test_labels_are_on_first_pieces_and_truncated_words_have_none(
    conll: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    for max_length in (128, 6):
        task = TokenClassification(data=conll, max_length=max_length)
        splits = task.read(conll)
        examples = task.encode(splits, tokenizer, None)["dev"]
        batch = examples[list(range(12))]
        items = task.select(batch)
        assert items.labels.tolist() == batch["labels"][batch["labels"] != IGNORED].tolist()
        for row in range(12):
            mine = items.labels[items.row == row].tolist()
            assert mine == splits.splits["dev"]["tags"][row][: len(mine)].tolist()
            if max_length == 128:
                assert len(mine) == len(splits.splits["dev"]["words"][row])
        assert (batch["labels"][:, 0] == IGNORED).all()
        assert (examples.truncated > 0) == (max_length == 6)


def test_words_that_are_truncated_on_the_left_have_no_label(conll: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    left = copy.deepcopy(tokenizer)
    left.truncation_side = "left"
    task = TokenClassification(data=conll, max_length=6)
    splits = task.read(conll)
    examples = task.encode(splits, left, None)["dev"]
    assert examples.truncated > 0
    for row, (words, tags) in enumerate(zip(splits.splits["dev"]["words"], splits.splits["dev"]["tags"], strict=True)):
        batch = examples[[row]]
        labelled = (batch["labels"][0] != IGNORED).nonzero().flatten().tolist()
        assert batch["labels"][0, labelled].tolist() == tags[len(tags) - len(labelled) :].tolist()
        # Each label is on the first piece of its word.
        first_pieces = [tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in words]
        ids = batch["input_ids"][0, labelled].tolist()
        assert ids == first_pieces[len(words) - len(labelled) :]


def test_what_the_tokenizer_was_set_to_does_not_change_the_labels(
    conll: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    task = TokenClassification(data=conll)
    splits = task.read(conll)
    expected = task.encode(splits, tokenizer, tmp_path)["dev"][[0, 1, 2]]
    called, padding = copy.deepcopy(tokenizer), copy.deepcopy(tokenizer)
    called("a text", truncation=True, max_length=4)
    padding.backend_tokenizer.enable_padding(length=64)
    for changed in (called, padding):
        batch = task.encode(splits, changed, tmp_path)["dev"][[0, 1, 2]]  # Its tokens come from the cache.
        assert batch["labels"].tolist() == expected["labels"].tolist()


def test_suffix_and_number_of_columns_do_not_change_the_data(conll: Path, tmp_path: Path) -> None:
    text = (conll / "train.conll").read_text(encoding="utf-8")
    lines = [f"{line.split()[0]} x {line.split()[1]} y" if line else "" for line in text.split("\n")]
    with gzip.open(tmp_path / "train.txt.gz", "wt", encoding="utf-8") as file:
        file.write("-DOCSTART- x O y\n\n" + "\n".join(lines))
    write(tmp_path / "validation.conll", sentences(12))
    (tmp_path / "validation.conll").write_text(
        (tmp_path / "validation.conll").read_text().replace(" O\n", " x O y\n").replace("-city\n", "-city y\n")
        .replace("-day\n", "-day y\n").replace(" B-", " x B-").replace(" I-", " x I-")
    )  # fmt: skip
    data = TokenClassification(data=tmp_path, column=2).read(tmp_path)
    expected = TokenClassification(data=conll).read(tmp_path)
    assert data.labels == expected.labels
    assert data.splits["train"]["words"] == expected.splits["train"]["words"]
    assert data.sha256 == expected.sha256


def test_plain_text_is_scored_by_the_characters_of_its_entities(conll: Path) -> None:
    task = TokenClassification(
        train=([["AT&T", "in", "St.", "Paul", "."]], [["B-org", "O", "B-city", "I-city", "O"]]),
        dev=([["AT&T", "in", "Rome"], ["to", "St.", "Paul"]], [["B-org", "O", "B-city"], ["O", "B-city", "I-city"]]),
        test={"tokens": [["in", "Rome", "."]], "tags": [["O", "B-city", "O"]], "text": ["in  Rome."]},
    )
    data = task.read(conll)
    splits = data.splits
    texts: list[str] = []

    def predict(given: Sequence[str]) -> list[dict[str, Any]]:
        """Finds one of two entities of the first text, and another end of that of the second one."""
        texts.extend(given)
        spans = {"AT&T in Rome": ("org", 0, 4), "to St. Paul": ("city", 3, 6), "in  Rome.": ("city", 4, 8)}
        return [{"entities": [dict(zip(("type", "start", "end"), spans[text], strict=True))]} for text in given]

    def score(split: str) -> dict[str, float]:
        return data.scoring.text_metrics(splits[split], predict(data.scoring.plain_texts(splits[split])))

    assert score("dev") == {"text_f1": pytest.approx(2 / 5)}  # Right, found, expected: 1, 2, 3.
    assert score("test") == {"text_f1": 1.0}
    assert texts == ["AT&T in Rome", "to St. Paul", "in  Rome."]
    description = data.scoring.describe(data)
    assert (description["splitter"], description["split_differently"]) == ("edges", {"train": 0, "dev": 0, "test": 0})
    assert data.scoring.fit_decoder(Scores({}, np.zeros(0), np.zeros(0)))["splitter"]["whole"] == ["St."]


TEXT = "stale , cold and new york"


def test_the_bundle_predicts_entities_with_their_character_offsets(golden_run: Callable[[str], Path]) -> None:
    bundle = d.Bundle(golden_run("tags") / "bundle", model="fp32")
    [from_text] = bundle.predict([TEXT])
    [from_words] = bundle.predict([{"tokens": TEXT.split()}])
    assert from_text == from_words
    assert from_text["entities"]
    for entity in from_text["entities"]:
        assert TEXT[entity["start"] : entity["end"]] == entity["text"]
        assert 0 < entity["score"] <= 1
    named = [f"city: {entity['text']}" for entity in from_text["entities"]]
    assert bundle.decoder.format(from_text) == "; ".join(named)
    with pytest.raises(UserError, match="got 7, expected a text or"):
        bundle.predict([7])


def test_the_command_on_the_device_writes_entities(
    golden_run: Callable[[str], Path], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    arguments = [str(golden_run("tags") / "bundle"), TEXT, "", "--model", "fp32"]
    capsysbinary.readouterr()
    assert main(arguments) == 0
    first, second = capsysbinary.readouterr().out.decode().splitlines()
    assert first.startswith("city: ")
    assert first.endswith(f"\t{TEXT}")
    assert second == ""
    assert main([*arguments, "--json"]) == 0
    found, nothing = map(json.loads, capsysbinary.readouterr().out.splitlines())
    assert [TEXT[entity["start"] : entity["end"]] for entity in found["entities"]]
    assert nothing == {"text": "", "entities": None}
