"""How large is the code, and how many ideas does a reader have to know?

    python benchmarks/code_size.py
    python benchmarks/code_size.py --root path/to/another/checkout
    python benchmarks/code_size.py --budget    # the rooms that are larger than budget.yaml beside it says

Lines are those of `distill`, `students` and `teachers` without blank lines, comments and docstrings. A unit is a file
or a folder right below `distill`, without `__init__`, `__main__` and `api`. `students` and `teachers` are in `builtin`.
An arrow stands between two units if a module of the first imports one of the second anywhere, imports for type checking
aside. The longest path counts units.
The words of a docstring are those between white space, of its arguments too.
"""

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from functools import cache
from pathlib import Path

import yaml

PACKAGES = ("distill", "students", "teachers")
DOORS = {"__init__", "__main__", "api"}
LONG = 120  # Words of a docstring.
VERSION = "distill.__version__"  # Every module may import this name from the package itself.
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--budget", action="store_true", help="exit with 1 if a room is larger than its budget")
    arguments = parser.parse_args()
    root = arguments.root
    if arguments.budget:
        sys.exit("\n".join(list_excesses(root)) or None)
    sources = read_sources(root)
    trees = {name: ast.parse(source) for name, source in sources.items()}
    arrows = list_arrows(trees)
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    rows = {
        "files": len(trees),
        "lines": sum(map(count_lines, sources.values())),
        "classes": len(classes),
        "protocols": sum(any("Protocol" in ast.unparse(base) for base in node.bases) for node in classes),
        "units": len(arrows),
        "arrows": sum(map(len, arrows.values())),
        "longest path": longest_path(arrows),
        "members of Task": len(list_members("Task", {node.name: node for node in classes})),
        f"docstrings above {LONG} words": sum(map(count_long_docstrings, trees.values())),
        "class names of two classes": sum(count > 1 for count in Counter(node.name for node in classes).values()),
        "variables that begin with of_": sum(map(count_of_variables, trees.values())),
    }
    for name, value in rows.items():
        print(f"{name:<30} {value:>7,}")


def list_excesses(root: Path) -> list[str]:
    """Returns a line for each room with more lines of code than its budget, and for each room without one."""
    budget = yaml.safe_load((root / "benchmarks" / "budget.yaml").read_text(encoding="utf-8"))
    lines = Counter[str]()
    for path in (path for package in (*PACKAGES, "tests") for path in (root / package).rglob("*.py")):
        parts = path.relative_to(root).parts
        room = "/".join(parts[:2]) if parts[0] == "distill" and len(parts) > 2 else parts[0]
        lines[room] += count_lines(path.read_text(encoding="utf-8"))
    return [
        f"{room} has {count:,} lines, and its budget is {budget.get(room, 0):,}: take out what stands twice, or raise "
        "the budget in benchmarks/budget.yaml"
        for room, count in sorted(lines.items())
        if count > budget.get(room, 0)
    ]


def read_sources(root: Path) -> dict[str, str]:
    """Returns the source of every module of the packages by its name."""
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    return {module_name(path, root): path.read_text(encoding="utf-8") for path in paths}


def module_name(path: Path, root: Path) -> str:
    """Returns a name such as `distill.losses.term`, and for an `__init__.py` the name of its package."""
    parts = path.relative_to(root).with_suffix("").parts
    if parts[0] != "distill":
        parts = ("distill", "builtin", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def count_lines(source: str) -> int:
    """Returns the number of lines with code: no blanks, comments and docstrings."""
    docstrings = {
        line
        for node in list_documented(ast.parse(source))
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - docstrings)


def list_documented(tree: ast.Module) -> list[Documented]:
    """Returns everything in a module that has a docstring, perhaps the module itself."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, Documented))
    return [node for node in nodes if ast.get_docstring(node, clean=False) is not None]


def count_long_docstrings(tree: ast.Module) -> int:
    """Returns the number of docstrings with more than `LONG` words."""
    return sum(len((ast.get_docstring(node) or "").split()) > LONG for node in list_documented(tree))


def count_of_variables(tree: ast.Module) -> int:
    """Returns the number of names of variables that begin with `of_`, each counted once a module."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return sum(name.startswith("of_") for name in names)


def unit_of(module: str) -> str:
    """Returns the file or folder right below `distill`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def list_arrows(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Returns the units that each unit imports."""
    arrows: dict[str, set[str]] = {}
    for module, tree in trees.items():
        unit = unit_of(module)
        if unit in DOORS:
            continue
        others = {unit_of(name) for name in list_imports(tree, trees, module=module) if name.split(".")[0] == "distill"}
        arrows.setdefault(unit, set()).update(others - DOORS - {unit})
    return arrows


def list_imports(tree: ast.AST, modules: Container[str], *, module: str) -> Iterator[str]:
    """Yields the modules that one imports anywhere, except only for type checking, and never `VERSION`."""
    for node in walk_statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            source = f"{module.rpartition('.')[0]}.{node.module}" if node.level else node.module
            names = {f"{source}.{alias.name}" for alias in node.names} - {VERSION}
            yield from (name if name in modules else source for name in names)


def walk_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yields all nodes, also inside functions, except those only for type checking."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            for other in child.orelse:
                yield other
                yield from walk_statements(other)
            continue
        yield child
        yield from walk_statements(child)


def longest_path(arrows: Mapping[str, set[str]]) -> int:
    """Returns the units on the longest path; raises ValueError if units import each other in a circle."""

    @cache
    def length(unit: str) -> int:
        return 1 + max(map(length, arrows[unit]), default=0)

    try:
        return max(map(length, arrows))
    except RecursionError:
        raise ValueError("units import each other in a circle") from None


def list_members(name: str, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """Returns the attributes, properties and methods that a class and those it inherits from declare."""
    body, bases = classes[name].body, (ast.unparse(base) for base in classes[name].bases)
    names = {
        node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    } | {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return names.union(*(list_members(base, classes) for base in bases if base in classes))


if __name__ == "__main__":
    main()
