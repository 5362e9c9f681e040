"""Changed copies of the training texts, which only the teacher labels: made once, cached, and added to the pool."""

import importlib.metadata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field, NonNegativeInt, PositiveInt

from distill.core.console import ProgressMeter, print_line, print_notice
from distill.core.contracts import Data, TaskInfo
from distill.core.errors import OptionError, UserError, install_command
from distill.core.options import check_arguments
from distill.core.storage import entry_key, has_entry, new_entry
from distill.data.pool import clean, describe_removed
from distill.data.prose import is_english
from distill.data.splits import AUTO, CHANGED_COPIES, LabelledData, Split, compute_digest, text_split
from distill.data.tokenization import write_table
from distill.edge.words import TagScheme

FORMAT = 1  # Of the files of copies.
P_POS = 0.1  # Probability of replacing a word by another of its part of speech.
OTHER = "other"  # The language of texts that are not English.
Columns = list[list[str]]  # The texts, and for pairs the second texts.
Probability = Annotated[float, Field(ge=0, le=1, description="a probability from 0 to 1")]
# Returns a changed copy of the text of a row and a side (0, or 1 for the second text of a pair).
Change = Callable[[int, int, np.random.Generator], str]
# Returns the texts of a changed copy of a row, one or the two of a pair, from the row and the number of the copy.
Copy = Callable[[int, int, np.random.Generator], tuple[str, ...]]


