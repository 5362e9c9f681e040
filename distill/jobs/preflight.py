"""Checks of a command before torch is imported: annotations of options, data, trust, and the job `check`.

The objects that the configuration of an earlier run may create, because the run may be a stranger's. These are the
objects that our YAML files name, those of the command itself, and with `trust=[my_package]` the classes and functions
of that package. Code that comes with weights runs with `trust=[PATH]`, the path or id of the weights.
"""

import ast
import builtins
import functools
import importlib
import inspect
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from distill.core import storage
from distill.core.errors import PACKAGE, OptionError, UserError, is_checkout
from distill.core.options import STRICT, describe, show_value
from distill.core.storage import is_url
from distill.data.labelled_text import LabelledText, RowRules, TaskKind
from distill.data.profile import SHIPPED, find_teacher, print_profile, profile_data, rehearse_reading, suggest_command
from distill.data.sources import SINGLE, STEMS, TableSource, find_files, missing_data, missing_file
from distill.jobs.command_line import find_job, known_targets, walk_mappings
from distill.rows.columns import SUFFIXES, Table
from distill.rows.formats import is_delimited, open_parquet, read_fields, read_rows


def given_options() -> list[str]:
    """Returns the options of the command; none in a process without one, as in a test."""
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def refuse_other_options(name: str) -> None:
    """Raises UserError for options of the command that a job does not read."""
    job = find_job(name)
    ignored = [option for option in given_options() if not option.startswith(job.reads)]
    if ignored:
        raise UserError(f"job={name} reads only {job.words or ', '.join(job.reads)}: leave out {' '.join(ignored)}")


_CHECKS = ("check_arguments", "raise_option_errors", "check_options")
LIGHT = ("typing", "typing_extensions", "pydantic", "collections.abc", "os", "pathlib")


class UnknownAnnotationError(LookupError):
    """An annotation that needs more than the source of its module."""


def find_annotation(target: str, option: str) -> Any:
    """Returns the annotation of an option of a class or a function that checks it, as in `distill.core.options`.

    Args:
        target: such as `distill.kinds.Classification`.

    Raises:
        UnknownAnnotationError: for one that its source alone does not tell.
    """
    module, _, name = target.rpartition(".")
    for source, node in _find_annotations(module, name):
        if isinstance(node, ast.arg | ast.AnnAssign) and option == _name(node) and node.annotation is not None:
            return _evaluate(source, node.annotation)
    raise UnknownAnnotationError(option)


def _name(node: ast.arg | ast.AnnAssign) -> str:
    return node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)


def _find_annotations(module: str, name: str) -> Iterator[tuple[str, ast.AST]]:
    """Yields the annotated arguments or fields of a class or a function, each with its module."""
    module, node = _find_definition(module, name)
    if isinstance(node, ast.ClassDef):
        own = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
        fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
        bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id != "TypedDict"]
        if own:
            node = own[0]
        else:
            is_checked = _is_checked(node) or len(node.keywords) > 0  # Or a TypedDict.
            yield from ((module, field) for field in fields if is_checked)
            for base in bases:
                yield from _find_annotations(module, base)
    if isinstance(node, ast.FunctionDef) and _is_checked(node):
        yield from ((module, argument) for argument in (*node.args.args, *node.args.kwonlyargs))
        if node.args.kwarg is not None and isinstance(node.args.kwarg.annotation, ast.Subscript):
            yield from _find_annotations(module, ast.unparse(node.args.kwarg.annotation.slice))  # Of `Unpack[...]`.


def _is_checked(node: ast.ClassDef | ast.FunctionDef) -> bool:
    """Returns whether the options of a class or a function are checked against their annotations."""
    return any(ast.unparse(decorator).startswith(_CHECKS) for decorator in node.decorator_list)


@functools.cache
def _parse(module: str) -> dict[str, ast.AST]:
    """Returns what a module of the package defines or imports, by its names, and the modules in a folder."""
    package, *folders = module.split(".")
    if package != "distill" or not folders:
        raise UnknownAnnotationError(module)
    if folders[0] == "builtin" and is_checkout():  # Beside the package.
        folders[0] = ".."
    path = PACKAGE.joinpath(*folders)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        raise UnknownAnnotationError(module)
    found: dict[str, ast.AST] = {inner.stem: ast.Module([], []) for inner in path.glob("*.py")}
    body = ast.parse(file.read_text(encoding="utf-8")).body
    branches = [inner for node in body if isinstance(node, ast.If) for inner in node.orelse]  # Not for type checkers.
    for node in [*body, *branches]:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {ast.unparse(target): node for target in targets}
    return found


