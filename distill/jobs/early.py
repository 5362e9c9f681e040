"""Checks of a command that need no model: they end a wrong one before torch is imported, which takes seconds."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from distill.data.labelled_text import LabelledText
from distill.data.sources import SINGLE, STEMS, TableSource, find_files, missing_data, missing_file
from distill.errors import OptionError, UserError
from distill.jobs.annotations import UnknownAnnotationError, find_annotation
from distill.options import STRICT, describe, show_value
from distill.readers.columns import SUFFIXES, Table
from distill.readers.parquet import open_parquet
from distill.readers.rows import is_delimited, read_fields, read_rows
from distill.storage.mirror import is_url

_OF_ROWS = ("distill.tasks.Classification", "distill.tasks.Regression")  # Their rows are a `LabelledText`.
_LOOKED_AT = 1000  # Rows of JSONL, after which it may have further columns.


def check_early(config: DictConfig, options: Iterable[str]) -> None:
    """Raises UserError for a value of the wrong type, missing data, a column that it lacks, and missing weights.

    What is not found here is found by the code that reads it.

    Args:
        options: of the command line.
    """
    for option in options:
        _check_type(config, option.lstrip("+").partition("=")[0])
    tasks = config.task.get("tasks")
    named = OmegaConf.select(config, "teacher.labels")  # Data without labels has the classes that its teacher names.
    for task in tasks.values() if OmegaConf.is_dict(tasks) else [config.task]:
        _check_data(task, named)
    for option in ("teacher.path", "student.path"):
        path, target = OmegaConf.select(config, option), OmegaConf.select(config, f"{option[:7]}._target_")
        if isinstance(path, str) and not (is_url(path) or Path(path).expanduser().exists() or "file" in str(target)):
            raise UserError(f"{option}={path} is no directory, expected one with config.json and weights")


def _check_type(config: DictConfig, option: str) -> None:
    """Raises OptionError for a value that the annotation of its option does not allow."""
    parent, _, name = option.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else None
    if not isinstance(node, DictConfig) or name not in node or (target := node.get("_target_")) is None:
        return
    values = OmegaConf.to_container(node, resolve=True)
    assert isinstance(values, dict)
    value = values[name]
    try:
        annotation = find_annotation(str(target), name)
        TypeAdapter(annotation, config=STRICT).validate_python(value)
    except (UnknownAnnotationError, PydanticUserError):
        return
    except ValidationError:
        raise OptionError(option, show_value(value), describe(annotation)) from None


def _check_data(task: DictConfig, named: Any) -> None:
    """Raises UserError for data that is not there, and for rows without a column.

    Args:
        named: the classes that the teacher names, if any.
    """
    if not isinstance(data := task.get("data_dir"), str) or is_url(data):
        return
    path = Path(data).expanduser()
    if "packing" in task and not path.exists():
        raise UserError(f"task.data_dir={data} does not exist, expected a text file or a folder of text files")
    if "label" not in task:  # Other forms have messages of their own.
        return
    if not path.exists():
        raise missing_data(path)
    if task._target_ in _OF_ROWS and "text" in task:
        _check_columns(task, path, named)


def _check_columns(task: DictConfig, path: Path, named: Any) -> None:
    stems = {**STEMS, **{split: _to_tuple(names) for split, names in (task.get("splits") or {}).items()}}
    files = {SINGLE: (path,)} if path.is_file() else find_files(path, stems)
    for split in ("train", "dev") if SINGLE not in files else ():
        if stems[split] and split not in files:  # As `TableSource` needs them.
            raise missing_file(path, stems[split])
    names = {split: _read_names(parts[0]) for split, parts in files.items()}
    if not all(names.values()) or task.get("text") is None:
        return
    text, label, labels = (_to_tuple(task.get(key)) for key in ("text", "label", "labels"))
    labels = labels or (tuple(map(str, named)) if named else ())
    rows = LabelledText(
        source=TableSource(name=str(task.name), wanted=(*text, *label), data_dir=str(path)),
        text=text,
        label=label or ("",),
        label_names=labels or None,
        regression=task._target_.endswith("Regression"),
        separator="|" if task.get("multi_label") else None,
        is_labelled=bool(label),
    )
    rows.check_names(
        {
            split: Table(str(files[split][0]), tuple(of or ()), {name: [None] for name in of or ()})
            for split, of in names.items()
        }
    )


def _to_tuple(value: Any) -> tuple[str, ...]:
    return () if value is None else (str(value),) if isinstance(value, str | int) else tuple(map(str, value))


def _read_names(path: Path) -> list[str] | None:
    """Returns the names of the columns of a file; None where they cannot be told without all of its rows."""
    if not path.name.endswith(SUFFIXES):
        return None
    if path.name.endswith(".parquet"):
        with open_parquet(path) as file:
            return list(file.schema_arrow.names)
    if is_delimited(path):
        return next(read_fields(path))[1]
    rows = list(islice(_read_keys(path), _LOOKED_AT + 1))
    return None if len(rows) > _LOOKED_AT else list(dict.fromkeys(name for row in rows for name in row))


def _read_keys(path: Path) -> Iterator[Iterable[str]]:
    return (row for _, row in read_rows(path))
