"""A client of the service, and the commands `distill submit`, `watch`, `fetch`, `cancel` and `jobs`, which ask one.

The client has the same words as the paths of the service (`python -m distill.service`), by the standard library alone:

    from distill.client import Client

    client = Client("http://127.0.0.1:8080")
    client.upload("films.csv")
    job = client.submit(["+teacher=minilm", "+student=distilbert", "task=classification", "task.data_dir=data:films"])
    client.wait(job["id"])  # A bar in a terminal and in a notebook.
    client.fetch(job["id"])  # Its bundle, as a directory.

The commands import neither torch nor Hydra. docs/service.md has their options and exit codes:

    distill submit +teacher=minilm +student=distilbert task=classification task.data_dir=films.csv
    distill watch ID
    distill fetch ID
"""

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from distill.core.errors import Interrupted, UserError
from distill.serve.client import ENDED, FILES, URL, Json, escape, hash_data, show_progress
from distill.serve.client import Client as Client
from distill.serve.client import Event as Event
from distill.serve.client import ServiceError as ServiceError
from distill.serve.client import UnreachableServiceError as UnreachableServiceError

ADDRESS, TOKEN = "DISTILL_SERVICE", "DISTILL_SERVICE_TOKEN"
EXIT_CODES = {"finished": 0, "failed": 1, "cancelled": 3}  # Of watch, by the state in which the job ended.
# An override of a key whose value may be a file or a directory with data.
_DATA = re.compile(r"(\+*[\w.]*\b(?:data_dir|unlabelled|bank|transfer(?:\.\w+)?|teacher\.texts|teacher\.path)=)(.+)")
# Words of the service, which speaks of HTTP, and those of the shell.
_SHELL = (
    ("add run=NAME", "add --run NAME"),
    ("force=1 gives the bundle", "--force fetches the bundle"),
    ("the bearer token is missing or wrong", f"the token is missing or wrong: give --token, or set {TOKEN}"),
    ("name its format with format=NAME", "give the file the ending of its format"),
    ("exists: give another path", "exists: give another path with --to"),
)
_TITLE = 50  # Characters of the overrides in the list of jobs.


def main(arguments: Sequence[str]) -> int:
    """Runs a command, the first of the arguments, and returns its exit code."""
    options, overrides = _create_parser().parse_known_args(arguments)
    unknown = [argument for argument in overrides if options.command != "submit" or argument.startswith("-")]
    if unknown:
        raise UserError(f"distill {options.command} has no option {unknown[0]}: see distill {options.command} --help")
    options.overrides, options.uploads = overrides, {}
    client = Client(options.url or os.environ.get(ADDRESS) or URL, options.token or os.environ.get(TOKEN) or None)
    try:
        return COMMANDS[options.command](client, options)
    except ServiceError as error:
        raise ServiceError(_translate(str(error), options.uploads), error.status) from error
    except UserError as error:
        raise UserError(_translate(str(error), options.uploads)) from error


def _translate(text: str, uploads: Mapping[str, str]) -> str:
    """Returns a text of the service with the options of the shell, and with paths in place of the names of uploads."""
    for name, path in uploads.items():
        text = text.replace(f"data:{name}", path).replace(f"{name}{Path(path).suffix}", path)
    for words, ours in _SHELL:
        text = text.replace(words, ours)
    return text


def _create_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="distill", description="Submit, watch and fetch jobs of a service.")
    service = argparse.ArgumentParser(add_help=False)
    service.add_argument("--url", help=f"address of the service; default {ADDRESS}, or {URL}")
    service.add_argument(
        "--token", help=f"yours, if the service wants one; default {TOKEN}, which no process list shows"
    )
    commands = parser.add_subparsers(dest="command", required=True)

    submit = commands.add_parser(
        "submit", parents=[service], help="submit a job", usage="distill submit [options] key=value ...",
        epilog="A file or a directory of this machine that an override names is uploaded, and is data:NAME there.",
    )  # fmt: skip
    submit.add_argument("--name", help="of the job, for people")
    submit.add_argument("--plan", action="store_true", help="print the plan with its estimate, and submit nothing")
    submit.add_argument("--watch", action="store_true", help="follow the job until it has ended")
    watch = commands.add_parser("watch", parents=[service], help="follow a job until it has ended")
    fetch = commands.add_parser("fetch", parents=[service], help="download what a finished job left")
    cancel = commands.add_parser("cancel", parents=[service], help="end a job that is queued or runs")
    for command in (watch, fetch, cancel):
        command.add_argument("job", metavar="ID")
    fetch.add_argument("what", nargs="?", choices=FILES, default="bundle", help="default %(default)s")
    fetch.add_argument("--to", type=Path, metavar="PATH", help="a new directory or file; default ID-bundle and so on")
    fetch.add_argument("--run", metavar="NAME", help="one of the runs of a job that has several")
    fetch.add_argument("--force", action="store_true", help="also a bundle that did not pass its gate")
    commands.add_parser("jobs", parents=[service], help="list your jobs")
    return parser


