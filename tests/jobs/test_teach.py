"""Tests of job=teach and of trainings that stream its shards: outputs, workers, resumed trainings, and bad shards."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from s3fs import S3FileSystem
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from distill.core import storage
from distill.core.contracts import TEACHER_LOGITS
from distill.core.errors import UserError
from distill.data import shards as sharding
from distill.data.batches import all_loaders
from distill.data.shards import Manifest, Shards, ShardWriter, rounded
from distill.data.splits import CHANGED_COPIES, text_split
from distill.data.streams import ShardStream
from distill.jobs import teaching_job
from distill.kinds import Classification, Embedding, Regression
from distill.losses import HardLabels, Objective, SoftTargets
from distill.teachers.signal import Streamed
from distill.training.module import DistillationModule
from tests.conftest import LABELS, LOOSE_OPTIONS, SETTINGS, Toy, sentences, toy_bert
from tests.golden.commands import merge_options
from tests.jobs.conftest import Command
from tests.laws.test_training import without_dropout
from tests.training.test_checkpoints import equal_trainings, stop_at

TEXTS = [f"{text} again {number}" for number, (text, _) in enumerate(sentences(90))]
MANIFEST = Manifest(1, "classification", ("sentence",), LABELS, "teacher", "data", ("texts 1",), 40, "float32")


@pytest.fixture(scope="module")
def teacher_dir(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A teacher whose head fits the labels."""
    model = toy_bert(len(tokenizer))
    model.config.id2label, model.config.label2id = dict(enumerate(LABELS)), {name: i for i, name in enumerate(LABELS)}
    directory = tmp_path_factory.mktemp("teacher")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def given(data_dir: Path, teacher_dir: Path, tmp_path: Path) -> tuple[str, ...]:
    """The options of the data and the teacher, and a file of texts: two of dev, one empty, one twice, and 90 others."""
    known = [text for text, _ in sentences(24)[:2]]
    (tmp_path / "texts.txt").write_text(
        "\n".join([TEXTS[0].upper(), *TEXTS[1:50], *known, "", *TEXTS[50:], TEXTS[89]]) + "\n"
    )
    return (
        "+teacher=pretrained", f"teacher.path={teacher_dir}", "task=sst2", f"task.data_dir={data_dir}",
        "task.max_length=40", "teacher.accept_weak=true", "teacher.precision=float32", "cache_dir=cache",
    )  # fmt: skip


@pytest.fixture
def teach(command: Command, given: tuple[str, ...]) -> Any:
    """Runs job=teach with further options; returns the exit code, and the output of the one or the other stream."""

    def run(*options: str) -> tuple[int, str]:
        code, output, error = command("job=teach", "data=texts.txt", "teach.texts=40", *given, *options)
        return code, " ".join((error or output).split())

    return run


