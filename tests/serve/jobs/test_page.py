"""Tests of the page of the service in headless Chromium, with a service that runs jobs as a test lets them."""

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distill.serve.jobs.accounts import Account
from distill.serve.jobs.attempts import Attempt
from distill.serve.jobs.paths import load_page
from distill.serve.jobs.queue import State
from tests.conftest import sentences
from tests.documentation.test_accessibility import AXE, CLIPPED
from tests.edge.conftest import needs_browser
from tests.records.test_collection_report import save
from tests.serve.jobs.conftest import Running
from tests.serve.jobs.programs import wait_for

pytestmark = [needs_browser, pytest.mark.xdist_group("browser")]
Open = Callable[..., Any]
EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>${\'"`'


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """A function that opens the page of a service at a place; no script of it may fail."""
    opened, errors = [], []

    def start(running: Running, place: str = "", **options: Any) -> Any:
        page = browser.new_page(**options)
        opened.append(page)
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if "Content Security" in line.text else None)
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"http://127.0.0.1:{running.port}/{place}")
        return page

    yield start
    for page in opened:
        page.close()
    assert errors == []


def write_films(path: Path) -> Path:
    """Writes a table with markup in a column's name, in a text and in a label."""
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("review", "stars", EVIL), *((*row, "1") for row in sentences(40)), (EVIL,) * 3])
    return path


def write_progress(running: Running, id: str) -> None:
    running.write_events(
        id, {"kind": "stage", "stage": "training", "progress": 0.5, "seconds_left": 9.0},
        {"kind": "step", "title": "student", "step": 3, "steps": 10, "epoch": 0, "loss": 0.5},
        {"kind": "metrics", "title": "student", "step": 3, "metrics": {"dev/accuracy": 0.75}},
        {"kind": "notice", "text": EVIL},
    )  # fmt: skip


def test_a_job_is_submitted_watched_and_read_on_the_page(
    start: Callable[..., Running], open_page: Open, tmp_path: Path
) -> None:
    running = start()
    token = running.service.accounts.add(Account("ada"))
    page = open_page(running, "#/new")
    for given in ("wrong", token):
        page.wait_for_selector("#access:not([hidden]) #token:focus")
        page.fill("#token", given)
        page.keyboard.press("Enter")
    assert page.evaluate("localStorage.length + document.cookie.length") == 0

    page.set_input_files("#file", write_films(tmp_path / "My Films (2026).csv"))
    page.click("#send")
    page.wait_for_selector("#new-preview .bars")
    assert page.input_value("#data-set") == "my-films-2026"
    page.check("input[value=review]")
    page.select_option("#column-label", "stars")
    page.select_option("#teacher", "minilm")
    page.select_option("#student", "bilstm")
    page.click("summary:text('Options')")
    page.fill("#further", "seed=nothing of hydra()")
    page.fill("#job-name", EVIL)
    page.click("#submit-button")
    page.wait_for_selector("#alert:not(:empty)")
    page.fill("#further", "seed=3")
    page.click("#plan-button")
    page.wait_for_selector("#plan:not([hidden])")
    assert [page.inner_text(f"#{id}") for id in ("plan-text", "estimate", "plan-notices")] == [
        "10 steps", "This job takes about 13 s.", "one epoch",
    ]  # fmt: skip
    page.click("#submit-button")
    page.wait_for_url("**/#/job/*")
    id = page.url.rpartition("/")[2]
    job = running.wait(id, State.RUNNING)
    assert (job.name, job.data, job.overrides[0]) == (EVIL, ("my-films-2026",), "+teacher=minilm")
    assert "seed=3" in job.overrides

    Attempt(running.service.directory, id, 1).log.write_text(f"\x1b[32m{EVIL}\x1b[0m\nhalf\rwhole line\n")
    write_progress(running, id)
    page.wait_for_selector("figure >> nth=1")
    page.wait_for_selector("#watch")  # The events come before the reading of the job's state.
    assert page.inner_text("#watch").split("\n") == ["training", "about 9 s left", "student: step 3 of 10, epoch 1"]
    page.wait_for_selector("#job-notices li")
    assert page.inner_text("#job-notices li") == EVIL
    page.click("#cancel")
    page.click("#retry")
    wait_for(lambda: running.job(id).attempt == 2)
    save(running.service.runs_directory(job) / "toy")
    running.end(id)
    page.wait_for_selector("#result-table td")
    assert page.locator("#result-table td").all_inner_texts() == [
        "toy", "accuracy on dev", "0.9000", "0.9000", "100.0%", "model.onnx", "0.9000", "40", "8", "passed",
    ]  # fmt: skip
    assert page.text_content("#log") == f"{EVIL}\nwhole line\n"
    page.click("#bundle")
    page.wait_for_selector("#alert:not(:empty)")
    assert page.inner_text("#alert") == "the run has no bundle: its student was not exported"
    page.click("#pin")
    page.wait_for_selector("#pin[aria-pressed=true]")
    page.click("nav a:text('Data')")
    page.click("#data-list a")
    page.wait_for_selector("#data-preview .bars")
    assert EVIL in page.inner_text("#data-preview")
    assert page.locator("img, body script + script, main script").count() == 0
    assert page.evaluate("window.hacked") is None
    page.click("nav a:text('Data')")
    page.click("button[aria-label='Delete my-films-2026']")
    page.wait_for_selector("#no-data:not([hidden])")
    assert running.service.data.list("ada") == []
    page.click("#forget")
    page.wait_for_selector("#access:not([hidden])")
    assert page.evaluate("sessionStorage.length") == 0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_the_page_is_accessible_and_nothing_is_clipped(
    start: Callable[..., Running], open_page: Open, tmp_path: Path, width: int, scheme: str
) -> None:
    running = start()
    running.ask("PUT", "/data/films?format=csv", write_films(tmp_path / "films.csv").read_bytes())
    finished = running.wait(running.submit().id, State.RUNNING)
    save(running.service.runs_directory(finished) / "toy")
    running.end(finished.id)
    failed = running.end(running.submit().id, code=2, error="no/such/" + "directory/" * 20)
    live = running.submit()
    write_progress(running, live.id)
    places = {
        "#/jobs": "#job-list li", "#/new": "#task option", "#/data": "#data-list td",
        "#/data/films": "#data-preview td", f"#/job/{live.id}": "#figures path",
        f"#/job/{finished.id}": "#result-table td", f"#/job/{failed.id}": "#job-error:not(:empty)",
        f"#/compare/{finished.id}": "#comparison td",
    }  # fmt: skip
    page = open_page(
        running, viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce", bypass_csp=True
    )
    for place, shown in places.items():
        page.goto(f"http://127.0.0.1:{running.port}/{place}")
        page.wait_for_selector(shown, state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        assert page.evaluate(CLIPPED) == [], place
        if AXE.is_file():  # Of npm, which .ci/run installs.
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
