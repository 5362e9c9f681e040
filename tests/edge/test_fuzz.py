"""Fuzzes the files of a bundle: a damaged one predicts as before or is refused in one line.

`DISTILL_FUZZ=10000 pytest -n 0 tests/edge/test_fuzz.py` tries as many examples of each kind.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.core.files import CHECKSUMS
from distill.edge.bundle import Bundle
from tests.edge.conftest import add_checksums, write_toy_bundle
from tests.fuzzing import damages, fuzz

TEXTS = ["a film", "", "a dull film and a moving film", "film"]
FILES = ("bundle.json", "model.onnx", "tokenizer.json", CHECKSUMS)

damaged_files = fuzz(60)


@dataclass(frozen=True)
class Intact:
    """The files of a bundle, what it predicts, and a directory for damaged copies."""

    directory: Path
    files: dict[str, bytes]
    predictions: list[dict[str, Any]]

    def predict(self, name: str, content: bytes, *, checksums: bool) -> list[dict[str, Any]] | None:
        """Predicts with one file replaced; returns None if the bundle is refused in one line."""
        for other, original in self.files.items():
            (self.directory / other).write_bytes(content if other == name else original)
        if not checksums:
            (self.directory / CHECKSUMS).unlink()
        try:
            return Bundle(self.directory, threads=1).predict(TEXTS)
        except UserError as error:
            message = str(error)
        assert len(message.splitlines()) == 1, message
        return None


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> Intact:
    directory = tmp_path_factory.mktemp("fuzz")
    write_toy_bundle(directory, tokenizer)
    add_checksums(directory)
    files = {name: (directory / name).read_bytes() for name in FILES}
    return Intact(directory, files, Bundle(directory, threads=1).predict(TEXTS))


scalars = (
    st.none() | st.booleans() | st.integers(-3, 10) | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["left", "right", "classes", "number", "tags", "fp32", "../model.onnx", "input_ids"])
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


def list_paths(value: object, *path: str | int) -> list[tuple[str | int, ...]]:
    """Returns the path of every value inside of a JSON value."""
    if isinstance(value, dict):
        return [path, *(found for key, item in value.items() for found in list_paths(item, *path, key))]
    if isinstance(value, list):
        return [path, *(found for index, item in enumerate(value) for found in list_paths(item, *path, index))]
    return [path]


@st.composite
def changes(draw: st.DrawFn, content: bytes) -> bytes:
    """JSON of which values are replaced, dropped, renamed, or have another type."""
    damaged = json.loads(content)
    for _ in range(draw(st.integers(1, 2))):
        *parents, last = draw(st.sampled_from(list_paths(damaged)[1:] or [("format",)]))
        part: Any = damaged
        for key in parents:
            part = part[key]
        value = part.pop(last) if isinstance(part, list) else part.pop(last, None)
        name = last if draw(st.booleans()) else draw(st.text(max_size=5))  # Replaced, or renamed or dropped.
        if isinstance(part, dict):
            part[name] = draw(values | st.sampled_from([str(value), [value], {"value": value}, bool(value), value]))
    return json.dumps(damaged).encode()


@pytest.mark.parametrize("name", FILES)
def test_damaged_bytes_never_change_a_prediction(intact: Intact, name: str) -> None:
    @damaged_files
    @given(damages(intact.files[name]))
    def check(content: bytes) -> None:
        predictions = intact.predict(name, content, checksums=True)
        assert predictions in (None, intact.predictions)
        # Only the line of bundle.json in the checksums matters to a device.
        assert predictions is None or content == intact.files[name] or name == CHECKSUMS

    check()


@pytest.mark.parametrize("kind", [damages, changes])
def test_a_bundle_without_checksums_predicts_or_is_refused_in_one_line(intact: Intact, kind: Any) -> None:
    @damaged_files
    @given(kind(intact.files["bundle.json"]))
    def check(content: bytes) -> None:
        predictions = intact.predict("bundle.json", content, checksums=False)
        assert predictions is None or len(predictions) == len(TEXTS)

    check()
