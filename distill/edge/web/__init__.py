"""Writes a folder, or one HTML file, that runs a bundle in a browser.

Nothing is fetched from elsewhere at run time. The two JavaScript libraries come from a `node_modules` directory.
"""

import base64
import dataclasses
import html
import json
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from distill.core.errors import UserError
from distill.core.files import atomic_directory, write_text
from distill.edge.bundle import Bundle
from distill.edge.bundle_files import encoder_file, list_model_files, needs_openvino

ORT, TOKENIZERS = "onnxruntime-web", "@huggingface/tokenizers"
INSTALL = f"npm install --ignore-scripts {ORT}@1.30.0 {TOKENIZERS}@0.2.0"
DECODERS = ("classes", "labels", "number", "tags", "choices", "vectors", "continuation", "seq2seq")
# Files of the folder, and the file of a library that each is copied from.
LIBRARIES: Mapping[str, str] = {
    "ort.mjs": f"{ORT}/dist/ort.wasm.bundle.min.mjs",
    "ort-wasm-simd-threaded.wasm": f"{ORT}/dist/ort-wasm-simd-threaded.wasm",
    "tokenizers.mjs": f"{TOKENIZERS}/dist/tokenizers.min.mjs",
}
PAGE, SCRIPTS = "index.html", ("bundle.mjs", "generation.mjs", "page.mjs")
FIELDS = (
    "task", "kind", "decoder", "decoding", "labels", "pair", "max_length", "truncation_side", "inputs", "padding",
    "teacher",
)  # fmt: skip


def write_page(bundle: Bundle, target: Path, *, libraries: Path, single_file: bool = False) -> Path:
    """Writes the page of a bundle; returns the file to open.

    Args:
        target: the folder to write, or with `single_file` the HTML file. A folder needs an HTTP server, because
            browsers load no modules from `file://`; the single file does not.
        libraries: a `node_modules` directory with onnxruntime-web and @huggingface/tokenizers.

    Raises:
        UserError: if a library is missing, the target exists, or the bundle's predictions have no form in the page.
    """
    sources = {name: _find(libraries, file) for name, file in LIBRARIES.items()}
    if bundle.manifest["decoder"] not in DECODERS:
        raise UserError(
            f"{bundle.directory} needs the decoder {bundle.manifest['decoder']}, the page has {', '.join(DECODERS)}: "
            "serve it with python -m distill.serve"
        )
    models = _find_models(bundle)
    if target.exists():
        raise UserError(f"{target} exists already, expected a new name")
    copied = {**sources, **models, "tokenizer.json": bundle.directory / "tokenizer.json"}
    written = {name: _text(name) for name in SCRIPTS}
    written["description.json"] = json.dumps(describe(bundle), ensure_ascii=False)
    if single_file:  # Modules are loaded from blobs, which `file://` allows.
        data = {name: path.read_bytes() for name, path in copied.items()}
        data |= {name: text.encode() for name, text in written.items()}
        scripts = [
            f'<script type="text/plain" id="{name}">{base64.b64encode(content).decode()}</script>'
            for name, content in data.items()
        ]
        scripts.append(f"<script>{_text('embedded.js')}</script>")
        write_text(target, _render(bundle, "\n".join(scripts)))
        return target
    with atomic_directory(target) as directory:
        for name, source in copied.items():
            shutil.copyfile(source, directory / name)
        for name, text in written.items():
            write_text(directory / name, text)
        write_text(directory / PAGE, _render(bundle, '<script type="module" src="page.mjs"></script>'))
    return target / PAGE


def _find_models(bundle: Bundle) -> dict[str, Path]:
    """Returns the models of a page by their names in its folder: one, and the encoder of one that has one."""
    model = bundle.directory / bundle.manifest["models"][bundle.model]
    if needs_openvino(model):
        raise UserError(f"{model} is for OpenVINO, which has no page: choose a model in ONNX such as --model fp32")
    models = {"model.onnx": model}
    if encoder_file(model).is_file():
        models["encoder.onnx"] = encoder_file(model)
    for file in models.values():
        if len(list_model_files(file)) > 1:
            raise UserError(f"{file} has weights in a second file, expected one file: it is too large for a page")
    return models


def describe(bundle: Bundle) -> dict[str, Any]:
    """Returns what the page needs to know of the bundle."""
    manifest = bundle.manifest
    return {
        **{name: manifest.get(name) for name in FIELDS},
        "file": bundle.model,
        "metrics": manifest["metrics"].get(bundle.model, {}),
        "threshold": bundle.threshold,
        "unknown": find_unknown(bundle.tokenizer),
        "special": {"single": special_tokens(bundle.tokenizer), "pair": special_tokens(bundle.tokenizer, pair=True)},
        **(_describe_writer(bundle) if bundle.generates else {}),
    }


def _describe_writer(bundle: Bundle) -> dict[str, Any]:
    """Returns how the texts of a bundle begin and end, and the shapes of the model that writes them."""
    generator = bundle.generator()
    model = generator.model
    return {
        "generation": dataclasses.asdict(generator.settings),
        "writer": {
            "caches": model.caches, "classes": model.classes, "size": generator.size,
            "has_encoder": model.encoder is not None,
        },
    }  # fmt: skip


def find_unknown(tokenizer: Tokenizer) -> int | None:
    """Returns the id of the token that stands for unknown characters; None without one."""
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    name = model.get("unk_token")
    return model.get("unk_id") if name is None else tokenizer.token_to_id(name)


def special_tokens(tokenizer: Tokenizer, *, pair: bool = False) -> list[dict[str, Any]]:
    """Returns the sequence of a text, or of a pair, with the special tokens around.

    Each part is `{"ids": [...], "type": 0}` of special tokens, or `{"text": 0, "type": 0}`, where 1 is the second text.
    """
    encoding: Encoding = tokenizer.encode("a", "b") if pair else tokenizer.encode("a")
    parts: list[dict[str, Any]] = []
    previous: int | None = None
    for number, special, kind, sequence in zip(
        encoding.ids, encoding.special_tokens_mask, encoding.type_ids, encoding.sequence_ids, strict=True
    ):
        if special and previous is None and parts and parts[-1].get("type") == kind:
            parts[-1]["ids"].append(number)
        elif special:
            parts.append({"ids": [number], "type": kind})
        elif sequence != previous:
            parts.append({"text": sequence, "type": kind})
        previous = None if special else sequence
    return parts


def _find(libraries: Path, file: str) -> Path:
    path = libraries / file
    if not path.is_file():
        raise UserError(f"{path} is missing: {INSTALL}, and name the directory with --libraries node_modules")
    return path


def _text(name: str) -> str:
    return files("distill.edge.web").joinpath(name).read_text(encoding="utf-8")


def _render(bundle: Bundle, scripts: str) -> str:
    """Returns the HTML of the page with its scripts."""
    title = html.escape(str(bundle.manifest.get("task") or bundle.directory.name))
    return _text("page.html").replace("<!-- title -->", title).replace("<!-- scripts -->", scripts)
