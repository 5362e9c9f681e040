"""Tests that every example comes once an epoch, padded to its batch, in a reproducible order."""

import copy
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.data import batches as batching
from distill.data import tokenization
from distill.data.batches import LengthBuckets, TokenizedExamples, padded_length
from distill.data.splits import LabelledData, Split, text_split
from distill.kinds import Classification
from distill.kinds.classification import OneClass
from distill.text.vocabulary import train_word_pieces
from tests.conftest import sentences

quick = settings(max_examples=60, deadline=None, derandomize=True)
some_lengths = st.lists(st.integers(3, 128), min_size=1, max_size=200).map(np.array)


@pytest.mark.parametrize("most", [batching.COUNTED, 3])
def test_the_pieces_are_those_of_all_batches(monkeypatch: pytest.MonkeyPatch, tokenizer: Any, most: int):
    """The padding is among them where no batch is padded, too."""
    monkeypatch.setattr(batching, "COUNTED", most)
    columns = {"input_ids": np.array([5, 7, 9, 7, 5, 8], dtype=np.int32)}
    tokens = tokenization.Tokens(columns, np.array([0, 3, 6]), truncated=0, digest="")
    examples = TokenizedExamples(tokens, tokenizer)
    assert examples.pieces().tolist() == sorted({tokenizer.pad_token_id, 5, 7, 8, 9})  # type: ignore[union-attr]
    assert TokenizedExamples(tokens, tokenizer, targets=tokens).pieces() is None


@quick
@given(
    some_lengths,
    st.sampled_from(
        [{"batch_size": 2}, {"batch_size": 7, "pool": 1}, {"batch_size": 20, "pool": 4}, {"batch_tokens": 300}]
    ),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_example_comes_once_in_an_epoch_of_equal_steps(
    lengths: np.ndarray, size: dict[str, int], accumulate: int, world: int, epoch: int, shuffle: bool
):
    assume(len(lengths) >= world)
    options = {**size, "accumulate": accumulate, "world": world, "shuffle": shuffle, "seed": 1}
    ranks = [LengthBuckets(lengths, **options, rank=rank) for rank in range(world)]  # type: ignore[arg-type]
    for buckets in ranks:
        buckets.set_epoch(epoch)
    parts = [list(buckets) for buckets in ranks]
    assert sorted(chain(*chain(*chain(*parts)))) == list(range(len(lengths)))
    assert {len(steps) for steps in parts} == {len(ranks[0])}  # No rank waits for another at the end
    for steps in zip(*parts, strict=True):
        assert len({len(step) for step in steps}) == 1  # or within a step.
    assert all(len(step) == accumulate for step in parts[0][:-1])
    for micro_batch in chain(*chain(*parts)):
        tokens = len(micro_batch) * padded_length(max(lengths[micro_batch]), max(lengths))
        assert 1 <= len(micro_batch) <= size.get("batch_size", 200)
        assert tokens <= size.get("batch_tokens", tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2, "world": 8}, "got 7 examples to train on and 8 processes, too few for each"),
        ({"batch_size": 1, "world": 2}, "got 7 examples to train on and 2 processes, too few for each"),
        ({"batch_tokens": 8}, "got batch_tokens=8, expected at least 9, the length of the longest example"),
        ({"batch_size": 0}, "expected at least 1 of each"),
        ({"batch_size": 4, "accumulate": 0}, "expected at least 1 of each"),
    ],
)
def test_sizes_that_give_no_batches_are_refused(options: dict[str, int], message: str):
    with pytest.raises(UserError, match=message):
        LengthBuckets(np.arange(3, 10), **options)


def test_padding_is_the_share_of_padding_tokens_in_an_epoch():
    buckets = LengthBuckets(np.array([4, 8, 2, 2]), batch_size=2, shuffle=False)
    assert buckets.padding() == pytest.approx(1 - 16 / 20)


def test_a_batch_is_padded_to_one_of_few_lengths():
    lengths = [padded_length(longest, 512) for longest in range(1, 513)]
    assert all(longest <= length <= 17 / 16 * longest for longest, length in enumerate(lengths, start=1))
    assert [lengths[longest - 1] for longest in (31, 33, 64, 65, 257)] == [31, 34, 64, 68, 272]
    assert len(set(lengths)) == 15 + 5 * 16 + 1  # Of 512; 16 between a number and its double.


