"""Tests of the documentation as a site: it builds without a warning, and every file of it is local."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.documentation.conftest import ROOT
from tests.documentation.test_python_reference import DOCUMENTED


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_site_has_every_page(site: Path) -> None:
    assert {path.stem for path in site.glob("*.html")} >= {path.stem for path in (ROOT / "docs").glob("*.md")}


def test_the_list_for_language_models_has_every_page() -> None:
    text = (ROOT / "docs/llms.txt").read_text(encoding="utf-8")
    assert re.match(r"# distill\n\n> ", text)
    linked = re.findall(r"^- \[[^]]+\]\(([\w/]+)\.html\): .+$", text, re.M)
    assert sorted(linked) == sorted([*(page.stem for page in (ROOT / "docs").glob("*.md")), "reference/options/run"])


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_no_file_of_the_site_loads_another_from_the_network(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"(?:\w+:)?//[^\"]*", text)
        loaded += re.findall(r"url\(['\"]?(?:https?:)?//[^)]*|@import[^;]*//[^;]*", text)
        assert not loaded, f"{page.name} loads files from the network"
    for sheet in site.rglob("*.css"):
        loaded = re.findall(r"url\(['\"]?(?:https?:)?//[^)]*|@import[^;]*//[^;]*", sheet.read_text(encoding="utf-8"))
        assert not loaded, f"{sheet.name} loads files from the network"


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_references_have_an_anchor_for_every_option_and_name(site: Path, reference: ModuleType) -> None:
    def anchors(folder: str) -> set[str]:
        pages = (site / "reference" / folder).glob("*.html")
        return {name for page in pages for name in re.findall(r'<h[1-6] id="([^"]+)"', page.read_text("utf-8"))}

    names = {option.name for option in reference.read_options()}
    assert len(names) > 150
    found = anchors("options")
    assert {name for name in names if not any(a == name or a.endswith(f".{name}") for a in found)} == set()
    assert anchors("python") >= DOCUMENTED.keys()
