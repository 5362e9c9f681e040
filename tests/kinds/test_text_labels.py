"""Tests of labels as words: the pairs of texts, the words, their log-likelihoods beside transformers, and scores."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import IGNORED, Batch, Outputs, Scores
from distill.core.errors import OptionError, UserError
from distill.data.splits import LabelledData
from distill.edge.decode import WordTask
from distill.edge.decoder import MASKED
from distill.kinds import Classification, Regression, TextLabels
from distill.kinds.verbalizer import NUMBER, WORDS, WordScores, choose_words, encode_words
from distill.losses import HardLabels
from distill.models import decoding
from distill.models.decoding import score_words
from distill.text.vocabulary import train_bytes, train_word_pieces
from distill.training.module import evaluate
from tests.export.test_generator import VOCABULARY, make_model

FILMS = {"sentence": ["a fine film", "a dull film"] * 8, "label": [1, 0] * 8}
PAIRS = {
    "one": ["it rains", "he sleeps", "she left"] * 6, "two": ["rain falls", "he runs", "she went"] * 6,
    "label": ["same", "other", "same"] * 6,
}  # fmt: skip


def films(**options: Any) -> Classification:
    return Classification(
        **{"text": "sentence", "train": FILMS, "dev": FILMS, "labels": ["negative", "positive"]} | options
    )


def pairs(**options: Any) -> Classification:
    given = {"text": ["one", "two"], "train": PAIRS, "dev": PAIRS, "positive": "same", "metrics": ["f1", "accuracy"]}
    return Classification(**given | options)


def both(**options: Any) -> TextLabels:
    return TextLabels(tasks={"sst2": films(), "mrpc": pairs()}, **options)


def read(task: TextLabels) -> LabelledData:
    return task.read(Path("nowhere"))


def test_rows_are_sources_with_the_names_of_task_and_columns_and_words_as_targets() -> None:
    data = read(both(words={"mrpc": {"same": "equal", "other": "not equal"}}))
    train = data.splits["train"]
    assert len(train) == 16 + 18
    assert (train["source"][0], train["target"][0]) == ("sst2 sentence: a fine film", "positive")
    assert (train["source"][17], train["target"][17]) == ("mrpc one: he sleeps two: he runs", "not equal")
    assert train.records()[0] == {"task": "sst2", "sentence": "a fine film"}
    assert train.records()[16] == {"task": "mrpc", "one": "it rains", "two": "rain falls"}
    assert data.labels == ()
    assert data.scoring.names == ("mean", "sst2/accuracy", "sst2/f1", "mrpc/f1", "mrpc/accuracy")
    assert "mrpc other (not equal), same (equal)" in data.scoring.summary(data)
    assert data.sha256 != read(both()).sha256


def test_words_may_be_given_by_name_by_index_and_without_the_name_of_a_single_task() -> None:
    given: list[dict[Any, Any]] = [
        {"sst2": {"negative": "bad", "positive": "good"}}, {"sst2": {0: "bad", 1: "good"}}, {0: "bad", 1: "good"},
    ]  # fmt: skip
    for words in given:
        data = read(TextLabels(tasks={"sst2": films()}, words=words))
        assert data.splits["dev"]["target"][:2] == ["good", "bad"]
        assert data.scoring.names == ("accuracy", "f1")


def test_a_label_without_a_word_of_its_own_has_its_name_with_spaces() -> None:
    assert choose_words("mrpc", ["not_equivalent", "equivalent"], None) == ("not equivalent", "equivalent")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"no": "false"},
            "the label yes of task a has no word: give it a word of its own with task.words={a: {yes: WORD",
        ),
        ({"no": "false", "yes": " "}, "the word of the label yes of task a is empty: give it a word of its own with"),
        ({"no": "A b", "yes": "ab"}, "the labels no and yes of task a have the same word ab, and no answer could tell"),
        ({"no": "x", "maybe": "y"}, "task.words has a word for maybe, which is no label of task a: expected no, yes"),
        ({"no": "x", "2": "y"}, "task.words has a word for 2, which is no label of task a: expected no, yes"),
    ],
)
def test_words_that_do_not_suit_the_labels_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        choose_words("a", ["no", "yes"], given)


@pytest.mark.parametrize(
    ("tasks", "options", "message"),
    [
        ({}, {}, "got tasks={}, expected at least one classification, as in task.tasks=[sst2,mrpc]"),
        ({"a b": films()}, {}, "got tasks=a b, expected names of letters, digits, _ and -"),
        ({"a": Regression(text="sentence", train=FILMS, dev=FILMS)}, {}, "task a is a regression, and words are for"),
        ({"a": films(multi_label=True, labels=None)}, {}, "task a is a multi_label_classification, and words are for"),
        ({"a": films(unlabelled=["a text"])}, {}, "task.tasks.a.unlabelled has no use for words that a model writes"),
        ({"a": films(bank=["a text"])}, {}, "task.tasks.a.bank has no use for words that a model writes: set it to"),
        ({"a": films()}, {"words": {"b": {"0": "x"}}}, "a mapping of labels to words for a"),
        ({"a": films(), "b": films()}, {"words": {"0": "x"}}, "a mapping of labels to words for a, b"),
    ],
)
def test_tasks_without_words_are_refused(tasks: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, OptionError), match=re.escape(message)):
        TextLabels(tasks=tasks, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": "balanced"}, "task.tasks.a.class_weights has no use for words that a model writes"),
        ({"label": None}, "task a has no row with a label, and words are learned from labels: add labels"),
    ],
)
def test_data_that_words_cannot_be_learned_from_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        read(TextLabels(tasks={"a": films(**options)}))


def test_rows_without_a_label_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    table = {"sentence": [*FILMS["sentence"], "no label"], "label": [*FILMS["label"], None]}
    assert len(read(TextLabels(tasks={"a": films(train=table)})).splits["train"]) == 16
    assert "task a: 1 rows without a label are left out" in capsys.readouterr().out


# The tokens of words


TEXTS = [f"{word} {other}" for word in ("good", "goodness", "not", "bad") for other in ("good", "bad", "café")]


@pytest.fixture(scope="module")
def pieces() -> PreTrainedTokenizerBase:
    return train_word_pieces(TEXTS, 60)


def word_task(*words: str) -> WordTask:
    return WordTask("a", ("text",), tuple(f"label{number}" for number in range(len(words))), words)


def test_words_of_several_tokens_are_padded_behind_their_end(pieces: PreTrainedTokenizerBase) -> None:
    words = encode_words([word_task("good", "not good", "bad"), word_task("bad", "good")], pieces, 16, None)
    assert words.shape == (2, 3, max(len(pieces(word).input_ids) for word in ("good", "not good", "bad")))
    for number, of_task in enumerate([("good", "not good", "bad"), ("bad", "good")]):
        for place, word in enumerate(of_task):
            ids = pieces(word).input_ids
            assert words[number, place].tolist() == ids + [IGNORED] * (words.shape[2] - len(ids))
    assert (words[1, 2] == IGNORED).all()


def test_an_end_is_put_behind_words_where_the_tokenizer_puts_none() -> None:
    tokenizer = train_bytes(TEXTS, 300)
    [ids] = encode_words([word_task("good", "bad")], tokenizer, 16, 7)
    bare = [tokenizer(word).input_ids for word in ("good", "bad")]
    assert [[token for token in row if token != IGNORED] for row in ids.tolist()] == [[*of, 7] for of in bare]


@pytest.mark.parametrize(
    ("words", "most", "message"),
    [
        (("good", "gut ☃"), 16, "the vocabulary cannot write the word gut ☃ of the label label1: give it a word"),
        (("good", "not good not good"), 4, "the word not good not good of the label label1 has more than 4 tokens"),
        (("café", "cafe"), 16, "the words of the labels label0 and label1 have the same tokens: give it"),
    ],
)  # fmt: skip
def test_words_that_a_vocabulary_cannot_tell_apart_are_refused(
    words: tuple[str, ...], most: int, message: str, pieces: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        encode_words([word_task(*words)], pieces, most, None)


# The log-likelihoods of words


def batch_of(*, padding: int = 0) -> dict[str, Tensor]:
    """Returns three sources, the second one shorter, with words of which two share a token and one begins another."""
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (3, 7), generator=random)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    first = torch.tensor([[5, 2, IGNORED, IGNORED], [5, 6, 2, IGNORED], [5, 6, 7, 2]])
    second = torch.tensor([[8, 2, IGNORED, IGNORED], [9, 2, IGNORED, IGNORED], [IGNORED] * 4])
    return {
        "input_ids": torch.nn.functional.pad(ids, (0, padding)),
        "attention_mask": torch.nn.functional.pad(mask, (0, padding)), "labels": torch.tensor([2, 0, 1]),
        NUMBER: torch.tensor([0, 1, 0]), WORDS: torch.stack([first, second, first]), "example_id": torch.arange(3),
    }  # fmt: skip


def expected_scores(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Returns the log-likelihoods of all words by the loss of transformers, one source and word at a time."""
    scores = torch.full(batch[WORDS].shape[:2], MASKED)
    for row, words in enumerate(batch[WORDS]):
        for number, word in enumerate(words):
            labels = word[word != IGNORED]
            length = int(batch["attention_mask"][row].sum())
            if len(labels):
                loss = model(input_ids=batch["input_ids"][row : row + 1, :length], labels=labels[None]).loss
                scores[row, number] = -float(loss) * len(labels)
    return scores


