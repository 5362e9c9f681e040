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
from distill.core.errors import DISTRIBUTION, PACKAGE, WHEEL, first_line, install_command

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("noted", "origin"),
    [
        ({"url": "file:///w/distill_encoders-0.2.0-py3-none-any.whl", "archive_info": {}}, None),
        ({"url": "file:///source", "dir_info": {}}, None),
        (
            {"url": "https://example.org/d.git", "vcs_info": {"vcs": "git", "commit_id": "0123abc"}},
            "git+https://example.org/d.git@0123abc",
        ),
        (None, None),
    ],
)
def test_an_installed_distribution_is_named_with_its_origin(
    noted: dict[str, Any] | None, origin: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install_command("train") == f"pip install -e '{PACKAGE.parent}[train]'"  # That of a checkout.
    install(tmp_path, monkeypatch, None if noted is None else json.dumps(noted))
    if noted is not None:
        assert install_command("serve") == f"pip install 'distill-encoders[serve] @ {origin or noted['url']}'"
        return
    assert install_command("ray") == f"pip install 'PATH/TO/{WHEEL}[ray]'"
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


def test_pages_name_the_wheel_of_this_version_and_never_the_package_of_others() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"distill_encoders-[\w.]+-py3-none-any\.whl", text)) <= {WHEEL}, page
        assert not re.findall(r"pip install (?:-\S+ )*'?distill(?!_encoders)\b.*", text), page


def test_the_changelog_and_the_citation_have_this_version() -> None:
    versions = re.findall(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert next(version for version in versions if version != "Unreleased") == distill.__version__
    assert citation["version"] == distill.__version__
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # All that the format demands.


@pytest.mark.parametrize(("error", "line"), [(ValueError("\n one\ntwo"), "one"), (ValueError(), "ValueError")])
def test_the_first_line_of_an_error_is_never_empty(error: Exception, line: str) -> None:
    assert first_line(error) == line
