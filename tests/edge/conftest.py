"""Toy bundles whose logits can be worked out by hand, and a server for their pages."""

import functools
import http.server
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
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


def save_graph(path: Path, graph: str, constants: Mapping[str, np.ndarray] | None = None) -> None:
    """Writes a model of a graph in the textual form of ONNX, with these constants too."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(of, name) for name, of in (constants or {}).items())
    onnx.save(model, str(path))


TEXTS = "int64[batch, length] input_ids, int64[batch, length] attention_mask"


def write_toy_bundle(
    directory: Path, tokenizer: PreTrainedTokenizerBase, *, graph: str | None = None, **changes: Any
) -> None:
    """Writes a bundle of this graph, or with the logits [number of tokens, 4], or of one label [number of tokens].

    `changes` replace values of bundle.json.
    """
    content: dict[str, Any] = {
        "format": 1, "kind": "classification", "decoder": "classes", "decoding": {}, "labels": ["long", "short"],
        "pair": False, "max_length": 8, "truncation_side": "right", "doc_stride": None,
        "inputs": ["input_ids", "attention_mask"], "padding": {"input_ids": 0, "attention_mask": 0},
        "padding_side": "right", "models": {"fp32": "model.onnx"}, "recommended": "fp32",
        "metrics": {}, "gates": {}, "thresholds": {}, "targets": {}, "batch_sizes": {},
    } | changes  # fmt: skip
    classes = len(content["labels"])
    save_graph(directory / "model.onnx", graph or f"""toy ({TEXTS}) => (float[batch, {classes}] logits)
        <int64[1] axis = {{1}}, float[1] zero = {{0}}, float[1] four = {{4}}> {{
            mask = Cast<to = 1>(attention_mask)
            count = ReduceSum<keepdims = 1>(mask, axis)
            nothing = Mul(count, zero)
            fours = Add(nothing, four)
            logits = Concat<axis = 1>({"count, fours" if classes == 2 else "count"})
            unused = Identity(input_ids)
        }}""")  # fmt: skip
    tokenizer.backend_tokenizer.save(str(directory / "tokenizer.json"))
    content["files"] = {name: hash_file(directory / name) for name in ("model.onnx", "tokenizer.json")}
    write_json(directory / "bundle.json", content)


def write_choice_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> None:
    """Writes a bundle in which the logit of a choice is its number of tokens, with those of its question."""
    graph = f"""toy ({TEXTS.replace("batch,", "batch, choices,")}) => (float[batch, choices] logits)
        <int64[1] axis = {{2}}> {{
            mask = Cast<to = 1>(attention_mask)
            logits = ReduceSum<keepdims = 0>(mask, axis)
            unused = Identity(input_ids)
        }}"""
    values: dict[str, Any] = {
        "kind": "multiple_choice",
        "decoder": "choices",
        "labels": [],
        "pair": True,
        "max_length": 24,
    }
    write_toy_bundle(directory, tokenizer, graph=graph, **values | changes)


def write_ranking_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> None:
    """Writes a bundle in which the score of a document is its number of tokens, with those of its query."""
    values: dict[str, Any] = {
        "kind": "reranking",
        "decoder": "ranking",
        "labels": ["score"],
        "pair": True,
        "max_length": 24,
    }
    write_toy_bundle(directory, tokenizer, **values | changes)


def write_tag_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> None:
    """Writes a bundle that tags a token by its id modulo the number of labels, with a logit of 4."""
    values: dict[str, Any] = {
        "kind": "token_classification", "decoder": "tags", "labels": ["O", "B-film", "I-film", "B-cast"],
        "max_length": 24, "decoding": {"splitter": {"name": "punctuation"}},
    } | changes  # fmt: skip
    size = len(values["labels"])
    graph = f"""toy ({TEXTS}) => (float[batch, length, {size}] logits)
        <int64 size = {{{size}}}, float[2] values = {{0, 4}}> {{
            tags = Mod(input_ids, size)
            logits = OneHot(tags, size, values)
            unused = Identity(attention_mask)
        }}"""
    write_toy_bundle(directory, tokenizer, graph=graph, **values)


def write_vector_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> None:
    """Writes a bundle in which the vector of a text is its number of tokens and 1."""
    graph = f"""toy ({TEXTS}) => (float[batch, 2] logits) <int64[1] axis = {{1}}> {{
            mask = Cast<to = 1>(attention_mask)
            count = ReduceSum<keepdims = 1>(mask, axis)
            one = Div(count, count)
            logits = Concat<axis = 1>(count, one)
            unused = Identity(input_ids)
        }}"""
    values: dict[str, Any] = {"kind": "embedding", "decoder": "vectors", "labels": [], "max_length": 24}
    write_toy_bundle(directory, tokenizer, graph=graph, **values | changes)


def write_mask_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> None:
    """Writes a bundle that fills each mask with the token before it, whose logit is 10, and that of the others 0."""
    size = len(tokenizer)
    graph = f"""toy ({TEXTS}, int64[tokens] positions) => (float[tokens, {size}] logits)
        <int64[1] flat = {{-1}}, int64 one = {{1}}, int64 size = {{{size}}}, float[2] values = {{0, 10}}> {{
            tokens = Reshape(input_ids, flat)
            before = Sub(positions, one)
            best = Gather(tokens, before)
            logits = OneHot(best, size, values)
            unused = Identity(attention_mask)
        }}"""
    values: dict[str, Any] = {
        "kind": "masked_lm", "decoder": "masks", "labels": [], "max_length": 16,
        "decoding": {"mask_token": "[MASK]", "top_k": 2},
    }  # fmt: skip
    write_toy_bundle(directory, tokenizer, **{"graph": graph} | values | changes)


WRITERS: dict[str, Callable[..., None]] = {
    "classes": write_toy_bundle, "choices": write_choice_bundle, "ranking": write_ranking_bundle,
    "tags": write_tag_bundle, "vectors": write_vector_bundle, "masks": write_mask_bundle,
}  # fmt: skip
Write = Callable[..., Path]
Output = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture
def write(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Write:
    """A function that writes a toy bundle, that of `WRITERS`, and returns its directory."""

    def write_one(toy: str = "classes", /, *, name: str = "bundle", **changes: Any) -> Path:
        (tmp_path / name).mkdir(exist_ok=True)
        WRITERS[toy](tmp_path / name, **{"tokenizer": tokenizer} | changes)
        return tmp_path / name

    return write_one


def add_checksums(directory: Path) -> None:
    """Writes the file of checksums that the bundle of a run has."""
    names = ("bundle.json", "model.onnx", "tokenizer.json")
    (directory / CHECKSUMS).write_text("".join(f"{hash_file(directory / name)}  {name}\n" for name in names))
