"""Writes the option reference when the site is built: the pages `reference/options/*.md`, one for a group of `conf/`.

An option is a key of a YAML file. Its meaning is written once: in the comment beside the key, which may continue on
lines that are indented further, or in the docstring of the class or function that `_target_` names. Its values are
those that the annotation there allows. An option without an annotation has them in brackets, at the start of its
comment:

    older_than_days: null # [a number or null] days since the last use; older entries are removed

A file that inherits from another of its folder, as `task/sst2.yaml` from `classification.yaml`, has its options.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin

import griffe
import yaml
from hydra.core.plugins import Plugins
from hydra.utils import get_object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typing_extensions import is_typeddict

from distill.core.errors import config_directory
from distill.core.options import describe, list_annotations
from distill.jobs.command_line import list_bases, read_yaml
from distill.jobs.optuna_sweeper import register_plugins

# The title of every page, in the order of the navigation, and the folders of `conf/` on it.
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "run": ("Every run", ("",)),
    "job": ("job", ("job",)),
    "task": ("task", ("task",)),
    "teacher": ("teacher", ("teacher", "cache", "features")),
    "student": ("student", ("student",)),
    "objective": ("objective", ("objective",)),
    "trainer": ("trainer", ("trainer",)),
    "augment": ("augment", ("augment",)),
    "adapt": ("adapt", ("adapt",)),
    "export": ("export", ("export",)),
    "benchmark": ("benchmark", ("benchmark",)),
    "logger": ("logger", ("logger",)),
    "hydra": ("Sweeps and Hydra", ("hydra/sweeper", "hydra/launcher")),
    "experiment": ("experiment, ablation, variant", ("experiment", "ablation", "variant")),
}
# Where the options of a folder are in the configuration, if not under its name.
PREFIXES = {"": (), "features": ("teacher",), "cache": ("teacher", "cache"), "task/base": ("task",)}
# Options that are those of another group: the teacher's trainings.
ALIASES = {
    ("teacher", "finetune"): ("trainer",), ("teacher", "bilstm", "trainer"): ("trainer",),
    ("adapt", "trainer"): ("trainer",),
}  # fmt: skip
# Shorter words for the values of an annotation that Python takes too.
WORDS = {
    "a string, a whole number, a list of items, each a string or a whole number": "a column, a list of columns",
    "a string, a whole number or a list of items, each a string or a whole number": "a column or a list of columns",
    "a string, a Path": "a path",
    "a string or a Path": "a path",
    "a object": "`auto`, a path, a data set of the Hub",
    "a TrainerSettings": "a mapping",
}
NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?|true|false|null|auto")


@dataclass(frozen=True)
class Key:
    """A key in a file.

    Attributes:
        path: its place in the configuration.
        target: `_target_` of the mapping that it is in.
        value: as it is written.
        comment: beside and below it.
        children: the names of its value if that is a mapping.
    """

    file: Path
    path: tuple[str, ...]
    target: str | None
    value: str
    comment: str
    children: tuple[str, ...] | None

    @property
    def is_object(self) -> bool:
        return "_target_" in (self.children or ())


@dataclass(frozen=True)
class Option:
    """An option of a target or, without one, of the configuration.

    Attributes:
        keys: every key that sets it. The first one is where its default stands.
    """

    keys: tuple[Key, ...]
    meaning: str
    values: str

    @property
    def name(self) -> str:
        return ".".join(self.keys[0].path)


def read_keys(file: Path) -> Iterator[Key]:
    """Returns the keys of a file and of the mappings in it, except those of Hydra.

    A file with a target of its own has also the keys of the files that it inherits from, as options of this target.
    """
    target = find_target_name(file)
    own = list(_read_file(file, file, target))
    yield from own
    for base in list_bases(file) if "_target_" in read_yaml(file) else []:
        yield from (key for key in _read_file(base, file, target) if key.path not in {key.path for key in own})


def find_target_name(file: Path) -> str | None:
    """Returns `_target_` of a file, its own one or that of a file that it inherits from."""
    own = read_yaml(file).get("_target_")
    return own or next(filter(None, map(find_target_name, list_bases(file))), None)


def _read_file(source: Path, file: Path, target: str | None) -> Iterator[Key]:
    """Returns the keys that are written in a file, as keys of the same file or of one that inherits from it."""
    text = source.read_text(encoding="utf-8")
    folder = str(file.parent.relative_to(config_directory())).replace(".", "")
    is_global = text.startswith("# @package _global_")
    prefix = () if is_global else PREFIXES.get(folder, tuple(folder.split("/")))
    node = yaml.compose(text)
    if isinstance(node, yaml.MappingNode):
        yield from _walk(node, prefix, file, text, target)


def _walk(node: yaml.MappingNode, prefix: tuple[str, ...], file: Path, text: str, target: str | None) -> Iterator[Key]:
    for key, value in node.value:
        if key.value in ("_target_", "defaults"):
            continue
        path, is_mapping = (*prefix, key.value), isinstance(value, yaml.MappingNode) and bool(value.value)
        written = text[value.start_mark.index : value.end_mark.index].strip()
        is_block = value.start_mark.line != value.end_mark.line
        comment = _read_comment(text, key.end_mark if is_block else value.end_mark)
        yield Key(file, path, target, written, comment, tuple(k.value for k, _ in value.value) if is_mapping else None)
        if is_mapping:
            inner = next((of.value for name, of in value.value if name.value == "_target_"), None)
            yield from _walk(value, path, file, text, inner)


def _read_comment(text: str, end: yaml.Mark) -> str:
    """Returns the comment beside a key or its value, and that of the lines below that are indented further."""
    lines = text.splitlines()
    if end.line >= len(lines):
        return ""
    found = re.fullmatch(r":?(?:\s*[|>]-?)?\s*#(.*)", lines[end.line][end.column :])
    if found is None:
        return ""
    comment, depth = found[1].strip(), len(lines[end.line]) - len(lines[end.line].lstrip())
    for line in lines[end.line + 1 :]:
        if not re.match(rf"\s{{{depth + 1},}}#", line):
            break
        comment += " " + line.strip().removeprefix("#").strip()
    return comment


@cache
def find_target(name: str) -> Any:
    """Returns the class or the function that a `_target_` names."""
    register_plugins()
    return Plugins.instance().class_name_to_class.get(name) or get_object(name)


@cache
def read_docstrings(target: Any) -> Mapping[str, str]:
    """Returns the meanings of the arguments of a class or a function, from its docstring and those that it extends."""
    meanings: dict[str, str] = {}
    sources = [target]
    if is_typeddict(target):
        sources = _typed_dicts(target)
    elif inspect.isclass(target):
        sources = [part for base in target.__mro__ if base is not object for part in (base, vars(base).get("__init__"))]
    for source in sources:
        hints = getattr(source, "__annotations__", {})
        shared = [get_args(hint)[0] for hint in hints.values() if get_origin(hint) is Unpack]
        for documented in (source, *(base for each in shared for base in _typed_dicts(each))):
            for name, meaning in _parse_arguments(inspect.getdoc(documented) if documented else "").items():
                meanings.setdefault(name, meaning)
    return meanings


def _typed_dicts(cls: Any) -> list[Any]:
    return [
        cls,
        *(part for base in cls.__orig_bases__ if hasattr(base, "__orig_bases__") for part in _typed_dicts(base)),
    ]


def _parse_arguments(docstring: str | None) -> dict[str, str]:
    sections = griffe.Docstring(docstring or "").parse("google", warnings=False)
    wanted = (griffe.DocstringSectionParameters, griffe.DocstringSectionAttributes)
    return {
        item.name: " ".join(item.description.split())
        for section in sections
        if isinstance(section, wanted)
        for item in section.value
    }


def read_options() -> list[Option]:
    """Returns every option of `conf/`. One whose meaning is empty has none."""
    keys = [key for file in _sort_files(config_directory().rglob("*.yaml")) for key in read_keys(file)]
    comments = {key.path: key.comment for key in reversed(keys) if key.comment}
    owned = {key.path for key in keys if key.target}
    options: dict[tuple[str, ...], list[Key]] = {}
    for key in _leave_out_sections(keys, comments, owned):
        if key.target:
            options.setdefault((key.target, key.path[-1]), []).append(key)
        elif resolve(key.path) not in owned:
            options.setdefault(key.path, []).append(key)
    return [_make_option(_sort(found, keys), comments) for found in options.values()]


def _sort_files(files: Iterable[Path]) -> list[Path]:
    """Returns the files in the order of their names, in each folder first those that others inherit from."""
    return sorted(files, key=lambda file: (file.parent, is_variant(file), file))


def is_variant(file: Path) -> bool:
    """Returns whether a file is a choice of values for another of its folder: a data set of a kind of task."""
    return find_target_name(file) is not None and "_target_" not in read_yaml(file)


def _leave_out_sections(
    keys: list[Key], comments: Mapping[tuple[str, ...], str], owned: set[tuple[str, ...]]
) -> list[Key]:
    """Returns the keys that are options: neither mappings of options, nor within a mapping that is a value."""
    options: list[Key] = []
    for key in keys:
        is_value = key.path in comments or bool(key.target and key.path[-1] in read_docstrings(find_target(key.target)))
        is_above_options = any(len(path) > len(key.path) and path[: len(key.path)] == key.path for path in owned)
        within = any(key.file == value.file and key.path[: len(value.path)] == value.path for value in options)
        if not within and (key.children is None or (is_value and not is_above_options and not key.is_object)):
            options.append(key)
    return options


def resolve(path: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the path of the option that this one is another place of."""
    for alias, prefix in ALIASES.items():
        if path[: len(alias)] == alias and len(path) > len(alias):
            return (*prefix, *path[len(alias) :])
    return path


