"""Toy bundles whose logits can be worked out by hand, and a server for their pages."""

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from transformers import PreTrainedTokenizerBase

from distill.core.files import CHECKSUMS, hash_file, write_json
from tests.conftest import CHROMIUM

ROOT = Path(__file__).parents[2]
NODE_MODULES = ROOT / "build" / "node" / "node_modules"

needs_libraries = pytest.mark.skipif(
    not (NODE_MODULES / "onnxruntime-web").is_dir(), reason="needs the JavaScript libraries that .ci/run installs"
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which .ci/run installs")


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


@pytest.fixture
def serve() -> Iterator[Any]:
    """A function that serves a folder and returns its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(directory: Path) -> str:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(directory)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/index.html"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def open_page(browser: Any, address: str) -> Any:
    page = browser.new_page()
    page.goto(address)
    page.wait_for_function("window.bundle")
    return page


def write_toy_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> None:
    """Writes a bundle with the logits [number of tokens, 4], or of one label [number of tokens].

    `changes` replace values of bundle.json.
    """
    content: dict[str, Any] = {
        "format": 1, "kind": "classification", "decoder": "classes", "decoding": {}, "labels": ["long", "short"],
        "pair": False, "max_length": 8, "truncation_side": "right", "doc_stride": None,
        "inputs": ["input_ids", "attention_mask"], "padding": {"input_ids": 0, "attention_mask": 0},
        "padding_side": "right", "models": {"fp32": "model.onnx"}, "recommended": "fp32",
        "metrics": {}, "gates": {}, "thresholds": {}, "targets": {}, "batch_sizes": {},
    } | changes  # fmt: skip
    _write_model(directory / "model.onnx", classes=len(content["labels"]))
    tokenizer.backend_tokenizer.save(str(directory / "tokenizer.json"))
    content["files"] = {name: hash_file(directory / name) for name in ("model.onnx", "tokenizer.json")}
    write_json(directory / "bundle.json", content)


def write_choice_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> None:
    """Writes a bundle in which the logit of a choice is its number of tokens, with those of its question."""
    write_toy_bundle(
        directory, tokenizer, kind="multiple_choice", decoder="choices", labels=[], pair=True,
        **{"max_length": 24} | changes,
    )  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["mask", "axis"], ["logits"], keepdims=0),
            helper.make_node("Identity", ["input_ids"], ["unused"]),
        ],
        "toy",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "choices", "length"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "choices"])],
        [helper.make_tensor("axis", TensorProto.INT64, [1], [2])],
    )
    _save(graph, directory / "model.onnx")
    content = json.loads((directory / "bundle.json").read_text())
    content["files"]["model.onnx"] = hash_file(directory / "model.onnx")
    write_json(directory / "bundle.json", content)


def write_ranking_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> None:
    """Writes a bundle in which the score of a document is its number of tokens, with those of its query."""
    write_toy_bundle(
        directory, tokenizer, kind="reranking", decoder="ranking", labels=["score"], pair=True,
        **{"max_length": 24} | changes,
    )  # fmt: skip


def write_tag_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> None:
    """Writes a bundle that tags a token by its id modulo the number of labels, with a logit of 4."""
    labels = changes.get("labels", ["O", "B-film", "I-film", "B-cast"])
    write_toy_bundle(
        directory, tokenizer, **{"kind": "token_classification", "decoder": "tags", "labels": labels,
        "max_length": 24, "decoding": {"splitter": {"name": "punctuation"}}} | changes,
    )  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("Mod", ["input_ids", "size"], ["tags"]),
            helper.make_node("OneHot", ["tags", "size", "values"], ["logits"]),
            helper.make_node("Identity", ["attention_mask"], ["unused"]),
        ],
        "toy",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", len(labels)])],
        [
            helper.make_tensor("size", TensorProto.INT64, [], [len(labels)]),
            helper.make_tensor("values", TensorProto.FLOAT, [2], [0.0, 4.0]),
        ],
    )
    _save(graph, directory / "model.onnx")
    content = json.loads((directory / "bundle.json").read_text())
    content["files"]["model.onnx"] = hash_file(directory / "model.onnx")
    write_json(directory / "bundle.json", content)


def write_vector_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> None:
    """Writes a bundle in which the vector of a text is its number of tokens and 1."""
    write_toy_bundle(directory, tokenizer, kind="embedding", decoder="vectors", labels=[], max_length=24, **changes)
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=1),
            helper.make_node("Div", ["count", "count"], ["one"]),
            helper.make_node("Concat", ["count", "one"], ["logits"], axis=1),
            helper.make_node("Identity", ["input_ids"], ["unused"]),
        ],
        "toy",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor("axis", TensorProto.INT64, [1], [1])],
    )
    _save(graph, directory / "model.onnx")
    content = json.loads((directory / "bundle.json").read_text())
    content["files"]["model.onnx"] = hash_file(directory / "model.onnx")
    write_json(directory / "bundle.json", content)


def add_checksums(directory: Path) -> None:
    """Writes the file of checksums that the bundle of a run has."""
    names = ("bundle.json", "model.onnx", "tokenizer.json")
    (directory / CHECKSUMS).write_text("".join(f"{hash_file(directory / name)}  {name}\n" for name in names))


def _write_model(path: Path, *, classes: int) -> None:
    columns = ["count", "fours"] if classes == 2 else ["count"]
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=1),
            helper.make_node("Mul", ["count", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "four"], ["fours"]),
            helper.make_node("Concat", columns, ["logits"], axis=1),
            helper.make_node("Identity", ["input_ids"], ["unused"]),
        ],
        "toy",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])],
        [
            helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
            helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
            helper.make_tensor("four", TensorProto.FLOAT, [1], [4.0]),
        ],
    )
    _save(graph, path)


def _save(graph: onnx.GraphProto, path: Path) -> None:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))


def write_mask_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> None:
    """Writes a bundle that fills each mask with the token before it, whose logit is 10, and that of the others 0."""
    write_toy_bundle(
        directory, tokenizer, kind="masked_lm", decoder="masks", labels=[],
        **{"max_length": 16, "decoding": {"mask_token": "[MASK]", "top_k": 2}} | changes,
    )  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["input_ids", "flat"], ["tokens"]),
            helper.make_node("Sub", ["positions", "one"], ["before"]),
            helper.make_node("Gather", ["tokens", "before"], ["best"]),
            helper.make_node("OneHot", ["best", "size", "values"], ["logits"]),
            helper.make_node("Identity", ["attention_mask"], ["unused"]),
        ],
        "toy",
        [
            *(
                helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
                for name in ("input_ids", "attention_mask")
            ),
            helper.make_tensor_value_info("positions", TensorProto.INT64, ["tokens"]),
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["tokens", len(tokenizer)])],
        [
            helper.make_tensor("flat", TensorProto.INT64, [1], [-1]),
            helper.make_tensor("one", TensorProto.INT64, [], [1]),
            helper.make_tensor("size", TensorProto.INT64, [], [len(tokenizer)]),
            helper.make_tensor("values", TensorProto.FLOAT, [2], [0.0, 10.0]),
        ],
    )
    _save(graph, directory / "model.onnx")
    content = json.loads((directory / "bundle.json").read_text())
    content["files"]["model.onnx"] = hash_file(directory / "model.onnx")
    write_json(directory / "bundle.json", content)
