"""Tests of the texts of dev that a bundle is timed on."""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from omegaconf import OmegaConf

from distill.jobs.measuring_jobs import read_dev_records
from tests.jobs.test_config import compose_config


def write_predictions(directory: Path, **columns: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), directory / "predictions.parquet")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"text": ["one", "test"]}, ["one"]),
        ({"text": ["one", "test"], "second_text": ["two", "test"]}, [["one", "two"]]),
        ({"texts": [["a", "b", "c"], ["test"]]}, [["a", "b", "c"]]),
        ({"question": ["q", "t"], "context": ["c", "t"]}, [{"question": "q", "context": "c"}]),
        ({"question": ["q", "t"], "choices": [["x", "y"], ["t"]]}, [{"question": "q", "choices": ["x", "y"]}]),
        (
            {"question": ["q", "t"], "context": ["c", "t"], "choices": [["x"], ["t"]]},
            [{"question": "q", "context": "c", "choices": ["x"]}],
        ),
        ({"query": ["q", "t"], "documents": [["x", "y"], ["t"]]}, [{"query": "q", "documents": ["x", "y"]}]),
        ({"text": [None, "test"]}, []),
    ],
)
def test_records_have_the_form_that_a_bundle_reads(
    tmp_path: Path, columns: dict[str, Any], expected: list[Any]
) -> None:
    write_predictions(tmp_path, split=["dev", "test"], **columns)
    records, choices = read_dev_records(tmp_path / "bundle", trust=())
    assert records == expected
    assert choices == (len(columns["choices"][0]) if "choices" in columns else None)


def test_the_predictions_of_one_of_several_tasks_are_found(tmp_path: Path) -> None:
    write_predictions(tmp_path / "tasks" / "mrpc", split=["dev"], text=["one"])
    assert read_dev_records(tmp_path / "bundle" / "mrpc", trust=())[0] == ["one"]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (None, "because its run has no predictions.parquet"),
        ({"split": ["dev"], "index": [0]}, "predictions.parquet has no texts"),
        ({"text": ["one"]}, "predictions.parquet has no texts"),
    ],
)
def test_a_run_without_texts_is_said_so(
    tmp_path: Path, columns: dict[str, Any] | None, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("task: {_target_: os._exit, status: 1}")
    if columns is not None:
        write_predictions(tmp_path, **columns)
    assert read_dev_records(tmp_path / "bundle", trust=()) == ([], None)
    assert reason in capsys.readouterr().out


def test_a_damaged_file_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "predictions.parquet").write_bytes(b"PAR1 and no more")
    assert read_dev_records(tmp_path / "bundle", trust=()) == ([], None)
    assert "predictions.parquet is damaged" in capsys.readouterr().out


def test_a_trusted_run_without_texts_reads_dev_by_its_task(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = compose_config("task=sst2", f"task.data_dir={data_dir}", f"cache_dir={tmp_path / 'cache'}")
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    records, _ = read_dev_records(tmp_path / "bundle", trust=["my_package"])
    assert records
    assert all(isinstance(record, str) for record in records)
    config.task._target_ = "os._exit"
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    assert read_dev_records(tmp_path / "bundle", trust=["my_package"]) == ([], None)
    assert "would run task._target_=os._exit" in capsys.readouterr().out
