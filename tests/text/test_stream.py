"""Tests that the steps of a stream are the same for a seed, also after resuming and across processes."""

import io
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.data import batches
from distill.data.batches import CollatedBatch
from distill.text import corpus as readers
from distill.text.sequences import Sequences
from distill.text.streaming import CorpusStream, StreamedText
from tests.text.conftest import (
    BATCHES,
    Encode,
    equal_batches,
    make_task,
    make_text,
    read_numbers,
    record_documents,
    unmask,
    unmask_all,
)

Stream = Callable[..., CorpusStream]


@pytest.fixture
def make_stream(corpus_file: Path, tokenizer: PreTrainedTokenizerBase) -> Stream:
    def make(path: Path = corpus_file, steps: int = 1, rank: int = 0, world: int = 1, **options: Any) -> CorpusStream:
        task = make_task(path, streaming=True, **options)
        text = StreamedText(task.read(Path("no")).corpus, task.settings, tokenizer)
        return CorpusStream(text, steps=steps, batches=BATCHES, rank=rank, world=world)

    return make


def make_streamed_text(path: Path, tokenizer: PreTrainedTokenizerBase, **options: Any) -> StreamedText:
    task = make_task(path, streaming=True, **options)
    return StreamedText(task.read(Path("no")).corpus, task.settings, tokenizer)


def equal_steps(one: list[list[CollatedBatch]], other: list[list[CollatedBatch]]) -> bool:
    return len(one) == len(other) and all(
        len(step) == len(again) and all(map(equal_batches, step, again)) for step, again in zip(one, other, strict=True)
    )


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distill.text.streaming.BUFFER", 24)
    monkeypatch.setattr("distill.text.packing._BATCH_CHARACTERS", 2**9)