class Augmentation:
    """A way of making changed copies of texts.

    Attributes:
        name: of the method in records.
        rows: those of the tasks that it is for, in words.
        copies: of each training example, before duplicates are removed.
        seed: of the changes; it is not the run's, so that the seeds of a student share the copies and their outputs.
    """

    name: str
    rows = "labelled texts"
    copies: int
    seed: int

    def check(self) -> None:
        """Raises UserError if a package or a model is missing that the method needs; most need none."""

    def fits(self, task: TaskInfo) -> bool:
        """Returns whether it can change the rows of a task."""
        return task.can_augment

    def check_task(self, task: TaskInfo) -> None:
        """Raises UserError for a task whose rows it cannot change."""
        if not self.fits(task):
            raise UserError(
                f"augment={self.name} is for tasks with {self.rows}, and task {task.name} is {task.kind}: leave it out"
            )

    def options(self) -> dict[str, Any]:
        """Returns the options for run.json."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def key(self, data: LabelledData) -> list[object]:
        """Returns everything besides the training texts that the copies depend on, as JSON values."""
        return [self.options()]

    def prepare(self, data: LabelledData, mask_token: str | None, device: str) -> Copy:
        """Returns the function that makes the copies of the training rows; most read no mask token and no device."""
        raise NotImplementedError


def change_in_turns(split: Split, change: Change) -> Copy:
    """Returns the function that changes a text, and of a pair the first text, the second, or both, in turns."""

    def copy(row: int, number: int, random: np.random.Generator) -> tuple[str, ...]:
        if split.pairs is None:
            return (change(row, 0, random),)
        first = split.texts[row] if number % 3 == 1 else change(row, 0, random)
        return first, split.pairs[row] if number % 3 == 0 else change(row, 1, random)

    return copy


class TangAugmentation(Augmentation):
    """Augmentation of Tang et al., arXiv 1903.12136, section 3.3.

    Each word is masked with `p_mask`, or else replaced with `p_pos` by a word of the same part of speech, drawn from
    the words of the training texts with that tag by their frequency. The result is then cut with `p_ngram` to a random
    n-gram. Of pairs the first text is changed, the second, or both, in turns. Masked words become the tokenizer's mask
    token. Without one they are left out, and a notice says so.

    Args:
        copies: of each training example.
        p_mask: probability of masking a word.
        p_pos: probability of replacing a word that is not masked.
        p_ngram: probability of keeping only a random n-gram.
        longest_ngram: words of the longest n-gram; the shortest has one.
        language: of the texts, for the tagger of parts of speech. Only `en` has one, and only `p_pos` above 0 needs it.
        seed: of all random choices.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """

    name = "tang"

    @check_arguments
    def __init__(
        self,
        *,
        copies: PositiveInt = 20,
        p_mask: Probability = 0.1,
        p_pos: Probability = P_POS,
        p_ngram: Probability = 0.25,
        longest_ngram: PositiveInt = 5,
        language: str = "en",
        seed: NonNegativeInt = 0,
    ) -> None:
        if p_mask + p_pos > 1:
            raise OptionError(
                "p_pos", f"{p_pos:g}", f"at most {1 - p_mask:g}, because a word is masked, replaced or kept"
            )
        if p_pos > 0 and language != "en":
            raise OptionError(
                "language", language,
                "en, because there is a tagger of parts of speech for English alone: set augment.p_pos=0 to replace no "
                "word, or take augment=mlm with a model of this language",
            )  # fmt: skip
        self.copies, self.p_mask, self.p_pos, self.p_ngram = copies, p_mask, p_pos, p_ngram
        self.longest_ngram, self.language, self.seed = longest_ngram, language, seed

    def check(self) -> None:
        """Raises UserError if the tagger is not installed."""
        if self.p_pos > 0:
            _import_tagger()

    def key(self, data: LabelledData) -> list[object]:
        return [self.options(), importlib.metadata.version("textblob") if self.p_pos > 0 else None]

    def prepare(self, data: LabelledData, mask_token: str | None, device: str) -> Copy:
        split = data.splits["train"]
        if mask_token is None and self.p_mask > 0:
            print_notice("the tokenizer has no mask token: augment=tang leaves out the words that it would mask")
        sides = [split.texts] if split.pairs is None else [split.texts, split.pairs]
        words = [[text.split() for text in texts] for texts in sides]
        if self.p_pos == 0:
            return change_in_turns(
                split, lambda row, side, random: self._change(words[side][row], None, mask_token, random)
            )
        tags = [_tag_words(texts) for texts in words]
        known = count_words(chain(*words), chain(*tags))

        def change(row: int, side: int, random: np.random.Generator) -> str:
            choices = [known[tag] for tag in tags[side][row]]
            return self._change(words[side][row], choices, mask_token, random)

        return change_in_turns(split, change)

    def _change(
        self,
        words: Sequence[str],
        choices: "Sequence[WordFrequencies] | None",
        mask_token: str | None,
        random: np.random.Generator,
    ) -> str:
        """Returns a changed text; `choices` are those of each word's part of speech."""
        changed = []
        for number, value in enumerate(random.random(len(words)).tolist()):
            if value < self.p_mask:
                changed += [] if mask_token is None else [mask_token]
            elif value < self.p_mask + self.p_pos and choices is not None:
                changed.append(choices[number].draw(random))
            else:
                changed.append(words[number])
        if changed and random.random() < self.p_ngram:
            length = min(len(changed), int(random.integers(1, self.longest_ngram + 1)))
            first = int(random.integers(0, len(changed) - length + 1))
            changed = changed[first : first + length]
        return " ".join(changed)


class WordFrequencies:
    """The words of one part of speech, which are drawn by their frequency."""

    def __init__(self, counts: Counter[str]) -> None:
        self.words = list(counts)
        self._ends = np.cumsum([counts[word] for word in self.words])

    def draw(self, random: np.random.Generator) -> str:
        return self.words[int(np.searchsorted(self._ends, random.integers(self._ends[-1]), side="right"))]


def count_words(words: Iterable[Sequence[str]], tags: Iterable[Sequence[str]]) -> dict[str, WordFrequencies]:
    """Returns the words of texts by their part of speech."""
    counts: dict[str, Counter[str]] = {}
    for word, tag in zip(chain(*words), chain(*tags), strict=True):
        counts.setdefault(tag, Counter())[word] += 1
    return {tag: WordFrequencies(of_tag) for tag, of_tag in counts.items()}


