"""Reads and checks bundle.json, which describes how to predict with the models of a bundle."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distill.edge.model_files import data_file, needs_openvino
from distill.edge.processor import TARGETS
from distill.errors import UserError
from distill.storage.files import CHECKSUMS, read_checksums

NAME = "bundle.json"
FORMAT = 1
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
SIDES = ("left", "right")
LARGEST = 2**31 - 1  # Of a length and a token id.
ABOVE = "../"  # Before the name of a file that several bundles share.
SHOWN = 60  # Characters of a value in a message.


def read_manifest(directory: Path) -> dict[str, Any]:
    """Returns the content of bundle.json.

    Raises:
        UserError: if it is missing, damaged, of another format, or not the file of SHA256SUMS, where that exists.
    """
    path = directory / NAME
    try:
        manifest = json.loads(_read_checked(path).decode("utf-8"))
        json.dumps(manifest, ensure_ascii=False).encode("utf-8")  # JSON can escape half of a character.
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(manifest, dict):
        raise UserError(f"{path} is damaged: expected a JSON object")
    number = manifest.get("format")
    if not _is_count(number) or number != FORMAT:
        raise UserError(
            f"{path} is of format {_show(number)}, this version of distill reads format {FORMAT}: export it again, or "
            "read it with the version that wrote it"
        )
    _check_fields(manifest, path)
    return manifest


def fingerprint(manifest: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of the content of bundle.json, which has that of every file a prediction depends on."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _read_checked(path: Path) -> bytes:
    """Returns the content of bundle.json, compared with SHA256SUMS where that exists."""
    try:
        if not path.is_file():
            raise UserError(f"{path.parent} is no bundle: it has no {NAME}{_hint(path.parent)}")
        content, checksums = path.read_bytes(), read_checksums(path.parent)
    except OSError as error:
        raise UserError(f"{path.parent} cannot be read: {error.strerror}") from error
    if checksums is None:
        return content
    if path.name not in checksums:
        raise UserError(f"{path.with_name(CHECKSUMS)} is damaged: it has no line for {path.name}")
    if hashlib.sha256(content).hexdigest() != checksums[path.name]:
        raise UserError(
            f"{path} is damaged: its SHA-256 is not the one in {CHECKSUMS}; if you edited it, delete {CHECKSUMS}"
        )
    return content


def _hint(directory: Path) -> str:
    """Returns the end of a message for a directory with a bundle for each of several tasks."""
    names = sorted(bundle.parent.name for bundle in directory.glob(f"*/{NAME}"))
    return f"; it has one for each of {', '.join(names)}: open {directory / names[0]}" if names else ""


def _check_fields(manifest: Mapping[str, Any], path: Path) -> None:
    """Raises UserError for the first key that is missing or has a value it cannot have."""
    for name, (is_valid, expected) in FIELDS.items():
        if name not in manifest:
            raise UserError(f"{path} is damaged: {name} is missing, expected {expected}")
        if not is_valid(manifest[name]):
            raise UserError(f"{path} is damaged: {name} is {_show(manifest[name])}, expected {expected}")
    if not _are_vectors(manifest.get("vectors", {})):
        raise UserError(
            f"{path} is damaged: vectors is {_show(manifest['vectors'])}, expected the smaller forms of each model's "
            "vectors"
        )
    without_padding = [name for name in manifest["inputs"] if name not in manifest["padding"]]
    if without_padding:
        raise UserError(f"{path} is damaged: padding has no {without_padding[0]}, expected a value for each input")
    models: Mapping[str, str] = manifest["models"]
    if manifest["recommended"] not in (None, *models):
        raise UserError(
            f"{path} is damaged: recommended is {_show(manifest['recommended'])}, expected null or one of "
            f"{', '.join(models)}"
        )
    for key in ("thresholds", "targets", "batch_sizes", "gates"):
        if unknown := [name for name in manifest[key] if name not in models]:
            raise UserError(f"{path} is damaged: {key} has {unknown[0]}, expected some of {', '.join(models)}")
    weights = [data_file(Path(file)).name for file in models.values() if needs_openvino(file)]
    for file in (*models.values(), *weights, "tokenizer.json"):
        if file not in manifest["files"]:
            raise UserError(f"{path} is damaged: files has no SHA-256 of {file}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _is_one_line(value: object) -> bool:
    return isinstance(value, str) and value.splitlines() == [value]


def _are_names(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)


def _is_file_name(value: object) -> bool:
    """Returns whether the value is the name of a file in the bundle itself."""
    return _is_one_line(value) and value not in (".", "..") and not set(str(value)) & set("/\\:\0")


def _are_files(value: object) -> bool:
    return (
        isinstance(value, dict) and bool(value)
        and all(map(_is_one_line, value)) and all(map(_is_file_name, value.values()))
    )  # fmt: skip


def _are_shares(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1 for share in value.values()
    )


def _are_targets(value: object) -> bool:
    return isinstance(value, dict) and all(target in TARGETS for target in value.values())


def _are_metrics(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(metrics, dict) for metrics in value.values())


def _are_counts(value: object) -> bool:
    return isinstance(value, dict) and all(_is_count(count) and count > 0 for count in value.values())


def _are_sentences(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_one_line, value.values()))


def _are_vectors(value: object) -> bool:
    """Returns whether the value is that of `vectors`, which only bundles of vectors may have."""
    return isinstance(value, dict) and all(
        isinstance(forms, list)
        and all(
            isinstance(form, dict) and _is_count(form.get("dimensions"))
            and all(isinstance(form.get(name), str) for name in ("precision", "gate"))
            for form in forms
        )
        for forms in value.values()
    )  # fmt: skip


def _are_checksums(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(digest, str) and len(digest) == 64 and set(digest) <= set("0123456789abcdef")
        for digest in value.values()
    )


# Each key that a prediction depends on: whether a value is valid, and the valid ones in words.
FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "decoder": (_is_one_line, "the name of a decoder"),
    # Empty for predictions without labels.
    "labels": (
        lambda value: value == [] or (_are_names(value) and len(set(value)) == len(value)),
        "a list of names, each once",
    ),
    "pair": (lambda value: isinstance(value, bool), "true or false"),
    "max_length": (lambda value: _is_count(value) and value > 0, "a whole number of at least 1"),
    "doc_stride": (
        lambda value: value is None or _is_count(value),
        "null, or the tokens that neighbouring windows share",
    ),
    "decoding": (lambda value: isinstance(value, dict), "the values that the decoder needs, by name"),
    "truncation_side": (lambda value: value in SIDES, "left or right"),
    "inputs": (
        lambda value: _are_names(value) and set(value) <= set(INPUTS) and len(set(value)) == len(value),
        f"a list of some of {', '.join(INPUTS)}",
    ),
    "padding": (
        lambda value: isinstance(value, dict) and all(map(_is_count, value.values())),
        "a whole number of at least 0 for each input",
    ),
    "padding_side": (lambda value: value in SIDES, "left or right"),
    "models": (_are_files, "the name of a file of the bundle for each model"),
    "recommended": (lambda value: value is None or isinstance(value, str), "null or the name of a model"),
    "metrics": (_are_metrics, "the metrics of each model, by name"),
    "thresholds": (_are_shares, "a probability for each model that abstains"),
    "targets": (_are_targets, f"one of {', '.join(TARGETS)} for each model that is not right everywhere"),
    "batch_sizes": (_are_counts, "a whole number of at least 1 for each model that prefers small batches"),
    "gates": (_are_sentences, "one line for each model that did not pass its gate"),
    "files": (_are_checksums, "the SHA-256 of each file"),
}


def _show(value: object) -> str:
    """Returns a value as JSON in one short line."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
