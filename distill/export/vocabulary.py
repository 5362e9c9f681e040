"""Cuts a vocabulary down to the pieces that the texts of a task need.

Most of a small student is its embedding. A piece that no training text holds has a row that was never trained on the
task. Without it a text that needs it is split into shorter pieces, all of whose rows are there.
"""

import copy
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.errors import UserError

CHUNK = 1000  # Texts that are tokenized at a time.
COMMON = 20  # A piece that no labelled text holds stays if this many unlabelled ones do.
KINDS = ("WordPiece", "BPE", "Unigram")


@dataclass(frozen=True)
class Cut:
    """A vocabulary with some pieces of a larger one.

    Attributes:
        tokenizer: has the pieces that stay.
        kept: their ids in the larger vocabulary, in the order of the new ones.
    """

    tokenizer: PreTrainedTokenizerBase
    kept: Sequence[int]

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns a copy of a model for the larger vocabulary with the embeddings of the pieces that stay."""
        return _cut_embedding(model, self.kept, {old: new for new, old in enumerate(self.kept)})


def check_cut(tokenizer: PreTrainedTokenizerBase, option: str = "task") -> None:
    """Raises UserError for a tokenizer whose vocabulary cannot be cut, as the value `option` has it."""
    content = _content(tokenizer)
    kind = content["model"]["type"]
    if kind not in KINDS:
        raise UserError(
            f"got export.vocabulary={option} and a vocabulary of the kind {kind}, expected one of {', '.join(KINDS)}: "
            "set export.vocabulary=full"
        )
    if not _covers_every_text(content) and tokenizer.unk_token_id is None:
        raise UserError(
            f"got export.vocabulary={option} and a vocabulary without an unknown piece, so that a text with a "
            "character that training never shows would have no tokens: set export.vocabulary=full"
        )


def cut_vocabulary(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    labelled: Iterable[str],
    unlabelled: Iterable[str] = (),
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns copies of the model and the tokenizer with the pieces of `choose_pieces`."""
    cut = choose_pieces(model, tokenizer, labelled, unlabelled)
    return cut.apply(model), cut.tokenizer


def choose_pieces(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    labelled: Iterable[str],
    unlabelled: Iterable[str] = (),
) -> Cut:
    """Returns the vocabulary with the pieces that the texts need.

    A piece stays if a labelled text or `COMMON` unlabelled ones hold it. Special pieces and pieces of one character
    stay, whatever the texts hold. Ids are given anew, in the old order. An id that positions are counted by stays as it
    is, because RoBERTa and its relatives count them from the one behind the padding's.

    Raises:
        UserError: for a tokenizer whose vocabulary cannot be cut.
    """
    check_cut(tokenizer)
    content = _content(tokenizer)
    used = set(_count_texts(tokenizer, labelled))
    used.update(piece for piece, texts in _count_texts(tokenizer, unlabelled).items() if texts >= COMMON)
    pinned = _pinned_ids(model)
    padding = model.get_input_embeddings().padding_idx
    used |= pinned | ({padding} if padding is not None else set())
    kept = _place(_kept_ids(content, tokenizer, used), pinned)
    number = {old: new for new, old in enumerate(kept)}
    smaller = copy.deepcopy(tokenizer)
    smaller._tokenizer = Tokenizer.from_str(json.dumps(_renumber(content, number)))  # type: ignore[attr-defined]
    return Cut(smaller, kept)


def _content(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())  # type: ignore[attr-defined]
    return content


def _covers_every_text(content: Mapping[str, Any]) -> bool:
    """Returns whether there is a piece for every byte, so that no text is unknown."""
    model = content["model"]
    if model.get("byte_fallback"):
        return True
    steps = content.get("pre_tokenizer") or {}
    return any(step.get("type") == "ByteLevel" for step in (steps, *steps.get("pretokenizers", ())))


