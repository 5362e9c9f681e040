"""Tests in a browser that the pages are accessible: axe finds nothing serious, nothing is clipped, search works."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CHROMIUM
from tests.documentation.conftest import ROOT
from tests.records.test_collection_report import report_of, save, save_sweep

AXE = ROOT / "build" / "node" / "node_modules" / "axe-core" / "axe.min.js"
PAGES = (
    "index.html", "student.html", "formats.html", "reference/options/run.html", "reference/options/task.html",
    "reference/python/running.html",
)  # fmt: skip
SCHEMES = ("light", "dark")
WIDTHS = (390, 1280)
# Elements that end to the right of the page, except in what scrolls within itself.
CLIPPED = """() => [...document.querySelectorAll("body *")].filter(element => {
    const box = element.getBoundingClientRect();
    if (!box.width || box.right <= document.documentElement.clientWidth + 1) return false;
    for (let at = element; at && at !== document.body; at = at.parentElement)
        if (getComputedStyle(at).overflowX !== "visible") return false;
    return true;
}).map(element => element.outerHTML.slice(0, 120))"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("site"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which .ci/run installs"),
]


def find_serious(browser: Any, page: Path, scheme: str, width: int) -> list[str]:
    """Returns the serious and critical findings of axe in a page."""
    if not AXE.is_file():
        pytest.skip("needs axe-core of npm, which .ci/run installs")
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    opened.goto(page.as_uri())
    opened.add_script_tag(path=str(AXE))
    findings = opened.evaluate("async () => (await axe.run()).violations")
    opened.close()
    return [
        f"{finding['id']}: {finding['help']}: {json.dumps([node['html'][:150] for node in finding['nodes'][:3]])}"
        for finding in findings
        if finding["impact"] in ("serious", "critical")
    ]


def find_clipped(browser: Any, page: Path, scheme: str, width: int) -> list[str]:
    """Returns the elements that end outside of the page."""
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened.goto(page.as_uri())
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    clipped: list[str] = opened.evaluate(CLIPPED)
    opened.close()
    return clipped


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_site_is_accessible(browser: Any, site: Path, page: str, width: int, scheme: str) -> None:
    assert find_serious(browser, site / page, scheme, width) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_of_the_site_is_clipped(browser: Any, site: Path, width: int) -> None:
    for page in sorted(site.rglob("*.html")):
        assert find_clipped(browser, page, "light", width) == [], page.name


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.usefixtures("drawn")
def test_the_reports_of_a_run_and_of_a_sweep_are_accessible(
    browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    save_sweep(tmp_path / "sweep")
    save(tmp_path / "run")
    for directory in ("sweep", "run"):
        report_of(tmp_path / directory)
        page = tmp_path / directory / "report.html"
        assert "<svg" in page.read_text(encoding="utf-8")
        assert find_serious(browser, page, scheme, width) == []
        assert find_clipped(browser, page, scheme, width) == []


@pytest.mark.parametrize(("words", "target"), [("temperature", "objective.html"), ("max_drop", "export.html")])
def test_the_search_finds_an_option_in_pages_opened_as_files(browser: Any, site: Path, words: str, target: str) -> None:
    opened = browser.new_page()
    opened.goto((site / "index.html").as_uri())
    opened.click("input[name=query]")
    opened.keyboard.type(words)
    opened.locator(f".md-search-result__link[href*='{target}']").first.wait_for(state="attached")
    opened.close()


def test_the_site_opens_in_the_scheme_of_the_system(browser: Any, site: Path) -> None:
    for scheme, name in (("light", "default"), ("dark", "slate")):
        opened = browser.new_page(color_scheme=scheme)
        opened.goto((site / "index.html").as_uri())
        assert opened.get_attribute("body", "data-md-color-scheme") == name
        opened.close()
