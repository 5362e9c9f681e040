"""Paths in what others read: a page, a card or a table has the last part of a path, and run.json has the whole one."""

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from distill.records.licences import is_on_hub
from distill.storage.files import JsonObject

ELLIPSIS = "…/"
# Fields that hold no path of a machine: texts and labels of the data.
_OF_DATA = ("example", "labels")
# An absolute path begins a word; the slash in `owner/name`, `https://` and `</b>` does not. In an argument of a command
# a path has blanks and colons too.
_BEGIN = r"(?<![\w:/.~…<\-])(?:file://(?=/))?~?/(?=[^\s/])"
_IN_TEXT = re.compile(_BEGIN + r"[^\s'\"`,;:()\[\]{}<>|*]+")
_IN_ARGUMENT = re.compile(_BEGIN + r"[^'\"`,\[\]{}<>|*]+")


def shorten_paths(paths: Iterable[str]) -> dict[str, str]:
    """Returns each path as an ellipsis and its last part, or as many of its last parts as tell it from the others.

    >>> shorten_paths(["/home/me/bert", "/data/a/student", "/data/b/student"])
    {'/home/me/bert': '…/bert', '/data/a/student': '…/a/student', '/data/b/student': '…/b/student'}
    """
    parts = {path: [part for part in path.split("/") if part] for path in paths}

    def last(path: str) -> str:
        own = parts[path]
        others = [other for other in parts.values() if other != own]
        number = next((n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others)), len(own))
        return ELLIPSIS + "/".join(own[-number:])

    return {path: last(path) for path in parts}


def hide_in_text(text: str, known: Mapping[str, str] | None = None) -> str:
    """Returns a text with shortened paths.

    Args:
        known: the short forms of paths, which may have blanks.
    """
    for path in sorted(known or {}, key=len, reverse=True):
        text = re.sub(rf"(?<![\w/]){re.escape(path)}(?![\w-])", (known or {})[path].replace("\\", r"\\"), text)
    return _IN_TEXT.sub(lambda match: shorten_paths([match[0]])[match[0]], text)


def hide_values(values: Collection[object]) -> list[object]:
    """Returns the values of one option with shortened paths that still differ from each other."""
    known = shorten_paths(path for value in values for path in _find_paths(value))
    return [_hide(value, known) for value in values]


def hide_paths(record: JsonObject) -> dict[str, Any]:
    """Returns a run.json as others read it: with shortened paths, and the teacher named by the last part of its own."""
    teacher = record.get("teacher") or {}
    models = [teacher, *(teacher.get("members") or [])]
    names = [str(model[field]) for model in models for field in ("requested", "resolved") if model.get(field)]
    paths = [*_find_paths(record.get("command")), *filter(_is_model_path, names)]
    known = shorten_paths(paths)
    hidden: dict[str, Any] = _hide(record, known)
    if teacher:
        hidden["teacher"] = _name_models(hidden["teacher"])
    return hidden


def relative_path(path: Path, directory: Path) -> str:
    """Returns a path relative to the directory of a report; a shortened one if they share no directory."""
    path, directory = path.absolute(), directory.absolute()
    if os.path.commonpath([path, directory]) == os.path.sep:
        return shorten_paths([str(path)])[str(path)]
    return os.path.relpath(path, directory)


def show_command(command: Iterable[object]) -> str:
    """Returns the words of a command as a shell takes them, without quotes because of a shortened path alone."""
    return " ".join(
        word if shlex.quote(word.replace(ELLIPSIS, "")) == word.replace(ELLIPSIS, "") else shlex.quote(word)
        for word in map(str, command)
    )


def _is_model_path(name: str) -> bool:
    """Returns whether a teacher's name in a record is one path, absolute or relative to where the run was started."""
    return "/" in name and not re.search(r", | \(", name) and not is_on_hub(name)


def _name_models(teacher: JsonObject) -> dict[str, Any]:
    """Returns the teacher of a record, with names that are no paths."""
    named = {name: teacher[name] for name in ("requested", "resolved") if isinstance(teacher.get(name), str)}
    members = {"members": [_name_models(member) for member in teacher["members"]]} if teacher.get("members") else {}
    return {**teacher, **{name: text.replace(ELLIPSIS, "") for name, text in named.items()}, **members}


def _find_paths(value: object) -> list[str]:
    """Returns the absolute paths in an argument, or in each of several."""
    if isinstance(value, list | tuple):
        return [path for inner in value for path in _find_paths(inner)]
    return [match.strip() for match in _IN_ARGUMENT.findall(value)] if isinstance(value, str) else []


def _hide(value: Any, known: Mapping[str, str]) -> Any:
    """Returns a value of JSON with shortened paths in its texts."""
    if isinstance(value, dict):
        return {name: inner if name in _OF_DATA else _hide(inner, known) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(inner, known) for inner in value]
    return hide_in_text(value, known) if isinstance(value, str) else value
