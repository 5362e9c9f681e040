"""Tests of the documentation as a site: it builds without a warning, and every file of it is local."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import distill

ROOT = Path(distill.__file__).resolve().parents[1]
# Refuses connections, so that a plugin that downloads a file fails.
BUILD = """
import socket
def refuse(*arguments):
    raise OSError("the build opened a connection")
socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the directory of the built site."""
    for package in ("material", "mkdocstrings"):
        pytest.importorskip(package, reason="the site is built with the packages of the extra docs")
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-c", BUILD, "build", "--strict", "--site-dir", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


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
