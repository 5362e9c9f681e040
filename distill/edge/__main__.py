"""The command `python -m distill.edge`: predicts with an exported bundle, without torch.

The texts are arguments or lines of standard input, and every one of them gives one line:

    python -m distill.edge path/to/bundle "a sentence" "another one"
    python -m distill.edge path/to/bundle < sentences.txt
    python -m distill.edge path/to/bundle --jsonl < records.jsonl

With `--jsonl` each is a record in JSON, such as `{"question": "...", "choices": ["...", "..."]}`.

With `--explain` each text gets its class, and what the probability of the class loses without each word:

    python -m distill.edge path/to/bundle --explain "a sentence"

With `generate` before the texts, a bundle that writes text writes what follows each of them:

    python -m distill.edge path/to/bundle generate "Once upon a time" --max-new-tokens 40 --temperature 0.8 --stream

With `search` before the texts, a bundle of vectors finds the lines of a file that are nearest to each of them:

    python -m distill.edge path/to/bundle search "a sentence" --corpus sentences.txt --top-k 5

With `--evaluate` it scores the bundle on labelled rows, and predicts nothing:

    python -m distill.edge path/to/bundle --evaluate dev.tsv

With `--web` it writes a page that runs the bundle in a browser, and predicts nothing:

    python -m distill.edge --web path/to/bundle page --libraries node_modules

Input and output are UTF-8 whatever the locale is.
"""

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from distill.edge import web
from distill.edge.bundle import Bundle, RecordError
from distill.edge.command_options import GENERATE, GENERATION, SEARCH, parse
from distill.edge.decoder import Prediction, Record
from distill.edge.evaluate import Columns, evaluate
from distill.edge.generation_options import GenerationOptions
from distill.edge.stream import Row, read_chunks
from distill.edge.strings import escape, shorten
from distill.errors import DistillError, UserError, first_line, forget_interrupt
from distill.readers.lines import read_lines


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
            predictions = bundle.predict(
                records, batch_size=options.batch_size, rounds=options.rounds, lengths=options.lengths
            )
        except RecordError as error:
            texts = [text for text, record in rows if record is not None]
            raise UserError(f"got {shorten(texts[error.number - 1])}: {error.reason}") from error
        truncated += sum(prediction.get("truncated", False) for prediction in predictions)
        _write(_format(bundle, rows, predictions, options))
    if truncated:
        length = bundle.manifest["max_length"]
        _write_notice(f"texts of more than the {length} tokens that the bundle reads were cut: {truncated:,}")


def _explain(bundle: Bundle, options: argparse.Namespace) -> None:
    """Writes the class of each text with the effects of its words, the largest one first."""
    for rows in read_chunks(options.text, str):
        for text, record in rows:
            if record is None:
                _write([""])
                continue
            found = bundle.explain(text, batch_size=options.batch_size)
            if options.json:
                _write([json.dumps(found)])
                continue
            words = sorted(found["words"], key=lambda word: -abs(word["effect"]))
            effects = " ".join(f"{escape(word['word'])}:{word['effect']:+.4f}" for word in words)
            _write([f"{escape(found['label'])}\t{found['probability']:.4f}\t{effects}"])


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


def _generate(bundle: Bundle, options: argparse.Namespace) -> None:
    """Writes the text that follows each prompt: a line each, or with `--stream` the pieces as they come."""
    given = {name: getattr(options, name) for name in (*GENERATION, "top_k") if getattr(options, name) is not None}
    GenerationOptions(**given)  # Is checked before any text is read.
    bundle.generator()
    texts = options.text[1:]
    truncated = 0
    for rows in read_chunks(texts, _parse_json if options.jsonl else str):
        # A blank argument is an empty prompt, and a blank line gives a blank line.
        prompts = [text if record is None else record for text, record in rows if texts or record is not None]
        if options.stream:
            for prompt in prompts:
                _stream(bundle.generate(cast(str, prompt), **given))
            continue
        written = bundle.generate_all(cast(list[str], prompts), batch_size=options.batch_size, **given)
        truncated += sum(prediction.get("truncated", False) for prediction in written)
        remaining = iter(written)
        for text, record in rows:
            is_blank = record is None and not texts
            prediction: Prediction = dict.fromkeys(bundle.decoder.fields) if is_blank else next(remaining)
            if options.jsonl:
                _write([json.dumps(prediction, ensure_ascii=False)])
            elif options.json:
                _write([json.dumps({"prompt": text, **prediction}, ensure_ascii=False)])
            else:
                _write(["" if is_blank else f"{escape(prediction['text'])}\t{escape(text, tab=False)}"])
    if truncated:
        _write_notice(f"prompts of more tokens than the model has positions were cut: {truncated:,}")


