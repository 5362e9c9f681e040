"""Texts by themselves: sentences, the prose of web pages, equal texts, scripts and lengths.

Cleans web text by the rules of C4 (arXiv 1910.10683, section 2.2): keeps its prose and drops the rest of a page. Rules
are for text with a paragraph in each line. Lines of prose that is wrapped at a width end without punctuation. Where C4
drops a whole page for a curly bracket or a placeholder, this drops the line.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from distill.core.errors import UserError


def normalize_text(text: str) -> str:
    """Returns a text as it is compared with others, without its case and its white space."""
    return " ".join(text.casefold().split())


_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+(?=[\"'(]?[A-Z0-9]|[\"']\w)")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|cf|vs|al|fig|eq|eqs|no|sec|ch|pp|resp|approx|dr|mr|prof)\.$", re.IGNORECASE)
_SEARCH_WINDOW = 8  # Characters; no abbreviation is longer. Searching the whole sentence would take quadratic time.


def split_sentences(paragraph: str) -> list[str]:
    """Splits one line of text into sentences, which may be empty. Abbreviations do not end a sentence."""
    sentences: list[str] = []
    start = 0
    for end in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph, max(start, end.start() - _SEARCH_WINDOW), end.start() + 1):
            sentences.append(paragraph[start : end.end()].strip())
            start = end.end()
    return [*sentences, paragraph[start:].strip()]


WEB = "web"
LEAST_WORDS = 5  # Of a line.
SPAN = 3  # Sentences.
MOST_SPANS = 500_000  # In each of two generations, about 100 MB in all.
# Also the right quotation marks of other languages, and the marks of Chinese and Japanese.
_ENDS = (".", "!", "?", '"', "'", "\u201d", "\u2019", "\u00bb", "\u3002", "\uff01", "\uff1f")
_ELLIPSES = ("...", "\u2026")  # Of a text that is cut off.
_BOILERPLATE = (
    "javascript", "lorem ipsum", "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies",
    "use cookies",
)  # fmt: skip
# The lines of each rule are counted under its name; those of `REPEATED` in sentences.
ENDING, WORDS, BRACES, BOILERPLATE, REPEATED = RULES = (
    "no punctuation at the end", "fewer than five words", "a curly brace", "boilerplate", "repeated spans",
)  # fmt: skip


def failed_rule(line: str) -> str | None:
    """Returns the first rule that a line does not pass, None if it passes all.

    >>> failed_rule("Home | About us"), failed_rule("Read more here."), failed_rule("We came, we saw and we left.")
    ('no punctuation at the end', 'fewer than five words', None)
    """
    text = line.strip()
    if not text.endswith(_ENDS) or text.endswith(_ELLIPSES):
        return ENDING
    if len(text.split()) < LEAST_WORDS:
        return WORDS
    if "{" in text or "}" in text:
        return BRACES
    lowered = text.lower()
    return BOILERPLATE if any(phrase in lowered for phrase in _BOILERPLATE) else None


class WebCleaner:
    """Cleans texts one after another, of which it remembers the spans of three sentences.

    Memory is bounded: the digests of the oldest spans are forgotten.

    Attributes:
        lines: that are not blank, until now.
        kept: lines that are left, whole or in part.
        dropped: by the rule, in lines, and in sentences for repeated spans.
    """

    def __init__(self, *, most_spans: int = MOST_SPANS) -> None:
        self.lines = self.kept = 0
        self.dropped: Counter[str] = Counter()
        self._most = most_spans
        self.forget()

    def forget(self) -> None:
        """Forgets the spans, and keeps the counts."""
        self._recent: set[int] = set()
        self._older: set[int] = set()

    def clean(self, text: str) -> str:
        """Returns the text without the lines and the repeated spans that are dropped; blank lines stay."""
        return "\n".join(self.clean_lines(text.split("\n")))

    def clean_lines(self, lines: Sequence[str]) -> list[str]:
        """Returns the lines of a text that are left."""
        passed: list[str] = []
        for line in lines:
            is_blank = not line.strip()
            rule = None if is_blank else failed_rule(line)
            self.lines += not is_blank
            if rule is None:
                passed.append(line)
            else:
                self.dropped[rule] += 1
        left = self._drop_repeated(passed)
        self.kept += sum(bool(line.strip()) for line in left)
        return left

    def record(self) -> dict[str, object]:
        """Returns the counts for run.json."""
        return {"lines": self.lines, "kept": self.kept, "dropped": {rule: self.dropped[rule] for rule in RULES}}

    def _drop_repeated(self, lines: Sequence[str]) -> list[str]:
        """Returns the lines without spans of sentences that an earlier text, or an earlier part of this one, has."""
        sentences = [split_sentences(line) if line.strip() else [] for line in lines]
        places = [(row, number) for row, of_line in enumerate(sentences) for number in range(len(of_line))]
        repeated: set[tuple[int, int]] = set()
        for first in range(len(places) - SPAN + 1):
            span = places[first : first + SPAN]
            if self._stood(sentences[row][number] for row, number in span):
                repeated.update(span)
        if not repeated:
            return list(lines)
        self.dropped[REPEATED] += len(repeated)
        left = []
        for row, line in enumerate(lines):
            rest = [text for number, text in enumerate(sentences[row]) if (row, number) not in repeated]
            if len(rest) == len(sentences[row]):
                left.append(line)
            elif rest:
                left.append(" ".join(rest))
        return left

    def _stood(self, sentences: Iterable[str]) -> bool:
        """Returns whether a span stood in a text before, and remembers it."""
        text = "\n".join(map(normalize_text, sentences))
        digest = int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        if digest in self._recent or digest in self._older:
            return True
        if len(self._recent) >= self._most:
            self._older, self._recent = self._recent, set()
        self._recent.add(digest)
        return False


def check_left(cleaner: WebCleaner, source: str) -> None:
    """Raises UserError, with the rules that dropped most, if nothing is left of a source that had text."""
    if cleaner.lines and not cleaner.kept:
        raise UserError(
            f"task.clean={WEB} leaves nothing of {source}: of its {cleaner.lines:,} lines are dropped "
            f"{describe_dropped(cleaner.record())}; set task.clean=null, or give text with a paragraph in each line"
        )


def describe_cleaning(record: Mapping[str, object]) -> str:
    """Returns the counts of a `WebCleaner` in words: `2 of 5 lines are left, dropped: 3 (fewer than five words)`."""
    return f"{record['kept']:,} of {record['lines']:,} lines are left; dropped: {describe_dropped(record)}"


def describe_dropped(record: Mapping[str, object]) -> str:
    """Returns the rules that dropped anything with their counts, the largest first."""
    dropped = record["dropped"]
    assert isinstance(dropped, Mapping)
    counts = sorted(((count, rule) for rule, count in dropped.items() if count), reverse=True)
    units = {REPEATED: " sentences"}
    return ", ".join(f"{count:,}{units.get(rule, '')} ({rule})" for count, rule in counts) or "none"


SAMPLE = 2000  # Texts that are read of more.
CHARACTERS = 400  # That are read of a text.
# Frequent words of English that no other language has as often. Without `in`, `a`, `is`, `was` and `of`, which others
# share.
_FUNCTION_WORDS = frozenset((
    "the", "and", "to", "that", "it", "for", "with", "on", "not", "this", "but", "are", "from", "have", "you", "be",
    "by", "what", "which", "they", "how", "my", "or",
))  # fmt: skip
_LEAST_FUNCTION_WORDS = 0.05  # Of all words. English has some 20%, its commands and titles 10%, others up to 3%.
_LEAST_ASCII = 0.9  # Of all letters.
_WORD = re.compile(r"[^\W\d_]+")
# Names of Unicode that stand for one script, as its users call it.
_JOINED = {"CJK": "Han", "HIRAGANA": "Kana", "KATAKANA": "Kana", "HANGUL": "Hangul"}


def sample_texts(texts: Sequence[str], size: int = SAMPLE) -> Sequence[str]:
    """Returns the beginnings of so many texts at equal distances, or of all of fewer."""
    count = min(size, len(texts))
    return [texts[number * len(texts) // count][:CHARACTERS] for number in range(count)]


def find_scripts(texts: Sequence[str]) -> dict[str, float]:
    """Returns the share of each script among the letters of texts, the most frequent one first."""
    letters: Counter[str] = Counter()
    for text in texts:
        letters.update(text)
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        if letter.isalpha():
            scripts[_find_script(letter)] += count
    total = scripts.total()
    return {script: count / total for script, count in scripts.most_common()}


def is_english(texts: Iterable[str]) -> bool:
    """Returns whether texts are English, by the share of frequent function words and of ASCII letters.

    >>> is_english(["what is the weather in Boston"]), is_english(["wie ist das Wetter in Bonn"])
    (True, False)
    """
    words = frequent = letters = ascii_letters = 0
    for text in texts:
        for word in _WORD.findall(text.casefold()):
            words += 1
            frequent += word in _FUNCTION_WORDS
            letters += len(word)
            ascii_letters += len(word) if word.isascii() else sum(map(str.isascii, word))
    return bool(words) and frequent >= _LEAST_FUNCTION_WORDS * words and ascii_letters >= _LEAST_ASCII * letters


@cache
def _find_script(letter: str) -> str:
    """Returns the script of a letter, which the name of every letter begins with."""
    name = re.split("[ -]", unicodedata.name(letter, "other").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH "))[0]
    return _JOINED.get(name, name.capitalize())


LIMIT = 128  # Tokens that a task reads by default.
LIMITS = (LIMIT, 256, 512)
_OVER = 0.05  # Share of longer texts from which on a larger limit is worth its time.
_PIECE = re.compile(r"\w+|[^\w\s]")
# Tokens for a word or a punctuation mark, measured with WordPiece on reviews, news and abstracts, and on translations
# with an English vocabulary. Scripts without spaces have one for each letter.
_TOKENS = {True: 1.1, False: 1.7}
_WITHOUT_SPACES = frozenset({"Han", "Kana", "Thai", "Lao", "Khmer", "Myanmar"})


@dataclass(frozen=True)
class Lengths:
    """The lengths of examples, of pairs those of both texts.

    Args:
        unit: words, or characters for scripts without spaces.
        median, p95, longest: in `unit`.
        over: estimated number of examples above each of `LIMITS`, by the tokens of a word in a sample.
    """

    unit: str
    median: int
    p95: int
    longest: int
    examples: int
    over: dict[int, int]

    @property
    def limit(self) -> int:
        """Returns the smallest limit that few examples exceed."""
        return next((limit for limit in LIMITS if self.over[limit] <= _OVER * self.examples), LIMITS[-1])


def measure_lengths(columns: Sequence[Sequence[str]], *, script: str, is_english: bool) -> Lengths:
    """Returns the lengths of examples of one text or of pairs; `script` is the most frequent one."""
    by_letter = script in _WITHOUT_SPACES
    measured = [[len(text) if by_letter else len(text.split()) for text in texts] for texts in columns]
    numbers = sorted(map(sum, zip(*measured, strict=True)))
    tokens = 1.0 if by_letter else _TOKENS[is_english] * _count_pieces(columns)
    special = 1 + len(columns)
    over = {limit: sum(number * tokens + special > limit for number in numbers) for limit in LIMITS}
    last = len(numbers) - 1
    return Lengths(
        "characters" if by_letter else "words", numbers[last // 2], numbers[int(0.95 * last)], numbers[last],
        len(numbers), over,
    )  # fmt: skip


def _count_pieces(columns: Sequence[Sequence[str]]) -> float:
    """Returns the mean number of words and punctuation marks in a word between spaces, of a sample."""
    sample = [text for texts in columns for text in sample_texts(texts)]
    words = sum(len(text.split()) for text in sample)
    return sum(len(_PIECE.findall(text)) for text in sample) / max(1, words)
