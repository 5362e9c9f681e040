"""Tests that a damaged file of `cache_dir` is noticed by its reader and made again, with the same content."""

import hashlib
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.teachers.pretrained import Pretrained
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from distill.chain import task_run
from distill.core.files import CHECKSUMS
from distill.core.storage import LEASE
from distill.data import tokenization
from distill.data.splits import LabelledData
from distill.export.quantization import ExportSettings
from distill.kinds import Classification, MaskedLM
from distill.teachers import output_cache
from distill.teachers import preparation as teaching
from distill.teachers.computation import Computation, cache_outputs
from distill.teachers.output_cache import HiddenLayers, OutputCache
from distill.teachers.source import TeacherSource
from distill.text.masking import Masking
from tests.conftest import SETTINGS, sentences, stored_logits, toy_bert

CASES = 100
Reader = Callable[[], str]  # Reads an entry of the cache, makes what is missing, and returns a digest of the content.


def digest_of(*values: Any) -> str:
    digest = hashlib.sha256()
    for value in values:
        array = value.numpy() if isinstance(value, Tensor) else value
        digest.update(array.tobytes() if isinstance(array, np.ndarray) else repr(array).encode())
    return digest.hexdigest()


def read_all(directory: Path) -> dict[str, bytes]:
    paths = (path for path in directory.rglob("*") if path.is_file() and path.name != LEASE)
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


@dataclass
class Cache:
    """A cache directory with every kind of entry that a run reads back, and the readers by folder."""

    directory: Path
    readers: dict[str, Reader]

    def entries(self, name: str) -> Path:
        """The folder whose entries a reader reads."""
        return self.directory / name / "cache" / ("tokens" if name == "text" else name)


@pytest.fixture(scope="module")
def cache(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase, data_dir: Path,
    splits: LabelledData, encoder_dir: Path,
) -> Iterator[Cache]:  # fmt: skip
    root = tmp_path_factory.mktemp("damage")
    task = Classification(name="toy", text=["sentence"], data_dir=str(data_dir), max_length=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_cache, "SHARD_TOKENS", 200)
        readers = {
            "tokens": lambda: read_tokens(root, splits, tokenizer),
            "text": lambda: read_text(root, tokenizer),
            "outputs": lambda: read_outputs(root, splits, tokenizer, task),
            "teachers": lambda: read_teacher(root, splits, task, encoder_dir),
            "onnx": lambda: read_onnx(root, tokenizer),
        }
        (root / "corpus.txt").write_text("\n".join(f"{text} . And {text} ." for text, _ in sentences(60)))
        for name, reader in readers.items():
            reader()
            remember(patch, root, name)
        yield Cache(root, readers)


def remember(patch: pytest.MonkeyPatch, root: Path, name: str) -> None:
    """Replaces the slow makers of an entry by a copy of what they made."""
    copy = root / "made" / name
    if name == "teachers":
        [made] = (root / name / "cache" / "teachers").iterdir()
        shutil.copytree(made, copy, ignore=shutil.ignore_patterns(CHECKSUMS, LEASE))

        def finetune(*arguments: Any) -> float:
            with teaching.new_entry(arguments[4]) as directory:
                shutil.copytree(copy, directory, dirs_exist_ok=True)
            return 1.0

        patch.setattr(teaching, "_finetune", finetune)
    elif name == "onnx":
        [made] = (root / name / "cache" / "onnx").iterdir()
        shutil.copytree(made, copy)
        patch.setattr(task_run, "export_model", lambda model, path, **_: shutil.copy(copy / path.name, path))
        patch.setattr(task_run, "write_dynamic", lambda material, int8: shutil.copy(copy / int8.name, int8))


def read_tokens(root: Path, splits: LabelledData, tokenizer: PreTrainedTokenizerBase) -> str:
    tokens = tokenization.tokenize_split(splits.splits["train"], tokenizer, 16, root / "tokens" / "cache")
    return digest_of(*tokens.columns.values(), tokens.offsets, tokens.truncated)


def read_text(root: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    task = MaskedLM(
        data=root / "corpus.txt", mask=Masking(), documents="line", max_length=16, dev_fraction=0.2, masking="static"
    )
    cache_dir = root / "text" / "cache"
    examples = task.encode(task.read(cache_dir), tokenizer, cache_dir)
    return digest_of(*(value for split in examples.values() for value in split[[0, 1, 2]].values()))  # type: ignore[index]


def read_outputs(root: Path, splits: LabelledData, tokenizer: PreTrainedTokenizerBase, task: Classification) -> str:
    examples = task.encode(splits, tokenizer, None)["train"]
    directory = root / "outputs" / "cache" / "outputs"
    computation = Computation(lambda: toy_bert(len(tokenizer)).eval(), "one", task, OutputCache(hidden=True), directory)
    outputs = cache_outputs(computation, examples, hidden=HiddenLayers(32, 4, (4,)))
    batch = examples[list(range(len(examples)))]
    states = outputs(batch, task.select(batch)).whole().hidden_states
    assert states is not None
    return digest_of(stored_logits(outputs), states[-1])


def read_teacher(root: Path, splits: LabelledData, task: Classification, encoder_dir: Path) -> str:
    source = TeacherSource(Pretrained(name="toy", path=str(encoder_dir)), replace(SETTINGS, max_epochs=1))
    preparation = teaching.Preparation(
        task=task, splits=splits, cache_dir=root / "teachers" / "cache", run_directory=root / "run",
        device=torch.device("cpu"),
    )  # fmt: skip
    teacher = teaching.prepare(source, preparation, requested="toy", substituted=False)
    ids = teacher.tokenizer(["a lovely film"])["input_ids"]
    return digest_of(*teacher.model.state_dict().values(), ids, teacher.fingerprint, teacher.model.config.id2label)


def read_onnx(root: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    model = toy_bert(len(tokenizer), layers=1).eval()
    stage = SimpleNamespace(
        plan=SimpleNamespace(export=ExportSettings(), cache_dir=root / "onnx" / "cache"),
        teacher=SimpleNamespace(weights="0123456789abcdef", model=model, tokenizer=tokenizer),
        task=SimpleNamespace(info=SimpleNamespace(generates=False)),
    )
    files = task_run.TaskRun._teacher_files(stage)  # type: ignore[arg-type]
    return digest_of(*(path.read_bytes() for path in files.values()))


def damage(path: Path, generator: random.Random) -> bytes | None:
    """Damages one file; returns its content, None if it was deleted."""
    content = bytearray(path.read_bytes())
    kind = generator.choice(["flip", "truncate", "delete"])
    if kind == "delete":
        path.unlink()
        return None
    if kind == "truncate":
        del content[generator.randrange(len(content)) :]
    else:
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content)
    return bytes(content)


@pytest.mark.slow
def test_a_damaged_file_of_the_cache_is_noticed_and_made_again(cache: Cache) -> None:
    generator = random.Random(0)
    intact = {name: (reader(), read_all(cache.entries(name))) for name, reader in cache.readers.items()}
    for case in range(CASES):
        name = generator.choice(list(cache.readers))
        content, files = intact[name]
        path = cache.entries(name) / generator.choice(sorted(files))
        damaged = damage(path, generator)
        assert cache.readers[name]() == content, (case, path)
        made_again = read_all(cache.entries(name))
        assert made_again.keys() == files.keys(), (case, path)
        assert made_again[str(path.relative_to(cache.entries(name)))] != damaged, (case, path)
        # The order of the fields in the header of a safetensors file differs from time to time.
        assert all(made_again[other] == files[other] for other in files if not other.endswith(".safetensors"))
