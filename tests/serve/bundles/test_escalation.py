"""Tests of predictions that a server leaves to a language model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.edge.bundle import Bundle
from distill.serve import __main__ as serve
from distill.serve.bundles.escalation import FAILURES, PAUSE, Breaker, Escalation
from tests.edge.conftest import write_choice_bundle, write_toy_bundle
from tests.llm_server import LlmServer

UNSURE = "a film"  # Its probability is 0.5, and that of TEXT 0.982.
TEXT = "a dull film and a moving film"  # Of more than the eight tokens that a bundle reads.
SHARES = {"fp32": [[0.0, 0.3], [0.1, 0.6], [0.3, 0.99]]}


def write_question(path: Path, **changes: Any) -> Path:
    content = {
        "form": "ClassForm", "columns": ["text"], "classes": {"long": "", "short": ""}, "instructions": "",
        "model": "tiny",
    }  # fmt: skip
    path.write_text(json.dumps({**content, **changes}))
    return path


@pytest.fixture
def question(tmp_path: Path) -> Path:
    return write_question(tmp_path / "labels.json")


@pytest.fixture
def bundle(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    directory = tmp_path / "bundle"
    directory.mkdir()
    write_toy_bundle(directory, tokenizer, task="films", escalate=SHARES)
    return directory


@pytest.fixture
def language_model() -> Iterator[LlmServer]:
    with LlmServer(lambda text: '{"label": "short"}') as server:
        yield server


def test_only_the_marked_predictions_are_those_of_the_language_model(
    start: Any, bundle: Path, question: Path, language_model: LlmServer
) -> None:
    running = start(bundle, escalation=Escalation(question, language_model.url, share=0.1, seconds=30))
    [unsure, sure] = running.ask({"texts": [UNSURE, TEXT]}).body["predictions"]
    assert unsure == {"label": "short", "escalate": True, "escalated": True}
    own = Bundle(bundle).predict(TEXT)
    assert sure == {**own, "escalate": False, "escalated": False}
    assert list(language_model.requests) == [UNSURE]
    assert 'distill_escalated_total{made="true",model="films"} 1.0' in running.get("/metrics").body


@pytest.mark.parametrize("fault", ["503", "html", "empty", "no class", "hang"])
def test_the_student_answers_where_the_language_model_fails(
    start: Any, bundle: Path, question: Path, fault: str
) -> None:
    seconds = 0.3 if fault == "hang" else 30
    with LlmServer(lambda text: '{"label": "short"}', fault=lambda text, number: fault) as server:
        running = start(bundle, escalation=Escalation(question, server.url, share=0.1, seconds=seconds))
        [unsure] = running.ask({"texts": [UNSURE]}).body["predictions"]
    assert unsure == {**Bundle(bundle).predict(UNSURE), "escalate": True, "escalated": False}


def test_a_server_that_fails_again_and_again_is_left_alone(start: Any, bundle: Path, question: Path) -> None:
    with LlmServer(lambda text: "", fault=lambda text, number: "503") as server:
        running = start(bundle, escalation=Escalation(question, server.url, share=0.1, seconds=30))
        for _ in range(FAILURES + 3):
            running.ask({"texts": [UNSURE]})
        assert server.requests[UNSURE] == FAILURES


def test_a_breaker_lets_one_request_through_behind_its_pause() -> None:
    breaker = Breaker()
    for second in range(FAILURES):
        assert breaker.allows(second)
        breaker.note(second, is_failure=True)
    last = FAILURES - 1
    assert not breaker.allows(last + PAUSE - 1)
    assert breaker.allows(last + PAUSE)
    assert not breaker.allows(last + PAUSE + 1)
    breaker.note(last + PAUSE + 2, is_failure=False)
    assert breaker.allows(last + PAUSE + 3)


def test_choices_are_left_to_the_language_model(start: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    directory = tmp_path / "choices"
    directory.mkdir()
    write_choice_bundle(directory, tokenizer, task="choices", escalate={"fp32": [[0.0, 0.1], [0.3, 1.0]]})
    path = write_question(tmp_path / "labels.json", form="ChoiceForm", columns=["question", "choices"], classes={})
    with LlmServer(lambda text: '{"choice": 2}') as server:
        running = start(directory, escalation=Escalation(path, server.url, share=0.3, seconds=30))
        [found] = running.ask({"inputs": [{"question": "a", "choices": ["a film", "film"]}]}).body["predictions"]
    assert found == {"choice": "film", "index": 1, "escalate": True, "escalated": True}


@pytest.mark.parametrize(
    ("changes", "share", "message"),
    [
        ({"form": "NoForm"}, 0.1, "is no record of job=label, expected the labels.json beside labels.jsonl"),
        ({"form": "NumberForm", "classes": {}}, 0.1, "has no question for one of several classes"),
        ({"classes": {"long": "", "other": ""}}, 0.1, "asks for long, other, and .* has the classes long, short"),
        ({}, 0.5, "got escalate=0.5, expected a share from 0 to 0.3"),
    ],
)
def test_questions_and_bundles_that_do_not_fit(
    bundle: Path, question: Path, changes: dict[str, Any], share: float, message: str
) -> None:
    write_question(question, **changes)
    with pytest.raises(UserError, match=message):
        Escalation(question, "http://127.0.0.1:1/v1", share=share, seconds=1).check(Bundle(bundle))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--escalate-to", "http://127.0.0.1:1/v1"], "expected both or none"),
        (["--escalate-to", "http://127.0.0.1:1/v1", "--escalate-question", "absent.json"], "absent.json is no record"),
        (["--escalate-seconds", "0"], "got --escalate-seconds 0, expected more than 0"),
    ],
)
def test_options_that_cannot_be(
    bundle: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert serve.main([str(bundle), *options]) == 2
    assert message in capsys.readouterr().err
