"""Splits English text into sentences."""

import re

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