def read_all(directory: Path) -> dict[str, np.ndarray]:
    """Returns the outputs of all texts of the shards; fails for a text that is there twice."""
    shards = Shards.open(directory)
    parts = [shards.read(number) for number in range(len(shards.rows))]
    rows = [(text, values) for [texts], outputs in parts for text, values in zip(texts, outputs, strict=True)]
    assert max(Counter(text for text, _ in rows).values()) == 1
    return dict(rows)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five shards of 20 numbered texts, whose outputs are their numbers."""
    directory = tmp_path_factory.mktemp("numbered")
    writer = ShardWriter(directory, replace(MANIFEST, texts=20))
    for number in range(5):
        numbers = np.arange(number * 20, number * 20 + 20)
        texts = [f"a lovely film {each}" for each in numbers]
        writer.write(number, {"sentence": texts}, np.stack([numbers, -numbers], axis=1).astype(np.float32))
    assert writer.finish(5) == 0
    return directory


MakeSplits = Callable[[], tuple[Classification, Any, dict[str, Any]]]


@pytest.fixture
def make_splits(
    numbered: Path, tokenizer: PreTrainedTokenizerBase, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MakeSplits:
    """Returns a task with these shards, its data and its examples; two shards are shuffled together."""
    monkeypatch.setattr("distill.data.streams.BUFFER", 40)
    task = Classification(text="sentence", label="label", data_dir=data_dir, unlabelled=numbered, max_length=40)

    def make() -> tuple[Classification, Any, dict[str, Any]]:
        data = task.read(tmp_path)
        return task, data, task.encode(data, tokenizer, None)

    return make


@pytest.fixture
def make_stream(make_splits: MakeSplits) -> Callable[..., ShardStream]:
    def make(**options: Any) -> ShardStream:
        train = make_splits()[2]["train"]
        stream: ShardStream = train.training_loader(steps=40, batch_size=8, accumulate=1, seed=3, **options).dataset
        return stream

    return make


def last_number(text: str) -> int:
    """Returns the number at the end of a text whose digits may be pieces of their own."""
    found = re.search(r"\d+$", "".join(text.replace("##", "").split()))
    assert found is not None
    return int(found[0])


# The shards


def test_shards_have_the_outputs_of_the_teacher_for_each_new_text_once(
    teach: Any, tmp_path: Path, teacher_dir: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    code, output = teach()
    assert code == 0, output
    assert "Shards 3 of 3 in shards" in output
    found = read_all(tmp_path / "shards")
    assert set(found) == {TEXTS[0].upper(), *TEXTS[1:]}
    model = AutoModelForSequenceClassification.from_pretrained(teacher_dir).eval()
    for text in TEXTS[1::7]:
        with torch.no_grad():
            expected = model(**tokenizer(text, return_tensors="pt")).logits[0]
        torch.testing.assert_close(torch.from_numpy(found[text]), expected, rtol=1e-4, atol=1e-4)


def test_a_second_start_writes_what_is_missing_with_the_same_content(
    teach: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teach()
    second = tmp_path / "shards" / "000001.parquet"
    before = second.read_bytes()
    second.unlink()
    written: list[int] = []
    original = ShardWriter.write

    def write(self: ShardWriter, number: int, *rest: Any) -> Path:
        written.append(number)
        return original(self, number, *rest)

    monkeypatch.setattr(ShardWriter, "write", write)
    code, _ = teach()
    assert (code, written, second.read_bytes()) == (0, [1], before)


def test_a_shard_is_written_by_one_process_and_left_by_a_killed_one(tmp_path: Path) -> None:
    first, second = ShardWriter(tmp_path, MANIFEST), ShardWriter(tmp_path, MANIFEST)
    with first.claim(0) as mine, second.claim(0) as other, second.claim(1) as further:
        assert (mine, other, further) == (True, False, True)
    with second.claim(0) as mine:  # The first one ended without writing it.
        assert mine
        second.write(0, {"sentence": ["a"]}, np.ones((1, 2), dtype=np.float32))
    with first.claim(0) as mine:
        assert not mine
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000.parquet", "manifest.json", "manifest.lock"]


@pytest.mark.parametrize(("dtype", "most"), [("float32", 0.0), ("float16", 1e-3), ("int8", 1 / 200)])
def test_rounded_outputs_are_near(dtype: Any, most: float, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(7, 12)).astype(np.float32)
    values[3] = 0
    writer = ShardWriter(tmp_path, replace(MANIFEST, dtype=dtype))
    writer.write(0, {"sentence": ["a"] * 7}, values)
    writer.finish(1)
    texts, found = Shards.open(tmp_path).read(0)
    assert texts == [["a"] * 7]
    assert np.abs(found - values).max() <= most * np.abs(values).max()
    np.testing.assert_array_equal(found, rounded(values, dtype))


# The stream


def test_each_pass_shows_every_text_once_with_its_outputs_and_its_share_of_a_step(
    make_stream: Callable[..., ShardStream], tokenizer: PreTrainedTokenizerBase
) -> None:
    stream = make_stream()
    shown: list[int] = []
    for step in stream:
        is_pool = torch.cat([batch["example_id"] for batch in step]) < 0
        assert int(is_pool.sum()) == len(is_pool) / 2
        assert set(torch.cat([batch["labels"] for batch in step])[is_pool].tolist()) == {-100}
        for batch in step:
            of_pool = batch["example_id"] < 0
            if not of_pool.any():
                continue
            numbers = batch[TEACHER_LOGITS][of_pool][:, 0].int().tolist()
            words = tokenizer.batch_decode(batch["input_ids"][of_pool], skip_special_tokens=True)
            assert [last_number(text) for text in words] == numbers
            shown += numbers
    assert sorted(shown[:100]) == list(range(100))
    assert shown[:100] != shown[100:]
    assert len(set(shown[:40]) - set(range(40))) > 0  # Shards are not in their order.


@pytest.mark.parametrize("stop", [1, 9, 10, 23])
def test_a_resumed_stream_goes_on_with_the_same_steps(stop: int, make_stream: Callable[..., ShardStream]) -> None:
    stream = make_stream()
    whole, places = [], []
    for step in stream:
        whole.append(step)
        places.append(stream.place)
    again = make_stream()
    again.skip, again.place = stop, places[stop - 1]
    rest = list(again)
    assert len(rest) == 40 - stop
    for own, other in zip(rest, whole[stop:], strict=True):
        assert all(torch.equal(own[0][name], other[0][name]) for name in other[0])


def test_ranks_share_the_steps_of_one_process_with_larger_batches(make_stream: Callable[..., ShardStream]) -> None:
    whole = make_stream()
    whole.batches["batch_size"] = 16
    ranks = [make_stream(world=2) for _ in range(2)]
    ranks[1].rank = 1
    for step, *of_ranks in zip(whole, *ranks, strict=True):
        parts = [batch[TEACHER_LOGITS][:, 0] for of_rank in of_ranks for batch in of_rank]
        expected = torch.cat([batch[TEACHER_LOGITS][:, 0] for batch in step])
        assert sorted(torch.cat(parts).tolist()) == sorted(expected.tolist())
        assert len(of_ranks[0]) == len(of_ranks[1])


def test_the_signal_of_a_batch_is_that_of_its_texts(make_stream: Callable[..., ShardStream]) -> None:
    stream = make_stream()
    labelled = torch.arange(len(stream.labelled)).float()[:, None] + torch.tensor([0.25, 0.5])
    signal = Streamed(stream.pool.shards, labelled)
    batch = next(iter(stream))[0]
    logits = signal(batch, Classification(text="sentence").select(batch)).logits
    assert logits is not None
    for row, example in enumerate(batch["example_id"].tolist()):
        expected = batch[TEACHER_LOGITS][row] if example < 0 else labelled[example]
        assert torch.equal(logits[row], expected)


def make_training(make_splits: MakeSplits, tokenizer: PreTrainedTokenizerBase, directory: Path, **options: Any) -> Toy:
    """Returns a training of seven steps, which reads three buffers."""
    task, data, examples = make_splits()
    settings = replace(SETTINGS, batch_size=16, max_epochs=None, max_steps=7, checkpoint_steps=1, **options)
    loaders = all_loaders(examples, steps=7, **settings.batches())
    train = examples["train"]
    signal = Streamed(train.streamed.shards, torch.randn(len(train), 2, generator=torch.Generator().manual_seed(0)))
    objective = Objective(name="hinton", terms={"soft": SoftTargets(weight=1), "hard": HardLabels(weight=1)})
    torch.manual_seed(0)
    student = from_teacher(toy_bert(len(tokenizer))).eval()
    module = DistillationModule(
        student=student, objective=objective, task=task, scoring=data.scoring, signal=signal, settings=settings,
        steps_per_epoch=7,
    )  # fmt: skip
    return Toy(module, loaders, settings, tokenizer, directory)


@pytest.mark.parametrize("stop", [2, 5])
def test_a_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(
    stop: int,
    make_splits: MakeSplits,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = make_training(make_splits, tokenizer, tmp_path / "whole")
    whole.fit()
    stop_at(make_training(make_splits, tokenizer, tmp_path / "stopped"), stop, monkeypatch)
    resumed = make_training(make_splits, tokenizer, tmp_path / "stopped")
    assert resumed.fit(resume=True).steps == 7
    assert equal_trainings(resumed, whole)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_end_with_the_weights_of_one_with_twice_the_batch(
    strategy: str,
    make_splits: MakeSplits,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("distill.data.streams.BUFFER", 32_768)  # As in the other processes.
    one = make_training(make_splits, tokenizer, tmp_path / "one", eps=1e-2, clip=0.0)
    two = make_training(make_splits, tokenizer, tmp_path / "two", eps=1e-2, clip=0.0, devices=2, strategy=strategy)
    two.settings = replace(two.settings, batch_size=8)
    two.loaders = all_loaders(make_splits()[2], steps=7, **two.settings.batches())
    for toy in (one, two):
        without_dropout(toy)
        toy.fit()
    for name, tensor in one.module.state_dict().items():
        torch.testing.assert_close(two.module.state_dict()[name], tensor, rtol=0, atol=1e-4, msg=name)


# Whole commands


def test_a_training_streams_its_shards_beside_its_labelled_rows(
    teach: Any, command: Command, given: tuple[str, ...], tmp_path: Path
) -> None:
    teach()
    options = (
        *given, "+student=distilbert", "task.unlabelled=shards", "objective=hinton", "trainer=fixed",
        "trainer.max_epochs=null", "trainer.max_steps=12", "trainer.batch_size=8", "trainer.precision=32-true",
        "augment=none", "benchmark.enabled=false", "baseline=true", "export.recipes=[dynamic]", *LOOSE_OPTIONS,
    )  # fmt: skip
    code, output, error = command(*options)
    assert code == 0, error
    [directory] = (path.parent for path in (tmp_path / "runs").rglob("bundle"))
    record = json.loads((directory / "run.json").read_text())
    assert record["task"]["unlabelled"]["examples"] == 90
    assert record["training"]["steps"] == 12
    assert record["teacher_outputs"]["cached"]
    assert record["baseline"]["metrics"]
    assert "MB, streamed" in " ".join(output.split())


def test_vectors_of_texts_are_streamed(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    manifest = replace(MANIFEST, kind="embedding", columns=("text",), labels=(), dtype="int8")
    writer = ShardWriter(tmp_path / "shards", manifest)
    vectors = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
    writer.write(0, {"text": TEXTS}, vectors)
    writer.finish(1)
    rows = [text for text, _ in sentences(150)]
    (tmp_path / "own.txt").write_text("\n".join(rows))
    task = Embedding(data_dir=tmp_path / "own.txt", unlabelled=tmp_path / "shards", max_length=24)
    train: Any = task.encode(task.read(tmp_path), tokenizer, None)["train"]
    stream = train.training_loader(steps=3, batch_size=8, accumulate=1, seed=0).dataset
    signal = Streamed(stream.pool.shards, torch.zeros(len(stream.labelled), 6))
    [batch] = next(iter(stream))
    found = signal(batch, task.select(batch)).logits
    assert found is not None
    is_pool = batch["example_id"] < 0
    words = tokenizer.batch_decode(batch["input_ids"][is_pool], skip_special_tokens=True)
    numbers = [last_number(text) for text in words]
    np.testing.assert_allclose(found[is_pool], vectors[numbers], atol=0.02)


def test_numbers_of_pairs_are_streamed(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    manifest = replace(MANIFEST, kind="regression", columns=("one", "two"), labels=("score",))
    writer = ShardWriter(tmp_path / "shards", manifest)
    numbers = np.arange(90, dtype=np.float32)[:, None]
    writer.write(0, {"one": ["a lovely film"] * 90, "two": TEXTS}, numbers)
    writer.finish(1)
    rows = [{"one": text, "two": "dull", "score": number / 40} for number, (text, _) in enumerate(sentences(40))]
    task = Regression(text=["one", "two"], label="score", train=rows, dev=rows, unlabelled=tmp_path / "shards")
    data = task.read(tmp_path)
    data.pool.shards.check(task.kind, task.known_columns, data.labels)  # type: ignore[union-attr]
    train: Any = task.encode(data, tokenizer, None)["train"]
    stream = train.training_loader(steps=3, batch_size=8, accumulate=1, seed=0).dataset
    signal = Streamed(stream.pool.shards, torch.full((len(stream.labelled), 1), -1.0))
    batch = next(iter(stream))[0]
    items = task.select(batch)
    is_pool = batch["example_id"] < 0
    assert items.labelled is not None
    assert torch.equal(items.labelled, ~is_pool)
    found = signal(batch, items).logits
    assert found is not None
    words = tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True)
    expected = [last_number(text) if pool else -1 for text, pool in zip(words, is_pool.tolist(), strict=True)]
    assert found[:, 0].tolist() == expected


# Refused


def cut_off(directory: Path) -> None:
    path = directory / "000001.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def change_manifest(directory: Path, **values: Any) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_off, r"000001.parquet is damaged \(.*\): remove it and run its job=teach command again"),
        (lambda path: (path / "000002.parquet").unlink(), "has not all its shards yet 2 of 3: run its job=teach"),
        (lambda path: change_manifest(path, shards=None), "has not all its shards yet: run its job=teach command"),
        (lambda path: change_manifest(path, version=7), "has version 7, and this program reads 1 at most:"),
        (lambda path: (path / "manifest.json").write_text("{"), "manifest.json is no record of shards"),
        (lambda path: change_manifest(path, kind="regression"), "are of a task with kind regression, and this one has"),
        (lambda path: change_manifest(path, labels=["a", "b"]), "are of a task with labels a, b, and this one has neg"),
        (lambda path: change_manifest(path, teacher="x"), "are of another teacher, or of one that was fine-tuned, tok"),
    ],
)  # fmt: skip
def test_shards_that_cannot_teach_are_refused(
    damage: Any, message: str, command: Command, given: tuple[str, ...], tmp_path: Path, stored: Path
) -> None:
    shutil.copytree(stored, tmp_path / "shards")
    damage(tmp_path / "shards")
    code, _, error = command(
        *given, "+student=distilbert", "task.unlabelled=shards", "objective=hinton", "trainer.max_steps=4"
    )
    assert code == 2
    assert re.search(message, " ".join(error.split())), error


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, of a teacher that is not checked before the others are."""
    directory = tmp_path_factory.mktemp("stored") / "shards"
    writer = ShardWriter(directory, MANIFEST)
    for number in range(3):
        writer.write(number, {"sentence": TEXTS[number * 30 :][:30]}, np.ones((30, 2), dtype=np.float32))
    writer.finish(3)
    return directory


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("objective=distilbert",), "have the teacher's outputs alone, and cosine of objective distilbert needs"),
        (("trainer.max_steps=null",), "are streamed: give trainer.max_steps; to show each of the 90 texts once is to"),
    ],
)
def test_trainings_that_cannot_stream_are_refused(
    options: tuple[str, ...], message: str, command: Command, given: tuple[str, ...], tmp_path: Path, stored: Path
) -> None:
    common = (*given, "+student=distilbert", f"task.unlabelled={stored}", "trainer.max_steps=4", "objective=hinton")
    code, _, error = command(*merge_options(common, options))
    assert (code, message in " ".join(error.split())) == (2, True), error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("data=null",), "job=teach has no texts: add data=FILE"),
        (("data=nothing.txt",), "data=nothing.txt does not exist, expected a file or a directory of texts"),
        (("data=wrong.csv",), "data=wrong.csv has the columns other, expected sentence"),
        (("teach.dtype=int8",), "got teach.dtype=int8, expected float32 or float16, because int8 is for vectors"),
        (("teach.text=3",), "teach.text"),
        (("task=wnut17",), "job=teach is for one task of classes, numbers or vectors of texts, and task="),
        (("trainer.batch_size=3",), "trainer.batch_size=3 would change nothing in job=teach"),
    ],
)  # fmt: skip
def test_what_no_teacher_can_teach_is_refused(
    options: tuple[str, ...], message: str, command: Command, given: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "wrong.csv").write_text("other\na\n")
    code, _, error = command(*merge_options(("job=teach", "data=texts.txt", *given), options))
    assert (code, message in " ".join(error.split())) == (2, True), error


