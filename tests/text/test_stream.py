"""Are the steps of a stream the same for the same seed, resumed or not, alone or among processes?"""

import io
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from distill.data import batching
from distill.data.batching import Batch
from distill.errors import UserError
from distill.tasks import MaskedLM
from distill.text import readers
from distill.text.sequences import Sequences
from distill.text.stream import Stream, StreamedText
from tests.text.conftest import BATCHES, cached, counted, encode, everything, restored, same, task_of, text_of


def stream_of(place: Path, tokenizer: PreTrainedTokenizerBase, *, steps: int, **options: Any) -> Stream:
    ours = {name: options.pop(name) for name in ("rank", "world") if name in options}
    task = task_of(place, streaming=True, **options)
    corpus = task.read(Path("no")).corpus
    return Stream(corpus, task.settings, tokenizer, steps=steps, batches=BATCHES, **ours)


def streamed_text(task: MaskedLM, tokenizer: PreTrainedTokenizerBase) -> StreamedText:
    return StreamedText(task.read(Path("no")).corpus, task.settings, tokenizer)


def all_same(one: list[list[Batch]], other: list[list[Batch]]) -> bool:
    return len(one) == len(other) and all(
        len(step) == len(again) and all(map(same, step, again)) for step, again in zip(one, other, strict=True)
    )


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distill.text.stream.BUFFER", 24)
    monkeypatch.setattr("distill.text.packing._BATCH_CHARACTERS", 2**9)


def through_a_file(value: Any) -> Any:
    """As a checkpoint keeps it."""
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
def test_a_stream_goes_on_where_it_was(place: Path, tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]):
    stream = stream_of(place, tokenizer, steps=40, **options)
    whole, places = [], []
    for step in stream:
        whole.append(step)
        places.append(through_a_file(stream.place))
    assert len(whole) == len(stream) == 40
    assert places[-1]["buffer"]["visit"] > 1  # Over the end of the corpus.
    assert all_same(list(stream_of(place, tokenizer, steps=40, **options)), whole)
    for done in (1, 2, 3, 4, 7, 17, 39, 40):
        stream = stream_of(place, tokenizer, steps=40, **options)
        stream.skip, stream.place = done, places[done - 1]
        found = list(stream)
        assert all_same(found, whole[done:])
        assert all_same(list(itertools.islice(stream, 3)), whole[:3])  # It goes on once.
    assert not all_same(list(stream_of(place, tokenizer, steps=3, seed=1, **options)), whole[:3])


