"""The directory of a run: run.json, config.yaml, and the paths and licences that a reader sees.

The config.yaml of a run, which may come from somebody else: it is read as plain values alone. It has neither references
nor aliases, which could stand for gigabytes in a few bytes. A run writes none of them.
"""

import datetime
import hashlib
import json
import os
import platform
import re
import shlex
import sys
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]
from huggingface_hub import ModelCard

from distill import __version__
from distill.core import storage
from distill.core.console import stages
from distill.core.errors import UserError, first_line
from distill.core.files import JsonObject, make_directory, write_json, write_text
from distill.edge import bundle_files

if TYPE_CHECKING:
    from omegaconf import DictConfig


# Models and data sets that the YAML files name. A model in a directory has its licence in its model card.
MODELS = {
    "albert/albert-base-v2": "apache-2.0",
    "answerdotai/ModernBERT-base": "apache-2.0",
    "FacebookAI/roberta-base": "mit",
    "google-bert/bert-base-uncased": "apache-2.0",
    "google-bert/bert-large-uncased": "apache-2.0",
    "google/electra-base-discriminator": "apache-2.0",
    "microsoft/deberta-v3-small": "mit",
    "sentence-transformers/all-MiniLM-L6-v2": "apache-2.0",
}
DATA = {
    "allenai/ai2_arc": "cc-by-sa-4.0",
    "nyu-mll/glue": "other",
    "rajpurkar/squad": "cc-by-sa-4.0",
    "rajpurkar/squad_v2": "cc-by-sa-4.0",
    "Rowan/hellaswag": "mit",
    "tau/commonsense_qa": "mit",
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_on_hub(model: str) -> bool:
    """Returns whether a teacher's name in a record is an id of the Hub and no directory."""
    return _HUB_ID.fullmatch(model) is not None and not Path(model).expanduser().exists()


def find_model_license(model: str) -> str | None:
    """Returns the licence of a teacher, by its id or in the model card of its directory; None if it is not known."""
    card = Path(model).expanduser() / "README.md"
    if not card.is_file():
        return MODELS.get(model)
    try:
        found = ModelCard.load(card, ignore_metadata_errors=True).data.license
    except (OSError, ValueError, TypeError):  # Of a card that is damaged or without metadata.
        return None
    return found if isinstance(found, str) else None


def find_data_license(hub_id: str | None) -> str | None:
    """Returns the licence of a data set `owner/name[@revision][:configuration]`; None if it is not known."""
    return DATA.get(re.split("[@:]", hub_id or "")[0])


def join_licenses(licenses: Sequence[str | None]) -> str | None:
    """Returns the licence that all of several models have; None if they differ or one is not known."""
    return licenses[0] if licenses and len(set(licenses)) == 1 else None


ELLIPSIS = "…/"
# Fields that hold no path of a machine: texts and labels of the data.
_OF_DATA = ("example", "labels")
# An absolute path begins a word; the slash in `owner/name`, `https://` and `</b>` does not. In an argument of a command
# a path has blanks and colons too.
_BEGIN = r"(?<![\w:/.~…<\-])(?:file://(?=/))?~?/(?=[^\s/])"
_IN_TEXT = re.compile(_BEGIN + r"[^\s'\"`,;:()\[\]{}<>|*]+")
_IN_ARGUMENT = re.compile(_BEGIN + r"[^'\"`,\[\]{}<>|*]+")


def shorten_paths(paths: Iterable[str]) -> dict[str, str]:
    """Returns each path as an ellipsis and its last part, or as many of its last parts as tell it from the others.

    >>> shorten_paths(["/home/me/bert", "/data/a/student", "/data/b/student"])
    {'/home/me/bert': '…/bert', '/data/a/student': '…/a/student', '/data/b/student': '…/b/student'}
    """
    parts = {path: [part for part in path.split("/") if part] for path in paths}

    def last(path: str) -> str:
        own = parts[path]
        others = [other for other in parts.values() if other != own]
        number = next((n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others)), len(own))
        return ELLIPSIS + "/".join(own[-number:])

    return {path: last(path) for path in parts}


def hide_in_text(text: str, known: Mapping[str, str] | None = None) -> str:
    """Returns a text with shortened paths.

    Args:
        known: the short forms of paths, which may have blanks.
    """
    for path in sorted(known or {}, key=len, reverse=True):
        text = re.sub(rf"(?<![\w/]){re.escape(path)}(?![\w-])", (known or {})[path].replace("\\", r"\\"), text)
    return _IN_TEXT.sub(lambda match: shorten_paths([match[0]])[match[0]], text)


def hide_values(values: Collection[object]) -> list[object]:
    """Returns the values of one option with shortened paths that still differ from each other."""
    known = shorten_paths(path for value in values for path in _find_paths(value))
    return [_hide(value, known) for value in values]


