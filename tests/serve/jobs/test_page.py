"""Tests of the page of the service in headless Chromium, with one that answers from memory, and with the real one."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distill.serve.jobs.paths import load_page
from distill.serve.jobs.queue import State
from tests.conftest import sentences
from tests.documentation.test_accessibility import AXE, CLIPPED
from tests.edge.conftest import needs_browser
from tests.records.test_collection_report import save
from tests.serve.jobs.conftest import Running
from tests.serve.jobs.fake_service import FakeService, Json, make_data_set, make_job, serve
from tests.serve.jobs.programs import wait_for

pytestmark = [needs_browser, pytest.mark.xdist_group("browser")]
Open = Callable[..., Any]

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>${\'"`'
RESULT: Json = {
    "run": "runs/a", "title": "runs/a", "task": "classification", "metric": "accuracy", "split": "dev",
    "teacher": 0.912, "student": 0.9034, "retained": 0.9906, "file": "model.int8.onnx", "exported": 0.9028,
    "mb": 17.7, "ms": 1.34, "gate": "passed", "reason": None,
    "verdict": ["The teacher helps.", "It has accuracy 0.903."],
}  # fmt: skip
FAILED = RESULT | {"gate": "failed", "reason": "model.int8.onnx loses 2.1 points"}


@pytest.fixture
def service() -> Iterator[FakeService]:
    with serve(FakeService()) as running:
        yield running


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """A function that opens the page of a service at a place; no script of it may fail."""
    opened, errors = [], []

    def start(service: FakeService | Running, place: str = "", **options: Any) -> Any:
        page = browser.new_page(**options)
        opened.append(page)
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if "Content Security" in line.text else None)
        page.goto(f"http://127.0.0.1:{service.port}/{place}")
        return page

    yield start
    for page in opened:
        page.close()
    assert errors == []


def fill_form(page: Any) -> None:
    page.wait_for_selector("#data-set option[value=films], #data-set option:text('films')", state="attached")
    page.select_option("#data-set", "films")
    page.wait_for_selector("#column-label")
    page.check("input[value=review]")
    page.select_option("#column-label", "stars")
    page.select_option("#teacher", "minilm")
    page.select_option("#student", "bilstm")


def test_a_job_is_planned_and_submitted_with_the_columns_that_its_task_needs(
    service: FakeService, open_page: Open
) -> None:
    service.data["films"] = make_data_set(
        "films", ["review", "stars"], [["a film", "good"]], label_counts={"stars": {"good": 2600, "bad": 10}},
        lengths={"review": {"mean": 48.25, "max": 301}}, problems=["12 rows have no label"],
    )  # fmt: skip
    page = open_page(service, "#/new")
    fill_form(page)
    assert page.locator("#new-preview .notices li").all_inner_texts() == ["12 rows have no label"]
    assert page.locator("#new-preview td").all_inner_texts() == ["a film", "good", "review", "48.25", "301"]
    assert page.inner_text(".bars").split() == ["good", "2,600", "bad", "10"]
    page.select_option("#objective", "dkd")
    page.click("summary:text('Options')")
    page.fill("#option-0", "2")
    page.fill("#further", "trainer.batch_size=16\n\nseed=3")
    page.fill("#job-name", "first")
    page.click("#plan-button")
    page.wait_for_selector("#plan:not([hidden])")
    assert page.inner_text("#estimate") == "This job takes about 12 min."
    assert page.inner_text("#plan-text") == "1,000 steps <b>"
    assert page.inner_text("#plan-notices") == "<i>one epoch</i>"
    page.fill("#further", "trainer.batch_size=16")
    assert page.is_hidden("#plan")  # It is that of other options.
    page.click("#submit-button")
    page.wait_for_url("**/#/job/new")
    options = {"trainer.max_epochs": "2", "trainer.batch_size": "16", "objective": "dkd"}
    form = {
        "teacher": "minilm", "student": "bilstm", "task": "classification", "data": "films",
        "columns": {"text": ["review"], "label": "stars"},
    }  # fmt: skip
    planned, submitted = service.requests
    assert planned == ("POST", "/plan", {"form": form | {"options": options | {"seed": "3"}}, "name": "first"})
    assert submitted == ("POST", "/jobs", {"form": form | {"options": options}, "name": "first"})


def test_a_job_that_is_refused_shows_its_line_and_keeps_the_form(service: FakeService, open_page: Open) -> None:
    service.data["films"] = make_data_set("films", ["review", "stars"], [["a film", "good"]])
    service.refusals["POST", "/jobs"] = (422, "task.label: the column stars has one value, expected two or more")
    page = open_page(service, "#/new")
    fill_form(page)
    page.click("#submit-button")
    page.wait_for_selector("#alert:not(:empty)")
    assert page.inner_text("#alert") == "task.label: the column stars has one value, expected two or more"
    assert page.input_value("#column-label") == "stars"
    page.click("#dismiss")
    assert not page.is_visible("#alert")
    page.click("summary:text('Options')")
    page.fill("#further", "no value")
    page.click("#submit-button")
    page.wait_for_selector("#alert:not(:empty)")
    assert page.inner_text("#alert") == 'Further options: got "no value", expected key=value.'
    assert [path for _, path, _ in service.requests] == []


def test_the_form_wants_a_column_of_each_kind_that_the_task_needs(service: FakeService, open_page: Open) -> None:
    service.data["films"] = make_data_set("films", ["review", "stars"], [["a film", "good"]])
    page = open_page(service, "#/new")
    page.select_option("#data-set", "films")
    page.wait_for_selector("#column-label")
    page.click("#submit-button")
    assert (
        page.evaluate("document.querySelector('input[value=review]').validationMessage") == "Choose the column of text."
    )
    page.check("input[value=review]")
    for id in ("teacher", "student"):
        assert page.evaluate("document.querySelector('#form').checkValidity()") is False
        page.select_option(f"#{id}", index=1)
    assert page.evaluate("document.querySelector('#form').checkValidity()") is False  # The label is open.
    page.select_option("#task", "question_answering")
    assert page.locator("#column-label").count() == 0
    assert page.evaluate("document.querySelector('#form').checkValidity()") is True
    assert service.requests == []


def test_the_form_takes_task_and_columns_from_the_data(service: FakeService, open_page: Open) -> None:
    service.data["films"] = make_data_set(
        "films", ["review", "text", "stars"], [["a film", "b", "good"]], text=["review"], label=["stars"]
    )
    service.data["manuals"] = make_data_set("manuals", ["question"], [["why"]], task="question_answering", text=None)
    service.data["tags"] = make_data_set("tags", ["0", "1"], [["fly", "O"]], task="unknown", text=None)
    page = open_page(service, "#/new")
    page.select_option("#data-set", "films")
    page.wait_for_selector("#column-label")
    assert page.input_value("#column-label") == "stars"
    checked = "[...document.querySelectorAll('.choices :checked')].map((box) => box.value)"
    assert page.evaluate(checked) == ["review"]
    for name, task in (("manuals", "question_answering"), ("tags", "question_answering"), ("films", "classification")):
        page.select_option("#data-set", name)
        last = list(service.data[name]["first_rows"][0].values())[-1]
        page.wait_for_selector(f"#new-preview .cell:text('{last}')")
        assert page.input_value("#task") == task
        assert page.locator("#column-label").count() == (name == "films")


def test_a_file_is_uploaded_and_chosen(service: FakeService, open_page: Open, tmp_path: Path) -> None:
    file = tmp_path / "My Films (2026).tsv"
    file.write_bytes(b"text\tlabel\na film\tgood\n")
    page = open_page(service, "#/new")
    page.wait_for_selector("#uploading[open]")  # There is no data yet.
    page.set_input_files("#file", file)
    assert (page.input_value("#upload-name"), page.input_value("#format")) == ("my-films-2026", "tsv")
    page.click("#send")
    page.wait_for_selector("#new-preview td")
    assert page.input_value("#data-set") == "my-films-2026"
    assert service.uploads == {"my-films-2026": file.read_bytes()}
    assert service.requests[0][:2] == ("PUT", "/data/my-films-2026?format=tsv")
    assert page.input_value("#column-label") == "label"  # The task's own name of it.


def test_data_is_listed_and_deleted_but_not_while_a_job_reads_it(service: FakeService, open_page: Open) -> None:
    for name in ("films", "intents"):
        service.data[name] = make_data_set(name, ["text"], [["a film"]])
    service.refusals["DELETE", "/data/films"] = (409, "a job reads the data set films")
    page = open_page(service, "#/data")
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("button[aria-label='Delete films']")
    page.wait_for_selector("#alert:not(:empty)")
    assert page.inner_text("#alert") == "a job reads the data set films"
    page.click("button[aria-label='Delete intents']")
    page.wait_for_selector("#data-list tbody tr:only-child")
    assert list(service.data) == ["films"]
    page.click("#data-list a")
    page.wait_for_selector("#data-preview td")
    assert page.inner_text("#data-title") == "films"


def test_a_job_is_watched_over_a_connection_that_breaks(service: FakeService, open_page: Open) -> None:
    service.add(make_job("a", "running", name="films", attempt=1))
    service.emit("a", "state", state="running", attempt=1)
    service.logs["a"] = "\x1b[32mfirst\x1b[0m line\nhalf\rwhole line\n"
    page = open_page(service, "#/job/a")
    page.wait_for_selector("#log:not(:empty)")
    assert page.text_content("#log") == "first line\nwhole line\n"
    service.emit("a", "stage", stage="training", progress=0.25, seconds_left=1260.0)
    for step, loss in enumerate((2.0, 1.0, None, 0.5), start=1):
        service.emit("a", "step", title="student", run="one", step=step, steps=8, epoch=0, loss=loss)
    service.emit("a", "metrics", title="student", run="one", step=4, metrics={"dev/accuracy": 0.75})
    page.wait_for_selector("figure >> nth=1")
    assert page.inner_text("#watch").split("\n") == ["training", "about 21 min left", "student: step 4 of 8, epoch 1"]
    service.cut()
    service.emit("a", "step", title="student", run="two", step=1, steps=8, epoch=0, loss=3.0)
    service.emit("a", "notice", text="12 rows have no label")
    page.wait_for_selector("#job-notices li")
    assert service.streams == [None, "7"]  # State, stage, four steps and metrics came over the first connection.
    page.wait_for_selector("figure path.earlier")
    captions = page.locator("figcaption").all_inner_texts()
    assert captions[0] == "student: loss: 3 at step 1, from 3 to 3; earlier runs are grey"
    assert captions[1] == "student: dev/accuracy: 0.75 at step 4, from 0.75 to 0.75"
    assert page.locator("figure >> nth=0").locator("path").count() == 2
    page.click("#metric-values summary")
    page.wait_for_selector("#metric-table td")
    assert page.locator("#metric-table td").all_inner_texts() == ["student", "4", "0.7500"]
    service.jobs["a"]["results"] = [RESULT]
    service.emit("a", "state", state="finished", attempt=1)
    page.wait_for_selector("#outcome:not([hidden]) td")
    assert page.inner_text("#job-live") == "The job is finished."
    assert page.locator("#result-table td").all_inner_texts() == [
        "classification", "accuracy on dev", "0.9120", "0.9034", "99.1%", "model.int8.onnx", "0.9028", "17.7", "1.34",
        "passed",
    ]  # fmt: skip
    assert page.is_hidden("#watch")


def test_a_resumed_run_repeats_steps_which_replace_those_before(service: FakeService, open_page: Open) -> None:
    service.add(make_job("a", "running"))
    for attempt, steps in ((1, (10, 20, 30)), (2, (20, 40))):
        service.emit("a", "state", state="running", attempt=attempt)
        for step in steps:
            service.emit("a", "step", title="student", run="one", step=step, loss=attempt * 100.0)
    page = open_page(service, "#/job/a")
    page.wait_for_selector("figcaption:has-text('step 40')")
    [line] = page.evaluate("[...document.querySelectorAll('figure path')].map((path) => path.getAttribute('d'))")
    assert len(re.findall("[ML]", line)) == 3  # Steps 10, 20 and 40.


def test_a_job_that_there_is_not_shows_nothing_of_another(service: FakeService, open_page: Open) -> None:
    service.add(make_job("a", "failed", error="the disk is full"))
    service.emit("a", "state", state="failed", attempt=1, error="the disk is full")
    page = open_page(service, "#/job/a")
    page.wait_for_selector("#retry:not([hidden])")
    page.goto(f"http://127.0.0.1:{service.port}/#/job/b")
    page.wait_for_selector("#alert:not(:empty)")
    assert page.inner_text("#alert") == "there is no /jobs/b"
    assert page.inner_text("#job").strip() == "Job"


def test_a_job_is_cancelled_retried_pinned_and_removed(service: FakeService, open_page: Open) -> None:
    service.add(make_job("a", "running"))
    service.emit("a", "state", state="running", attempt=1)
    page = open_page(service, "#/job/a")
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#cancel")
    page.wait_for_selector("#cancel:disabled")
    assert page.inner_text("#job-facts .state") == "cancelling"
    service.emit("a", "state", state="cancelled", attempt=1)
    page.wait_for_selector("#remove:not([hidden])")
    page.click("#pin")
    page.wait_for_selector("#pin[aria-pressed=true]")
    page.click("#retry")
    page.wait_for_selector(".state[data-state=queued] >> visible=true")
    service.emit("a", "state", state="failed", attempt=2, error="the disk is full")
    page.wait_for_selector("#job-error:not(:empty)")
    assert page.inner_text("#job-error") == "the disk is full"
    page.click("#remove")
    page.wait_for_selector("#no-jobs:not([hidden])")
    assert [(method, path) for method, path, _ in service.requests] == [
        ("DELETE", "/jobs/a"), ("PUT", "/jobs/a/pin"), ("POST", "/jobs/a/retry"), ("DELETE", "/jobs/a"),
    ]  # fmt: skip


def test_finished_jobs_are_compared(service: FakeService, open_page: Open) -> None:
    service.add(make_job("a", "finished", name="films", created=1.0, results=[
        RESULT | {"run": "runs/1", "title": "seed=1"}, RESULT | {"run": "runs/2", "title": "seed=2", "student": 0.9},
    ]))  # fmt: skip
    service.add(make_job("b", "finished", created=2.0, results=[FAILED]))
    service.add(make_job("c", "running", created=3.0, stage="training", progress=0.5, seconds_left=30.0))
    page = open_page(service)
    page.wait_for_selector("#job-list li")
    assert page.locator("#job-list .how").all_inner_texts() == [
        "training, about 30 s left", "accuracy 0.9034", "accuracy 0.9034 in the first of 2 runs",
    ]  # fmt: skip
    assert page.locator("#job-list input:visible").count() == 2
    for name in ("films", "b"):
        page.check(f"input[aria-label='Compare {name}']")
    page.click("#compare-chosen")
    page.wait_for_selector("#comparison tbody tr >> nth=2")
    rows = [row.split("\t") for row in page.locator("#comparison tbody tr").all_inner_texts()]
    assert [(row[0], row[4], row[6], row[7], row[10]) for row in rows] == [
        ("b", "0.9034", "model.int8.onnx", "0.9028", "failed"),
        ("films: seed=1", "0.9034", "model.int8.onnx", "0.9028", "passed"),
        ("films: seed=2", "0.9000", "model.int8.onnx", "0.9028", "passed"),
    ]  # fmt: skip
    assert page.get_attribute("#comparison a:text('Report')", "href") == "jobs/b/report"


def test_files_are_fetched_and_a_bundle_without_a_passed_gate_only_by_force(
    service: FakeService, open_page: Open
) -> None:
    service.add(make_job("a", results=[FAILED]))
    service.emit("a", "state", state="finished", attempt=1)
    page = open_page(service, "#/job/a")
    page.wait_for_selector("#outcome:not([hidden])")
    assert page.inner_text("#gates") == "No file passed its gate: model.int8.onnx loses 2.1 points"
    page.click("#bundle")
    page.wait_for_selector("#force:not([hidden])")
    assert page.inner_text("#alert") == "model.int8.onnx loses 2.1 points"
    for button, name, content in (
        ("#force", "a.bundle.zip", b"a/bundle.zip"), ("#student-files", "a.student.zip", b"a/student.zip"),
    ):  # fmt: skip
        with page.expect_download() as download:
            page.click(button)
        assert download.value.suggested_filename == name
        assert Path(download.value.path()).read_bytes() == content


def test_one_of_several_runs_is_chosen_for_files_and_texts(service: FakeService, open_page: Open) -> None:
    service.add(make_job("a", results=[
        RESULT | {"run": "runs/0", "title": "seed=0"},
        RESULT | {"run": "runs/1", "title": "seed=1", "verdict": ["No gain from the teacher."]},
    ]))  # fmt: skip
    for text in ("one epoch", "one class", "one epoch"):
        service.emit("a", "notice", text=text)
    service.emit("a", "state", state="finished", attempt=1)
    page = open_page(service, "#/job/a")
    page.wait_for_selector("#verdict strong")
    assert page.inner_text("#verdict") == "seed=0: The teacher helps. It has accuracy 0.903."
    page.select_option("#run", "runs/1")
    assert page.inner_text("#verdict") == "seed=1: No gain from the teacher."
    assert page.locator("#result-table tr td:first-child").all_inner_texts() == ["seed=0", "seed=1"]
    assert page.locator("#job-notices li").all_inner_texts() == ["one epoch", "one class"]
    assert page.evaluate("$('outcome').compareDocumentPosition($('notices'))") == 4  # They follow it.
    assert page.get_attribute("#report", "href") == "jobs/a/report"
    assert page.get_attribute("#run-report", "href") == "jobs/a/report?run=runs%2F1"
    page.fill("#texts", "a film")
    page.click("#predict")
    page.wait_for_selector(".result")
    assert service.requests[-1][1] == "/jobs/a/predict?run=runs%2F1&force=1"
    with page.expect_response("**/jobs/a/student.zip?run=runs%2F1"):
        page.click("#student-files")


@pytest.mark.parametrize("student", [None, 0.9])
def test_a_job_that_failed_has_the_results_of_runs_that_did_not(
    service: FakeService, open_page: Open, student: float | None
) -> None:
    unknown: Json = dict.fromkeys(RESULT) | {"run": "runs/0"}
    service.add(make_job("a", results=[unknown, RESULT | {"run": "runs/1", "student": student}]))
    service.emit("a", "state", state="failed", attempt=1, error="the disk is full")
    page = open_page(service, "#/job/a")
    page.wait_for_selector("#job-error:not(:empty)")
    assert page.is_visible("#outcome") == (student is not None)
    if student:
        assert page.locator("#result-table tbody tr >> nth=0").inner_text().split("\t") == ["runs/0", "-", *"---------"]


def test_texts_are_tried_on_a_student(service: FakeService, open_page: Open) -> None:
    service.add(make_job("a", results=[RESULT]))
    service.emit("a", "state", state="finished", attempt=1)
    page = open_page(service, "#/job/a")
    page.fill("#texts", 'a film\n\none || two\n{"text": "a record"}')
    page.click("#predict")
    page.wait_for_selector(".result")
    assert service.requests[-1] == (
        "POST", "/jobs/a/predict?force=1", {"inputs": ["a film", ["one", "two"], {"text": "a record"}]},
    )  # fmt: skip
    assert page.inner_text("#predicted") == "3 predictions"
    assert page.inner_text(".result >> nth=0").split("\n") == ["a film", "good", "0.750", "<u>bad</u>", "0.250"]
    widths = page.evaluate("[...document.querySelectorAll('.bar')].map((bar) => bar.style.width)")
    assert widths[:2] == ["75%", "25%"]
    page.fill("#texts", '{"text": ')
    page.click("#predict")
    page.wait_for_selector("#alert:not(:empty)")
    assert page.inner_text("#alert").startswith('{"text":')


def test_a_student_that_predicts_nothing_writes_text(service: FakeService, open_page: Open) -> None:
    service.add(make_job("a", results=[RESULT]))
    service.emit("a", "state", state="finished", attempt=1)
    service.refusals["POST", "/jobs/a/predict"] = (422, "the model a writes text: post to /generate")
    page = open_page(service, "#/job/a")
    page.fill("#texts", "once\n\nupon")
    assert page.is_hidden("#write")
    page.click("#predict")
    page.click("#write")
    page.wait_for_selector(".result >> nth=1")
    assert page.locator(".written").all_inner_texts() == ["after once", "after upon"]
    assert service.requests[0] == ("POST", "/jobs/a/generate?force=1", {"prompt": "once", "stream": False})


def test_a_service_with_accounts_is_given_a_token_with_every_request(open_page: Open) -> None:
    with serve(FakeService(token="secret")) as service:
        service.add(make_job("a", results=[RESULT]))
        service.emit("a", "state", state="finished", attempt=1)
        page = open_page(service, "#/job/a")
        for token in ("wrong", "secret"):
            page.wait_for_selector("#access:not([hidden])")
            page.wait_for_selector("#token:focus")
            assert page.locator("main > section:visible").count() == 0
            page.fill("#token", token)
            with page.expect_response("**/jobs/a"):
                page.keyboard.press("Enter")
        page.wait_for_selector("#outcome:not([hidden])")
        assert page.evaluate("sessionStorage.getItem('distill.token')") == "secret"
        assert page.evaluate("localStorage.length + document.cookie.length") == 0
        for button, name in (("#student-files", "a.student.zip"), ("#report", "a.report.html")):
            with page.expect_download() as download:
                page.click(button)
            assert download.value.suggested_filename == name
        assert service.streams == [None]
        page.click("#forget")
        page.wait_for_selector("#access:not([hidden])")
        assert page.evaluate("sessionStorage.length") == 0


def test_no_text_of_a_job_or_of_data_becomes_markup(service: FakeService, open_page: Open) -> None:
    service.data[EVIL] = make_data_set(
        EVIL, [EVIL, "label"], [[EVIL, EVIL]], label_counts={EVIL: {EVIL: 1}}, problems=[EVIL], format=EVIL,
        lengths={EVIL: {EVIL: 1}},
    )  # fmt: skip
    evil = dict.fromkeys(("task", "metric", "split", "gate", "reason"), EVIL)
    service.add(make_job("a", name=EVIL, plan=EVIL, overrides=[EVIL], results=[RESULT | evil]))
    service.add(make_job("b", "failed", name=EVIL, error=EVIL))
    service.logs["a"] = EVIL
    service.emit("a", "stage", stage=EVIL)
    service.emit("a", "step", title=EVIL, run=EVIL, step=1, loss=1.0)
    service.emit("a", "metrics", title=EVIL, run=EVIL, step=1, metrics={EVIL: 1.0})
    service.emit("a", "notice", text=EVIL)
    service.emit("a", "state", state="finished", attempt=1, error=EVIL)
    service.refusals["POST", "/jobs/a/predict"] = (422, EVIL)
    page = open_page(service)
    seen = []

    def look(selector: str) -> None:
        page.wait_for_selector(selector)
        seen.append(page.evaluate("document.body.innerText").count("onerror"))
        assert page.locator("img, body script + script, main script").count() == 0
        assert page.evaluate("window.hacked") is None

    look("#job-list li >> nth=1")
    page.click("a:text('New job') >> nth=0")
    page.select_option("#data-set", EVIL)
    look("#new-preview .bars")
    page.click("nav a:text('Data')")
    look("#data-list td")
    page.click("#data-list a")
    look("#data-preview .bars")
    page.goto(f"http://127.0.0.1:{service.port}/#/compare/a,b")
    look("#comparison td")
    page.goto(f"http://127.0.0.1:{service.port}/#/job/a")
    page.wait_for_selector("#outcome:not([hidden])")
    page.wait_for_selector("#log:not(:empty)")
    page.fill("#texts", EVIL)
    page.click("#predict")
    page.click("#given summary")
    page.click("#metric-values summary")
    look("#alert:not(:empty)")
    assert all(seen), seen
    assert seen[-1] >= 10


def test_the_page_and_the_service_fit_together(start: Callable[..., Running], open_page: Open, tmp_path: Path) -> None:
    running, file = start(), tmp_path / "films.csv"
    file.write_text("review,stars\n" + "".join(f"{text},{label}\n" for text, label in sentences(40)))
    page = open_page(running, "#/new")
    page.on("dialog", lambda dialog: dialog.accept())
    page.set_input_files("#file", file)
    page.click("#send")
    page.wait_for_selector("#new-preview .bars")
    assert page.input_value("#column-label") == "stars"
    page.select_option("#teacher", "minilm")
    page.select_option("#student", "bilstm")
    page.click("#plan-button")
    page.wait_for_selector("#plan:not([hidden])")
    assert [page.inner_text(f"#{id}") for id in ("plan-text", "estimate", "plan-notices")] == [
        "10 steps", "This job takes about 13 s.", "one epoch",
    ]  # fmt: skip
    page.click("#submit-button")
    page.wait_for_url("**/#/job/*")
    id = page.url.rpartition("/")[2]
    job = running.wait(id, State.RUNNING)
    assert (job.data, job.overrides[0]) == (("films",), "+teacher=minilm")
    running.write_events(
        id, {"kind": "stage", "stage": "training", "progress": 0.5, "seconds_left": 9.0},
        {"kind": "step", "title": "student", "step": 3, "steps": 10, "epoch": 0, "loss": 0.5},
        {"kind": "metrics", "title": "student", "step": 3, "metrics": {"dev/accuracy": 0.75}},
    )  # fmt: skip
    page.wait_for_selector("figure >> nth=1")
    page.wait_for_selector("#watch")  # The events come before the reading of the job's state.
    assert page.inner_text("#watch").split("\n") == ["training", "about 9 s left", "student: step 3 of 10, epoch 1"]
    page.click("#cancel")
    page.wait_for_selector("#retry:not([hidden])")
    page.click("#retry")
    wait_for(lambda: running.job(id).attempt == 2)
    save(running.service.runs_directory(job) / "toy")
    running.end(id)
    page.wait_for_selector("#result-table td")
    assert page.locator("#result-table td").all_inner_texts() == [
        "toy", "accuracy on dev", "0.9000", "0.9000", "100.0%", "model.onnx", "0.9000", "40", "8", "passed",
    ]  # fmt: skip
    page.click("#bundle")
    page.wait_for_selector("#alert:not(:empty)")
    assert page.inner_text("#alert") == "the run has no bundle: its student was not exported"
    page.click("nav a:text('Data')")
    page.click("button[aria-label='Delete films']")
    page.wait_for_selector("#no-data:not([hidden])")
    assert running.service.data.list("local") == []


def test_the_form_is_filled_and_submitted_with_the_keyboard_alone(service: FakeService, open_page: Open) -> None:
    service.data["films"] = make_data_set("films", ["text", "label"], [["a film", "good"]])
    page = open_page(service)
    page.wait_for_selector("#no-jobs:not([hidden])")

    def reach(id: str) -> None:
        """Goes to a field with Tab."""
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id || document.activeElement.hash?.slice(2)") == id:
                assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
                return
        raise AssertionError(f"{id} cannot be reached")

    reach("new")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:focus")
    page.wait_for_selector("#data-set option:text('films')", state="attached")
    reach("data-set")
    page.keyboard.type("films")
    page.wait_for_selector("#column-label")
    reach("teacher")
    page.keyboard.type("minilm")
    reach("student")
    page.keyboard.type("bilstm")
    reach("job-name")
    page.keyboard.type("by keys")
    page.keyboard.press("Enter")  # Shows the plan first.
    page.wait_for_selector("#plan:not([hidden])")
    reach("submit-button")
    page.keyboard.press("Enter")
    page.wait_for_url("**/#/job/new")
    [_, (_, _, content)] = service.requests
    assert (content["name"], content["form"]["student"], content["form"]["data"]) == ("by keys", "bilstm", "films")


def fill(service: FakeService) -> None:
    """Adds data and jobs of every state, with long names and texts."""
    service.data["films"] = make_data_set(
        "films", ["review", "stars"], [["a lovely and moving film " * 20, "good"]], problems=["12 rows have no label"],
        label_counts={"stars": {"good": 2600}}, lengths={"review": {"mean": 48.2, "max": 301}},
    )  # fmt: skip
    service.data["n" * 60] = make_data_set("n" * 60, ["text"], [["w" * 300]])
    for state in ("queued", "running", "cancelling", "cancelled", "failed", "finished"):
        service.add(make_job(state, state, name=f"{state} " + "job" * 20, attempt=2, stage="training", progress=0.5))
    service.jobs["failed"]["error"] = "no/such/" + "directory/" * 20
    service.jobs["finished"]["results"] = [FAILED]
    service.logs["running"] = "w" * 500
    for step in range(1, 30):
        service.emit("running", "step", title="student", run="one", step=step, steps=30, epoch=0, loss=1 / step)
    service.emit("running", "metrics", title="student", run="one", step=29, metrics={"dev/accuracy": 0.9})
    service.emit("finished", "state", state="finished", attempt=2)


PLACES = {
    "#/jobs": "#job-list li", "#/new": "#task option", "#/data": "#data-list td", "#/data/films": "#data-preview td",
    f"#/data/{'n' * 60}": "#data-preview td", "#/job/running": "#figures path", "#/job/finished": "#result-table td",
    "#/job/failed": "#job-error:not(:empty)", "#/compare/finished": "#comparison td",
}  # fmt: skip


def visit(page: Any, service: FakeService | Running, place: str) -> None:
    page.goto(f"http://127.0.0.1:{service.port}/{place}")
    page.wait_for_selector(PLACES[place], state="attached")


@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_is_clipped(service: FakeService, open_page: Open, width: int) -> None:
    fill(service)
    page = open_page(service, viewport={"width": width, "height": 900})
    for place in PLACES:
        visit(page, service, place)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        assert page.evaluate(CLIPPED) == [], place


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_accessible(service: FakeService, open_page: Open, width: int, scheme: str) -> None:
    if not AXE.is_file():
        pytest.skip("needs axe-core of npm, which .ci/run installs")
    fill(service)
    page = open_page(
        service, viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce", bypass_csp=True
    )
    for place in PLACES:
        visit(page, service, place)
        if not page.evaluate("typeof axe === 'object'"):
            page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("async () => (await axe.run()).violations")
        assert [(one["id"], [node["html"][:150] for node in one["nodes"]]) for one in found] == [], place


def test_the_policy_names_the_script_and_the_style_and_the_page_loads_nothing_else() -> None:
    page = load_page()
    assert "unsafe" not in page.policy
    assert page.policy.startswith("default-src 'none'; script-src 'sha256-")
    assert page.policy.count("sha256-") == 2
    assert re.findall(r"""(?:src|href)=["'](?!#|data:,)""", page.html) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page.html) == []
    assert re.findall(r"""\son[a-z]+\s*=\s*["']|\sstyle=""", page.html) == []