def test_no_batch_is_longer_than_the_longest_example(tokenizer: PreTrainedTokenizerBase):
    assert padded_length(509, 510) == 510  # A model may have no more positions.
    texts = [" ".join(["film"] * count) for count in (39, 35, 10)]
    examples = tokenize_split(make_split(*texts), tokenizer)
    longest, second, _ = examples.lengths.tolist()
    assert (longest, second) == (41, 37)
    widths = [examples[index]["input_ids"].shape[1] for index in ([0, 2], [1, 2], [2])]
    assert widths == [41, 38, 12]
    assert examples[[1]]["attention_mask"].sum() == second


def test_the_order_depends_only_on_seed_and_epoch():
    lengths = np.random.default_rng(0).integers(3, 128, size=100)

    def order(seed: int, epoch: int) -> list[list[list[int]]]:
        buckets = LengthBuckets(lengths, batch_size=8, seed=seed)
        buckets.set_epoch(epoch)
        return list(buckets)

    assert order(0, 0) == order(0, 0)
    assert len({str(order(seed, epoch)) for seed, epoch in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))}) == 5


def test_buckets_differ_in_every_epoch():
    lengths = np.full(64, 9)
    buckets = LengthBuckets(lengths, batch_size=8)
    companions = set()
    for epoch in range(3):
        buckets.set_epoch(epoch)
        companions |= {frozenset(micro_batch) for step in buckets for micro_batch in step if 0 in micro_batch}
    assert len(companions) == 3


def test_the_micro_batches_of_an_epoch_are_not_sorted_by_length():
    lengths = np.arange(3, 67)
    buckets = LengthBuckets(lengths, batch_size=4)
    places = set()
    for epoch in range(8):
        buckets.set_epoch(epoch)
        longest = [max(lengths[micro_batch]) for [micro_batch] in buckets]
        assert sorted(longest) == list(range(6, 67, 4))  # Examples of similar length are together.
        places.add(longest.index(66))
    assert len(places) > 3


def test_without_shuffling_the_longest_come_first():
    lengths = np.array([5, 9, 3, 9, 7])
    assert list(LengthBuckets(lengths, batch_size=2, shuffle=False)) == [[[1, 3]], [[0, 4]], [[2]]]


# Batches


TASK = Classification(name="toy", text=["sentence"])
SCORING = OneClass(("accuracy",))


def make_split(*texts: str, pairs: list[str] | None = None) -> Split:
    return text_split(list(texts), pairs, labels=np.arange(len(texts)) % 2)


def tokenize_split(
    split: Split, tokenizer: PreTrainedTokenizerBase, *, max_length: int = 128, cache_dir: Path | None = None
) -> TokenizedExamples:
    """Returns a split tokenized as a task's training split."""
    task = Classification(name="toy", text=["sentence"], max_length=max_length)
    data = LabelledData(labels=("bad", "good"), splits={"train": split, "dev": split}, sha256="", scoring=SCORING)
    return task.encode(data, tokenizer, cache_dir)["train"]


def test_a_batch_is_padded_to_its_own_longest_example(tokenizer: PreTrainedTokenizerBase):
    examples = tokenize_split(make_split("a film", "a lovely and moving film", "dull"), tokenizer)
    steps = list(batching.loader(examples, [[[1, 0], [2]]]))
    (batch, single) = steps[0]
    lengths = examples.lengths.tolist()
    assert batch.keys() == {"input_ids", "attention_mask", "token_type_ids", "labels", "example_id"}
    assert [batch[name].shape for name in ("input_ids", "attention_mask", "token_type_ids")] == [(2, lengths[1])] * 3
    assert single["input_ids"].shape == (1, lengths[2])
    assert batch["attention_mask"].sum(dim=1).tolist() == [lengths[1], lengths[0]]
    assert (batch["input_ids"][1, lengths[0] :] == tokenizer.pad_token_id).all()
    assert (batch["labels"].tolist(), batch["example_id"].tolist()) == ([1, 0], [1, 0])
    assert {batch[name].dtype for name in ("input_ids", "labels")} == {torch.int64}
    items = TASK.select(batch)
    assert (items.labelled.tolist(), items.labelled.dtype) == ([True, True], torch.bool)
    assert items.row.tolist() == [0, 1]
    assert tokenizer.decode(batch["input_ids"][0], skip_special_tokens=True) == "a lovely and moving film"


