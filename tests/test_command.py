"""Tests that the command line reports mistakes in one line, with the valid names and exit code 2."""

import gc
import importlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import distill
from distill import __main__ as command_line
from distill.core.errors import install_command
from tests.conftest import run_here

ROOT = Path(command_line.__file__).resolve().parents[1]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "distill", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["+teacher=bert_base"], "no student chosen: add +student=NAME, one of albert, bilstm, cnn, distilbert"),
        (["+teacher=bert_base", "+studnt=distilbert"], "there is no option studnt (did you mean student?)"),
        (["+teacher=bert_bas", "+student=distilbert"], "did you mean bert_base?"),
        (["task=sst3"], "there is no task sst3 (did you mean sst2?), expected one of "),
        (["task=sst22"], "there is no task sst22 (did you mean sst2?)\n"),
        (["tsk=sst2"], "there is no option tsk (did you mean task?)"),
        (["teacher=bert_base"], "teacher=bert_base lacks its plus, because there is no default teacher: type +"),
        (["teacher=bert_bas"], "bert_bas (did you mean bert_base?): it is chosen with a plus, as in +teacher="),
        (["+task=sst2"], "got more than one task: type task=sst2 without its plus"),
        (["+teacher=minilm", "+teacher=bert_base"], "got more than one teacher: choose one"),
        (["job=check", "films.csv"], "films.csv is no option: type job=check data=films.csv"),
        (["films.csv"], "type job=check data=films.csv to look at its rows, or task=classification task."),
        (["job=report", "runs"], "type job=report runs=runs"),
        (["check", "films.csv"], "check is no option: type job=check"),
        (["+teacher=", "minilm"], "minilm is no option: type +teacher=minilm without a space"),
        (["+teacher", "minilm"], "+teacher is no option: type +teacher=NAME"),
        (["minilm"], "minilm is no option: type +teacher=minilm"),
        (["task.text=[a,{b:c"], "task.text=[a,{b:c lacks }] at its end: type 'task.text=[a,{b:c}]'"),
        (["task.text = a"], "'task.text = a' has a space at its equals sign: type task.text=a"),
        (["export=none"], "there is no export none: type export.enabled=false"),
        (["benchmark=false"], "there is no benchmark false: type benchmark.enabled=false"),
        (["adapt=off"], "there is no adapt off: type adapt=none"),
        (["augment=off"], "there is no augment off: type augment=none"),
        (["task=3"], "there is no task 3, expected one of acl_arc, "),
        (["+teacher=./model"], "type +teacher=pretrained teacher.path=./model"),
        (["task=./films.csv"], "type task=classification task.data_dir=./films.csv"),
        (["max_steps=3"], "there is no option max_steps (did you mean trainer.max_steps?)"),
        (["+teacher=bert_base", "teacher.pth=x"], "did you mean teacher.path?"),
        (["task=sst2", "task.datadir=x"], "did you mean task.data_dir?"),
        (["--student", "distilbert"], "there is no option --student: set options with key=value, and see --help"),
        (["+teacher=bert_bas", "-m", "seed=0,1"], "did you mean bert_base?"),
        (["+teacher=bert_bas", "--config-dir=.", "seed=0", "-cd", "."], "did you mean bert_base?"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(arguments: list[str], expected: str, tmp_path: Path) -> None:
    done = run_here(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["+experiment=mne"], "there is no experiment mne (did you mean mine?)\n"),
        (["+experiment=mine", "experiment.titel=x"], "experiment.titel (did you mean experiment.title?)"),
        (["-m", "+experiment=mine", "task.datadir=x"], "task.datadir (did you mean task.data_dir?)"),
    ],
)
@pytest.mark.parametrize("option", ["--config-dir own", "--config-dir=own"])
def test_what_is_misspelt_beside_the_users_own_experiment_is_told_with_the_nearest_name(
    arguments: list[str], expected: str, option: str, tmp_path: Path
) -> None:
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    text = "# @package _global_\nexperiment: {name: mine, title: Mine, rows: {one: [seed=1]}}\n"
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(text)
    done = run_here(*option.split(), *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_output_in_a_locale_without_the_characters_of_a_label_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    monkeypatch.setattr(sys, "argv", ["distill"])
    assert command_line.main() == 2
    print("schön", flush=True)
    assert printed.getvalue() == b"sch\\xf6n\n"


def test_hydra_full_error_shows_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    done = run("task=sst3", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_hydra_full_error_is_not_left_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr("sys.argv", ["distill", "task=sst3"])
    assert command_line.main() == 2
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_the_version_is_printed(tmp_path: Path) -> None:
    done = run("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"distill {distill.__version__}\n")


def test_an_interrupt_in_an_import_ends_with_the_exit_code(tmp_path: Path) -> None:
    """An import of a dataclass runs a string, through which the interrupt passes."""
    (tmp_path / "interrupted.py").write_text(
        "import sys\n"
        "from distill import __main__ as command\n"
        "def interrupt(show_traceback):\n"
        "    exec('raise KeyboardInterrupt')\n"
        "command._run = interrupt\n"
        "sys.exit(command.main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "error: interrupted before anything began\n")


def test_without_the_extra_the_install_command_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = command_line.importlib.util.find_spec
    monkeypatch.setattr(
        command_line.importlib.util, "find_spec", lambda name: None if name in ("torch", "hydra") else find_spec(name)
    )
    assert command_line.main() == 2
    assert capsys.readouterr().err == (
        f"error: hydra, torch not installed: {install_command('train')} has all that training needs\n"
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["+teacher=bert_base", "+student=distilbert", "task=mrpc"],
            "Job      distill: task mrpc, teacher bert_base, student distilbert",
        ),
        (["job=finetune", "+teacher=bert_base"], "Job      finetune: task docstrings, teacher bert_base"),
        (["resume=runs/first"], "Resume   runs/first"),
    ],
)
def test_the_first_line_comes_before_the_packages_are_imported(
    arguments: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distill.jobs.execution", None)
    monkeypatch.setattr(sys, "argv", ["distill", *arguments])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="import of distill.jobs.execution halted"):
        command_line.main()
    assert capsys.readouterr().out.splitlines() == [line]


@pytest.mark.parametrize("is_first", [True, False])
def test_only_what_the_first_run_of_a_command_imports_is_left_out_of_searches_for_garbage(
    is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second freezing, in a sweep, would keep the models of the run before for ever."""
    calls: list[str] = []
    importlib.import_module("distill.jobs.execution")
    if is_first:
        monkeypatch.delitem(sys.modules, "distill.jobs.execution")
    monkeypatch.setattr(command_line.importlib, "import_module", lambda name: calls.append(f"import {name}"))
    monkeypatch.setattr(command_line.gc, "freeze", lambda: calls.append("freeze"))
    command_line._import_jobs()
    assert calls == (["import distill.jobs.execution", "freeze"] if is_first else [])
    assert gc.isenabled()
