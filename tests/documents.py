"""The documents of the repository whose commands and Python are tested: README, pages, notebooks and examples."""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import distill

ROOT = Path(distill.__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "examples/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted([*(ROOT / "docs").glob("*.ipynb"), *(ROOT / "examples").glob("*.ipynb")])
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTS = [*PAGES, *NOTEBOOKS, *SCRIPTS]
# Documents that show commands and no Python that is tested.
COMMAND_DOCUMENTS = [
    *DOCUMENTS,
    ROOT / "benchmarks/README.md",
    *(path for folder in ("distill", "benchmarks", "students", "teachers") for path in (ROOT / folder).rglob("*.py")),
    *(ROOT / "conf").rglob("*.yaml"),
]
MAGIC = "%%"  # The first line of a cell that is no Python.
_COMMAND = re.compile(r"(?:^ *|-m )distill(?:\.(\w+))? ((?:(?! [|&;<>] )[^`#])*)")


def read_cells(notebook: Path, kind: str) -> list[str]:
    """Returns the sources of the cells of a kind, `code` or `markdown`."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def read_text(document: Path) -> str:
    """Returns a document with each command on one line; of a script its docstring."""
    if document.suffix == ".ipynb":
        text = "\n".join([*read_cells(document, "markdown"), *read_cells(document, "code")])
    elif document.suffix == ".py":
        text = ast.get_docstring(ast.parse(document.read_text(encoding="utf-8"))) or ""
    else:
        text = document.read_text(encoding="utf-8")
    return re.sub(r" *\\\n *", " ", text)


def read_python(document: Path) -> list[str]:
    """Returns the Python of a document: fenced blocks, cells, or the whole of a script."""
    if document.suffix == ".py":
        return [document.read_text(encoding="utf-8")]
    if document.suffix == ".ipynb":
        return [cell for cell in read_cells(document, "code") if not cell.startswith(MAGIC)]
    return read_blocks(document, "python")


def read_blocks(document: Path, language: str) -> list[str]:
    """Returns the fenced code blocks of one language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(encoding="utf-8"), re.M | re.S)


def read_commands(document: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields the module and the arguments of each `python -m distill.MODULE ...` and `distill ...` of a document.

    They are on lines of their own, or between backticks. `...` and a choice in brackets are left out.
    """
    text = "\n".join(_read_docstrings(document)) if document.suffix == ".py" else read_text(document)
    text = re.sub(r" *\\\n[ #]*", " ", text).replace("\\|", "|")
    spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    lines = [line.removeprefix("# ") for line in text.splitlines() if "`" not in line]
    for part in [*spans, *lines]:
        for module, arguments in _COMMAND.findall(part):
            words = [word for word in shlex.split(arguments) if word != "..." and not word.startswith("[")]
            if words:
                yield module, words


def _read_docstrings(script: Path) -> Iterator[str]:
    """Yields the docstrings of a script, of its classes and of its functions."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""
