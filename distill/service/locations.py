"""Names in place of what only this machine knows, in the texts of a job: paths, and words about a command line."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from distill.service.allowed import MULTIRUN, Kind, find_verdict
from distill.service.engine import job_directory
from distill.service.grammar import Scalar, Value, parse_override
from distill.service.queue import Job

# A job resumes by itself, so that its owner has no command to which `resume` could be added.
_WORDS = (
    (re.compile(r"run the command without resume"), "submit the job anew"),
    (re.compile(r"python -m distill resume=[^\s\"]+"), "a retry of the job"),
    (re.compile(r"the same command with resume=true"), "a retry of the job"),
    (re.compile(r"run the command again( with resume=true)?"), "retry the job"),
)


def list_names(job: Job, directory: Path) -> dict[str, str]:
    """Returns what stands in the texts of a job in place of paths, by the path, the longest first.

    The data sets and teachers are those of the job's overrides, whether or not they are still there.

    Args:
        directory: of the service.
    """
    names = dict(_find_names(job))
    own = job_directory(directory, job.id)
    return sort_names({**names, f"{own / 'runs'}/": "", **name_directory(own, f"job {job.id}"),
                       **name_directory(directory, "the service")})  # fmt: skip


def name_directory(directory: Path, name: str) -> dict[str, str]:
    """Returns the name of a directory by its path; paths in it become relative to it."""
    return {f"{directory}/": "", str(directory): name}


def sort_names(names: Mapping[str, str]) -> dict[str, str]:
    """Returns names by their paths, a path before those that are its start."""
    return dict(sorted(names.items(), key=lambda entry: -len(entry[0])))


def find_paths(job: Job) -> dict[str, Path]:
    """Returns the paths of the data sets and teachers that the overrides of a job name, by `data:NAME` and so on."""
    return {name: Path(path) for path, name in _find_names(job)}


def rename(text: str, names: Mapping[str, str]) -> str:
    """Returns a text with names in place of paths, and with the words of somebody who has a job and no command."""
    for path, name in names.items():
        text = text.replace(path, name)
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text


def rename_json(text: str, names: Mapping[str, str]) -> str:
    """Returns a text of JSON with names in place of paths, as `rename` does."""
    return rename(text, {json.dumps(path)[1:-1]: name for path, name in names.items()})


def _find_names(job: Job) -> Iterator[tuple[str, str]]:
    """Yields the paths that the service has put into the overrides of a job, each with its name."""
    for override in map(parse_override, (text for text in job.overrides if text not in MULTIRUN)):
        verdict = find_verdict(override.key)
        for path in filter(lambda text: text.startswith("/"), _list_texts(override.values)):
            found = re.search(rf"/data/{re.escape(job.owner)}/([^/]+)/content/", path)
            if found is not None and found[1] in job.data:
                yield path, f"data:{found[1]}"
            elif verdict is not None and verdict.kind == Kind.TEACHER:
                yield path, f"teacher:{Path(path).name}"


def _list_texts(values: Iterable[Value]) -> Iterator[str]:
    """Yields the texts of values, also of those in lists and mappings."""
    for value in values:
        if isinstance(value, Scalar):
            yield value.text
        else:
            yield from _list_texts(value.values() if isinstance(value, dict) else value)
