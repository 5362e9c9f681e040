"""Tests of question answering: windows and spans by hand, metrics against another implementation, and a bundle."""

import collections
import copy
import dataclasses
import gzip
import itertools
import json
import random
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import IGNORED, Outputs, Scores
from distill.core.errors import OptionError, UserError
from distill.data import batches
from distill.data.batches import MixedExamples
from distill.data.questions import label_windows
from distill.data.tokenization import Tokens
from distill.edge import answering
from distill.edge.__main__ import main
from distill.edge.answering import NO_ANSWER, NO_CLASS, average_scores, normalize_references, score_answer
from distill.edge.decoder import MASKED, TooLongError
from distill.export.bundle_writer import write_bundle
from distill.kinds import QuestionAnswering
from distill.kinds.scoring import draw_halves
from distill.models.loading import load_directory
from distill.teachers.computation import Computation, cache_outputs
from distill.teachers.output_cache import OutputCache
from distill.teachers.prepared import compare_with_constant
from distill.text.vocabulary import train_word_pieces
from distill.training.module import dev_metrics, evaluate_splits, fit_decoding
from tests.conftest import LOOSE

METRICS = ["f1", "exact_match", "has_answer_f1", "has_answer_exact_match", "no_answer_f1", "no_answer_exact_match"]
CITIES, DAYS = ("boston", "new york", "denver", "san jose"), ("monday", "friday", "sunday")
Row = dict[str, Any]


def questions(count: int, *, first: int = 0, unanswerable: bool = False) -> list[Row]:
    """Returns questions about cities and days, each fifth without an answer; contexts have several windows."""
    rows = []
    for number in range(first, first + count):
        place, day = CITIES[number % 4], DAYS[number % 3]
        about, answer = ("city", place) if number % 2 else ("day", day)
        filler = " ".join(["we fly there"] * (1 + number % 5))
        context = f"{filler} to {place} on {day} {filler}"
        answers: Row = {"text": [answer], "answer_start": [context.index(answer)]}
        if unanswerable and number % 5 == 0:
            context, answers = f"{filler} to nowhere at all {filler}", {"text": [], "answer_start": []}
        rows.append({"id": f"q{number}", "question": f"which {about} {number}", "context": context, "answers": answers})
    return rows


