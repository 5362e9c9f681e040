"""Tests of tagging: entities by hand, labels on first pieces, and a whole run from CoNLL files to a bundle."""

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

import distill as d
from distill.contracts import IGNORED, Scores
from distill.data import batching
from distill.edge.words import TagScheme, find_first_pieces, locate_words, split_words
from distill.errors import UserError
from distill.tasks import TokenClassification
from distill.teaching.output_cache import CachedOutputs
from tests.conftest import toy_bert

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
    task = TokenClassification(data=conll)
    task.read(conll)
    assert task.labels == ("O", "B-city", "B-day", "I-city")
    # Two sentences: [B-city I-city O] and [B-day]. Of three entities one is right; two are expected.
    labels, predicted = np.array([1, 3, 0, 2]), np.array([1, 0, 1, 2])
    scores = Scores({"logits": np.eye(4)[predicted]}, labels, np.array([7, 7, 7, 9]))
    metrics = task.metrics(scores)
    assert metrics == pytest.approx({"f1": 0.4, "precision": 1 / 3, "recall": 1 / 2, "accuracy": 0.5})
    # An entity ends with its sentence.
    joined = Scores({"logits": np.eye(4)[[1, 3]]}, np.array([1, 3]), np.array([0, 1]))
    assert task.metrics(joined)["f1"] == 1.0


def test_first_pieces_are_found_by_character_offsets() -> None:
    words = locate_words(["new", "york", "?"])
    assert words == ((0, 3), (4, 8), (9, 10))
    # [CLS] new yo ##rk ? [SEP]
    offsets, special = [(0, 0), (0, 3), (4, 6), (6, 8), (9, 10), (0, 0)], [1, 0, 0, 0, 0, 1]
    assert find_first_pieces(words, offsets, special) == [1, 2, 4]
    assert find_first_pieces(words, [*offsets[:3], (0, 0)], [1, 0, 0, 1]) == [1, 2, None]
    assert split_words("Paris, 7.") == ((0, 5), (5, 6), (7, 8), (8, 9))


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
            assert mine == splits.splits["dev"].tags[row][: len(mine)].tolist()
            if max_length == 128:
                assert len(mine) == len(splits.splits["dev"].words[row])
        assert (batch["labels"][:, 0] == IGNORED).all()
        assert (examples.truncated > 0) == (max_length == 6)