def save_and_load(value: Any) -> Any:
    """Saves and loads a value as a checkpoint does."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize(
    "options",
    [{}, {"packing": "segment_pair", "pair": "nsp"}, {"packing": "full_sentences"}, {"rank": 1, "world": 2}],
    ids=["doc_sentences", "nsp", "full_sentences", "one_of_two"],
)
def test_a_resumed_stream_continues_with_the_next_step(make_stream: Stream, options: dict[str, Any]):
    stream = make_stream(steps=40, **options)
    whole, positions = [], []
    for step in stream:
        whole.append(step)
        positions.append(save_and_load(stream.place))
    assert len(whole) == len(stream) == 40
    assert positions[-1]["buffer"]["visit"] > 1  # Beyond the end of the corpus.
    assert equal_steps(list(make_stream(steps=40, **options)), whole)
    for done in (1, 2, 3, 7, 17, 40):
        stream = make_stream(steps=40, **options)
        stream.skip, stream.place = done, positions[done - 1]
        stream = pickle.loads(pickle.dumps(stream))
        assert equal_steps(list(stream), whole[done:])
        assert equal_steps(list(itertools.islice(stream, 3)), whole[:3])  # Only the first iteration resumes.
    assert not equal_steps(list(make_stream(steps=3, seed=1, **options)), whole[:3])


@pytest.mark.usefixtures("small_buffers")
def test_a_resumed_stream_does_not_read_earlier_files_again(
    make_stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_text(make_text(number, 30))
    whole = make_stream(tmp_path, steps=30, documents="file")
    steps = list(itertools.islice(whole, 20))
    opened = []
    original = readers.read_blocks
    monkeypatch.setattr(readers, "read_blocks", lambda path: opened.append(path.name) or original(path))
    stream = make_stream(tmp_path, steps=30, documents="file")
    stream.skip, stream.place = 20, whole.place
    stream.is_training_document  # noqa: B018 - reads the first files to choose the held-out documents
    opened.clear()
    assert len(list(stream)) == 30 - len(steps)
    assert opened[0] > "08.txt"
    assert opened == sorted(set(opened))


@pytest.mark.usefixtures("small_buffers")
def test_skipped_steps_are_not_masked(make_stream: Stream, monkeypatch: pytest.MonkeyPatch):
    masked = []
    original = Sequences.__getitem__
    monkeypatch.setattr(Sequences, "__getitem__", lambda self, at: masked.append(at) or original(self, at))
    stream = make_stream(steps=12)
    list(itertools.islice(stream, 11))
    stream.skip = 11
    masked.clear()
    assert len(list(stream)) == 1
    assert len(masked) == BATCHES["accumulate"]


@pytest.mark.usefixtures("small_buffers")
def test_each_pass_yields_every_sequence_once_with_other_masks(make_stream: Stream, encode: Encode):
    expected = sorted(unmask_all(encode()["train"]))
    sequences: list[list[int]] = []
    labels: list[dict[tuple[int, ...], list[int]]] = [{}, {}]
    for batch in itertools.chain.from_iterable(make_stream(steps=200)):
        for ids, row in zip(unmask(batch), batch["labels"].tolist(), strict=True):
            if len(sequences) < 2 * len(expected):
                labels[len(sequences) // len(expected)][tuple(ids)] = row[: len(ids)]
                sequences.append(ids)
    assert sorted(sequences[: len(expected)]) == expected  # The cached sequences, of the same documents.
    assert sorted(sequences[len(expected) :]) == expected
    assert sequences[: len(expected)] != sequences[len(expected) :]
    differ = [labels[0][ids] != labels[1][ids] for ids in labels[0]]
    assert np.mean(differ) > 0.7


@pytest.mark.parametrize("pair", ["nsp", "sop"])
def test_pairs_differ_in_each_pass_and_in_each_process(pair: str, make_stream: Stream, tmp_path: Path):
    """Two processes read documents of the same texts, and each reads them three times."""
    texts = [make_text(number, 12) for number in range(12)]
    (tmp_path / "a.txt").write_text("\n".join(text for text in texts for _ in range(2)))
    passes: dict[tuple[int, int], list[list[int]]] = {}
    for rank in range(2):
        options = {"packing": "segment_pair", "pair": pair, "max_length": 32}
        stream = make_stream(tmp_path / "a.txt", rank=rank, world=2, **options)
        stream.__dict__["is_training_document"] = lambda key: True
        for position, examples in itertools.islice(stream._buffers(), 3):
            passes[rank, position["visit"]] = unmask_all(examples)
    assert sorted(passes) == [(rank, visit) for rank in range(2) for visit in range(3)]
    assert len({str(pairs) for pairs in passes.values()}) == 6


def test_each_document_goes_to_one_process(make_stream: Stream):
    parts = [make_stream(rank=rank, world=2).sample for rank in range(2)]
    assert sorted(itertools.chain(*map(unmask_all, parts))) == sorted(unmask_all(make_stream().sample))
    assert parts[0].first != parts[1].first  # No two processes draw the same masks.


def test_the_first_step_reads_a_small_part_of_the_corpus(
    encode: Encode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("distill.text.streaming.BUFFER", 64)
    monkeypatch.setattr("distill.text.packing._BATCH_CHARACTERS", 2**12)
    (tmp_path / "a.txt").write_text("\n".join(make_text(number, 5) for number in range(2000)))
    keys = record_documents(monkeypatch)
    splits = encode(tmp_path / "a.txt", streaming=True, dev_examples=5)
    assert len(splits["dev"]) == 5
    loader = splits["train"].training_loader(steps=500, **BATCHES)
    step = next(iter(loader))
    assert [len(batch["example_id"]) for batch in step] == [4, 4]
    assert len(keys) < 600
    assert not (tmp_path / "cache").exists()  # Nothing is cached.


def test_the_examples_shown_before_training_fill_a_batch(corpus_file: Path, tokenizer: PreTrainedTokenizerBase):
    loader = make_streamed_text(corpus_file, tokenizer).training_loader(steps=7, **BATCHES)
    examples, buckets = batches.examples_and_buckets(loader)
    assert len(loader) == 7
    assert len(examples[next(iter(buckets))[0]]["input_ids"]) == 4


def test_dev_of_a_stream_equals_the_cached_dev(encode: Encode):
    whole, streamed = encode()["dev"], encode(streaming=True)["dev"]
    assert equal_batches(streamed[[0, 1, 2]], whole[[0, 1, 2]])
    assert unmask_all(streamed) == unmask_all(whole)
    assert encode(streaming=True, max_length=20)["dev"].digest != streamed.digest


@pytest.mark.parametrize("unit", ["file", "line"])
def test_a_folder_with_files_of_dev_trains_on_the_others_alone(
    unit: str,
    make_stream: Stream,
    encode: Encode,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    root = tmp_path / "folder"
    root.mkdir()
    for name, numbers in (("train.txt", range(30)), ("valid.txt", range(30, 36)), ("test.txt", range(36, 40))):
        (root / name).write_text("\n".join(make_text(number, 6) for number in numbers))
    options = {"documents": unit, "packing": "sentence"}
    cached, streamed = encode(root, **options), encode(root, streaming=True, **options)
    documents = record_documents(monkeypatch)
    sample = make_stream(root, **options).sample
    assert {key.partition("#")[0] for key in documents} == {"train.txt"}
    assert all(read_numbers(train, tokenizer) == set(range(30)) for train in (cached["train"], sample))
    assert all(read_numbers(splits["dev"], tokenizer) == set(range(30, 36)) for splits in (cached, streamed))


def test_a_stream_leaves_out_the_texts_of_dev(encode: Encode, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    """Every document is there twice, and most copies of those of dev are documents of train."""
    (tmp_path / "a.txt").write_text("\n".join([make_text(number, 4) for number in range(40)] * 2))
    splits = encode(tmp_path / "a.txt", streaming=True, packing="sentence")
    of_dev = read_numbers(splits["dev"], tokenizer)
    assert of_dev
    assert not read_numbers(splits["train"].sample(), tokenizer) & of_dev
    texts = set(map(tuple, unmask_all(splits["dev"])))
    for step in splits["train"].training_loader(steps=6, **BATCHES):
        assert not {text for batch in step for text in map(tuple, unmask(batch))} & texts
    alone = make_streamed_text(tmp_path / "a.txt", tokenizer, packing="sentence")
    assert read_numbers(alone.sample(), tokenizer) & of_dev


def test_files_of_dev_are_no_files_of_a_process(make_stream: Stream, tmp_path: Path):
    """With enough files each process has its own, which are all of train."""
    for split in ("dev", "train"):
        for number in range(8):
            (tmp_path / f"{split}-{number:05}-of-00008.txt").write_text(make_text(number, 6))
    for rank in range(2):
        stream = make_stream(tmp_path, rank=rank, world=2, documents="file")
        read = list(stream.text.corpus.read_documents(rank=rank, world_size=2, select=stream.is_training_document))
        assert [document.key for document in read] == [f"train-{n:05}-of-00008.txt#0" for n in range(rank, 8, 2)]


@pytest.mark.parametrize(("size", "kind"), [(4.0, Sequences), (1e-9, StreamedText)])
def test_a_large_corpus_is_streamed(encode: Encode, size: float, kind: type):
    assert type(encode(keep_gb=size)["train"]) is kind


def test_streams_that_cannot_be_are_refused(
    make_stream: Stream, encode: Encode, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    (tmp_path / "a.txt").write_text("\n".join(make_text(number, 9) for number in range(3)))
    expected = "process 7 of 8 has no sequence to train on, as there are too few documents for 8 processes .*: start"
    with pytest.raises(UserError, match=expected):
        next(iter(make_stream(tmp_path / "a.txt", packing="full_sentences", rank=7, world=8)))
    train = make_streamed_text(tmp_path / "a.txt", tokenizer)
    with pytest.raises(UserError, match="has 2 documents to train on, fewer than the 5 processes: start fewer, set"):
        train.training_loader(world=5, steps=4, **BATCHES)
    assert len(train.training_loader(world=2, steps=4, **BATCHES)) == 4
    with pytest.raises(UserError, match="is streamed, so that its length is not known: give trainer.max_steps"):
        train.training_loader(steps=None, **BATCHES)
    with pytest.raises(UserError, match="is streamed: give task.dev_examples, or dev would be read to its end"):
        encode(streaming=True, dev_examples=None)
    with pytest.raises(UserError, match="shows a text once only: set task.masking=dynamic, or task.streaming=false"):
        encode(keep_gb=1e-9, masking="static")


@pytest.mark.usefixtures("small_buffers")
def test_a_step_of_a_stream_takes_micro_batches_of_several_buffers(make_stream: Stream):
    stream = make_stream(steps=6)
    stream.batches = {**stream.batches, "accumulate": 7}
    assert {len(step) for step in stream} == {7}
