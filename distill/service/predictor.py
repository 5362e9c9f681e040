"""The program `python -m distill.service.predictor BUNDLE`: a server of one bundle that ends with its parent.

It is `python -m distill.serve` on a free port of this machine, until its standard input ends.
"""

import os
import signal
import sys
import threading

from distill.serve.__main__ import main


def _end_with_parent() -> None:
    """Stops the server when the service closes the pipe, or has died."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(main([*sys.argv[1:], "--port", "0", "--reload", "0"]))
