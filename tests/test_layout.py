"""Tests of the architecture, read from the source: import levels, cycles, lengths of functions, and types."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import distill
from benchmarks.code_size import PACKAGES, list_excesses, list_imports, read_sources, unit_of, walk_statements

ROOT = Path(distill.__file__).resolve().parents[1]
# A room is a file or folder right below `distill`. It imports itself and rooms of lower levels.
LEVELS = (
    {"core"},
    {"rows"},
    {"edge", "losses"},
    {"data", "labelling"},
    {"models", "text"},
    {"kinds"},
    {"training"},
    {"records"},
    {"teachers", "export", "builtin"},
    {"chain", "inspection"},
    {"jobs"},
    {"serve"},
    {"client", "service"},
    {"__main__", "api", "__init__"},
)
# Rooms that are imported by few.
DOORS = {"inspection": {"jobs", "api"}, "serve": {"client", "service"}, "builtin": {"api"}}
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
            allowed = 1 if module.startswith((f"{BUILTIN}.", "distill.models.architectures.modeling_")) else 0
            assert node.level <= allowed, f"{module} has a relative import"
            assert node.module is not None
    names = list_imports(tree, sources(), module=module)
    return frozenset(name for name in names if name.split(".")[0] in PACKAGES)


def test_rooms_import_rooms_of_lower_levels() -> None:
    level = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
    upward = [
        (module, name)
        for module in sources()
        for name in imports(module)
        if name.startswith("distill.") and unit_of(name) != unit_of(module)
        and level[unit_of(name)] >= level[unit_of(module)]
    ]  # fmt: skip
    assert upward == []


def test_a_device_needs_core_and_readers_of_rows_alone() -> None:
    for module in sources():
        if unit_of(module) in ("edge", "rows"):
            assert set(map(unit_of, imports(module))) <= {"core", "rows", unit_of(module)}, module


def test_few_rooms_import_a_door() -> None:
    for module in sources():
        for name in imports(module):
            room = unit_of(name)
            assert room not in DOORS or unit_of(module) in {room, *DOORS[room]}, (module, name)


def test_no_modules_import_each_other_in_a_cycle() -> None:
    TopologicalSorter({module: imports(module) for module in sources()}).prepare()


@pytest.mark.parametrize("package", ["students", "teachers"])
def test_students_and_teachers_import_none_of_the_others(package: str) -> None:
    own = f"{BUILTIN}.{package}"
    modules = [module for module in sources() if module.startswith(f"{own}.")]
    assert modules
    for module in modules:
        assert all(name.startswith(f"{own}.") for name in imports(module) if unit_of(name) == "builtin"), module
        assert not {name for name in imports(module) if not name.startswith("distill")}, module


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


def test_no_room_is_larger_than_its_budget() -> None:
    assert list_excesses(ROOT) == []


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
