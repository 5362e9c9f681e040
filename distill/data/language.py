"""The language of texts, as far as it decides whether words can be tagged: English or not."""

import re
from collections.abc import Iterable

# Frequent words of English that no other language has as often. Without `in`, `a`, `is`, `was` and `of`, which others
# share.
FUNCTION_WORDS = frozenset(
    (
        "the", "and", "to", "that", "it", "for", "with", "on", "not", "this", "but", "are", "from", "have", "you", "be",
        "by", "what", "which", "they", "how", "my", "or",
    )
)  # fmt: skip
LEAST_FUNCTION_WORDS = 0.05  # Of all words. English has some 20%, in commands and titles 10%, other languages up to 3%.
LEAST_ASCII = 0.9  # Of all letters.
_WORD = re.compile(r"[^\W\d_]+")


def is_english(texts: Iterable[str]) -> bool:
    """Returns whether texts are English, by the share of frequent function words and of ASCII letters.

    >>> is_english(["what is the weather in Boston"]), is_english(["wie ist das Wetter in Bonn"])
    (True, False)
    """
    words = frequent = letters = ascii_letters = 0
    for text in texts:
        for word in _WORD.findall(text.casefold()):
            words += 1
            frequent += word in FUNCTION_WORDS
            letters += len(word)
            ascii_letters += len(word) if word.isascii() else sum(map(str.isascii, word))
    return bool(words) and frequent >= LEAST_FUNCTION_WORDS * words and ascii_letters >= LEAST_ASCII * letters
