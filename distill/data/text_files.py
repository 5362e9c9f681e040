"""Texts of files, directories, URLs and the Hub that are read in parts of some thousand, and never all at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from distill.core import storage
from distill.core.errors import UserError, first_line
from distill.data.pool import HUB_SPLITS, SUFFIXES, USUAL, is_hub_id
from distill.rows.formats import show_names

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

# The builders of `datasets` by the end of a file's name, which `.gz` may follow, and their options.
_BUILDERS = {
    ".txt": ("text", {}), ".csv": ("csv", {}), ".tsv": ("csv", {"sep": "\t"}), ".jsonl": ("json", {}),
    ".parquet": ("parquet", {}),
}  # fmt: skip
_SAMPLE = 1 << 20  # Bytes whose lines are counted.
Part = list[list[str]]  # The texts of some examples by column.


@dataclass(frozen=True)
class TextFiles:
    """Texts in files of one type.

    Args:
        place: a file, a directory, a URL of a file or of several by `*`, or an id of the Hub.
        columns: of the texts of an example.
        option: names the place in messages.
    """

    place: str
    columns: tuple[str, ...]
    option: str = "data"

    @cached_property
    def files(self) -> list[str]:
        """The paths or URLs in the order in which they are read; none for a data set of the Hub.

        Raises:
            UserError: for a place without files of texts, and files of several types.
        """
        path = Path(self.place).expanduser()
        if storage.is_url(self.place) or path.is_file():
            found = [self.place if storage.is_url(self.place) else str(path)]
        elif path.is_dir():
            found = [str(file) for file in sorted(path.iterdir()) if file.is_file() and file.name.endswith(SUFFIXES)]
        elif is_hub_id(self.place):
            return []
        else:
            raise UserError(f"{self.option}={self.place} does not exist, expected a file or a directory of texts")
        types = sorted({_type_of(file) for file in found})
        if len(types) != 1 or types[0] not in _BUILDERS:
            named = f"files in {show_names(types)}" if types else "no file"
            raise UserError(
                f"{self.option}={self.place} has {named}, expected files of one type of {show_names(list(_BUILDERS))}, "
                "which may end with .gz"
            )
        if self._is_in_store and found[0].endswith(".gz") and types != [".txt"]:
            raise UserError(f"{self.option}={self.place} can be decompressed on a disk alone: store it without .gz")
        return found

    @property
    def _is_in_store(self) -> bool:
        """Whether the files are in a store such as `s3://`, from which `datasets` reads no `.txt` and no `.gz`."""
        return storage.is_url(self.place) and not self.place.startswith(("http://", "https://", "file://"))

    def describe(self) -> tuple[str, ...]:
        """Returns the name and the size in bytes of each file, which tell the texts from others."""
        if not self.files or storage.is_url(self.place):
            return (self.place,)
        return tuple(f"{Path(file).name} {Path(file).stat().st_size}" for file in self.files)

    def count(self) -> int | None:
        """Returns about how many examples there are, by the lines of the first megabyte; None for unknown.

        Those of Parquet files are counted.
        """
        import pyarrow.parquet as pq

        if not self.files or storage.is_url(self.place) or any(file.endswith(".gz") for file in self.files):
            return None
        if _type_of(self.files[0]) == ".parquet":
            return sum(int(pq.read_metadata(file).num_rows) for file in self.files)
        with open(self.files[0], "rb") as file:
            sample = file.read(_SAMPLE)
        lines = max(1, sample.count(b"\n"))
        return round(sum(Path(file).stat().st_size for file in self.files) * lines / max(1, len(sample)))

    def read(self, size: int) -> Iterator[Part]:
        """Yields the texts of `size` examples at a time, without white space at their ends.

        Raises:
            UserError: for a column that is missing or has no texts, and for a file that cannot be read.
        """
        try:
            for table in self._open().with_format("arrow").iter(batch_size=size):
                yield self._take(table)
        except UserError:
            raise
        except Exception as error:  # Of any reader and any store.
            raise UserError(f"{self.option}={self.place} cannot be read: {first_line(error)}") from error

    def _open(self) -> "datasets.IterableDataset":
        import datasets

        if not self.files:
            loaded = datasets.load_dataset(self.place, streaming=True)
            split = next((name for name in HUB_SPLITS if name in loaded), next(iter(loaded)))
            return loaded[split]
        if self._is_in_store and _type_of(self.files[0]) == ".txt":
            return datasets.IterableDataset.from_generator(_read_lines, gen_kwargs={"urls": self.files})
        builder, options = _BUILDERS[_type_of(self.files[0])]
        return datasets.load_dataset(builder, data_files=self.files, split="train", streaming=True, **options)

    def _take(self, table: "pa.Table") -> Part:
        names = (USUAL,) if len(self.columns) == 1 and self.columns[0] not in table.column_names else self.columns
        if missing := [name for name in names if name not in table.column_names]:
            raise UserError(
                f"{self.option}={self.place} has the columns {show_names(table.column_names)}, expected "
                f"{show_names(self.columns)}: name those of the texts with task.text=[...] ({show_names(missing)})"
            )
        return [[_clean(value, name) for value in table.column(name).to_pylist()] for name in names]


def _read_lines(urls: list[str]) -> Iterator[dict[str, str]]:
    """Yields the lines of text files at URLs, decompressed."""
    import fsspec

    for file in fsspec.open_files(urls, "rt", encoding="utf-8", compression="infer"):
        with file as lines:
            for line in lines:
                yield {USUAL: line}


def _clean(value: object, name: str) -> str:
    if isinstance(value, list | dict):
        raise UserError(f"the column {name} has {type(value).__name__}s, expected texts")
    return "" if value is None else str(value).strip()


def _type_of(file: str) -> str:
    """Returns the end of a file's name, without that of its compression."""
    name = file.partition("?")[0].removesuffix(".gz")
    return f".{name.rpartition('.')[2].lower()}"