def test_words_that_are_truncated_on_the_left_have_no_label(conll: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    left = copy.deepcopy(tokenizer)
    left.truncation_side = "left"
    task = TokenClassification(data=conll, max_length=6)
    splits = task.read(conll)
    examples = task.encode(splits, left, None)["dev"]
    assert examples.truncated > 0
    for row, (words, tags) in enumerate(zip(splits.splits["dev"].words, splits.splits["dev"].tags, strict=True)):
        batch = examples[[row]]
        labelled = (batch["labels"][0] != IGNORED).nonzero().flatten().tolist()
        assert batch["labels"][0, labelled].tolist() == tags[len(tags) - len(labelled) :].tolist()
        # Each label is on the first piece of its word.
        first_pieces = [tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in words]
        ids = batch["input_ids"][0, labelled].tolist()
        assert ids == first_pieces[len(words) - len(labelled) :]


def test_an_earlier_call_of_the_tokenizer_does_not_change_the_labels(
    conll: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    task = TokenClassification(data=conll)
    splits = task.read(conll)
    expected = task.encode(splits, tokenizer, tmp_path)["dev"][[0, 1, 2]]
    tokenizer("a text", truncation=True, max_length=4)
    batch = task.encode(splits, tokenizer, tmp_path)["dev"][[0, 1, 2]]  # Its tokens come from the cache.
    assert batch["labels"].tolist() == expected["labels"].tolist()


def test_padding_by_the_tokenizer_does_not_change_the_labels(
    conll: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    task = TokenClassification(data=conll)
    splits = task.read(conll)
    expected = task.encode(splits, tokenizer, tmp_path)["dev"][[0, 1, 2]]
    padding = copy.deepcopy(tokenizer)
    padding.backend_tokenizer.enable_padding(length=64)
    batch = task.encode(splits, padding, tmp_path)["dev"][[0, 1, 2]]  # Its tokens come from the cache.
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
    assert data.splits["train"].words == expected.splits["train"].words
    assert data.sha256 == expected.sha256


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        ("fly O\nto\n", {}, "line 2 is 'to', expected a word and a tag in column -1"),
        ("fly O\n", {"column": 2}, "line 1 is 'fly O', expected a word and a tag in column 2"),
        ("", {}, "is empty, expected a word and its tag on each line"),
        ("fly O\nto O\n", {}, "has the tag O alone, expected tags such as B-city: set task.column"),
    ],
)
def test_invalid_files_are_named_in_the_error(
    content: str, options: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").write_text(content)
    with pytest.raises(UserError, match=expected.replace("(", r"\(")):
        TokenClassification(data=tmp_path, **options).read(tmp_path)


def test_a_missing_directory_or_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere does not exist, expected a directory with train and dev"):
        TokenClassification(data=tmp_path / "nowhere").read(tmp_path)
    with pytest.raises(UserError, match=r"has no train file \(found nothing\)"):
        TokenClassification(data=tmp_path).read(tmp_path)


@pytest.fixture(scope="module")
def result(conll: Path, tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> d.Result:
    root = tmp_path_factory.mktemp("tagging")
    teacher = d.Teacher(toy_bert(len(tokenizer), initializer_range=0.05), tokenizer, cache_dir=root / "cache")
    task = d.tasks.TokenClassification(data=conll, max_length=32)
    settings: dict[str, Any] = {"batch_size": 16, "precision": "32-true", "learning_rate": 3e-3}
    teacher.fit(task, max_epochs=15, **settings)
    return d.distill(
        teacher, d.students.distilbert(), task, trainer=d.TrainerSettings(max_epochs=10, **settings),
        objective=d.Objective(soft=d.SoftTargets(), hard=d.HardLabels()),
        benchmark=d.BenchmarkSettings(batches=[1], lengths=[8], seconds=0.02), directory=root / "run",
    )  # fmt: skip


def test_a_whole_run_learns_to_tag(result: d.Result) -> None:
    record = result.record
    assert record["task"]["kind"] == "token_classification"
    assert record["teacher"]["metrics"]["f1"] > 0.95
    assert record["student"]["metrics"]["f1"] > 0.9
    assert record["training"]["teacher_cache"]["hit"] is False
    assert record["export"]["fp32"]["agreement"] == 1.0
    assert record["export"]["fp32"]["metrics"] == record["student"]["metrics"]
    assert set(record["export"]["int8"]["metrics"]) == {"f1", "precision", "recall", "accuracy"}
    assert "token-classification" in (result.directory / "bundle" / "README.md").read_text()


def test_the_bundle_predicts_entities_with_their_character_offsets(result: d.Result) -> None:
    bundle = d.Bundle(result.directory / "bundle", model="fp32")
    text = "fly to new york monday"
    [from_text] = bundle.predict([text])
    [from_words] = bundle.predict([{"tokens": text.split()}])
    assert from_text == from_words
    entities = [(entity["type"], entity["text"]) for entity in from_text["entities"]]
    assert entities == [("city", "new york"), ("day", "monday")]
    for entity in from_text["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"]
        assert 0 < entity["score"] <= 1
    assert bundle.decoder.format(from_text) == "city: new york; day: monday"
    json.dumps(from_text)
    with pytest.raises(UserError, match="got 7, expected a text or"):
        bundle.predict([7])


def test_cached_outputs_equal_the_computed_ones_for_any_batch(
    conll: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    from distill.teaching.output_cache import OutputCache
    from distill.teaching.outputs import Computation, cache_outputs

    task = TokenClassification(data=conll)
    dev = task.encode(task.read(tmp_path), tokenizer, None)["dev"]
    teacher = d.Teacher(toy_bert(len(tokenizer)), tokenizer, cache_dir=tmp_path)
    model = teacher.source.weights.load(task.auto_class, task.labels, ()).model.eval()
    computation = Computation(lambda: model, "one", task, OutputCache(), tmp_path / "outputs")
    cached = cache_outputs(computation, dev).outputs
    assert isinstance(cached, CachedOutputs)
    for rows in ([3], [5, 0, 7]):
        batch = dev[rows]
        items = task.select(batch)
        expected = task.run(model, batch, items, frozenset()).at(items).logits
        np.testing.assert_allclose(cached(batch, items).at(items).logits, expected.detach(), atol=1e-5)
    assert len(cached.logits()) == sum(len(task.select(dev[step])) for step in batching.scoring_steps(dev.lengths))
