"""Tests that packed sequences depend only on the seed, are masked as configured and are cached once."""

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

from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.data import batches, tokenization
from distill.data.batches import LengthBuckets
from distill.text import sequences
from distill.text.corpus import Document, choose_held_out
from distill.text.masking import Masking
from distill.text.sequences import Sequences, held_out_of
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

# Sequences


def test_a_batch_contains_padded_inputs_masked_labels_and_example_ids(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    train = encode_cached(make_task(corpus_file), tokenizer, tmp_path)["train"]
    chosen = [3, 0, 7, 1 + len(train)]
    batch = train[chosen]
    assert batch.keys() == {"input_ids", "attention_mask", "labels", "example_id"}
    assert batch["example_id"].tolist() == chosen
    assert all(batch[name].dtype == torch.int64 for name in ("input_ids", "attention_mask", "labels", "example_id"))
    predicted = batch["labels"] != -100
    items = make_task(corpus_file).select(batch)
    assert torch.equal(items.index, predicted.flatten().nonzero().squeeze(-1))
    assert items.labelled.all()
    assert not predicted[~batch["attention_mask"].bool()].any()
    assert (batch["input_ids"][~batch["attention_mask"].bool()] == tokenizer.pad_token_id).all()
    lengths = train.lengths[[3, 0, 7, 1]]
    assert batch["attention_mask"].sum(dim=1).tolist() == lengths.tolist()
    assert predicted.sum(dim=1).tolist() == [max(1, int(0.15 * (n - 2) + 0.5)) for n in lengths.tolist()]
    assert not np.isin(batch["labels"], tokenizer.all_special_ids).any()  # Special tokens are never chosen.
    assert [ids[0] for ids in unmask(batch)] == [tokenizer.cls_token_id] * 4
    assert train.longest == train.lengths.max() == 16


def test_masks_depend_only_on_seed_sequence_and_visit(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    train = encode_cached(make_task(corpus_file, packing="full_sentences"), tokenizer, tmp_path)["train"]
    together = train[[5, 2, 9]]
    for row, index in enumerate((5, 2, 9)):
        alone = train[[index]]
        assert all(torch.equal(alone[name][0], together[name][row]) for name in ("input_ids", "labels"))
    assert equal_batches(train[[5, 2, 9]], together)
    other_visit = train[[len(train) + 5]]
    assert unmask(other_visit) == unmask(train[[5]])
    assert not torch.equal(other_visit["labels"][0], together["labels"][0])
    other_seed = Sequences(_tokens_of(train), make_task(corpus_file, seed=1).settings, tokenizer)
    assert not torch.equal(other_seed[[5, 2, 9]]["labels"], together["labels"])


def _tokens_of(examples: Sequences) -> tokenization.Tokens:
    offsets = np.append(examples._starts, examples._starts[-1] + examples.lengths[-1])
    return tokenization.Tokens(columns=examples._columns, offsets=offsets, truncated=0, digest="")


def test_dynamic_masks_differ_in_every_epoch_and_static_masks_repeat(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    def labels(epochs: int, **options: Any) -> list[bytes]:
        train = encode_cached(make_task(corpus_file, packing="full_sentences", **options), tokenizer, tmp_path)["train"]
        buckets = LengthBuckets(train.lengths, batch_size=64, visits=train.visits)
        rows_by_epoch = []
        for epoch in range(epochs):
            buckets.set_epoch(epoch)
            rows: dict[int, bytes] = {}
            for batch in itertools.chain.from_iterable(batches.loader(train, buckets)):  # type: ignore[arg-type]
                indices = (batch["example_id"] % len(train)).tolist()
                rows |= {index: row.numpy().tobytes() for index, row in zip(indices, batch["labels"], strict=True)}
            assert len(rows) == len(train)
            rows_by_epoch.append(b"".join(rows[index] for index in sorted(rows)))
        return rows_by_epoch

    assert len(set(labels(5))) == 5
    static = labels(7, masking="static", masks=3)
    assert len(set(static)) == 3
    assert static[:3] == static[3:6]
    assert static[6] == static[0]


def test_dev_has_the_same_masks_with_dynamic_and_static_masking(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    dynamic, static = (
        encode_cached(make_task(corpus_file, masking=masking), tokenizer, tmp_path)["dev"]
        for masking in ("dynamic", "static")
    )
    assert dynamic.visits == static.visits == 1
    assert dynamic.pieces() is None  # Masks are random tokens too.
    assert equal_batches(dynamic[[0, 1, 2]], static[[0, 1, 2]])
    assert dynamic.digest == static.digest


def test_a_new_vocabulary_is_learned_from_no_document_that_is_held_out(corpus_file: Path, tmp_path: Path):
    data = make_task(corpus_file).read(tmp_path)
    select = held_out_of(data.corpus, data.settings)
    held_out = {document.text for document in data.corpus.read_documents(select=select)}
    texts = set(data.texts())
    assert texts.isdisjoint(held_out)
    assert (len(held_out) > 0, len(texts | held_out)) == (True, 40)


def test_dev_examples_limits_dev_to_a_part_of_the_held_out_sequences(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    whole = unmask_all(encode_cached(make_task(corpus_file, dev_examples=None), tokenizer, tmp_path)["dev"])
    part = encode_cached(make_task(corpus_file, dev_examples=4), tokenizer, tmp_path)["dev"]
    assert len(part) == 4 < len(whole)
    indices = [whole.index(ids) for ids in unmask_all(part)]
    assert indices == sorted(indices)
    assert unmask_all(encode_cached(make_task(corpus_file, dev_examples=10**6), tokenizer, tmp_path)["dev"]) == whole
    assert part.digest != encode_cached(make_task(corpus_file), tokenizer, tmp_path)["dev"].digest


def test_digests_depend_on_masks_and_tokens(corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    options: tuple[dict[str, Any], ...] = (
        {}, {"max_length": 20}, {"seed": 1}, {"masking": "static"}, {"masking": "static", "masks": 2},
        {"mask": Masking(probability=0.3)}, {"packing": "sentence"}, {"dev_fraction": 0.3}, {"documents": "file"},
    )  # fmt: skip
    (other := tmp_path / "other").mkdir()
    for name in ("a", "b", "c"):
        (other / f"{name}.txt").write_text(f"{name} {corpus_file.read_text()}")
    digests = [encode_cached(make_task(other, **each), tokenizer, tmp_path)["train"].digest for each in options]
    assert len(set(digests)) == len(options)
    assert encode_cached(make_task(other), tokenizer, tmp_path / "b")["train"].digest == digests[0]


def test_words_are_never_masked_in_part(corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    task = make_task(corpus_file, mask=Masking(unit="whole_word", probability=0.5), max_length=24, masking="static")
    train = encode_cached(task, tokenizer, tmp_path)["train"]
    batch = train[[index + visit * len(train) for index in range(len(train)) for visit in range(5)]]
    names = np.array(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
    inside = np.char.startswith(names, "##")
    seen = 0
    predicted = (batch["labels"] != IGNORED).numpy()
    for ids, chosen in zip(unmask(batch), predicted, strict=True):
        for index in range(2, len(ids) - 1):
            if inside[ids[index]]:
                seen += 1
                assert chosen[index] == chosen[index - 1]
    assert seen > 20


def test_pairs_have_token_types_and_pair_labels(corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    task = make_task(corpus_file, packing="segment_pair", pair="sop", max_length=32)
    train = encode_cached(task, tokenizer, tmp_path)["train"]
    batch = train[list(range(len(train)))]
    assert batch["pair_labels"].dtype == torch.int64
    assert set(batch["pair_labels"].tolist()) == {0, 1}
    assert batch["token_type_ids"].shape == batch["input_ids"].shape
    for ids, types in zip(unmask(batch), batch["token_type_ids"].tolist(), strict=True):
        middle = ids.index(tokenizer.sep_token_id)
        assert types[: len(ids)] == [0] * (middle + 1) + [1] * (len(ids) - middle - 1)
        assert not any(types[len(ids) :])
    assert train[[4]]["pair_labels"].item() == batch["pair_labels"][4]
    unlabelled = encode_cached(make_task(corpus_file, packing="segment_pair"), tokenizer, tmp_path)["train"]
    assert "pair_labels" not in unlabelled[[0]]
    task = make_task(corpus_file, packing="segment_pair", pair="three_way", max_length=32)
    three_way = encode_cached(task, tokenizer, tmp_path)["train"]
    assert three_way.digest != train.digest  # Not the cached pairs of sop.
    batch = three_way[list(range(len(three_way)))]
    assert set(batch["order_labels"].tolist()) == {0, 1, 2}
    assert "pair_labels" not in batch  # No head of the model predicts the order.
    assert (task.info.auto_class, task.info.label_columns) == ("AutoModelForMaskedLM", {"labels", "order_labels"})
    assert task.read(tmp_path).terms.keys() == {"mlm", "three_way"}


def test_a_tokenizer_without_a_mask_token_is_refused(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    without = pickle.loads(pickle.dumps(tokenizer))
    without.mask_token = None
    with pytest.raises(UserError, match="has no mask token, which masked language modelling needs"):
        encode_cached(make_task(corpus_file), without, tmp_path)


# Cache


def test_documents_of_equal_texts_are_in_one_split(tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    """Of 60 documents 30 are there twice, and one of these is a line of dev that is drawn to train the second time."""
    texts = [make_text(number, 4) for number in range(60)]
    (tmp_path / "a.txt").write_text("\n".join([*texts, *(f" {text.upper()}" for text in texts[:30])]))
    examples = encode_cached(make_task(tmp_path / "a.txt", packing="sentence"), tokenizer, tmp_path)
    numbers = {
        name: {int("".join(filter(str.isdigit, tokenizer.decode(ids))) or -1) for ids in unmask_all(of)} - {-1}
        for name, of in examples.items()
    }
    assert not numbers["train"] & numbers["dev"]
    assert numbers["train"] | numbers["dev"] == set(range(60))
    assert 6 <= len(numbers["dev"]) <= 18
    (tmp_path / "b.txt").write_text("\n".join(texts))
    alone = encode_cached(make_task(tmp_path / "b.txt", packing="sentence"), tokenizer, tmp_path)
    drawn = choose_held_out([f"b.txt#{number}" for number in range(60)], fraction=0.2, seed=0)
    dev = {int("".join(filter(str.isdigit, tokenizer.decode(ids))) or -1) for ids in unmask_all(alone["dev"])} - {-1}
    assert dev == {int(key.partition("#")[2]) for key in drawn}


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_an_extreme_dev_fraction_leaves_a_document_in_each_split(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, fraction: float
):
    (tmp_path / "a.txt").write_text("\n".join(make_text(number, 2) for number in range(3)))
    for streaming in (False, True):
        task = make_task(tmp_path / "a.txt", packing="sentence", dev_fraction=fraction, streaming=streaming)
        splits = encode(task, tokenizer, tmp_path / "cache")
        assert len(splits["dev"]) == (2 if fraction < 0.5 else 4)
    examples, _ = batches.examples_and_buckets(splits["train"].training_loader(steps=1, **BATCHES))
    assert len(examples) == 6 - len(splits["dev"])


def test_a_corpus_is_tokenized_once(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read = record_documents(monkeypatch)
    first = encode_cached(make_task(corpus_file), tokenizer, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sequences, "Packer", None)  # Packing again would fail.
        again = encode_cached(make_task(corpus_file), tokenizer, tmp_path)
        other_masks = encode_cached(make_task(corpus_file, mask=Masking(probability=0.4)), tokenizer, tmp_path)
    assert len(read) == len(set(read)) == 40  # The corpus is read once for both splits.
    for name in ("train", "dev"):
        assert equal_batches(first[name][[1, 2]], again[name][[1, 2]])
        assert unmask(other_masks[name][[1, 2]]) == unmask(first[name][[1, 2]])
    del again, other_masks
    [path] = tmp_path.rglob("train.arrow")
    expected = first["train"][[0, 5]]
    del first
    for content in (path.read_bytes()[:-100], b""):
        path.write_bytes(content)
        assert equal_batches(encode_cached(make_task(corpus_file), tokenizer, tmp_path)["train"][[0, 5]], expected)


def test_cached_tokens_are_mapped_and_not_copied(corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    encode_cached(make_task(corpus_file), tokenizer, tmp_path)
    before = pa.total_allocated_bytes()
    train = encode_cached(make_task(corpus_file), tokenizer, tmp_path)["train"]
    assert pa.total_allocated_bytes() == before
    column = train._columns["input_ids"]
    assert not column.flags.owndata
    assert not column.flags.writeable
    assert equal_batches(pickle.loads(pickle.dumps(train))[[4, 1]], train[[4, 1]])


def test_memory_for_writing_does_not_grow_with_the_corpus(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    paragraph = make_text(0, 40)

    class GeneratedCorpus:
        """Some MB of text, generated on demand."""

        has_dev = False

        def read_documents(self, **_: Any) -> Iterator[Document]:
            return (Document(f"a#{number}", 0, f"{number} {paragraph}") for number in range(size))

        def read_keys(self) -> Iterator[str]:
            return (f"a#{number}" for number in range(size))

        def compute_fingerprint(self) -> str:
            return str(size)

        def describe(self) -> str:
            return "a corpus"

    peaks = []
    monkeypatch.setattr("distill.text.packing._BATCH_CHARACTERS", 2**14)
    for size in (100, 600):  # noqa: B007 - the corpus reads it
        tracemalloc.start()
        sequences._cache_tokens(GeneratedCorpus(), make_task("no", max_length=128).settings, tokenizer, tmp_path)  # type: ignore[arg-type]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert 600 * len(paragraph) > 0.6e6
    assert peaks[1] - peaks[0] < 0.1e6


def test_the_share_of_dropped_tokens_is_printed(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "a.txt").write_text("\n".join(" ".join([*["film"] * 29, letter]) for letter in "abcdef"))
    task = make_task(tmp_path / "a.txt", packing="sentence", max_length=12)
    encode_cached(task, tokenizer, tmp_path / "cache")
    printed = " ".join("".join(capsys.readouterr()).split())
    assert "Tokens: 66.7% are in no sequence, cut off or too few for one (task.packing=sentence)" in printed


# Errors


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ([], {}, "contains no text"),
        (["a lovely film"], {}, "the corpus is a single document, a.txt#0, expected at least two"),
        (
            ["a lovely film", "a joy"],
            {"packing": "full_sentences"},
            "is shorter than one sequence of task.max_length=16 tokens: give more text, a smaller task.max_length or",
        ),
        (["A lovely film.", "A joy."], {"packing": "segment_pair"}, "has no document of two sentences, which make a"),
    ],
)
def test_a_corpus_that_is_too_small_is_refused(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, lines: list[str], options: Any, message: str, streaming: bool
):
    (tmp_path / "a.txt").write_text("\n".join(lines))
    task = make_task(tmp_path / "a.txt", streaming=streaming, **options)
    with pytest.raises(UserError, match=message):
        encode(task, tokenizer, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.arrow"))
