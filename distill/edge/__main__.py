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
import codecs
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import cast

from distill.core.errors import DistillError, UserError, escape, find_surrogate, first_line, forget_interrupt, shorten
from distill.edge import web
from distill.edge.bundle import Bundle
from distill.edge.decoder import Prediction, Record
from distill.edge.evaluation import Columns, evaluate
from distill.edge.prediction import ESCALATE, RecordError
from distill.edge.sampling import SIDES, GenerationOptions
from distill.rows.formats import read_lines

GENERATE, SEARCH = "generate", "search"  # Before the texts.
# The options that `generate` alone has.
GENERATION = ("max_new_tokens", "temperature", "top_p", "seed", "beams", "stop", "repetition_penalty", "truncate")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options and the texts of a command."""
    parser = argparse.ArgumentParser(prog="python -m distill.edge", description="Predict with an exported bundle.")
    parser.add_argument("bundle", help="directory with bundle.json")
    parser.add_argument(
        "text", nargs="*",
        help="texts, or texts separated by tabs: the two of a pair, or a question and its choices; by default lines of "
        f"standard input. After {GENERATE} they are prompts, and after {SEARCH} queries",
    )  # fmt: skip
    _add_predictions(parser)
    _add_uses(parser)
    return parser.parse_intermixed_args(arguments)  # Options may stand between the texts.


def _add_predictions(parser: argparse.ArgumentParser) -> None:
    """Adds the options of predictions."""
    add = parser.add_argument_group("model").add_argument
    add("--model", help="such as fp32, int8 or openvino; by default the recommended one")
    add("--threads", type=int, help="number of threads; by default one for each usable core")
    add("--batch-size", type=int, help="texts in a forward pass; by default as many as the bundle recommends")
    add(
        "--max-length", type=int, metavar="N",
        help="tokens that texts are cut to, fewer than the bundle reads: a long text then takes less time and memory",
    )  # fmt: skip
    add = parser.add_argument_group("input and output").add_argument
    add("--json", action="store_true", help="one JSON object a line, with all probabilities")
    add(
        "--jsonl", action="store_true",
        help='each line is a record in JSON, such as {"question": ..., "context": ...}, and gives a JSON object',
    )  # fmt: skip
    add(
        "--refuse-long", action="store_true",
        help="end at a text of more tokens than the bundle reads, and do not cut it",
    )  # fmt: skip
    add = parser.add_argument_group("predictions").add_argument
    add(
        "--top-k", type=int, metavar="K",
        help=f"pieces for each mask, of a bundle that fills masks; with {GENERATE}: sample from the K best tokens; "
        f"with {SEARCH}: texts to find, by default 10",
    )  # fmt: skip
    add(
        "--rounds", type=int, metavar="T",
        help="of predictions of the masks of a text, each of which masks the least certain tokens again; by default 1, "
        "or as many as the bundle has",
    )  # fmt: skip
    add(
        "--lengths", type=int, metavar="N",
        help="likeliest lengths of a text to write, of which the best text is taken, of a bundle that predicts lengths",
    )  # fmt: skip
    add(
        "--escalate", type=float, metavar="SHARE",
        help="mark the predictions that are left to the teacher, of which dev has this share, from 0 to 0.3",
    )  # fmt: skip
    add("--explain", action="store_true", help="what the probability of a text's class loses without each of its words")


def _add_uses(parser: argparse.ArgumentParser) -> None:
    """Adds the options of what else a bundle may do."""
    add = parser.add_argument_group(SEARCH, f"options after BUNDLE {SEARCH}, for a bundle of vectors").add_argument
    add("--corpus", type=Path, metavar="FILE", help="the texts among which to search, one on each line")
    add("--index", type=Path, metavar="PATH", help="the vectors of these texts: an index or a file")
    add = parser.add_argument_group(
        GENERATE, f"options after BUNDLE {GENERATE}, for a bundle that writes text"
    ).add_argument
    add("--max-new-tokens", type=int, metavar="N", help="tokens to write at most; by default as many as the bundle has")
    add("--temperature", type=float, metavar="T", help="sample; by default the most probable token is taken each time")
    add("--top-p", type=float, metavar="P", help="sample from the fewest tokens that have P of the probability")
    add("--seed", type=int, metavar="N", help="repeat the sampled tokens")
    add("--beams", type=int, metavar="N", help="sequences of a beam search")
    add("--stop", action="append", metavar="TEXT", help="end before this text; again for each further one")
    add("--repetition-penalty", type=float, metavar="X", help="more than 1 makes tokens that were there less probable")
    add("--truncate", choices=SIDES, help="end at which to cut a prompt of more tokens than the model has positions")
    add("--stream", action="store_true", help="write pieces as they come, with line breaks as they are")
    add = parser.add_argument_group("evaluation", "metrics on labelled rows, in place of predictions").add_argument
    add(
        "--evaluate", type=Path, metavar="FILE",
        help="labelled rows as the task was trained from: .csv, .tsv, .jsonl, .parquet, for tags also CoNLL, and for "
        "questions also the JSON of SQuAD",
    )  # fmt: skip
    add("--text-column", action="append", metavar="NAME", help="of a text; again for each further one")
    add(
        "--as-text", action="store_true",
        help="for tags: predict the text of the words, which the bundle splits itself",
    )  # fmt: skip
    add(
        "--label-column", action="append", metavar="NAME",
        help="of the label; again for each further label that has a column of 0 and 1. Columns of CoNLL are numbers",
    )  # fmt: skip
    add = parser.add_argument_group("page", "a page for browsers, in place of predictions").add_argument
    add("--web", action="store_true", help="write the page; the text is the folder's name")
    add("--single-file", action="store_true", help="one HTML file in place of a folder")
    add("--libraries", type=Path, default=Path("node_modules"), help="of JavaScript, default %(default)s")


LINES_PER_CHUNK = 256
BLOCK_BYTES = 1 << 16  # Of one read, as many as a pipe holds.
Row = tuple[str, Record | None]  # A text, and its record; None for a blank line.
Named = tuple[str, str]  # The name of a text in messages, and the text.


def read_chunks(texts: Sequence[str], parse: Callable[[str], Record]) -> Iterator[list[Row]]:
    """Yields the texts with their records in chunks; without texts, the lines of standard input.

    A line is in a chunk as soon as it has arrived. The next chunk has all lines that arrived since, at most
    `LINES_PER_CHUNK`: a lonely line does not wait for others, and a fast pipe fills every chunk.

    Args:
        parse: returns the record of a text; raises UserError for an invalid one.

    Raises:
        UserError: for a text that is not UTF-8 or has no record, after the texts before it were yielded.
    """
    for block in [map(_read_argument, itertools.count(1), texts)] if texts else _read_lines():
        chunk: list[Row] = []
        try:
            for name, text in block:
                chunk.append((text, _read_record(name, text, parse)))
                if len(chunk) == LINES_PER_CHUNK:
                    yield chunk
                    chunk = []
        except UserError:
            yield chunk
            raise
        yield chunk


def _read_record(name: str, text: str, parse: Callable[[str], Record]) -> Record | None:
    if not text.strip():
        return None
    try:
        return parse(text)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def _read_argument(number: int, argument: str) -> Named:
    """Returns a name for an argument, and its text, which is UTF-8 whatever the locale is."""
    text = argument
    if find_surrogate(argument) is not None:
        try:
            text = os.fsencode(argument).decode("utf-8")
        except UnicodeError as error:
            raise UserError(f"text {number} is not UTF-8: convert it to UTF-8") from error
    return f"text {number}", text


def _read_lines() -> Iterator[Iterator[Named]]:
    """Yields the lines of standard input that have arrived, each with its name."""
    if sys.stdin is None:  # Standard input is closed.
        return
    first = 1
    for lines in split_lines(cast(BufferedReader, sys.stdin.buffer)):
        yield map(_read_line, itertools.count(first), lines)
        first += len(lines)


def split_lines(stream: BufferedReader) -> Iterator[list[bytes]]:
    """Yields the lines that have arrived, without their line feeds, as soon as there is one.

    The last line may lack its line feed.
    """
    parts: list[bytes] = []  # Of a line whose end has not arrived.
    while content := stream.read1(BLOCK_BYTES):
        start, *others = content.split(b"\n")
        parts.append(start)
        if others:
            yield [b"".join(parts), *others[:-1]]
            parts = [others[-1]]
    if last := b"".join(parts):
        yield [last]


def _read_line(number: int, line: bytes) -> Named:
    """Returns a name for a line, and its text. Only line feeds end a line."""
    content = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).removesuffix(b"\r")
    try:
        return f"line {number}", content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"line {number} of standard input is not UTF-8, its byte {error.start + 1} is "
            f"0x{content[error.start]:02x}: convert the file to UTF-8"
        ) from error


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
                records, batch_size=options.batch_size, rounds=options.rounds, lengths=options.lengths,
                escalate=options.escalate,
            )  # fmt: skip
        except RecordError as error:
            texts = [text for text, record in rows if record is not None]
            raise UserError(f"got {shorten(texts[error.number - 1])}: {error.reason}") from error
        truncated += sum(prediction.get("truncated", False) for prediction in predictions)
        _write_predictions(rows, predictions, bundle, options, show=bundle.decoder.format)
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


def _write_predictions(
    rows: Sequence[Row], predictions: Sequence[Prediction], bundle: Bundle, options: argparse.Namespace,
    *, name: str = "text", show: Callable[[Prediction], str],
) -> None:  # fmt: skip
    """Writes a line for each row. That of a blank line is blank, and in JSON all of its values are null.

    With `--jsonl` the JSON has no text of the row. With `--escalate` a plain line has `escalate` or `-` too.

    Args:
        name: of the text in JSON.
        show: returns a prediction in plain form.
    """
    remaining, lines = iter(predictions), []
    fields = (*bundle.decoder.fields, *([] if options.escalate is None else [ESCALATE]))
    for text, record in rows:
        prediction = dict.fromkeys(fields) if record is None else next(remaining)
        if options.json or options.jsonl:
            of_row = {} if options.jsonl else {name: text}
            lines.append(json.dumps(of_row | prediction, ensure_ascii=False))
        else:
            mark = "" if options.escalate is None else f"\t{ESCALATE if prediction[ESCALATE] else '-'}"
            lines.append("" if record is None else f"{show(prediction)}{mark}\t{escape(text, tab=False)}")
    _write(lines)


def _generate(bundle: Bundle, options: argparse.Namespace) -> None:
    """Writes the text that follows each prompt: a line each, or with `--stream` the pieces as they come."""
    given = {name: getattr(options, name) for name in (*GENERATION, "top_k") if getattr(options, name) is not None}
    GenerationOptions(**given)  # Is checked before any text is read.
    bundle.generator()
    texts = options.text[1:]
    truncated = 0
    for rows in read_chunks(texts, _parse_json if options.jsonl else str):
        if texts:  # A blank argument is an empty prompt, and a blank line gives a blank line.
            rows = [(text, text if record is None else record) for text, record in rows]
        prompts = [record for _, record in rows if record is not None]
        if options.stream:
            for prompt in prompts:
                _stream(bundle.generate(cast(str, prompt), **given))
            continue
        written = bundle.generate_all(cast(list[str], prompts), batch_size=options.batch_size, **given)
        truncated += sum(prediction.get("truncated", False) for prediction in written)
        _write_predictions(rows, written, bundle, options, name="prompt", show=lambda of: escape(of["text"]))
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
    index = None if options.index is None else bundle.read_index(options.index)
    if index is not None and len(index) != len(corpus):
        raise UserError(f"{options.index} has {len(index):,} vectors, and {options.corpus} {len(corpus):,} texts")
    k = 10 if options.top_k is None else options.top_k
    found = bundle.search(queries, corpus if index is None else index, k=k)
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
        if options.escalate is not None and any((generates, searches, options.explain, options.evaluate, options.web)):
            raise UserError("got --escalate, which marks predictions of texts: leave it out")
        if bundle.caution is not None:
            _write_notice(f"{bundle.model} did not pass the gate of its export, {bundle.caution}")
        if options.web:
            _write_page(bundle, options)
        elif options.evaluate is not None:
            _evaluate(bundle, options)
        elif generates:
            _generate(bundle, options)
        elif searches:
            _search(bundle, options)
        else:
            _refuse_corpus(bundle, options)
            (_explain if options.explain else _predict)(bundle, options)
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
