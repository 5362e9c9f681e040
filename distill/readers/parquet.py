"""Parquet files, which need pyarrow."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import UserError
from distill.installation import install_command
from distill.readers.lines import reading_errors, unreadable

if TYPE_CHECKING:
    import pyarrow.parquet

READ_BYTES = 2**18  # The default buffers would load a column's whole row group into memory.


@contextmanager
def open_parquet(path: Path) -> "Iterator[pyarrow.parquet.ParquetFile]":
    """Opens a Parquet file.

    Raises:
        UserError: if it cannot be read, at once or in the body, or pyarrow is missing.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path} needs pyarrow: {install_command('train')}, or give the rows as .jsonl") from error
    try:
        with (
            reading_errors(path),
            pyarrow.parquet.ParquetFile(
                path, pre_buffer=False, buffer_size=READ_BYTES, page_checksum_verification=True
            ) as file,
        ):
            yield file
    except (pyarrow.ArrowException, MemoryError) as error:
        raise unreadable(path, error) from error
