"""Tests of the command: what it refuses, its accounts, and what its process has imported."""

from pathlib import Path

import pytest

from distill.serve.jobs.accounts import Account, Accounts
from distill.service import main


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines: add an account first, by python -m"),
        (["--port", "70000"], "got --port 70000, expected 0 to 65535"),
        (["--workers", "0"], "got --workers 0, expected at least 1"),
        (["--queue", "0"], "got --queue 0, expected at least 1"),
        (["--upload", "-5"], "got --upload -5, expected at least 1"),
        (["--keep-days", "-1"], "got --keep-days -1, expected a number of at least 0"),
        (["--idle", "nan"], "got --idle nan, expected a number of at least 0"),
        (["--teachers", "nowhere"], "--teachers nowhere is no directory: give one with a directory for each model"),
        (["--serve", "nowhere"], "got --serve nowhere, expected URL=DIRECTORY, such as http://127.0.0.1:8000=path"),
        (["--jobs", "3"], "--jobs is a limit of an account: add --add-token NAME"),
        (["--add-token", "../x"], "got the account '../x', expected a name of 1 to 100 letters"),
        (["--add-token", "ada", "--hours", "-1"], "got hours=-1.0 for account ada, expected a number of at least 0"),
        (["--remove-token", "ada"], "there is no account ada"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main([str(tmp_path / "service"), *options]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_an_account_is_added_with_its_limits_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--add-token", "ada", "--jobs", "2", "--disk", "1000", "--hours", "1.5"]
    assert main([str(tmp_path), *options]) == 0
    token = capsys.readouterr().out.strip()
    accounts = Accounts(tmp_path / "accounts.json")
    assert accounts.find(token.encode()) == Account("ada", 2, 1000, 1.5)
    assert main([str(tmp_path), "--remove-token", "ada"]) == 0
    assert accounts.find(token.encode()) is None
