"""Tests of job=label: labels of a language model at an endpoint, their cost, faults, and options that cannot be."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.golden.commands import merge_options
from tests.jobs.conftest import Command
from tests.labelling.test_probabilities import cut_at_words, sample_reply
from tests.llm_server import FAULTS, LlmServer

CLASSES = "label.classes={refund: asks for money back, other: anything else}"
PRICE = "label.price={input: 0.15, output: 0.60}"
ROWS = 60


def classify(text: str) -> str:
    return json.dumps({"label": "refund" if "money" in text else "other"})


def write_texts(directory: Path, rows: int = ROWS, gold: int = 30) -> None:
    """Writes texts, of which the first ones have a right label, and a tenth of these a wrong one."""
    lines = ["text,label"]
    for number in range(rows):
        right = "refund" if (number % 2) != (number % 10 == 9) else "other"
        word = "money" if number % 2 else "hello"
        lines.append(f"{word} number {number} {'word ' * (number % 7)}end,{right if number < gold else ''}")
    (directory / "texts.csv").write_text("\n".join(lines))


def options(server: LlmServer, *more: str) -> tuple[str, ...]:
    usual = (
        "job=label", "data=texts.csv", f"label.endpoint={server.url}", "label.model=tiny", CLASSES, "label.timeout=60",
    )  # fmt: skip
    return tuple(merge_options(usual, more))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def fault_of(text: str, number: int) -> str | None:
    """Returns one of nine faults for the first request about every third text; none hangs, whose end is up to time."""
    of, faults = int(text.split()[2]), [name for name in FAULTS if name != "hang"]
    return faults[of // 3 % len(faults)] if of % 3 == 0 and number == 1 else None


def test_every_text_has_its_label_and_is_paid_once_despite_faults(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path)
    with LlmServer(classify, fault=fault_of) as server:
        code, output, error = command(*options(server, PRICE))
        assert (code, error) == (0, "")
        assert set(server.paid.values()) == {1}
        record = json.loads((tmp_path / "labels.json").read_text())
        paid, asked = len(server.paid), sum(server.requests.values())
        again, _, _ = command(*options(server, PRICE))
        assert (again, sum(server.requests.values())) == (0, asked)
    assert paid == ROWS
    rows = read_lines(tmp_path / "labels.jsonl")
    assert [max(row["probabilities"], key=row["probabilities"].get) for row in rows] == [
        json.loads(classify(row["text"]))["label"] for row in rows
    ]
    assert rows[0]["probabilities"]["other"] == pytest.approx(28 / 32)  # 27 of 30 gold rows are right.
    assert record["gold"]["value"] == pytest.approx(0.9)
    assert record["dollars"] == pytest.approx((0.15 * server.usage[0] + 0.6 * server.usage[1]) / 1e6)
    assert record["faults"] == {
        "a refusal": 2, "a reply that is no completion": 4, "an empty reply": 2, "no class of the question": 4,
        "no connection, or half a reply": 2, "status 429": 3, "status 503": 3,
    }  # fmt: skip
    assert "Pilot    tiny has accuracy 0.9000 (0.7438 to 0.9654) on 30 rows with a right label" in output
    dev, train = (read_lines(tmp_path / "labels" / f"{name}.jsonl") for name in ("dev", "train"))
    assert (len(dev), len(train)) == (30, 30)
    assert dev[9]["label"] == "other"  # The right label, and not that of the model.


def test_a_question_without_a_reply_is_asked_again(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, rows=8, gold=0)
    with LlmServer(classify, fault=lambda text, number: "hang" if " 3 " in text and number == 1 else None) as server:
        assert command(*options(server, "label.timeout=2"))[0] == 0
        assert set(server.paid.values()) == {1}
    assert len(read_lines(tmp_path / "labels.jsonl")) == 8
    assert json.loads((tmp_path / "labels.json").read_text())["faults"]["no reply in 2 s"] >= 1


PROGRAM = """
import sys
from pathlib import Path
from distill.labelling.answers import AnswerFile
from distill.labelling.endpoint import Endpoint
from distill.labelling.forms import ClassForm
from distill.labelling.labeller import Labeller

