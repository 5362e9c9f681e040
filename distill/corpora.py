"""Which documents does a corpus of raw text hold, one after the other, without ever holding it whole?"""

import codecs
import gzip
import hashlib
import io
import json
import os
import reprlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill import builtin_data, files
from distill.data import load_hub
from distill.errors import UnreachableError, UserError

if TYPE_CHECKING:
    import datasets

SUFFIXES = (".txt", ".text", ".md", ".jsonl", ".parquet", ".txt.gz", ".text.gz", ".md.gz", ".jsonl.gz")
KINDS = ("file", "paragraph", "line")

# Part of the fingerprint: raise it when the same files give other documents or other keys.
FORMAT_VERSION = 1

PART = 2**20  # characters
READ_BYTES = 2**18
PARQUET_ROWS = 256  # at a time
HASHED_BYTES = 2 * 2**30
# With fewer files for each process, some would have far more text to read than others.
FILES_PER_PROCESS = 4


@dataclass(frozen=True)
class Document:
    """A document, or a part of a long one: at most `PART` characters that end where a line does, if they can.

    Parts of one document follow each other and have its `key`; `part` 0 begins the next one. Put together they are its
    text, but for parts without a word, which are left out.
    """

    key: str
    part: int
    text: str


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
        if self._hub_id:
            yield from (document.key for document in self._read(()) if document.part == 0)
        for name, path in self._files:
            if not self._is_one(name):
                yield from (document.key for document in self._read([(name, path)]) if document.part == 0)
            elif any(not part.isspace() for part in _blocks(path)):
                yield f"{name}#0"

    def documents(
        self, *, rank: int = 0, world: int = 1, wanted: Callable[[str], bool] | None = None
    ) -> Iterator[Document]:
        """The documents of process `rank` of `world`, always in the same order; each goes to one process.

        Of all, or of those whose key is `wanted`: a text file that is one document is not read for nothing.

        A key is the path of the file within the corpus and the number of the document in it, from 0: `a/b.txt#0`;
        of a Hub data set, its split and number. It does not depend on `rank` and `world`.

        Raises:
            UserError: for what cannot be read, a column that is missing or holds no text, a corpus without a word.
            UnreachableError: when a data set is neither in the cache nor to be had from the Hub.
        """
        if not 0 <= rank < world:
            raise ValueError(f"rank is {rank}, expected one of 0 to {world - 1}: the world has {world} processes")
        found = -1
        if len(self._files) >= FILES_PER_PROCESS * world:
            for document in self._read(self._files[rank::world], wanted):
                found += document.part == 0
                yield document
        else:
            for document in self._read(self._files, wanted):
                found += document.part == 0
                if found % world == rank:
                    yield document
        # The files of this process may be empty, and those of another not.
        if found < 0 and next(self._read(self._files), None) is None:
            raise self._no_text()

    def _no_text(self) -> UserError:
        return UserError(f"{self.describe()} holds no text: there is not one word in it")

    def size_bytes(self) -> int | None:
        """Bytes on disk, packed where the files are; None for a data set of the Hub."""
        return None if self._hub_id else sum(_status(path).st_size for _, path in self._files)

    def fingerprint(self) -> str:
        """A digest of the files, wherever their folder is, and of how they are read.

        Above 2 GiB in all, the time when a file was last changed stands for its content, and a copy may differ. Of a
        data set of the Hub it holds the name and the split alone.
        """
        how = [FORMAT_VERSION, self._column, self._kind, [self._hub_id, self._split] if self._hub_id else None]
        digest = hashlib.sha256(json.dumps(how).encode())
        hashed = (self.size_bytes() or 0) <= HASHED_BYTES
        for name, path in self._files:
            status = _status(path)
            with _told(path):
                content = files.sha256(path) if hashed else str(status.st_mtime_ns)
            digest.update(json.dumps([name, status.st_size, content]).encode())
        return digest.hexdigest()

    @cached_property
    def _files(self) -> tuple[tuple[str, Path], ...]:
        """Path within the corpus and file, sorted; none for a data set of the Hub."""
        if self._data_dir is None:
            if self._hub_id:
                return ()
            # Its dev.jsonl is what the classification task is scored on.
            return (("train.jsonl", builtin_data.prepare(self._cache_dir, seed=0) / "train.jsonl"),)
        root = Path(self._data_dir).expanduser()
        if root.is_file():
            if not root.name.lower().endswith(SUFFIXES):
                raise UserError(f"{self.describe()} is of no known kind, expected one of {', '.join(SUFFIXES)}")
            return ((root.name, root),)
        if not root.is_dir():
            raise UserError(f"{self.describe()} does not exist, expected a folder of text or a file")
        found = sorted((path.relative_to(root).as_posix(), path) for path in _walk(root))
        if not found:
            raise UserError(f"{self.describe()} holds no text, expected .txt, .jsonl or .parquet files (also .gz)")
        return tuple(found)

    def _is_one(self, name: str) -> bool:
        """Whether a file is a single document."""
        return self._kind == "file" and not name.lower().removesuffix(".gz").endswith((".jsonl", ".parquet"))

    def _read(
        self, chosen: Iterable[tuple[str, Path]], wanted: Callable[[str], bool] | None = None
    ) -> Iterator[Document]:
        """The documents of these files, or of the Hub's data set, all or the wanted ones."""
        for document in self._all(chosen, wanted):
            if wanted is None or wanted(document.key):
                yield document

    def _all(self, chosen: Iterable[tuple[str, Path]], wanted: Callable[[str], bool] | None) -> Iterator[Document]:
        if self._hub_id:
            yield from _numbered(self._split, _row_parts(self._hub_texts()))
        for name, path in chosen:
            if wanted is not None and self._is_one(name) and not wanted(f"{name}#0"):
                continue
            suffix = name.lower().removesuffix(".gz")
            if suffix.endswith(".jsonl"):
                parts = _row_parts(_jsonl_texts(path, self._column))
            elif suffix.endswith(".parquet"):
                parts = _row_parts(_parquet_texts(path, self._column))
            else:
                parts = _text_parts(_blocks(path), self._kind)
            yield from _numbered(name, parts)

    def _hub_texts(self) -> Iterator[str]:
        from huggingface_hub import errors

        rows, number = self._hub_rows, 0
        if rows.column_names is not None:  # Some are known with the first row only.
            _check_column(self._column, rows.column_names, self.describe())
            rows = rows.select_columns([self._column])
        try:
            for number, row in enumerate(rows, 1):
                yield _text(row, self._column, f"{self.describe()}, row {number}")
        except (OSError, errors.HTTPError) as error:
            raise UnreachableError(
                f"{self.describe()} broke off after row {number} ({_reason(error)}): start again, or download it and "
                "give task.data_dir=DIR"
            ) from error
        except (ValueError, RuntimeError) as error:
            raise UserError(f"{self.describe()} cannot be read after row {number}: {_reason(error)}") from error

    @cached_property
    def _hub_rows(self) -> "datasets.Dataset | datasets.IterableDataset":
        what = f"{self.describe()}, split {self._split},"
        rows: datasets.Dataset | datasets.IterableDataset = load_hub(
            str(self._hub_id), what, advice="with text files, or go online", streaming=True, split=self._split
        )
        return rows


