"""The command `python -m distill.edge`: predicts with an exported bundle, without torch.

The texts are arguments or lines of standard input:

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

LINES_PER_CHUNK = 256


def _read_chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yields the texts, or without any the lines of standard input, in chunks; blank ones are omitted."""
    source = (line.rstrip("\n") for line in sys.stdin) if not texts else iter(texts)
    lines = (line for line in source if line.strip())
    while chunk := list(islice(lines, LINES_PER_CHUNK)):
        yield chunk


def _predict_lines(bundle: Bundle, lines: list[str]) -> list[Prediction]:
    if not bundle.pair:
        return bundle.predict(lines)
    pairs = [line.split("\t") for line in lines]
    invalid = next((line for line, pair in zip(lines, pairs, strict=True) if len(pair) != 2), None)
    if invalid is not None:
        raise UserError(f"got {invalid!r}, expected two texts with a tab between them")
    return bundle.predict(pairs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m distill.edge", description="Predict with an exported bundle.")
    parser.add_argument("bundle", help="directory with bundle.json")
    parser.add_argument(
        "text", nargs="*", help="texts, or pairs of texts separated by a tab; by default lines of standard input"
    )
    parser.add_argument("--model", help="fp32 or int8; by default the recommended one")
    parser.add_argument("--threads", type=int, help="number of threads of onnxruntime")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, with all probabilities")
    options = parser.parse_args(arguments)
    try:
        bundle = Bundle(options.bundle, model=options.model, threads=options.threads)
        for lines in _read_chunks(options.text):
            for text, prediction in zip(lines, _predict_lines(bundle, lines), strict=True):
                if options.json:
                    print(json.dumps({"text": text, **prediction}, ensure_ascii=False))
                else:
                    print(f"{bundle.decoder.format(prediction)}\t{text}")
    except DistillError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except UnicodeDecodeError as error:
        print(f"error: standard input is not UTF-8: {error}", file=sys.stderr)
        return UserError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
