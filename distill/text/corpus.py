"""A corpus of raw text, read as a stream of documents with stable keys."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from distill.console import print_notice
from distill.errors import UnreachableError, UserError
from distill.readers.cleaning import WebCleaner, check_left
from distill.readers.lines import format_reason, reading_errors
from distill.readers.split_names import assign_splits
from distill.storage import files, hub
from distill.text import readers

if TYPE_CHECKING:
    import datasets

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
        text: at most `readers.CHUNK_SIZE` characters.
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


class Corpus:
    """The documents of a file, of a folder of files, of a Hub data set, or of the built-in file.

    The files of a folder and its subfolders are read in the order of their paths. Hidden files and files without one of
    `readers.SUFFIXES` are ignored. Blank documents are omitted. Files whose names tell a split are of that split, as
    `assign_splits` says: those of test, and others beside a train, are not read.

    Args:
        data_dir: a file or folder. It takes precedence over the others.
        hub_id: a data set of the Hub, `owner/name` or `owner/name:configuration`. It takes precedence over the built-in
            file.
        builtin_file: a JSONL file with the column `sentence`.
        column: column of JSONL, Parquet and Hub rows. Each row is one document.
        split_by: unit of the documents in text files: "file", "paragraph" (separated by blank lines) or "line".
        split: split of the Hub data set.
        clean: `web` drops what is no prose from the documents, as `WebCleaner`; None keeps them as they are.
    """

    def __init__(
        self,
        *,
        data_dir: str | None = None,
        hub_id: str | None = None,
        builtin_file: Path | None = None,
        column: str = "text",
        split_by: str = "file",
        split: str = "train",
        clean: str | None = None,
    ) -> None:
        if split_by not in DOCUMENT_UNITS:
            raise ValueError(f"split_by is {split_by!r}, expected one of {', '.join(DOCUMENT_UNITS)}")
        if data_dir is None and hub_id is None and builtin_file is None:
            raise UserError("the task has no built-in text: set task.data_dir=DIR with .txt, .jsonl or .parquet files")
        self._data_dir = data_dir
        self._hub_id = hub_id if data_dir is None else None
        self._builtin_file = builtin_file if data_dir is None and hub_id is None else None
        self._column = "sentence" if self._builtin_file else column
        self._split_by = split_by
        self._split = split
        self._clean = clean

    def describe(self) -> str:
        """Returns a name for messages: `task.data_dir=...`, `data set owner/name` or `the built-in sentences`."""
        if self._data_dir is not None:
            return f"task.data_dir={self._data_dir}"
        return f"data set {self._hub_id}" if self._hub_id else "the built-in sentences"

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
            elif any(not block.isspace() for block in readers.read_blocks(path)):
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
        forgets, cleaner = cleaner is None, cleaner or (WebCleaner() if self._clean else None)
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
        return None if self._hub_id else sum(readers.read_status(path).st_size for _, path in self._files)

    def compute_fingerprint(self) -> str:
        """Returns a digest of the content and the reading options, which does not depend on the folder's location.

        For files of more than 2 GiB in total, it includes the modification times instead of the content. For a Hub
        data set, it includes only the name and the split.
        """
        hub_source = [self._hub_id, self._split] if self._hub_id else None
        options = [FORMAT, self._column, self._split_by, hub_source, *([self._clean] if self._clean else [])]
        digest = hashlib.sha256(json.dumps(options).encode())
        hash_content = (self.count_bytes() or 0) <= MAX_HASHED_BYTES
        for name, path in self._files:
            status = readers.read_status(path)
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
        told = assign_splits(names, readers.SUFFIXES)
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
        if self._builtin_file is not None:
            return ((self._builtin_file.name, self._builtin_file),)
        if self._data_dir is None:
            return ()
        root = Path(self._data_dir).expanduser()
        suffixes = ", ".join(readers.SUFFIXES)
        if root.is_file():
            if not root.name.lower().endswith(readers.SUFFIXES):
                raise UserError(f"{self.describe()} has an unsupported suffix, expected one of {suffixes}")
            return ((root.name, root),)
        if not root.is_dir():
            raise UserError(f"{self.describe()} does not exist, expected a text file or a folder of text files")
        named_paths = sorted((path.relative_to(root).as_posix(), path) for path in readers.find_files(root))
        if not named_paths:
            raise UserError(f"{self.describe()} contains no text files, expected files with one of {suffixes}")
        return tuple(named_paths)

    @cached_property
    def _sources(self) -> tuple[tuple[str, Path | int], ...]:
        """Names and files, or the split and the shards of a Hub data set, in the order of reading."""
        if self._hub_id:
            return tuple((self._split, shard) for shard in range(self._hub_dataset.num_shards))
        return self._files

    def _is_single_document(self, source: Path | int) -> TypeGuard[Path]:
        return self._split_by == "file" and isinstance(source, Path) and not readers.has_rows(source)

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
            chunks = readers.read_chunks(location, column=self._column, split_by=self._split_by)
            documents = _number_documents(name, chunks)
        yield from (document for document in documents if select is None or select(document.key))

    def _read_shard(self, shard: int) -> Iterator[Document]:
        for text in self._read_shard_texts(shard):
            # The index of a row differs between the Hub and the cache, so the key is a digest.
            name = f"{self._split}/{hashlib.sha256(text.encode()).hexdigest()[:20]}"
            yield from _number_documents(name, readers.split_rows([text]))

    def _read_shard_texts(self, shard: int) -> Iterator[str]:
        from huggingface_hub import errors

        num_shards, number = self._hub_dataset.num_shards, 0
        shard_name = f" of shard {shard + 1} of {num_shards}" if num_shards > 1 else ""
        rows = self._hub_dataset.shard(num_shards, shard)
        if rows.column_names is not None:  # Some data sets do not declare their columns.
            readers.check_column(self._column, rows.column_names, self.describe())
            rows = rows.select_columns([self._column])
        try:
            for number, row in enumerate(rows, 1):
                yield readers.get_text(row, self._column, f"{self.describe()}, row {number}{shard_name}")
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
        source = f"{self.describe()}, split {self._split},"
        dataset: datasets.IterableDataset = hub.load_dataset(
            str(self._hub_id), source, advice="with text files, or go online", streaming=True, split=self._split
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