def test_a_pair_with_an_empty_text_has_the_tokens_of_a_bundle(tokenizer: PreTrainedTokenizerBase):
    pairs = [("", "a bore"), ("a film", ""), ("a film", " ")]
    examples = tokenize_split(make_split(*(a for a, _ in pairs), pairs=[b for _, b in pairs]), tokenizer)
    for index, expected in enumerate(tokenizer.backend_tokenizer.encode_batch(pairs)):
        batch = examples[[index]]
        length = int(batch["attention_mask"].sum())
        assert batch["input_ids"][0, :length].tolist() == expected.ids
        assert batch["token_type_ids"][0, :length].tolist() == expected.type_ids


def test_truncated_examples_are_counted(tokenizer: PreTrainedTokenizerBase):
    texts = ("a film", "a lovely and moving film", "a dull and lifeless mess")

    def examples(length: int, split: Split | None = None) -> TokenizedExamples:
        return tokenize_split(split or make_split(*texts), tokenizer, max_length=length)

    whole = examples(128)
    assert whole.truncated == 0
    assert examples(int(whole.lengths.max())).truncated == 0
    cut = examples(5)
    assert cut.truncated == 2
    assert cut.lengths.max() == 5
    pairs = examples(8, make_split("a film", "a lovely and moving film", pairs=["a joy"] * 2))
    assert (pairs.truncated, pairs.lengths.max()) == (1, 8)
    assert tokenizer.backend_tokenizer.truncation is None


def test_dev_comes_completely_and_longest_first(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batching.scoring_steps, "__defaults__", (64,))
    texts = [text for text, _ in sentences(24)]
    examples = tokenize_split(make_split(*texts), tokenizer)
    batches = [batch for step in batching.evaluation_loader(examples) for batch in step]
    assert len(batches) > 3
    assert all(batch["input_ids"].numel() <= 64 for batch in batches)
    assert sorted(chain(*(batch["example_id"].tolist() for batch in batches))) == list(range(24))
    widths = [batch["input_ids"].shape[1] for batch in batches]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == examples.lengths.max()


def test_a_batch_is_padded_on_the_side_of_the_tokenizer(tokenizer: PreTrainedTokenizerBase):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = "left"
    examples = tokenize_split(make_split("a film", "a lovely and moving film"), tokenizer)
    batch = examples[[0, 1]]
    expected = tokenizer(["a film", "a lovely and moving film"], padding=True, return_tensors="pt")
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert torch.equal(batch[name], expected[name])


# Token cache


def test_a_split_is_tokenized_once(tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    split = make_split("a film", "a lovely and moving film", "dull")
    first = tokenize_split(split, tokenizer, cache_dir=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(tokenization, "_tokenize", None)  # Tokenizing again would fail.
        again = tokenize_split(split.with_columns(labels=np.array([1, 1, 0])), tokenizer, cache_dir=tmp_path)
    assert again.truncated == first.truncated
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert torch.equal(again[[2, 0]][name], first[[2, 0]][name])
    assert again[[2, 0]]["labels"].tolist() == [0, 1]
    expected = first[[0, 1]]["input_ids"]
    [path] = tmp_path.rglob("tokens.arrow")
    for damaged in (path.read_bytes()[:-100], b""):
        path.write_bytes(damaged)
        assert torch.equal(tokenize_split(split, tokenizer, cache_dir=tmp_path)[[0, 1]]["input_ids"], expected)


def test_the_digest_depends_on_texts_max_length_vocabulary_and_version(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = make_split("a film", "dull")
    other = train_word_pieces(["quite another text"], 300)
    digests = {
        tokenization.compute_digest(split, tokenizer, 128),
        tokenization.compute_digest(split, tokenizer, 64),
        tokenization.compute_digest(split, other, 128),
        tokenization.compute_digest(make_split("a film", "dul"), tokenizer, 128),
        tokenization.compute_digest(make_split("a film", "dull", pairs=["a", "b"]), tokenizer, 128),
    }
    assert len(digests) == 5
    tokenizer(["a"], truncation=True, max_length=7, padding=True)  # Leaves its settings in the tokenizer.
    assert tokenization.compute_digest(split, tokenizer, 128) in digests
    monkeypatch.setattr(tokenizers, "__version__", "99.0")
    assert tokenization.compute_digest(split, tokenizer, 128) not in digests
