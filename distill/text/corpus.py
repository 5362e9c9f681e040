"""Which documents does a corpus of raw text hold, one after the other, without ever holding it whole?"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from distill import files, hub
from distill.data import docstrings
from distill.errors import UnreachableError, UserError
from distill.text import readers

if TYPE_CHECKING:
    import datasets

KINDS = ("file", "paragraph", "line")

# Part of the fingerprint: raise it when the same files give other documents or other keys.
FORMAT_VERSION = 2

HASHED_BYTES = 2 * 2**30
# With fewer files for each process, some would have far more text to read than others.
FILES_PER_PROCESS = 4


@dataclass(frozen=True)
class Document:
    """A document, or a part of a long one: at most `readers.PART` characters that end where a line does, if they can.

    Parts of one document follow each other and have its `key`; `part` 0 begins the next one. Put together they are its
    text, but for parts without a word, which are left out.
    """

    key: str
    part: int
    text: str


@dataclass
class Place:
    """How far a reading has come: the file of its own, the parts of that, and the documents of all its files."""

    file: int = 0
    parts: int = 0
    documents: int = 0


class Corpus:
    """The documents of a file, of all files of known kind in a folder, of a Hub data set, or the built-in sentences.

    A folder is read in the order of its paths, folders within it too; hidden files and those of other kinds are passed
    over. A text file is split into documents as `documents` says: not at all ("file"), at blank lines ("paragraph") or
    into lines ("line"). A row of JSONL, Parquet or the Hub is one document, its column `text`. What holds no word is no
    document. Line ends of text files become "\\n".
    """

    def __init__(
        self,
        *,
        data_dir: str | None,
        hub_id: str | None,
        builtin: bool,
        text: str = "text",
        documents: str = "file",
        split: str = "train",
        cache_dir: Path,
    ) -> None:
        if documents not in KINDS:
            raise ValueError(f"documents is {documents!r}, expected one of {', '.join(KINDS)}")
        if data_dir is None and hub_id is None and not builtin:
            raise UserError("the task has no text of its own: give task.data_dir=DIR with .txt, .jsonl or .parquet")
        self._data_dir = data_dir
        self._hub_id = hub_id if data_dir is None else None
        self._builtin = builtin and data_dir is None and hub_id is None
        self._column = "sentence" if self._builtin else text
        self._kind = documents
        self._split = split
        self._cache_dir = cache_dir

    def describe(self) -> str:
        """What the corpus is, for messages: `task.data_dir=...`, `data set owner/name`, `the built-in sentences`."""
        if self._data_dir is not None:
            return f"task.data_dir={self._data_dir}"
        return f"data set {self._hub_id}" if self._hub_id else "the built-in sentences"

    def document_keys(self) -> Iterator[str]:
        """The keys of all documents; of a text file that is one document only the beginning is read for it.

        Raises:
            UserError: as `documents` does.
        """
        found = False
        for key in self._keys():
            found = True
            yield key
        if not found:
            raise self._no_text()

    def _keys(self) -> Iterator[str]:
        for source in self._sources:
            name, path = source
            if not self._is_one(path):
                yield from (document.key for document in self._read(source) if document.part == 0)
            elif any(not part.isspace() for part in readers.blocks(path)):
                yield f"{name}#0"

    def documents(
        self,
        *,
        rank: int = 0,
        world: int = 1,
        wanted: Callable[[str], bool] | None = None,
        place: Place | None = None,
    ) -> Iterator[Document]:
        """The documents of process `rank` of `world`, always in the same order; each goes to one process.

        Of all, or of those whose key is `wanted`: a text file that is one document is not read for nothing.

        A key is the path of the file within the corpus and the number of the document in it, from 0: `a/b.txt#0`; of
        a data set of the Hub, its split and a digest of the text. It does not depend on `rank` and `world`.

        Args:
            place: where to go on from, which is kept up to date; of what is behind it, one file at most is read again.

        Raises:
            UserError: for what cannot be read, a column that is missing or holds no text, a corpus without a word.
            UnreachableError: when a data set is neither in the cache nor to be had from the Hub.
        """
        if not 0 <= rank < world:
            raise ValueError(f"rank is {rank}, expected one of 0 to {world - 1}: the world has {world} processes")
        place = Place() if place is None else place
        whole = len(self._sources) >= FILES_PER_PROCESS * world
        sources = self._sources[rank::world] if whole else self._sources
        for number in range(place.file, len(sources)):
            if number > place.file:
                place.file, place.parts = number, 0
            for document in itertools.islice(self._read(sources[number], wanted), place.parts, None):
                place.parts += 1
                place.documents += document.part == 0
                if whole or (place.documents - 1) % world == rank:
                    yield document
        # The files of this process may be empty, and those of another not.
        if not place.documents and not any(True for source in self._sources for _ in self._read(source)):
            raise self._no_text()

    def _no_text(self) -> UserError:
        return UserError(f"{self.describe()} holds no text: there is not one word in it")

    def size_bytes(self) -> int | None:
        """Bytes on disk, packed where the files are; None for a data set of the Hub."""
        return None if self._hub_id else sum(readers.status(path).st_size for _, path in self._files)

    def fingerprint(self) -> str:
        """A digest of the files, wherever their folder is, and of how they are read.

        Above 2 GiB in all, the time when a file was last changed stands for its content, and a copy may differ. Of a
        data set of the Hub it holds the name and the split alone.
        """
        how = [FORMAT_VERSION, self._column, self._kind, [self._hub_id, self._split] if self._hub_id else None]
        digest = hashlib.sha256(json.dumps(how).encode())
        hashed = (self.size_bytes() or 0) <= HASHED_BYTES
        for name, path in self._files:
            status = readers.status(path)
            with readers.told(path):
                content = files.hash_file(path) if hashed else str(status.st_mtime_ns)
            digest.update(json.dumps([name, status.st_size, content]).encode())
        return digest.hexdigest()

    @cached_property
    def _files(self) -> tuple[tuple[str, Path], ...]:
        """Path within the corpus and file, sorted; none for a data set of the Hub."""
        if self._data_dir is None:
            if self._hub_id:
                return ()
            # Its dev.jsonl is what the classification task is scored on.
            return (("train.jsonl", docstrings.prepare_dataset(self._cache_dir, seed=0) / "train.jsonl"),)
        root = Path(self._data_dir).expanduser()
        if root.is_file():
            if not root.name.lower().endswith(readers.SUFFIXES):
                raise UserError(f"{self.describe()} is of no known kind, expected one of {', '.join(readers.SUFFIXES)}")
            return ((root.name, root),)
        if not root.is_dir():
            raise UserError(f"{self.describe()} does not exist, expected a folder of text or a file")
        found = sorted((path.relative_to(root).as_posix(), path) for path in readers.walk(root))
        if not found:
            raise UserError(f"{self.describe()} holds no text, expected .txt, .jsonl or .parquet files (also .gz)")
        return tuple(found)

    @cached_property
    def _sources(self) -> tuple[tuple[str, Path | int], ...]:
        """What is read one after the other: names and files, or shards of a data set of the Hub."""
        if self._hub_id:
            return tuple((self._split, shard) for shard in range(self._hub_rows.num_shards))
        return self._files

    def _is_one(self, source: Path | int) -> TypeGuard[Path]:
        """Whether this is a file that is a single document."""
        return self._kind == "file" and isinstance(source, Path) and not readers.holds_rows(source)

    def _read(self, source: tuple[str, Path | int], wanted: Callable[[str], bool] | None = None) -> Iterator[Document]:
        """The documents of a file or a shard, all or the wanted ones."""
        name, at = source
        if isinstance(at, int):
            documents = self._of_shard(at)
        elif wanted is not None and self._is_one(at) and not wanted(f"{name}#0"):
            return
        else:
            documents = _numbered(name, readers.parts(at, column=self._column, kind=self._kind))
        yield from (document for document in documents if wanted is None or wanted(document.key))

    def _of_shard(self, shard: int) -> Iterator[Document]:
        for text in self._hub_texts(shard):
            # Where a row lies depends on whether it comes from the Hub or out of the cache.
            name = f"{self._split}/{hashlib.sha256(text.encode()).hexdigest()[:20]}"
            yield from _numbered(name, readers.row_parts([text]))

    def _hub_texts(self, shard: int) -> Iterator[str]:
        from huggingface_hub import errors

        shards, number = self._hub_rows.num_shards, 0
        of_which = f" of shard {shard + 1} of {shards}" if shards > 1 else ""
        rows = self._hub_rows.shard(shards, shard)
        if rows.column_names is not None:  # Some are known with the first row only.
            readers.check_column(self._column, rows.column_names, self.describe())
            rows = rows.select_columns([self._column])
        try:
            for number, row in enumerate(rows, 1):
                yield readers.text_of(row, self._column, f"{self.describe()}, row {number}{of_which}")
        except (OSError, errors.HTTPError) as error:
            raise UnreachableError(
                f"{self.describe()} broke off after row {number}{of_which} ({readers.reason(error)}): start again, or "
                "download it and give task.data_dir=DIR"
            ) from error
        except (ValueError, RuntimeError) as error:
            reason = readers.reason(error)
            raise UserError(f"{self.describe()} cannot be read after row {number}{of_which}: {reason}") from error

    @cached_property
    def _hub_rows(self) -> "datasets.IterableDataset":
        what = f"{self.describe()}, split {self._split},"
        rows: datasets.IterableDataset = hub.load_dataset(
            str(self._hub_id), what, advice="with text files, or go online", streaming=True, split=self._split
        )
        return rows


def is_held_out(key: str, *, fraction: float, seed: int) -> bool:
    """Whether a document belongs to the held-out `fraction`, in (0, 1); its key and the seed alone decide."""
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}, expected a number between 0 and 1")
    return _draw(key, seed) < fraction


def choose_held_out(keys: Sequence[str], *, fraction: float, seed: int) -> set[str]:
    """The keys that `is_held_out`, where these are all there are: at least one, and never all of them."""
    ordered = sorted(set(keys), key=lambda key: _draw(key, seed))
    if not ordered:
        raise ValueError("there is no key to choose from")
    if len(ordered) == 1:
        raise UserError(
            f"{ordered[0]} is a single document, and a held-out part is taken by document: set "
            "task.documents=paragraph (separated by blank lines) or line, or give more documents"
        )
    wanted = sum(is_held_out(key, fraction=fraction, seed=seed) for key in ordered)
    return set(ordered[: min(max(wanted, 1), len(ordered) - 1)])


def _draw(key: str, seed: int) -> float:
    """Uniform in [0, 1]."""
    # A file's name need not be UTF-8.
    digest = hashlib.sha256(f"{seed}/{key}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8]) / 2**64


def _numbered(name: str, parts: Iterable[str | None]) -> Iterator[Document]:
    number = part = 0
    for text in parts:
        if text is None:
            number, part = number + (part > 0), 0
        elif text and not text.isspace():
            yield Document(key=f"{name}#{number}", part=part, text=text)
            part += 1
