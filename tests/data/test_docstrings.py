"""Tests of the built-in data set: clean sentences, masked names, reproducible and complete files."""

import collections
import importlib.metadata
import importlib.util
import json
import random
import re
import shutil
from pathlib import Path

import pytest

from distill.core import files
from distill.core.errors import install_command
from distill.data import docstrings
from tests.data.conftest import Printed

SIZE = 20

SOURCE = b'''
"""Tools for the analysis of signals.  They need NumPy (imported as ``np``) and
nothing else, cf. the manual."""

def transform(signal, axis=0):
    """
    Return the :class:`~signals.Spectrum` of a *real* signal,
    computed with ``fft`` along one axis.

    Too short here.

    .. note:: The body of a directive is not used here.
       Nor is the second line of its body.

    Parameters
    ----------
    axis : int, see the `manual <https://example.org>`_ for what it means here.
        The description of a parameter is indented and left out.

    The result is `scaled <https://example.org>`_ by the length [1]_ of the signal! Is it always real?
    - An item of a list that is a whole sentence.

    See https://example.org for more about all of this.

    ====  ======================================
    name  The text of a table is not a sentence.

    The following example shows the transform of a pulse::

        This is a literal block and not a sentence.

    It prints the values of the spectrum.
    >>> transform([1, 0])
    This is the output of the doctest here.

    ```python
    This is the inside of a fenced block.

    The fence is closed after an empty line.
    ```
    The text goes on after the fence.
    """

    async def inner():
        r"""A formula such as \\alpha + 1 drops the whole sentence."""

add_newdoc("signals", "window", """Return the window that belongs to a signal.""")
print("""A string that is not a docstring is not used.""")
'''


def rows(directory: Path, name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (directory / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return docstrings.prepare_dataset(tmp_path_factory.mktemp("cache"), sentences_per_class=SIZE)


def test_sentences_are_the_prose_of_the_docstrings() -> None:
    sentences = [
        sentence for text in docstrings.extract_docstrings(SOURCE) for sentence in docstrings.extract_sentences(text)
    ]
    assert sentences == [
        "Tools for the analysis of signals.",
        "They need package (imported as package) and nothing else, cf. the manual.",
        "Return the Spectrum of a real signal, computed with fft along one axis.",
        "The result is scaled by the length of the signal!",
        "It prints the values of the spectrum.",
        "The text goes on after the fence.",
        "Return the window that belongs to a signal.",
    ]


def test_unparsable_or_nearly_undocumented_sources_are_skipped() -> None:
    assert docstrings.extract_docstrings(b'"""Text."""\nprint "Python 2"\n') == []
    assert docstrings.extract_docstrings(b'"""Text."""\n' + b"x = 1\n" * 2000) == []
    assert docstrings.extract_docstrings(b'# This file was automatically generated from a.py\n"""Text."""\n') == []


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("PyTorch and torch.nn.Linear differ.", "package and package.Linear differ."),
        ("Hugging Face's HF hub and huggingface_hub.", "package's package hub and package_hub."),
        ("A pd.DataFrame or np.array in CPython.", "A package.DataFrame or package.array in package."),
        ("Sympify the symbolic input; inputs stay simple.", "package the symbolic input; inputs stay simple."),
    ],
)
def test_names_of_the_packages_are_masked(text: str, masked: str) -> None:
    assert docstrings.mask_names(text) == masked


def test_sentences_that_differ_only_in_names_and_numbers_have_one_normalized_form() -> None:
    key = docstrings.normalize_sentence("Construct a BERT tokenizer with 12 layers and vocab_size words.")
    assert key == docstrings.normalize_sentence("Construct a GPT2 tokenizer with 24 layers and n_vocab words.")
    assert key != docstrings.normalize_sentence("Construct a fast tokenizer with 12 layers and vocab_size words.")