def is_held_out(key: str, *, fraction: float, seed: int) -> bool:
    """Whether a document belongs to the held-out `fraction`, in (0, 1); its key and the seed alone decide."""
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}, expected a number between 0 and 1")
    return _place(key, seed) < fraction


def choose_held_out(keys: Sequence[str], *, fraction: float, seed: int) -> set[str]:
    """The keys that `is_held_out`, where these are all there are: at least one, and never all of them."""
    ordered = sorted(set(keys), key=lambda key: _place(key, seed))
    if not ordered:
        raise ValueError("there is no key to choose from")
    if len(ordered) == 1:
        raise UserError(
            f"{ordered[0]} is a single document, and a held-out part is taken by document: set "
            "task.documents=paragraph (separated by blank lines) or line, or give more documents"
        )
    wanted = sum(is_held_out(key, fraction=fraction, seed=seed) for key in ordered)
    return set(ordered[: min(max(wanted, 1), len(ordered) - 1)])


def _place(key: str, seed: int) -> float:
    """Uniform in [0, 1]."""
    # A file's name need not be UTF-8.
    digest = hashlib.sha256(f"{seed}/{key}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8]) / 2**64


def _walk(root: Path) -> Iterator[Path]:
    """Files of known kind under a folder; links to folders are followed, and none is read twice."""
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        for name in names:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield Path(folder, name)


def _raise(error: OSError) -> None:
    raise UserError(f"{error.filename} cannot be read: {_reason(error)}") from error


def _status(path: Path) -> os.stat_result:
    with _told(path):
        return path.stat()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turns what a reader raises into one line that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error, ValueError, NotImplementedError) as error:
        raise UserError(f"{path} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    lines = (getattr(error, "strerror", None) or str(error)).splitlines()
    return lines[0] if lines else type(error).__name__


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb")


def _not_utf8(path: Path, position: int) -> UserError:
    unpacked = " when unpacked" if path.name.lower().endswith(".gz") else ""
    return UserError(f"{path} is not UTF-8 at byte {position}{unpacked}, expected text in UTF-8: convert it (iconv)")


def _blocks(path: Path) -> Iterator[str]:
    """A text file in blocks of at most `PART` characters, cut as `_cut` does."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    text, read = "", 0
    with _told(path), _open(path) as file:
        while True:
            chunk = file.read(READ_BYTES)
            read += len(chunk)
            try:
                text += decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                # What it was given last may begin with bytes of the chunk before.
                raise _not_utf8(path, read - len(error.object) + error.start) from error
            while len(text) > PART:
                end = _cut(text)
                yield text[:end]
                text = text[end:]
            if not chunk:
                break
    yield text


def _cut(text: str, start: int = 0) -> int:
    """Where a part of a longer text ends: after a line; in one that is too long, after a word."""
    stop = start + PART
    return text.rfind("\n", start, stop) + 1 or text.rfind(" ", start, stop) + 1 or stop


def _text_parts(blocks: Iterable[str], kind: str) -> Iterator[str | None]:
    """Parts of at most `PART` characters; None where a document ends."""
    if kind == "file":
        yield from blocks
        yield None
        return
    held: list[str] = []
    size, begins = 0, True  # A block may end within a line, and what follows then is none of its own.
    # Not str.splitlines, which would split at form feeds and other separators too.
    for line in (line for block in blocks for line in io.StringIO(block)):
        if size + len(line) > PART:
            yield "".join(held)
            held, size = [], 0
        held.append(line)
        size += len(line)
        whole, begins = begins and line.endswith("\n"), line.endswith("\n")
        if (whole and line.isspace()) or (kind == "line" and begins):
            yield "".join(held).rstrip()
            yield None
            held, size = [], 0
    yield "".join(held).rstrip()
    yield None


def _row_parts(texts: Iterable[str]) -> Iterator[str | None]:
    for text in texts:
        start = 0
        while len(text) - start > PART:
            end = _cut(text, start)
            yield text[start:end]
            start = end
        yield text[start:]
        yield None


def _numbered(name: str, parts: Iterable[str | None]) -> Iterator[Document]:
    number = part = 0
    for text in parts:
        if text is None:
            number, part = number + (part > 0), 0
        elif text and not text.isspace():
            yield Document(key=f"{name}#{number}", part=part, text=text)
            part += 1


def _jsonl_texts(path: Path, column: str) -> Iterator[str]:
    """A line is held whole, as JSON cannot be read in parts."""
    read = 0
    with _told(path), _open(path) as file:
        for number, line in enumerate(file, 1):
            content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            read += len(line)
            if not content.strip():
                continue
            try:
                row = json.loads(content.decode())
            except UnicodeDecodeError as error:
                raise _not_utf8(path, read - len(content) + error.start) from error
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}, line {number} is no JSON: {_reason(error)}") from error
            if not isinstance(row, dict):
                raise UserError(f'{path}, line {number} is {reprlib.repr(row)}, expected {{"{column}": "..."}}')
            yield _text(row, column, f"{path}, line {number}")


def _parquet_texts(path: Path, column: str) -> Iterator[str]:
    import pyarrow.parquet

    # Without a buffer of its own size, a column of a row group would be read whole.
    with _told(path), pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES) as table:
        _check_column(column, table.schema_arrow.names, str(path))
        number = 0
        for batch in table.iter_batches(PARQUET_ROWS, columns=[column]):
            for value in batch.column(0):
                number += 1
                yield _text({column: value.as_py()}, column, f"{path}, row {number}")


def _check_column(column: str, columns: Iterable[str], source: str) -> None:
    if column not in columns:
        there = ", ".join(columns) or "none"
        raise UserError(f"{source} has no column {column}: it has {there}; name yours with task.text=NAME")


def _text(row: Mapping[str, Any], column: str, source: str) -> str:
    """The text of a row, which may be empty."""
    _check_column(column, row, source)
    value = row[column]
    if not isinstance(value, str):
        raise UserError(f"{source}: column {column} is {reprlib.repr(value)}, expected a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can write half a pair, "\ud800", which no tokenizer takes.
        raise UserError(f"{source}: column {column} holds half a character, {value[error.start]!r}") from error
    return value
