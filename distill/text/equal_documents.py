"""Documents of equal texts, which are on one side of a corpus that is divided into train and dev."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator

from distill.readers.equal_texts import normalize_text
from distill.text.corpus import Document

MOST = 5_000_000  # Texts that are compared, about 400 MB.


def digest_text(text: str) -> int:
    """Returns 8 bytes of the digest of a text, as `normalize_text` sees it; of a long document its first part."""
    return int.from_bytes(hashlib.sha256(normalize_text(text).encode()).digest()[:8])


class TextSides:
    """Returns whether a document is held out: as it is drawn by its key, or as an earlier one of the same text was.

    The chunks of a document follow one another. Texts are remembered of the first `MOST` documents.

    Args:
        is_drawn: returns whether the document with a key is held out.
        compares: whether texts are compared at all.
    """

    def __init__(self, is_drawn: Callable[[str], bool], *, compares: bool) -> None:
        self._is_drawn, self._compares = is_drawn, compares
        self._dev, self._train = set[int](), set[int]()
        self._key, self._is_held_out = "", False
        self._moved = 0

    def __call__(self, document: Document) -> bool:
        if document.key != self._key:
            self._key, self._is_held_out = document.key, self._divide(document)
        return self._is_held_out

    def describe(self) -> str:
        """Returns the number of documents that were drawn to be held out and are not, for the end of a message."""
        return f" ({self._moved:,} more have the text of one to train on, and stay with it)" if self._moved else ""

    def _divide(self, document: Document) -> bool:
        if not self._compares:
            return self._is_drawn(document.key)
        digest = digest_text(document.text)
        is_drawn = self._is_drawn(document.key)
        if digest in self._dev or digest in self._train:
            self._moved += is_drawn and digest in self._train
            return digest in self._dev
        if len(self._dev) + len(self._train) < MOST:
            (self._dev if is_drawn else self._train).add(digest)
        return is_drawn


def leave_out(documents: Iterable[Document], texts: Collection[int]) -> Iterator[Document]:
    """Yields the documents, with all of their chunks, whose text is none of those with these digests."""
    key, is_in = "", False
    for document in documents:
        if document.key != key:
            key, is_in = document.key, bool(texts) and digest_text(document.text) in texts
        if not is_in:
            yield document