@pytest.mark.usefixtures("small_buffers")
def test_what_is_behind_is_not_read_again(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_text(text_of(number, 30))
    whole = stream_of(tmp_path, tokenizer, steps=30, documents="file")
    steps = list(itertools.islice(whole, 20))
    opened = []
    original = readers.read_blocks
    monkeypatch.setattr(readers, "read_blocks", lambda path: opened.append(path.name) or original(path))
    stream = stream_of(tmp_path, tokenizer, steps=30, documents="file")
    stream.skip, stream.place = 20, whole.place
    stream.is_training_document  # noqa: B018 - what is held out is known from the first files, which this reads
    opened.clear()
    assert len(list(stream)) == 30 - len(steps)
    assert opened[0] > "08.txt"
    assert opened == sorted(set(opened))


@pytest.mark.usefixtures("small_buffers")
def test_what_is_skipped_is_not_masked(
    place: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
):
    asked = []
    original = Sequences.__getitem__
    monkeypatch.setattr(Sequences, "__getitem__", lambda self, at: asked.append(at) or original(self, at))
    stream = stream_of(place, tokenizer, steps=12)
    for _ in itertools.islice(stream, 11):
        pass
    stream.skip = 11
    asked.clear()
    assert len(list(stream)) == 1
    assert len(asked) == BATCHES["accumulate"]


@pytest.mark.usefixtures("small_buffers")
def test_a_pass_shows_every_sequence_once_and_the_next_one_with_other_masks(
    place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    train = cached(task_of(place), tokenizer, tmp_path)["train"]
    expected = sorted(everything(train))
    shown: list[list[int]] = []
    labels: list[dict[tuple[int, ...], list[int]]] = [{}, {}]
    for batch in itertools.chain.from_iterable(stream_of(place, tokenizer, steps=200)):
        for ids, row in zip(restored(batch), batch["labels"].tolist(), strict=True):
            if len(shown) < 2 * len(expected):
                labels[len(shown) // len(expected)][tuple(ids)] = row[: len(ids)]
                shown.append(ids)
    assert sorted(shown[: len(expected)]) == expected  # Those that are kept, from the same documents.
    assert sorted(shown[len(expected) :]) == expected
    assert shown[: len(expected)] != shown[len(expected) :]
    differ = [labels[0][ids] != labels[1][ids] for ids in labels[0]]
    assert np.mean(differ) > 0.7


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_the_documents(place: Path, tokenizer: PreTrainedTokenizerBase, world: int):
    def shown(rank: int, of: int) -> list[list[int]]:
        return sorted(everything(stream_of(place, tokenizer, steps=1, rank=rank, world=of).sample))

    parts = [shown(rank, world) for rank in range(world)]
    assert sorted(itertools.chain(*parts)) == shown(0, 1)
    firsts = {stream_of(place, tokenizer, steps=1, rank=rank, world=world).sample.first for rank in range(world)}
    assert len(firsts) == world  # So that no two of them draw the same masks.


def test_the_first_step_reads_a_little_only(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("distill.text.stream.BUFFER", 64)
    monkeypatch.setattr("distill.text.packing._BATCH_CHARACTERS", 2**12)
    (tmp_path / "a.txt").write_text("\n".join(text_of(number, 5) for number in range(5000)))
    drawn = counted(monkeypatch)
    task = task_of(tmp_path / "a.txt", streaming=True, dev_examples=5)
    splits = encode(task, tokenizer, tmp_path / "cache")
    assert len(splits["dev"]) == 5
    loader = splits["train"].training_loader(steps=500, **BATCHES)
    step = next(iter(loader))
    assert [len(batch["example_id"]) for batch in step] == [4, 4]
    assert len(drawn) < 1000
    assert not (tmp_path / "cache").exists()  # Nothing is kept.


def test_how_a_stream_is_shown(place: Path, tokenizer: PreTrainedTokenizerBase):
    loader = streamed_text(task_of(place, streaming=True), tokenizer).training_loader(steps=7, **BATCHES)
    examples, buckets = batching.examples_and_buckets(loader)
    assert len(loader) == 7
    assert len(examples[next(iter(buckets))[0]]["input_ids"]) == 4


def test_the_dev_of_a_stream_is_the_cached_one(place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    whole = cached(task_of(place), tokenizer, tmp_path)["dev"]
    streamed = encode(task_of(place, streaming=True), tokenizer, tmp_path)
    assert same(streamed["dev"][[0, 1, 2]], whole[[0, 1, 2]])
    assert everything(streamed["dev"]) == everything(whole)
    other = encode(task_of(place, streaming=True, max_length=20), tokenizer, tmp_path)
    assert other["dev"].digest != streamed["dev"].digest  # By which a resumed training knows its data.


@pytest.mark.parametrize(("size", "streamed"), [(4.0, False), (1e-9, True)])
def test_a_large_corpus_is_streamed(
    place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, size: float, streamed: bool
):
    train = encode(task_of(place, keep_gb=size), tokenizer, tmp_path)["train"]
    assert type(train) is (StreamedText if streamed else Sequences)


@pytest.mark.parametrize("packing", ["full_sentences", "sentence", "segment_pair"])
def test_fewer_documents_than_processes(tokenizer: PreTrainedTokenizerBase, tmp_path: Path, packing: str):
    (tmp_path / "a.txt").write_text("\n".join(text_of(number, 9) for number in range(3)))
    with pytest.raises(
        UserError,
        match="process 7 of 8 has no sequence to train on, as there are too few documents for 8 processes .*: start "
        "fewer processes, set task.documents=paragraph or line, or give more text",
    ):
        next(iter(stream_of(tmp_path / "a.txt", tokenizer, steps=4, packing=packing, rank=7, world=8)))


def test_a_stream_has_no_end_to_score_and_no_fixed_masks(
    place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    with pytest.raises(UserError, match="is streamed: give task.dev_examples, or dev would be read to its end"):
        encode(task_of(place, streaming=True, dev_examples=None), tokenizer, tmp_path)
    task = task_of(place, keep_gb=1e-9, masking="static")
    with pytest.raises(UserError, match="shows a text once only: set task.masking=dynamic, or task.streaming=false"):
        encode(task, tokenizer, tmp_path)


def test_fewer_documents_than_processes_are_noticed_before_anything_starts(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(text_of(number, 30))
    train = streamed_text(task_of(tmp_path, streaming=True), tokenizer)
    options = {"steps": 4, **BATCHES}
    with pytest.raises(UserError, match="has 2 documents to train on, fewer than the 5 processes: start fewer, set"):
        train.training_loader(world=5, **options)
    assert len(train.training_loader(world=2, **options)) == 4


@pytest.mark.usefixtures("small_buffers")
def test_a_step_of_a_stream_takes_micro_batches_of_several_buffers(place: Path, tokenizer: PreTrainedTokenizerBase):
    stream = stream_of(place, tokenizer, steps=6)
    stream.batches = {**stream.batches, "accumulate": 7}
    assert {len(step) for step in stream} == {7}


def test_a_stream_is_the_same_after_pickling(place: Path, tokenizer: PreTrainedTokenizerBase):
    stream = stream_of(place, tokenizer, steps=3)
    other = pickle.loads(pickle.dumps(stream))
    assert all_same(list(other), list(stream))


def test_a_stream_without_a_number_of_steps_is_refused(place: Path, tokenizer: PreTrainedTokenizerBase):
    with pytest.raises(UserError, match="is streamed, so that its length is not known: give trainer.max_steps"):
        streamed_text(task_of(place, streaming=True), tokenizer).training_loader(steps=None, **BATCHES)
