"""The README's blocks are what they say: the Run block itself, in a fresh copy, without a hub."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import distill

ROOT = Path(distill.__file__).resolve().parents[1]


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)


def test_the_first_two_blocks_are_run_and_test() -> None:
    run, test = blocks()[:2]
    assert run.strip().splitlines()[-1] == "python -m distill +teacher=bert_base +student=distilbert"
    assert test.strip().splitlines()[-1] == "python -m pytest"


@pytest.mark.slow
def test_the_run_block_runs_in_a_fresh_copy(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
    environment = {**os.environ, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("DISTILL_CACHE", None)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", blocks()[0]],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [path] = (copy / "runs").rglob("run.json")
    record = json.loads(path.read_text())
    assert record["status"] == "finished"
    assert record["teacher"]["substituted"] is True
    assert record["retention"]["int8"] >= 0.97
