"""Tests of the trackers: the configuration, curves, results and bundle that each of them holds after a run."""

import importlib.util
import json
import os
import re
from pathlib import Path

import pytest
from lightning.pytorch.loggers.logger import DummyLogger, Logger
from omegaconf import OmegaConf

from distill.core.errors import UserError, install_command
from distill.records import loggers
from distill.records.loggers import Csv, LoggerSettings, MLflow, TensorBoard, TrackerEntry, Tracking, Wandb
from tests.jobs.test_config import compose_config
from tests.records.test_report import record

CONFIG = {"seed": 3, "student": {"name": "small"}}


def track(root: Path, settings: LoggerSettings, *, failed: bool = False) -> Path:
    """Logs two steps and the results of the toy record in the sweep `monday`; returns the run's directory."""
    directory = root / "toy" / "run"
    bundle = directory / "bundle"
    bundle.mkdir(parents=True, exist_ok=True)
    (bundle / "bundle.json").write_text("{}")
    tracking = Tracking([settings], root=root, group="monday", config=CONFIG)
    tracking.check()
    with tracking.open(directory, metric="accuracy", selects="max") as opened:
        for logger in opened.lightning:
            logger.log_metrics({"train/soft": 0.5}, step=1)
            logger.log_metrics({"train/soft": 0.25}, step=2)
            logger.finalize("success")
        if failed:
            raise RuntimeError("the disk broke")
        opened.log_results(record(retention={"fp32": 1.0, "int8": 0.9}), bundle)
    return directory


def test_the_results_are_those_of_the_record() -> None:
    found = loggers.final_metrics(record(retention={"fp32": 1.0, "int8": 0.9}))
    assert found["final/teacher/accuracy"] == 0.9
    assert found["final/student/accuracy"] == 0.9
    names = ("accuracy", "retention", "bytes", "p50_ms")
    assert [found[f"final/int8/{name}"] for name in names] == [0.81, 0.9, 10_000_000, 2.5]
    joint = loggers.final_metrics(record(retention=None, tasks={"one": record(retention={}), "two": {}}))
    assert joint["final/one/int8/p50_ms"] == 2.5
    assert not [name for name in joint if name.startswith("final/two/")]


def test_every_run_writes_metrics_csv_and_renames_that_of_an_interrupted_one(tmp_path: Path) -> None:
    for _ in range(2):
        directory = track(tmp_path, Csv())
    assert (directory / "metrics.csv").read_text().splitlines() == ["step,train/soft", "1,0.5", "2,0.25"]
    assert (directory / "metrics.before-1.csv").is_file()


def test_tensorboard_has_the_curves_the_results_and_the_configuration(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = track(tmp_path, TensorBoard())
    events = EventAccumulator(str(directory / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/soft")] == [(1, 0.5), (2, 0.25)]
    assert events.Scalars("final/int8/accuracy")[0].value == pytest.approx(0.81)
    [table] = events.Tensors("results/text_summary")
    assert "student int8" in table.tensor_proto.string_val[0].decode()
    [config] = events.Tensors("configuration/text_summary")
    assert '"name": "small"' in config.tensor_proto.string_val[0].decode()
    hparams = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"student/name" in hparams
    assert b"monday" in hparams


@pytest.mark.slow
def test_mlflow_has_one_run_that_a_resumed_training_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    settings = MLflow(experiment="toy", directory=str(tmp_path / "mlflow"))
    with pytest.raises(RuntimeError, match="the disk broke"):
        track(tmp_path, settings, failed=True)
    assert "MLFLOW_TRACKING_URI" not in os.environ  # The configuration of the next run reads it.
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("toy")
    assert [run.info.status for run in client.search_runs([experiment.experiment_id])] == ["FAILED"]
    track(tmp_path, settings)
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name, run.data.tags["sweep"]) == ("FINISHED", "toy/run", "monday")
    assert run.data.params == {"seed": "3", "student/name": "small"}
    assert run.data.metrics["final/int8/accuracy"] == 0.81
    assert [point.step for point in client.get_metric_history(run.info.run_id, "train/soft")] == [1, 2, 1, 2]
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"bundle", "results.json"}
    assert (tmp_path / "mlflow" / "mlartifacts" / run.info.run_id / "artifacts" / "bundle" / "bundle.json").is_file()


def test_wandb_has_the_group_the_results_and_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    directory = track(tmp_path, Wandb(project="toy"))
    assert wandb.run is None  # The next training of this process begins a run of its own.
    wandb.teardown()  # Waits until the file is written.
    [file] = directory.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    entry = json.loads((directory / "loggers.json").read_text())["wandb"]
    for expected in (entry, "monday", "toy/run", "final/int8/retention", "train/soft", "small-toy", "student"):
        assert expected.encode() in content, expected


def test_a_resumed_run_continues_its_entry_in_each_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids: list[str | None] = []

    def open_entry(settings: LoggerSettings, entry: TrackerEntry) -> tuple[Logger, str]:
        ids.append(entry.id)
        return DummyLogger(), entry.id or f"of {type(settings).__name__}"

    for tracker in (Wandb, MLflow):
        monkeypatch.setattr(tracker, "open", open_entry)
        monkeypatch.setattr(tracker, "close", lambda *arguments, **options: None)
    tracking = Tracking([Wandb(project="toy"), MLflow(experiment="toy", directory="mlflow")])
    for _ in range(2):
        with tracking.open(tmp_path, metric="accuracy", selects="max"):
            pass
    assert ids == [None, None, "of Wandb", "of MLflow"]


def test_what_a_tracker_lacks_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("mlflow", "wandb") else find(name))
    with pytest.raises(UserError, match="logger=mlflow needs mlflow.*: " + re.escape(install_command("mlflow"))):
        MLflow(experiment="toy", directory=str(tmp_path)).check()
    with pytest.raises(UserError, match="logger=wandb needs wandb.*: " + re.escape(install_command("train"))):
        Wandb(project="toy").check()


def test_trackers_read_their_variables_when_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "postgresql://me:secret@host/runs"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", secret)
    config = OmegaConf.to_container(compose_config("logger=[mlflow,wandb]"), resolve=True)
    assert "secret" not in str(config)
    assert MLflow(experiment="toy", directory="mlflow")._uri() == secret
    for value, mode in (("disabled", "disabled"), ("", "offline")):
        monkeypatch.setenv("WANDB_MODE", value)
        assert Wandb(project="toy")._mode() == mode
        assert Wandb(project="toy", mode="online")._mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "never")
    with pytest.raises(UserError, match="got WANDB_MODE=never, expected one of online, offline, disabled"):
        Wandb(project="toy")._mode()
