"""Tests of the runtime on the device: predictions from text, the command line, and errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest

from distill.core.errors import UserError
from distill.core.files import CHECKSUMS, hash_file, write_json
from distill.edge.__main__ import main
from distill.edge.bundle import Bundle
from distill.edge.decoder import softmax
from distill.edge.prediction import split_batches
from tests.edge.conftest import Output, Patch, Write, add_checksums

LEFT_OUT = object()
TEXT = "a dull film and a moving film"  # Of more than the eight tokens that a bundle reads.


@pytest.fixture
def bundle(write: Write) -> Path:
    """A bundle with the logits [number of tokens, 4]."""
    return write()


def change(bundle: Path, **values: Any) -> None:
    """Replaces values of bundle.json, and leaves out those of None."""
    about = json.loads((bundle / "bundle.json").read_text()) | values
    write_json(bundle / "bundle.json", {name: value for name, value in about.items() if value is not LEFT_OUT})


def test_logits_are_in_the_order_of_the_texts_and_ignore_padding(bundle: Path) -> None:
    texts = ["a film", "", TEXT, "film"]
    tokens = [min(8, len(encoding.ids)) for encoding in Bundle(bundle).tokenizer.encode_batch(texts)]
    shares: list[float] = []
    logits = Bundle(bundle).item_logits(iter(texts), batch_size=2, report=shares.append)
    assert np.concatenate(logits).tolist() == [[count, 4.0] for count in tokens]
    assert shares == [0.5, 1.0]
    assert Bundle(bundle).logits([]).shape == (0, 2)
    [prediction] = Bundle(bundle).predict([TEXT])
    share = np.exp(8) / (np.exp(8) + np.exp(4))
    assert prediction == {
        "label": "long", "probability": pytest.approx(share), "truncated": True,
        "probabilities": pytest.approx({"long": share, "short": 1 - share}),
    }  # fmt: skip
    assert softmax(np.array([[1000.0, 0.0], [-1000.0, -1000.0]])).tolist() == [[1.0, 0.0], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (pandas.DataFrame({"text": ["a"]}), r"got a table \(DataFrame\), expected a list of records: give one of it"),
        (pyarrow.table({"text": ["a film"]}), r"got a table \(Table\), expected a list of records"),
        (None, "got None, expected a list of records"),
        ({"a film"}, "got {'a film'}, expected a list of records"),
        (b"a film", "got b'a film', expected a list of records, or one text or mapping"),
        (np.array("a film"), "got 'a film', expected a list of records"),
        ([None], "got None, expected a text"),
        (np.array(["a film", np.nan], dtype=object), "got nan, expected a text"),
        (["film", ["a" * 100_000, "b"]], r"aaaa\.\.\., expected a text"),
        (["a \ud800 film"], r"got 'a \\ud800 film', expected Unicode: character 3 is a lone surrogate"),
    ],
    ids=["frame", "arrow", "none", "set", "bytes", "scalar", "none in a list", "nan", "list", "surrogate"],
)
def test_values_that_are_no_list_of_records_are_named(bundle: Path, records: Any, message: str) -> None:
    loaded = Bundle(bundle)
    for function in (loaded.predict, loaded.logits, loaded.item_logits):
        with pytest.raises(UserError, match=message) as caught:
            function(records)
        assert len(str(caught.value)) < 200


def test_options_of_a_prediction_are_checked(bundle: Path) -> None:
    for options, expected in (
        ({"batch_size": 0}, "got batch_size=0, expected a whole number of at least 1"),
        ({"batch_size": 2.0}, "got batch_size=2.0, expected a whole number of at least 1"),
        ({"pairs": ["film"]}, "got pairs, the bundle reads single texts"),
    ):
        with pytest.raises(UserError, match=expected):
            Bundle(bundle).predict(["film"], **options)  # type: ignore[call-overload]
    for threads in (0, 2**40, 1.5, True):
        with pytest.raises(UserError, match=f"got threads={threads}, expected a whole number from 1 to 1024"):
            Bundle(bundle, threads=threads)  # type: ignore[arg-type]


def test_texts_and_pairs_are_any_values_in_order(write: Write) -> None:
    single, texts = Bundle(write()), ["a film", TEXT]
    expected = single.predict(texts)
    for records in (np.array(texts), pandas.Series(texts, index=[7, 3]), (text for text in texts), tuple(texts)):
        assert single.predict(records) == expected
    assert single.predict(TEXT) == expected[1]
    bundle, texts = Bundle(write(pair=True, name="pairs")), ["a film", "film"]
    expected = bundle.predict([["a film", "a joy"], ["film", "a"]])
    for pairs in (["a joy", "a"], (text for text in ("a joy", "a")), np.array(["a joy", "a"])):
        assert bundle.predict(texts, pairs) == expected
    assert bundle.predict(np.array([["a film", "a joy"], ["film", "a"]])) == expected
    assert bundle.predict("a film", "a joy") == expected[0]
    wrong: list[tuple[Any, Any, str]] = [
        (texts, 3, "got pairs=3, expected a list of records"),
        (texts, (text for text in ["a"]), "got 2 texts and 1 pairs, expected one pair for each text"),
        (texts, pandas.DataFrame({"b": ["a", "b"]}), r"got pairs=a table \(DataFrame\)"),
        (texts, [None, "a"], r"got \['a film', None\], expected two texts"),
        ("a film", ["a joy"], r"got one text and \['a joy'\] as pairs, expected"),
        (("a film", "a joy"), None, "got 'a film', expected two texts"),
    ]
    for first, second, message in wrong:
        with pytest.raises(UserError, match=message):
            bundle.predict(first, second)


@pytest.mark.parametrize(
    ("change_to", "expected"),
    [
        ({"format": 7}, "is of format 7, this version of distill reads format 1: export it again, or read it with the"),
        ({"labels": ["a", "a"]}, 'labels is ["a", "a"], expected a list of names, each once'),
        ({"labels": ["only"]}, "the decoder classes does not fit 1 labels"),
        ({"labels": ["a", "b", "c"]}, "has logits ['batch', 2], expected 2 axes and 3 classes as in bundle.json"),
        ({"labels": LEFT_OUT}, "labels is missing, expected a list of names"),
        ({"pair": "no"}, 'pair is "no", expected true or false'),
        ({"doc_stride": -1}, "doc_stride is -1, expected null, or the tokens that neighbouring windows share"),
        ({"decoding": None}, "decoding is null, expected the values that the decoder needs, by name"),
        (
            {"decoder": "spans", "decoding": {}},
            "is damaged: decoding has n_best None, expected a whole number of at least 1",
        ),
        (
            {"decoder": "spans", "decoding": {"n_best": 2, "max_answer_length": 2, "null_threshold": "0"}},
            "is damaged: decoding has null_threshold '0', expected a number or null",
        ),
        ({"gates": {"fp32": 1}}, 'gates is {"fp32": 1}, expected one line for each model that did not pass its gate'),
        ({"gates": {"int9": "failed"}}, "gates has int9, expected some of fp32"),
        ({"batch_sizes": {"fp32": 0}}, 'batch_sizes is {"fp32": 0}, expected a whole number of at least 1 for each'),
        ({"max_length": 0}, "max_length is 0, expected a whole number of at least 1"),
        ({"max_length": 1}, "max_length is 1, less than its 2 special tokens"),
        ({"truncation_side": "top"}, 'truncation_side is "top", expected left or right'),
        (
            {"inputs": ["input_ids", "positions"]},
            "expected a list of some of input_ids, attention_mask, token_type_ids",
        ),
        ({"inputs": ["input_ids"]}, "has the inputs input_ids, attention_mask, bundle.json has input_ids"),
        ({"padding": {"input_ids": 0}}, "padding has no attention_mask, expected a value for each input"),
        ({"padding": {"input_ids": None, "attention_mask": 0}}, "expected a whole number of at least 0 for each input"),
        ({"padding_side": None}, "padding_side is null, expected left or right"),
        ({"models": {"fp32": "../model.onnx"}}, 'models is {"fp32": "../model.onnx"}, expected the name of a file'),
        ({"models": {"fp32": "other.onnx"}}, "files has no SHA-256 of other.onnx"),
        ({"recommended": "int8"}, 'recommended is "int8", expected null or one of fp32'),
        ({"recommended": 1}, "recommended is 1, expected null or the name of a model"),
        ({"recommended": None}, "recommends no model because all failed the gate: choose one of fp32"),
        ({"thresholds": {"fp32": 1.5}}, 'thresholds is {"fp32": 1.5}, expected a probability for each model that abst'),
        ({"escalate": {"fp32": [[0, 0.7], [0.1, 0.6]]}}, "escalate is {"),
        ({"escalate": {"fp32": [[0.1, 0.6], [0.1, 0.7]]}}, "expected shares and thresholds that rise, for each model"),
        ({"escalate": {"int9": [[0, 0.6]]}}, "escalate has int9, expected some of fp32"),
        ({"files": {"model.onnx": "abc"}}, 'files is {"model.onnx": "abc"}, expected the SHA-256 of each file'),
        ({"decoder": "tags of 2031"}, "needs the decoder tags of 2031, this version of distill has classes, labels"),
        (
            {"labels": ["score"], "decoder": "number", "thresholds": {"fp32": 0.9}},
            "is damaged: the decoder number has no thresholds",
        ),
        (
            {"labels": ["score"], "decoder": "number", "escalate": {"fp32": [[0, 0.6]]}},
            "is damaged: the decoder number has no thresholds",
        ),
        ({"decoder": None}, "decoder is null, expected the name of a decoder"),
        ({"decoder": "tags"}, "is damaged: decoding has the splitter None, expected one of punctuation, edges"),
        (
            {"decoder": "tags", "decoding": {"splitter": {"name": "spaces"}}},
            "has logits ['batch', 2], expected 3 axes and 2 classes",
        ),
        ({"decoder": "choices"}, "the decoder choices does not fit 2 labels"),
        (
            {"decoder": "choices", "labels": []},
            "has input_ids ['batch', 'length'], expected 3 axes for the decoder choices",
        ),
    ],
)
def test_an_invalid_value_of_bundle_json_is_named(bundle: Path, change_to: dict[str, Any], expected: str) -> None:
    change(bundle, **change_to)
    with pytest.raises(UserError) as error:
        Bundle(bundle)
    assert expected in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_bundle_with_a_threshold_gives_no_label_below_it(bundle: Path, capsys: Output) -> None:
    texts = ["a film", TEXT]
    unsure, sure = Bundle(bundle).predict(texts)
    assert (unsure["label"], sure["label"]) == ("long", "long")  # Four tokens have equal logits, eight a larger one.
    change(bundle, thresholds={"fp32": unsure["probability"]})
    assert Bundle(bundle).predict(texts) == [unsure, sure]
    change(bundle, thresholds={"fp32": 0.9})
    assert Bundle(bundle).predict(texts) == [unsure | {"label": None}, sure]
    assert main([str(bundle), *texts]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"(no label)\t{unsure['probability']:.4f}\ta film", f"long\t0.9820\t{texts[1]}"]
    assert main([str(bundle), *texts, "--json"]) == 0
    assert [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()] == [None, "long"]


def test_a_share_of_dev_is_left_to_the_teacher(bundle: Path, capsys: Output) -> None:
    texts = ["a film", TEXT]
    unsure, sure = Bundle(bundle).predict(texts)  # Of the probabilities 0.5 and 0.982.
    with pytest.raises(UserError, match=r"got escalate=0.05, and bundle.json of .* has no shares of dev for fp32: le"):
        Bundle(bundle).predict(texts, escalate=0.05)
    change(bundle, escalate={"fp32": [[0.0, 0.3], [0.1, 0.4], [0.2, 0.6], [0.3, 0.99]]})
    loaded = Bundle(bundle)
    assert loaded.predict(texts) == [unsure, sure]
    for share, marks in ((0, [False] * 2), (0.1, [False] * 2), (0.14, [False] * 2), (0.16, [True, False]),
                         (0.2, [True, False]), (0.3, [True] * 2)):  # fmt: skip
        marked = loaded.predict(texts, escalate=share)
        assert marked == [of | {"escalate": mark} for of, mark in zip([unsure, sure], marks, strict=True)]
    for share in (-0.1, 0.31, float("nan"), "0.1", True):
        with pytest.raises(UserError, match=r"got escalate=.*, expected a share from 0 to 0.3"):
            loaded.predict(texts, escalate=share)  # type: ignore[call-overload]
    command = [str(bundle), *texts, "--escalate", "0.2"]
    assert main(command) == 0
    assert [line.split("\t")[2] for line in capsys.readouterr().out.splitlines()] == ["escalate", "-"]
    assert main([str(bundle), "--escalate", "0.2", "--jsonl", '"a film"', " "]) == 0
    assert [json.loads(line)["escalate"] for line in capsys.readouterr().out.splitlines()] == [True, None]
    for option, expected in (
        ("0.5", "got escalate=0.5, expected a share"),
        ("0.2 --explain", "got --escalate, which ma"),
    ):
        assert main([*command[:-1], *option.split()]) == 2
        assert expected in capsys.readouterr().err


def test_bundle_json_is_compared_with_the_checksums_of_its_directory(bundle: Path) -> None:
    expected = Bundle(bundle).predict(["a film"])
    add_checksums(bundle)
    assert Bundle(bundle).predict(["a film"]) == expected
    change(bundle, labels=["short", "long"])
    with pytest.raises(
        UserError, match=r"bundle.json is damaged: its SHA-256 is not the one in SHA256SUMS; if you edit"
    ):
        Bundle(bundle)
    (bundle / CHECKSUMS).write_bytes(b"\xff")
    with pytest.raises(UserError, match="SHA256SUMS is damaged: it has no line for bundle.json"):
        Bundle(bundle)
    (bundle / CHECKSUMS).unlink()
    assert Bundle(bundle).predict(["a film"]) != expected


def test_a_file_that_cannot_be_read_is_named(bundle: Path) -> None:
    (bundle / "model.onnx").write_bytes(b"no model")
    files = {name: hash_file(bundle / name) for name in ("model.onnx", "tokenizer.json")}
    change(bundle, files=files)
    with pytest.raises(UserError, match="model.onnx cannot be loaded by onnxruntime") as error:
        Bundle(bundle)
    assert len(str(error.value).splitlines()) == 1
    (bundle / "tokenizer.json").write_text("{}")
    change(bundle, files=files | {"tokenizer.json": hash_file(bundle / "tokenizer.json")})
    with pytest.raises(UserError, match="tokenizer.json cannot be read by tokenizers"):
        Bundle(bundle)
    for content in (b"\xff{}", b"[" * 100_000, b'{"labels": "\\ud800"}', b"[1]"):
        (bundle / "bundle.json").write_bytes(content)
        with pytest.raises(UserError, match=r"^[^\n]*bundle.json is damaged: [^\n]*$"):
            Bundle(bundle)


def test_logits_that_are_not_finite_are_no_prediction(bundle: Path, monkeypatch: Patch) -> None:
    loaded = Bundle(bundle)
    logits = np.full((1, 2), np.nan, dtype=np.float32)

    class Session:
        def run(self, *arguments: Any) -> list[np.ndarray]:
            return [logits]

    monkeypatch.setattr(loaded, "session", Session())
    with pytest.raises(UserError, match="the logits of fp32 for record 1 are not finite"):
        loaded.predict(["film"])


def test_texts_are_cut_to_fewer_tokens_than_the_bundle_reads(bundle: Path) -> None:
    assert Bundle(bundle).logits([TEXT]).tolist() == [[8, 4]]
    shortened = Bundle(bundle, max_length=5)
    assert shortened.logits([TEXT]).tolist() == [[5, 4]]
    assert [shortened.truncates(text) for text in (TEXT, "film")] == [True, False]
    assert "one text of at most 5 tokens" in repr(shortened.overview())


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (9, "got max_length=9, expected a whole number from 1 to 8"),
        (True, "got max_length=True, expected a whole number from 1 to 8"),
        (2, "got max_length=2, expected more than the 2 special tokens of a text"),
    ],
)
def test_a_length_that_the_bundle_cannot_read_is_refused(bundle: Path, length: int, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Bundle(bundle, max_length=length)
    assert str(caught.value) == message


def test_long_rows_have_smaller_batches() -> None:
    rows: list[Any] = [[range(length)] for length in (4096, 1, 2048, 2048, 2048, 1, 1, 2048, 2048, 5000)]
    assert list(split_batches(rows, 2)) == [[1, 5], [6, 2], [3, 4], [7, 8], [0], [9]]
    assert list(split_batches(rows, 32)) == [[1, 5, 6, 2], [3, 4, 7, 8], [0], [9]]
    assert list(split_batches([], 32)) == []


def test_a_regression_predicts_a_number(write: Write, capsys: Output) -> None:
    bundle = write(labels=["length"], decoder="number")
    number = Bundle(bundle).logits(["a lovely film"])[0, 0]
    assert Bundle(bundle).predict(["a lovely film"]) == [{"value": number}]
    assert main([str(bundle), "a lovely film"]) == 0
    assert capsys.readouterr().out == f"{number:.4f}\ta lovely film\n"


def test_a_model_runs_as_many_texts_together_as_its_bundle_recommends(bundle: Path) -> None:
    class Session:
        sizes: list[int] = []  # noqa: RUF012

        def run(self, names: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            self.sizes.append(len(inputs["input_ids"]))
            return [np.zeros((self.sizes[-1], 2), dtype=np.float32)]

    for recommended, chosen, sizes in (({}, None, [3]), ({"fp32": 1}, None, [1, 1, 1]), ({"fp32": 1}, 2, [2, 1])):
        change(bundle, batch_sizes=recommended)
        loaded = Bundle(bundle)
        loaded.session, Session.sizes = Session(), []
        loaded.predict(["film", "a film", "a dull film"], batch_size=chosen)
        assert Session.sizes == sizes
