"""The command line before Hydra reads it: jobs, slips, quotes, SLURM, and what our YAML files name and inherit.

Quotes around the texts of a command line that Hydra's grammar does not read, such as `task.text=[Größe,it's]`. The
grammar takes letters of ASCII and a few signs. A text with others is unambiguous as long as no comma stands inside of
brackets: it ends at the next comma, or at the end of its list.

    task.text=[Größe,naïve (old)]   ->   task.text=['Größe','naïve (old)']
    task.label=price=€,#5           ->   task.label='price=€','#5', which are two values of a sweep
"""

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.core.errors import UserError, config_directory, suggest

if TYPE_CHECKING:
    from omegaconf import DictConfig


# Prefixes of the options that a job which creates a run may read or ignore.
OPTIONS = (
    "student", "seed", "seeds", "baseline", "teacher.finetune", "teacher.cache", "trainer", "export", "benchmark",
    "objective", "logger", "budget", "augment", "adapt", "report", "task.unlabelled", "task.unlabelled_share",
    "task.bank",
)  # fmt: skip
_TEXT_TRAINING = (
    "seed", "baseline", "trainer", "objective", "logger", "task.unlabelled", "task.unlabelled_share", "task.bank",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        function: its module and its name there, imported when the job is run.
        reads: of a job that creates a run, those of `OPTIONS` that it reads. Of another job, the beginnings of all
            options that it reads.
        reads_on_text: those of `OPTIONS` that it reads for a task over raw text; None for `reads`.
        words: `reads` as in a message; None for these themselves.
        creates_run: whether its function takes a run, besides the configuration.
        model: the directory of the trained model within that of the run; None without one.
    """

    function: str
    reads: tuple[str, ...]
    reads_on_text: tuple[str, ...] | None = None
    words: str | None = None
    creates_run: bool = True
    model: str | None = None

    def ignored(self, *, on_text: bool) -> tuple[str, ...]:
        """Returns those of `OPTIONS` that change nothing in the job."""
        reads = self.reads if not on_text or self.reads_on_text is None else self.reads_on_text
        return tuple(option for option in OPTIONS if option not in reads)

    def load(self) -> Callable[..., Any]:
        """Imports and returns the function."""
        module, _, name = self.function.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function


def _job_without_run(function: str, *reads: str, words: str | None = None) -> Job:
    return Job(f"distill.jobs.{function}", reads, words=words, creates_run=False)


JOBS: dict[str, Job] = {
    "distill": Job(
        "distill.jobs.training_jobs:run_distill", OPTIONS,
        tuple(name for name in OPTIONS if name not in ("teacher.finetune", "adapt")), model="student",
    ),
    "finetune": Job(
        "distill.jobs.training_jobs:run_finetune", ("teacher.finetune", "teacher.cache", "adapt"),
        (*_TEXT_TRAINING, "adapt"), model="teacher/model",
    ),
    "teach": Job("distill.jobs.teaching_job:run_teach", ("teacher.finetune", "teacher.cache", "adapt")),
    "pretrain": Job("distill.jobs.training_jobs:run_pretrain", _TEXT_TRAINING, model="teacher/model"),
    # Imports neither torch nor transformers.
    "cache": _job_without_run("cache_entries:run_cache", "job=", "job.", "cache_dir=", words="cache_dir and job.*"),
    # Imports neither torch nor pandas.
    "check": _job_without_run(
        "preflight:run_check", "job=", "data=", "text=", "label=", "json=", words="data, text, label and json"
    ),
    "label": _job_without_run(
        "labelling_job:run_label", "job=", "label.", "data=", "task=", "task.", "dry_run=", "seed=",
        words="data, label.*, task, seed and dry_run",
    ),
    "report": _job_without_run(
        "publishing_jobs:run_report", "job=", "runs=", "report_dir=", "refresh=", "report.rank=", "report.against=",
        words="runs, report_dir, refresh, report.rank and report.against",
    ),
    "glue_test": _job_without_run("publishing_jobs:run_glue_test", "job=", "runs=", "data=", words="runs and data"),
    "benchmark": _job_without_run(
        "measuring_jobs:run_benchmark", "job=", "job.", "bundles=", "benchmark.", "output_dir=", "trust=", "+teacher=",
        "teacher.",
    ),
    "inspect": _job_without_run(
        "measuring_jobs:run_inspect", "job=", "model=", "other=", "inspect.", "task=", "task.", "+student=", "student.",
        "output_dir=", "cache_dir=", "trust=",
        words="model, other, inspect.*, task, student, trust, output_dir and cache_dir",
    ),
    "publish": _job_without_run("publishing_jobs:run_publish", "job=", "job.", "run=", "repo=", "private=", "dry_run="),
}  # fmt: skip


def find_job(name: str) -> Job:
    """Returns a job by its name.

    Raises:
        UserError: if there is none.
    """
    if name not in JOBS:
        raise UserError(f"there is no job {name}, expected one of {', '.join(JOBS)}")
    return JOBS[name]


ADDED = ("teacher", "student")  # Groups without a default, which are chosen with a plus.
_NOTHING = ("none", "null", "false", "off", "no")
_NO_NAME = re.compile(r"true|null|[+-]?[\d_.]+(e[+-]?\d+)?", re.IGNORECASE)  # Hydra reads no text here.
# The options of a model or of data of the user's own, by the group whose choice they stand in for.
_OWN = {
    "task": "task=classification task.data_dir=",
    "teacher": "+teacher=pretrained teacher.path=",
    "student": "+student=pretrained student.path=",
}
# What leaves out a group that has no choice of the name none.
_WITHOUT = {
    "export": "export.enabled=false",
    "benchmark": "benchmark.enabled=false",
    "objective": "objective=supervised, which learns from the labels alone",
    "logger": "logger=[]",
}
_READ_BY = {
    "check": "data",
    "label": "data",
    "teach": "data",
    "report": "runs",
    "glue_test": "runs",
    "publish": "run",
    "inspect": "model",
}
_CLOSING = {"[": "]", "{": "}"}

ListNames = Callable[[str], Sequence[str]]


def check_slips(arguments: Sequence[str], valued: Collection[str], list_names: ListNames) -> None:
    """Raises UserError for an argument that is no option, and for a choice of a group that has no effect.

    Args:
        arguments: of the command, without its name.
        valued: options of Hydra that are followed by a value.
        list_names: returns the names of a group's YAML files, none for what is no group.
    """
    given = [
        argument
        for before, argument in pairwise(["", *arguments])
        if before not in valued and not argument.startswith(("-", "~"))
        # Another option such as --data, which is reported, may have the value that follows.
        if before == "--multirun" or not before.startswith("--")
    ]
    for argument in given:
        name, equals, value = argument.partition("=")
        missing = _find_unclosed(value)
        if equals and (not name or name != name.strip() or value != value.lstrip()):
            wrong = "a space at" if name.strip() else "no name before"
            advice = f"type {name.strip()}={value.strip()}" if name.strip() else "expected key=value"
            raise UserError(f"{argument!r} has {wrong} its equals sign: {advice}")
        if not equals:
            raise UserError(_explain_word(argument, given, list_names))
        if missing:
            raise UserError(f"{argument} lacks {missing} at its end: type '{argument}{missing}'")
        if refusal := _explain_choice(name, value, list_names):
            raise UserError(refusal)


def _explain_word(word: str, given: Sequence[str], list_names: ListNames) -> str:
    """Returns the message for an argument without a value."""
    path, before = Path(word).expanduser(), given[given.index(word) - 1] if given.index(word) else ""
    job = next((name.removeprefix("job=") for name in given if name.startswith("job=")), "distill")
    group = next((group for group in ADDED if word in list_names(group)), None)
    offers = {
        f"type {before}{word} without a space": before.endswith("="),
        f"type job={word}": word in JOBS,
        f"type +{word.lstrip('+')}=NAME": word.lstrip("+") in ADDED,
        f"type +{group}={word}": group is not None,
        f"type job={job} {_READ_BY.get(job)}={word}": job in _READ_BY,
        f"type resume={word} to go on with this run, or job=report runs={word}": (path / "run.json").is_file(),
        f"type python -m distill.edge {word}, because it is a bundle": (path / "bundle.json").is_file(),
        f"type job=check data={word} to look at its rows, or task=classification task.data_dir={word} to train on "
        "them": path.exists() or bool(path.suffix),
        "set options with key=value, and see --help": True,
    }
    return f"{word} is no option: {next(offer for offer, fits in offers.items() if fits)}"


def _find_unclosed(value: str) -> str:
    """Returns the signs that close the brackets of a list or a mapping, if it lacks them and has no quotes."""
    opened: list[str] = []
    if not value.startswith(("[", "{")) or re.search(r"[\"'\\]", value):
        return ""
    for sign in value:
        if sign in _CLOSING:
            opened.append(_CLOSING[sign])
        elif sign in _CLOSING.values() and (not opened or opened.pop() != sign):
            return ""
    return "".join(reversed(opened))


def _explain_choice(name: str, value: str, list_names: ListNames) -> str | None:
    """Returns the message for a choice of a group that has no effect or is no name, and None for others."""
    group = name.lstrip("+")
    names = list_names(group)
    if not names or value.startswith("{") or not value:
        return None
    if group in _OWN and (value.startswith(("/", "./", "../", "~")) or Path(value).is_file()):
        return f"{name}={value} is no {group} that has a name: type {_OWN[group]}{value}"
    if name in ADDED:
        if value in names:
            return f"{name}={value} lacks its plus, because there is no default {name}: type +{name}={value}"
        return f"there is no {name} {value}{suggest(value, names)}: it is chosen with a plus, as in +{name}={names[0]}"
    if value in names or not (value.lower() in _NOTHING or _NO_NAME.fullmatch(value)):
        return None
    if value.lower() in _NOTHING and group not in ADDED and (group in _WITHOUT or "none" in names):
        return f"there is no {group} {value}: type {_WITHOUT.get(group, f'{group}=none')}"
    return f"there is no {group} {value}, expected one of {', '.join(names)}"


_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_ESCAPE = re.compile(r"\\([\\()\[\]{}:=, \t])")  # As Hydra reads a text without quotes.
_QUOTED = re.compile(r"""(["'])(?:(?:\\\\)*|.*?[^\\](?:\\\\)*)\1""", re.DOTALL)
_KEY = re.compile(r"\s*([\w./$%*@?|+-]+)\s*:", re.ASCII)
# A character that may end a text, in the group, or one that is escaped, or a reference `${...}`.
_SIGN = re.compile(r"\\.?|\$\{[^}]*\}?|(.)", re.DOTALL)
_CALL = re.compile(r"(\w+)\s*\(.*\)", re.DOTALL)


class _Ambiguous(Exception):
    """A value that can be read in two ways, or in none."""


def quote_overrides(arguments: Sequence[str], valued: Sequence[str]) -> list[str]:
    """Returns the arguments of a command, in which Hydra reads every text.

    Args:
        valued: options of Hydra that are followed by a value.

    Raises:
        UserError: for a value that can be read in several ways.
    """
    return [
        argument if argument.startswith("-") or before in valued else _quote(argument)
        for before, argument in zip(["", *arguments], arguments, strict=False)
    ]


def _quote(argument: str) -> str:
    key, equals, value = argument.partition("=")
    if not equals or _is_read(argument):
        return argument
    if not _is_read(f"{key}="):
        if key.isascii():
            return argument  # Hydra says what is wrong with it.
        raise UserError(f"the name {key} has letters outside ASCII, which a name of an option cannot have: rename it")
    try:
        quoted = f"{key}={','.join(_Reader(value).elements(''))}"
        if _is_read(quoted):
            return quoted
    except _Ambiguous:
        pass
    raise UserError(
        f"{argument} can be read in several ways: put each text in double quotes and the whole option in single ones, "
        f'as in \'{key}="a text, (old)"\' or \'{key}=["one, two","three"]\''
    )


def _is_read(argument: str) -> bool:
    """Returns whether Hydra reads an override."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        OverridesParser.create().parse_override(argument)
    except HydraException:
        return False
    return True


class _Reader:
    """Reads a value from its beginning to its end, and puts quotes around the texts in it that need them."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def skip(self, sign: str) -> bool:
        """Skips spaces and, if it follows, the sign; returns whether it does."""
        rest = self.text[self.position :].lstrip()
        is_there = rest.startswith(sign)
        self.position = len(self.text) - len(rest) + (len(sign) if is_there else 0)
        return is_there

    def elements(self, closing: str) -> list[str]:
        """Reads elements up to `closing`, or to the end of the text if that is empty."""
        found = [self.element(closing)]
        while self.skip(","):
            found.append(self.element(closing))
        if not self.skip(closing) or (not closing and self.position < len(self.text)):
            raise _Ambiguous
        return found

    def element(self, closing: str) -> str:
        """Reads a list, a mapping, a text in quotes, or any other text."""
        if self.skip("["):
            return "[]" if self.skip("]") else f"[{','.join(self.elements(']'))}]"
        if self.skip("{"):
            return f"{{{','.join(self.items())}}}"
        start, quoted = self.position, _QUOTED.match(self.text, self.position)
        self.position = self.find_end(closing) if quoted is None else quoted.end()
        text = self.text[start : self.position]
        return _quote_text(text.strip()) if quoted is None else text

    def items(self) -> list[str]:
        """Reads the items of a mapping, whose keys have letters of ASCII alone, and its end."""
        found: list[str] = []
        while not found or self.skip(","):
            if (key := _KEY.match(self.text, self.position)) is None:
                raise _Ambiguous
            self.position = key.end()
            found.append(f"{key.group(1)}:{self.element('}')}")
        if not self.skip("}"):
            raise _Ambiguous
        return found

    def find_end(self, closing: str) -> int:
        """Returns the end of a text without quotes: the next comma, or the end of its list."""
        opened: list[str] = []
        for match in _SIGN.finditer(self.text, self.position):
            sign = match.group(1)
            if sign == closing and closing not in opened:
                return match.start()
            if sign == ",":
                if opened:
                    raise _Ambiguous
                return match.start()
            if sign in _BRACKETS:
                opened.append(_BRACKETS[sign])
            elif opened and sign == opened[-1]:
                opened.pop()
        return len(self.text)


def _quote_text(text: str) -> str:
    """Returns a text without quotes as it is, if Hydra reads it, or in quotes."""
    from hydra.core.override_parser.overrides_parser import create_functions
    from hydra.core.override_parser.types import Quote, QuotedString

    if _is_read(f"name={text}") and text:
        return text
    call = _CALL.fullmatch(text)
    if not text or text[0] in "\"'" or (call and call.group(1) in create_functions().functions):
        raise _Ambiguous
    return QuotedString(_ESCAPE.sub(r"\1", text), Quote.single).with_quotes()


_DELAY = 60  # Seconds between two questions at most. squeue forgets a job 300 s after its end (MinJobAge).


def prepare_slurm(config: "DictConfig") -> None:
    """Prepares a sweep with `hydra/launcher=submitit_slurm`; does nothing for one with another launcher.

    Raises:
        UserError: if this machine does not belong to a SLURM cluster.
    """
    if config.hydra.launcher._target_.endswith(".SlurmLauncher"):
        check_cluster("hydra/launcher=submitit_slurm", instead="take hydra/launcher=submitit_local")


def check_cluster(option: str, *, instead: str) -> None:
    """Prepares submitit for the cluster of this machine.

    submitit asks `sacct` for the states of jobs. On a cluster that keeps no accounts it would wait for a cancelled job
    for ever, so `squeue` is asked there.

    Args:
        option: that needs the cluster, for the message.
        instead: advice for a machine without one.

    Raises:
        UserError: if this machine does not belong to a SLURM cluster.
    """
    missing = [command for command in ("sbatch", "srun") if shutil.which(command) is None]
    if missing:
        raise UserError(
            f"{option} needs {' and '.join(missing)}: run the command on a machine of a SLURM cluster, or {instead}"
        )
    if shutil.which("sacct") is None or subprocess.run(["sacct", "--noheader"], capture_output=True).returncode != 0:
        _ask_squeue()


def in_slurm_job() -> bool:
    """Returns whether this process is a job of `hydra/launcher=submitit_slurm`.

    When SLURM stops it, it must end without a result: the sweep would take a result for the end of a job that SLURM
    starts again.
    """
    return os.environ.get("SUBMITIT_EXECUTOR") == "slurm"


def use_allotted_cores() -> None:
    """Gives a run in a job as many threads as the job has cores, whether SLURM binds it to them or not."""
    cores = os.environ.get("SLURM_CPUS_PER_TASK")
    if in_slurm_job() and cores:
        import torch

        os.environ["OMP_NUM_THREADS"] = cores
        torch.set_num_threads(int(cores))


def _ask_squeue() -> None:
    from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

    class QueueWatcher(SlurmInfoWatcher):  # type: ignore[misc]
        """Reads the states of jobs from `squeue`."""

        def _make_command(self) -> list[str] | None:
            numbers = {number.split("_")[0] for number in self._registered - self._finished}
            if not numbers:
                return None
            form = ["--noheader", "--states=all", "--array", "--format=%i|%T|%N"]
            return ["squeue", *form, f"--jobs={','.join(sorted(numbers))}"]

        def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
            rows = string if isinstance(string, str) else string.decode()
            return dict(super().read_info(f"JobID|State|NodeList\n{rows}"))

    SlurmJob.watcher = QueueWatcher(delay_s=_DELAY)


@cache
def known_targets() -> frozenset[str]:
    """Returns every `_target_` of our YAML files. Those of Hydra's own plugins are not part of a run."""
    found: set[str] = set()
    for path in sorted(config_directory().rglob("*.yaml")):
        if path.relative_to(config_directory()).parts[0] != "hydra":
            content = read_yaml(path)
            found |= {str(node["_target_"]) for name, node in walk_mappings(content) if "_target_" in node}
    return frozenset(found)


def read_yaml(path: Path) -> dict[str, Any]:
    """Returns the content of a YAML file, without that of the files that it inherits from."""
    import yaml  # type: ignore[import-untyped]

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), loader) or {}


def list_bases(path: Path) -> list[Path]:
    """Returns the YAML files of its own group that a file inherits from, in the order of its `defaults`."""
    named = [entry for entry in read_yaml(path).get("defaults", ()) if isinstance(entry, str) and entry != "_self_"]
    return [path.parent / f"{entry.partition('@')[0]}.yaml" for entry in named if not entry.startswith("/")]


def walk_mappings(value: object, name: str = "") -> Iterator[tuple[str, dict[str, object]]]:
    """Yields every mapping in a value with its full name, such as `objective.terms.soft`; those of Hydra are left out.

    Items of a list are named by their number.
    """
    if isinstance(value, dict):
        yield name, value
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if (name, key) != ("", "hydra"):
                yield from walk_mappings(inner, f"{name}.{key}" if name else str(key))
