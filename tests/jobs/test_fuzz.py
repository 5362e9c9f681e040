"""Tests that a damaged run.json or config.yaml is either refused or read as it was written.

DISTILL_FUZZ=5000 pytest -n 0 tests/jobs/test_fuzz.py
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig

from distill.core.errors import UserError
from distill.jobs import execution as jobs
from distill.records.run import Run, open_run
from tests.fuzzing import damages, fuzz
from tests.jobs.test_config import compose_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, bytes], DictConfig]:
    """A run, the content of its files, and its configuration."""
    root = tmp_path_factory.mktemp("runs")
    config = compose_config("+teacher=pretrained", "teacher.path=.", "+student=distilbert", f"output_dir={root}")
    created = jobs._create_run(config)
    created.update(status="failed", error="interrupted", teacher={"metrics": {"accuracy": 0.75}})
    files = {name: (created.directory / name).read_bytes() for name in jobs.RUN_FILES}
    return created, files, jobs._load_config(created)


@pytest.mark.parametrize("name", jobs.RUN_FILES)
@fuzz(100)
@given(data=st.data())
def test_damaged_file_of_a_run_is_refused_or_read_unchanged(
    name: str, data: st.DataObject, run: tuple[Run, dict[str, bytes], DictConfig]
) -> None:
    created, files, config = run
    path: Path = created.directory / name
    path.write_bytes(data.draw(damages(files[name])))
    try:
        opened = open_run(created.directory, needs=jobs.RUN_FILES)
        loaded = jobs._load_config(opened)
    except UserError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - most damage is refused, some is not
    else:
        assert opened.record == created.record
        assert jobs.digest(loaded) == jobs.digest(config)
    finally:
        path.write_bytes(files[name])
