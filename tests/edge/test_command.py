"""Tests of the command of the device: any bytes as input, one line of output for each line of input."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distill.edge.__main__ import LINES_PER_CHUNK, main, read_chunks, split_lines
from tests.edge.conftest import Output, Patch, Write

# Python would take UTF-8 for a C locale otherwise.
ASCII_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def bundle(write: Write) -> Path:
    return write()


def use_input(monkeypatch: Patch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))


def run(arguments: list[str | bytes | Path], content: bytes = b"", **environment: str) -> "subprocess.CompletedProcess":
    return subprocess.run(
        [sys.executable, "-m", "distill.edge", *arguments], input=content, capture_output=True, check=False,
        env={**os.environ, **environment}, timeout=60,
    )  # fmt: skip


def test_a_c_locale_reads_and_writes_utf_8(bundle: Path) -> None:
    renamed = bundle.rename(bundle.with_name("Bündel für 日本"))
    text = "ein schöner Film 日本"
    expected = f"\t{text}\n".encode()
    for arguments, content in (([], f"{text}\n".encode()), ([text.encode()], b"")):
        done = run([os.fsencode(renamed), *arguments], content, **ASCII_LOCALE)
        assert (done.returncode, done.stderr[:26]) == (0, b"notice: texts of more than")
        assert done.stdout.endswith(expected)
    done = run([os.fsencode(renamed), text.encode(), b"caf\xe9"], **ASCII_LOCALE)
    assert (done.returncode, done.stderr) == (2, b"error: text 2 is not UTF-8: convert it to UTF-8\n")
    assert done.stdout.endswith(expected)
    done = run([os.fsencode(renamed / "ü"), "text"], **ASCII_LOCALE)
    assert done.returncode == 2
    assert done.stderr == f"error: {renamed / 'ü'} is no bundle: it has no bundle.json\n".encode()


def test_a_byte_that_is_not_utf_8_ends_the_command_after_the_lines_before(
    bundle: Path, capsys: Output, monkeypatch: Patch
) -> None:
    for before in (2, LINES_PER_CHUNK, LINES_PER_CHUNK + 1):
        use_input(monkeypatch, b"a film\n" * before + b"a caf\xe9\nfilm\n")
        assert main([str(bundle)]) == 2
        out, error = capsys.readouterr()
        assert len(out.splitlines()) == before
        assert error == (
            f"error: line {before + 1} of standard input is not UTF-8, its byte 6 is 0xe9: convert the file to UTF-8\n"
        )


def test_every_line_of_input_gives_one_line(bundle: Path, capsys: Output, monkeypatch: Patch) -> None:
    texts = ["a\rfilm", "", "a\u2028film\x85or\x0btwo\x0c", "  ", "a\0film", "tab\ttab", "\ufeff film", "last"]
    content = ("\ufeff" + "\n".join(texts)).encode()  # A byte order mark is no part of the first line.
    use_input(monkeypatch, content)
    assert main([str(bundle), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.removesuffix("\n").split("\n")]
    assert [row["text"] for row in rows] == texts
    assert [row["label"] is None for row in rows] == [not text.strip() for text in texts]
    use_input(monkeypatch, content.replace(b"\n", b"\r\n"))
    assert main([str(bundle)]) == 0
    lines = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert [line.split("\t", 2)[-1] for line in lines] == [
        "a\\rfilm", "", "a\\u2028film\\x85or\\x0btwo\\x0c", "", "a\0film", "tab\ttab", "\ufeff film", "last",
    ]  # fmt: skip
    assert all(len(line.splitlines()) <= 1 for line in lines)


def test_a_line_that_is_no_pair_is_named_after_the_answers_before_it(
    write: Write, capsys: Output, monkeypatch: Patch
) -> None:
    pairs = str(write(pair=True))
    use_input(monkeypatch, b"a\tb\n\nonly one\n")
    assert main([pairs]) == 2
    out, error = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert error == "error: line 3: got 'only one', expected two texts with a tab between them\n"
    assert main([pairs, "a\tb\tc"]) == 2
    assert "text 1: got 'a\\tb\\tc', expected two texts with a tab" in capsys.readouterr().err


def test_a_question_and_its_choices_are_one_line(write: Write, capsys: Output, monkeypatch: Patch) -> None:
    choices = str(write("choices"))
    assert main([choices, "which film\ta dull film\ta film", "which\tfilm\ta film\ta dull film"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["a dull film", "a dull film"]
    assert lines[1][2:] == ["which", "film", "a film", "a dull film"]
    use_input(monkeypatch, b"which\tfilm\ta film\n\nwhich\ta film\n")
    assert main([choices, "--json"]) == 2
    out, error = capsys.readouterr()
    first, blank = map(json.loads, out.splitlines())
    assert first.keys() == {"text", "choice", "index", "probability", "probabilities"}
    assert (first["choice"], first["index"], len(first["probabilities"])) == ("a film", 1, 2)
    assert set(blank.values()) == {"", None}
    assert error == (
        "error: line 3: got 'which\\ta film', expected a question and at least two choices with tabs between them\n"
    )


def test_records_are_read_as_json_lines(write: Write, capsys: Output, monkeypatch: Patch) -> None:
    choices = str(write("choices"))
    line = json.dumps({"question": "which", "choices": ["film", "a\tfilm"], "context": "a dull film", "label": 3})
    use_input(monkeypatch, f"{line}\n\n{{}}\n".encode())
    assert main([choices, "--jsonl"]) == 2
    out, error = capsys.readouterr()
    found = [json.loads(row) for row in out.splitlines()]
    assert found[0].keys() == {"choice", "index", "probability", "probabilities"}
    assert [row["choice"] for row in found] == ["a\tfilm", None]
    assert error == 'error: line 3: got {}, expected {"question": ..., "choices": [...]}\n'
    assert main([choices, line, "--jsonl"]) == 0
    assert json.loads(capsys.readouterr().out) == found[0]
    assert main([choices, "a film", "--jsonl"]) == 2
    assert "error: text 1: got 'a film', expected JSON: Expecting value" in capsys.readouterr().err


def test_labels_with_tabs_and_line_breaks_stay_on_their_line(write: Write, capsys: Output) -> None:
    labels = ['a\t"long"\ntext', "short\u2028'one'"]
    directory = str(write(labels=labels))
    assert main([directory, "film", "a dull film and a moving film"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["short\\u2028'one'", 'a\\t"long"\\ntext']
    assert main([directory, "film", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["probabilities"]) == labels


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_closed_pipe_and_a_full_disk_end_the_command(bundle: Path) -> None:
    command = [sys.executable, "-m", "distill.edge", str(bundle), "film"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (
        1, b"error: standard input or output failed: No space left on device\n"
    )  # fmt: skip


def test_a_line_that_waits_alone_is_answered(bundle: Path) -> None:
    command = [sys.executable, "-m", "distill.edge", str(bundle), "--threads", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for part, answers in ((b"film\n", [b"film"]), (b"a fi", []), (b"lm\n\ndull\nfi", [b"a film", b"", b"dull"])):
            process.stdin.write(part)
            process.stdin.flush()  # The answers are waited for while the pipe stays open.
            assert [process.stdout.readline().rstrip(b"\n").split(b"\t")[-1] for _ in answers] == answers
        process.stdin.close()
        assert process.stdout.read().endswith(b"\tfi\n")


def test_lines_that_wait_together_are_answered_together(monkeypatch: Patch) -> None:
    content = b"".join(b"text %d\n" % number for number in range(2 * LINES_PER_CHUNK + 7))
    use_input(monkeypatch, content)
    chunks = list(read_chunks([], str))
    assert [len(chunk) for chunk in chunks] == [LINES_PER_CHUNK, LINES_PER_CHUNK, 7]
    assert [text for chunk in chunks for text, _ in chunk] == content.decode().splitlines()


class Arriving(io.BufferedReader):
    """A stream whose bytes arrive in parts."""

    def __init__(self, parts: list[bytes]) -> None:
        super().__init__(io.BytesIO())
        self.parts = parts

    def read1(self, size: int = -1, /) -> bytes:
        return self.parts.pop(0) if self.parts else b""


def test_a_line_is_complete_once_its_end_has_arrived() -> None:
    cases: list[tuple[list[bytes], list[list[bytes]]]] = [
        ([b"a\n", b"b\nc", b"d", b"\n"], [[b"a"], [b"b"], [b"cd"]]), ([b"a", b"b"], [[b"ab"]]),
        ([b"a\r", b"\n\n"], [[b"a\r", b""]]), ([b"\n"], [[b""]]), ([], []),
    ]  # fmt: skip
    for parts, lines in cases:
        assert list(split_lines(Arriving(parts))) == lines


def test_a_text_that_is_cut_is_reported_or_refused(bundle: Path, capsys: Output, monkeypatch: Patch) -> None:
    long = "a dull film and a moving film " * 3  # The bundle reads eight tokens.
    assert main([str(bundle), "a film", long, "--json"]) == 0
    out, error = capsys.readouterr()
    assert [row.get("truncated") for row in map(json.loads, out.splitlines())] == [None, True]
    assert error == "notice: texts of more than the 8 tokens that the bundle reads were cut: 1\n"
    use_input(monkeypatch, f"a film\n{long}\nfilm\n".encode())
    assert main([str(bundle), "--refuse-long"]) == 2
    out, error = capsys.readouterr()
    assert out.splitlines()[0].endswith("\ta film")
    assert error == (
        "error: line 2: got 'a dull film and a moving film a dull film and a moving film a dull film and a m... with "
        "more tokens than the 8 that the bundle reads: shorten it, or leave out --refuse-long to have it cut\n"
    )


def test_texts_are_cut_to_the_length_of_the_command(bundle: Path, capsys: Output) -> None:
    assert main([str(bundle), "--max-length", "4", "--json", "a film", "a dull film", "--threads", "1"]) == 0
    out, error = capsys.readouterr()
    assert [row.get("truncated") for row in map(json.loads, out.splitlines())] == [None, True]
    assert error == "notice: texts of more than the 4 tokens that the bundle reads were cut: 1\n"
    for option, message in (
        (["--max-length", "400"], "got max_length=400, expected a whole number from 1 to 8"),
        (["--model", "int9"], f"{bundle} has no model int9, expected one of fp32"),
    ):
        assert main([str(bundle), "a film", *option]) == 2
        assert capsys.readouterr().err == f"error: {message}\n"


def test_a_model_that_did_not_pass_its_gate_says_so(write: Write, capsys: Output) -> None:
    models = {"fp32": "model.onnx", "int8": "model.onnx"}
    directory = str(write(models=models, gates={"int8": "undecided: dev has 20 examples"}))
    for model, notice in (
        ("int8", "notice: int8 did not pass the gate of its export, undecided: dev has 20 examples\n"), ("fp32", "")
    ):  # fmt: skip
        assert main([directory, "a film", "--model", model]) == 0
        assert capsys.readouterr().err == notice
