"""Predict from a shell with an exported bundle, without torch.

The texts are arguments, or lines on standard input:

    python -m distill.edge path/to/bundle "a sentence" "another one"
    python -m distill.edge path/to/bundle < sentences.txt
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice

from distill.edge.bundle import Bundle
from distill.edge.decode import Prediction
from distill.errors import DistillError, UserError

LINES_AT_ONCE = 256


def _lines(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts, or those on standard input, some at a time and without the empty ones."""
    source = (line.rstrip("\n") for line in sys.stdin) if not texts else iter(texts)
    wanted = (text for text in source if text.strip())
    while chunk := list(islice(wanted, LINES_AT_ONCE)):
        yield chunk


def _predict_lines(bundle: Bundle, lines: list[str]) -> list[Prediction]:
    if not bundle.pair:
        return bundle.predict(lines)
    halves = [line.split("\t") for line in lines]
    wrong = next((line for line, half in zip(lines, halves, strict=True) if len(half) != 2), None)
    if wrong is not None:
        raise UserError(f"got {wrong!r}, expected two texts with a tab between them")
    return bundle.predict(halves)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m distill.edge", description="Predict with an exported bundle.")
    parser.add_argument("bundle", help="directory with bundle.json")
    parser.add_argument("text", nargs="*", help="texts, for pairs with a tab between; standard input by default")
    parser.add_argument("--model", help="fp32 or int8; by default the one that the bundle recommends")
    parser.add_argument("--threads", type=int, help="threads of onnxruntime; its own choice by default")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, with all probabilities")
    options = parser.parse_args(arguments)
    try:
        bundle = Bundle(options.bundle, model=options.model, threads=options.threads)
        for lines in _lines(options.text):
            for text, answer in zip(lines, _predict_lines(bundle, lines), strict=True):
                if options.json:
                    print(json.dumps({"text": text, **answer}, ensure_ascii=False))
                else:
                    print(f"{bundle.decoder.format(answer)}\t{text}")
    except DistillError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except UnicodeDecodeError as error:
        print(f"error: standard input is no UTF-8: {error}", file=sys.stderr)
        return UserError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
