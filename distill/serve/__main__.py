"""The command `python -m distill.serve`: answers HTTP requests with exported bundles, without torch.

    python -m distill.serve path/to/bundle
    python -m distill.serve films=path/to/bundle pairs=path/to/another --port 8001

docs/serving.md describes the paths.
"""

import argparse
import ipaddress
import os
import sys
from collections.abc import Sequence
from dataclasses import fields

from distill.errors import DistillError, UserError, forget_interrupt
from distill.serve.settings import Limits

TOKEN = "DISTILL_SERVE_TOKEN"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    try:
        _serve(options)
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
    parser.add_argument("--batch-size", type=int, help="records in a forward pass; by default as the bundle recommends")
    parser.add_argument(
        "--batch-records",
        type=int,
        default=Limits.batch_records,
        help="records of all requests that run together (%(default)s)",
    )
    parser.add_argument(
        "--waiting",
        type=int,
        default=Limits.waiting,
        help="requests that may wait (%(default)s); others get the status 503",
    )
    parser.add_argument("--records", type=int, default=Limits.records, help="most records in a request (%(default)s)")
    parser.add_argument(
        "--characters", type=int, default=Limits.characters, help="most characters in a text (%(default)s)"
    )
    parser.add_argument("--body", type=int, default=Limits.body, help="most bytes in a request (%(default)s)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=Limits.seconds,
        help="most for a body to arrive, and for an answer (%(default)s)",
    )
    parser.add_argument(
        "--refuse-long", action="store_true",
        help="refuse a text of more tokens than the bundle reads; by default it is cut",
    )  # fmt: skip
    parser.add_argument(
        "--reload",
        type=float,
        default=1.0,
        help="seconds between two looks for a changed bundle (%(default)s); 0: none",
    )
    return parser.parse_args(arguments)


def _serve(options: argparse.Namespace) -> None:
    """Serves until a signal stops it.

    Raises:
        UserError: for a missing extra, invalid options, and bundles that cannot be served.
    """
    try:
        from distill.serve.app import Service
        from distill.serve.models import load_models
        from distill.serve.server import run
    except ModuleNotFoundError as error:
        raise UserError(f"distill.serve needs {error.name}: pip install 'distill[serve]'") from error
    token = os.environ.get(TOKEN) or None
    check_options(options, token)
    names = {field.name for field in fields(Limits)}
    limits = Limits(**{name: value for name, value in vars(options).items() if name in names})
    models = load_models(options.bundles, model=options.model, threads=options.threads, limits=limits)
    for model in models.values():
        if model.bundle.caution is not None:
            _log(f"{model.name}: {model.bundle.model} did not pass the gate of its export, {model.bundle.caution}")
    service = Service(models, limits=limits, token=token, reload_seconds=options.reload, log=_log)
    run(service, host=options.host, port=options.port)


def check_options(options: argparse.Namespace, token: str | None) -> None:
    """Raises UserError for options that cannot be, and for a server that anybody could ask."""
    for name in ("batch_size", "batch_records", "waiting", "records", "characters", "body"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"got --{name.replace('_', '-')} {value}, expected at least 1")
    if not options.seconds > 0:
        raise UserError(f"got --seconds {options.seconds:g}, expected more than 0")
    if options.reload < 0:
        raise UserError(f"got --reload {options.reload:g}, expected 0 or more")
    if not 0 <= options.port < 65536:
        raise UserError(f"got --port {options.port}, expected 0 to 65535")
    if token is None and not is_loopback(options.host):
        raise UserError(
            f"{options.host} can be reached from other machines: set {TOKEN} to a secret that requests must bear, or "
            "listen on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _log(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    sys.exit(main())