def test_sentences_per_file_are_limited_unless_the_package_has_too_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docstrings, "SENTENCES_PER_FILE", 2)
    names = {"a": ("red", "green", "blue", "black"), "b": ("round", "square"), "test_c": ("long", "short")}
    for name, words in names.items():
        texts = [f'def {word}():\n    """This one returns the {word} things."""\n' for word in words]
        (tmp_path / f"{name}.py").write_text("".join(texts), encoding="utf-8")
    for seed in range(5):
        four = docstrings.collect_sentences(tmp_path, limit=4, random_order=random.Random(seed), seen=set())
        assert sum("round" in text or "square" in text for text in four) == 2
    six = docstrings.collect_sentences(tmp_path, limit=9, random_order=random.Random(0), seen=set())
    assert len(six) == len(set(six)) == 6


def test_classes_are_balanced_and_the_splits_disjoint(prepared: Path) -> None:
    train, dev = rows(prepared, "train"), rows(prepared, "dev")
    assert collections.Counter(row["label"] for row in train) == dict.fromkeys(docstrings.LABELS, SIZE - SIZE // 10)
    assert collections.Counter(row["label"] for row in dev) == dict.fromkeys(docstrings.LABELS, SIZE // 10)
    keys = [docstrings.normalize_sentence(row["sentence"]) for row in train + dev]
    assert len(set(keys)) == len(keys)
    for row in train + dev:
        assert set(row) == {"sentence", "label"}
        assert 5 <= len(row["sentence"].split()) <= 60
        assert docstrings.mask_names(row["sentence"]) == row["sentence"]


def test_a_second_call_uses_the_cache(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {file.name: file.stat().st_mtime_ns for file in prepared.iterdir()}
    monkeypatch.setattr(docstrings, "build_splits", lambda *_, **__: pytest.fail("the data set was built again"))
    assert docstrings.prepare_dataset(prepared.parents[1], sentences_per_class=SIZE) == prepared
    assert {file.name: file.stat().st_mtime_ns for file in prepared.iterdir()} == before


def test_a_damaged_cache_entry_is_rebuilt(prepared: Path, tmp_path: Path, printed: Printed) -> None:
    copy = tmp_path / "data" / prepared.name
    shutil.copytree(prepared, copy)
    (copy / "dev.jsonl").write_text("half a ro", encoding="utf-8")
    assert docstrings.prepare_dataset(tmp_path, sentences_per_class=SIZE) == copy
    assert "is damaged, its checksums do not match: building it again" in printed()
    for name in (*docstrings.DATA_FILES, files.CHECKSUMS):  # They do not depend on the directory of the cache.
        assert (copy / name).read_bytes() == (prepared / name).read_bytes()
    assert [entry.name for entry in copy.parent.iterdir()] == [copy.name]
    other = docstrings.prepare_dataset(tmp_path, sentences_per_class=SIZE, seed=1)
    assert other.name != copy.name
    assert (other / "train.jsonl").read_bytes() != (copy / "train.jsonl").read_bytes()


def test_the_smallest_class_limits_the_size_of_all_classes(tmp_path: Path, printed: Printed) -> None:
    for name, words in {"few": ("red", "green"), "many": ("round", "square", "flat", "long")}.items():
        (tmp_path / name).mkdir()
        texts = [f'def {word}():\n    """This one returns the {word} things."""\n' for word in words]
        (tmp_path / name / "file.py").write_text("".join(texts), encoding="utf-8")
    roots = {"few": tmp_path / "few", "many": tmp_path / "many"}
    splits = docstrings.build_splits(roots, sentences_per_class=4, seed=0)
    assert "fewer than 4 sentences for few 2: using 2 per class" in printed()
    assert collections.Counter(row["label"] for row in splits["train.jsonl"]) == {"few": 2, "many": 2}


def test_a_missing_package_raises_with_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sympy" else find_spec(name))
    with pytest.raises(ValueError, match="sentences_per_class is 9, expected at least 10"):
        docstrings.prepare_dataset(tmp_path, sentences_per_class=9)
    expected = f"sources of 'sympy', which is not installed: {re.escape(install_command('train'))}$"
    with pytest.raises(ModuleNotFoundError, match=expected):
        docstrings.prepare_dataset(tmp_path, sentences_per_class=SIZE)
    assert list(tmp_path.iterdir()) == []

    def no_version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", no_version)
    with pytest.raises(ModuleNotFoundError, match="sources of 'numpy', which is not installed"):
        docstrings.compute_fingerprint(SIZE, 0)
