"""Tests that packed sequences depend only on the seed, are masked as configured and are cached once."""

import itertools
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.data import batches
from distill.data.batches import LengthBuckets
from distill.text import sequences
from distill.text.corpus import choose_held_out
from distill.text.masking import Masking
from distill.text.sequences import held_out_of
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


def test_a_batch_contains_padded_inputs_masked_labels_and_example_ids(
    encode: Encode, corpus_file: Path, tokenizer: PreTrainedTokenizerBase
):
    train = encode()["train"]
    assert train.longest == train.lengths.max() == 16
    chosen = [3, 0, 7, 1 + len(train)]
    batch = train[chosen]
    assert batch.keys() == {"input_ids", "attention_mask", "labels", "example_id"}
    assert all(column.dtype == torch.int64 for column in batch.values())
    assert batch["example_id"].tolist() == chosen
    predicted = batch["labels"] != IGNORED
    items = make_task(corpus_file).select(batch)
    assert torch.equal(items.index, predicted.flatten().nonzero().squeeze(-1))
    assert items.labelled.all()
    padding = ~batch["attention_mask"].bool()
    assert not predicted[padding].any()
    assert (batch["input_ids"][padding] == tokenizer.pad_token_id).all()
    lengths = train.lengths[[3, 0, 7, 1]].tolist()
    assert batch["attention_mask"].sum(dim=1).tolist() == lengths
    assert predicted.sum(dim=1).tolist() == [max(1, int(0.15 * (n - 2) + 0.5)) for n in lengths]
    assert not np.isin(batch["labels"], tokenizer.all_special_ids).any()  # Special tokens are never chosen.
    assert [ids[0] for ids in unmask(batch)] == [tokenizer.cls_token_id] * 4


def test_masks_depend_only_on_seed_sequence_and_visit(encode: Encode):
    train = encode(packing="full_sentences")["train"]
    together, alone = train[[5, 2, 9]], train[[2]]
    assert all(torch.equal(alone[name][0], together[name][1]) for name in ("input_ids", "labels"))
    assert equal_batches(train[[5, 2, 9]], together)
    other_visit = train[[len(train) + 5]]
    assert unmask(other_visit) == unmask(train[[5]])
    assert not torch.equal(other_visit["labels"][0], together["labels"][0])


def test_dynamic_masks_differ_in_every_epoch_and_static_masks_repeat(encode: Encode):
    def labels(epochs: int, **options: Any) -> list[bytes]:
        train = encode(packing="full_sentences", **options)["train"]
        buckets = LengthBuckets(train.lengths, batch_size=64, visits=train.visits)
        rows_by_epoch = []
        for epoch in range(epochs):
            buckets.set_epoch(epoch)
            rows: dict[int, bytes] = {}
            for batch in itertools.chain.from_iterable(batches.loader(train, buckets)):
                indices = (batch["example_id"] % len(train)).tolist()
                rows |= {index: row.numpy().tobytes() for index, row in zip(indices, batch["labels"], strict=True)}
            assert len(rows) == len(train)
            rows_by_epoch.append(b"".join(rows[index] for index in sorted(rows)))
        return rows_by_epoch

    assert len(set(labels(5))) == 5
    static = labels(7, masking="static", masks=3)
    assert len(set(static)) == 3
    assert static == [*static[:3], *static[:3], static[0]]


def test_dev_has_the_same_masks_with_dynamic_and_static_masking(encode: Encode):
    dynamic, static = (encode(masking=masking)["dev"] for masking in ("dynamic", "static"))
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


def test_dev_examples_limits_dev_to_a_part_of_the_held_out_sequences(encode: Encode):
    whole, part = encode(dev_examples=10**6)["dev"], encode(dev_examples=4)["dev"]
    assert len(part) == 4 < len(whole)
    indices = [unmask_all(whole).index(ids) for ids in unmask_all(part)]
    assert indices == sorted(indices)
    assert unmask_all(encode(dev_examples=None)["dev"]) == unmask_all(whole)
    assert part.digest != encode()["dev"].digest


