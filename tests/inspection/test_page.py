"""Tests in Chromium of the page of an inspection: the views of attention, its keys, small screens, and its weight."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from distill.inspection.inspection import Questions, inspect_models
from distill.inspection.inspection_report import write_inspection
from distill.inspection.subjects import Subject
from tests.documentation.test_accessibility import SCHEMES, WIDTHS, find_clipped, find_serious
from tests.edge.conftest import needs_browser

SENTENCES = ("a good film", "bad bad film good")
QUESTIONS = Questions(sentences=SENTENCES, masked_rows=8, probe_rows=64, attributions=False)
# Counts the pixels of each canvas that are not transparent.
INK = """() => [...document.querySelectorAll("#attention canvas")].map(canvas =>
    canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.filter((_, at) => at % 4 == 3)
        .reduce((sum, alpha) => sum + (alpha > 0), 0))"""

Open = Callable[..., Any]


@pytest.fixture
def page_path(subjects: list[Subject], tmp_path: Path) -> Path:
    return write_inspection(inspect_models(subjects, QUESTIONS), tmp_path / "page")


@pytest.fixture
def open_page(browser: Any, page_path: Path) -> Iterator[Open]:
    """A function that opens the page; no script of it may fail."""
    opened, errors = [], []

    def start(**options: Any) -> Any:
        page = browser.new_page(**options)
        opened.append(page)
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(page_path.as_uri())
        page.locator("#attention canvas").first.wait_for()
        return page

    yield start
    for page in opened:
        page.close()
    assert errors == []


def chosen_heads(page: Any) -> list[str]:
    return page.locator(".heads button[aria-pressed=true]").all_inner_texts()  # type: ignore[no-any-return]


def largest_weight(subject: Subject, sentence: str, layer: int, head: int) -> float:
    """Returns the largest weight of a head by transformers. Both are counted from 1."""
    batch = subject.tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        return float(subject.model(**batch, output_attentions=True).attentions[layer - 1][0, head - 1].max())


@needs_browser
@pytest.mark.xdist_group("browser")
def test_a_sentence_a_layer_and_heads_are_chosen(open_page: Open, subjects: list[Subject]) -> None:
    page = open_page()
    assert chosen_heads(page) == ["1"]
    assert page.locator("#attention h4").all_inner_texts() == ["teacher", "student"]
    assert page.locator("[name=sentence] option").all_inner_texts() == list(SENTENCES)
    page.select_option("[name=sentence]", index=1)
    page.select_option("[name=layer]", index=1)
    page.click(".heads button:text('1')")
    assert page.locator("#attention .views .said").first.inner_text() == "No head is chosen."
    page.click(".heads button:text('3')")
    for subject, said in zip(subjects, page.locator("#attention .views .said").all_inner_texts(), strict=True):
        weight = largest_weight(subject, SENTENCES[1], 2, 3)
        found = re.match(r"Layer 2: in head 3 “(.*?)” looks at “(.*?)” \((\d\.\d\d)\)", said)
        assert found is not None, said
        assert float(found[3]) == pytest.approx(weight, abs=0.5 / 255 + 0.005)
    assert all(count > 100 for count in page.evaluate(INK))


@pytest.mark.slow
@needs_browser
@pytest.mark.xdist_group("browser")
def test_the_arrow_keys_and_a_touch_choose_a_head(open_page: Open) -> None:
    page = open_page(viewport={"width": 390, "height": 800}, has_touch=True)
    squares = page.locator("#attention canvas").nth(1)
    squares.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert (page.input_value("[name=layer]"), chosen_heads(page)) == ("2", ["2"])
    for _ in range(9):  # To the edge, and no further.
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowUp")
    assert (page.input_value("[name=layer]"), chosen_heads(page)) == ("0", ["1"])
    box = squares.bounding_box()
    squares.tap(position={"x": box["width"] * 0.9, "y": box["height"] * 0.6})
    assert (page.input_value("[name=layer]"), chosen_heads(page)) == ("2", ["4"])


@pytest.mark.slow
@needs_browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_accessible_and_nothing_is_clipped(browser: Any, page_path: Path, width: int, scheme: str) -> None:
    assert find_clipped(browser, page_path, scheme, width) == []
    assert find_serious(browser, page_path, scheme, width) == []