def _search(bundle: Bundle, options: argparse.Namespace) -> None:
    """Writes the texts of a corpus that are nearest to each query, with their cosines, the nearest first."""
    queries = options.text[1:]
    if not queries or options.corpus is None:
        raise UserError(f"got {SEARCH} without a query or its corpus, expected {SEARCH} TEXT --corpus FILE")
    corpus = [line for line in read_lines(options.corpus) if line.strip()]
    if not corpus:
        raise UserError(f"{options.corpus} is empty, expected a text on each line")
    found = bundle.search(queries, corpus, k=10 if options.top_k is None else options.top_k)
    for query, hits in zip(queries, found, strict=True):
        if options.json or options.jsonl:
            results = [{"text": corpus[row], "position": row, "cosine": cosine} for row, cosine in hits]
            _write([json.dumps({"query": query, "results": results}, ensure_ascii=False)])
        else:
            start = f"{escape(query)}\t" if len(queries) > 1 else ""
            _write([f"{start}{cosine:.4f}\t{escape(corpus[row], tab=False)}" for row, cosine in hits])


def _refuse_corpus(bundle: Bundle, options: argparse.Namespace) -> None:
    """Raises UserError for a corpus that is not searched."""
    if options.corpus is None:
        return
    if not bundle.decoder.encodes:
        raise UserError(f"got --corpus, and {bundle.directory} gives no vectors to search with: leave it out")
    raise UserError(f"got --corpus without {SEARCH}, expected BUNDLE {SEARCH} TEXT --corpus FILE")


def _open(options: argparse.Namespace, top_k: int | None) -> Bundle:
    """Returns the bundle with the options of its model."""
    return Bundle(
        options.bundle, model=options.model, threads=options.threads, max_length=options.max_length, top_k=top_k
    )


def _stream(pieces: Iterable[str]) -> None:
    """Writes pieces of a text as they are and as they come, and a line break after them."""
    if sys.stdout is None:
        return
    for piece in itertools.chain(pieces, ["\n"]):
        sys.stdout.buffer.write(piece.encode("utf-8"))
        sys.stdout.buffer.flush()


def _refuse_generation(options: argparse.Namespace) -> None:
    """Raises UserError for options of `generate` without it."""
    for name in (*GENERATION, "stream"):
        if (value := getattr(options, name)) is not None and value is not False:
            option = f"--{name.replace('_', '-')}"
            raise UserError(
                f"got {option}, which is for texts that a bundle writes: BUNDLE {GENERATE} TEXT {option} ..."
            )


def _evaluate(bundle: Bundle, options: argparse.Namespace) -> None:
    """Writes the metrics of a bundle on labelled rows."""
    if options.text:
        raise UserError(f"got --evaluate and {shorten(options.text[0])}, expected one of the two")
    if options.rounds not in (None, 1):
        raise UserError(f"got --evaluate and --rounds {options.rounds}: the metrics are of one round, leave it out")
    if options.lengths is not None:
        raise UserError(f"got --evaluate and --lengths {options.lengths}: no metrics are of a length, leave it out")
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = parse(arguments)
    try:
        generates = options.text[:1] == [GENERATE]
        if not generates:
            _refuse_generation(options)
        searches = options.text[:1] == [SEARCH]
        bundle = _open(options, None if generates or searches else options.top_k)
        if searches and not bundle.decoder.encodes:  # It is a text.
            searches, bundle = False, _open(options, options.top_k)
        if bundle.caution is not None:
            _write_notice(f"{bundle.model} did not pass the gate of its export, {bundle.caution}")
        if options.web:
            _write_page(bundle, options)
            return 0
        if options.evaluate is not None:
            _evaluate(bundle, options)
            return 0
        if generates:
            _generate(bundle, options)
            return 0
        if searches:
            _search(bundle, options)
            return 0
        _refuse_corpus(bundle, options)
        if options.explain:
            _explain(bundle, options)
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
