"""Tests of the documentation as a site: it builds without a warning, and every file of it is local."""

import re
from pathlib import Path

import pytest

from tests.documentation.conftest import ROOT


@pytest.mark.xdist_group("site")
def test_the_site_has_every_page(site: Path) -> None:
    assert {path.stem for path in site.glob("*.html")} >= {path.stem for path in (ROOT / "docs").glob("*.md")}


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
