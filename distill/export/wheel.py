"""What stands beside a bundle: the wheel of distill for a device, and vectors as a directory of model2vec."""

import base64
import copy
import functools
import hashlib
import io
import json
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill import __version__
from distill.core.console import print_notice
from distill.core.errors import DISTRIBUTION, PACKAGE, WHEEL, UserError, first_line, is_checkout
from distill.core.files import atomic_file, make_directory, write_json, write_text
from distill.models.architectures.modeling_static import StaticPreTrainedModel
from distill.models.vectors import list_dense, vector_settings

# The folders of a checkout beside the package, and their names inside it in a wheel.
FOLDERS = {"conf": "conf", "students": "builtin/students", "teachers": "builtin/teachers"}
_DATE = (1980, 1, 1, 0, 0, 0)  # The first one that a zip file can have, so that equal files make equal wheels.
_FILES = ("METADATA", "entry_points.txt", "licenses/LICENSE")


def write_wheel(directory: Path) -> Path | None:
    """Writes the wheel of this version to a directory, or returns None with a notice.

    There is none where the metadata is missing: that of the installation, or `pyproject.toml` of a checkout.
    """
    try:
        content = _build_wheel()
    except (metadata.PackageNotFoundError, FileNotFoundError) as error:
        print_notice(f"no wheel for devices is written beside the bundle: {first_line(error)}")
        return None
    path = directory / WHEEL
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)
    return path


@functools.cache
def _build_wheel() -> bytes:
    """Returns the wheel, which holds all files of the package and the metadata."""
    information = f"{DISTRIBUTION.replace('-', '_')}-{__version__}.dist-info"
    described = _describe_checkout(PACKAGE.parent) if is_checkout() else _read_installed()
    tag = f"Wheel-Version: 1.0\nGenerator: distill {__version__}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {f"distill/{name}": path.read_bytes() for name, path in _list_files()}
    files |= {f"{information}/{name}": text.encode() for name, text in {**described, "WHEEL": tag}.items()}
    record = "".join(f"{name},{_hash(content)},{len(content)}\n" for name, content in files.items())
    files[f"{information}/RECORD"] = f"{record}{information}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            wheel.writestr(entry, content)
    return buffer.getvalue()


def _hash(content: bytes) -> str:
    """Returns a digest as the file RECORD has it."""
    return f"sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()}"


def _list_files() -> Iterator[tuple[str, Path]]:
    """Yields every file of the package with its name in it, in the order of the names."""
    sources = {"": PACKAGE}
    if is_checkout():
        sources |= {f"{inside}/": PACKAGE.parent / folder for folder, inside in FOLDERS.items()}
    found = [
        (f"{prefix}{path.relative_to(source).as_posix()}", path)
        for prefix, source in sources.items()
        for path in source.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
    ]
    yield from sorted(found)


def _read_installed() -> dict[str, str]:
    """Returns the metadata of the installed distribution, by file."""
    installed = metadata.distribution(DISTRIBUTION)
    return {name: text for name in _FILES if (text := installed.read_text(name)) is not None}


def _describe_checkout(root: Path) -> dict[str, str]:
    """Returns the metadata that the installation of a checkout would have, by file."""
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    scripts = "".join(f"{name} = {target}\n" for name, target in project["scripts"].items())
    fields = [
        ("Metadata-Version", "2.4"), ("Name", project["name"]), ("Version", __version__),
        ("Summary", project["description"]), ("License-Expression", project["license"]),
        *(("License-File", name) for name in project["license-files"]),
        ("Requires-Python", project["requires-python"]),
        *(("Requires-Dist", requirement) for requirement in project["dependencies"]),
        *_describe_extras(project["optional-dependencies"]),
    ]  # fmt: skip
    return {
        "METADATA": "".join(f"{name}: {value}\n" for name, value in fields),
        "entry_points.txt": f"[console_scripts]\n{scripts}",
        "licenses/LICENSE": (root / "LICENSE").read_text(encoding="utf-8"),
    }


def _describe_extras(extras: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yields the fields of the metadata for each extra and its requirements."""
    for extra, requirements in extras.items():
        yield "Provides-Extra", extra
        for requirement in requirements:
            name, _, marker = requirement.partition(";")
            condition = f"({marker.strip()}) and extra == '{extra}'" if marker else f"extra == '{extra}'"
            yield "Requires-Dist", f"{name.strip()} ; {condition}"


_MODULES = "sentence_transformers.models"


def check_model2vec(model: PreTrainedModel, name: str) -> None:
    """Raises UserError for a student whose vectors model2vec cannot compute.

    Args:
        name: of the student.
    """
    if not isinstance(model, StaticPreTrainedModel):
        raise UserError(
            f"export.model2vec=true is for a table of vectors, and student {name} is a {type(model).__name__}: take "
            "+student=static, or leave out export.model2vec"
        )
    if buckets := model.config.buckets:
        raise UserError(
            f"export.model2vec=true is for vectors of single pieces, and the student has student.buckets={buckets} of "
            "two pieces, which model2vec does not read: set student.buckets=0, or leave out export.model2vec"
        )


@torch.no_grad()
def write_model2vec(
    directory: Path, model: StaticPreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, max_length: int
) -> None:
    """Writes config.json, tokenizer.json, model.safetensors and modules.json.

    Their vectors are those of the student, but that sentence-transformers counts unknown pieces in the mean, which
    changes no direction.

    Args:
        max_length: tokens that a text is cut to, special ones among them.
    """
    settings = vector_settings(model.config)
    normalize = settings is not None and settings["normalize"]
    pieces = len(tokenizer)
    table = model.embeddings.weight * model.weights.weight * model.counted[:, None]
    for layer in list_dense(model):  # Of a projection alone, the mean of products is that of the mean.
        table = table @ layer.linear.weight.T
    save_file({"embeddings": table[:pieces].float().cpu().contiguous()}, directory / "model.safetensors")
    backend = copy.deepcopy(tokenizer.backend_tokenizer)  # type: ignore[attr-defined]
    backend.no_truncation()
    backend.no_padding()
    backend.save(str(directory / "tokenizer.json"))
    length = max_length - tokenizer.num_special_tokens_to_add()
    write_json(directory / "config.json", {
        "model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": int(table.shape[1]),
        "seq_length": length, "max_length": length, "normalize": normalize, "embedding_dtype": "float32",
    })  # fmt: skip
    modules = [{"idx": 0, "name": "0", "path": ".", "type": f"{_MODULES}.StaticEmbedding"}]
    if normalize:
        modules.append({"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{_MODULES}.Normalize"})
        make_directory(directory / "1_Normalize")
    write_text(directory / "modules.json", json.dumps(modules, indent=2) + "\n")
