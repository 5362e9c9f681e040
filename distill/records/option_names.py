"""Names of the options in which the rows of a report differ: which ones, and how each is called in a table."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from distill.options import show_value
from distill.records.paths import hide_values

Options = Mapping[str, object]
_MEASURED = "benchmark."


def flatten_options(node: object, name: str = "") -> dict[str, object]:
    """Returns the values of mappings in each other by their full names: `{"task.name": "sst2"}`."""
    if not isinstance(node, dict) or not node:
        return {name: node}
    prefix = f"{name}." if name else ""
    inner = (flatten_options(below, f"{prefix}{key}") for key, below in node.items())
    return {key: value for each in inner for key, value in each.items()}


def shorten_names(names: Iterable[str]) -> dict[str, str]:
    """Returns each full name with its shortest end that no other of the names has too.

    `objective.terms.soft.temperature` is `temperature`, and beside `objective.terms.cosine.temperature` it is
    `soft.temperature`.
    """
    full = list(dict.fromkeys(names))
    ends = {name: _list_ends(name) for name in full}
    return {
        name: next(
            (end for end in ends[name] if not any(end in ends[other] for other in full if other != name)), name
        )
        for name in full
    }  # fmt: skip


def _list_ends(name: str) -> list[str]:
    """Returns the ends of a name, the shortest first: `c`, `b.c` and `a.b.c`."""
    words = name.split(".")
    return [".".join(words[start:]) for start in reversed(range(len(words)))]


def describe_options(options: Options, names: Mapping[str, str] | None = None) -> str:
    """Returns options in one line: `temperature=2 weight=5`.

    Args:
        names: in place of the full ones.
    """
    names = names or {}
    return " ".join(f"{names.get(name, name)}={show_value(value)}" for name, value in options.items())


def describe_names(names: Mapping[str, str]) -> str | None:
    """Returns the full names of those that are shortened, in a sentence; None if none is."""
    words = [f"{short} is {full}" for full, short in names.items() if short != full]
    return f"Short names: {', '.join(words)}." if words else None


def select_options(options: Sequence[Options], typed: Collection[str]) -> list[Options]:
    """Returns the options that tell rows apart: names of groups, what was typed, and of the rest only what is needed.

    Those of the student come first. Those of the benchmark change no result, and are left out where others differ.

    Args:
        typed: the names on the command lines.
    """
    names = list(dict.fromkeys(name for row in options for name in row))
    values = {name: [repr(row.get(name)) for row in options] for name in names}
    varying = [name for name in names if len(set(values[name])) > 1]
    varying.sort(key=lambda name: name.startswith(_MEASURED))
    chosen = [name for name in varying if name.endswith(".name") or (name in typed and not name.startswith(_MEASURED))]
    keys = list(zip(*(values[name] for name in chosen), strict=True)) or [()] * len(options)
    for name in varying:
        finer = [(*key, value) for key, value in zip(keys, values[name], strict=True)]
        if name not in chosen and len(set(finer)) > len(set(keys)):
            chosen.append(name)
            keys = finer
    chosen.sort(key=lambda name: (not name.startswith("student."), names.index(name)))
    shown = {name: iter(hide_values([row[name] for row in options if name in row])) for name in chosen}
    return [{name.removesuffix(".name"): next(shown[name]) for name in chosen if name in row} for row in options]
