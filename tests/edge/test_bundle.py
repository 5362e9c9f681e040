"""Tests of the runtime on the device: predictions from text, the command line, and errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.core.files import CHECKSUMS, hash_file, write_json
from distill.edge.__main__ import main
from distill.edge.bundle import Bundle, _batches
from distill.edge.decoder import softmax
from tests.edge.conftest import add_checksums, write_tag_bundle, write_toy_bundle

LEFT_OUT = object()


@pytest.fixture
def bundle(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A bundle with the logits [number of tokens, 4]."""
    write_toy_bundle(tmp_path, tokenizer)
    return tmp_path


def change(bundle: Path, **values: Any) -> None:
    """Replaces values of bundle.json, and leaves out those of None."""
    about = json.loads((bundle / "bundle.json").read_text()) | values
    write_json(bundle / "bundle.json", {name: value for name, value in about.items() if value is not LEFT_OUT})


def test_logits_are_in_the_order_of_the_texts_and_ignore_padding(bundle: Path) -> None:
    texts = ["a film", "", "a dull film and a moving film", "film"]
    tokens = [min(8, len(encoding.ids)) for encoding in Bundle(bundle).tokenizer.encode_batch(texts)]
    logits = Bundle(bundle).logits(texts, batch_size=2)
    assert logits[:, 0].tolist() == tokens
    assert logits[:, 1].tolist() == [4.0] * 4


def test_probabilities_sum_to_one_and_the_larger_logit_wins(bundle: Path) -> None:
    [prediction] = Bundle(bundle).predict(["a dull film and a moving film"])
    assert prediction["label"] == "long"
    expected = np.exp(8) / (np.exp(8) + np.exp(4))
    assert prediction["probability"] == pytest.approx(expected)
    assert prediction["probabilities"] == pytest.approx({"long": expected, "short": 1 - expected})


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            pandas.DataFrame({"text": ["a film"]}),
            r"got a table \(DataFrame\), expected a list of records: give one of it",
        ),
        (pyarrow.table({"text": ["a film"]}), r"got a table \(Table\), expected a list of records"),
        (None, "got None, expected a list of records"),
        (3, "got 3, expected a list of records"),
        ({"a film"}, "got {'a film'}, expected a list of records"),
        (np.array("a film"), "got 'a film', expected a list of records"),
        ([None], "got None, expected a text"),
        (np.array(["a film", np.nan], dtype=object), "got nan, expected a text"),
    ],
    ids=["frame", "arrow", "none", "number", "set", "scalar", "none in a list", "nan"],
)
def test_values_that_are_no_list_of_records_are_named(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, records: Any, message: str
) -> None:
    write_toy_bundle(tmp_path, tokenizer)
    bundle = Bundle(tmp_path)
    for function in (bundle.predict, bundle.logits, bundle.item_logits):
        with pytest.raises(UserError, match=message):
            function(records)


