"""A corpus of raw text: files of text, JSONL and Parquet as a stream of documents with stable keys."""

import codecs
import hashlib
import io
import itertools
import json
import os
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from distill.core import files, storage
from distill.core.console import print_notice
from distill.core.errors import UnreachableError, UserError
from distill.data.prose import WebCleaner, check_left, normalize_text
from distill.rows.formats import (
    assign_splits,
    check_surrogates,
    format_reason,
    open_file,
    open_parquet,
    read_objects,
    reading_errors,
    unreadable,
)

if TYPE_CHECKING:
    import datasets


# The last two are those of WikiText.
_TEXT = (".txt", ".text", ".md", ".tokens", ".raw")
SUFFIXES = (*_TEXT, ".jsonl", ".parquet", *(f"{suffix}.gz" for suffix in (*_TEXT, ".jsonl")))

CHUNK_SIZE = 2**20  # Characters.
READ_BYTES = 2**18
PARQUET_BATCH_ROWS = 256


def read_chunks(path: Path, *, column: str, split_by: str) -> Iterator[str | None]:
    """Yields the documents of a file in chunks of at most `CHUNK_SIZE` characters, and None after each document.

    Chunks end after a line, or after a word in a long line. A row of JSONL or Parquet is one document. Text files are
    split into documents by `split_by`: "file", "paragraph" or "line".

    Raises:
        UserError: if the file cannot be read, or the column is missing or contains other values than text.
    """
    suffix = path.name.lower().removesuffix(".gz")
    if suffix.endswith(".jsonl"):
        return split_rows(_read_jsonl(path, column))
    if suffix.endswith(".parquet"):
        return split_rows(_read_parquet(path, column))
    return _split_text(read_blocks(path), split_by)


def has_rows(path: Path) -> bool:
    """Returns whether each row of the file is one document, which `split_by` does not change."""
    return path.name.lower().removesuffix(".gz").endswith((".jsonl", ".parquet"))


def find_files(root: Path) -> Iterator[Path]:
    """Yields all files below a folder with one of `SUFFIXES`, except hidden ones.

    Links to folders are followed, and each folder is read once.
    """
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=_raise_user_error):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        for name in names:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield Path(folder, name)


def _raise_user_error(error: OSError) -> None:
    raise unreadable(error.filename, error) from error


def read_status(path: Path) -> os.stat_result:
    """Returns size and times of a file.

    Raises:
        UserError: if the file does not exist or cannot be accessed.
    """
    with reading_errors(path):
        return path.stat()


