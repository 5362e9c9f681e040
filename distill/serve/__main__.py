"""The command `python -m distill.serve`: answers HTTP requests with exported bundles, without torch.

    python -m distill.serve path/to/bundle
    python -m distill.serve films=path/to/bundle pairs=path/to/another --port 8001

docs/service.md describes the paths.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from distill.core.errors import DistillError, UserError, forget_interrupt, install_command
from distill.serve.limits import Limits, is_loopback

TOKEN = "DISTILL_SERVE_TOKEN"
# The limits that are options, each with its description.
LIMITS = {field.name: field.metadata["description"] for field in fields(Limits) if field.metadata}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    return run_command(lambda: _serve(options))


def run_command(command: Callable[[], None]) -> int:
    """Runs the command of a server and returns its exit code."""
    try:
        command()
    except DistillError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # Before it serves.
        forget_interrupt()
        return 130
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m distill.serve", description="Answer HTTP requests with exported bundles.",
        epilog=f"The environment variable {TOKEN} is the bearer token of the requests.",
    )  # fmt: skip
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE", help="directory with bundle.json, or NAME=DIRECTORY")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; default %(default)s; others than loopback need a token",
    )
    parser.add_argument("--port", type=int, default=8000, help="default %(default)s; 0 for any that is free")
    parser.add_argument("--model", help="such as fp32, int8 or openvino; by default the recommended one")
    parser.add_argument("--threads", type=int, help="number of threads; by default one for each usable core")
    parser.add_argument(
        "--batch-size", type=int,
        help="records in a forward pass, or texts that are written together; by default as the bundle recommends",
    )  # fmt: skip
    for name, words in LIMITS.items():
        default = getattr(Limits, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"{words} (%(default)s)"
        )  # fmt: skip
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which a server without a token may be addressed, beside localhost; may be repeated",
    )
    parser.add_argument(
        "--refuse-long", action="store_true",
        help="refuse a text of more tokens than the bundle reads; by default it is cut",
    )  # fmt: skip
    _add_escalation(parser)
    parser.add_argument(
        "--reload",
        type=float,
        default=1.0,
        help="seconds between two looks for a changed bundle (%(default)s); 0: none",
    )
    return parser.parse_args(arguments)


def _add_escalation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--escalate-to", metavar="URL",
        help="endpoint of a language model that makes the predictions of which the bundle is least sure",
    )  # fmt: skip
    parser.add_argument(
        "--escalate-question", metavar="FILE", help="the labels.json of job=label, with the question and the model"
    )  # fmt: skip
    parser.add_argument(
        "--escalate-share", type=float, default=0.1, help="share of dev that is left to it, up to 0.3 (%(default)s)"
    )  # fmt: skip
    parser.add_argument(
        "--escalate-seconds", type=float, default=5.0, help="s until the bundle's own prediction stays (%(default)s)"
    )  # fmt: skip


def _serve(options: argparse.Namespace) -> None:
    """Serves until a signal stops it.

    Raises:
        UserError: for a missing extra, invalid options, and bundles that cannot be served.
    """
    try:
        from distill.serve.bundles.app import BundleService, create_app
        from distill.serve.bundles.escalation import Escalation
        from distill.serve.bundles.served_models import load_models
        from distill.serve.http import run
    except ModuleNotFoundError as error:
        raise UserError(f"distill.serve needs {error.name}: {install_command('serve')}") from error
    token = read_token()
    check_options(options, token)
    limits = Limits(**{name: getattr(options, name) for name in ("batch_size", "refuse_long", *LIMITS)})
    escalation = None
    if options.escalate_to is not None:
        escalation = Escalation(
            Path(options.escalate_question), options.escalate_to, share=options.escalate_share,
            seconds=options.escalate_seconds, log=write_log,
        )  # fmt: skip
    models = load_models(
        options.bundles, model=options.model, threads=options.threads, limits=limits, escalation=escalation
    )  # fmt: skip
    for model in models.values():
        if model.bundle.caution is not None:
            write_log(f"{model.name}: {model.bundle.model} did not pass the gate of its export, {model.bundle.caution}")
    hosts = {host.lower() for host in (options.host, *options.allow_host)} if token is None else None
    service = BundleService(
        models, limits=limits, token=token, hosts=hosts, reload_seconds=options.reload, log=write_log
    )
    run(service, create_app(service), host=options.host, port=options.port)


def read_token() -> str | None:
    """Returns the token that requests must bear, None for none; raises UserError for one that no request could."""
    token = os.environ.get(TOKEN, "").strip()
    if os.environ.get(TOKEN) and not token:
        raise UserError(f"{TOKEN} has nothing but spaces, expected a secret: unset it for a server without a token")
    if any(letter < " " or letter == "\x7f" for letter in token):
        raise UserError(f"{TOKEN} has a control character, which no header can have: choose another secret")
    return token or None


def check_options(options: argparse.Namespace, token: str | None) -> None:
    """Raises UserError for options that cannot be, and for a server that anybody could ask."""
    for name in ("batch_size", *LIMITS):
        value = getattr(options, name)
        if isinstance(value, int) and value < 1:
            raise UserError(f"got --{name.replace('_', '-')} {value}, expected at least 1")
    for name, whole in (("characters", "total"), ("body", "held")):
        part, most = getattr(options, name), getattr(options, whole)
        if part > most:
            raise UserError(f"got --{name} {part} and --{whole} {most}, expected --{whole} to be no less")
    for name in ("seconds", "head_seconds"):
        if not 0 < getattr(options, name) < float("inf"):
            raise UserError(f"got --{name.replace('_', '-')} {getattr(options, name):g}, expected more than 0")
    if (options.escalate_to is None) != (options.escalate_question is None):
        raise UserError("got one of --escalate-to URL and --escalate-question labels.json, expected both or none")
    if not 0 < options.escalate_seconds < float("inf"):
        raise UserError(f"got --escalate-seconds {options.escalate_seconds:g}, expected more than 0")
    if options.reload < 0:
        raise UserError(f"got --reload {options.reload:g}, expected 0 or more")
    check_port(options.port)
    if token is None and not is_loopback(options.host):
        raise UserError(
            f"{options.host} can be reached from other machines: set {TOKEN} to a secret that requests must bear, or "
            "listen on 127.0.0.1"
        )


def check_port(port: int) -> None:
    """Raises UserError for a port that there is not."""
    if not 0 <= port < 65536:
        raise UserError(f"got --port {port}, expected 0 to 65535")


def write_log(words: str) -> None:
    """Prints a line. The server goes on where nobody reads it any more."""
    try:
        print(words, flush=True)
    except (OSError, ValueError):  # A pipe without a reader, and a file that was closed.
        with contextlib.suppress(OSError, ValueError):  # What is left in the buffer would fail again at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