def _sort(found: list[Key], keys: list[Key]) -> list[Key]:
    """Returns the keys of an option, first those of the file that has most options of the target, and most comments."""
    target = found[0].target

    def rank(key: Key) -> tuple[int, int]:
        beside = [other for other in keys if other.file == key.file and other.target == target]
        return -len(beside), -sum(bool(other.comment) for other in beside)

    return sorted(found, key=rank if target else lambda key: not key.comment)


def _make_option(found: list[Key], comments: Mapping[tuple[str, ...], str]) -> Option:
    first = found[0]
    annotation: Any = inspect.Parameter.empty
    meanings = [first.comment]
    if first.target:
        target, name = find_target(first.target), first.path[-1]
        meanings.append(read_docstrings(target).get(name, ""))
        annotation = list_annotations(target).get(name, annotation)
    meanings += [*(key.comment for key in found), comments.get(first.path, "")]
    meaning = next(filter(None, meanings), "")
    values, meaning = re.fullmatch(r"(?:\[([^\]]*)\] )?(.*)", meaning, re.S).groups()  # type: ignore[union-attr]
    if values is None:
        values = _guess_values(first) if annotation is inspect.Parameter.empty else describe(annotation)
    for words, shorter in WORDS.items():
        values = values.replace(words, shorter)
    return Option(tuple(found), meaning, values)


