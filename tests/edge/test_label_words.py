"""Tests of bundles whose labels are words: log-likelihoods equal to torch's, records of several tasks, bad input."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, normalizers

from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.core.files import write_json
from distill.edge.bundle import Bundle
from distill.edge.decode import LabelWords
from distill.edge.evaluation import Columns, evaluate
from distill.models.decoding import score_words
from tests.edge.test_text_bundles import END, START, make_tokenizer, write_text_bundle
from tests.export.test_generator import make_model

# Words of which two share a token and one begins another; a source of the second task has two columns.
ONE = {
    "name": "w10", "columns": ["w11"], "labels": ["a", "b", "c"], "words": ["w5", "w5 w6", "w5 w6 w7"],
    "positive": None,
}  # fmt: skip
TWO = {"name": "w12", "columns": ["w13", "w14"], "labels": ["no", "yes"], "words": ["w8", "w9"], "positive": "yes"}
DECODING = {"start": START, "end": END, "max_target": 6}


def tokenizer() -> Tokenizer:
    """Returns one that reads `w11:` as a token too."""
    found = make_tokenizer("t5")
    found.normalizer = normalizers.Replace(":", "")
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that returns the bundle of a T5 with these tasks, written once."""

    @functools.cache
    def write(*names: str) -> Path:
        directory: Path = tmp_path_factory.mktemp("bundle")
        file = None if names == ("w10", "w12") else write("w10", "w12") / "model.fp32.onnx"
        write_text_bundle(directory, "t5", file=file, tokenizer=tokenizer())
        tasks = [task for task in (ONE, TWO) if task["name"] in names]
        labels = [label for task in tasks for label in task["labels"]]
        change(
            directory, decoder="label_words", kind="label_words", labels=labels, decoding={**DECODING, "tasks": tasks}
        )
        return directory

    return write


def change(directory: Path, **fields: Any) -> None:
    content = json.loads((directory / "bundle.json").read_text())
    write_json(directory / "bundle.json", content | fields)


@pytest.fixture(scope="module")
def both(written: Callable[..., Path]) -> Bundle:
    return Bundle(written("w10", "w12"), threads=1)


def expected(source: str, words: list[str]) -> np.ndarray:
    """Returns the log-likelihoods of words after a source, `[words]`, in torch."""
    reads = tokenizer()
    rows = [reads.encode(word).ids for word in words]
    ids = torch.tensor([reads.encode(source).ids])
    width = max(map(len, rows))
    padded = torch.tensor([[row + [IGNORED] * (width - len(row)) for row in rows]])
    model = make_model("t5")
    start = model.config.decoder_start_token_id
    model.config.decoder_start_token_id = START
    try:
        with torch.no_grad():
            return score_words(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, padded)[0].numpy()
    finally:
        model.config.decoder_start_token_id = start


def test_log_likelihoods_are_those_of_torch_in_every_batch(both: Bundle) -> None:
    texts = ["w20 w21", "w22", "w23 w24 w25 w26 w27"]
    records: list[Any] = [{"w11": text} for text in texts] + [{"w13": text, "w14": "w30"} for text in texts]
    for batch_size in (1, 4, 32):
        rows = both.item_logits(records, batch_size=batch_size)
        for text, of_one, of_two in zip(texts, rows[:3], rows[3:], strict=True):
            one, two = (expected(f"w10 w11 {text}", ONE["words"]), expected(f"w12 w13 {text} w14 w30", TWO["words"]))
            np.testing.assert_allclose(of_one, one[None], atol=1e-4)
            np.testing.assert_allclose(of_two, two[None], atol=1e-4)


def test_a_prediction_is_that_of_a_classification_with_the_name_of_the_task(both: Bundle) -> None:
    one, two = both.predict([{"w11": "w20"}, {"task": "w12", "w13": "w20", "w14": "w21"}])
    likelihoods = expected("w10 w11 w20", ONE["words"]).astype(float)
    shares = np.exp(likelihoods) / np.exp(likelihoods).sum()
    assert one["probabilities"] == pytest.approx(dict(zip("abc", shares, strict=True)), abs=1e-4)
    assert (one["label"], one["task"], two["task"]) == ("abc"[int(shares.argmax())], "w10", "w12")
    assert one["probability"] == max(one["probabilities"].values())
    assert both.decoder.format(one) == f"{one['label']}\t{one['probability']:.4f}"
    assert not both.generates