url, path, number = sys.argv[1:]
rows = [{"text": f"money number {row} end"} for row in range(int(number))]
with AnswerFile(Path(path)) as file:
    form = ClassForm(("text",), {"refund": "", "other": ""})
    labeller = Labeller(form, Endpoint(url, "tiny"), file)
    labeller.run(rows, lambda done, status: None)
    sys.exit(not all(labeller.label(row) for row in rows))
"""


def test_killed_labelling_pays_for_nothing_again(tmp_path: Path) -> None:
    reached = threading.Event()

    def answer(text: str) -> str:
        if "number 100 " in text:
            reached.set()
        return classify(text)

    with LlmServer(answer) as server:
        path = tmp_path / "answers.jsonl"
        program = [sys.executable, "-c", PROGRAM, server.url, str(path), "200"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(program, env=environment)
        assert reached.wait(120)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with path.open("ab") as file:
            file.write(b'{"key": "half of a li')  # As a kill in the middle of a write leaves it.
        subprocess.run(program, env=environment, check=True)
        assert set(server.paid.values()) == {1}
        assert len(server.paid) == 200


def test_the_price_of_a_dry_run_is_that_of_the_answers(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, rows=400, gold=0)
    with LlmServer(classify) as server:
        code, output, _ = command(*options(server, PRICE, "dry_run=true"))
        assert (code, len(server.paid)) == (0, 20)
        price = float(output.partition("Price    $")[2].partition(" ")[0])
        assert command(*options(server, PRICE))[0] == 0
    paid = (0.15 * server.usage[0] + 0.6 * server.usage[1]) / 1e6
    assert price == pytest.approx(paid, rel=0.05)
    assert not (tmp_path / "labels").with_suffix(".csv").exists()


def test_a_limit_of_cost_ends_it_and_a_larger_one_goes_on(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, gold=0)
    with LlmServer(classify) as server:
        code, output, _ = command(*options(server, PRICE, "label.max_cost=0.0003"))
        assert code == 0
        assert "label.max_cost=0.0003 ends the labelling; a larger one goes on from here" in output
        assert 0.0002 < (0.15 * server.usage[0] + 0.6 * server.usage[1]) / 1e6 <= 0.0003
        assert len(read_lines(tmp_path / "labels.jsonl")) == len(server.paid) < ROWS
        assert command(*options(server, PRICE))[0] == 0
        assert set(server.paid.values()) == {1}
        assert len(server.paid) == ROWS


def test_log_probabilities_become_probabilities(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, gold=0)
    shares = {"refund_full": 0.7, "refund_part": 0.2, "other": 0.1}
    tokens = sample_reply(shares, cut_at_words, '{"label": "%s"}')
    with LlmServer(lambda text: '{"label": "refund_full"}', tokens=lambda text: tokens) as server:
        assert command(*options(server, "label.classes=[refund_full,refund_part,other]"))[0] == 0
    for row in read_lines(tmp_path / "labels.jsonl"):
        assert row["probabilities"] == pytest.approx(shares, abs=1e-6)


def test_votes_of_a_server_that_takes_neither_a_schema_nor_log_probabilities(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, rows=5, gold=0)
    with LlmServer(classify, takes_schema=False, takes_logprobs=False) as server:
        assert command(*options(server, "label.votes=3"))[0] == 0
        assert len(server.paid) == 15
        assert all("response_format" not in body and "logprobs" not in body for body in server.bodies)
    assert read_lines(tmp_path / "labels.jsonl")[1]["probabilities"] == pytest.approx(
        {"refund": 1, "other": 0}, abs=1e-5
    )


def test_uncertain_rows_are_chosen_in_rounds(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, gold=0)
    with LlmServer(classify) as server:
        assert command(*options(server, "label.rows=20", "label.choose=uncertain"))[0] == 0
        assert len(server.paid) == 20
    assert len(read_lines(tmp_path / "labels.jsonl")) == 20


def test_a_text_longer_than_the_context_is_left_without_a_label(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, rows=10, gold=0)
    with LlmServer(classify, context=38) as server:
        code, output, _ = command(*options(server))
    assert code == 0
    assert "faults: refused (400) 2" in output
    assert "Labels   8 texts in labels.jsonl; 2 texts have no label" in output
    assert len(read_lines(tmp_path / "labels.jsonl")) == 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("label.model=large",), "has no model large, expected label.model to be one of tiny"),
        (("label.classes=[refund,refund]",), "expected names that are different and not empty"),
        (("label.classes=[refund,'']",), "expected at least 2 names that are different and not empty"),
        (("label.price=cheap",), "got label.price=cheap, expected a mapping"),
        (("label.price={input: 1}",), "expected dollars of a million tokens: {input: 0.15, output: 0.60}"),
        (("label.max_cost=5",), "got label.max_cost=5.0, expected null, or label.price beside it"),
        (("label.choose=uncertain",), "expected random, or label.rows=N beside it"),
        (("label.classes=[a,b]",), "texts.csv, line 2: the right label 'other' is no class of the question"),
        (("task.text=[body]",), "texts.csv has the columns text, label, expected body too"),
        (("data=absent.csv",), "absent.csv is no file"),
        (("label.endpoint=null",), "job=label has no label.endpoint"),
        (("task=reranking",), "job=label has no question for task=reranking"),
        (("trainer=fixed",), "job=label reads only"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(command: Command, tmp_path: Path, given: tuple[str, ...], message: str) -> None:
    write_texts(tmp_path)
    with LlmServer(classify) as server:
        code, _, error = command(*options(server, *given))
    assert code == 2
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "needs a key: set OPENAI_API_KEY in the environment"),
        ("sk-secret", "does not accept the key in OPENAI_API_KEY"),
    ],
)
def test_a_key_that_is_missing_or_wrong(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, message: str
) -> None:
    write_texts(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with LlmServer(classify, key="sk-right") as server:
        code, output, error = command(*options(server))
    assert code == 2
    assert error == f"error: {server.url} {message}\n"
    kept = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "sk-secret" not in output + kept


def test_labels_of_another_question_are_not_overwritten(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path)
    with LlmServer(classify) as server:
        assert command(*options(server))[0] == 0
        code, _, error = command(*options(server, "label.instructions=Be strict."))
    assert code == 2
    assert "labels.jsonl or what is beside it has the labels of another question or model" in error


def test_a_server_that_is_gone_ends_it(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path)
    with LlmServer(classify) as server:
        pass
    code, _, error = command(*options(server, "label.retries=0"))
    assert code == 2
    assert "has given no answer to 20 questions in a row, the last time: no connection" in error


def test_an_injected_order_can_only_give_a_wrong_label(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, rows=4, gold=0)
    with LlmServer(lambda text: "hello" if "number 2" in text else classify(text)) as server:
        assert command(*options(server))[0] == 0
        assert sum(number for (text, _), number in server.paid.items() if "number 2" in text) == 2
    assert [row["text"].split()[2] for row in read_lines(tmp_path / "labels.jsonl")] == ["0", "1", "3"]


def test_spans_numbers_and_sets(command: Command, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in ("Ann met Bob", "Bob left", "nobody"))
    )
    data = ("data=texts.jsonl", "label.output=out.jsonl")
    spans = {"Ann met Bob": ["Ann", "Bob"], "Bob left": ["Bob"], "nobody": []}

    def reply(text: str) -> str:
        return json.dumps({"spans": [{"quote": name, "type": "PER"} for name in spans[text]]})

    with LlmServer(reply) as server:
        assert command(*options(server, *data, "task=token_classification", "label.classes=[PER]"))[0] == 0
    rows = read_lines(tmp_path / "out.jsonl")
    assert rows[0]["spans"] == [{"start": 0, "end": 3, "type": "PER"}, {"start": 8, "end": 11, "type": "PER"}]
    assert read_lines(tmp_path / "out" / "train.jsonl")[1]["tags"] == ["B-PER", "O"]
    with LlmServer(lambda text: json.dumps({"number": len(text)})) as server:
        given = ("data=texts.jsonl", "label.output=numbers.jsonl", "task=regression", "label.classes=null")
        assert command(*options(server, *given))[0] == 0
    assert [row["score"] for row in read_lines(tmp_path / "numbers.jsonl")] == [11, 8, 6]


def test_a_student_goes_on_with_the_labels(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(tmp_path)
    started: list[list[str]] = []

    def start(arguments: list[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        started.append(arguments[3:])
        return subprocess.CompletedProcess(arguments, 3)

    monkeypatch.setattr("distill.jobs.labelling_job.subprocess.run", start)
    with LlmServer(classify) as server, pytest.raises(SystemExit) as ended:
        command(*options(server, "+teacher=file", "teacher.encoder=DIR", "+student=distilbert", "seed=1"))
    assert ended.value.code == 3
    [given] = started
    assert given == [
        "+teacher=file", "teacher.encoder=DIR", "+student=distilbert", "seed=1", "task=classification",
        'task.labels=["refund", "other"]', "teacher.path=labels.jsonl", "task.data_dir=labels",
    ]  # fmt: skip


def test_votes_are_not_asked_for_where_log_probabilities_are(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, rows=5, gold=0)
    tokens = sample_reply({"refund": 0.7, "other": 0.3}, cut_at_words, '{"label": "%s"}')
    with LlmServer(lambda text: '{"label": "refund"}', tokens=lambda text: tokens) as server:
        assert command(*options(server, "label.votes=5"))[0] == 0
        assert len(server.paid) == 5


def test_votes_do_not_exceed_the_cost(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, gold=0)
    with LlmServer(classify) as server:
        assert command(*options(server, PRICE, "label.votes=9", "label.max_cost=0.0005"))[0] == 0
    assert (0.15 * server.usage[0] + 0.6 * server.usage[1]) / 1e6 <= 0.0005


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("texts.csv", "got label.output=texts.csv, expected a name that ends with .jsonl and is not that of the data"),
        ("labels", "got label.output=labels, expected a name that ends with .jsonl"),
        ("own.jsonl", "own.jsonl or what is beside it has the labels of another question or model"),
        ("folder.jsonl", "folder.jsonl or what is beside it has the labels of another question or model"),
    ],
)
def test_no_other_file_is_replaced(command: Command, tmp_path: Path, output: str, message: str) -> None:
    write_texts(tmp_path)
    (tmp_path / "own.jsonl").write_text("{}\n")
    (tmp_path / "folder").mkdir()
    with LlmServer(classify) as server:
        code, _, error = command(*options(server, f"label.output={output}"))
        assert not server.requests
    assert code == 2
    assert message in error
    assert (tmp_path / "own.jsonl").read_text() == "{}\n"


def test_a_model_that_never_answers_ends_it(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, rows=200, gold=0)
    with LlmServer(lambda text: "I would rather not say") as server:
        code, _, error = command(*options(server))
    assert code == 2
    assert "has given no answer to 20 questions in a row, the last time: no class of the question" in error
    assert len(server.requests) < 60


def test_texts_that_are_refused_do_not_end_it(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, rows=40, gold=0)
    with LlmServer(classify, context=5) as server:
        code, _, error = command(*options(server))
        assert (code, "has given no label: {'refused (400)': 40}" in error) == (2, True)


@pytest.mark.parametrize(
    ("row", "given", "message"),
    [
        ('{"text": "a \\ud800 b"}', (), "texts.jsonl, line 1: the text has a lone surrogate, expected Unicode"),
        (
            '{"text": "a", "label": "refund"}\n{"text": "a", "label": "other"}',
            (),
            "line 2: the text has the right label",
        ),
        ('{"text": "a"}', ("label.column=gold",), "has the columns text, expected gold too"),
        ('{"text": "a"}', ("label.gold=texts.jsonl",), "has the columns text, expected label too"),
        ('{"text": "a"}', ("label.endpoint=localhost",), "got label.endpoint=localhost, expected a URL such as http"),
    ],
)
def test_rows_that_cannot_be(command: Command, tmp_path: Path, row: str, given: tuple[str, ...], message: str) -> None:
    (tmp_path / "texts.jsonl").write_text(row)
    with LlmServer(classify) as server:
        code, _, error = command(*options(server, "data=texts.jsonl", "label.output=out.jsonl", *given))
    assert code == 2
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_server_that_counts_no_tokens_has_no_price(command: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, rows=5)
    with LlmServer(classify, counts_tokens=False) as server:
        code, _, error = command(*options(server, PRICE))
        assert code == 2
        assert "counts no tokens, so that label.price tells no cost" in error
        assert command(*options(server))[0] == 0
