"""Tests of the student of TF-IDF: equal to scikit-learn's pipeline, exported, fitted by a command, and refused."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline

import distill as d
from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.data import words
from distill.edge.bundle_files import session
from distill.export.onnx import export_onnx
from distill.models.architectures.modeling_tfidf import TfidfConfig, TfidfForSequenceClassification
from distill.text.vocabulary import WORD_TOKENS, make_word_tokenizer
from tests.conftest import run_here
from tests.golden.runs import golden_root  # noqa: F401
from tests.jobs.runs import read_record

CHARACTERS = "aAbB12_ '.,-:·ΣσςΟοÉé\u0301İ\u0131ßẞ中文ﬁ²½ǅ\u00ad\u2019#" + "".join(WORD_TOKENS)


def write_texts(number: int, *, seed: int = 0) -> list[str]:
    """Returns texts of words that repeat, with their case and punctuation changed, and some without a word."""
    draw = random.Random(seed)
    vocabulary = ["".join(draw.choices(CHARACTERS, k=draw.randrange(1, 5))) for _ in range(60)]
    separators = [" ", "  ", ", ", " - ", "\n", "'", "..."]
    texts = ["!", "a", "... ?"]
    while len(texts) < number:
        chosen = draw.choices(vocabulary, k=draw.randrange(1, 20))
        texts.append("".join(draw.choice([w, w.upper(), w.title()]) + draw.choice(separators) for w in chosen))
    return texts[:number]


TEXTS = write_texts(300)
CLASSES = [len(text) % 3 for text in TEXTS]


def fit(task: Any) -> tuple[Any, Callable[[list[Any]], np.ndarray]]:
    """Returns the student of a task, and a function that returns its logits for texts or pairs."""
    student: Any = d.students.tfidf().fit(task, task.read(None))

    def predict(texts: list[Any]) -> np.ndarray:
        inputs = student.tokenizer(texts, padding=True, return_tensors="pt")
        logits: np.ndarray = student(**inputs).logits.detach().numpy()
        return logits

    return student, predict


@pytest.fixture
def one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "PENALTIES", (3.0,))
    monkeypatch.setattr(words, "RARITIES", (2,))


def vectorize() -> TfidfVectorizer:
    return TfidfVectorizer(sublinear_tf=True, min_df=2)


def test_words_are_those_of_scikit_learn() -> None:
    draw = random.Random(1)
    texts = ["".join(draw.choices(CHARACTERS, k=draw.randrange(30))) for _ in range(5000)]
    found = TfidfVectorizer().fit(texts[:2500])
    tokenizer, analyze = make_word_tokenizer(found.get_feature_names_out().tolist()), found.build_analyzer()
    for text in texts:
        tokens = tokenizer.tokenize(text)
        known = [word for word in analyze(text) if word in found.vocabulary_]
        assert [token for token in tokens if token not in WORD_TOKENS] == known, repr(text)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.usefixtures("one_model")
def test_classes_are_those_of_the_pipeline_on_every_row(classes: int) -> None:
    labels = [label % classes for label in CLASSES]
    task = d.tasks.Classification(train=(TEXTS, labels), dev=(TEXTS[:50], labels[:50]), class_weights="balanced")
    _, predict = fit(task)
    estimator = LogisticRegression(C=3.0, max_iter=1000, class_weight="balanced")
    pipeline = make_pipeline(vectorize(), estimator).fit(TEXTS, labels)
    rows = ["", *TEXTS, *write_texts(200, seed=1)]
    logits = predict(rows)
    assert (logits.argmax(axis=1) == pipeline.predict(rows)).all()
    probabilities = torch.from_numpy(logits).softmax(dim=1).numpy()
    np.testing.assert_allclose(probabilities, pipeline.predict_proba(rows), atol=1e-5)


@pytest.mark.usefixtures("one_model")
def test_labels_numbers_and_pairs_are_those_of_the_pipeline_on_every_row() -> None:
    sets = [[name for bit, name in enumerate("xyz") if number % 7 >> bit & 1] for number in map(len, TEXTS)]
    task: Any = d.tasks.Classification(train=(TEXTS, sets), dev=(TEXTS[:50], sets[:50]), multi_label=True)
    labels = task.read(None).splits["train"].labels
    pipeline = make_pipeline(vectorize(), OneVsRestClassifier(LogisticRegression(C=3.0, max_iter=1000)))
    expected = pipeline.fit(TEXTS, labels).decision_function(TEXTS)
    np.testing.assert_allclose(fit(task)[1](TEXTS), expected, atol=1e-4)
    pairs = {"a": TEXTS, "b": TEXTS[::-1], "score": [float(len(text)) for text in TEXTS]}
    dev = {name: column[:50] for name, column in pairs.items()}
    task = d.tasks.Regression(text=["a", "b"], label="score", train=pairs, dev=dev)
    joined = [f"{one} {two}" for one, two in zip(TEXTS, TEXTS[::-1], strict=True)]
    numbers = make_pipeline(vectorize(), Ridge(alpha=1 / 3.0)).fit(joined, pairs["score"]).predict(joined)
    found = fit(task)[1](list(zip(TEXTS, TEXTS[::-1], strict=True)))
    np.testing.assert_allclose(found[:, 0], numbers, atol=1e-3)


def test_the_penalty_and_the_rarity_are_those_that_are_best_on_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def score(logits: np.ndarray) -> float:
        seen.append(float(np.abs(logits).max()))
        return len(seen) if len(seen) != 10 else 0

    texts, labels = np.array(TEXTS, dtype=object), np.array(CLASSES)
    monkeypatch.setattr(words, "TUNED", 100)  # The last fit has all rows.
    found = words.tune(
        texts, labels, lambda *given: words.fit_classes(*given, classes=4), dev=texts[:50], score=score
    )  # fmt: skip
    assert (found.penalty, found.vectorizer.min_df, len(seen)) == (10.0, 2, 10)
    assert len(found.vectorizer.vocabulary_) == len(vectorize().fit(TEXTS).vocabulary_)
    assert found.bias[3] == words.NEVER  # Of a class without a row.
    assert not found.weights[:, 3].any()


def test_the_exported_file_equals_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network: Any = TfidfForSequenceClassification(TfidfConfig(vocab_size=40, num_labels=3)).eval()
    torch.nn.init.uniform_(network.idf, 1, 5)
    network.idf[:3] = 0
    export_onnx(network, tmp_path / "model.onnx")
    file = session(tmp_path / "model.onnx")
    for batch, length, widths in itertools.product((1, 3), (1, 7, 64), ((5, 0), (0, 5))):
        ids, mask = torch.randint(1, 40, (batch, length)), torch.ones((batch, length), dtype=torch.long)
        alone = network(ids).logits
        ids = torch.nn.functional.pad(ids, widths, value=7)  # Not the token for padding.
        mask = torch.nn.functional.pad(mask, widths)
        [logits] = file.run(["logits"], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        np.testing.assert_allclose(logits, alone.detach().numpy(), atol=1e-5)
        output = network(ids, mask, output_hidden_states=True)
        torch.testing.assert_close(output.hidden_states[0].sum(dim=1) + network.bias, alone)


TEACHER = (
    "teacher.accept_weak=true task.max_length=32 cache_dir=cache benchmark.batches=[1] benchmark.lengths=[16] "
    "benchmark.seconds=0.001"
)
CLASSIFIER = f"+teacher=pretrained teacher.path=toys/classifier1 {TEACHER} task=sst2 task.data_dir=toys/classes"
ENCODER = f"+teacher=pretrained teacher.path=toys/encoder {TEACHER}"


def test_a_command_fits_it_without_a_step(golden_root: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "toys").symlink_to(golden_root / "toys")
    long = "a lovely " + "and warm " * 100 + "film\t1\n"
    (tmp_path / "data").mkdir()
    for split in ("train", "dev"):
        rows = (golden_root / "toys/classes" / f"{split}.tsv").read_text()
        (tmp_path / "data" / f"{split}.tsv").write_text(rows + long * (split == "dev"))
    options = f"{CLASSIFIER} +student=tfidf task.data_dir=data baseline=auto augment=auto export.formats=[fp32]".split()
    done = run_here(*options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [directory] = (path.parent for path in tmp_path.rglob("run.json"))
    record = read_record(directory)
    assert record["training"]["steps"] == 0
    assert record["training"]["seconds"] > 0
    assert record["training"]["fitted"].startswith("fitted to 24 rows by scikit-learn, with C=")
    assert record["teacher_outputs"] == {"cached": False, "reason": None}
    assert record["baseline_choice"]["possible"] is record["baseline_choice"]["trained"] is False
    assert record["task"]["truncated"] == {"train": 0, "dev": 0}
    assert "no step, fitted to 24 rows by scikit-learn" in (directory / "report.md").read_text()
    bundle = d.Bundle(directory / "bundle", model="fp32")
    student = TfidfForSequenceClassification.from_pretrained(directory / "student")
    tokens = bundle.tokenizer.encode(long).ids
    assert len(tokens) == 203  # All words of two letters, and the beginning
    probabilities = student(torch.tensor([tokens])).logits.softmax(dim=-1)[0].tolist()
    [prediction] = bundle.predict([long])
    assert list(prediction["probabilities"].values()) == pytest.approx(probabilities, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (f"{CLASSIFIER} objective=hinton", "and is not for objective=hinton: leave it out"),
        (f"{CLASSIFIER} baseline=true", "and is not for baseline=true: leave it out"),
        (f"{CLASSIFIER} student.max_length=0", "got student.max_length=0, expected a whole number of at least 1"),
        (f"{CLASSIFIER} export.vocabulary=trained", "teacher and student read different tokens"),
        (f"{ENCODER} task=token_classification task.data_dir=toys/tags", "not for task=token_classification (token_"),
        (f"{ENCODER} task=multiple_choice task.data_dir=toys/choices", "not for task=multiple_choice (multiple_choice"),
        (f"{ENCODER} task=retrieval task.data_dir=toys/retrieval", "not for task=retrieval (embedding): leave it out,"),
    ],
)
def test_what_it_cannot_be_is_refused(
    options: str,
    expected: str,
    golden_root: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "toys").symlink_to(golden_root / "toys")
    done = run_here(*options.split(), "+student=tfidf", cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr


def test_texts_without_words_or_labels_are_refused() -> None:
    dev = (["one two", "two"], ["x", "y"])
    with pytest.raises(UserError, match="no text of train has a word of two letters or digits"):
        fit(d.tasks.Classification(train=(["a", "!", "b c"], ["x", "y", "x"]), dev=dev))
    task = d.tasks.Classification(train=dev, dev=dev)
    data = task.read(None)
    unlabelled = data.splits["train"].with_columns(labels=np.full(2, IGNORED))
    with pytest.raises(UserError, match="is fitted to labels, and train of task classification has none"):
        d.students.tfidf().fit(task, replace(data, splits={**data.splits, "train": unlabelled}))
