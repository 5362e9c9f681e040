"""The directory of a run and run.json, the record of everything that the run measures."""

import datetime
import hashlib
import json
import platform
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distill import __version__
from distill.edge import cores
from distill.errors import UserError, first_line
from distill.stages import stages
from distill.storage import mirror
from distill.storage.files import JsonObject, make_directory, write_json

SCHEMA = 1
RECORD = "run.json"
STATUSES = ("running", "finished", "failed")
LOCK = ".lock"  # Of the process that works in the directory.


@dataclass
class Run:
    """The directory of a run and the current content of its run.json, which `update` writes after every stage.

    `file` is the name of the file, which is another one for a further seed of a run. The `section` of one of several
    tasks is a run of its own, whose record is in that of its `parent`.
    """

    directory: Path
    record: dict[str, Any] = field(default_factory=dict)
    file: str = RECORD
    parent: "Run | None" = None

    def update(self, **values: object) -> None:
        """Sets fields of the record and writes it."""
        self.record.update(values)
        self.save()

    def save(self) -> None:
        """Writes the record."""
        if self.parent is not None:
            self.parent.save()
            return
        self.record["sha256"] = digest(self.record)
        write_json(self.directory / self.file, self.record)
        mirror.send_changes(self.directory)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the seconds of a stage to the field `seconds`, which has those of an interrupted process too."""
        start = time.perf_counter()
        stages.begin(stage)
        try:
            yield
        finally:
            seconds = self.record.setdefault("seconds", {})
            seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start

    @property
    def root(self) -> Path:
        """Returns the directory of the whole run."""
        return self.directory if self.parent is None else self.parent.root

    def section(self, name: str) -> "Run":
        """Returns the section of one of several tasks, with a directory of its own; an empty name is the run itself."""
        if not name:
            return self
        sections = self.record.setdefault("tasks", {})
        return Run(self.directory / "tasks" / name, sections.setdefault(name, create_results()), parent=self)

    def whole(self) -> dict[str, Any]:
        """Returns the record; of a section with the fields that concern the whole run."""
        return self.record if self.parent is None else whole_section(self.parent.record, self.record)


def whole_section(record: JsonObject, section: JsonObject) -> dict[str, Any]:
    """Returns the section of one of several tasks with the fields of the record that concern the whole run."""
    return {**record, **create_results(), **section}


def digest(record: JsonObject) -> str:
    """Returns the SHA-256 of a record without its own `sha256`."""
    content = json.loads(json.dumps({name: value for name, value in record.items() if name != "sha256"}))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def open_run(directory: Path, *, needs: tuple[str, ...] = (), file: str = RECORD) -> Run:
    """Returns the run of an earlier process, whose record is `file`.

    Raises:
        UserError: if the directory lacks the record or one of the files `needs`, or the record is damaged or of another
            schema.
    """
    for name in (file, *needs):
        if not (directory / name).is_file():
            raise UserError(f"{directory} is no run: it has no {name}")
    path = directory / file
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(record, dict) or record.get("status") not in STATUSES:
        raise UserError(f"{path} is damaged: its status is none of {', '.join(STATUSES)}")
    if record.get("schema") != SCHEMA:
        raise UserError(
            f"{path} has the schema {record.get('schema')!r}, this version of distill reads schema {SCHEMA}: start a "
            "new run, or read it with the version that wrote it"
        )
    if record.get("sha256") != digest(record):
        raise UserError(f"{path} is damaged: its content does not have the SHA-256 that it names")
    return Run(directory, record, file)


def create_run(parent: Path, **fields: object) -> Run:
    """Creates a directory under `parent`, named after the time, with a number for further runs of the same second.

    In the copy of a URL the name ends in a random number, because other machines may use the same one.

    The record is not written yet, because a run.json on disk always receives its final status.

    Raises:
        UserError: if `parent` cannot be written.
    """
    make_directory(parent)
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    if mirror.is_copy(parent):
        stamp += f"_{uuid.uuid4().hex[:8]}"
    for number in range(1, 10_000):
        directory = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            directory.mkdir()
        except FileExistsError:
            continue
        return Run(directory, create_record(**fields))
    raise UserError(f"{parent} has 10,000 runs of this second: choose another output_dir")


def create_run_in(directory: Path, **fields: object) -> Run:
    """Creates a run in a directory of the user's choice.

    Raises:
        UserError: if the directory is not empty or cannot be written.
    """
    make_directory(directory)
    if any(entry.name != LOCK for entry in directory.iterdir()):
        raise UserError(f"{directory} is not empty: give another directory, or resume=True to resume its run")
    return Run(directory, create_record(**fields))


def create_record(**fields: object) -> dict[str, Any]:
    """Returns the record of a run that has no results yet."""
    return dict(
        schema=SCHEMA, status="running", error=None, version=__version__, **fields, **create_results(),
        objective=None, training=None, budget=None, layer_search=None, general=None, seconds={},
        environment=environment(),
    )  # fmt: skip


def create_results() -> dict[str, Any]:
    """Returns the fields of a record that concern one task, before it has results."""
    fields = dict.fromkeys(["task", "teacher", "student", "baseline", "retention"])
    return {
        **fields, "export": {}, "benchmark": [], "seeds": [], "summary": {}, "comparison": {}, "parts": {},
        "breakdown": {}, "lengths": {}, "cuts": {}, "texts": {}, "pruning": [], "dev_pass": [],
    }  # fmt: skip


def environment() -> dict[str, Any]:
    """Returns the `environment` of run.json: versions of the software, CPU and accelerator."""
    import torch

    packages = {name: _version(name) for name in ("torch", "transformers", "lightning", "onnxruntime")}
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        **packages,
        "platform": f"{sys.platform} {platform.machine()}",
        "cpu": _cpu_name(),
        "isa": _instruction_sets(),
        "cores": cores.count_cores(),
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
    """Returns the instruction sets of this CPU that determine the speed of bf16 and int8."""
    import torch

    detected = [torch.backends.cpu.get_cpu_capability()]
    probes = {
        "AVX512_VNNI": torch.cpu._is_vnni_supported,
        "AVX512_BF16": torch.cpu._is_avx512_bf16_supported,
        "AMX": torch.cpu._is_amx_tile_supported,
    }
    return detected + [name for name, probe in probes.items() if probe()]
