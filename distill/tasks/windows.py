"""Tokenizes questions with their contexts into windows, and finds the tokens of the answers."""

import copy
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from distill.contracts import IGNORED
from distill.data import token_cache
from distill.data.tables import Split
from distill.data.token_cache import Tokens
from distill.edge.decoder import TooLongError
from distill.edge.spans import NO_ANSWER, Window, cut_windows
from distill.edge.truncation import chunk_texts
from distill.errors import UserError

if TYPE_CHECKING:
    import pyarrow
    from transformers import PreTrainedTokenizerBase

COLUMNS = ("start_characters", "end_characters")


def tokenize_windows(
    split: Split,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    max_length: int,
    doc_stride: int,
    cache_dir: Path | None,
    name: str,
) -> Tokens:
    """Returns the windows of the questions and contexts of a split, cached or computed.

    The columns are `input_ids`, `token_type_ids` if the model reads them, and `start_characters` and `end_characters`:
    the characters of the context that a token stands for, or `NO_ANSWER` and `NO_CLASS`, as in `Window`.

    Args:
        doc_stride: tokens of the context that neighbouring windows share.
        name: of the split in messages.

    Raises:
        UserError: for a question that is too long for the windows.
    """
    digest = token_cache.compute_digest(split, tokenizer, max_length, doc_stride=doc_stride)

    def create() -> "pyarrow.Table":
        return _create_table(split, tokenizer, max_length=max_length, doc_stride=doc_stride, name=name)

    return token_cache.cached_tokens(digest, create, cache_dir)


def _create_table(
    split: Split, tokenizer: "PreTrainedTokenizerBase", *, max_length: int, doc_stride: int, name: str
) -> "pyarrow.Table":
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()
    backend.no_padding()
    texts = list(zip(split.texts, split.pairs or (), strict=True))
    chunks = chunk_texts(texts, lambda pair: sum(map(len, pair)))
    windows: list[Window] = []
    rows: list[int] = []
    for row, encoding in enumerate(itertools.chain.from_iterable(map(backend.encode_batch, chunks))):
        try:
            cut = cut_windows(encoding, max_length=max_length, doc_stride=doc_stride)
        except ValueError as error:
            is_long = isinstance(error, TooLongError)
            advice = ": shorten it, raise task.max_length, or lower task.doc_stride" if is_long else ""
            raise UserError(f"{name}, example {row + 1}: {error}{advice}") from error
        windows += cut
        rows += [row] * len(cut)
    values = {
        "input_ids": [window.ids for window in windows],
        "token_type_ids": [window.type_ids for window in windows],
        **{column: [window.characters[side] for window in windows] for side, column in enumerate(COLUMNS)},
    }
    if "token_type_ids" not in tokenizer.model_input_names:
        del values["token_type_ids"]
    lengths = np.array([len(window.ids) for window in windows])
    return token_cache.create_table(values, lengths, rows=np.array(rows))


def label_windows(tokens: Tokens, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first and the last token of the answer in each window, both `[windows]`.

    They are 0, the token that stands for no answer, in a window without the whole answer, and `IGNORED` in a window of
    a question without a label.

    Args:
        spans: `[N, 2]`, first and last (exclusive) character of the answer to each question, `NO_ANSWER` for none and
            `IGNORED` for a question without a label.
    """
    assert tokens.rows is not None
    rows, number = tokens.rows, len(tokens)
    starts, ends = (np.asarray(tokens.columns[name], dtype=np.int64) for name in COLUMNS)
    context = np.flatnonzero(starts > NO_ANSWER)
    window = np.repeat(np.arange(number), np.diff(tokens.offsets))[context]
    starts, ends = starts[context], ends[context]
    # The characters of all windows in one ascending order, because those of a window are below `step`.
    step = max(int(ends.max()), int(spans.max())) + 1
    base = np.arange(number) * step
    first_character, last_character = spans[rows].T
    first = np.searchsorted(ends + window * step, base + np.maximum(first_character, 0), side="right")
    last = np.searchsorted(starts + window * step, base + np.maximum(last_character, 0), side="left") - 1
    lowest, highest = (np.searchsorted(window, np.arange(number), side=side) for side in ("left", "right"))
    new_row = np.diff(rows, prepend=-1) != 0
    ends_row = np.append(new_row[1:], True)
    holds = (
        (first_character >= 0) & (lowest <= first) & (first <= last) & (last < highest)
        & (new_row | (starts[lowest] <= first_character))
        & (ends_row | (ends[highest - 1] >= last_character))
    )  # fmt: skip
    labels = []
    for token in (first, last):
        position = context[np.minimum(token, len(context) - 1)] - tokens.offsets[:-1]
        labels.append(np.where(first_character == IGNORED, IGNORED, np.where(holds, position, 0)))
    return labels[0], labels[1]
