"""Who may import whom, as the architecture says, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import distill

ROOT = Path(distill.__file__).resolve().parents[1]


def imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere, those for type checking alone aside; ours with their second name."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"distill.{a.name}" for a in node.names} if node.module == "distill" else {node.module}
    ours = ("distill", "students", "teachers")
    return {".".join(name.split(".")[:2]) if name.startswith(ours) else name.split(".")[0] for name in found}


def test_the_package_never_imports_students_or_teachers() -> None:
    for path in (ROOT / "distill").rglob("*.py"):
        assert not {name for name in imports(path) if name.startswith(("students", "teachers"))}, path


def test_students_and_teachers_know_only_errors_files_and_the_hub() -> None:
    for folder in ("students", "teachers"):
        for path in (ROOT / folder).rglob("*.py"):
            ours = {name for name in imports(path) if name.startswith("distill")}
            assert ours <= {"distill.errors", "distill.files", "distill.hub", "distill.models"}, path


def test_readers_of_text_and_labelled_data_do_not_import_each_other() -> None:
    for path in (ROOT / "distill" / "data").rglob("*.py"):
        assert "distill.text" not in imports(path), path
    for name in ("readers", "corpus", "packing", "masking"):
        assert "distill.data" not in imports(ROOT / "distill" / "text" / f"{name}.py"), name


def test_the_edge_runtime_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'lightning', 'hydra', 'datasets', 'sklearn', 'pydantic'):\n"
        "    sys.modules[name] = None\n"
        "import distill.edge.__main__ as edge\n"
        "sys.exit(edge.main(['nowhere', 'text']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: nowhere is no bundle: it has no bundle.json\n"
