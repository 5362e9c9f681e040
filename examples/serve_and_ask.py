"""Serves a bundle over HTTP, asks it as a client would, and stops it.

    python examples/serve_and_ask.py
    python examples/serve_and_ask.py --bundle runs/tutorial/bundle "Returns the eigenvalues of a square array."

The server is `python -m distill.serve BUNDLE` (the extra `serve`), without torch. By default the bundle is that of the
newest run below runs/.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", default=["Returns the eigenvalues of a square array."])
    parser.add_argument("--bundle", type=Path, help="by default that of the newest run below runs/")
    options = parser.parse_args()
    bundle = options.bundle or find_newest_bundle(Path("runs"))

    # Port 0 is any that is free. The first line of the server names it, and then it answers.
    command = [sys.executable, "-m", "distill.serve", str(bundle), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            address = read_address(server)
            print(f"{bundle} is served at {address}")
            for prediction in ask(address, options.texts):
                print(json.dumps(prediction))
        finally:  # The server answers what it has accepted, and ends with exit code 0.
            server.send_signal(signal.SIGTERM)


def read_address(server: subprocess.Popen[str]) -> str:
    """Reads the output of the server until it names its address."""
    lines = []
    assert server.stdout is not None
    for line in server.stdout:
        lines.append(line)
        if match := re.search(r"http://[\w.]+:\d+", line):
            return match.group()
    raise SystemExit(f"the server ended before it listened: {''.join(lines)}")


def ask(address: str, texts: list[str]) -> list[dict[str, object]]:
    """Returns the predictions for texts, in their order."""
    body = json.dumps({"texts": texts}).encode()
    request = urllib.request.Request(f"{address}/predict", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["predictions"]


def find_newest_bundle(runs: Path) -> Path:
    """Returns the newest bundle below a directory of runs."""
    found = sorted(runs.rglob("bundle/bundle.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise SystemExit(f"no bundle below {runs}/: run python examples/csv_classifier.py, or give --bundle DIR")
    return found[-1].parent


if __name__ == "__main__":
    main()