def read_blocks(path: Path) -> Iterator[str]:
    """Yields a text file in blocks of at most `CHUNK_SIZE` characters, with "\\n" as the only line end."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    text, bytes_read = "", 0
    with reading_errors(path), open_file(path) as file:
        while True:
            data = file.read(READ_BYTES)
            bytes_read += len(data)
            try:
                text += decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                # The object may begin with bytes of the previous read.
                position = bytes_read - len(error.object) + error.start
                unpacked = " when unpacked" if path.name.lower().endswith(".gz") else ""
                raise UserError(
                    f"{path} is not UTF-8 at byte {position}{unpacked}, expected text in UTF-8: convert it with iconv"
                ) from error
            while len(text) > CHUNK_SIZE:
                end = _find_chunk_end(text)
                yield text[:end]
                text = text[end:]
            if not data:
                break
    yield text


def _find_chunk_end(text: str, start: int = 0) -> int:
    """Returns the end of the chunk at `start` of a longer text: after a line, or after a word, or anywhere."""
    stop = start + CHUNK_SIZE
    return text.rfind("\n", start, stop) + 1 or text.rfind(" ", start, stop) + 1 or stop


def _split_text(blocks: Iterable[str], split_by: str) -> Iterator[str | None]:
    """Splits the blocks of a text file into documents, and yields their chunks with None after each document."""
    if split_by == "file":
        yield from blocks
        yield None
        return
    pending: list[str] = []
    size = 0
    starts_line = True  # A block may end within a line; the rest of the line is not a line itself.
    # str.splitlines would also split at form feeds and other separators.
    for line in (line for block in blocks for line in io.StringIO(block)):
        if size + len(line) > CHUNK_SIZE:
            yield "".join(pending)
            pending, size = [], 0
        pending.append(line)
        size += len(line)
        ends_line = line.endswith("\n")
        is_complete_line, starts_line = starts_line and ends_line, ends_line
        if (is_complete_line and line.isspace()) or (split_by == "line" and ends_line):
            yield "".join(pending).rstrip()
            yield None
            pending, size = [], 0
    yield "".join(pending).rstrip()
    yield None


def split_rows(texts: Iterable[str]) -> Iterator[str | None]:
    """Yields each text in chunks of at most `CHUNK_SIZE` characters, and None after each text."""
    for text in texts:
        start = 0
        while len(text) - start > CHUNK_SIZE:
            end = _find_chunk_end(text, start)
            yield text[start:end]
            start = end
        yield text[start:]
        yield None


def _read_jsonl(path: Path, column: str) -> Iterator[str]:
    """Yields the column of each line. A complete line is in memory, because JSON cannot be parsed in chunks."""
    for number, row in read_objects(path):
        yield get_text(row, column, f"{path}, line {number}")


def _read_parquet(path: Path, column: str) -> Iterator[str]:
    with open_parquet(path) as table:
        check_column(column, table.schema_arrow.names, str(path))
        number = 0
        for batch in table.iter_batches(PARQUET_BATCH_ROWS, columns=[column]):
            for value in batch.column(0):
                number += 1
                yield get_text({column: value.as_py()}, column, f"{path}, row {number}")


def check_column(column: str, columns: Iterable[str], source: str) -> None:
    """Checks that the column exists.

    Raises:
        UserError: if it is missing. The message starts with `source`.
    """
    if column not in columns:
        names = ", ".join(columns) or "none"
        raise UserError(f"{source} has no column {column}, its columns are: {names}; set task.text=NAME")


def get_text(row: Mapping[str, object], column: str, source: str) -> str:
    """Returns the text of a row, which may be empty.

    Raises:
        UserError: if the column is missing or its value is not a text. The message starts with `source`.
    """
    check_column(column, row, source)
    value = row[column]
    if not isinstance(value, str):
        raise UserError(f"{source}: column {column} is {reprlib.repr(value)}, expected a string")
    check_surrogates(value, f"{source}: column {column}")
    return value


DOCUMENT_UNITS = ("file", "paragraph", "line")

# Part of the fingerprint. Increase it if the same files give other documents or other keys.
FORMAT = 1

MAX_HASHED_BYTES = 2 * 2**30
# With fewer files per process, the amount of text per process would differ too much.
MIN_FILES_PER_PROCESS = 4
SHOWN = 3  # Names of files in a notice.


@dataclass(frozen=True)
class Document:
    """A document, or one chunk of a long document.

    The chunks of a document are consecutive. Joined, they are its text, except that blank chunks are omitted.

    Args:
        key: the path of its file within the corpus and its index in the file: `a/b.txt#0`. For a Hub data set, it is
            the split and a digest of the text. It does not depend on the process that reads the document.
        chunk: index of the chunk in the document.
        text: at most `CHUNK_SIZE` characters.
    """

    key: str
    chunk: int
    text: str


@dataclass
class Position:
    """A position in the corpus, stored in checkpoints.

    Args:
        file: index of the file among those of this process.
        parts: number of chunks read from this file.
        documents: number of documents read from all files.
    """

    file: int = 0
    parts: int = 0
    documents: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """The documents of a file, of a folder of files, of a Hub data set, or of the built-in file.

    The files of a folder and its subfolders are read in the order of their paths. Hidden files and files without one of
    `SUFFIXES` are ignored. Blank documents are omitted. Files whose names tell a split are of that split, as
    `assign_splits` says: those of test, and others beside a train, are not read.

    Args:
        data_dir: a file or folder, in place of the following two.
        hub_id: a data set of the Hub, `owner/name` or `owner/name:configuration`.
        builtin_file: a JSONL file.
        column: column of JSONL, Parquet and Hub rows. Each row is one document.
        split_by: unit of the documents in text files: "file", "paragraph" (separated by blank lines) or "line".
        split: split of the Hub data set.
        clean: `web` drops what is no prose from the documents, as `WebCleaner`; None keeps them as they are.
    """

    data_dir: str | None = None
    hub_id: str | None = None
    builtin_file: Path | None = None
    column: str = "text"
    split_by: str = "file"
    split: str = "train"
    clean: str | None = None

    def __post_init__(self) -> None:
        if self.split_by not in DOCUMENT_UNITS:
            raise ValueError(f"split_by is {self.split_by!r}, expected one of {', '.join(DOCUMENT_UNITS)}")
        if self.data_dir is None and self.hub_id is None and self.builtin_file is None:
            raise UserError("the task has no built-in text: set task.data_dir=DIR with .txt, .jsonl or .parquet files")

    def describe(self) -> str:
        """Returns a name for messages: `task.data_dir=...`, `data set owner/name` or `the built-in sentences`."""
        if self.data_dir is not None:
            return f"task.data_dir={self.data_dir}"
        return f"data set {self.hub_id}" if self.hub_id else "the built-in sentences"

    @property
    def has_dev(self) -> bool:
        """Returns whether there are files of dev, of which documents are held out in the place of others."""
        return "dev" in self._splits.values()

    def is_of_dev(self, key: str) -> bool:
        """Returns whether the file of the document with this key is one of dev."""
        return self._splits.get(key.rpartition("#")[0]) == "dev"

    def read_keys(self) -> Iterator[str]:
        """Yields the keys of all documents, reading only the first blocks of a text file that is one document.

        Raises:
            UserError: as `read_documents`.
        """
        is_empty = True
        for key in self._read_keys():
            is_empty = False
            yield key
        if is_empty:
            raise self._no_text_error()

    def _read_keys(self) -> Iterator[str]:
        for source in self._sources:
            name, path = source
            if not self._is_single_document(path):
                yield from (document.key for document in self._read_source(source) if document.chunk == 0)
            elif any(not block.isspace() for block in read_blocks(path)):
                yield f"{name}#0"

    def read_documents(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        select: Callable[[str], bool] | None = None,
        position: Position | None = None,
        cleaner: WebCleaner | None = None,
    ) -> Iterator[Document]:
        """Yields the documents of one process in a fixed order. Each document belongs to one process.

        Documents are cleaned if the corpus is. Those of which nothing is left are not yielded.

        Args:
            select: returns whether to read the document with a key. An unselected text file that is one document is
                not opened, and no unselected file is where files are of splits.
            position: start of the reading, updated after each document. At most one file is read again to reach it.
            cleaner: knows the spans of all files; None has one that forgets them after each file, so that the reading
                can begin at any.

        Raises:
            UserError: if a file cannot be read, a column is missing or contains other values than text, the corpus
                contains no text, or the cleaning leaves none.
            UnreachableError: if a data set is not in the cache and cannot be downloaded from the Hub.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}, expected 0 to {world_size - 1} for {world_size} processes")
        position = Position() if position is None else position
        sources = self._select_sources(select)
        by_file = len(sources) >= MIN_FILES_PER_PROCESS * world_size
        sources = sources[rank::world_size] if by_file else sources
        forgets, cleaner = cleaner is None, cleaner or (WebCleaner() if self.clean else None)
        for index in range(position.file, len(sources)):
            if index > position.file:
                position.file, position.parts = index, 0
            if cleaner is not None and forgets:
                cleaner.forget()
            documents = _clean(self._read_source(sources[index], select), cleaner)
            for document in itertools.islice(documents, position.parts, None):
                position.parts += 1
                position.documents += document.chunk == 0
                is_own = by_file or (position.documents - 1) % world_size == rank
                if is_own and document.text and not document.text.isspace():
                    yield document
        # Only this process's files may be empty.
        if not position.documents and not any(True for source in self._sources for _ in self._read_source(source)):
            raise self._no_text_error()
        if cleaner is not None:
            check_left(cleaner, self.describe())

    def _select_sources(self, select: Callable[[str], bool] | None) -> tuple[tuple[str, Path | int], ...]:
        """Returns the sources with selected documents, where those of a source are all of one split."""
        if select is None or not self.has_dev:
            return self._sources
        return tuple(source for source in self._sources if select(f"{source[0]}#0"))

    def _no_text_error(self) -> UserError:
        return UserError(f"{self.describe()} contains no text, expected at least one word")

    def count_bytes(self) -> int | None:
        """Returns the size of the files on disk, compressed if they are. None for a Hub data set."""
        return None if self.hub_id else sum(read_status(path).st_size for _, path in self._files)

    def compute_fingerprint(self) -> str:
        """Returns a digest of the content and the reading options, which does not depend on the folder's location.

        For files of more than 2 GiB in total, it includes the modification times instead of the content. For a Hub
        data set, it includes only the name and the split.
        """
        hub_source = [self.hub_id, self.split] if self.hub_id else None
        options = [FORMAT, self.column, self.split_by, hub_source, *([self.clean] if self.clean else [])]
        digest = hashlib.sha256(json.dumps(options).encode())
        hash_content = (self.count_bytes() or 0) <= MAX_HASHED_BYTES
        for name, path in self._files:
            status = read_status(path)
            with reading_errors(path):
                content = files.hash_file(path) if hash_content else str(status.st_mtime_ns)
            split = [self._splits[name]] if self._splits else []
            digest.update(json.dumps([name, status.st_size, content, *split]).encode())
        return digest.hexdigest()

    @cached_property
    def _files(self) -> tuple[tuple[str, Path], ...]:
        """Name within the corpus and path of each file of train and dev, sorted. Empty for a Hub data set."""
        read, splits = self._found_files, self._splits
        return tuple((name, path) for name, path in read if splits.get(name, "train") != "test") if splits else read

    @cached_property
    def _splits(self) -> dict[str, str]:
        """The split of each file, by its name; those that are not read are of test. Empty if the names tell none.

        Raises:
            UserError: for files of dev and of test alone.
        """
        names = [name for name, _ in self._found_files]
        told = assign_splits(names, SUFFIXES)
        if not told:
            return told
        splits = {name: told.get(name, "test") for name in names}
        of = {split: [name for name in names if splits[name] == split] for split in ("train", "dev", "test")}
        if not of["train"]:
            raise UserError(
                f"{self.describe()} has {_list_files([*of['dev'], *of['test']])}, which are dev and test by their "
                "names, and no file of train: add train.txt, or rename them"
            )
        dev = f"dev is {_list_files(of['dev'])}" if of["dev"] else "dev is held out from train"
        left_out = f", and not read are {_list_files(of['test'])}" if of["test"] else ""
        print_notice(
            f"{self.describe()}: files are of splits by their names: train is {_list_files(of['train'])}, "
            f"{dev}{left_out}"
        )
        return splits

    @cached_property
    def _found_files(self) -> tuple[tuple[str, Path], ...]:
        """Name within the corpus and path of each file, sorted."""
        if self.builtin_file is not None:
            return ((self.builtin_file.name, self.builtin_file),)
        if self.data_dir is None:
            return ()
        root = Path(self.data_dir).expanduser()
        suffixes = ", ".join(SUFFIXES)
        if root.is_file():
            if not root.name.lower().endswith(SUFFIXES):
                raise UserError(f"{self.describe()} has an unsupported suffix, expected one of {suffixes}")
            return ((root.name, root),)
        if not root.is_dir():
            raise UserError(f"{self.describe()} does not exist, expected a text file or a folder of text files")
        named_paths = sorted((path.relative_to(root).as_posix(), path) for path in find_files(root))
        if not named_paths:
            raise UserError(f"{self.describe()} contains no text files, expected files with one of {suffixes}")
        return tuple(named_paths)

    @cached_property
    def _sources(self) -> tuple[tuple[str, Path | int], ...]:
        """Names and files, or the split and the shards of a Hub data set, in the order of reading."""
        if self.hub_id:
            return tuple((self.split, shard) for shard in range(self._hub_dataset.num_shards))
        return self._files

    def _is_single_document(self, source: Path | int) -> TypeGuard[Path]:
        return self.split_by == "file" and isinstance(source, Path) and not has_rows(source)

    def _read_source(
        self, source: tuple[str, Path | int], select: Callable[[str], bool] | None = None
    ) -> Iterator[Document]:
        """Yields the documents of a file or a shard, all or the selected ones."""
        name, location = source
        if isinstance(location, int):
            documents = self._read_shard(location)
        elif select is not None and self._is_single_document(location) and not select(f"{name}#0"):
            return
        else:
            chunks = read_chunks(location, column=self.column, split_by=self.split_by)
            documents = _number_documents(name, chunks)
        yield from (document for document in documents if select is None or select(document.key))

    def _read_shard(self, shard: int) -> Iterator[Document]:
        for text in self._read_shard_texts(shard):
            # The index of a row differs between the Hub and the cache, so the key is a digest.
            name = f"{self.split}/{hashlib.sha256(text.encode()).hexdigest()[:20]}"
            yield from _number_documents(name, split_rows([text]))

    def _read_shard_texts(self, shard: int) -> Iterator[str]:
        from huggingface_hub import errors

        num_shards, number = self._hub_dataset.num_shards, 0
        shard_name = f" of shard {shard + 1} of {num_shards}" if num_shards > 1 else ""
        rows = self._hub_dataset.shard(num_shards, shard)
        if rows.column_names is not None:  # Some data sets do not declare their columns.
            check_column(self.column, rows.column_names, self.describe())
            rows = rows.select_columns([self.column])
        try:
            for number, row in enumerate(rows, 1):
                yield get_text(row, self.column, f"{self.describe()}, row {number}{shard_name}")
        except (OSError, errors.HTTPError) as error:
            raise UnreachableError(
                f"{self.describe()}: the download failed after row {number}{shard_name} "
                f"({format_reason(error)}): run the command again, or download the data set and set "
                "task.data_dir=DIR"
            ) from error
        except (ValueError, RuntimeError) as error:
            reason = format_reason(error)
            raise UserError(f"{self.describe()} cannot be read after row {number}{shard_name}: {reason}") from error

    @cached_property
    def _hub_dataset(self) -> "datasets.IterableDataset":
        source = f"{self.describe()}, split {self.split},"
        dataset: datasets.IterableDataset = storage.load_hub_dataset(
            str(self.hub_id), source, advice="with text files, or go online", streaming=True, split=self.split
        )
        return dataset


