"""Looks through an upload in a process with limits: `python -m distill.service.inspection FILE FORMAT LIMIT`.

It unpacks a zip, reads the columns, the first rows, the labels, the lengths and the problems, and prints them as JSON.
A file of a stranger that takes all memory, or crashes a library, ends this process and not the service.
"""

import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distill.errors import UserError
from distill.readers.columns import SUFFIXES
from distill.readers.lines import reading_errors
from distill.readers.problems import Problem
from distill.service.preview import Preview, create_preview
from distill.service.row_previews import preview_rows
from distill.service.text_previews import preview_conll, preview_squad, preview_text
from distill.service.zips import ZipLimits, unpack, unpack_gzip
from distill.storage.files import is_full_disk

MEMORY = 6 * 2**30  # Bytes of address space.
SECONDS = 300  # Of the processor.
# Names of files of each split, which the tasks read.
STEMS = {
    "train": ("train",),
    "dev": ("dev", "validation", "valid", "testa"),
    "test": ("test", "testb"),
}
_MOST_FILES = 200  # Of a directory that are listed.
_OTHERS = {".conll": "conll", ".conllu": "conll", ".bio": "conll", ".iob": "conll", ".json": "squad", ".txt": "text"}
_MAGIC = {b"PK\x03\x04": "zip", b"PAR1": "parquet", b"%PDF": "PDF"}


def main(arguments: Sequence[str]) -> int:
    """Prints what `answer` returns, with limits of memory and time."""
    path, format, limit = Path(arguments[0]), arguments[1], int(arguments[2])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    real, sys.stdout = sys.stdout, sys.stderr  # Notices of the readers are no part of the answer.
    print(json.dumps(answer(path, format, limit), allow_nan=False), file=real)
    return 0


def answer(path: Path, format: str, limit: int) -> dict[str, Any]:
    """Returns the path, the rows and the preview of an upload, `{"error": line}`, or `{"full": true}` for the disk."""
    try:
        about = inspect(path, format, limit)
    except UserError as error:
        about = {"error": str(error).replace(f"{path.parent}/", "")}
    except OSError as error:
        if not is_full_disk(error):
            raise
        about = {"full": True}
    except (MemoryError, RecursionError):
        about = {"error": f"{path.name} needs too much memory to be looked through"}
    encoded: dict[str, Any] = _encode(about)
    return encoded


def _encode(value: Any) -> Any:
    """Returns a value of JSON whose texts are Unicode: halves of characters, as JSON may have, are escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encode(str(key)): _encode(item) for key, item in value.items()}
    return list(map(_encode, value)) if isinstance(value, list | tuple) else value


def inspect(path: Path, format: str, limit: int) -> dict[str, Any]:
    """Returns the path, the rows and the preview of an upload; a zip is replaced by its files, and gzip is unpacked.

    Raises:
        UserError: for a file that cannot be read as its format, and for a zip that exceeds a limit.
    """
    if format != "zip":
        if format != "parquet":
            unpack_gzip(path, limit)
        preview = preview_file(path, format)
        return _describe(path, preview, path.parent)
    directory = path.with_suffix("")
    directory.mkdir()
    left_out = unpack(path, directory, ZipLimits(bytes=limit))
    path.unlink()
    inner = directory
    while len(entries := list(inner.iterdir())) == 1 and entries[0].is_dir():  # A zip of a directory has its name.
        inner = entries[0]
    return _describe(inner, preview_directory(inner, left_out), path.parent)


def _describe(place: Path, preview: dict[str, Any], content: Path) -> dict[str, Any]:
    rows = sum(preview["splits"].values()) if preview["splits"] else None
    return {"path": place.relative_to(content).as_posix(), "rows": rows, "preview": preview}


def preview_file(path: Path, format: str) -> Preview:
    """Returns the preview of one file.

    Raises:
        UserError: for a file that cannot be read as its format.
    """
    with open(path, "rb") as file:
        start = file.read(4)
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
    if kind not in (None, format) or (kind is None and format == "parquet"):
        looks = f"looks like {kind} and not" if kind else "does not look"
        raise UserError(f"{path} {looks} like {format}: name its format with format=NAME")
    read = {"conll": preview_conll, "squad": preview_squad, "text": preview_text}.get(format)
    with reading_errors(path):
        return preview_rows({"data": path}) if read is None else read(path)


def preview_directory(directory: Path, left_out: Sequence[str] = ()) -> Preview:
    """Returns the preview of the files of a directory: of train, dev and test, or of its first file.

    Args:
        left_out: files of the zip that were not unpacked.
    """
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    splits = find_splits(files, directory)
    first = splits.get("train", files[0])
    try:
        if first.name.lower().endswith(SUFFIXES):
            preview = preview_rows(splits or {"data": first})
        else:
            preview = preview_file(first, _OTHERS[first.suffix.lower()])
    except UserError as error:
        reason = str(error).replace(f"{directory}/", "")
        preview = create_preview({}, problems=[Problem(reason, "it is kept as it is", is_error=True)])
    if left_out:
        names = ", ".join(left_out[:5]) + (f" and {len(left_out) - 5} more" if len(left_out) > 5 else "")
        problem = Problem(f"files that are no data are left out: {names}", "this needs no action")
        preview["problems"].append(str(problem))
    listed = [{"name": path.relative_to(directory).as_posix(), "bytes": path.stat().st_size} for path in files]
    return {**preview, "files": listed[:_MOST_FILES], "number_of_files": len(listed)}


def find_splits(files: Sequence[Path], directory: Path) -> dict[str, Path]:
    """Returns the files of train, dev and test at the top of a directory, all of one type; none without train."""
    found: dict[str, Path] = {}
    for split, stems in STEMS.items():
        named = [path for stem in stems for path in files if path.parent == directory and path.stem == stem]
        alike = [path for path in named if not found or path.suffix == found["train"].suffix]
        if alike and (found or split == "train"):
            found[split] = alike[0]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
