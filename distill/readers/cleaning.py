"""Cleans web text by the rules of C4 (arXiv 1910.10683, section 2.2): keeps its prose and drops the rest of a page.

Rules are for text with a paragraph in each line. Lines of prose that is wrapped at a width end without punctuation.
Where C4 drops a whole page for a curly bracket or a placeholder, this drops the line.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from distill.errors import UserError
from distill.readers.equal_texts import normalize_text
from distill.readers.sentences import split_sentences

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
