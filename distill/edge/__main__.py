"""The command `python -m distill.edge`: predicts with an exported bundle, without torch.

The texts are arguments or lines of standard input, and every one of them gives one line:

    python -m distill.edge path/to/bundle "a sentence" "another one"
    python -m distill.edge path/to/bundle < sentences.txt
    python -m distill.edge path/to/bundle --jsonl < records.jsonl

With `--jsonl` each is a record in JSON, such as `{"question": "...", "choices": ["...", "..."]}`.

With `--web` it writes a page that runs the bundle in a browser, and predicts nothing:

    python -m distill.edge --web path/to/bundle page --libraries node_modules

Input and output are UTF-8 whatever the locale is.
"""

import argparse
import codecs
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from distill.edge import decode, web
from distill.edge.bundle import Bundle
from distill.errors import DistillError, UserError, first_line

LINES_PER_CHUNK = 256
Row = tuple[str, decode.Record | None]  # A text, and its record; None for a blank line.


def _read_arguments(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields a name for each argument, and its text, which is UTF-8 whatever the locale is."""
    for number, argument in enumerate(arguments, 1):
        text = argument
        if decode.find_surrogate(argument) is not None:
            try:
                text = os.fsencode(argument).decode("utf-8")
            except UnicodeError as error:
                raise UserError(f"text {number} is not UTF-8: convert it to UTF-8") from error
        yield f"text {number}", text


def _read_lines() -> Iterator[tuple[str, str]]:
    """Yields a name for each line of standard input, and its text. Only line feeds end a line."""
    if sys.stdin is None:  # Standard input is closed.
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        content = content.removesuffix(b"\r\n") if content.endswith(b"\r\n") else content.removesuffix(b"\n")
        try:
            yield f"line {number}", content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"line {number} of standard input is not UTF-8, its byte {error.start + 1} is "
                f"0x{content[error.start]:02x}: convert the file to UTF-8"
            ) from error


def _read_rows(texts: Sequence[str], parse: Callable[[str], decode.Record], decoder: decode.Decoder) -> Iterator[Row]:
    """Yields the texts, or without any the lines of standard input, with their records, which the decoder checks."""
    for name, text in _read_arguments(texts) if texts else _read_lines():
        if not text.strip():
            yield text, None
            continue
        try:
            record = parse(text)
            decoder.read(record)
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        yield text, record


def _parse_json(line: str) -> decode.Record:
    try:
        record: decode.Record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"got {decode.shorten(line)}, expected JSON: {first_line(error)}") from error
    return record


def _read_chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yields the rows in chunks, also those before an error."""
    chunk: list[Row] = []
    try:
        for row in rows:
            chunk.append(row)
            if len(chunk) == LINES_PER_CHUNK:
                yield chunk
                chunk = []
    except UserError:
        yield chunk
        raise
    yield chunk


def _write(lines: Sequence[str]) -> None:
    if sys.stdout is not None:  # Else standard output is closed.
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
        sys.stdout.buffer.flush()


def _write_error(text: str) -> None:
    """Writes one line; bytes of a path that are not UTF-8 are written as they are."""
    if sys.stderr is not None:
        sys.stderr.buffer.write(f"error: {decode.escape(text)}\n".encode("utf-8", "surrogateescape"))
        sys.stderr.buffer.flush()


def _predict_chunk(
    bundle: Bundle, rows: Sequence[Row], *, batch_size: int | None, as_json: bool, as_records: bool
) -> list[str]:
    """Returns a line for each row. That of a blank line is blank, and in JSON all of its values are null.

    `as_records` writes JSON without the text of the row.
    """
    predictions = iter(bundle.predict([record for _, record in rows if record is not None], batch_size=batch_size))
    lines = []
    for text, record in rows:
        prediction = dict.fromkeys(bundle.decoder.fields) if record is None else next(predictions)
        if as_records:
            lines.append(json.dumps(prediction, ensure_ascii=False))
        elif as_json:
            lines.append(json.dumps({"text": text, **prediction}, ensure_ascii=False))
        elif record is None:
            lines.append("")
        else:
            lines.append(f"{bundle.decoder.format(prediction)}\t{decode.escape(text, tab=False)}")
    return lines


def _write_page(bundle: Bundle, options: argparse.Namespace) -> None:
    """Writes the page of a bundle and tells how to open it."""
    if len(options.text) != 1:
        raise UserError(f"got {len(options.text)} names of a page, expected one: --web BUNDLE NAME")
    page = web.write_page(
        bundle, Path(options.text[0]), libraries=options.libraries, single_file=options.single_file
    )  # fmt: skip
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
    parser.add_argument("--model", help="fp32 or int8; by default the recommended one")
    parser.add_argument("--threads", type=int, help="number of threads of onnxruntime")
    parser.add_argument(
        "--batch-size", type=int, help="texts in a forward pass; by default as many as the bundle recommends"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line, with all probabilities")
    parser.add_argument(
        "--jsonl", action="store_true",
        help='each line is a record in JSON, such as {"question": ..., "context": ...}, and gives a JSON object',
    )  # fmt: skip
    parser.add_argument("--web", action="store_true", help="write a page for browsers; the text is the folder's name")
    parser.add_argument("--single-file", action="store_true", help="with --web: one HTML file in place of a folder")
    parser.add_argument("--libraries", type=Path, default=Path("node_modules"), help="with --web: of JavaScript")
    return parser.parse_intermixed_args(arguments)  # Options may stand between the texts.


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    try:
        bundle = Bundle(options.bundle, model=options.model, threads=options.threads)
        if options.web:
            _write_page(bundle, options)
            return 0
        parse = _parse_json if options.jsonl else bundle.decoder.parse
        for rows in _read_chunks(_read_rows(options.text, parse, bundle.decoder)):
            _write(
                _predict_chunk(
                    bundle, rows, batch_size=options.batch_size, as_json=options.json, as_records=options.jsonl
                )
            )
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
        return 130
    return 0


def _discard_output() -> None:
    """Sends what is left in the buffer nowhere, because Python writes it once more at the exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