def test_columns_arrays_and_generators_are_records(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_toy_bundle(tmp_path, tokenizer)
    bundle, texts = Bundle(tmp_path), ["a film", "a dull film and a moving film"]
    expected = bundle.predict(texts)
    for records in (np.array(texts), pandas.Series(texts, index=[7, 3]), (text for text in texts), tuple(texts)):
        assert bundle.predict(records) == expected


def test_one_record_has_one_prediction(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    for name in ("texts", "tags", "pairs"):
        (tmp_path / name).mkdir()
    write_toy_bundle(tmp_path / "texts", tokenizer)
    bundle, text = Bundle(tmp_path / "texts"), "a dull film and a moving film"
    assert bundle.predict(text) == bundle.predict([text])[0]
    assert bundle.predict(text)["label"] == "long"
    write_tag_bundle(tmp_path / "tags", tokenizer)
    tags, words = Bundle(tmp_path / "tags"), {"tokens": ["a", "film"]}
    assert tags.predict(words) == tags.predict([words])[0]
    write_toy_bundle(tmp_path / "pairs", tokenizer, pair=True)
    pairs = Bundle(tmp_path / "pairs")
    assert pairs.predict("a film", "a joy") == pairs.predict([["a film", "a joy"]])[0]
    with pytest.raises(UserError, match=r"got one text and \['a joy'\] as pairs, expected"):
        pairs.predict("a film", ["a joy"])  # type: ignore[call-overload]
    with pytest.raises(UserError, match="got 'a film', expected two texts"):
        pairs.predict(("a film", "a joy"))


def test_pairs_are_any_texts_in_order_and_others_are_named(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_toy_bundle(tmp_path, tokenizer, pair=True)
    bundle, texts = Bundle(tmp_path), ["a film", "film"]
    expected = bundle.predict([["a film", "a joy"], ["film", "a"]])
    for pairs in (["a joy", "a"], (text for text in ("a joy", "a")), np.array(["a joy", "a"])):
        assert bundle.predict(texts, pairs) == expected
    assert bundle.predict(np.array([["a film", "a joy"], ["film", "a"]])) == expected
    for wrong, message in (
        (3, "got pairs=3, expected a list of records"),
        ((text for text in ["a"]), "got 2 texts and 1 pairs, expected one pair for each text"),
        (pandas.DataFrame({"b": ["a", "b"]}), r"got pairs=a table \(DataFrame\)"),
        ([None, "a"], r"got \['a film', None\], expected two texts"),
    ):
        with pytest.raises(UserError, match=message):
            bundle.predict(texts, wrong)  # type: ignore[arg-type]


def test_softmax_of_large_logits_is_finite() -> None:
    assert softmax(np.array([[1000.0, 0.0], [-1000.0, -1000.0]])).tolist() == [[1.0, 0.0], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("change_to", "expected"),
    [
        ({"format": 7}, "is of format 7, this version of distill reads format 1: export it again, or read it with the"),
        ({"format": True}, "is of format true, this version"),
        ({"format": LEFT_OUT}, "is of format null, this version"),
        ({"labels": ["a", "a"]}, 'labels is ["a", "a"], expected a list of names, each once'),
        ({"labels": ["a", 1]}, 'labels is ["a", 1], expected'),
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
            "is damaged: decoding has null_threshold 0, expected a number or null",
        ),
        ({"gates": {"fp32": 1}}, 'gates is {"fp32": 1}, expected one line for each model that did not pass its gate'),
        ({"gates": {"int9": "failed"}}, "gates has int9, expected some of fp32"),
        ({"batch_sizes": {"fp32": 0}}, 'batch_sizes is {"fp32": 0}, expected a whole number of at least 1 for each'),
        ({"batch_sizes": {"int9": 1}}, "batch_sizes has int9, expected some of fp32"),
        ({"max_length": 0}, "max_length is 0, expected a whole number of at least 1"),
        ({"max_length": True}, "max_length is true, expected a whole number"),
        ({"max_length": 10**30}, "max_length is 1000000000000000000000000000000, expected a whole number"),
        ({"max_length": 1}, "max_length is 1, less than its 2 special tokens"),
        ({"truncation_side": "top"}, 'truncation_side is "top", expected left or right'),
        (
            {"inputs": ["input_ids", "positions"]},
            "expected a list of some of input_ids, attention_mask, token_type_ids",
        ),
        ({"inputs": "input_ids"}, 'inputs is "input_ids", expected a list'),
        ({"inputs": ["input_ids"]}, "has the inputs input_ids, attention_mask, bundle.json has input_ids"),
        ({"padding": {"input_ids": 0}}, "padding has no attention_mask, expected a value for each input"),
        ({"padding": {"input_ids": None, "attention_mask": 0}}, "expected a whole number of at least 0 for each input"),
        ({"padding": {"input_ids": -1, "attention_mask": 0}}, "expected a whole number of at least 0 for each input"),
        ({"padding_side": None}, "padding_side is null, expected left or right"),
        ({"models": {}}, "models is {}, expected the name of a file of the bundle for each model"),
        ({"models": {"fp32": "../model.onnx"}}, 'models is {"fp32": "../model.onnx"}, expected the name of a file'),
        ({"models": {"fp32": "/model.onnx"}}, "expected the name of a file of the bundle"),
        ({"models": {"fp32": ".."}}, "expected the name of a file of the bundle"),
        ({"models": {"fp32": "other.onnx"}}, "files has no SHA-256 of other.onnx"),
        ({"recommended": "int8"}, 'recommended is "int8", expected null or one of fp32'),
        ({"recommended": 1}, "recommended is 1, expected null or the name of a model"),
        ({"recommended": None}, "recommends no model because all failed the gate: choose one of fp32"),
        ({"thresholds": {"fp32": 1.5}}, 'thresholds is {"fp32": 1.5}, expected a probability for each model that abst'),
        ({"thresholds": {"int8": 0.5}}, "thresholds has int8, expected some of fp32"),
        ({"files": {}}, "files has no SHA-256 of model.onnx"),
        ({"files": {"model.onnx": "abc"}}, 'files is {"model.onnx": "abc"}, expected the SHA-256 of each file'),
        ({"decoder": None}, "decoder is null, expected the name of a decoder"),
        ({"decoder": "tags"}, "is damaged: decoding has the splitter None, expected one of punctuation, edges"),
        (
            {"decoder": "tags", "decoding": {"splitter": {"name": "spaces"}}},
            "has logits ['batch', 2], expected 3 axes and 2 classes",
        ),
        ({"decoder": "number"}, "the decoder number does not fit 2 labels"),
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


def test_a_bundle_with_a_threshold_gives_no_label_below_it(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]
) -> None:
    write_toy_bundle(tmp_path, tokenizer)
    texts = ["a film", "a dull film and a moving film"]
    unsure, sure = Bundle(tmp_path).predict(texts)
    assert (unsure["label"], sure["label"]) == ("long", "long")  # Four tokens have equal logits, eight a larger one.
    assert unsure["probability"] < 0.9 < sure["probability"]
    change(tmp_path, thresholds={"fp32": 0.9})
    assert Bundle(tmp_path).predict(texts) == [unsure | {"label": None}, sure]
    change(tmp_path, thresholds={"fp32": unsure["probability"]})
    assert Bundle(tmp_path).predict(texts) == [unsure, sure]
    change(tmp_path, thresholds={"fp32": 0.9})
    assert main([str(tmp_path), *texts]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"(no label)\t{unsure['probability']:.4f}\ta film", f"long\t0.9820\t{texts[1]}"]
    assert main([str(tmp_path), *texts, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["label"] for row in rows] == [None, "long"]
    assert rows[0]["probabilities"] == pytest.approx(unsure["probabilities"])


def test_a_number_has_no_threshold(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_toy_bundle(tmp_path, tokenizer, labels=["score"], decoder="number", thresholds={"fp32": 0.9})
    with pytest.raises(UserError, match="is damaged: the decoder number has no thresholds"):
        Bundle(tmp_path)


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


@pytest.mark.parametrize("content", [b"\xff{}", b"[" * 100_000, b'{"labels": "\\ud800"}', b"[1]", b"null", b""])
def test_a_bundle_json_that_is_no_object_is_damaged(bundle: Path, content: bytes) -> None:
    (bundle / "bundle.json").write_bytes(content)
    with pytest.raises(UserError, match="bundle.json is damaged: ") as error:
        Bundle(bundle)
    assert len(str(error.value).splitlines()) == 1


def test_a_model_that_onnxruntime_cannot_load_is_named(bundle: Path) -> None:
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


def test_a_directory_may_be_a_link_be_read_only_and_have_any_name(bundle: Path, tmp_path: Path) -> None:
    expected = Bundle(bundle).predict(["a film"])
    odd = tmp_path / "Bündel 日本 'x'\n"
    odd.mkdir()
    for name in ("bundle.json", "model.onnx", "tokenizer.json"):
        (odd / name).write_bytes((bundle / name).read_bytes())
    link = tmp_path / "link"
    link.symlink_to(odd)
    odd.chmod(0o555)
    for directory in (odd, link, str(link)):
        assert Bundle(directory, threads=1).predict(["a film"]) == expected
    odd.chmod(0o755)


@pytest.mark.parametrize(
    ("records", "options", "expected"),
    [
        ({"tokens": ["a"]}, {}, "got {'tokens': ['a']}, expected a text"),
        (7, {}, "got 7, expected a list of records, or one text or mapping"),
        (b"a film", {}, "got b'a film', expected a list of records, or one text or mapping"),
        ([7], {}, "got 7, expected a text"),
        ([None], {}, "got None, expected a text"),
        ([b"a film"], {}, "got b'a film', expected a text"),
        (["film", ["a" * 100_000, "b"]], {}, "aaaa..., expected a text"),
        (["a \ud800 film"], {}, "got 'a \\ud800 film', expected Unicode: character 3 is a lone surrogate"),
        (["film"], {"batch_size": 0}, "got batch_size=0, expected a whole number of at least 1"),
        (["film"], {"batch_size": -1}, "got batch_size=-1, expected a whole number of at least 1"),
        (["film"], {"batch_size": 2.0}, "got batch_size=2.0, expected a whole number of at least 1"),
        (["film"], {"pairs": ["film"]}, "got pairs, the bundle reads single texts"),
    ],
)
def test_invalid_records_are_refused_in_one_line(
    bundle: Path, records: Any, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError) as error:
        Bundle(bundle).predict(records, **options)
    assert expected in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("threads", [0, -1, 2**40, 1.5, True, "2"])
def test_invalid_threads_are_refused(bundle: Path, threads: Any) -> None:
    with pytest.raises(UserError, match=f"got threads={threads}, expected a whole number from 1 to 1024"):
        Bundle(bundle, threads=threads)


def test_unusual_texts_are_predicted(bundle: Path) -> None:
    texts = ["", " ", "\0", "a\0b", "film " * 200_000, "\u2028", "\U0010ffff", "\U0001f600 a film \U0001f3ac"]
    predictions = Bundle(bundle).predict(texts)
    assert len(predictions) == len(texts)
    assert predictions[4]["label"] == "long"
    assert Bundle(bundle).logits([]).shape == (0, 2)


def test_logits_that_are_not_finite_are_no_prediction(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Bundle(bundle)
    logits = np.full((1, 2), np.nan, dtype=np.float32)

    class Session:
        def run(self, *arguments: Any) -> list[np.ndarray]:
            return [logits]

    monkeypatch.setattr(loaded, "session", Session())
    with pytest.raises(UserError, match="the logits of fp32 for record 1 are not finite"):
        loaded.predict(["film"])


def test_texts_are_cut_to_fewer_tokens_than_the_bundle_reads(bundle: Path) -> None:
    text = "a dull film and a moving film"
    assert Bundle(bundle).logits([text]).tolist() == [[8, 4]]
    shortened = Bundle(bundle, max_length=5)
    assert shortened.logits([text]).tolist() == [[5, 4]]
    assert shortened.truncates(text)
    assert not shortened.truncates("film")
    assert "one text of at most 5 tokens" in repr(shortened.overview())


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (9, "got max_length=9, expected a whole number from 1 to 8"),
        (0, "got max_length=0, expected a whole number from 1 to 8"),
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
    assert list(_batches(rows, 2)) == [[1, 5], [6, 2], [3, 4], [7, 8], [0], [9]]
    assert list(_batches(rows, 32)) == [[1, 5, 6, 2], [3, 4, 7, 8], [0], [9]]
    assert list(_batches([], 32)) == []


def test_pairs_may_be_records_of_two_texts_or_two_lists(bundle: Path) -> None:
    change(bundle, pair=True)
    pairs = Bundle(bundle)
    texts, others = ["a film", "film"], ["a dull film", "film"]
    tokens = [
        min(8, len(encoding.ids)) for encoding in pairs.tokenizer.encode_batch([*zip(texts, others, strict=True)])
    ]
    records = [list(record) for record in zip(texts, others, strict=True)]
    assert [logits.tolist() for logits in pairs.item_logits(records)] == [[[float(count), 4.0]] for count in tokens]
    assert pairs.predict(records) == pairs.predict(texts, others)
    with pytest.raises(UserError, match="got 'a film', expected two texts"):
        pairs.predict(["a film"])


def test_the_share_of_the_rows_that_are_done_is_reported(bundle: Path) -> None:
    shares: list[float] = []
    Bundle(bundle).item_logits(["a film", "film", "a dull film"], batch_size=2, report=shares.append)
    assert shares == [2 / 3, 1.0]


def test_an_unknown_decoder_is_refused(bundle: Path) -> None:
    about = json.loads((bundle / "bundle.json").read_text())
    write_json(bundle / "bundle.json", about | {"decoder": "tags of 2031"})
    with pytest.raises(UserError, match="needs the decoder tags of 2031, this version of distill has classes, labels"):
        Bundle(bundle)


def test_a_regression_predicts_a_number(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path
    write_toy_bundle(bundle, tokenizer, labels=["length"], decoder="number")
    number = Bundle(bundle).logits(["a lovely film"])[0, 0]
    assert Bundle(bundle).predict(["a lovely film"]) == [{"value": number}]
    assert main([str(bundle), "a lovely film"]) == 0
    assert capsys.readouterr().out == f"{number:.4f}\ta lovely film\n"


def test_texts_of_similar_length_run_together(bundle: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Otherwise each batch would be padded to a long text."""
    loaded, short, long = Bundle(bundle), "film", "a dull film and a film"
    lengths = [len(tokenizer(text).input_ids) for text in (short, long)]
    assert lengths[0] < lengths[1] < loaded.manifest["max_length"] + 1
    batches = loaded.inputs([long, short, long, short], batch_size=2)
    assert [batch["input_ids"].shape for batch in batches] == [(2, length) for length in lengths]


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