@pytest.mark.parametrize("kind", ["t5", "bart"])
@torch.no_grad()
def test_log_likelihoods_are_those_of_transformers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make_model(kind), batch_of()
    expected = expected_scores(model, batch)
    for padding in (0, 3):
        scores = score_words(model, batch_of(padding=padding), batch[WORDS])
        torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-5)
    monkeypatch.setattr(decoding, "CHUNK_LOGITS", 1)  # One example at a time.
    torch.testing.assert_close(score_words(model, batch, batch[WORDS]), expected, atol=1e-4, rtol=1e-5)
    assert not torch.equal(expected[0], expected[2])


def test_a_batch_of_train_has_the_tokens_of_targets_as_items_and_others_have_examples() -> None:
    task, batch = both(), batch_of()
    items = task.select(batch)
    assert (items.row.tolist(), items.labels.tolist()) == ([0, 1, 2], [2, 0, 1])
    assert items.valid is not None
    assert items.valid.tolist() == [[True] * 3, [True, True, False], [True] * 3]
    train = {**{name: batch[name] for name in ("input_ids", "attention_mask", "example_id")}, "labels": batch[WORDS][0]}
    tokens = task.select(train)
    assert tokens.labels.tolist() == [5, 2, 5, 6, 2, 5, 6, 7, 2]
    model = make_model("t5")
    with torch.no_grad():
        logits = task.run(model, train, tokens, frozenset()).at(tokens).logits
    assert logits is not None
    total, count = HardLabels()(Outputs(logits=logits), Outputs(), tokens)
    summed = sum(expected_scores(model, {**train, WORDS: batch[WORDS][:1].expand(3, -1, -1)}).diagonal())
    assert float(total) == pytest.approx(-float(summed), rel=1e-4)  # Each source with its own word.
    assert int(count) == 9