def _find_definition(module: str, name: str) -> tuple[str, ast.AST]:
    """Returns the module that defines a name, such as `Share` or `labelled_rows.Share`, and its definition."""
    first, dot, rest = name.partition(".")
    node = _parse(module).get(first)
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("distill"):
        original = next(alias.name for alias in node.names if (alias.asname or alias.name) == first)
        return _find_definition(str(node.module), original + dot + rest)
    if isinstance(node, ast.Module) and rest:
        return _find_definition(f"{module}.{first}", rest)
    if node is None:
        raise UnknownAnnotationError(name)
    return module, node


class _Names(dict[str, Any]):
    """The names that an annotation of a module may have."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        module, node = _find_definition(self.module, name)
        if isinstance(node, ast.Module):
            return _Module(f"{module}.{name}")
        if isinstance(node, ast.ImportFrom) and node.module in LIGHT:
            return getattr(importlib.import_module(node.module), name)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return _evaluate(module, node.value)
        raise UnknownAnnotationError(name)


class _Module:
    """A module in an annotation such as `labelled_rows.Columns`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        return _Names(self.name)[name]


def _evaluate(module: str, node: ast.expr) -> Any:
    """Returns the value of an annotation, whose names are resolved without importing a module of the package."""
    try:
        return eval(ast.unparse(node), {}, _Names(module))
    except (TypeError, NameError, AttributeError) as error:
        raise UnknownAnnotationError(ast.unparse(node)) from error


_WEIGHTS = ("path", "paths", "tokenizer", "encoder")  # Options that name weights or files beside them.


def read_trust(config: DictConfig) -> list[str]:
    """Returns what the command trusts.

    Raises:
        UserError: for other values than a list of names.
    """
    value = OmegaConf.to_container(config.trust, resolve=True) if OmegaConf.is_list(config.trust) else config.trust
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(name, str) and name for name in value):
        return value
    raise OptionError("trust", show_value(value), "a list of packages and of weights, like [my_package]")


def targets(config: DictConfig) -> set[str]:
    """Returns every `_target_` of the configuration of a command, which the user has typed or written."""
    content = OmegaConf.to_container(config, resolve=False)
    return {str(node["_target_"]) for _, node in walk_mappings(content) if "_target_" in node}


def check_targets(config: DictConfig, *, source: object, trust: Sequence[str], own: Collection[str] = ()) -> None:
    """Checks every object that a saved configuration names, before one of them is created.

    Args:
        config: without references.
        source: the file that it is from, for messages.
        trust: packages, and paths or ids of weights.
        own: further names that may be created, those of the command itself.

    Raises:
        UserError: for an object that is not known and not trusted.
    """
    for name, node in walk_mappings(OmegaConf.to_container(config, resolve=False)):
        if "_target_" in node:
            _check_target(node["_target_"], f"{name}._target_", source, trust, own)
        if node.get("trust_remote_code") not in (None, False):
            _check_remote_code(node, f"{name}.trust_remote_code", source, trust)


def _check_target(target: object, option: str, source: object, trust: Sequence[str], own: Collection[str]) -> None:
    if not isinstance(target, str):
        raise UserError(f"{source} is damaged: {option} is {show_value(target)}, expected the name of an object")
    if target in own or target in known_targets():
        return
    package = next((package for package in trust if target.startswith(f"{package}.")), None)
    if package is None:
        first = target.partition(".")[0]
        raise UserError(
            f"{source} would run {option}={target}, which no YAML of distill names: if you trust the run and that "
            f"code, add trust=[{first}]"
        )
    found = _find_target(target, package)
    module = getattr(found, "__module__", None)
    is_inside = isinstance(module, str) and f"{module}.".startswith(f"{package}.")
    if not (inspect.isclass(found) or inspect.isroutine(found)) or not is_inside:
        raise UserError(
            f"{source} would run {option}={target}, which is no class or function of {package} itself but "
            f"{_describe(found)}: expected one of {package}, or of a package that trust= names too"
        )


