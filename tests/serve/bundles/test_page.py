"""Tests of the page of a server in headless Chromium: it writes text with a bundle that does, and stops it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distill.edge import Bundle
from tests.edge.conftest import needs_browser
from tests.edge.test_text_bundles import write_text_bundle
from tests.serve.bundles.conftest import Running
from tests.serve.bundles.test_generation import PROMPT, hold

pytestmark = [needs_browser, pytest.mark.xdist_group("browser")]


def test_the_page_writes_and_stops_text_with_one_bundle_and_predicts_with_another(
    browser: Any, bundle: Path, tmp_path: Path, start: Callable[..., Running]
) -> None:
    writer = tmp_path / "writer"
    writer.mkdir()
    write_text_bundle(writer, "gpt2", eos=[], start=None)
    running = start(f"text={writer}", f"films={bundle}")
    held = hold(running)
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{running.port}/")
    page.wait_for_selector("#options:not([hidden])")
    page.fill("#texts", PROMPT)
    page.click("#button")
    page.wait_for_function("document.querySelector('.written:not(.text)')?.textContent")
    page.click("#stopping")
    page.wait_for_selector("#button:enabled")
    assert page.inner_text(".note") == "Stopped."
    held.allowed.release(10_000)
    assert held.has_dropped.wait(60)
    page.fill("#max_new_tokens", "5")
    page.click("#button")
    page.wait_for_selector(".note:not(:empty):not(:text('Stopped.'))")
    [expected] = Bundle(writer).generate_all([PROMPT], max_new_tokens=5)
    assert page.text_content(".written:not(.text)") == expected["text"]
    page.fill("#temperature", "hot")
    page.click("#button")
    page.wait_for_selector(".error")
    assert "got temperature='hot', expected a number above 0" in page.inner_text("#status")
    page.select_option("#model", "films")
    page.fill("#texts", "a film\na dull film")
    page.click("#button")
    page.wait_for_selector(".row")
    assert page.locator(".result").count() == 2
    assert page.is_hidden("#options")
    page.close()
