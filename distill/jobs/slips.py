"""The usual slips of a command line, each answered with what to type, before Hydra reads it."""

import re
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from pathlib import Path

from distill.errors import UserError, suggest
from distill.jobs.registry import JOBS

ADDED = ("teacher", "student")  # Groups without a default, which are chosen with a plus.
_NOTHING = ("none", "null", "false", "off", "no")
_NO_NAME = re.compile(r"true|null|[+-]?[\d_.]+(e[+-]?\d+)?", re.IGNORECASE)  # Hydra reads no text here.
# The options of a model or of data of the user's own, by the group whose choice they stand in for.
_OWN = {
    "task": "task=classification task.data_dir=",
    "teacher": "+teacher=pretrained teacher.path=",
    "student": "+student=pretrained student.path=",
}
# What leaves out a group that has no choice of the name none.
_WITHOUT = {
    "export": "export.enabled=false",
    "benchmark": "benchmark.enabled=false",
    "objective": "objective=supervised, which learns from the labels alone",
    "logger": "logger=[]",
}
_READ_BY = {"check": "data", "report": "runs", "glue_test": "runs", "publish": "run", "inspect": "model"}
_CLOSING = {"[": "]", "{": "}"}

ListNames = Callable[[str], Sequence[str]]


def check_slips(arguments: Sequence[str], valued: Collection[str], list_names: ListNames) -> None:
    """Raises UserError for an argument that is no option, and for a choice of a group that has no effect.

    Args:
        arguments: of the command, without its name.
        valued: options of Hydra that are followed by a value.
        list_names: returns the names of a group's YAML files, none for what is no group.
    """
    given = [
        argument
        for before, argument in pairwise(["", *arguments])
        if before not in valued and not argument.startswith(("-", "~")) and not _is_unknown(before)
    ]
    for argument in given:
        name, equals, value = argument.partition("=")
        missing = _find_unclosed(value)
        if equals and (not name or name != name.strip() or value != value.lstrip()):
            wrong = "a space at" if name.strip() else "no name before"
            advice = f"type {name.strip()}={value.strip()}" if name.strip() else "expected key=value"
            raise UserError(f"{argument!r} has {wrong} its equals sign: {advice}")
        if not equals:
            raise UserError(_explain_word(argument, given, list_names))
        if missing:
            raise UserError(f"{argument} lacks {missing} at its end: type '{argument}{missing}'")
        if refusal := _explain_choice(name, value, list_names):
            raise UserError(refusal)


def _is_unknown(option: str) -> bool:
    """Returns whether an option such as `--data`, which is reported, may have the value that follows."""
    return option.startswith("--") and option != "--multirun"


def _explain_word(word: str, given: Sequence[str], list_names: ListNames) -> str:
    """Returns the message for an argument without a value."""
    path, before = Path(word).expanduser(), given[given.index(word) - 1] if given.index(word) else ""
    job = next((name.removeprefix("job=") for name in given if name.startswith("job=")), "distill")
    group = next((group for group in ADDED if word in list_names(group)), None)
    offers = {
        f"type {before}{word} without a space": before.endswith("="),
        f"type job={word}": word in JOBS,
        f"type +{word.lstrip('+')}=NAME": word.lstrip("+") in ADDED,
        f"type +{group}={word}": group is not None,
        f"type job={job} {_READ_BY.get(job)}={word}": job in _READ_BY,
        f"type resume={word} to go on with this run, or job=report runs={word}": (path / "run.json").is_file(),
        f"type python -m distill.edge {word}, because it is a bundle": (path / "bundle.json").is_file(),
        f"type job=check data={word} to look at its rows, or task=classification task.data_dir={word} to train on "
        "them": path.exists() or bool(path.suffix),
        "set options with key=value, and see --help": True,
    }
    return f"{word} is no option: {next(offer for offer, fits in offers.items() if fits)}"


def _find_unclosed(value: str) -> str:
    """Returns the signs that close the brackets of a list or a mapping, if it lacks them and has no quotes."""
    opened: list[str] = []
    if not value.startswith(("[", "{")) or re.search(r"[\"'\\]", value):
        return ""
    for sign in value:
        if sign in _CLOSING:
            opened.append(_CLOSING[sign])
        elif sign in _CLOSING.values() and (not opened or opened.pop() != sign):
            return ""
    return "".join(reversed(opened))


def _explain_choice(name: str, value: str, list_names: ListNames) -> str | None:
    """Returns the message for a choice of a group that has no effect or is no name, and None for others."""
    group = name.lstrip("+")
    names = list_names(group)
    if not names or value.startswith("{") or not value:
        return None
    if group in _OWN and (value.startswith(("/", "./", "../", "~")) or Path(value).is_file()):
        return f"{name}={value} is no {group} that has a name: type {_OWN[group]}{value}"
    if name in ADDED:
        if value in names:
            return f"{name}={value} lacks its plus, because there is no default {name}: type +{name}={value}"
        return f"there is no {name} {value}{suggest(value, names)}: it is chosen with a plus, as in +{name}={names[0]}"
    if value in names or not (value.lower() in _NOTHING or _NO_NAME.fullmatch(value)):
        return None
    if value.lower() in _NOTHING and group not in ADDED and (group in _WITHOUT or "none" in names):
        return f"there is no {group} {value}: type {_WITHOUT.get(group, f'{group}=none')}"
    return f"there is no {group} {value}, expected one of {', '.join(names)}"
