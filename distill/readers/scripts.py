"""The writing systems of texts, and whether their language looks like English."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache

SAMPLE = 2000  # Texts that are read of more.
CHARACTERS = 400  # That are read of a text.
# Words that are frequent in English and rare in the languages that share its letters.
_FUNCTION_WORDS = frozenset((
    "the", "of", "and", "to", "is", "that", "it", "for", "with", "as", "his", "he", "be", "at", "by", "this", "had",
    "not", "are", "but", "from", "have", "they", "which", "you", "were", "her", "all", "she", "there", "would", "their",
    "we", "him", "been", "has", "when", "who", "will", "if", "out", "what", "up", "about", "into", "than", "them",
    "can", "only", "my", "your", "how", "did", "do", "does", "its", "our", "these", "those", "then", "some", "could",
    "after", "before", "because", "while", "i", "i'm", "it's", "don't", "please",
))  # fmt: skip
_ENGLISH = 0.1  # Share of these words, which is above 0.18 in English and below 0.05 in its neighbours.
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
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


def is_like_english(texts: Sequence[str]) -> bool:
    """Returns whether frequent words of English make up as large a share of the words as they do in English."""
    words = [word for text in texts for word in _WORD.findall(text.lower())]
    return sum(word in _FUNCTION_WORDS for word in words) >= _ENGLISH * max(1, len(words))


@cache
def _find_script(letter: str) -> str:
    """Returns the script of a letter, which the name of every letter begins with."""
    name = re.split("[ -]", unicodedata.name(letter, "other").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH "))[0]
    return _JOINED.get(name, name.capitalize())