class AutoAugmentation:
    """The augmentation for the language of the training texts, for `task.unlabelled=auto` alone.

    It is that of `TangAugmentation`, for other languages than English without parts of speech.

    Args:
        seed: of all random choices.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """

    name = AUTO

    @check_arguments
    def __init__(self, *, seed: NonNegativeInt = 0) -> None:
        self.seed = seed

    def choose(self, split: Split, *, copies: int) -> TangAugmentation:
        """Returns the augmentation of the texts of a split. A notice says if the tagger of English is missing."""
        english = is_english(split.all_texts())
        tags = english and _has_tagger()
        if english and not tags:
            print_notice(
                "augment=auto replaces no words by others of their part of speech, because textblob is not "
                f"installed: {install_command('train')}"
            )
        language = "en" if english else OTHER
        return TangAugmentation(copies=copies, p_pos=P_POS if tags else 0.0, language=language, seed=self.seed)


def augment(
    data: Data,
    augmentation: Augmentation,
    *,
    mask_token: str | None,
    cache_dir: Path,
    device: str,
    optional: bool = False,
) -> LabelledData:
    """Returns the data with changed copies of the training texts in its pool.

    The copies are made once and kept in `cache_dir`. Those that equal a text of a split, of the pool or an earlier one
    are left out and counted.

    Args:
        optional: whether there may be no copy.

    Raises:
        UserError: if no copy is left.
    """
    assert isinstance(data, LabelledData)  # The plan has checked the task.
    columns = cached_copies(data, augmentation, mask_token, cache_dir=cache_dir, device=device)
    kept, removed = clean(text_split(*columns), data)
    if not len(kept) and optional:
        return data
    if not len(kept):
        raise UserError(
            f"augment={augmentation.name} makes no new text of {len(data.splits['train']):,} training examples "
            f"({describe_removed(removed)}): raise its probabilities or leave it out"
        )
    print_line(f"augment={augmentation.name}: {len(kept):,} new texts; removed: {describe_removed(removed)}")
    record = {
        "method": augmentation.name, **augmentation.options(), "made": len(columns[0]), "examples": len(kept),
        "removed": removed,
    }  # fmt: skip
    origin = f"augment={augmentation.name}, {augmentation.copies} of each row"
    return replace(data, pool=replace(data.pool.add(kept, CHANGED_COPIES, origin), augmentation=record))


def cached_copies(
    data: LabelledData, augmentation: Augmentation, mask_token: str | None, *, cache_dir: Path, device: str
) -> Columns:
    """Returns the copies of all examples, cached or made: the texts, and the second texts of pairs."""
    split, method = data.splits["train"], (augmentation.name, augmentation.key(data), mask_token)
    key = entry_key("augmented", FORMAT, *method, split.texts, split.pairs)
    directory = cache_dir / "augmented" / key[:20]
    path = directory / "copies.arrow"
    if not has_entry(directory):
        if directory.is_dir():
            print_notice(f"{directory} is damaged: the copies are made again")
        columns = make_copies(data, augmentation, mask_token, device)
        table = pa.table({name: pa.array(column) for name, column in zip(("text", "pair"), columns, strict=False)})
        with new_entry(directory) as temporary:
            write_table(table, temporary / path.name)
    with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
        return [column.to_pylist() for column in reader.read_all().columns]


def make_copies(data: LabelledData, augmentation: Augmentation, mask_token: str | None, device: str) -> Columns:
    """Makes the copies of all training rows; those of a row depend on the seed and its number alone."""
    split = data.splits["train"]
    print_line(f"augment={augmentation.name}: makes {augmentation.copies} copies of {len(split):,} examples once")
    copy = augmentation.prepare(data, mask_token, device)
    columns: Columns = [[]] if split.pairs is None else [[], []]
    with ProgressMeter(f"augment={augmentation.name}", len(split) * augmentation.copies, unit="copies") as meter:
        for row in range(len(split)):
            random = np.random.default_rng([augmentation.seed, row])
            for number in range(augmentation.copies):
                for column, text in zip(columns, copy(row, number, random), strict=True):
                    column.append(text)
            meter.advance(augmentation.copies)
    return columns


