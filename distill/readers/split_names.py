"""The splits that the names of files tell: `train.txt`, `wiki.valid.tokens`, `test-00000-of-00002.parquet`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath, PurePosixPath

# The words of a name, those that data sets of the Hub have.
WORDS: Mapping[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "val", "valid", "validation"), "dev"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WORD = re.compile(r"[^\W\d_]+")
_SHARD = re.compile(r"(?P<stem>.+?)[-_.](?P<number>\d+)-of-(?P<count>\d+)")


def assign_splits(names: Sequence[str], suffixes: Sequence[str]) -> dict[str, str]:
    """Returns the split of each file of a folder whose name tells one; nothing if the names tell no splits.

    They do if there is a name of train and another one that differs in the word of the split alone, or else a `dev` or
    a `test` at the top of the folder beside files without a split, which are then train.

    Args:
        names: paths within the folder, with `/`.
        suffixes: of the files, without which their names are compared.
    """
    found = {name: read for name in names if (read := _read_split(name, suffixes)) is not None}
    of_rest: dict[str, set[str]] = {}
    for split, rest in found.values():
        of_rest.setdefault(rest, set()).add(split)
    if any("train" in splits and len(splits) > 1 for splits in of_rest.values()):
        return {name: split for name, (split, _) in found.items()}
    plain = {name: split for name, (split, rest) in found.items() if not rest and _is_at_top(name, suffixes)}
    is_one = len(plain) == len(names) and len(set(plain.values())) == 1
    if not plain or "train" in of_rest.get("", ()) or is_one:
        return {}
    return {name: plain.get(name, "train") for name in names}


def _read_split(name: str, suffixes: Sequence[str]) -> tuple[str, str] | None:
    """Returns the split of a file and the other words of its name, none if it or a folder is called as a split."""
    path = PurePosixPath(name)
    for folder in path.parts[:-1]:
        if folder.lower() in WORDS:
            return WORDS[folder.lower()], ""
    words = _WORD.findall(strip_suffix(path.name, suffixes).lower())
    others = [word for word in words if word not in WORDS and word not in ("of", "part", "shard")]
    splits = {WORDS[word] for word in words if word in WORDS}
    return (splits.pop(), " ".join([*path.parts[:-1], *others] if others else [])) if len(splits) == 1 else None


def _is_at_top(name: str, suffixes: Sequence[str]) -> bool:
    first, *others = PurePosixPath(name).parts
    return not others or first.lower() in WORDS


def strip_suffix(name: str, suffixes: Sequence[str]) -> str:
    """Returns the name of a file without the longest suffix that it has."""
    fitting = [suffix for suffix in suffixes if name.lower().endswith(suffix)]
    return name.removesuffix(name[len(name) - len(max(fitting, key=len)) :]) if fitting else name


def read_shard(path: PurePath, suffixes: Sequence[str]) -> tuple[str, int, int] | None:
    """Returns the stem of a file `train-00000-of-00002.parquet`, its number and the number of all files.

    >>> read_shard(PurePath("train-00000-of-00002.parquet"), [".parquet"])
    ('train', 0, 2)
    """
    match = _SHARD.fullmatch(strip_suffix(path.name, suffixes))
    return None if match is None else (match["stem"], int(match["number"]), int(match["count"]))
