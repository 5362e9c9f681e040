"""Runs that are resumed: sweeps that go on, directories that moved, runs of another process, edited files."""

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from distill.core.errors import Interrupted, UserError
from distill.core.files import atomic_file
from distill.jobs import execution
from distill.jobs.execution import _GROUPS, _check_paths, _load_config, _with_absolute_paths, digest
from distill.records import run as record_module
from distill.records.loggers import tracked
from distill.records.run import Run, create_run_in, open_run
from tests.jobs.conftest import Command

FINETUNE = (
    "job=finetune", "+teacher=pretrained", "task=sst2", "task.max_length=32", "teacher.finetune.max_epochs=1",
    "teacher.finetune.learning_rate=3e-3", "teacher.finetune.batch_size=16", "teacher.accept_weak=true",
)  # fmt: skip


@pytest.fixture
def finetune(tmp_path: Path, data_dir: Path, encoder_dir: Path) -> tuple[str, ...]:
    """A job that takes seconds, with its own cache."""
    return (*FINETUNE, f"task.data_dir={data_dir}", f"teacher.path={encoder_dir}", f"cache_dir={tmp_path / 'cache'}")


def records(root: Path) -> dict[int, dict[str, Any]]:
    """The record of every run below `root` by the seed of its fine-tuning."""
    return {
        OmegaConf.load(path.with_name("config.yaml")).teacher.finetune.seed: json.loads(path.read_text())
        | {"directory": path.parent}
        for path in root.rglob("run.json")
    }


def test_resumed_sweep_skips_finished_runs_resumes_unfinished_ones_and_starts_the_others(
    command: Command, finetune: tuple[str, ...], tmp_path: Path
) -> None:
    code, _, error = command("-m", *finetune, "teacher.finetune.seed=0,1")
    assert code == 0, error
    before = records(tmp_path / "runs")
    unfinished = before[1]["directory"]
    Run(unfinished, {**open_run(unfinished).record, "status": "running", "teacher": {}}).save()
    code, output, error = command("-m", *finetune, "teacher.finetune.seed=0,1,2", "resume=true")
    assert code == 0, error
    after = records(tmp_path / "runs")
    assert f"{before[0]['directory'].relative_to(tmp_path)} is finished already" in output
    assert f"Resuming {unfinished.relative_to(tmp_path)}" in output
    assert {seed: record["status"] for seed, record in after.items()} == {0: "finished", 1: "finished", 2: "finished"}
    assert len(list((tmp_path / "runs").rglob("run.json"))) == 3
    assert after[1]["teacher"]["metrics"] == before[1]["teacher"]["metrics"]


def test_run_of_another_process_is_not_resumed(tmp_path: Path) -> None:
    run = create_run_in(tmp_path / "run", job="distill")
    with (
        tracked(run, resume_with=""),
        pytest.raises(UserError, match="run is in use by another process: wait until it ends"),
        tracked(Run(run.directory, dict(run.record)), resume_with=""),
    ):
        pass
    assert open_run(run.directory).record["status"] == "finished"
    with tracked(run, resume_with=""):  # The lock was released.
        pass


def test_what_a_killed_run_was_writing_is_removed_when_it_is_resumed(tmp_path: Path) -> None:
    run = create_run_in(tmp_path / "run", job="distill")
    for name in ("bundle", "checkpoints/last.ckpt", "seeds/1/student"):
        killed = (run.directory / name).with_name(f".{Path(name).name}.{'0' * 32}")
        killed.mkdir(parents=True)
        (killed / "model.onnx").write_text("half")
    with atomic_file(run.directory / "report.html") as page:  # By a report that is being made.
        page.write_text("whole")
        with tracked(run, resume_with=""):
            assert [path.parent for path in run.directory.rglob("model.onnx")] == []
    assert (run.directory / "report.html").read_text() == "whole"


def test_seconds_of_an_interrupted_process_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=10)
    monkeypatch.setattr(record_module.time, "perf_counter", lambda: next(clock))
    run = create_run_in(tmp_path / "run", job="distill")
    with pytest.raises(Interrupted), tracked(run, resume_with=""), run.timed("training"):
        raise KeyboardInterrupt
    assert open_run(run.directory).record["seconds"] == {"training": 10, "total": 30}
    resumed = open_run(run.directory)
    with tracked(resumed, resume_with=""):
        for _ in range(2):
            with resumed.timed("training"):
                pass
    assert open_run(run.directory).record["seconds"] == {"training": 30, "total": 80}


