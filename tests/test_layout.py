"""Tests of the architecture, read from the source: import levels, cycles, lengths of functions, and types."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import distill
from benchmarks.code_size import PACKAGES, list_imports, read_sources, unit_of, walk_statements

ROOT = Path(distill.__file__).resolve().parents[1]
# A unit, a file or folder right below `distill`, imports itself and units of lower levels.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("credentials", "errors", "events", "installation", "readers", "options", "console", "stages", "storage"),
    ("contracts",),
    ("data", "edge", "losses"),
    ("models", "text"),
    ("tasks",),
    ("training",),
    ("teaching", "export", "benchmark", "records", "serve", "client", "builtin"),
    ("chain", "inspection"),
    ("jobs",),
    ("service",),
    ("__main__", "api", "__init__"),
)
# Within a level these may import each other in this order, the earlier ones from the later ones.
WITHIN = {
    "errors": {"credentials"},
    "storage": {"credentials", "errors", "console"},
    "readers": {"errors", "installation"},
    "console": {"credentials", "errors", "events", "storage"},
    "stages": {"console", "events", "storage"},
    "options": {"errors", "installation"},
    "data": {"edge"},  # Labels are read as on a device.
}
# Units that import less than their level allows.
ONLY = {
    "edge": {"errors", "storage", "readers"},
    "serve": {"errors", "installation", "storage", "edge"},
    "client": {"errors"},
    "service": {
        "credentials", "errors", "installation", "readers", "options", "console", "storage", "edge", "serve", "records",
        "events", "jobs",
    },
    "builtin": {"errors", "installation", "storage", "contracts", "models", "options", "readers", "data"},
}  # fmt: skip
BUILTIN = "distill.builtin"
HEAVY = ("torch", "transformers", "lightning", "hydra", "datasets", "sklearn", "pydantic")


@cache
def sources() -> dict[str, ast.Module]:
    """Returns every module of the packages by its name."""
    return {name: ast.parse(source) for name, source in read_sources(ROOT).items()}


@cache
def imports(module: str) -> frozenset[str]:
    """Returns the modules of the packages that this one imports anywhere."""
    tree = sources()[module]
    for node in walk_statements(tree):
        if isinstance(node, ast.ImportFrom):
            # Types of one teacher reach another one in a checkout too, where `teachers` is no folder of `builtin`.
            # Code that is saved with a model finds its other files beside it.
            allowed = 1 if module.startswith((f"{BUILTIN}.", "distill.models.modeling_")) else 0
            assert node.level <= allowed, f"{module} has a relative import"
            assert node.module is not None
    names = list_imports(tree, sources(), module=module)
    return frozenset(name for name in names if name.split(".")[0] in PACKAGES)


def allowed_units(name: str) -> set[str]:
    """Returns the units that a unit may import, itself among them."""
    level = next(number for number, units in enumerate(LEVELS) if name in units)
    lower = {other for units in LEVELS[:level] for other in units}
    return {name} | WITHIN.get(name, set()) | ONLY.get(name, lower)


MODULES = list(sources())


def test_every_module_has_a_level() -> None:
    known = {name for units in LEVELS for name in units}
    assert {unit_of(module) for module in MODULES} <= known
    assert {"distill.losses.term", "distill.edge.bundle", f"{BUILTIN}.teachers.new"} <= sources().keys()


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_only_allowed_units(module: str) -> None:
    above = {
        name
        for name in imports(module)
        if name.startswith("distill") and unit_of(name) not in allowed_units(unit_of(module))
    }
    assert not above, f"{module} may import {', '.join(sorted(allowed_units(unit_of(module))))}"


def test_no_modules_import_each_other_in_a_cycle() -> None:
    assert find_cycles({module: imports(module) & sources().keys() for module in sources()}) == []


def find_cycles(graph: dict[str, frozenset[str]]) -> list[list[str]]:
    """Returns the strongly connected components of several modules, or of one that imports itself (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

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
                components.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return components


def test_cycles_are_detected() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e"}}
    assert find_cycles({name: frozenset(others) for name, others in graph.items()}) == [["b", "c"], ["e"]]


@pytest.mark.parametrize("module", MODULES)
def test_the_package_never_imports_students_or_teachers(module: str) -> None:
    if module not in ("distill", "distill.api") and not module.startswith(BUILTIN):
        assert not {name for name in imports(module) if name.startswith((BUILTIN, "students", "teachers"))}


@pytest.mark.parametrize("package", ["students", "teachers"])
def test_students_and_teachers_import_none_of_the_others(package: str) -> None:
    own = f"{BUILTIN}.{package}"
    modules = [module for module in sources() if module.startswith(f"{own}.")]
    assert modules
    for module in modules:
        assert all(name.startswith(f"{own}.") for name in imports(module) if unit_of(name) == "builtin"), module
        assert not {name for name in imports(module) if not name.startswith("distill")}, module


def test_readers_of_text_and_labelled_data_do_not_import_each_other() -> None:
    for module in MODULES:
        if unit_of(module) == "data":
            assert "text" not in set(map(unit_of, imports(module))), module
    for name in ("readers", "corpus", "packing", "masking"):
        assert "data" not in set(map(unit_of, imports(f"distill.text.{name}"))), name


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


def list_parameters(function: Function) -> list[ast.arg]:
    """Returns the parameters except `self` and `cls`."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return [p for p in named if p is not None and not (p.arg in ("self", "cls") and p.annotation is None)]


def test_few_parameters_are_annotated_with_any() -> None:
    known = {f"{name}({p.arg})": p.annotation for name, function in functions() for p in list_parameters(function)}
    every = [p.annotation for _, function in functions() for p in list_parameters(function)]
    anything = [annotation for annotation in every if annotation is not None and mentions_any(annotation)]
    names = [name for name, annotation in known.items() if annotation is not None and mentions_any(annotation)]
    assert all(annotation is not None for annotation in every)
    assert len(anything) / len(every) < SHARE_OF_ANY, "\n".join(names)


def mentions_any(annotation: ast.expr) -> bool:
    text = annotation.value if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str) else ""
    tree = ast.parse(text, mode="eval") if text else annotation
    return any(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))