# Scores


def scores_of(logits: list[list[float]], labels: list[int], numbers: list[int]) -> Scores:
    columns = {"logits": np.array(logits, dtype=np.float32), NUMBER: np.array(numbers)}
    return Scores(columns, np.array(labels), np.arange(len(labels)))


@pytest.fixture(scope="module")
def scoring() -> WordScores:
    found: WordScores = read(both()).scoring
    return found


SCORES = scores_of(
    [[-1.0, -9.0], [-5.0, -2.0], [-5.0, -2.0], [-1.0, -3.0], [-1.0, -3.0]], [0, 1, 0, 0, 1], [0, 0, 0, 1, 1]
)  # fmt: skip


def test_each_task_has_its_own_metrics_and_their_mean(scoring: WordScores) -> None:
    metrics = scoring.metrics(SCORES)
    assert metrics["sst2/accuracy"] == pytest.approx(2 / 3)
    assert metrics["mrpc/accuracy"] == pytest.approx(0.5)
    assert metrics["mrpc/f1"] == 0.0  # Of the label `same`, which none was given.
    assert metrics["mean"] == pytest.approx((2 / 3 + 0) / 2) == pytest.approx(scoring.selecting_metric(SCORES))
    of_one = scoring.metrics(SCORES.select(np.array([True, True, True, False, False])))
    assert of_one == {
        "mean": of_one["sst2/accuracy"],
        "sst2/accuracy": pytest.approx(2 / 3),
        "sst2/f1": of_one["sst2/f1"],
    }
    assert tuple(metrics) == scoring.names