def _list_files(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _clean(documents: Iterable[Document], cleaner: WebCleaner | None) -> Iterator[Document]:
    """Yields the documents after the cleaning, which may leave no text of one."""
    for document in documents:
        yield document if cleaner is None else replace(document, text=cleaner.clean(document.text))


def is_held_out(key: str, *, fraction: float, seed: int) -> bool:
    """Returns whether a document belongs to the held-out `fraction`, in (0, 1). Depends only on key and seed."""
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}, expected a number between 0 and 1")
    return _draw(key, seed) < fraction


def choose_held_out(keys: Sequence[str], *, fraction: float, seed: int) -> set[str]:
    """Returns the held-out keys among all keys of a corpus: those that `is_held_out`, at least one and never all."""
    ordered = sorted(set(keys), key=lambda key: _draw(key, seed))
    if not ordered:
        raise ValueError("keys is empty, expected the keys of at least two documents")
    if len(ordered) == 1:
        raise UserError(
            f"the corpus is a single document, {ordered[0]}, expected at least two, because whole documents are held "
            "out: set task.documents=paragraph (separated by blank lines) or line, or give more documents"
        )
    count = sum(is_held_out(key, fraction=fraction, seed=seed) for key in ordered)
    return set(ordered[: min(max(count, 1), len(ordered) - 1)])


def _draw(key: str, seed: int) -> float:
    """Returns a uniform number in [0, 1], computed from key and seed."""
    # File names need not be UTF-8.
    digest = hashlib.sha256(f"{seed}/{key}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8]) / 2**64


def _number_documents(name: str, chunks: Iterable[str | None]) -> Iterator[Document]:
    """Yields the chunks that are not blank, with the key of their document and their index in it."""
    document = chunk = 0
    for text in chunks:
        if text is None:
            document, chunk = document + (chunk > 0), 0
        elif text and not text.isspace():
            yield Document(key=f"{name}#{document}", chunk=chunk, text=text)
            chunk += 1


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
