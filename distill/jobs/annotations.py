"""The annotations of options, read from source, because the modules of the classes that take them import torch."""

import ast
import builtins
import functools
import importlib
from collections.abc import Iterator
from typing import Any

from distill.installation import PACKAGE, is_checkout

LIGHT = ("typing", "typing_extensions", "pydantic", "collections.abc", "os", "pathlib")


class UnknownAnnotationError(LookupError):
    """An annotation that needs more than the source of its module."""


def find_annotation(target: str, option: str) -> Any:
    """Returns the annotation of an option of a class or a function that checks it, as in `distill.options`.

    Args:
        target: such as `distill.tasks.Classification`.

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
    module, node = _find(module, name)
    if isinstance(node, ast.ClassDef):
        own = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
        fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
        bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id != "TypedDict"]
        if own:
            node = own[0]
        else:
            is_checked = _is_decorated(node, "raise_option_errors") or len(node.keywords) > 0  # Or a TypedDict.
            yield from ((module, field) for field in fields if is_checked)
            for base in bases:
                yield from _find_annotations(module, base)
    if isinstance(node, ast.FunctionDef) and _is_decorated(node, "check_arguments"):
        yield from ((module, argument) for argument in (*node.args.args, *node.args.kwonlyargs))
        if node.args.kwarg is not None and isinstance(node.args.kwarg.annotation, ast.Subscript):
            keys = node.args.kwarg.annotation.slice  # Of `Unpack[...]`.
            if isinstance(keys, ast.Attribute) and isinstance(keys.value, ast.Name):
                yield from _find_annotations(_find_module(module, keys.value.id), keys.attr)
            elif isinstance(keys, ast.Name):
                yield from _find_annotations(module, keys.id)


def _is_decorated(node: ast.ClassDef | ast.FunctionDef, name: str) -> bool:
    """Returns whether the options of a class or a function are checked against their annotations."""
    return name in map(ast.unparse, node.decorator_list)


@functools.cache
def _parse(module: str) -> dict[str, ast.AST]:
    """Returns what a module of the package defines or imports, by its names."""
    package, *folders = module.split(".")
    if package != "distill" or not folders:
        raise UnknownAnnotationError(module)
    if folders[0] == "builtin" and is_checkout():  # Beside the package.
        folders[0] = ".."
    path = PACKAGE.joinpath(*folders)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        raise UnknownAnnotationError(module)
    found: dict[str, ast.AST] = {}
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


def _find(module: str, name: str) -> tuple[str, ast.AST]:
    """Returns the module that defines a name, and its definition."""
    node = _parse(module).get(name)
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("distill"):
        original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
        return _find(str(node.module), original)
    if node is None:
        raise UnknownAnnotationError(name)
    return module, node


def _find_module(module: str, name: str) -> str:
    """Returns the module that a name such as `rows` stands for."""
    node = _parse(module).get(name)
    if not isinstance(node, ast.ImportFrom):
        raise UnknownAnnotationError(name)
    return f"{node.module}.{name}"


class _Names(dict[str, Any]):
    """The names that an annotation of a module may have."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        module, node = _find(self.module, name)
        if isinstance(node, ast.ImportFrom) and node.module in LIGHT:
            return getattr(importlib.import_module(node.module), name)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return _evaluate(module, node.value)
        raise UnknownAnnotationError(name)


class _Attributes(ast.NodeTransformer):
    """Replaces `rows.Columns` by the value that the module `rows` gives the name."""

    def __init__(self, module: str, names: dict[str, Any]) -> None:
        self.module, self.names = module, names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if not isinstance(node.value, ast.Name):
            raise UnknownAnnotationError(node.attr)
        name = f"_{node.value.id}_{node.attr}"
        self.names[name] = _Names(_find_module(self.module, node.value.id))[node.attr]
        return ast.copy_location(ast.Name(name, ast.Load()), node)


def _evaluate(module: str, node: ast.expr) -> Any:
    """Returns the value of an annotation, whose names are resolved without importing a module of the package."""
    names = _Names(module)
    expression = ast.Expression(_Attributes(module, names).visit(ast.parse(ast.unparse(node), mode="eval").body))
    try:
        return eval(compile(ast.fix_missing_locations(expression), module, "eval"), {}, names)
    except (TypeError, NameError, AttributeError) as error:
        raise UnknownAnnotationError(ast.unparse(node)) from error
