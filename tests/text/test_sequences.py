"""Are the sequences of language modelling the same for the same seed, kept or streamed, alone or among processes?"""

import io
import itertools
import pickle
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from distill.data import batching, token_cache
from distill.data.batching import Batch, LengthBuckets
from distill.errors import UserError
from distill.tasks import MaskedLM
from distill.text import readers, sequences
from distill.text.corpus import Corpus, Document
from distill.text.masking import Masking
from distill.text.sequences import Sequences, Stream
from tests.conftest import BAD, GOOD

BATCHES = {"batch_size": 4, "batch_tokens": None, "accumulate": 2, "seed": 0}


def text_of(number: int, count: int) -> str:
    """Sentences of a document, most of them unlike those of another."""
    random = np.random.default_rng(number)
    return " ".join(f"{random.choice([*GOOD, *BAD]).capitalize()} {number}." for _ in range(count))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty documents, each of them a line."""
    path = tmp_path_factory.mktemp("corpus") / "a.txt"
    path.write_text("\n".join(text_of(number, 3 + number % 9) for number in range(40)))
    return path


def task_of(place: Path | str, **options: Any) -> MaskedLM:
    defaults = {"name": "mlm", "mask": Masking(), "documents": "line", "max_length": 16, "dev_fraction": 0.2}
    return MaskedLM(data_dir=str(place), **{**defaults, "packing": "doc_sentences", **options})  # type: ignore[arg-type]


def kept(task: MaskedLM, tokenizer: PreTrainedTokenizerBase, cache: Path) -> dict[str, Sequences]:
    found, corpus = sequences.read(task, tokenizer, cache_dir=cache)
    assert corpus is None
    return found


def same(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def restored(batch: Batch) -> list[list[int]]:
    """The tokens of each sequence before they were masked."""
    ids = torch.where(batch["items"], batch["labels"], batch["input_ids"])
    return [row[mask.bool()].tolist() for row, mask in zip(ids, batch["attention_mask"], strict=True)]


def everything(examples: Sequences) -> list[list[int]]:
    return [restored(examples[[index]])[0] for index in range(len(examples))]


# Sequences


def test_what_a_batch_holds(place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    train = kept(task_of(place), tokenizer, tmp_path)["train"]
    chosen = [3, 0, 7, 1 + len(train)]
    batch = train[chosen]
    assert batch.keys() == {"input_ids", "attention_mask", "labels", "items", "example_id"}
    assert batch["example_id"].tolist() == chosen
    assert all(batch[name].dtype == torch.int64 for name in ("input_ids", "attention_mask", "labels", "example_id"))
    assert torch.equal(batch["items"], batch["labels"] != -100)
    assert not batch["items"][~batch["attention_mask"].bool()].any()
    assert (batch["input_ids"][~batch["attention_mask"].bool()] == tokenizer.pad_token_id).all()
    lengths = train.lengths[[3, 0, 7, 1]]
    assert batch["attention_mask"].sum(dim=1).tolist() == lengths.tolist()
    assert batch["items"].sum(dim=1).tolist() == [max(1, int(0.15 * (n - 2) + 0.5)) for n in lengths.tolist()]
    assert not np.isin(batch["labels"], tokenizer.all_special_ids).any()  # Special tokens are never chosen.
    assert [ids[0] for ids in restored(batch)] == [tokenizer.cls_token_id] * 4
    assert train.longest == train.lengths.max() == 16


def test_masks_follow_from_seed_sequence_and_visit_alone(
    place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    train = kept(task_of(place, packing="full_sentences"), tokenizer, tmp_path)["train"]
    together = train[[5, 2, 9]]
    for row, index in enumerate((5, 2, 9)):
        alone = train[[index]]
        assert all(torch.equal(alone[name][0], together[name][row]) for name in ("input_ids", "labels"))
    assert same(train[[5, 2, 9]], together)
    other_visit = train[[len(train) + 5]]
    assert restored(other_visit) == restored(train[[5]])
    assert not torch.equal(other_visit["labels"][0], together["labels"][0])
    other_seed = Sequences(_tokens_of(train), task_of(place, seed=1), tokenizer)
    assert not torch.equal(other_seed[[5, 2, 9]]["labels"], together["labels"])


def _tokens_of(examples: Sequences) -> token_cache.Tokens:
    offsets = np.append(examples._starts, examples._starts[-1] + examples.lengths[-1])
    return token_cache.Tokens(columns=examples._columns, offsets=offsets, truncated=0, digest="")


def test_dynamic_masks_differ_in_every_epoch_and_static_ones_come_again(
    place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    def labels(epochs: int, **options: Any) -> list[bytes]:
        train = kept(task_of(place, packing="full_sentences", **options), tokenizer, tmp_path)["train"]
        buckets = LengthBuckets(train.lengths, batch_size=64, visits=train.visits)
        found = []
        for epoch in range(epochs):
            buckets.set_epoch(epoch)
            rows: dict[int, bytes] = {}
            for batch in itertools.chain.from_iterable(batching.loader(train, buckets)):  # type: ignore[arg-type]
                places = (batch["example_id"] % len(train)).tolist()
                rows |= {index: row.numpy().tobytes() for index, row in zip(places, batch["labels"], strict=True)}
            assert len(rows) == len(train)
            found.append(b"".join(rows[index] for index in sorted(rows)))
        return found

    assert len(set(labels(5))) == 5
    static = labels(7, masking="static", masks=3)
    assert len(set(static)) == 3
    assert static[:3] == static[3:6]
    assert static[6] == static[0]


def test_dev_is_the_same_whatever_the_training(place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    dynamic, static = (kept(task_of(place, masking=how), tokenizer, tmp_path)["dev"] for how in ("dynamic", "static"))
    assert dynamic.visits == static.visits == 1
    assert same(dynamic[[0, 1, 2]], static[[0, 1, 2]])
    assert dynamic.digest == static.digest


def test_dev_may_be_a_part_of_what_is_held_out(place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    whole = everything(kept(task_of(place, dev_examples=None), tokenizer, tmp_path)["dev"])
    part = kept(task_of(place, dev_examples=4), tokenizer, tmp_path)["dev"]
    assert len(part) == 4 < len(whole)
    places = [whole.index(ids) for ids in everything(part)]
    assert places == sorted(places)
    assert everything(kept(task_of(place, dev_examples=10**6), tokenizer, tmp_path)["dev"]) == whole
    assert part.digest != kept(task_of(place), tokenizer, tmp_path)["dev"].digest


def test_digests_tell_masks_and_tokens_apart(place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    options: tuple[dict[str, Any], ...] = (
        {}, {"max_length": 20}, {"seed": 1}, {"masking": "static"}, {"masking": "static", "masks": 2},
        {"mask": Masking(probability=0.3)}, {"packing": "sentence"}, {"dev_fraction": 0.3}, {"documents": "file"},
    )  # fmt: skip
    (other := tmp_path / "other").mkdir()
    for name in ("a", "b", "c"):
        (other / f"{name}.txt").write_text(place.read_text())
    found = [kept(task_of(other, **each), tokenizer, tmp_path)["train"].digest for each in options]
    assert len(set(found)) == len(options)
    assert kept(task_of(other), tokenizer, tmp_path / "b")["train"].digest == found[0]


@pytest.mark.parametrize("unit", ["whole_word", "span"])
def test_words_are_masked_whole(place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, unit: str):
    task = task_of(place, mask=Masking(unit=unit, probability=0.5), max_length=24, masking="static")
    train = kept(task, tokenizer, tmp_path)["train"]
    batch = train[[index + visit * len(train) for index in range(len(train)) for visit in range(5)]]
    names = np.array(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
    inside = np.char.startswith(names, "##")
    seen = 0
    for ids, items in zip(restored(batch), batch["items"].numpy(), strict=True):
        for index in range(2, len(ids) - 1):
            if inside[ids[index]]:
                seen += 1
                assert items[index] == items[index - 1]
    assert seen > 20


def test_pairs_have_types_and_labels(place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    task = task_of(place, packing="segment_pair", pair="sop", max_length=32)
    train = kept(task, tokenizer, tmp_path)["train"]
    batch = train[list(range(len(train)))]
    assert batch["pair_labels"].dtype == torch.int64
    assert set(batch["pair_labels"].tolist()) == {0, 1}
    assert batch["token_type_ids"].shape == batch["input_ids"].shape
    for ids, types in zip(restored(batch), batch["token_type_ids"].tolist(), strict=True):
        middle = ids.index(tokenizer.sep_token_id)
        assert types[: len(ids)] == [0] * (middle + 1) + [1] * (len(ids) - middle - 1)
        assert not any(types[len(ids) :])
    assert train[[4]]["pair_labels"].item() == batch["pair_labels"][4]
    assert "pair_labels" not in kept(task_of(place, packing="segment_pair"), tokenizer, tmp_path)["train"][[0]]


def test_a_tokenizer_that_pads_on_the_left(place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    left = pickle.loads(pickle.dumps(tokenizer))
    left.padding_side = "left"
    right, other = (kept(task_of(place), each, tmp_path)["train"] for each in (tokenizer, left))
    chosen = np.argsort(right.lengths)[[0, -1]].tolist()
    batch = other[chosen]
    assert batch["attention_mask"][0, 0] == 0
    assert batch["attention_mask"][0, -1] == 1
    assert restored(batch) == restored(right[chosen])


def test_a_tokenizer_without_a_mask_token_is_refused(place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    without = pickle.loads(pickle.dumps(tokenizer))
    without.mask_token = None
    with pytest.raises(UserError, match="has no mask token, which task=mlm needs"):
        kept(task_of(place), without, tmp_path)


# Kept


def test_the_splits_share_no_document(place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    def documents(seed: int) -> tuple[set[str], set[str]]:
        found = kept(task_of(place, packing="sentence", max_length=64, seed=seed), tokenizer, tmp_path / str(seed))
        texts = {
            name: " ".join(map(tokenizer.decode, everything(split))).replace(" ##", "") for name, split in found.items()
        }
        return tuple({word for word in texts[name].split() if word.isdigit()} for name in ("train", "dev"))  # type: ignore[return-value]

    train, dev = documents(0)
    assert not train & dev
    assert train | dev == set(map(str, range(40)))
    assert 2 <= len(dev) <= 16
    assert documents(0) == (train, dev)
    assert documents(1)[1] != dev


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_where_the_draw_takes_none_or_all_one_is_on_the_other_side(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, fraction: float
):
    (tmp_path / "a.txt").write_text("\n".join(text_of(number, 2) for number in range(3)))
    for streaming in (False, True):
        task = task_of(tmp_path / "a.txt", packing="sentence", dev_fraction=fraction, streaming=streaming)
        found, corpus = sequences.read(task, tokenizer, cache_dir=tmp_path / "cache")
        assert len(found["dev"]) == (2 if fraction < 0.5 else 4)
    assert corpus is not None
    assert len(Stream(corpus, task, tokenizer, steps=1, batches=BATCHES).sample) == 6 - len(found["dev"])


def test_a_corpus_is_tokenized_once(
    place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = kept(task_of(place), tokenizer, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sequences, "Packer", None)  # Nobody may do it again.
        again = kept(task_of(place), tokenizer, tmp_path)
        other_masks = kept(task_of(place, mask=Masking(probability=0.4)), tokenizer, tmp_path)
    for name in ("train", "dev"):
        assert same(first[name][[1, 2]], again[name][[1, 2]])
        assert restored(other_masks[name][[1, 2]]) == restored(first[name][[1, 2]])
    del again, other_masks
    [path] = tmp_path.rglob("train.arrow")
    expected = first["train"][[0, 5]]
    del first
    for content in (path.read_bytes()[:-100], b""):
        path.write_bytes(content)
        assert same(kept(task_of(place), tokenizer, tmp_path)["train"][[0, 5]], expected)


def test_the_corpus_is_read_through_once(
    place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    drawn = counted(monkeypatch)
    kept(task_of(place), tokenizer, tmp_path)
    assert len(drawn) == len(set(drawn)) == 40


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What will be the keys of all documents that are read."""
    drawn: list[str] = []
    original = Corpus.read_documents

    def documents(self: Corpus, **options: Any) -> Iterator[Document]:
        for document in original(self, **options):
            drawn.append(document.key)
            yield document

    monkeypatch.setattr(Corpus, "read_documents", documents)
    return drawn