def _tag_words(texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns the part of speech of every word."""
    tagger = _import_tagger()
    # The tagger splits at single spaces, and makes a word of the empty text.
    tags = [[tag for _, tag in tagger(" ".join(words), tokenize=False)] if words else [] for words in texts]
    for words, of_text in zip(texts, tags, strict=True):
        if len(words) != len(of_text):
            raise ValueError(f"got {len(of_text)} tags for {len(words)} words ({' '.join(words)!r})")
    return tags


def _has_tagger() -> bool:
    try:
        _import_tagger()
    except UserError:
        return False
    return True


def _import_tagger() -> Callable[..., list[tuple[str, str]]]:
    try:
        from textblob.en import tag
    except ModuleNotFoundError as error:
        raise UserError(
            f"augment=tang finds parts of speech with textblob, which is not installed: {install_command('train')}, or "
            "set augment.p_pos=0"
        ) from error
    tagger: Callable[..., list[tuple[str, str]]] = tag
    return tagger


class MentionAugmentation(Augmentation):
    """Mention replacement of Dai and Adel, arXiv 2010.11683, section 2.

    A mention is a span of words with a type, read out of the tags by the rule of `TagScheme`. Each one is replaced with
    `p_replace` by another mention of its type from the training sentences, drawn from the different ones with the same
    probability, of any number of words. A mention that is the only one of its type stays. Unlike in the paper, the
    copies have no tags but those of the teacher.

    Args:
        copies: of each training sentence.
        p_replace: probability of replacing a mention.
        seed: of all random choices.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """

    name, rows = "mentions", "tagged spans of words"

    @check_arguments
    def __init__(self, *, copies: PositiveInt = 10, p_replace: Probability = 1.0, seed: NonNegativeInt = 0) -> None:
        self.copies, self.p_replace, self.seed = copies, p_replace, seed

    def fits(self, task: TaskInfo) -> bool:
        return task.has_mentions

    def key(self, data: LabelledData) -> list[object]:
        train = data.splits["train"]
        tags = [of_sentence.tolist() for of_sentence in train["tags"]]
        return [self.options(), compute_digest([[list(data.labels), train["words"], tags]])]

    def prepare(self, data: LabelledData, mask_token: str | None, device: str) -> Copy:
        """Returns the function that makes the copies; the mask token and the device are not read."""
        train, scheme = data.splits["train"], TagScheme(data.labels)
        sentences: list[list[str]] = train["words"]
        entities = [list(zip(*map(np.ndarray.tolist, scheme.find(tags)), strict=True)) for tags in train["tags"]]
        numbers: list[dict[tuple[str, ...], int]] = [{} for _ in scheme.types]  # Of the mentions of each type.
        for words, of_sentence in zip(sentences, entities, strict=True):
            for first, last, kind in of_sentence:
                numbers[kind].setdefault(tuple(words[first:last]), len(numbers[kind]))
        mentions = [list(of_type) for of_type in numbers]

        def copy(row: int, number: int, random: np.random.Generator) -> tuple[str, ...]:
            words, changed, end = sentences[row], [], 0
            for first, last, kind in entities[row]:
                mention, others = tuple(words[first:last]), len(mentions[kind]) - 1
                if random.random() < self.p_replace and others:
                    chosen = int(random.integers(others))
                    mention = mentions[kind][chosen + (chosen >= numbers[kind][mention])]
                changed += [*words[end:first], *mention]
                end = last
            return (" ".join([*changed, *words[end:]]),)

        return copy
