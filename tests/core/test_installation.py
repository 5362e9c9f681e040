"""Tests of the commands that install distill, in messages and on pages, and of the files that name its version."""

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

import distill
from distill.core import errors
from distill.core.errors import DISTRIBUTION, PACKAGE, WHEEL, install_command

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_in_a_checkout_the_command_names_it() -> None:
    assert install_command("train") == f"pip install -e '{PACKAGE.parent}[train]'"


@pytest.mark.parametrize(
    ("noted", "origin"),
    [
        ({"url": "file:///w/distill_encoders-0.2.0-py3-none-any.whl", "archive_info": {}}, None),
        ({"url": "file:///source", "dir_info": {}}, None),
        (
            {"url": "https://example.org/d.git", "vcs_info": {"vcs": "git", "commit_id": "0123abc"}},
            "git+https://example.org/d.git@0123abc",
        ),
    ],
)
def test_an_installed_distribution_is_named_with_its_origin(
    noted: dict[str, Any], origin: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, json.dumps(noted))
    assert install_command("serve") == f"pip install 'distill-encoders[serve] @ {origin or noted['url']}'"


@pytest.mark.parametrize("is_installed", [True, False])
def test_without_a_noted_origin_the_user_is_asked_for_the_wheel(
    is_installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, None)
    if not is_installed:
        monkeypatch.setattr(metadata, "distribution", raise_missing)
    assert install_command("ray") == f"pip install 'PATH/TO/{WHEEL}[ray]'"


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, noted: str | None) -> None:
    """Makes distill look as if it were installed in a directory, with this direct_url.json."""
    (directory / "conf").mkdir()
    information = directory / "distill_encoders-0.2.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {DISTRIBUTION}\nVersion: 0.2.0\n")
    if noted is not None:
        (information / "direct_url.json").write_text(noted)
    monkeypatch.setattr(errors, "PACKAGE", directory)
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(information))


def raise_missing(name: str) -> None:
    raise metadata.PackageNotFoundError(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_the_wheel_of_this_version(page: Path) -> None:
    assert set(re.findall(r"distill_encoders-[\w.]+-py3-none-any\.whl", page.read_text(encoding="utf-8"))) <= {WHEEL}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_installs_the_package_of_others(page: Path) -> None:
    assert not re.findall(r"pip install (?:-\S+ )*'?distill(?!_encoders)\b.*", page.read_text(encoding="utf-8"))


def test_the_changelog_and_the_citation_have_this_version() -> None:
    versions = re.findall(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert next(version for version in versions if version != "Unreleased") == distill.__version__
    assert citation["version"] == distill.__version__
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # All that the format demands.
