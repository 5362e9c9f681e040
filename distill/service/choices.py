"""The choices that a form offers, read from `conf/` and its comments, and the overrides that a form stands for."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from distill.edge.strings import shorten
from distill.errors import UserError
from distill.installation import config_directory
from distill.jobs.conf import list_bases, read_yaml
from distill.service.allowed import TABLE, list_choices
from distill.service.data_sets import FORMATS
from distill.service.grammar import write_override
from distill.service.names import is_name

FORM = ("teacher", "student", "task", "data", "columns", "options")
# Options that a form shows beside those that a user adds, with the files that describe them.
OPTIONS: Mapping[str, str] = {
    "trainer.max_epochs": "trainer/auto.yaml", "trainer.max_steps": "trainer/auto.yaml",
    "trainer.learning_rate": "trainer/auto.yaml", "seed": "config.yaml", "seeds": "config.yaml",
    "baseline": "config.yaml", "task.max_length": "task/classification.yaml", "export.max_drop": "export/default.yaml",
}  # fmt: skip
SEVERAL_TASKS = "multi"  # Its tasks have their own columns, for which a form has no place.
USUAL_TASK = "classification"
BUILT_IN = "embedded"
_KEY = re.compile(r"(\w+):\s*([^#]*?)\s+#\s*(.*)")
_VALUES = re.compile(r"^\[.*?\] ")  # That an option takes, at the start of its comment.
_COLUMN = re.compile(r"(the )?columns?\b")


def offer(teachers: Path | None, upload: int) -> dict[str, Any]:
    """Returns what a form offers: teachers, students, tasks with their columns, objectives, options and formats.

    Args:
        teachers: the administrator's directory of models.
        upload: bytes of the largest upload.
    """
    own = [{"name": f"teacher:{name}", "title": "a model of this service"} for name in list_teachers(teachers)]
    return {**_offer_conf(), "teachers": [*_offer_conf()["teachers"], *own], "formats": list(FORMATS), "upload": upload}


def list_teachers(directory: Path | None) -> list[str]:
    """Returns the names of the models of the administrator's directory."""
    if directory is None or not directory.is_dir():
        return []
    return sorted(path.name for path in directory.iterdir() if path.is_dir() and is_name(path.name))


@cache
def _offer_conf() -> dict[str, Any]:
    named = [name for name in _names("task") if name != SEVERAL_TASKS]
    tasks = sorted(named, key=lambda name: name != USUAL_TASK)  # A form begins with the first one.
    teachers = [name for name in _names("teacher") if name == BUILT_IN or _read("teacher", name).get("id")]
    students = [name for name in _names("student") if name != "pretrained"]
    return {
        "teachers": [{"name": name, "title": _title("teacher", name)} for name in teachers],
        "students": [{"name": name, "title": _title("student", name)} for name in students],
        "objectives": [{"name": name, "title": _title("objective", name)} for name in _names("objective")],
        "tasks": [{"name": name, "title": _title("task", name), "columns": _list_columns(name)} for name in tasks],
        "options": [_describe_option(name, file) for name, file in OPTIONS.items()],
    }


def _names(group: str) -> list[str]:
    return [name for name in list_choices(group) if name not in TABLE[group].excluded]


def _lines(file: str | Path) -> list[str]:
    return (config_directory() / file).read_text(encoding="utf-8").splitlines()


def _read(group: str, name: str) -> Mapping[str, Any]:
    return read_yaml(config_directory() / group / f"{name}.yaml")


def _title(group: str, name: str) -> str:
    """Returns the description of a file: its comment after the command on top."""
    words = []
    for line in _lines(f"{group}/{name}.yaml"):
        if not line.startswith("#"):
            break
        words.append(line.lstrip("# "))
    return " ".join(word for word in words if not word.startswith(("python -m", "@package")))


def _list_columns(task: str) -> list[dict[str, Any]]:
    """Returns the options of a kind of task that name columns of the data; a data set has columns of its own."""
    path = config_directory() / "task" / f"{task}.yaml"
    found: list[dict[str, Any]] = []
    if "_target_" not in read_yaml(path):
        return found
    files = [*list_bases(path), path]
    values = {name: value for file in files for name, value in read_yaml(file).items()}
    comments = {parts[0]: parts[2] for file in files for parts in filter(None, map(_split, _lines(file)))}
    for name, comment in comments.items():
        value = values.get(name)
        if _COLUMN.match(comment) and "CoNLL" not in comment and not isinstance(value, int):
            default, several = (value[0], True) if isinstance(value, list) else (value, "columns" in comment)
            is_optional = value is None or "null:" in comment
            found.append({"name": name, "title": comment, "default": default, "many": several, "optional": is_optional})
    return found


def _split(line: str) -> tuple[str, str, str] | None:
    match = _KEY.fullmatch(line)
    return None if match is None else (match[1], match[2], match[3])


def _describe_option(name: str, file: str) -> dict[str, Any]:
    last = name.rpartition(".")[2]
    _, value, comment = next(parts for parts in filter(None, map(_split, _lines(file))) if parts[0] == last)
    title = _VALUES.sub("", comment).partition(";")[0]
    return {"name": name, "title": title, "default": None if value == "null" else value}


def names_sweep(overrides: Sequence[str]) -> bool:
    """Returns whether an override chooses an experiment that is a sweep, as its file tells."""
    chosen = [override.partition("=") for override in overrides]
    names = [name for key, _, name in chosen if key.lstrip("+") == "experiment" and name in list_choices("experiment")]
    return any((_read("experiment", name).get("hydra") or {}).get("mode") == "MULTIRUN" for name in names)


def read_form(form: object) -> list[str]:
    """Returns the overrides that a form stands for.

    >>> read_form({"teacher": "minilm", "student": "bilstm", "task": "mrpc", "data": "pairs"})
    ['+teacher=minilm', '+student=bilstm', 'task=mrpc', "task.data_dir='data:pairs'"]

    Raises:
        UserError: for a form of another shape. The values themselves are checked with the overrides.
    """
    if not isinstance(form, Mapping) or not set(form) <= set(FORM):
        got = ", ".join(map(str, form)) if isinstance(form, Mapping) else shorten(form)
        raise UserError(f"got the form {shorten(got)}, expected an object with some of {', '.join(FORM)}")
    columns, options = form.get("columns") or {}, form.get("options") or {}
    if not isinstance(columns, Mapping) or not isinstance(options, Mapping):
        raise UserError("got columns or options of the form that are no object, expected one with names and values")
    overrides = []
    for group, sign in (("teacher", "+"), ("student", "+"), ("task", "")):
        name = form.get(group)
        if group == "teacher" and isinstance(name, str) and name.startswith("teacher:"):
            overrides += ["+teacher=pretrained", write_override("teacher.path", name)]
        elif is_name(name):
            overrides.append(f"{sign}{group}={name}")
        elif name or group != "student":  # Some jobs train none.
            raise UserError(f"got {group}={shorten(name)} in the form, expected the name of one: see /options")
    if form.get("data"):
        overrides.append(write_override("task.data_dir", f"data:{form['data']}"))
    overrides += [write_override(f"task.{name}", value) for name, value in columns.items()]
    return overrides + [
        f"{name}={value}" if isinstance(value, str) else write_override(str(name), value)
        for name, value in options.items()
    ]  # fmt: skip