def _guess_values(key: Key) -> str:
    """Returns the type of the default in words."""
    if key.children:
        return "a mapping"
    value = yaml.safe_load(key.value) if key.value[0] not in "|>?" else ""
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}.get(type(value), "")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages to the site."""
    options = [option for option in read_options() if option.meaning]
    for name in PAGES:
        page = render_page(name, [option for option in options if _find_page(option) == name])
        files.append(File.generated(config, f"reference/options/{name}.md", content=page))
    return files


def _find_page(option: Option) -> str:
    folder = _folder(option.keys[0].file)
    if option.keys[0].path[0] == "hydra":
        return "hydra"
    return next(name for name, (_, folders) in PAGES.items() if folder in folders)


def _folder(file: Path) -> str:
    """Returns the folder in `conf` that has the file, or has it further below; empty for `conf` itself."""
    return next(iter(file.parent.relative_to(config_directory()).parts), "")


def render_page(page: str, options: list[Option]) -> str:
    """Returns the Markdown of a page: the files that can be chosen, and the options by class, function or file."""
    title, folders = PAGES[page]
    lines = [f"# Options: {title}", "", *_render_choices(folders)]
    sections: dict[str, list[Option]] = {}
    for option in options:
        sections.setdefault(_find_section(option), []).append(option)
    names = [option.name for option in options]
    for section, found in sorted(sections.items(), key=lambda item: -len({key.file for key in item[1][0].keys})):
        lines += [f"## {section}", ""]
        target = found[0].keys[0].target
        if target and (purpose := inspect.getdoc(find_target(target))):
            lines += [" ".join(purpose.split("\n\n")[0].split()), ""]
        for option in found:
            anchor = option.name if names.count(option.name) == 1 else f"{_last(section)}.{option.name}"
            lines += _render_option(option, anchor)
    return "\n".join(lines) + "\n"


def _last(section: str) -> str:
    return re.sub(r"\W+", "-", section).strip("-")


def _render_choices(folders: tuple[str, ...]) -> list[str]:
    """Returns a table of the files in the folders, each with the comment below its command: kinds before data sets."""
    lines: list[str] = []
    for folder in filter(None, folders):
        plus = "+" if folder in ("teacher", "student", "experiment", "ablation", "variant") else ""
        rows = []
        for file in _sort_files((config_directory() / folder).glob("*.yaml")):
            opening = re.match(r"(?:#.*\n)+", file.read_text(encoding="utf-8"))
            comments = [line.removeprefix("# ") for line in (opening[0] if opening else "").splitlines()]
            about = [line for line in comments if not line.startswith(("python -m distill", "@package"))]
            if is_variant(file):
                about.append(f"The options are those of {plus}{folder}={list_bases(file)[0].stem}.")
            rows.append(f"| `{plus}{folder}={file.stem}` | {_mark_code(' '.join(about)).replace('|', chr(92) + '|')} |")
        if len(rows) > 1:
            lines += [f"## Choices of `{folder}`", "", "| Choice | Content |", "|---|---|", *rows, ""]
    return lines


def _find_section(option: Option) -> str:
    """Returns the title of an option's section: a class that several files name, a choice, or a part of all choices."""
    first = option.keys[0]
    folder, group = _folder(first.file), first.path[0]
    if first.target is None:
        if group == "hydra" or not folder:
            return "Hydra" if group == "hydra" else "The configuration"
        return f"`{folder}={first.file.stem}`" if folder in ("job", "augment", "adapt") else f"More of `{folder}`"
    if group == "objective" or (group in ("task", "teacher") and len(first.path) == 2):
        return f"`{first.target.rpartition('.')[2]}`"
    if group in ("student", "augment", "adapt", "hydra"):
        return f"`{folder}={first.file.stem}`"
    return f"`{'.'.join(first.path[:-1])}`"