def test_kept_tokens_are_mapped_and_not_copied(place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    kept(task_of(place), tokenizer, tmp_path)
    before = pa.total_allocated_bytes()
    train = kept(task_of(place), tokenizer, tmp_path)["train"]
    assert pa.total_allocated_bytes() == before
    column = train._columns["input_ids"]
    assert not column.flags.owndata
    assert not column.flags.writeable
    if (maps := Path("/proc/self/maps")).exists():
        [path] = tmp_path.rglob("train.arrow")
        start = column.__array_interface__["data"][0]
        mapped = [line.split("-") for line in maps.read_text().splitlines() if str(path) in line]
        ranges = [(int(first, 16), int(rest.split()[0], 16)) for first, rest, *_ in mapped]
        assert any(first <= start and start + column.nbytes <= last for first, last in ranges)


def test_writing_holds_little(tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paragraph = text_of(0, 40)

    class Long:
        """Some MB of text that nobody holds."""

        def read_documents(self, **_: Any) -> Iterator[Document]:
            return (Document(f"a#{number}", 0, paragraph) for number in range(size))

        def read_keys(self) -> Iterator[str]:
            return (f"a#{number}" for number in range(size))

        def compute_fingerprint(self) -> str:
            return str(size)

        def describe(self) -> str:
            return "a corpus"

    peaks = []
    monkeypatch.setattr("distill.text.packing._BATCH_CHARACTERS", 2**14)
    for size in (200, 1200):  # noqa: B007 - the corpus reads it
        tracemalloc.start()
        sequences._keep(Long(), task_of("no", max_length=128), tokenizer, tmp_path)  # type: ignore[arg-type]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert 1200 * len(paragraph) > 1.2e6
    assert peaks[1] - peaks[0] < 0.2e6


def test_what_is_left_out_is_told(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "a.txt").write_text("\n".join(" ".join(["film"] * 30) for _ in range(6)))
    task = task_of(tmp_path / "a.txt", packing="sentence", max_length=12)
    kept(task, tokenizer, tmp_path / "cache")
    shown = " ".join("".join(capsys.readouterr()).split())
    assert "Tokens: 66.7% are in no sequence, cut off or too few for one (task.packing=sentence)" in shown


@pytest.mark.parametrize("examples", ["kept", "stream"])
def test_they_are_the_same_after_pickling(
    place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, examples: str
):
    if examples == "kept":
        train = kept(task_of(place), tokenizer, tmp_path)["train"]
        assert same(pickle.loads(pickle.dumps(train))[[4, 1]], train[[4, 1]])
        return
    stream = stream_of(place, tokenizer, steps=3)
    other = pickle.loads(pickle.dumps(stream))
    assert all_same(list(other), list(stream))


# Streams


def stream_of(place: Path, tokenizer: PreTrainedTokenizerBase, *, steps: int, **options: Any) -> Stream:
    ours = {name: options.pop(name) for name in ("rank", "world") if name in options}
    task = task_of(place, streaming=True, **options)
    return Stream(sequences.open_corpus(task, Path("no")), task, tokenizer, steps=steps, batches=BATCHES, **ours)


def all_same(one: list[list[Batch]], other: list[list[Batch]]) -> bool:
    return len(one) == len(other) and all(
        len(step) == len(again) and all(map(same, step, again)) for step, again in zip(one, other, strict=True)
    )


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "BUFFER", 24)
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
    stream.is_wanted  # noqa: B018 - what is held out is known from the first files, which this reads
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
    train = kept(task_of(place), tokenizer, tmp_path)["train"]
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
    monkeypatch.setattr(sequences, "BUFFER", 64)
    monkeypatch.setattr("distill.text.packing._BATCH_CHARACTERS", 2**12)
    (tmp_path / "a.txt").write_text("\n".join(text_of(number, 5) for number in range(5000)))
    drawn = counted(monkeypatch)
    task = task_of(tmp_path / "a.txt", streaming=True, dev_examples=5)
    found, corpus = sequences.read(task, tokenizer, cache_dir=tmp_path / "cache")
    assert corpus is not None
    assert len(found["dev"]) == 5
    loader = sequences.stream_loader(corpus, task, tokenizer, steps=500, **BATCHES)
    step = next(iter(loader))
    assert [len(batch["example_id"]) for batch in step] == [4, 4]
    assert len(drawn) < 1000
    assert not (tmp_path / "cache").exists()  # Nothing is kept.


def test_how_a_stream_is_shown(place: Path, tokenizer: PreTrainedTokenizerBase):
    task = task_of(place, streaming=True)
    loader = sequences.stream_loader(sequences.open_corpus(task, Path("no")), task, tokenizer, steps=7, **BATCHES)
    examples, buckets = batching.shown(loader)
    assert len(loader) == 7
    assert len(examples[next(iter(buckets))[0]]["input_ids"]) == 4


def test_the_dev_of_a_stream_is_that_of_what_is_kept(place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    whole = kept(task_of(place), tokenizer, tmp_path)["dev"]
    streamed, _ = sequences.read(task_of(place, streaming=True), tokenizer, cache_dir=tmp_path)
    assert same(streamed["dev"][[0, 1, 2]], whole[[0, 1, 2]])
    assert everything(streamed["dev"]) == everything(whole)
    other, _ = sequences.read(task_of(place, streaming=True, max_length=20), tokenizer, cache_dir=tmp_path)
    assert other["dev"].digest != streamed["dev"].digest  # By which a resumed training knows its data.


@pytest.mark.parametrize(("size", "streamed"), [(4.0, False), (1e-9, True)])
def test_a_large_corpus_is_streamed(
    place: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, size: float, streamed: bool
):
    _, corpus = sequences.read(task_of(place, keep_gb=size), tokenizer, cache_dir=tmp_path)
    assert (corpus is not None) == streamed


# Bad input


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ([], {}, "contains no text"),
        (["", " "], {}, "contains no text"),
        (["a lovely film"], {}, "the corpus is a single document, a.txt#0, expected at least two"),
        (
            ["a lovely film", "a joy"],
            {"packing": "full_sentences"},
            "is shorter than one sequence of task.max_length=16 tokens: give more text, a smaller task.max_length or",
        ),
        (["A lovely film.", "A joy."], {"packing": "segment_pair"}, "has no document of two sentences, which make a"),
    ],
)
def test_a_corpus_that_is_too_small(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, lines: list[str], options: Any, message: str, streaming: bool
):
    (tmp_path / "a.txt").write_text("\n".join(lines))
    task = task_of(tmp_path / "a.txt", streaming=streaming, **options)
    with pytest.raises(UserError, match=message):
        sequences.read(task, tokenizer, cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.arrow"))


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
        sequences.read(task_of(place, streaming=True, dev_examples=None), tokenizer, cache_dir=tmp_path)
    task = task_of(place, keep_gb=1e-9, masking="static")
    with pytest.raises(UserError, match="shows a text once only: set task.masking=dynamic, or task.streaming=false"):
        sequences.read(task, tokenizer, cache_dir=tmp_path)


def test_fewer_documents_than_processes_are_noticed_before_anything_starts(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(text_of(number, 30))
    task = task_of(tmp_path, streaming=True)
    options = {"steps": 4, **BATCHES}
    with pytest.raises(UserError, match="has 2 documents to train on, fewer than the 5 processes: start fewer, set"):
        sequences.stream_loader(sequences.open_corpus(task, tmp_path), task, tokenizer, world=5, **options)
    assert len(sequences.stream_loader(sequences.open_corpus(task, tmp_path), task, tokenizer, world=2, **options)) == 4


@pytest.mark.usefixtures("small_buffers")
def test_a_step_of_a_stream_takes_micro_batches_of_several_buffers(place: Path, tokenizer: PreTrainedTokenizerBase):
    stream = stream_of(place, tokenizer, steps=6)
    stream.batches = {**stream.batches, "accumulate": 7}
    assert {len(step) for step in stream} == {7}
