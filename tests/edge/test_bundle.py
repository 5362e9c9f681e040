"""Tests of the runtime on the device: predictions from text, the command line, and errors."""

import io
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from transformers import PreTrainedTokenizerBase

from distill.edge import decode
from distill.edge.__main__ import main
from distill.edge.bundle import FORMAT, Bundle
from distill.errors import UserError
from distill.files import hash_file, write_json

# Format 1 has no decoder, formats 1 and 2 have no side of the truncation; their bundles are still read.
FORMATS: dict[int, dict[str, str]] = {
    1: {"kind": "sequence", "answer": "classes"},
    2: {"kind": "classification", "answer": "classes", "decoder": "classes"},
    3: {"kind": "classification", "answer": "classes", "decoder": "classes", "truncation_side": "right"},
}


@pytest.fixture(params=FORMATS, ids=lambda number: f"format {number}")
def bundle(request: pytest.FixtureRequest, tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A bundle whose logits can be worked out by hand: [number of tokens, 4]."""
    assert max(FORMATS) == FORMAT
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=1),
            helper.make_node("Mul", ["count", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "four"], ["fours"]),
            helper.make_node("Concat", ["count", "fours"], ["logits"], axis=1),
            helper.make_node("Identity", ["input_ids"], ["unused"]),
        ],
        "toy",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [
            helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
            helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
            helper.make_tensor("four", TensorProto.FLOAT, [1], [4.0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(tmp_path / "model.onnx"))
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    write_json(
        tmp_path / "bundle.json",
        {
            "format": request.param, **FORMATS[request.param], "labels": ["long", "short"], "pair": False,
            "max_length": 8,
            "inputs": ["input_ids", "attention_mask"], "padding": {"input_ids": 0, "attention_mask": 0},
            "padding_side": "right", "models": {"fp32": "model.onnx"}, "recommended": "fp32",
            "files": {name: hash_file(tmp_path / name) for name in ("model.onnx", "tokenizer.json")},
        },
    )  # fmt: skip
    return tmp_path


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


def test_no_texts_give_no_predictions(bundle: Path) -> None:
    assert Bundle(bundle).predict([]) == []


def test_softmax_of_large_logits_is_finite() -> None:
    assert decode.softmax(np.array([[1000.0, 0.0], [-1000.0, -1000.0]])).tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_the_command_line_prints_a_line_for_each_text(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([str(bundle), "a dull film and a moving film", "--threads", "1"]) == 0
    assert capsys.readouterr().out == "long\t0.9820\ta dull film and a moving film\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("a film\n\nfilm\n"))
    assert main([str(bundle), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["a film", "film"]
    assert set(rows[0]["probabilities"]) == {"long", "short"}


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("no bundle.json", "is no bundle: it has no bundle.json"),
        ("other format", "is of format 99, this version of distill reads 1, 2 and 3"),
        ("broken json", "is damaged"),
        ("other model", "model.onnx is damaged: its SHA-256 is not the one in bundle.json"),
    ],
)
def test_a_damaged_bundle_is_reported_in_one_line(
    bundle: Path, damage: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    about = bundle / "bundle.json"
    if damage == "no bundle.json":
        about.unlink()
    elif damage == "other format":
        about.write_text(json.dumps({"format": 99}))
    elif damage == "broken json":
        about.write_text("{")
    else:
        (bundle / "model.onnx").write_bytes(b"something else")
    assert main([str(bundle), "text"]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert len(error.splitlines()) == 1


def test_an_unknown_model_and_unsupported_pairs_are_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(bundle), "text", "--model", "int8"]) == 2
    assert "has no model int8, expected one of fp32" in capsys.readouterr().err
    with pytest.raises(UserError, match="got pairs, the bundle reads single texts"):
        Bundle(bundle).logits(["a"], ["b"])
    with pytest.raises(UserError, match=r"got \['a', 'b'\], expected a text"):
        Bundle(bundle).predict([["a", "b"]])


def test_pairs_may_be_records_of_two_texts_or_two_lists(bundle: Path) -> None:
    about = json.loads((bundle / "bundle.json").read_text())
    write_json(bundle / "bundle.json", about | {"pair": True})
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


def test_an_unknown_decoder_is_refused(bundle: Path) -> None:
    about = json.loads((bundle / "bundle.json").read_text())
    write_json(bundle / "bundle.json", about | dict.fromkeys(about.keys() & {"answer", "decoder"}, "tags of 2031"))
    with pytest.raises(UserError, match="needs the decoder tags of 2031, this version of distill has classes, number"):
        Bundle(bundle)


def test_a_regression_predicts_a_number(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = json.loads((bundle / "bundle.json").read_text())
    write_json(bundle / "bundle.json", about | dict.fromkeys(about.keys() & {"answer", "decoder"}, "number"))
    number = Bundle(bundle).logits(["a lovely film"])[0, 0]
    assert Bundle(bundle).predict(["a lovely film"]) == [{"value": number}]
    assert main([str(bundle), "a lovely film"]) == 0
    assert capsys.readouterr().out == f"{number:.4f}\ta lovely film\n"
