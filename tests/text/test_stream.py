"""Tests that the steps of a stream are the same for a seed, also after resuming and across processes."""

import io
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.data import batches
from distill.data.batches import CollatedBatch
from distill.kinds import MaskedLM
from distill.text import corpus as readers
from distill.text.sequences import Sequences
from distill.text.streaming import CorpusStream, StreamedText
from tests.text.conftest import (
    BATCHES,
    encode,
    encode_cached,
    equal_batches,
    make_task,
    make_text,
    record_documents,
    unmask,
    unmask_all,
)


def make_stream(corpus_file: Path, tokenizer: PreTrainedTokenizerBase, *, steps: int, **options: Any) -> CorpusStream:
    rank_options = {name: options.pop(name) for name in ("rank", "world") if name in options}
    task = make_task(corpus_file, streaming=True, **options)
    corpus = task.read(Path("no")).corpus
    return CorpusStream(corpus, task.settings, tokenizer, steps=steps, batches=BATCHES, **rank_options)


def make_streamed_text(task: MaskedLM, tokenizer: PreTrainedTokenizerBase) -> StreamedText:
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
def test_a_resumed_stream_continues_with_the_next_step(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]
):
    stream = make_stream(corpus_file, tokenizer, steps=40, **options)
    whole, positions = [], []
    for step in stream:
        whole.append(step)
        positions.append(save_and_load(stream.place))
    assert len(whole) == len(stream) == 40
    assert positions[-1]["buffer"]["visit"] > 1  # Beyond the end of the corpus.
    assert equal_steps(list(make_stream(corpus_file, tokenizer, steps=40, **options)), whole)
    for done in (1, 2, 3, 7, 17, 40):
        stream = make_stream(corpus_file, tokenizer, steps=40, **options)
        stream.skip, stream.place = done, positions[done - 1]
        stream = pickle.loads(pickle.dumps(stream))
        remaining = list(stream)
        assert equal_steps(remaining, whole[done:])
        assert equal_steps(list(itertools.islice(stream, 3)), whole[:3])  # Only the first iteration resumes.
    assert not equal_steps(list(make_stream(corpus_file, tokenizer, steps=3, seed=1, **options)), whole[:3])


