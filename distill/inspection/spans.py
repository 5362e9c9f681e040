"""Edge probing: what two spans of a text are to each other, read from their states (arXiv 1905.06316)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.errors import UserError
from distill.inspection.contexts import overlapping
from distill.inspection.probes import Probed, hold_out
from distill.models.forward import run_model
from distill.readers.lines import read_lines

TEST = 0.3  # Share of the rows that a probe is scored on, which are of other texts.


@dataclass(frozen=True)
class SpanPair:
    """Two spans of a text and what they are to each other.

    Attributes:
        first: the start of a span, and the character after its end.
        second: likewise.
    """

    text: str
    first: tuple[int, int]
    second: tuple[int, int]
    label: str


def read_spans(path: Path) -> list[SpanPair]:
    """Returns the rows of a JSONL file with `text`, `span1`, `span2` and `label`.

    Raises:
        UserError: for a row without them, or a span that is no part of its text.
    """
    rows = [_read_row(path, number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip()]
    if len({row.label for row in rows}) < 2:
        raise UserError(f"{path} has no two labels of spans: expected rows with text, span1, span2 and label")
    return rows


def _read_row(path: Path, number: int, line: str) -> SpanPair:
    try:
        row = json.loads(line)
        text, label = row["text"], row["label"]
        [first, second] = [(int(start), int(end)) for start, end in (row["span1"], row["span2"])]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f'{path}, line {number}: expected {{"text": ..., "span1": [start, end], "span2": [start, end], '
            '"label": ...}'
        ) from None
    for start, end in (first, second):
        if not 0 <= start < end <= len(text):
            raise UserError(f"{path}, line {number}: got the span [{start}, {end}] of a text of {len(text)} characters")
    return SpanPair(text, first, second, str(label))


@torch.inference_mode()
def probe_data(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[SpanPair], *, seed: int = 0
) -> tuple[Probed, int]:
    """Returns the states of the rows for probes, and how many rows have a span that was cut off.

    The state of two spans is that of both behind each other, each the mean of its pieces, `[2 * H]`.

    Raises:
        UserError: for spans of one text alone.
    """
    states, labels, texts = list[np.ndarray](), list[str](), list[str]()
    for row in rows:
        encoded = tokenizer(row.text, truncation=True, return_offsets_mapping=True, return_tensors="pt")
        offsets = encoded.pop("offset_mapping")[0].tolist()
        places = [overlapping(offsets, *span) for span in (row.first, row.second)]
        if not all(places):
            continue
        layers = run_model(model, dict(encoded), frozenset(("hidden_states",))).hidden_states
        pooled = [np.concatenate([of[0][at].mean(dim=0).float().numpy() for at in places]) for of in layers]
        states.append(np.stack(pooled))
        labels.append(row.label)
        texts.append(row.text)
    classes = sorted(set(labels))
    numbers = np.array([classes.index(label) for label in labels])
    by_text = np.unique(texts, return_inverse=True)[1]
    held = hold_out(by_text, TEST, seed=seed)
    if held.all():
        raise UserError("inspect.spans has spans of one text, expected several: a probe is scored on others")
    train, test = (np.stack(states, axis=1)[:, chosen] for chosen in (~held, held))  # [N, n, 2 * H]
    probed = Probed(list(train), numbers[~held], list(test), numbers[held], control=None, texts=by_text[~held])
    return probed, len(rows) - len(labels)
