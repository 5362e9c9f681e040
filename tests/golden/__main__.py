"""Compares the golden commands with what is stored of them, or stores what they leave now.

python -m tests.golden [--update] [NAME ...]
"""

import argparse
import os
import sys

import pytest


def main() -> int:
    """Prints the difference; returns 1 if there is one, and 0 after an update."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--update", action="store_true", help="store what the commands leave now")
    parser.add_argument("names", nargs="*", help="commands, or refused; by default all")
    options = parser.parse_args()
    os.environ["GOLDEN_UPDATE"] = "1" if options.update else "0"
    chosen = ["-k", " or ".join(options.names)] if options.names else []
    return int(pytest.main(["tests/golden/test_golden.py", "-n", "0", "-s", "--tb=short", *chosen]) != 0)


if __name__ == "__main__":
    sys.exit(main())