def _submit(client: Client, options: argparse.Namespace) -> int:
    if not options.overrides:
        raise UserError("nothing to submit: give key=value as in distill submit +teacher=NAME +student=NAME")
    overrides = [_upload(client, override, options.uploads) for override in options.overrides]
    if options.plan:
        plan = client.plan(overrides)
        _print(*_translate(str(plan["plan"]), options.uploads).splitlines())
        return 0
    job = client.submit(overrides, name=options.name)
    options.job = job["id"]
    _print(f"Job {job['id']} is {job['state']}")
    if options.watch:
        return _watch(client, options)
    _print(f"distill watch {job['id']} follows it")
    return 0


def _upload(client: Client, override: str, uploads: dict[str, str]) -> str:
    """Returns the override with the data set that holds its local file, uploaded unless the service has it already.

    Args:
        uploads: gets the path by the name of the data set.
    """
    found = _DATA.fullmatch(override)
    path = Path(found[2]).expanduser() if found else None
    if found is None or path is None or not path.exists() or (path.is_dir() and "teacher." in found[1]):
        return override  # A model stays here, because the service takes none.
    name = f"{re.sub(r'[^A-Za-z0-9-]+', '-', path.resolve().stem).strip('-') or 'data'}-{hash_data(path)[:12]}"
    uploads[name] = found[2]
    try:
        client.data(name)
        _print(f"The service has {path} as data:{name}")
    except ServiceError as error:
        if error.status != 404:
            raise
        client.upload(path, name=name)
        _print(f"Uploaded {path} as data:{name}")
    return f"{found[1]}data:{name}"


def _watch(client: Client, options: argparse.Namespace) -> int:
    try:
        events = client.watch(options.job)
        show_progress(replace(event, data=_localize(event.data, options.uploads)) for event in events)
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"job {options.job} goes on: distill watch {options.job} follows it again, and distill cancel "
            f"{options.job} ends it"
        ) from error
    job = client.job(options.job)
    if job["state"] == "finished":
        _print(f"distill fetch {options.job} downloads its bundle")
    return EXIT_CODES[job["state"]]


def _localize(data: Json, uploads: Mapping[str, str]) -> Json:
    """Returns the data of an event with the texts that a user of the shell reads."""
    return {key: _translate(value, uploads) if isinstance(value, str) else value for key, value in data.items()}


def _fetch(client: Client, options: argparse.Namespace) -> int:
    _print(client.fetch(options.job, options.what, to=options.to, run=options.run, force=options.force))
    return 0


def _cancel(client: Client, options: argparse.Namespace) -> int:
    job = client.cancel(options.job)
    _print(f"Job {options.job} is {job['state']}")
    return 0


def _list(client: Client, _: argparse.Namespace) -> int:
    rows = [("id", "state", "stage", "done", "job"), *map(_describe, client.jobs())]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for *cells, title in rows:
        _print("  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), title]))
    return 0


def _describe(job: Json) -> tuple[str, str, str, str, str]:
    """Returns the row of a job; that of an ended one has its error in place of its overrides."""
    progress = "" if job.get("progress") is None or job["state"] in ENDED else f"{job['progress']:.0%}"
    title = job.get("error") or job.get("name") or " ".join(job.get("overrides") or [])
    shown = title if len(title) <= _TITLE else f"{title[: _TITLE - 3]}..."
    return job["id"], job["state"], job.get("stage") or "", progress, shown


def _print(*lines: object) -> None:
    for line in lines:
        print(escape(str(line)))


COMMANDS: Mapping[str, Callable[[Client, argparse.Namespace], int]] = {
    "submit": _submit, "watch": _watch, "fetch": _fetch, "cancel": _cancel, "jobs": _list,
}  # fmt: skip