def _find_target(target: str, package: str) -> object:
    """Returns the object of a name, whose modules are all inside a package that is trusted; None if it is missing."""
    if not re.fullmatch(r"\w+(\.\w+)+", target):
        return None
    try:
        found: object = importlib.import_module(package)
        path = package
        for name in target[len(package) + 1 :].split("."):
            path = f"{path}.{name}"
            if inspect.ismodule(found) and found.__name__ == path.rpartition(".")[0] and not hasattr(found, name):
                importlib.import_module(path)
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return None
    return found


def _describe(found: object) -> str:
    if found is None:
        return "missing"
    if inspect.ismodule(found):
        return f"the module {found.__name__}"
    if inspect.isclass(found) or inspect.isroutine(found):
        return f"one of {getattr(found, '__module__', None) or 'Python'}"
    return f"an object of {type(found).__name__}"


def _check_remote_code(node: Mapping[str, object], option: str, source: object, trust: Sequence[str]) -> None:
    missing = [place for name in _WEIGHTS for place in _places(node.get(name)) if place not in trust]
    if missing:
        raise UserError(
            f"{source} would run Python code that comes with {missing[0]}, because of {option}: if you trust it, add "
            f"trust=[{','.join(missing)}]"
        )


def _places(value: object) -> Iterator[str]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _places(inner)
    elif value is not None:
        yield str(value)


# The kinds of tasks whose rows are a `LabelledText`.
_OF_ROWS: Mapping[str, TaskKind] = {
    "distill.kinds.Classification": "classification", "distill.kinds.Regression": "regression",
}  # fmt: skip
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
    names = {split: _read_header(parts[0]) for split, parts in files.items()}
    if not all(names.values()) or task.get("text") is None:
        return
    text, label, labels = (_to_tuple(task.get(key)) for key in ("text", "label", "labels"))
    labels = labels or (tuple(map(str, named)) if named else ())
    rows = LabelledText(
        source=TableSource(name=str(task.name), wanted=(*text, *label), data_dir=str(path)),
        text=text,
        label=label or ("",),
        task="multi_label" if task.get("multi_label") else _OF_ROWS[task._target_],
        names=labels or None,
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


def _read_header(path: Path) -> list[str] | None:
    """Returns the names of the columns of a file; None where they cannot be told without all of its rows."""
    if not path.name.endswith(SUFFIXES):
        return None
    if path.name.endswith(".parquet"):
        with open_parquet(path) as file:
            return list(file.schema_arrow.names)
    if is_delimited(path):
        return next(read_fields(path))[1]
    rows = list(islice(read_rows(path), _LOOKED_AT + 1))
    return None if len(rows) > _LOOKED_AT else list(dict.fromkeys(name for _, row in rows for name in row))


def run_check(config: DictConfig) -> None:
    """Prints the profile of `data` with the columns `text` and `label`, or with guesses.

    Raises:
        UserError: for options that have no effect, files that cannot be read, and problems that stop a training.
    """
    refuse_other_options("check")
    if config.data is None:
        raise UserError("job=check has no data to check: add data=FILE, or data=DIR with train and dev")
    if not isinstance(config.json, bool):
        raise OptionError("json", config.json, "true or false")
    data = str(storage.local_path(str(config.data)))
    given = RowRules(text=_read_names("text", config.text), label=_read_names("label", config.label))
    if len(given.text) > 2:
        raise OptionError("text", f"[{','.join(given.text)}]", "one column or the two of a pair")
    profile = rehearse_reading(profile_data(data, given), data)
    teacher = SHIPPED if profile.errors else find_teacher(profile)
    if config.json:
        command = None if profile.errors else ["python", "-m", "distill", *suggest_command(profile, data, teacher)]
        print(json.dumps({"data": data, **profile.record(), "command": command}, ensure_ascii=False, indent=2))
    else:
        print_profile(profile, data, teacher)
    if profile.errors:
        problems = "problem" if len(profile.errors) == 1 else "problems"
        raise UserError(f"a training on {data} would stop at {problems} {', '.join(map(str, profile.errors))}")


def _read_names(option: str, value: object) -> tuple[str, ...]:
    names = list(value) if isinstance(value, ListConfig) else [] if value is None else [value]
    if not all(isinstance(name, str | int) and not isinstance(name, bool) for name in names):
        raise OptionError(option, str(value), "the name of a column, or a list of names")
    return tuple(map(str, names))
