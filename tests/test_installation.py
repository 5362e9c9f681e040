"""Tests of the commands that install an extra."""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from distill import installation
from distill.installation import DISTRIBUTION, PACKAGE, install_command


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
    assert install_command("ray") == "pip install 'PATH/TO/distill_encoders-VERSION-py3-none-any.whl[ray]'"


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, noted: str | None) -> None:
    """Makes distill look as if it were installed in a directory, with this direct_url.json."""
    (directory / "conf").mkdir()
    information = directory / "distill_encoders-0.2.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {DISTRIBUTION}\nVersion: 0.2.0\n")
    if noted is not None:
        (information / "direct_url.json").write_text(noted)
    monkeypatch.setattr(installation, "PACKAGE", directory)
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(information))


def raise_missing(name: str) -> None:
    raise metadata.PackageNotFoundError(name)