def test_digests_depend_on_masks_and_tokens(encode: Encode, corpus_file: Path, tmp_path: Path):
    options: tuple[dict[str, Any], ...] = (
        {}, {"max_length": 20}, {"seed": 1}, {"masking": "static"}, {"masking": "static", "masks": 2},
        {"mask": Masking(probability=0.3)}, {"packing": "sentence"}, {"dev_fraction": 0.3}, {"documents": "file"},
    )  # fmt: skip
    (other := tmp_path / "other").mkdir()
    for name in ("a", "b", "c"):
        (other / f"{name}.txt").write_text(f"{name} {corpus_file.read_text()}")
    assert len({encode(other, **each)["train"].digest for each in options}) == len(options)


def test_words_are_never_masked_in_part(encode: Encode, tokenizer: PreTrainedTokenizerBase):
    train = encode(mask=Masking(unit="whole_word", probability=0.5), max_length=24, masking="static")["train"]
    batch = train[[index + visit * len(train) for index in range(len(train)) for visit in range(5)]]
    inside = np.char.startswith(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))), "##")
    chosen = (batch["labels"] != IGNORED).numpy()
    pairs = [
        (chosen[row, index], chosen[row, index - 1])
        for row, ids in enumerate(unmask(batch))
        for index in range(2, len(ids) - 1)
        if inside[ids[index]]
    ]
    assert len(pairs) > 20
    assert all(one == other for one, other in pairs)


def test_pairs_have_token_types_and_pair_labels(encode: Encode, corpus_file: Path, tokenizer: PreTrainedTokenizerBase):
    options = {"packing": "segment_pair", "max_length": 32}
    train, three_way = (encode(**options, pair=pair)["train"] for pair in ("sop", "three_way"))
    batch = train[list(range(len(train)))]
    assert batch["pair_labels"].dtype == torch.int64
    assert set(batch["pair_labels"].tolist()) == {0, 1}
    assert batch["token_type_ids"].shape == batch["input_ids"].shape
    for ids, types in zip(unmask(batch), batch["token_type_ids"].tolist(), strict=True):
        middle = ids.index(tokenizer.sep_token_id)
        assert types[: len(ids)] == [0] * (middle + 1) + [1] * (len(ids) - middle - 1)
        assert not any(types[len(ids) :])
    assert "pair_labels" not in encode(**options)["train"][[0]]
    assert three_way.digest != train.digest  # Not the cached pairs of sop.
    batch = three_way[list(range(len(three_way)))]
    assert set(batch["order_labels"].tolist()) == {0, 1, 2}
    assert "pair_labels" not in batch  # No head of the model predicts the order.
    task = make_task(corpus_file, **options, pair="three_way")
    assert (task.info.auto_class, task.info.label_columns) == ("AutoModelForMaskedLM", {"labels", "order_labels"})
    assert task.read(None).terms.keys() == {"mlm", "three_way"}


