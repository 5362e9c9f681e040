"""Tests that a row added to a table is seen by everything that reads the table."""

import ast
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

import distill
from distill import builtin
from distill.builtin import students
from distill.core.contracts import Scores
from distill.core.errors import OptionError, UserError
from distill.edge.metrics import CLASS_METRICS, SET_METRICS
from distill.export import quantization
from distill.export.quantization import FORMATS, RECIPES, Format, Recipe
from distill.jobs.command_line import JOBS, OPTIONS, Job, find_job
from distill.kinds import classification

ROOT = Path(__file__).parent.parent


def import_with(module: Any, table: str, **rows: Any) -> dict[str, Any]:
    """Returns the names of a module as a process would import it whose table had these rows too."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    [place] = [
        number
        for number, node in enumerate(tree.body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == table
    ]
    tree.body[place + 1 : place + 1] = ast.parse(f"{table}.update(ROWS)").body
    names = {"__name__": "imported", "ROWS": rows}
    exec(compile(tree, module.__file__, "exec"), names)
    return names


def test_an_added_recipe_is_an_option() -> None:
    recipe = Recipe("the float32 file", lambda material, path: None)
    added = import_with(quantization, "RECIPES", copied=recipe)["ExportSettings"]
    assert added().recipes[-1] == "copied"
    assert added(recipes=("copied",)).recipes == ("copied",)
    with pytest.raises(OptionError, match="float16, qat, copied$"):
        added(recipes=("other",))
    with pytest.raises(OptionError, match="float16, qat$"):
        quantization.ExportSettings(recipes=("copied",))


def test_an_added_format_is_an_option() -> None:
    added = import_with(quantization, "FORMATS", copy=Format("model.copy.onnx", "float32 again"))["ExportSettings"]
    assert added(formats=["fp32", "copy"]).formats == ("fp32", "copy")
    with pytest.raises(OptionError, match="openvino-full, copy$"):
        added(formats=["fp32", "other"])


@pytest.mark.parametrize("name", [*RECIPES, *FORMATS])
def test_every_recipe_and_format_is_in_the_docs(name: str) -> None:
    assert re.search(rf"^\| `{name}` \|", (ROOT / "docs" / "quantization.md").read_text(), re.MULTILINE)


def test_an_added_metric_of_classes_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLASS_METRICS, "first", lambda counts, positive: counts[0, 1])
    added = runpy.run_path(classification.__file__)["Classification"]
    scores = Scores({"logits": np.array([[0.0, 1.0]])}, np.array([0]), np.array([0]))
    rows = (["a", "b"], ["x", "y"])
    data = added(text="text", metrics=["first"], train=rows, dev=rows).read(Path("nowhere"))
    assert data.scoring.metrics(scores) == {"first": 1.0}
    with pytest.raises(OptionError, match="accuracy, f1, matthews, macro_f1, first, or of functions"):
        added(text="text", metrics=["other"])


def test_an_added_metric_of_sets_of_labels_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SET_METRICS, "given", lambda labels, given: given.sum())
    added = runpy.run_path(classification.__file__)["Classification"]
    scores = Scores({"logits": np.array([[-1.0, 1.0]])}, np.zeros((1, 2)), np.array([0]))
    rows = (["a", "b"], [["x"], ["x", "y"]])
    data = added(text="text", multi_label=True, metrics=["given"], train=rows, dev=rows).read(Path("nowhere"))
    assert data.scoring.metrics(scores) == {"given": 1.0}
    with pytest.raises(OptionError, match="micro_f1, macro_f1, subset_accuracy, given, or of functions"):
        added(text="text", multi_label=True, metrics=["other"])


def test_an_added_loss_is_public_with_one_line_of_losses(tmp_path: Path) -> None:
    folder = tmp_path / "losses"
    folder.mkdir()
    line = "from distill.losses.{} as {}\n"
    (folder / "__init__.py").write_text(
        line.format("mine import Mine", "Mine") + line.format("logits import Kept", "Own")
    )
    (tmp_path / "__init__.py").write_text("from distill.losses import *\nfrom distill.api import Left\n")
    names = distill._list_imports(tmp_path / "__init__.py")
    assert names == {"Mine": ("distill.losses.mine", "Mine"), "Own": ("distill.losses.logits", "Kept")}


def test_every_loss_in_a_yaml_is_public() -> None:
    named = re.compile(r"_target_: distill\.losses\.(\w+)")
    losses = {name for path in (ROOT / "conf" / "objective").glob("*.yaml") for name in named.findall(path.read_text())}
    assert losses
    assert losses <= set(distill.__all__)


def test_an_added_student_is_imported_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy.py").write_text("from_teacher = len\n")
    name = f"{students.__name__}.toy"
    monkeypatch.setitem(sys.modules, name, None)  # Removed again at the end.
    del sys.modules[name]
    monkeypatch.setattr(students, "__path__", [*students.__path__, str(tmp_path)])
    monkeypatch.setattr(students, "toy", None, raising=False)
    runpy.run_path(str(builtin.__file__), {"__path__": list(builtin.__path__)}, builtin.__name__)
    assert sys.modules[name].from_teacher is len


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "student").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_student_has_one_file_and_a_name_in_python(path: Path) -> None:
    target = OmegaConf.load(path)["_target_"]
    assert target == f"distill.builtin.students.{path.stem}.from_teacher"
    assert callable(get_object(target))
    assert callable(getattr(distill.students, path.stem))


def test_an_added_job_is_run_with_the_options_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Job("json:dumps", ("seed", "trainer"), ("trainer",))
    monkeypatch.setitem(JOBS, "added", added)
    assert find_job("added").load()({"a": 1}) == '{"a": 1}'
    assert added.ignored(on_text=False) == tuple(name for name in OPTIONS if name not in ("seed", "trainer"))
    assert "seed" in added.ignored(on_text=True)
    with pytest.raises(UserError, match=r"^there is no job other, expected one of distill, .*, publish, added$"):
        find_job("other")


def test_every_job_has_a_configuration_and_a_function() -> None:
    assert {path.stem for path in (ROOT / "conf" / "job").glob("*.yaml")} == set(JOBS)
    assert all(callable(job.load()) for job in JOBS.values())
    assert all(set(job.reads) <= set(OPTIONS) for job in JOBS.values() if job.creates_run)
