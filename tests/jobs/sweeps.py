"""Sweeps in a process of their own, for tests of launchers that lose workers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600.0  # Seconds, for what hangs: a first import of everything, beside other tests, has taken 170.


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a sweep with a cache and runs of its own."""
    directory.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "distill", "-m", *arguments, "cache_dir=cache"], cwd=directory, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A process in the background of a script would ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def read_runs(root: Path) -> list[dict[str, Any]]:
    """Returns options, status, metrics and weights of every run, in the order of their options."""
    runs = []
    for path in root.rglob("run.json"):
        record = json.loads(path.read_text())
        settings = OmegaConf.load(path.with_name("config.yaml")).teacher.finetune
        weights = path.parent / "teacher" / "model" / "model.safetensors"
        runs.append({
            "options": (settings.learning_rate, settings.seed), "status": record["status"], "error": record["error"],
            "metrics": record["teacher"] and record["teacher"]["metrics"],
            "weights": weights.read_bytes() if weights.is_file() else b"", "threads": record["environment"]["threads"],
        })  # fmt: skip
    return sorted(runs, key=lambda run: run["options"])


def find_files(root: Path, pattern: str) -> list[Path]:
    """Returns the files whose paths end as the pattern does, also while another process moves and removes directories.

    `Path.rglob` fails where a directory goes away while it looks.
    """
    files = [Path(directory) / name for directory, _, names in os.walk(root) for name in names]
    return sorted(path for path in files if path.match(pattern))


def wait_for_checkpoint(root: Path, sweep: subprocess.Popen[str]) -> Path:
    """Waits until a run has a checkpoint, and returns its directory."""
    end = time.monotonic() + LIMIT
    while not (found := find_files(root, "last.ckpt")):
        assert sweep.poll() is None, sweep.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    return next(parent for parent in found[0].parents if (parent / "run.json").is_file())
