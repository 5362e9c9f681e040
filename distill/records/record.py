"""A run's directory and its run.json, the one record that everything else reads."""

import datetime
import os
import platform
import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import distill
from distill.errors import UserError
from distill.files import make_directory, write_json

SCHEMA = 1


@dataclass
class Run:
    """A run's directory, and what is known of the run so far; `save` after every stage."""

    directory: Path
    record: dict[str, Any] = field(default_factory=dict)

    def update(self, **values: Any) -> None:
        """Set fields of the record and write it."""
        self.record.update(values)
        self.save()

    def save(self) -> None:
        write_json(self.directory / "run.json", self.record)


def create_run(parent: Path, **fields: Any) -> Run:
    """A new directory under `parent`, named after the time; a number tells apart what begins in one second.

    The record is not written yet: who sees a run.json can count on being told how the run ends.
    """
    make_directory(parent)
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for number in range(1, 10_000):
        directory = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            directory.mkdir()
        except FileExistsError:
            continue
        record = dict(
            schema=SCHEMA, status="running", error=None, version=distill.__version__, **fields, task=None,
            objective=None, teacher=None, student=None, baseline=None, retention=None, training=None, export={},
            benchmark=[], environment=environment(),
        )  # fmt: skip
        return Run(directory, record)
    raise UserError(f"{parent} holds 10,000 runs of this second: give another output_dir")


def environment() -> dict[str, Any]:
    """The software and the machine that the numbers of a run hold for."""
    import torch

    packages = {name: _version(name) for name in ("torch", "transformers", "lightning", "onnxruntime")}
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        **packages,
        "platform": f"{sys.platform} {platform.machine()}",
        "cpu": _cpu_name(),
        "isa": _instruction_sets(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": accelerator,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _instruction_sets() -> list[str]:
    """What decides how fast bf16 and int8 are here."""
    import torch

    found = [torch.backends.cpu.get_cpu_capability()]
    probes = {
        "AVX512_VNNI": torch.cpu._is_vnni_supported,
        "AVX512_BF16": torch.cpu._is_avx512_bf16_supported,
        "AMX": torch.cpu._is_amx_tile_supported,
    }
    return found + [name for name, probe in probes.items() if probe()]