def test_a_tokenizer_without_a_mask_token_is_refused(
    corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    without = pickle.loads(pickle.dumps(tokenizer))
    without.mask_token = None
    task = make_task(corpus_file)
    with pytest.raises(UserError, match="has no mask token, which masked language modelling needs"):
        task.encode(task.read(tmp_path), without, tmp_path)


# Cache


def test_documents_of_equal_texts_are_in_one_split(encode: Encode, tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    """Of 60 documents 30 are there twice, and one of these is a line of dev that is drawn to train the second time."""
    texts = [make_text(number, 4) for number in range(60)]
    (tmp_path / "a.txt").write_text("\n".join([*texts, *(f" {text.upper()}" for text in texts[:30])]))
    examples = encode(tmp_path / "a.txt", packing="sentence")
    train, dev = (read_numbers(examples[name], tokenizer) for name in ("train", "dev"))
    assert not train & dev
    assert train | dev == set(range(60))
    assert 6 <= len(dev) <= 18
    (tmp_path / "b.txt").write_text("\n".join(texts))
    drawn = choose_held_out([f"b.txt#{number}" for number in range(60)], fraction=0.2, seed=0)
    dev = read_numbers(encode(tmp_path / "b.txt", packing="sentence")["dev"], tokenizer)
    assert dev == {int(key.partition("#")[2]) for key in drawn}


@pytest.mark.parametrize(("fraction", "of_dev"), [(0.001, 2), (0.999, 4)])
def test_an_extreme_dev_fraction_leaves_a_document_in_each_split(
    encode: Encode, tmp_path: Path, fraction: float, of_dev: int
):
    (tmp_path / "a.txt").write_text("\n".join(make_text(number, 2) for number in range(3)))
    for streaming in (False, True):
        splits = encode(tmp_path / "a.txt", packing="sentence", dev_fraction=fraction, streaming=streaming)
        assert len(splits["dev"]) == of_dev
    examples, _ = batches.examples_and_buckets(splits["train"].training_loader(steps=1, **BATCHES))
    assert len(examples) == 6 - of_dev


def test_a_corpus_is_read_and_tokenized_once(encode: Encode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read = record_documents(monkeypatch)
    first = encode()
    assert len(read) == len(set(read)) == 40  # For both splits.
    with monkeypatch.context() as patch:
        patch.setattr(sequences, "Packer", None)  # Packing again would fail.
        before = pa.total_allocated_bytes()
        again, other_masks = encode(), encode(mask=Masking(probability=0.4))
        assert pa.total_allocated_bytes() == before  # Tokens are mapped and not copied.
    assert not again["train"]._rows.columns["input_ids"].flags.owndata
    for name in ("train", "dev"):
        assert equal_batches(first[name][[1, 2]], again[name][[1, 2]])
        assert equal_batches(first[name][[1, 2]], pickle.loads(pickle.dumps(again[name]))[[1, 2]])
        assert unmask(other_masks[name][[1, 2]]) == unmask(first[name][[1, 2]])
    [path] = tmp_path.rglob("train.arrow")
    expected = first["train"][[0, 5]]
    del first, again, other_masks
    for content in (path.read_bytes()[:-100], b""):
        path.write_bytes(content)
        assert equal_batches(encode()["train"][[0, 5]], expected)


def test_memory_for_writing_does_not_grow_with_the_corpus(
    encode: Encode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    peaks = []
    for name in ("packing._BATCH_CHARACTERS", "corpus.CHUNK_SIZE", "corpus.READ_BYTES"):
        monkeypatch.setattr(f"distill.text.{name}", 2**13)
    for count in (50, 300):
        (tmp_path / f"{count}.txt").write_text("\n".join(f"{number} {make_text(0, 40)}" for number in range(count)))
        tracemalloc.start()
        encode(tmp_path / f"{count}.txt", max_length=128)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (tmp_path / "300.txt").stat().st_size > 150_000
    assert peaks[1] - peaks[0] < 0.1e6


def test_the_share_of_dropped_tokens_is_printed(encode: Encode, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.txt").write_text("\n".join(" ".join([*["film"] * 29, letter]) for letter in "abcdef"))
    encode(tmp_path / "a.txt", packing="sentence", max_length=12)
    printed = " ".join("".join(capsys.readouterr()).split())
    assert "Tokens: 66.7% are in no sequence, cut off or too few for one (task.packing=sentence)" in printed


# Errors


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("lines", "packing", "message"),
    [
        ([], "sentence", "contains no text"),
        (["a lovely film"], "sentence", "the corpus is a single document, a.txt#0, expected at least two"),
        (["a lovely film", "a joy"], "full_sentences", "is shorter than one sequence of task.max_length=16 tokens"),
        (["A lovely film.", "A joy."], "segment_pair", "has no document of two sentences, which make a"),
    ],
)
def test_a_corpus_that_is_too_small_is_refused(
    encode: Encode, tmp_path: Path, lines: list[str], packing: str, message: str, streaming: bool
):
    (tmp_path / "a.txt").write_text("\n".join(lines))
    with pytest.raises(UserError, match=message):
        encode(tmp_path / "a.txt", streaming=streaming, packing=packing)
    assert not list(tmp_path.rglob("*.arrow"))