def test_records_of_every_form_are_one_source(both: Bundle, written: Callable[..., Path]) -> None:
    source, single = both.predict(["w12 w13: w20 w14: w21", {"w13": "w20", "w14": "w21"}])
    assert source == single
    pair = Bundle(written("w12"), threads=1)
    texts: list[Any] = [["w20", "w21"], pair.decoder.parse("w20\tw21"), {"w13": "w20", "w14": "w21"}]
    assert [of["label"] for of in pair.predict(texts)] == [single["label"]] * 3
    assert "task" not in pair.predict(texts[0:1])[0]
    one = Bundle(written("w10"), threads=1)
    assert one.predict("w20") == one.predict("w10 w11: w20") == one.predict({"w11": "w20"})


def test_a_long_source_is_cut_at_its_end(both: Bundle) -> None:
    [cut, short] = both.predict([{"w11": " ".join(["w20"] * 40)}, {"w11": " ".join(["w20"] * 29)}])
    assert cut.pop("truncated")
    assert cut == short  # Two tokens stand before the text, and one behind it.


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("w20", r"expected a text that begins with one of 'w10 w11:', 'w12 w13:', or \{\"task\": ...,"),
        ({"w14": "w20"}, "got the columns w14, and w10 has w11; w12 has w13, w14"),
        ({"task": "w99", "w11": "w20"}, "got the task 'w99', expected one of w10, w12"),
        ({"task": "w10", "w13": "w20"}, "got the columns task, w13, and w10 has w11"),
        ({"w11": 3}, "expected text in w11"),
        ({"w13": " ", "w14": ""}, "expected text in w13 and w14"),
        ({"w11": "w20", "w13": "w20", "w14": "w21"}, "which w10 and w12 both have: name one of them in task"),
    ],
)  # fmt: skip
def test_a_record_of_no_task_is_refused(record: Any, message: str, both: Bundle) -> None:
    with pytest.raises(UserError, match=message):
        both.predict([record])


def test_other_records_than_a_pair_are_refused(written: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match="expected text in w13 and w14"):
        Bundle(written("w12"), threads=1).predict([["w20", 3]])


def test_a_damaged_decoding_is_refused() -> None:
    for fields, message in (
        ({"tasks": []}, r"decoding has tasks \[\], expected a list of at least one task"),
        ({"tasks": [{**TWO, "words": ["w8"]}]}, "expected a name, columns, and a word for each label"),
        ({"tasks": [TWO], "end": None}, "decoding lacks start, end or max_target, without which no word can be scored"),
    ):
        with pytest.raises(UserError, match=message):
            LabelWords(["no", "yes"], False, {**DECODING, **fields}, tokenizer())


def test_a_file_is_scored_by_the_labels_of_its_task(both: Bundle, tmp_path: Path) -> None:
    texts = [f"w{number}" for number in range(20, 40)]
    labels = [prediction["label"] for prediction in both.predict([{"w13": text, "w14": "w21"} for text in texts])]
    wrong = {"no": "yes", "yes": "no"}
    rows = [{"w13": text, "w14": "w21", "label": label} for text, label in zip(texts, labels, strict=True)]
    rows[0]["label"] = wrong[labels[0]]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = evaluate(both, path, Columns())
    assert (found.rows, found.metrics["accuracy"]) == (20, 0.95)
    assert found.metrics.keys() == {"accuracy", "f1", "matthews", "macro_f1"}
    with pytest.raises(UserError, match="got w13, expected w13, w14: give --text-column NAME"):
        evaluate(both, path, Columns(texts=["w13"]))
    (tmp_path / "other.jsonl").write_text('{"text": "w20", "label": "no"}\n')
    with pytest.raises(UserError, match="got the columns text, label, and w10 has w11; w12 has w13, w14"):
        evaluate(both, tmp_path / "other.jsonl", Columns())