def squad(rows: list[Row]) -> Row:
    """Returns rows in the nested format of SQuAD."""
    paragraphs = []
    for row in rows:
        pairs = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        question = {"id": row["id"], "question": row["question"], "answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": row["context"], "qas": [question]})
    return {"version": "v2.0", "data": [{"title": "flights", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def reader() -> PreTrainedTokenizerBase:
    return train_word_pieces([row[name] for row in questions(64) for name in ("question", "context")], 200)


def task_of(**options: Any) -> QuestionAnswering:
    rows = {"train": questions(64, unanswerable=True), "dev": questions(20, first=64, unanswerable=True)}
    return QuestionAnswering(**{**rows, "max_length": 24, "doc_stride": 6, **options})


def toy_model(tokenizer: PreTrainedTokenizerBase, *, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, initializer_range=0.3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForQuestionAnswering(config).eval()


# Data


def test_every_format_gives_the_same_data(tmp_path: Path) -> None:
    train, dev = questions(8, unanswerable=True), questions(4, first=8)
    for directory in ("squad", "lines", "parquet"):
        (tmp_path / directory).mkdir()
    with gzip.open(tmp_path / "squad" / "train.json.gz", "wt") as file:
        json.dump(squad(train), file)
    (tmp_path / "squad" / "validation.json").write_text(json.dumps(squad(dev)))
    for name, rows in (("train", train), ("dev", dev)):
        (tmp_path / "lines" / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(rows), tmp_path / "parquet" / f"{name}.parquet"
        )  # fmt: skip
    tasks = [QuestionAnswering(data=tmp_path / name) for name in ("squad", "lines", "parquet")]
    tasks += [QuestionAnswering(train=train, dev=dev), QuestionAnswering(data={"train": train, "dev": dev})]
    data = [task.read(tmp_path) for task in tasks]
    assert len({of.sha256 for of in data}) == 1
    answers = data[0].splits["train"]["answers"]
    assert answers[:2] == [(), (("boston", 16),)] or answers[0] == ()
    assert data[0].splits["dev"].records()[0] == {"question": "which day 8", "context": dev[0]["context"]}
    assert QuestionAnswering(train=train, dev=dev, doc_stride=64).read(tmp_path).sha256 != data[0].sha256


def test_a_single_file_holds_out_whole_contexts(tmp_path: Path) -> None:
    rows = [{**row, "question": f"{row['question']} {again}"} for row in questions(20) for again in range(3)]
    (tmp_path / "data.json").write_text(json.dumps(squad(rows)))
    splits = QuestionAnswering(data=tmp_path / "data.json", dev_fraction=0.2).read(tmp_path).splits
    train, dev = (set(splits[name]["context"]) for name in ("train", "dev"))
    assert len(dev) == 4
    assert not train & dev


def test_a_test_split_without_answers_is_left_out() -> None:
    hidden = [{**row, "answers": {"text": [], "answer_start": []}} for row in questions(3, first=40)]
    assert set(task_of(test=hidden).read(Path()).splits) == {"train", "dev"}
    assert set(task_of(test=questions(3, first=40)).read(Path()).splits) == {"train", "dev", "test"}


def _answers(text: Any, start: Any) -> Row:
    return {"answers": {"text": [text], "answer_start": [start]}}


MISTAKES: dict[str, tuple[Row, str]] = {
    "an answer at another place": (
        _answers("denver", 3),
        r"dev, line 1 \(id q64\): the answer 'denver' is not in its context at answer_start 3, where the context "
        "has 'fly th': it is nowhere in the context; answer_start counts code points",
    ),
    "an empty answer": (_answers("  ", 0), "an answer is '  ', expected text"),
    "a word as a place": (_answers("we", "0"), "the answer 'we' has answer_start '0', expected a whole number"),
    "a place below 0": (_answers("we", -3), "the answer 'we' has answer_start -3, expected a whole number"),
    "answers that are a text": ({"answers": "boston"}, r"the answers are 'boston', expected \{\"text\": \[...\]"),
    "no answers": ({"answers": None}, "the answers are None, expected"),
    "places without texts": ({"answers": {"text": ["we"], "answer_start": []}}, "the answers are .* expected"),
    "an impossible question with an answer": ({"is_impossible": True, **_answers("we", 0)}, "has is_impossible true"),
    "an empty question": ({"question": " "}, "line 1: column question is ' ', expected text"),
    "an empty context": ({"context": ""}, "line 1: column context is '', expected text"),
    "a context that is no text": ({"context": 3}, "line 1: column context is 3, expected text"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_rows_are_named(mistake: str, tmp_path: Path) -> None:
    change, expected = MISTAKES[mistake]
    for name, rows in (("train", questions(4)), ("dev", [{**questions(1, first=64)[0], **change}])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(UserError, match=expected.replace("dev, ", "dev.jsonl, ")):
        QuestionAnswering(data=tmp_path).read(tmp_path)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"train.json": "[]"}, r"train.json is not in the format of SQuAD .* give rows as .jsonl"),
        ({"train.json": '{"data": []}'}, "train.json has no questions"),
        ({"train.json": '{"data": ['}, "train.json is not valid JSON: Expecting value"),
        ({"train.tsv": "question\n"}, r"has no train file \(found dev.json, train.tsv\), expected train with one of"),
        (
            {"train.jsonl": '{"question": "a", "text": "b", "answers": []}\n', "dev.jsonl": '{"a": 1}\n'},
            "train.jsonl has no column context: it has question, text, answers; a question needs the columns question,",
        ),
    ],
)
def test_invalid_files_are_named(files: dict[str, str], expected: str, tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text(json.dumps(squad(questions(2))))
    if "dev.jsonl" in files:
        (tmp_path / "dev.json").unlink()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=expected):
        QuestionAnswering(data=tmp_path).read(tmp_path)


def test_a_question_longer_than_a_window_is_named(reader: PreTrainedTokenizerBase) -> None:
    long = [{**questions(1)[0], "question": "which day " * 8}]
    task = task_of(train=[*questions(2), *long])
    with pytest.raises(
        UserError,
        match=r"train, example 3: the question has 16 tokens and its context \d+, which do not fit into one window of "
        "24 tokens; at most 14 leave room for new tokens of the context in windows that share 6: shorten it, raise "
        "task.max_length, or lower task.doc_stride",
    ):
        task.encode(task.read(Path()), reader, None)
    with pytest.raises(OptionError, match="got doc_stride=20, expected at most 19, so that windows of 24 tokens have"):
        task_of(doc_stride=20)


# Windows


def test_windows_share_tokens_and_show_every_token_of_the_context(reader: PreTrainedTokenizerBase) -> None:
    context = "we fly there to new york on friday we fly there we fly there"
    encoding = reader("which day", context).encodings[0]
    windows = answering.cut_windows(encoding, max_length=12, doc_stride=2)
    tokens = [[reader.convert_ids_to_tokens(int(token)) for token in window.ids] for window in windows]
    for of_window, window in zip(tokens, windows, strict=True):
        question = of_window.index("[SEP]")
        assert (of_window[0], of_window[-1], len(of_window) <= 12) == ("[CLS]", "[SEP]", True)
        assert window.characters[:, 0].tolist() == [NO_ANSWER] * 2
        assert (window.characters[:, [*range(1, question + 1), -1]] == NO_CLASS).all()
        assert window.type_ids.tolist() == [0] * (question + 1) + [1] * (len(of_window) - question - 1)
        shown = [context[start:end] for start, end in window.characters.T if start >= 0]
        assert shown == [token.removeprefix("##") for token in of_window[question + 1 : -1]]
    inner = [window.characters.T[window.characters[0] >= 0].tolist() for window in windows]
    assert [before[-2:] for before in inner[:-1]] == [after[:2] for after in inner[1:]]
    assert len(inner) > 2
    assert [place for of_window in inner[:1] for place in of_window] + [
        place for of_window in inner[1:] for place in of_window[2:]
    ] == [list(offset) for offset, sequence in zip(encoding.offsets, encoding.sequence_ids, strict=True) if sequence]


@pytest.mark.parametrize("doc_stride", [0, 3])
def test_there_are_as_few_windows_as_can_be_and_each_shows_new_tokens(
    reader: PreTrainedTokenizerBase, doc_stride: int
) -> None:
    for words in range(1, 40):
        encoding = reader("day", " ".join(["fly"] * words)).encodings[0]
        context = encoding.sequence_ids.count(1)
        room = 14 - (len(encoding.ids) - context)
        windows = answering.cut_windows(encoding, max_length=14, doc_stride=doc_stride)
        assert len(windows) == max(1, -(-(context - doc_stride) // (room - doc_stride)))
        last = [int(window.characters[1].max()) for window in windows]
        assert last == sorted(set(last))


@pytest.mark.parametrize(("spare", "doc_stride"), [(0, 2), (0, 9), (1, 9)])
def test_a_question_that_fits_one_window_with_its_context_is_read(
    reader: PreTrainedTokenizerBase, spare: int, doc_stride: int
) -> None:
    """What neighbouring windows would share does not matter, because there is one window."""
    encoding = reader("which day " * 4, "on friday").encodings[0]
    length = len(encoding.ids)
    [window] = answering.cut_windows(encoding, max_length=length + spare, doc_stride=doc_stride)
    assert window.ids.tolist() == encoding.ids
    with pytest.raises(TooLongError, match=f"which do not fit into one window of {length - 1} tokens; at most"):
        answering.cut_windows(encoding, max_length=length - 1, doc_stride=doc_stride)


@pytest.mark.parametrize("side", ["right", "left"])
def test_labels_are_the_tokens_of_the_answer(reader: PreTrainedTokenizerBase, tmp_path: Path, side: str) -> None:
    """Each window either has all of the answer, at its labels, or lacks a part of it and is labelled as no answer."""
    padded = copy.deepcopy(reader)
    padded.padding_side = side
    task = task_of()
    splits = task.read(tmp_path)
    for cache_dir in (None, tmp_path, tmp_path):
        dev = task.encode(splits, padded, cache_dir)["dev"]
        assert len(dev) > len(splits.splits["dev"])
        batch = dev[list(range(len(dev)))]
        items = task.select(batch)
        scores = splits.scoring.score(Outputs(logits=torch.zeros(items.valid.shape)), items)  # type: ignore[union-attr]
        characters, found = scores["characters"], collections.Counter[int]()
        for window in range(len(dev)):
            number = int(scores["question"][2 * window])
            context, answers = (splits.splits["dev"][name][number] for name in ("context", "answers"))
            rows = characters[2 * window : 2 * window + 2]
            labels = items.labels[2 * window : 2 * window + 2].tolist()
            start, end = (int(row[label]) for row, label in zip(rows, labels, strict=True))
            shown = rows[:, rows[0] >= 0]
            if start == NO_ANSWER:
                assert (labels, end) == ([0, 0], NO_ANSWER)
                text = context[int(shown[0].min()) : int(shown[1].max())]
                assert not answers or answers[0].text not in text
            else:
                assert context[start:end] == answers[0].text
                found[number] += 1
        assert set(found) == {number for number, own in enumerate(splits.splits["dev"]["answers"]) if own}


@pytest.mark.parametrize(("span", "token"), [((0, 3), 2), ((3, 4), 3), ((4, 8), 4)])
def test_an_answer_beside_a_hyphen_has_no_token_of_its_neighbours(span: tuple[int, int], token: int) -> None:
    """The window is [CLS] [SEP] non - stop [SEP]."""
    starts, ends = [NO_ANSWER, NO_CLASS, 0, 3, 4, NO_CLASS], [NO_ANSWER, NO_CLASS, 3, 4, 8, NO_CLASS]
    columns = {"start_characters": np.array(starts), "end_characters": np.array(ends)}
    tokens = Tokens(columns, offsets=np.array([0, 6]), truncated=0, digest="", rows=np.array([0]))
    assert [labels.tolist() for labels in label_windows(tokens, np.array([span]))] == [[token], [token]]


# Spans


def brute_force(
    logits: np.ndarray, characters: np.ndarray, question: np.ndarray, n_best: int, longest: int
) -> dict[int, tuple[float, int, int, float, float]]:
    """Returns score, start, end, score of no answer and mass of each question, from every span there is."""
    results = {}
    for number in sorted(set(question.tolist())):
        best: dict[tuple[int, int], float] = {}
        null = np.inf
        for window in np.flatnonzero(question == number):
            (first, last), (starts, ends) = logits[2 * window : 2 * window + 2], characters[2 * window : 2 * window + 2]
            null = min(null, float(first[0]) + float(last[0]))
            for i, j in itertools.product(range(len(first)), repeat=2):
                if i <= j < i + longest and starts[i] >= 0 and ends[j] >= 0:
                    key = int(starts[i]), int(ends[j])
                    best[key] = max(best.get(key, -np.inf), float(first[i]) + float(last[j]))
        ordered = sorted(best.items(), key=lambda item: -item[1])[:n_best]
        (start, end), score = ordered[0]
        results[number] = score, start, end, null, float(np.log(sum(np.exp(value) for _, value in ordered)))
    return results


@pytest.mark.parametrize(("n_best", "longest"), [(20, 30), (12, 2), (12, 1)])
def test_the_best_spans_are_those_of_a_search_over_all(n_best: int, longest: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(answering, "_CHUNK", 3)
    generator = np.random.default_rng(0)
    windows, width = 8, 12
    characters = np.full((2 * windows, width), NO_CLASS)
    characters[:, 0] = NO_ANSWER
    for window, length in enumerate(generator.integers(1, 8, windows)):
        begin = int(generator.integers(0, 6))  # Windows of a question overlap.
        characters[2 * window, 3 : 3 + length] = 4 * np.arange(begin, begin + length)
        characters[2 * window + 1, 3 : 3 + length] = 4 * np.arange(begin, begin + length) + 3
    logits = answering.mask_classes(generator.normal(0, 3, characters.shape), characters)
    question = np.array([5, 2, 5, 9, 2, 5, 2, 9])
    found = answering.find_candidates(logits, characters, question, n_best=n_best, max_answer_length=longest).best()
    expected = brute_force(logits, characters, question, n_best, longest)
    assert found.question.tolist() == sorted(expected)
    rows = zip(found.score, found.start, found.end, found.null_score, found.mass, strict=True)
    for row, (number, values) in zip(rows, sorted(expected.items()), strict=True):
        assert list(row) == pytest.approx(list(values)), number
    for threshold in (None, 0.0, -1.5):
        nulls = found.is_null(threshold)
        assert nulls.any() == (threshold is not None and bool((found.null_score - found.score > threshold).any()))
        assert ((found.probability(threshold) > 0) & (found.probability(threshold) <= 1)).all()


def test_the_probability_of_a_prediction_counts_no_answer_less_by_the_threshold() -> None:
    """One span scores 2 and no answer 1. No answer is predicted where 1 - 2 is above the threshold."""
    one = np.ones(1)
    answers = answering.Answers(
        np.array([0]), np.array([3]), np.array([7]), score=2 * one, null_score=one, mass=2 * one
    )
    span, null = np.exp(2.0), np.exp(1.0)
    assert answers.probability(None).tolist() == [1.0]
    assert answers.probability(0.0).tolist() == pytest.approx([span / (span + null)])
    assert answers.probability(0.5).tolist() == pytest.approx([span / (span + np.exp(0.5))])
    assert (answers.is_null(-2.0).tolist(), answers.is_null(0.5).tolist()) == ([True], [False])
    assert answers.probability(-2.0).tolist() == pytest.approx([np.exp(3.0) / (span + np.exp(3.0))])


@pytest.mark.parametrize(
    ("differences", "nearest"), [([-3.0, 5.0], 1.0), ([5.0, 3.0], 2.0), ([-8.0, -6.0], -5.0), ([-1.0, 2.0], 0.5)]
)
def test_the_threshold_is_the_one_nearest_to_zero_among_equal_ones(differences: list[float], nearest: float) -> None:
    """The answers are as good as none, so that all of the cuts below, between and above the differences are."""
    metric = np.array([0.5, 0.5])
    assert answering.fit_threshold(np.array(differences), metric, metric) == nearest


def test_the_threshold_has_the_best_mean_metric() -> None:
    generator = np.random.default_rng(1)
    for _ in range(20):
        difference = generator.integers(-4, 5, 12).astype(float)
        of_span, of_null = generator.random(12), generator.integers(0, 2, 12).astype(float)
        threshold = answering.fit_threshold(difference, of_span, of_null)
        mean = np.where(difference > threshold, of_null, of_span).mean()
        others = [np.where(difference > other, of_null, of_span).mean() for other in np.arange(-6, 6, 0.5)]
        assert mean == pytest.approx(max(others))
        assert threshold not in difference


# Metrics


def squad_words(text: str) -> list[str]:
    """The words of an answer in another way: character by character, and articles as whole words."""
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return [word for word in re.split(r"\s+|\b(?:a|an|the)\b", kept) if word]


def squad_scores(answer: str | None, references: list[str], *, version: int) -> tuple[float, float]:
    """Exact match and F1 by precision and recall, after the definitions of SQuAD."""
    given = squad_words(answer or "")
    golds = [squad_words(reference) for reference in references]
    if version == 2:
        golds = [words for words in golds if words] or [[]]
    exact, f1 = 0.0, 0.0
    for gold in golds:
        exact = max(exact, float(gold == given))
        remaining = list(gold)
        same = 0
        for word in given:
            if word in remaining:
                remaining.remove(word)
                same += 1
        if same:
            precision, recall = same / len(given), same / len(gold)
            f1 = max(f1, 2 * precision * recall / (precision + recall))
        elif version == 2 and not gold and not given:
            f1 = 1.0
    return exact, f1


PIECES = ("The", "a", "an", "apple", "Apple!", "  ", "theatre", "U.S.", "1973", "-", "naïve", "\t", "B-52", "of", "“q”")


@pytest.mark.parametrize("version", [1, 2])
def test_the_metrics_equal_an_independent_implementation(version: int) -> None:
    source = random.Random(version)
    rows: list[tuple[str | None, list[str]]] = []
    for _ in range(500):
        texts = [" ".join(source.choices(PIECES, k=source.randint(0, 5))) for _ in range(source.randint(2, 4))]
        answer = None if source.random() < 0.2 else texts[0]
        references = texts[source.randint(0, 1) :] if version == 1 or source.random() < 0.7 else []
        rows.append((answer, references))
    may_be = version == 2
    for answer, references in rows:
        found = score_answer(
            answer, normalize_references(references, may_be_unanswerable=may_be), may_be_unanswerable=may_be
        )
        assert found == pytest.approx(squad_scores(answer, references, version=version), abs=1e-9), (answer, references)


def scores_with(task: QuestionAnswering, tokenizer: PreTrainedTokenizerBase, labels: Callable[[int], Any]) -> Scores:
    """Returns dev's scores of a model that is sure of the tokens that `labels` returns for each window."""
    data = task.read(Path())
    dev = task.encode(data, tokenizer, None)["dev"]
    batch = dev[list(range(len(dev)))]
    items = task.select(batch)
    assert items.valid is not None
    logits = torch.zeros(items.valid.shape)
    for window in range(len(dev)):
        own = items.labels[2 * window : 2 * window + 2]
        chosen = labels(window)
        logits[[2 * window, 2 * window + 1], own if chosen is None else torch.tensor(chosen)] = 9.0
    columns = {name: column.numpy() for name, column in data.scoring.score(Outputs(logits=logits), items).items()}
    return Scores(columns, items.labels.numpy(), items.example_id().numpy())


def test_questions_with_and_without_an_answer_have_their_own_metrics() -> None:
    given = [("in boston", ["boston"]), ("denver", ["denver"]), (None, ["monday"]), (None, []), ("friday", [])]
    options = {"may_be_unanswerable": True}
    values = [score_answer(answer, normalize_references(right, **options), **options) for answer, right in given]
    metrics = average_scores(np.array(values), np.array([bool(right) for _, right in given]))
    expected = [(2 / 3 + 2) / 5, 2 / 5, (2 / 3 + 1) / 3, 1 / 3, 1 / 2, 1 / 2]
    assert metrics == pytest.approx(dict(zip(METRICS, expected, strict=True)))
    for chosen in (slice(3), slice(3, None)):  # All questions are of one kind.
        part = average_scores(np.array(values[chosen]), np.array([bool(right) for _, right in given[chosen]]))
        assert list(part) == ["f1", "exact_match"]


def test_perfect_logits_have_perfect_metrics_and_unanswerable_questions_get_no_answer(
    reader: PreTrainedTokenizerBase,
) -> None:
    task = task_of()
    scoring = task.read(Path()).scoring
    perfect = scores_with(task, reader, lambda window: None)
    metrics = dev_metrics(scoring, perfect)
    assert metrics == dict.fromkeys(METRICS, 1.0)
    [fitted] = fit_decoding(scoring, {"dev": perfect}).values()
    assert fitted.decoding["null_threshold"] is not None
    nothing = scores_with(task, reader, lambda window: (0, 0))
    kinds = {"f1": 0.2, "exact_match": 0.2, "has_answer_f1": 0.0, "has_answer_exact_match": 0.0}
    kinds |= {"no_answer_f1": 1.0, "no_answer_exact_match": 1.0}
    assert dev_metrics(scoring, nothing) == pytest.approx(kinds)  # Each fifth question has no answer.
    weakness = compare_with_constant(scoring, {"dev": nothing}).weakness
    assert 'not known to be better than a constant prediction on dev: f1 0.200 against 0.200 of "always no ' in weakness
    assert compare_with_constant(scoring, {"dev": perfect}).weakness is None
    never = dataclasses.replace(nothing, decoding={"null_threshold": 0.0})
    assert scoring.agreement(fitted, never) == pytest.approx(0.2)
    values = scoring.example_metric(fitted)
    assert values is not None
    assert values.tolist() == [1.0] * 20
    everywhere = QuestionAnswering(train=questions(8), dev=questions(8, first=8), max_length=24, doc_stride=6)
    data = everywhere.read(Path())
    sure = scores_with(everywhere, reader, lambda window: (0, 0))
    assert fit_decoding(data.scoring, {"dev": sure})["dev"].decoding["null_threshold"] is None
    assert None not in data.scoring.tabulate(sure, data, examples=8)["prediction"]


def test_no_question_of_dev_is_decoded_with_a_threshold_that_it_chose(reader: PreTrainedTokenizerBase) -> None:
    task = task_of()
    scoring, scores = task.read(Path()).scoring, scores_with(task, reader, lambda window: (0, 0))
    noise = np.random.default_rng(1).normal(scale=4, size=scores.columns["logits"].shape).astype(np.float32)
    scores = dataclasses.replace(scores, columns={**scores.columns, "logits": scores.columns["logits"] + noise})
    held = fit_decoding(scoring, {"dev": scores})["dev"]
    questions = np.unique(scores.columns["question"])
    halves, values, thresholds = draw_halves(questions), scoring.example_metric(held), []
    assert values is not None
    for half in (0, 1):
        own, other = (
            scores.select(np.isin(scores.columns["question"], questions[(halves == half) == chosen]))
            for chosen in (True, False)
        )
        decoding = scoring.fit_decoder(other)
        thresholds.append(decoding["null_threshold"])
        expected = scoring.example_metric(dataclasses.replace(own, decoding=decoding))
        assert values[halves == half].tolist() == expected.tolist()
    assert thresholds[0] != thresholds[1]
    constant = scoring.constants(held)[0].predict(held)
    assert scoring.metrics(constant)["no_answer_f1"] == 1


def test_questions_of_test_are_numbered_behind_those_of_dev(reader: PreTrainedTokenizerBase) -> None:
    task = task_of(test=questions(3, first=40))
    test = task.encode(task.read(Path()), reader, None)["test"]
    assert set(test[list(range(len(test)))]["question"].tolist()) == {20, 21, 22}


# Cached outputs, unlabelled questions


def test_cached_outputs_have_the_valid_classes_of_the_batch(reader: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    task, model = task_of(), toy_model(reader)
    dev = task.encode(task.read(tmp_path), reader, None)["dev"]
    computation = Computation(lambda: model, "one", task, OutputCache(), tmp_path / "outputs")
    cached = cache_outputs(computation, dev)
    batch = dev[[5, 0, 7]]
    items = task.select(batch)
    assert items.valid is not None
    assert (cached(batch, items).at(items).logits[~items.valid] == MASKED).all()
    wrong = dataclasses.replace(items, valid=items.valid & (torch.arange(items.valid.shape[1]) != 9))
    with pytest.raises(ValueError, match="with other valid classes than the batch has"):
        cached(batch, wrong)
    stored = sum(int(task.select(dev[[row]]).valid.sum()) for row in range(len(dev)))  # type: ignore[union-attr]
    assert sum(len(shard["logits"]) for shard in cached._shards if shard) == stored


def test_unlabelled_questions_are_items_without_a_label(reader: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    (tmp_path / "more.json").write_text(json.dumps(squad(questions(8, first=200))))
    seen = questions(2)[1]
    rows = [["which day", "we fly on monday"], ["which day", ""], [seen["question"], seen["context"]]]
    for source, count in ((tmp_path / "more.json", 8), (rows, 1)):
        task = task_of(unlabelled=source)
        data = task.read(tmp_path)
        assert len(data.pool) == count
        assert [data.pool.removed[reason] for reason in ("empty", "train")] == [int(count == 1)] * 2
        train = task.encode(data, reader, None)["train"]
        assert isinstance(train, MixedExamples)
        assert (train.items_per_example, train.unlabelled["examples"]) == (2.0, len(data.pool))
        items = task.select(train[[0, len(train) - 1, 1]])
        assert items.labelled.tolist() == [True, True, False, False, True, True]
        assert (items.labels[2:4] == IGNORED).all()


# A bundle


@dataclasses.dataclass
class Exported:
    """A bundle of questions of test, with what the student answers in torch."""

    bundle: Path
    questions: list[Row]
    in_torch: dict[str, list[Any]]


@pytest.fixture(scope="module")
def exported(golden_run: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Exports the student of the golden run for other questions, some of which have no answer."""
    student = golden_run("answers") / "student"
    start = load_directory(student, "AutoModelForQuestionAnswering", None, trust_remote_code=False)
    model, bundle = start.model.eval(), tmp_path_factory.mktemp("bundle")
    rows = questions(20, first=200, unanswerable=True)
    for row in rows:
        row["context"] = f"\U0001f6eb {row['context']}"
        row["answers"]["answer_start"] = [start + 2 for start in row["answers"]["answer_start"]]
    task = task_of(test=rows)
    data = task.read(bundle)
    loaders = batches.evaluation_loaders(task.encode(data, start.tokenizer, None))
    scores = fit_decoding(data.scoring, evaluate_splits(model, task, data.scoring, loaders))
    write_bundle(
        bundle, model=model, tokenizer=start.tokenizer, task=task, splits=data, scores=scores,
        settings=dataclasses.replace(LOOSE, formats=("fp32",)),
    )  # fmt: skip
    return Exported(bundle, rows, data.scoring.tabulate(scores["test"], data, examples=len(rows)))


def test_the_bundle_answers_as_torch_did(exported: Exported) -> None:
    """Answers and scores of raw text are those of the student in torch, over all windows and by code points."""
    bundle, expected = d.Bundle(exported.bundle), exported.in_torch
    assert set(bundle.manifest["decoding"]) == {"n_best", "max_answer_length", "null_threshold"}
    records = [{"question": row["question"], "context": row["context"]} for row in exported.questions]
    predictions = bundle.predict(records, batch_size=3)
    assert [row["answer"] for row in predictions] == expected["prediction"]
    assert 0 < sum(answer is None for answer in expected["prediction"]) < 20
    assert [row["score"] for row in predictions] == pytest.approx(expected["probability"], abs=1e-3)
    for record, prediction in zip(records, predictions, strict=True):
        if prediction["answer"] is not None:
            assert record["context"][prediction["start"] : prediction["end"]] == prediction["answer"]
    for wrong, message in (
        ({"question": "which city"}, r"got {'question': 'which city'}, expected {\"question\": ..., \"context\": ...}"),
        (["which city", " "], "and no empty text"),
        (["which city " * 20, "a b"], "record 1: the question has .* which do not fit into one window of 24 tokens"),
    ):
        with pytest.raises(UserError, match=message):
            bundle.predict([wrong])


def test_the_command_reads_pairs_and_records(exported: Exported, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, rows = str(exported.bundle), exported.questions
    answers = exported.in_torch["prediction"]
    found, missed = (next(n for n, answer in enumerate(answers) if (answer is None) == is_null) for is_null in (0, 1))
    pair = f"{rows[found]['question']}\t{rows[found]['context']}"
    assert main([bundle, pair]) == 0
    assert re.fullmatch(rf"{re.escape(answers[found])}\t[01]\.\d{{4}}\t{re.escape(pair)}\n", capsys.readouterr().out)
    assert main([bundle, pair, "--json"]) == 0
    as_json = json.loads(capsys.readouterr().out)
    assert set(as_json) == {"text", "answer", "score", "start", "end"}
    record = json.dumps({name: rows[found][name] for name in ("question", "context")})
    assert main([bundle, record, "", json.dumps([rows[missed]["question"], rows[missed]["context"]]), "--jsonl"]) == 0
    first, blank, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {name: as_json[name] for name in ("answer", "score", "start", "end")}
    assert blank == dict.fromkeys(first)
    assert (second["answer"], second["start"]) == (None, None)
    assert main([bundle, '"which day 5", "we fly"', "--jsonl"]) == 2
    assert main([bundle, '{"question": "a"}', "--jsonl"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].startswith('error: text 1: got \'"which day 5"')
    assert errors[0].endswith("expected JSON: Extra data: line 1 column 14 (char 13)")
    assert errors[1].startswith("error: text 1: got {'question': 'a'}, expected")