@pytest.mark.usefixtures("small_buffers")
def test_a_resumed_stream_does_not_read_earlier_files_again(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_text(make_text(number, 30))
    whole = make_stream(tmp_path, tokenizer, steps=30, documents="file")
    steps = list(itertools.islice(whole, 20))
    opened = []
    original = readers.read_blocks
    monkeypatch.setattr(readers, "read_blocks", lambda path: opened.append(path.name) or original(path))
    stream = make_stream(tmp_path, tokenizer, steps=30, documents="file")
    stream.skip, stream.place = 20, whole.place
    stream.is_training_document  # noqa: B018 - reads the first files to choose the held-out documents
    opened.clear()
    assert len(list(stream)) == 30 - len(steps)
    assert opened[0] > "08.txt"
    assert opened == sorted(set(opened))


@pytest.mark.usefixtures("small_buffers")
def test_skipped_steps_are_not_masked(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
):
    masked = []
    original = Sequences.__getitem__
    monkeypatch.setattr(Sequences, "__getitem__", lambda self, at: masked.append(at) or original(self, at))
    stream = make_stream(corpus_file, tokenizer, steps=12)
    for _ in itertools.islice(stream, 11):
        pass
    stream.skip = 11
    masked.clear()
    assert len(list(stream)) == 1
    assert len(masked) == BATCHES["accumulate"]


@pytest.mark.usefixtures("small_buffers")
def test_each_pass_yields_every_sequence_once_with_other_masks(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    train = encode_cached(make_task(corpus_file), tokenizer, tmp_path)["train"]
    expected = sorted(unmask_all(train))
    sequences: list[list[int]] = []
    labels: list[dict[tuple[int, ...], list[int]]] = [{}, {}]
    for batch in itertools.chain.from_iterable(make_stream(corpus_file, tokenizer, steps=200)):
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
def test_pairs_differ_in_each_pass_and_in_each_process(pair: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    """Two processes read documents of the same texts, and each reads them three times."""
    texts = [make_text(number, 12) for number in range(12)]
    (tmp_path / "a.txt").write_text("\n".join(text for text in texts for _ in range(2)))
    passes: dict[tuple[int, int], list[list[int]]] = {}
    for rank in range(2):
        stream = make_stream(
            tmp_path / "a.txt", tokenizer, steps=1, rank=rank, world=2, packing="segment_pair", pair=pair, max_length=32
        )
        stream.__dict__["is_training_document"] = lambda key: True
        for position, examples in itertools.islice(stream._buffers(), 3):
            passes[rank, position["visit"]] = unmask_all(examples)
    assert sorted(passes) == [(rank, visit) for rank in range(2) for visit in range(3)]
    assert len({str(pairs) for pairs in passes.values()}) == 6


def test_each_document_goes_to_one_process(corpus_file: Path, tokenizer: PreTrainedTokenizerBase):
    def read_shard(rank: int, world: int) -> Any:
        return make_stream(corpus_file, tokenizer, steps=1, rank=rank, world=world).sample

    parts = [read_shard(rank, 2) for rank in range(2)]
    together = sorted(itertools.chain(*map(unmask_all, parts)))
    assert together == sorted(unmask_all(read_shard(0, 1)))
    assert parts[0].first != parts[1].first  # No two processes draw the same masks.


def test_the_first_step_reads_a_small_part_of_the_corpus(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("distill.text.streaming.BUFFER", 64)
    monkeypatch.setattr("distill.text.packing._BATCH_CHARACTERS", 2**12)
    (tmp_path / "a.txt").write_text("\n".join(make_text(number, 5) for number in range(2000)))
    keys = record_documents(monkeypatch)
    task = make_task(tmp_path / "a.txt", streaming=True, dev_examples=5)
    splits = encode(task, tokenizer, tmp_path / "cache")
    assert len(splits["dev"]) == 5
    loader = splits["train"].training_loader(steps=500, **BATCHES)
    step = next(iter(loader))
    assert [len(batch["example_id"]) for batch in step] == [4, 4]
    assert len(keys) < 600
    assert not (tmp_path / "cache").exists()  # Nothing is cached.


def test_the_examples_shown_before_training_fill_a_batch(corpus_file: Path, tokenizer: PreTrainedTokenizerBase):
    loader = make_streamed_text(make_task(corpus_file, streaming=True), tokenizer).training_loader(steps=7, **BATCHES)
    examples, buckets = batches.examples_and_buckets(loader)
    assert len(loader) == 7
    assert len(examples[next(iter(buckets))[0]]["input_ids"]) == 4


def test_dev_of_a_stream_equals_the_cached_dev(corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    whole = encode_cached(make_task(corpus_file), tokenizer, tmp_path)["dev"]
    streamed = encode(make_task(corpus_file, streaming=True), tokenizer, tmp_path)
    assert equal_batches(streamed["dev"][[0, 1, 2]], whole[[0, 1, 2]])
    assert unmask_all(streamed["dev"]) == unmask_all(whole)
    other = encode(make_task(corpus_file, streaming=True, max_length=20), tokenizer, tmp_path)
    assert other["dev"].digest != streamed["dev"].digest  # A resumed training compares this digest.


@pytest.mark.parametrize("unit", ["file", "line"])
def test_a_folder_with_files_of_dev_trains_on_the_others_alone(
    unit: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = tmp_path / "folder"
    root.mkdir()
    for name, numbers in (("train.txt", range(30)), ("valid.txt", range(30, 36)), ("test.txt", range(36, 40))):
        (root / name).write_text("\n".join(make_text(number, 6) for number in numbers))
    options = {"documents": unit, "packing": "sentence"}
    cached = encode_cached(make_task(root, **options), tokenizer, tmp_path)  # type: ignore[arg-type]

    def sentences(examples: Sequences) -> set[int]:
        texts = (tokenizer.decode(ids, skip_special_tokens=True) for ids in unmask_all(examples))
        return {int("".join(filter(str.isdigit, text)) or -1) for text in texts} - {-1}

    assert (sentences(cached["train"]), sentences(cached["dev"])) == (set(range(30)), set(range(30, 36)))
    streamed = encode(make_task(root, streaming=True, **options), tokenizer, tmp_path)  # type: ignore[arg-type]
    assert sentences(streamed["dev"]) == set(range(30, 36))
    documents = record_documents(monkeypatch)
    stream = make_stream(root, tokenizer, steps=1, **options)
    assert sentences(stream.sample) == set(range(30))
    assert {key.partition("#")[0] for key in documents} == {"train.txt"}


def test_a_stream_leaves_out_the_texts_of_dev(tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    """Every document is there twice, and most copies of those of dev are documents of train."""
    texts = [make_text(number, 4) for number in range(40)]
    (tmp_path / "a.txt").write_text("\n".join([*texts, *texts]))
    splits = encode(make_task(tmp_path / "a.txt", streaming=True, packing="sentence"), tokenizer, tmp_path)
    of_dev = set(map(tuple, unmask_all(splits["dev"])))
    assert of_dev
    trained = set(map(tuple, unmask_all(splits["train"].sample())))
    assert not trained & of_dev
    for step in splits["train"].training_loader(steps=6, **BATCHES):
        assert not {text for batch in step for text in map(tuple, unmask(batch))} & of_dev
    alone = make_streamed_text(make_task(tmp_path / "a.txt", streaming=True, packing="sentence"), tokenizer)
    assert set(map(tuple, unmask_all(alone.sample()))) & of_dev


def test_files_of_dev_are_no_files_of_a_process(tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    """With enough files each process has its own, which are all of train."""
    root = tmp_path / "folder"
    root.mkdir()
    for split in ("dev", "train"):
        for number in range(8):
            (root / f"{split}-{number:05}-of-00008.txt").write_text(make_text(number, 6))
    for rank in range(2):
        stream = make_stream(root, tokenizer, steps=1, rank=rank, world=2, documents="file")
        read = list(stream.corpus.read_documents(rank=rank, world_size=2, select=stream.is_training_document))
        assert [document.key for document in read] == [f"train-{n:05}-of-00008.txt#0" for n in range(rank, 8, 2)]


@pytest.mark.parametrize(("size", "streamed"), [(4.0, False), (1e-9, True)])
def test_a_large_corpus_is_streamed(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, size: float, streamed: bool
):
    train = encode(make_task(corpus_file, keep_gb=size), tokenizer, tmp_path)["train"]
    assert type(train) is (StreamedText if streamed else Sequences)


def test_streams_that_cannot_be_are_refused(corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n".join(make_text(number, 9) for number in range(3)))
    few = {"steps": 4, "packing": "full_sentences", "rank": 7, "world": 8}
    with pytest.raises(
        UserError,
        match="process 7 of 8 has no sequence to train on, as there are too few documents for 8 processes .*: start "
        "fewer processes, set task.documents=paragraph or line, or give more text",
    ):
        next(iter(make_stream(tmp_path / "a.txt", tokenizer, **few)))
    train = make_streamed_text(make_task(tmp_path / "a.txt", streaming=True), tokenizer)
    with pytest.raises(UserError, match="has 2 documents to train on, fewer than the 5 processes: start fewer, set"):
        train.training_loader(world=5, steps=4, **BATCHES)
    assert len(train.training_loader(world=2, steps=4, **BATCHES)) == 4
    with pytest.raises(UserError, match="is streamed, so that its length is not known: give trainer.max_steps"):
        train.training_loader(steps=None, **BATCHES)
    with pytest.raises(UserError, match="is streamed: give task.dev_examples, or dev would be read to its end"):
        encode(make_task(corpus_file, streaming=True, dev_examples=None), tokenizer, tmp_path)
    task = make_task(corpus_file, keep_gb=1e-9, masking="static")
    with pytest.raises(UserError, match="shows a text once only: set task.masking=dynamic, or task.streaming=false"):
        encode(task, tokenizer, tmp_path)


@pytest.mark.usefixtures("small_buffers")
def test_a_step_of_a_stream_takes_micro_batches_of_several_buffers(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase
):
    stream = make_stream(corpus_file, tokenizer, steps=6)
    stream.batches = {**stream.batches, "accumulate": 7}
    assert {len(step) for step in stream} == {7}
