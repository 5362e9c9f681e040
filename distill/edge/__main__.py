"""The command `python -m distill.edge`: predicts with an exported bundle, without torch.

The texts are arguments or lines of standard input, and every one of them gives one line:

    python -m distill.edge path/to/bundle "a sentence" "another one"
    python -m distill.edge path/to/bundle < sentences.txt
    python -m distill.edge path/to/bundle --jsonl < records.jsonl

With `--jsonl` each is a record in JSON, such as `{"question": "...", "choices": ["...", "..."]}`.

With `--evaluate` it scores the bundle on labelled rows, and predicts nothing:

    python -m distill.edge path/to/bundle --evaluate dev.tsv

With `--web` it writes a page that runs the bundle in a browser, and predicts nothing:

    python -m distill.edge --web path/to/bundle page --libraries node_modules

Input and output are UTF-8 whatever the locale is.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from distill.edge import web
from distill.edge.bundle import Bundle, RecordError
from distill.edge.decoder import Prediction, Record
from distill.edge.evaluate import Columns, evaluate
from distill.edge.stream import Row, read_chunks
from distill.edge.strings import escape, shorten
from distill.errors import DistillError, UserError, first_line, forget_interrupt


def _parse_json(line: str) -> Record:
    try:
        record: Record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"got {shorten(line)}, expected JSON: {first_line(error)}") from error
    return record


def _write(lines: Sequence[str]) -> None:
    if sys.stdout is not None:  # Else standard output is closed.
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
        sys.stdout.buffer.flush()


def _write_error(text: str) -> None:
    """Writes one line; bytes of a path that are not UTF-8 are written as they are."""
    if sys.stderr is not None:
        sys.stderr.buffer.write(f"error: {escape(text)}\n".encode("utf-8", "surrogateescape"))
        sys.stderr.buffer.flush()


def _write_notice(text: str) -> None:
    if sys.stderr is not None:
        print(f"notice: {text}", file=sys.stderr)


def _predict(bundle: Bundle, options: argparse.Namespace) -> None:
    """Writes the predictions of each chunk of texts, and at the end how many texts were cut."""
    truncated = 0
    for rows in read_chunks(options.text, lambda text: _parse_record(text, bundle, options)):
        records = [record for _, record in rows if record is not None]
        try:
            predictions = bundle.predict(records, batch_size=options.batch_size, rounds=options.rounds)
        except RecordError as error:
            texts = [text for text, record in rows if record is not None]
            raise UserError(f"got {shorten(texts[error.number - 1])}: {error.reason}") from error
        truncated += sum(prediction.get("truncated", False) for prediction in predictions)
        _write(_format(bundle, rows, predictions, options))
    if truncated:
        length = bundle.manifest["max_length"]
        _write_notice(f"texts of more than the {length} tokens that the bundle reads were cut: {truncated:,}")


def _parse_record(text: str, bundle: Bundle, options: argparse.Namespace) -> Record:
    """Returns the record of a text, checked by the decoder and, with `--refuse-long`, for its length."""
    record = _parse_json(text) if options.jsonl else bundle.decoder.parse(text)
    bundle.decoder.read(record)
    if options.refuse_long and bundle.truncates(record):
        length = bundle.manifest["max_length"]
        raise UserError(
            f"got {shorten(text)} with more tokens than the {length} that the bundle reads: shorten it, or "
            "leave out --refuse-long to have it cut"
        )
    return record


def _format(
    bundle: Bundle, rows: Sequence[Row], predictions: Sequence[Prediction], options: argparse.Namespace
) -> list[str]:
    """Returns a line for each row. That of a blank line is blank, and in JSON all of its values are null.

    With `--jsonl` the JSON has no text of the row.
    """
    remaining, lines = iter(predictions), []
    for text, record in rows:
        prediction = dict.fromkeys(bundle.decoder.fields) if record is None else next(remaining)
        if options.jsonl:
            lines.append(json.dumps(prediction, ensure_ascii=False))
        elif options.json:
            lines.append(json.dumps({"text": text, **prediction}, ensure_ascii=False))
        elif record is None:
            lines.append("")
        else:
            lines.append(f"{bundle.decoder.format(prediction)}\t{escape(text, tab=False)}")
    return lines


def _evaluate(bundle: Bundle, options: argparse.Namespace) -> None:
    """Writes the metrics of a bundle on labelled rows."""
    if options.text:
        raise UserError(f"got --evaluate and {shorten(options.text[0])}, expected one of the two")
    if options.rounds != 1:
        raise UserError(f"got --evaluate and --rounds {options.rounds}: the metrics are of one round, leave it out")
    names = options.label_column or []
    columns = Columns(
        options.text_column, names[0] if len(names) == 1 else None, names if len(names) > 1 else None,
        as_text=options.as_text,
    )  # fmt: skip
    result = evaluate(bundle, options.evaluate, columns, batch_size=options.batch_size)
    for notice in result.notices:
        _write_notice(notice)
    if options.json:
        content = {"model": bundle.model, "rows": result.rows, "truncated": result.truncated, "metrics": result.metrics}
        content |= {} if result.read_as is None else {"read_as": result.read_as}
        _write([json.dumps(content)])
        return
    _write([f"{name}\t{value:.4f}" for name, value in result.metrics.items()])
    _write([f"rows\t{result.rows}", f"truncated\t{result.truncated}"])
    _write([] if result.read_as is None else [f"read as\t{result.read_as}"])


def _write_page(bundle: Bundle, options: argparse.Namespace) -> None:
    """Writes the page of a bundle and tells how to open it."""
    if len(options.text) != 1:
        raise UserError(f"got {len(options.text)} names of a page, expected one: --web BUNDLE NAME")
    target = Path(options.text[0])
    try:
        page = web.write_page(bundle, target, libraries=options.libraries, single_file=options.single_file)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror}): make room, or give another name") from error
    advice = f"open {page}" if options.single_file else f"python -m http.server --directory {page.parent}"
    _write([f"{page}: {advice}"])


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m distill.edge", description="Predict with an exported bundle.")
    parser.add_argument("bundle", help="directory with bundle.json")
    parser.add_argument(
        "text", nargs="*",
        help="texts, or texts separated by tabs: the two of a pair, or a question and its choices; by default lines of "
        "standard input",
    )  # fmt: skip
    parser.add_argument("--model", help="such as fp32, int8 or openvino; by default the recommended one")
    parser.add_argument("--threads", type=int, help="number of threads; by default one for each usable core")
    parser.add_argument(
        "--batch-size", type=int, help="texts in a forward pass; by default as many as the bundle recommends"
    )
    parser.add_argument(
        "--max-length", type=int, metavar="N",
        help="tokens that texts are cut to, fewer than the bundle reads: a long text then takes less time and memory",
    )  # fmt: skip
    parser.add_argument("--top-k", type=int, metavar="K", help="pieces for each mask, of a bundle that fills masks")
    parser.add_argument(
        "--rounds", type=int, default=1, metavar="T",
        help="of predictions of the masks of a text, each of which masks the least certain tokens again (default 1)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object a line, with all probabilities")
    parser.add_argument(
        "--jsonl", action="store_true",
        help='each line is a record in JSON, such as {"question": ..., "context": ...}, and gives a JSON object',
    )  # fmt: skip
    parser.add_argument(
        "--refuse-long",
        action="store_true",
        help="end at a text of more tokens than the bundle reads, and do not cut it",
    )
    parser.add_argument(
        "--evaluate", type=Path, metavar="FILE", help="labelled rows, .csv, .tsv or .jsonl: write metrics"
    )
    parser.add_argument(
        "--text-column", action="append", metavar="NAME", help="with --evaluate: of a text; again for each further one"
    )
    parser.add_argument(
        "--as-text", action="store_true",
        help="with --evaluate, of tags: predict the text of the words, which the bundle splits itself",
    )  # fmt: skip
    parser.add_argument(
        "--label-column", action="append", metavar="NAME",
        help="with --evaluate: of the label; again for each further label that has a column of 0 and 1",
    )  # fmt: skip
    parser.add_argument("--web", action="store_true", help="write a page for browsers; the text is the folder's name")
    parser.add_argument("--single-file", action="store_true", help="with --web: one HTML file in place of a folder")
    parser.add_argument("--libraries", type=Path, default=Path("node_modules"), help="with --web: of JavaScript")
    return parser.parse_intermixed_args(arguments)  # Options may stand between the texts.


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    try:
        bundle = Bundle(
            options.bundle, model=options.model, threads=options.threads, top_k=options.top_k,
            max_length=options.max_length,
        )  # fmt: skip
        if bundle.caution is not None:
            _write_notice(f"{bundle.model} did not pass the gate of its export, {bundle.caution}")
        if options.web:
            _write_page(bundle, options)
            return 0
        if options.evaluate is not None:
            _evaluate(bundle, options)
            return 0
        _predict(bundle, options)
    except BrokenPipeError:  # The reader has seen enough, as `head` does.
        _discard_output()
    except DistillError as error:
        _write_error(str(error))
        return error.exit_code
    except OSError as error:
        _discard_output()
        _write_error(f"standard input or output failed: {error.strerror}")
        return DistillError.exit_code
    except KeyboardInterrupt:
        forget_interrupt()
        return 130
    return 0


def _discard_output() -> None:
    """Sends what is left in the buffer nowhere, because Python writes it once more at the exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