def test_run_with_relative_paths_is_resumed_from_another_directory(
    command: Command, finetune: tuple[str, ...], data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(data_dir, tmp_path / "data")
    arguments = ("task.data_dir=data", *(option for option in finetune if not option.startswith("task.data_dir")))
    assert command(*arguments)[0] == 0
    [record] = records(tmp_path / "runs").values()
    run = record.pop("directory")
    Run(run, {**record, "status": "failed"}).save()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, _, error = command(f"resume={run}")
    assert code == 0, error
    Run(run, {**record, "status": "failed"}).save()
    shutil.rmtree(tmp_path / "data")
    code, _, error = command(f"resume={run}")
    assert code == 2
    assert f"was started with task.data_dir=data, which is {tmp_path / 'data'} and does not exist" in error


def test_unlabelled_text_of_the_hub_is_no_missing_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a text")
    (tmp_path / "auto").write_text("a text")
    run = Run(tmp_path / "run", {"command": ["task.unlabelled=texts.txt"]})
    cases = (("texts.txt", str(tmp_path / "texts.txt")), ("owner/name", "owner/name"), (None, None), ("auto", "auto"))
    for value, saved in cases:
        config = _with_absolute_paths(OmegaConf.create({"task": {"unlabelled": value}}))
        assert config.task.unlabelled == saved
        _check_paths(config, run)
    (tmp_path / "texts.txt").unlink()
    with pytest.raises(UserError, match=r"was started with task.unlabelled=texts.txt, which is .* and does not exist"):
        _check_paths(OmegaConf.create({"task": {"unlabelled": str(tmp_path / "texts.txt")}}), run)


@pytest.mark.parametrize(
    ("name", "damage", "expected"),
    [
        ("config.yaml", lambda text: text.replace("max_epochs: 1", "max_epochs: 9"), "was edited after the run began"),
        ("config.yaml", lambda text: text[: len(text) // 2] + "\t: [", "config.yaml is damaged"),
        ("config.yaml", lambda text: "- a\n- b\n", "config.yaml is damaged: it is no mapping"),
        ("run.json", lambda text: text[:-20], "run.json is damaged"),
        ("run.json", lambda text: text.replace('"seed": 0', '"seed": 1'), "run.json is damaged: its content does not"),
        (
            "run.json",
            lambda text: text.replace('"schema": 1', '"schema": 2'),
            "run.json has the schema 2, this version of distill reads schema 1: start a new run, or read it with the",
        ),
        ("run.json", lambda text: "[]", "run.json is damaged: its status is none of running, finished, failed"),
    ],
)
def test_damaged_file_of_a_resumed_run_is_named(
    name: str, damage: Callable[[str], str], expected: str, command: Command, finetune: tuple[str, ...], tmp_path: Path
) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("sentence\tlabel\na film\n")  # Without its label.
    assert command(*finetune, f"task.data_dir={tmp_path}")[0] == 2
    [record] = records(tmp_path / "runs").values()
    path = record["directory"] / name
    damaged = damage(path.read_text())
    path.write_text(damaged)
    code, _, error = command(f"resume={record['directory']}")
    assert (code, path.read_text()) == (2, damaged)
    assert expected in error
    assert len(error.strip().splitlines()) == 1


def test_a_run_resumes_with_another_logger_and_no_other_seed(tmp_path: Path) -> None:
    groups: dict[str, Any] = {name: {} for name in _GROUPS} | {"seed": 1, "job": {"name": "distill"}}
    config = OmegaConf.create(groups | {"logger": {"csv": {}}, "resume": False})
    run = create_run_in(tmp_path / "run", config_sha256=digest(config))
    OmegaConf.save(OmegaConf.merge(config, {"logger": {"wandb": {}}}), run.directory / "config.yaml")
    assert list(_load_config(run).logger) == ["csv", "wandb"]
    OmegaConf.save(OmegaConf.merge(config, {"seed": 2}), run.directory / "config.yaml")
    with pytest.raises(UserError, match="was edited after the run began"):
        _load_config(run)


def test_the_last_of_the_unfinished_runs_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [create_run_in(tmp_path / name, job="distill") for name in ("old", "new")]
    monkeypatch.setattr(execution, "_runs_of", lambda config: runs)
    monkeypatch.setattr(execution.HydraConfig, "get", lambda: SimpleNamespace(mode=RunMode.RUN))
    config = OmegaConf.create({"resume": True})
    assert execution._find_run(config) == (config, runs[1])


def test_home_directory_in_the_output_of_a_sweep_is_expanded(
    command: Command, finetune: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert command("-m", *finetune, "output_dir='~/runs'", "task.data_dir=missing")[0] == 2
    assert not (tmp_path / "~").exists()
    assert sorted(os.listdir(tmp_path / "home" / "runs")) == ["sst2", "sweeps"]