def _count_texts(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Counter[int]:
    """Returns for every id the number of texts that hold it. Texts are read whole."""
    backend: Tokenizer = copy.deepcopy(tokenizer.backend_tokenizer)  # type: ignore[attr-defined]
    backend.no_truncation()
    backend.no_padding()
    count: Counter[int] = Counter()
    known = list(texts)
    for start in range(0, len(known), CHUNK):
        for encoding in backend.encode_batch(known[start : start + CHUNK]):
            count.update(set(encoding.ids))
    return count


def _pieces(model: Mapping[str, Any]) -> dict[str, int]:
    """Returns the id of every piece of a vocabulary."""
    vocabulary = model["vocab"]
    if model["type"] == "Unigram":
        return {piece: number for number, (piece, _) in enumerate(vocabulary)}
    return dict(vocabulary)


def _kept_ids(content: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, used: set[int]) -> list[int]:
    """Returns the ids that stay, in order: those used, special ones, single characters, and what they are merged of."""
    model = content["model"]
    pieces = _pieces(model)
    kept = used | set(tokenizer.all_special_ids) | {token["id"] for token in content["added_tokens"]}
    kept |= {number for piece, number in pieces.items() if _is_character(piece, model)}
    if model["type"] == "BPE":
        kept = _close(kept, pieces, [_pair(merge) for merge in model["merges"]])
    return sorted(kept)


def _is_character(piece: str, model: Mapping[str, Any]) -> bool:
    prefix = model.get("continuing_subword_prefix") or "▁"
    is_byte = len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
    return len(piece.removeprefix(prefix)) <= 1 or is_byte


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    """Returns the two pieces of a merge, which older files write as one string."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _close(kept: set[int], pieces: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> set[int]:
    """Adds the pieces that kept pieces are merged of."""
    parts: dict[str, tuple[str, str]] = {}
    for first, second in merges:
        parts.setdefault(first + second, (first, second))
    closed, queue = set(kept), [piece for piece, number in pieces.items() if number in kept]
    while queue:
        for part in parts.get(queue.pop(), ()):
            if pieces[part] not in closed:
                closed.add(pieces[part])
                queue.append(part)
    return closed


def _renumber(content: dict[str, Any], number: Mapping[int, int]) -> dict[str, Any]:
    """Returns tokenizer.json with the kept pieces under their new ids."""
    model = content["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [model["vocab"][old] for old in number if old < len(model["vocab"])]
        if model.get("unk_id") is not None:
            model["unk_id"] = number[model["unk_id"]]
    else:
        model["vocab"] = {piece: number[old] for piece, old in model["vocab"].items() if old in number}
    if model["type"] == "BPE":
        known = model["vocab"]
        pairs = (_pair(merge) for merge in model["merges"])
        model["merges"] = [[a, b] for a, b in pairs if a in known and b in known and a + b in known]
    for token in content["added_tokens"]:
        token["id"] = number[token["id"]]
    if content.get("padding"):
        content["padding"]["pad_id"] = number[content["padding"]["pad_id"]]
    _renumber_special(content.get("post_processor"), number)
    return content


def _renumber_special(processor: Any, number: Mapping[int, int]) -> None:
    """Renumbers the special pieces that a post-processor adds, in place."""
    if not processor:
        return
    for inner in processor.get("processors", ()):
        _renumber_special(inner, number)
    for entry in (processor.get("special_tokens") or {}).values():  # TemplateProcessing
        entry["ids"] = [number[old] for old in entry["ids"]]
    for name in ("cls", "sep"):  # BertProcessing, RobertaProcessing
        if name in processor:
            processor[name][1] = number[processor[name][1]]


def _pinned_ids(model: PreTrainedModel) -> set[int]:
    """Returns the ids that modules besides the embedding of tokens compare with to count positions."""
    embedding = model.get_input_embeddings()
    ids = (getattr(module, "padding_idx", None) for module in model.modules() if module is not embedding)
    return {number for number in ids if isinstance(number, int)}


def _place(kept: Sequence[int], pinned: set[int]) -> list[int]:
    """Returns the ids in an order in which each pinned one stands at its own place, and the others ascend.

    Where too few ids stay to reach that place, the smallest others stay too.

    >>> _place([0, 3, 7, 9], {3}), _place([5, 7, 8], {3}), _place([5], {2})
    ([0, 7, 9, 3], [5, 7, 8, 3], [0, 5, 2])
    """
    places = sorted(pinned)
    others = [number for number in kept if number not in pinned]
    missing = max(places, default=-1) + 1 - len(places) - len(others)
    spare = (number for number in itertools.count() if number not in pinned and number not in set(others))
    others = sorted([*others, *itertools.islice(spare, max(0, missing))])
    for place in places:
        others.insert(place, place)
    return others


@torch.no_grad()
def _cut_embedding(model: PreTrainedModel, kept: Sequence[int], number: Mapping[int, int]) -> PreTrainedModel:
    smaller: PreTrainedModel = copy.deepcopy(model)
    embedding = smaller.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    rows = embedding.weight[torch.from_numpy(np.asarray(kept))].clone()
    padding = embedding.padding_idx
    smaller.set_input_embeddings(
        nn.Embedding.from_pretrained(rows, freeze=False, padding_idx=None if padding is None else number[padding])
    )
    if hasattr(smaller, "select_pieces"):  # Of a model that has more of a piece than its embedding.
        smaller.select_pieces(torch.from_numpy(np.asarray(kept)))
    smaller.config.vocab_size = len(kept)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
        old = getattr(smaller.config, name, None)
        if isinstance(old, int) and old in number:
            setattr(smaller.config, name, number[old])
    return smaller