def _render_option(option: Option, anchor: str) -> list[str]:
    facts = [f"Values: {_mark_code(option.values)}"] if option.values else []
    facts.append(render_default(option))
    return [
        f"### `{option.name}` {{ #{anchor} }}",
        "",
        _finish(option.meaning),
        "",
        "<br>".join(facts),
        "{ .facts }",
        "",
    ]


def render_default(option: Option) -> str:
    """Returns the default, and the numbers and constants that other files have."""
    first = option.keys[0]
    if first.value == "???":
        return "No default: it must be given"
    if "\n" in first.value:
        return "Default: several lines"
    others: dict[str, list[str]] = {}
    for key in option.keys[1:]:
        if key.value != first.value and NUMBER.fullmatch(key.value) and first.target:
            others.setdefault(key.value, []).append(key.file.stem)
    differing = "".join(f"; `{value}` in {', '.join(dict.fromkeys(files))}" for value, files in others.items())
    return f"Default: `{first.value}`{differing}"


def _finish(meaning: str) -> str:
    """Returns a meaning as a sentence."""
    marked = _mark_code(meaning)
    return (marked if marked.startswith("`") else marked[:1].upper() + marked[1:]).rstrip(".") + "."


def _mark_code(text: str) -> str:
    """Returns the text with options, values and names as code."""
    parts = text.split("`")
    names = r"(?<![\w/.])(\+?[\w./]+=[^\s,;:)]*[\w\]}]|\w+(?:\.\w+)*_\w+(?:\.\w+)*|null|true|false|auto)(?![\w/])"
    parts[::2] = [re.sub(names, r"`\1`", part).replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)
