"""Tests that a damaged run.json or config.yaml is either refused or read as it was written.

FUZZ_EXAMPLES=5000 pytest -n 0 tests/jobs/test_fuzz.py
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

from distill.errors import UserError
from distill.jobs import run as jobs
from distill.records.record import Run, open_run
from tests.jobs.test_config import compose_config

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, float, bytes]:
    """Draws a kind of damage, its place as a share of the file, and bytes."""
    kind = draw(st.sampled_from(("flip", "insert", "delete", "truncate", "replace")))
    return kind, draw(st.floats(0, 1, exclude_max=True)), draw(st.binary(min_size=1, max_size=8))


def apply_damage(content: bytes, damage: tuple[str, float, bytes]) -> bytes:
    kind, share, noise = damage
    place = int(share * len(content))
    rest = content[place:]
    if kind == "flip":
        return content[:place] + bytes([rest[0] ^ (1 << noise[0] % 8)]) + rest[1:]
    if kind == "insert":
        return content[:place] + noise + rest
    if kind == "delete":
        return content[:place] + rest[len(noise) :]
    if kind == "truncate":
        return content[:place]
    return content[:place] + noise + rest[len(noise) :]


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
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=damages())
def test_damaged_file_of_a_run_is_refused_or_read_unchanged(
    name: str, damage: tuple[str, float, bytes], run: tuple[Run, dict[str, bytes], DictConfig]
) -> None:
    created, files, config = run
    path: Path = created.directory / name
    path.write_bytes(apply_damage(files[name], damage))
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
