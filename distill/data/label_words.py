"""Words for labels, and labelled rows as pairs of texts: a source, and the word of its label to write."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distill.contracts import IGNORED
from distill.data import token_cache
from distill.data.tables import Split, text_split
from distill.edge.label_words import TASK, WordTask
from distill.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from distill.data.token_cache import Tokens

WORDS = "label_words"  # The column `[B, K, T]` of batches with the tokens of the words that an example may have.
NUMBER = "word_task"  # The column `[B]` of batches with the number of the task that an example belongs to.


def simplify_word(text: str) -> str:
    """Returns a word as it is compared with a written text: without spaces, and in lower case.

    A vocabulary may write `not_equivalent` as `not _ equivalent`, or without capitals.
    """
    return "".join(text.split()).casefold()


def choose_words(task: str, labels: Sequence[str], given: Mapping[str, str] | None) -> tuple[str, ...]:
    """Returns the word of each label: the given one, or without any its name, with spaces for underscores.

    Args:
        task: its name.
        given: the word of each label, by its name, or by its index from 0 if no label has that name.

    Raises:
        UserError: for a label without a word, a word without a label, an empty one, and one of two labels.
    """
    words = dict(zip(labels, (label.replace("_", " ") for label in labels), strict=True))
    if given is not None:
        words = {_find_label(label, labels, task): word for label, word in given.items()}
    if missing := [label for label in labels if label not in words]:
        raise UserError(f"the label {missing[0]} of task {task} has no word: {_advise(task, missing[0])}")
    by_word: dict[str, str] = {}
    for label in labels:
        key = simplify_word(words[label])
        if not key:
            raise UserError(f"the word of the label {label} of task {task} is empty: {_advise(task, label)}")
        if key in by_word:
            raise UserError(
                f"the labels {by_word[key]} and {label} of task {task} have the same word {words[label]}, and no "
                f"answer could tell them apart: {_advise(task, label)}"
            )
        by_word[key] = label
    return tuple(words[label].strip() for label in labels)


def _find_label(given: str, labels: Sequence[str], task: str) -> str:
    if given in labels:
        return given
    if given.isdecimal() and int(given) < len(labels):
        return labels[int(given)]
    raise UserError(
        f"task.words has a word for {given}, which is no label of task {task}: expected {', '.join(labels)}"
    )


def _advise(task: str, label: str) -> str:
    return f"give it a word of its own with task.words={{{task}: {{{label}: WORD, ...}}}}"


def word_split(task: WordTask, number: int, split: Split) -> Split:
    """Returns labelled rows as pairs of texts, whose records a bundle reads.

    Args:
        number: of the task among all.
    """
    columns = [split[name] for name in split.text]
    sources = [task.source(texts) for texts in zip(*columns, strict=True)]
    words = [task.words[label] for label in split.labels]
    records = [{TASK: task.name, **dict(zip(task.columns, texts, strict=True))} for texts in zip(*columns, strict=True)]
    return Split(
        {
            "source": sources, "target": words, "references": [[word] for word in words], "record": records,
            "text": [f"{source} {word}" for source, word in zip(sources, words, strict=True)],
            "labels": split.labels, NUMBER: np.full(len(split), number),
        },
        ("source",), _get_record, whole="text",
    )  # fmt: skip


def _get_record(row: Mapping[str, Any]) -> dict[str, str]:
    record: dict[str, str] = row["record"]
    return record


def encode_words(
    tasks: Sequence[WordTask], tokenizer: "PreTrainedTokenizerBase", max_target: int, end: int | None
) -> np.ndarray:
    """Returns the tokens of the words of each task, `[tasks, K, T]`, each with the one that ends it.

    What a task or a word has fewer is `IGNORED`.

    Args:
        max_target: tokens that a word may have, its end among them.
        end: the token that is put behind each word; None if the tokenizer does that itself.

    Raises:
        UserError: for a word that is too long, that the vocabulary cannot write, and for two of the same tokens.
    """
    rows = [list(_list_tokens(task, tokenizer, max_target, end)) for task in tasks]
    longest = max(len(ids) for of_task in rows for ids in of_task)
    encoded = np.full((len(tasks), max(map(len, rows)), longest), IGNORED, dtype=np.int64)
    for number, of_task in enumerate(rows):
        for place, ids in enumerate(of_task):
            encoded[number, place, : len(ids)] = ids
    return encoded


def _list_tokens(
    task: WordTask, tokenizer: "PreTrainedTokenizerBase", max_target: int, end: int | None
) -> Iterator[list[int]]:
    """Yields the tokens of the words of a task."""
    tokens = token_cache.tokenize_split(text_split(list(task.words)), tokenizer, max_target + 1)
    labels: dict[tuple[int, ...], str] = {}
    for label, word, ids in zip(task.labels, task.words, _split_rows(tokens), strict=True):
        advice = _advise(task.name, label)
        whole = [*ids, *([] if end is None else [end])]
        if len(whole) > max_target:
            raise UserError(
                f"the word {word} of the label {label} has more than {max_target} tokens: {advice}, or raise "
                "task.max_target"
            )
        written = [token for token in ids if token not in tokenizer.all_special_ids]
        if not written or tokenizer.unk_token_id in ids:
            raise UserError(f"the vocabulary cannot write the word {word} of the label {label}: {advice}")
        if other := labels.get(tuple(ids)):
            raise UserError(f"the words of the labels {other} and {label} have the same tokens: {advice}")
        labels[tuple(ids)] = label
        yield whole


def _split_rows(tokens: "Tokens") -> list[list[int]]:
    """Returns the tokens of each text."""
    return [ids.tolist() for ids in np.split(tokens.columns["input_ids"], tokens.offsets[1:-1])]
