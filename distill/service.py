"""The command `python -m distill.service`: runs distillations that people submit over HTTP.

    python -m distill.service path/to/directory
    python -m distill.service path/to/directory --add-token ada --jobs 2 --hours 20

docs/service.md describes the paths.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distill.core.errors import UserError, install_command
from distill.serve.__main__ import check_port, run_command, write_log
from distill.serve.jobs.attempts import AttemptEngine
from distill.serve.limits import is_loopback

if TYPE_CHECKING:
    from distill.serve.jobs.job_service import Settings


ENGINES = {"local": "LocalEngine", "ray": "RayEngine", "slurm": "SlurmEngine", "kubernetes": "KubernetesEngine"}


def create_engine(name: str) -> AttemptEngine:
    """Returns the engine of a name.

    Raises:
        UserError: if there is no such engine, its package is not installed, or there is no cluster.
    """
    if name not in ENGINES:
        raise UserError(f"got --engine {name}, expected one of {', '.join(ENGINES)}")
    from distill.serve.jobs import engines

    engine: AttemptEngine = getattr(engines, ENGINES[name])()
    return engine


GIGABYTE = 1_000_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    return run_command(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    _check_options(options)
    if options.add_token is not None or options.remove_token is not None:
        _change_accounts(options)
    else:
        _serve(options)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m distill.service", description="Run distillations that people submit over HTTP.",
        epilog="Beyond loopback every request needs the token of an account.",
    )  # fmt: skip
    parser.add_argument("directory", type=Path, help="directory of the queue, the data sets and the jobs")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default %(default)s")
    parser.add_argument("--port", type=int, default=8080, help="default %(default)s; 0 for any that is free")
    parser.add_argument("--workers", type=int, default=1, help="jobs that run at once (%(default)s)")
    parser.add_argument("--engine", choices=ENGINES, default="local", help="where jobs run (%(default)s)")
    parser.add_argument("--queue", type=int, default=100, help="jobs that may wait; others get 503 (%(default)s)")
    parser.add_argument("--upload", type=int, default=GIGABYTE, help="most bytes of an upload (%(default)s)")
    parser.add_argument(
        "--serve", metavar="URL=DIRECTORY", help="a distill.serve of this machine, and the bundle that it serves"
    )
    parser.add_argument("--teachers", type=Path, help="directory whose models requests may name, as teacher:NAME")
    parser.add_argument(
        "--administrator", action="append", default=[], metavar="NAME",
        help="an account whose jobs may name paths and models of the Hub; may be repeated",
    )  # fmt: skip
    parser.add_argument("--keep-days", type=float, help="days that ended jobs and unused data are kept; default: ever")
    parser.add_argument("--keep-bytes", type=int, help="bytes of jobs and data, the oldest go first; default: any")
    parser.add_argument("--idle", type=float, default=120.0, help="s until a process that predicts ends (%(default)s)")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="a name by which the service may be addressed beside --host and localhost; may be repeated",
    )  # fmt: skip
    accounts = parser.add_argument_group("accounts")
    accounts.add_argument("--add-token", metavar="NAME", help="add an account, or renew its token, print it, and end")
    accounts.add_argument("--remove-token", metavar="NAME", help="remove an account, and end")
    accounts.add_argument("--jobs", type=int, help="jobs of the account that run or wait at once; default: any number")
    accounts.add_argument("--disk", type=int, help="bytes of its data sets and jobs; default: any number")
    accounts.add_argument("--hours", type=float, help="that its jobs may run in 30 days; default: any number")
    return parser.parse_args(arguments)


def _check_options(options: argparse.Namespace) -> None:
    """Raises UserError for options that cannot be."""
    for name in ("workers", "queue", "upload"):
        if getattr(options, name) < 1:
            raise UserError(f"got --{name} {getattr(options, name)}, expected at least 1")
    check_port(options.port)
    for name in ("keep_days", "keep_bytes", "idle"):
        value = getattr(options, name)
        if value is not None and not 0 <= value < float("inf"):
            raise UserError(f"got --{name.replace('_', '-')} {value:g}, expected a number of at least 0")
    if options.teachers is not None and not options.teachers.is_dir():
        raise UserError(f"--teachers {options.teachers} is no directory: give one with a directory for each model")
    limits = [name for name in ("jobs", "disk", "hours") if getattr(options, name) is not None]
    if limits and options.add_token is None:
        raise UserError(f"--{limits[0]} is a limit of an account: add --add-token NAME")


def _change_accounts(options: argparse.Namespace) -> None:
    """Adds or removes an account; a service that runs on the directory notices."""
    from distill.core.files import make_directory
    from distill.serve.jobs.accounts import Account, Accounts

    make_directory(options.directory)
    accounts = Accounts(options.directory / "accounts.json")
    if options.remove_token is not None:
        accounts.remove(options.remove_token)
        return
    account = Account(options.add_token, options.jobs, options.disk, options.hours)
    print(accounts.add(account))


def _serve(options: argparse.Namespace) -> None:
    """Serves until a signal stops it.

    Raises:
        UserError: for a missing extra, invalid options, and a directory that another service uses.
    """
    try:
        import prometheus_client  # noqa: F401
        import psutil  # noqa: F401

        from distill.serve.http import run
        from distill.serve.jobs.accounts import Accounts
        from distill.serve.jobs.job_service import Service
        from distill.serve.jobs.paths import create_app
    except ModuleNotFoundError as error:
        raise UserError(f"distill.service needs {error.name}: {install_command('service')}") from error
    from distill.core.files import make_directory
    from distill.serve.jobs.queue import Queue

    make_directory(options.directory)
    accounts = Accounts(options.directory / "accounts.json")
    is_local = is_loopback(options.host)
    if not is_local and not len(accounts):
        raise UserError(
            f"{options.host} can be reached from other machines: add an account first, by python -m distill.service "
            f"{options.directory} --add-token NAME, or listen on 127.0.0.1"
        )
    hosts = {host.lower() for host in (options.host, *options.allow_host)} if is_local or options.allow_host else None
    service = Service(
        options.directory, Queue(options.directory / "jobs.sqlite", limit=options.queue),
        create_engine(options.engine), settings=_read_settings(options), accounts=accounts,
        is_local=is_local, hosts=hosts, log=write_log,
    )  # fmt: skip
    run(service, create_app(service), host=options.host, port=options.port)


def _read_settings(options: argparse.Namespace) -> "Settings":
    from distill.serve.jobs.accounts import Keeping
    from distill.serve.jobs.deployment import Target
    from distill.serve.jobs.job_service import Settings

    return Settings(
        workers=options.workers, upload=options.upload,
        target=None if options.serve is None else Target.parse(options.serve), teachers=options.teachers,
        administrators=options.administrator, keeping=Keeping(options.keep_days, options.keep_bytes),
        idle_seconds=options.idle,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