def test_predictions_are_named_by_the_labels_of_their_task(scoring: WordScores) -> None:
    columns = scoring.tabulate(SCORES, None, examples=5)  # type: ignore[arg-type]  # It reads no data.
    assert columns["label"] == ["negative", "positive", "negative", "other", "same"]
    assert columns["prediction"] == ["negative", "positive", "positive", "other", "other"]
    assert columns["probability"][0] == pytest.approx(1 / (1 + np.exp(-8)))


def test_wrong_predictions_and_hits_of_each_label(scoring: WordScores) -> None:
    spoilt = scoring.spoil(SCORES)
    assert spoilt is not None
    assert scoring.predictions(spoilt).tolist() == [1, 0, 0, 1, 1]
    assert {name: found.tolist() for name, found in scoring.hits(SCORES).items()} == {
        "sst2/negative": [True, False], "sst2/positive": [True], "mrpc/other": [True], "mrpc/same": [False],
    }  # fmt: skip


def test_a_word_that_a_task_lacks_is_never_a_label() -> None:
    three = {**PAIRS, "label": ["a", "b", "c"] * 6}
    data = read(TextLabels(tasks={"x": films(), "y": pairs(train=three, dev=three, positive=None, metrics=None)}))
    scores = scores_of([[-900.0, -800.0, MASKED], [-1.0, -2.0, -0.5]], [1, 2], [0, 1])
    assert data.scoring.predictions(scores).tolist() == [1, 2]
    assert data.scoring.metrics(scores)["mean"] == 1.0
    assert data.scoring.predictions(data.scoring.spoil(scores)).tolist() == [0, 1]


def test_the_constant_of_several_tasks_is_the_best_label_of_each(scoring: WordScores) -> None:
    [constant] = scoring.constants(SCORES)
    assert constant.answer == "always negative for sst2, always same for mrpc"
    assert scoring.predictions(constant.predict(SCORES)).tolist() == [0, 0, 0, 1, 1]
    one = read(TextLabels(tasks={"sst2": films()})).scoring
    answers = {of.answer for of in one.constants(SCORES.select(np.array([True, True, True, False, False])))}
    assert answers == {"always negative", "always positive"}


def test_free_texts_are_words_whatever_their_spaces_and_capitals() -> None:
    data = read(both(words={"sst2": {0: "not_good", 1: "Good"}}, scored_texts=None))
    split = data.splits["dev"].select(np.array([0, 1, 0, 17]))
    texts = [{"text": text} for text in ("good", "not _ good", "fine", "good")]  # The last one is a word of sst2 alone.
    assert data.scoring.plain_texts(split)[3] == "mrpc one: he sleeps two: he runs"
    assert data.scoring.text_metrics(split, texts) == {"written_accuracy": 0.5, "no_label": 0.5}
    silent = read(both(scored_texts=0)).scoring
    assert (silent.writing, silent.plain_texts(split), silent.text_metrics(split, [])) == (None, [], {})


def test_an_evaluation_scores_the_words_of_each_example(scoring: WordScores) -> None:
    model = make_model("t5")
    scores = evaluate(model, both(), scoring, [[dict(batch_of())]])
    with torch.no_grad():
        expected = score_words(model, batch_of(), batch_of()[WORDS]).numpy()
    np.testing.assert_allclose(scores.columns["logits"], expected, rtol=1e-5)
    assert scores.columns[NUMBER].tolist() == [0, 1, 0]


def test_train_is_encoded_with_targets_and_dev_with_words(pieces: PreTrainedTokenizerBase) -> None:
    pieces.eos_token = pieces.sep_token
    task = both(words={"sst2": {0: "bad", 1: "good"}, "mrpc": {"same": "good", "other": "not good"}}, max_length=12)
    encoded = task.encode(read(task), pieces, None)
    train, dev = encoded["train"][[0, 17]], encoded["dev"][[0, 17]]
    assert WORDS not in train
    assert train["labels"][0][train["labels"][0] != IGNORED].tolist() == pieces("good").input_ids
    assert dev["labels"].tolist() == [1, 0]
    assert dev[NUMBER].tolist() == [0, 1]
    first = pieces("not good").input_ids
    assert dev[WORDS][1, 0, : len(first)].tolist() == first
