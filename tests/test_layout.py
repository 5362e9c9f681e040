"""The architecture, read from the source: who may import whom, no cycles, short functions, and types."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import distill

ROOT = Path(distill.__file__).resolve().parents[1]
PACKAGES = ("distill", "students", "teachers")
# A room imports itself and rooms of lower levels.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("errors", "sentences", "files", "options", "console", "hub"),
    ("contracts",),
    ("edge", "losses", "data"),
    ("models", "text"),
    ("tasks",),
    ("training",),
    ("teaching", "export", "benchmark", "records"),
    ("preflight", "plan", "chain"),
    ("jobs",),
    ("__main__", "api", "__init__"),
)
# Within a level these may import each other in this order, the earlier ones from the later ones.
WITHIN = {
    "files": {"errors"},
    "console": {"errors", "files"},
    "hub": {"errors", "files"},
    "options": {"errors"},
    "chain": {"preflight", "plan"},
}
# Rooms that import less than their level allows.
ONLY = {"edge": {"errors", "files"}}
VERSION = {"distill.__version__"}  # Of the package itself every module may import its version, and nothing else.
FOR_STUDENTS_AND_TEACHERS = {"errors", "files", "hub", "contracts", "models"}
HEAVY = ("torch", "transformers", "lightning", "hydra", "datasets", "sklearn", "pydantic")


def module_name(path: Path) -> str:
    """`distill.losses.term`, and for an `__init__.py` the name of its package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of the packages by its name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes, those inside functions too, but those for type checking alone."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            assert isinstance(child, ast.If)
            for other in child.orelse:
                yield other
                yield from statements(other)
            continue
        yield child
        yield from statements(child)


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of the packages that this one imports anywhere."""
    found: set[str] = set()
    for node in statements(sources()[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names} - VERSION
            found |= {name if name in sources() else node.module for name in inner}
    return frozenset(name for name in found if name.split(".")[0] in PACKAGES)


def room(module: str) -> str:
    """The file or folder right below `distill`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def allowed(name: str) -> set[str]:
    """The rooms that a room may import, itself among them."""
    level = next(number for number, rooms in enumerate(LEVELS) if name in rooms)
    lower = {other for rooms in LEVELS[:level] for other in rooms}
    return {name} | WITHIN.get(name, set()) | ONLY.get(name, lower)


OURS = [name for name in sources() if name.split(".")[0] == "distill"]


def test_every_module_has_a_level() -> None:
    known = {name for rooms in LEVELS for name in rooms}
    assert {room(module) for module in OURS} <= known
    assert {"distill.losses.term", "distill.edge.bundle", "students.bilstm", "teachers.embedded"} <= sources().keys()


@pytest.mark.parametrize("module", OURS)
def test_imports_point_downwards(module: str) -> None:
    above = {name for name in imports(module) if name.startswith("distill") and room(name) not in allowed(room(module))}
    assert not above, f"{module} may import {', '.join(sorted(allowed(room(module))))}"


def test_no_modules_import_each_other_in_a_cycle() -> None:
    assert cycles({module: imports(module) & sources().keys() for module in sources()}) == []


def cycles(graph: dict[str, frozenset[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module, or of one that imports itself (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1 or node in graph[node]:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def test_a_cycle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e"}}
    assert cycles({name: frozenset(others) for name, others in graph.items()}) == [["b", "c"], ["e"]]


@pytest.mark.parametrize("module", OURS)
def test_the_package_never_imports_students_or_teachers(module: str) -> None:
    if module not in ("distill", "distill.api"):
        assert not {name for name in imports(module) if name.startswith(("students", "teachers"))}


@pytest.mark.parametrize("package", ["students", "teachers"])
def test_students_and_teachers_know_only_what_they_are_given(package: str) -> None:
    other = {"students": "teachers", "teachers": "students"}[package]
    for module in sources():
        if module.split(".")[0] == package:
            assert not {name for name in imports(module) if name.split(".")[0] == other}, module
            rooms = {room(name) for name in imports(module) if name.split(".")[0] == "distill"}
            assert rooms <= FOR_STUDENTS_AND_TEACHERS, module


def test_readers_of_text_and_labelled_data_do_not_import_each_other() -> None:
    for module in OURS:
        if room(module) == "data":
            assert "text" not in set(map(room, imports(module))), module
    for name in ("readers", "corpus", "packing", "masking"):
        assert "data" not in set(map(room, imports(f"distill.text.{name}"))), name


def test_the_edge_runtime_needs_no_torch() -> None:
    program = (
        "import sys\n"
        f"for name in {HEAVY}:\n"
        "    sys.modules[name] = None\n"
        "import distill.edge.__main__ as edge\n"
        "sys.exit(edge.main(['nowhere', 'text']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: nowhere is no bundle: it has no bundle.json\n"


# Functions

LONGEST = 50
SHARE_OF_ANY = 0.03

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    for module, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{module}.{node.name}", node


def test_functions_are_short() -> None:
    lines = {name: (node.end_lineno or node.lineno) - node.lineno + 1 for name, node in functions()}
    assert not {name: count for name, count in lines.items() if count > LONGEST}


def parameters(function: Function) -> list[ast.arg]:
    """The parameters, `self` and `cls` aside."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [p for p in named if p is not None and not (p.arg in ("self", "cls") and p.annotation is None)]


def test_few_parameters_may_be_anything() -> None:
    known = {f"{name}({p.arg})": p.annotation for name, function in functions() for p in parameters(function)}
    every = [p.annotation for _, function in functions() for p in parameters(function)]
    anything = [annotation for annotation in every if annotation is not None and mentions_any(annotation)]
    names = [name for name, annotation in known.items() if annotation is not None and mentions_any(annotation)]
    assert all(annotation is not None for annotation in every)
    assert len(anything) / len(every) < SHARE_OF_ANY, "\n".join(names)


def mentions_any(annotation: ast.expr) -> bool:
    text = annotation.value if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str) else ""
    tree = ast.parse(text, mode="eval") if text else annotation
    return any(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))