def hide_paths(record: JsonObject) -> dict[str, Any]:
    """Returns a run.json as others read it: with shortened paths, and the teacher named by the last part of its own."""
    teacher = record.get("teacher") or {}
    models = [teacher, *(teacher.get("members") or [])]
    names = [str(model[field]) for model in models for field in ("requested", "resolved") if model.get(field)]
    paths = [*_find_paths(record.get("command")), *filter(_is_model_path, names)]
    known = shorten_paths(paths)
    hidden: dict[str, Any] = _hide(record, known)
    if teacher:
        hidden["teacher"] = _name_models(hidden["teacher"])
    return hidden


def relative_path(path: Path, directory: Path) -> str:
    """Returns a path relative to the directory of a report; a shortened one if they share no directory."""
    path, directory = path.absolute(), directory.absolute()
    if os.path.commonpath([path, directory]) == os.path.sep:
        return shorten_paths([str(path)])[str(path)]
    return os.path.relpath(path, directory)


def show_command(command: Iterable[object]) -> str:
    """Returns the words of a command as a shell takes them, without quotes because of a shortened path alone."""
    return " ".join(
        word if shlex.quote(word.replace(ELLIPSIS, "")) == word.replace(ELLIPSIS, "") else shlex.quote(word)
        for word in map(str, command)
    )


def _is_model_path(name: str) -> bool:
    """Returns whether a teacher's name in a record is one path, absolute or relative to where the run was started."""
    return "/" in name and not re.search(r", | \(", name) and not is_on_hub(name)


def _name_models(teacher: JsonObject) -> dict[str, Any]:
    """Returns the teacher of a record, with names that are no paths."""
    named = {name: teacher[name] for name in ("requested", "resolved") if isinstance(teacher.get(name), str)}
    members = {"members": [_name_models(member) for member in teacher["members"]]} if teacher.get("members") else {}
    return {**teacher, **{name: text.replace(ELLIPSIS, "") for name, text in named.items()}, **members}


def _find_paths(value: object) -> list[str]:
    """Returns the absolute paths in an argument, or in each of several."""
    if isinstance(value, list | tuple):
        return [path for inner in value for path in _find_paths(inner)]
    return [match.strip() for match in _IN_ARGUMENT.findall(value)] if isinstance(value, str) else []


def _hide(value: Any, known: Mapping[str, str]) -> Any:
    """Returns a value of JSON with shortened paths in its texts."""
    if isinstance(value, dict):
        return {name: inner if name in _OF_DATA else _hide(inner, known) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(inner, known) for inner in value]
    return hide_in_text(value, known) if isinstance(value, str) else value


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
        storage.send_changes(self.directory)

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
    if storage.is_copy(parent):
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


def create_seed(record: JsonObject) -> dict[str, Any]:
    """Returns the results of a run with one seed as an entry of the `seeds` of run.json."""
    return {
        "seed": record["seed"] or 0, "metrics": record["student"]["metrics"], "retention": record["retention"],
        "export": record["export"], "baseline": record["baseline"], "comparison": record["comparison"],
        "seconds": (record["training"] or {}).get("seconds"), "parts": record.get("parts"),
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
        "cores": bundle_files.count_cores(),
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


CONFIG = "config.yaml"
DEEPEST = 50  # Mappings and lists in each other.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # In C it takes a tenth of the time.
_OPENING = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSING = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def write_config(directory: Path, config: "DictConfig") -> None:
    """Writes the configuration of a run with the values that its references stand for."""
    from omegaconf import OmegaConf

    write_text(directory / CONFIG, OmegaConf.to_yaml(config, resolve=True))


def read_plain(path: Path) -> dict[str, Any]:
    """Returns the content of a config.yaml.

    Raises:
        UserError: if it cannot be read, is no mapping, or has aliases.
    """
    try:
        text = path.read_text(encoding="utf-8")
        _check_events(text)
        content = yaml.load(text, _LOADER)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it is no mapping")
    return content


def read_config(path: Path) -> "DictConfig":
    """Returns the configuration that a run was started with, as OmegaConf reads it.

    Raises:
        UserError: as `read_plain`, and if it has references.
    """
    from omegaconf import DictConfig, OmegaConf

    _check_references(read_plain(path), path)
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    return config


def _check_events(text: str) -> None:
    """Raises ValueError for YAML that a run does not write, before anything is built from it."""
    depth = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it has the alias *{event.anchor}, and config.yaml of a run has no aliases")
        depth += isinstance(event, _OPENING) - isinstance(event, _CLOSING)
        if depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} mappings and lists in each other")


def _check_references(value: object, path: Path) -> None:
    """Raises UserError for a value that stands for another one, or for one of the environment."""
    if isinstance(value, dict | list):
        for inner in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_references(inner, path)
    elif isinstance(value, str) and "${" in value:
        raise UserError(f"{path} is damaged: it has the reference {value[:60]}, and config.yaml of a run has no ${{")