def test_shards_of_other_options_and_a_full_disk_are_refused_before_the_pass(
    teach: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teach()
    code, output = teach("teach.texts=30")
    assert (code, "has shards with other texts than this command's: set teach.output to another" in output) == (2, True)
    monkeypatch.setattr(sharding, "free_bytes", lambda directory: 10)
    monkeypatch.setattr(teaching_job, "_write", None)
    code, output = teach("teach.output=other")
    assert (code, "MB left: set teach.output to a larger one, or teach.dtype=float16" in output) == (2, True)


def test_shards_beside_other_texts_are_refused(make_splits: MakeSplits, tokenizer: PreTrainedTokenizerBase) -> None:
    """They would be left out without a word."""
    task, data, _ = make_splits()
    pool = data.pool.add(text_split(TEXTS), CHANGED_COPIES, "augment=tang")
    with pytest.raises(UserError, match="are mixed with labelled rows alone, and there are also 90 changed copies"):
        task.encode(replace(data, pool=pool), tokenizer, None)


def test_a_manifest_of_a_later_version_names_the_version(tmp_path: Path) -> None:
    ShardWriter(tmp_path, MANIFEST)
    change_manifest(tmp_path, version=2)
    with pytest.raises(UserError, match="has version 2, and this program reads 1 at most"):
        Manifest.read(tmp_path)


# Shards at a URL


def test_machines_share_the_shards_of_a_bucket(
    teach: Any, command: Command, given: tuple[str, ...], bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on(machine: str) -> Path:
        monkeypatch.setenv("DISTILL_MIRROR", str(tmp_path / machine))
        return storage.local_path(f"{bucket}/shards")

    assert teach()[0] == 0
    output = f"teach.output={bucket}/shards"
    writer = ShardWriter(on("first"), replace(Manifest.read(tmp_path / "shards"), shards=None))
    with writer.claim(1) as is_mine:
        assert is_mine
        on("second")
        code, said = teach(output)
        assert (code, f"Shards 2 of 3 in {bucket}/shards" in said) == (0, True), said
    monkeypatch.setattr(sharding, "LEASE", 0)  # The first machine is lost.
    code, said = teach(output)
    assert (code, f"Shards 3 of 3 in {bucket}/shards" in said) == (0, True), said
    assert not [name for name in S3FileSystem().find(bucket) if "lock" in name or "claim" in name]

    there, here = read_all(on("reader")), read_all(tmp_path / "shards")
    assert there.keys() == here.keys()
    assert all((there[text] == here[text]).all() for text in here)
    on("trainer")
    code, said, error = command(
        *given, "+student=distilbert", "objective=hinton", "trainer.max_steps=2", f"task.unlabelled={bucket}/shards",
        "export.enabled=false", "baseline=false",
    )  # fmt: skip
    assert code == 0, error


def test_a_bucket_that_is_missing_is_named(teach: Any, bucket: str) -> None:
    code, said = teach(f"teach.output={bucket}s/shards")
    assert (code, f"there is no bucket {bucket[5:]}s" in said) == (2, True), said
