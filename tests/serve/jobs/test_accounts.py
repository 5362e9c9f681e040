"""Tests of accounts: tokens are never stored, limits are in words, and a changed file is noticed."""

import json
import os
import stat
from pathlib import Path

import pytest

from distill.core.errors import UserError
from distill.serve.jobs.accounts import Account, Accounts


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    return Accounts(tmp_path / "accounts.json")


def test_a_token_finds_its_account_alone_and_is_not_in_the_file(accounts: Accounts) -> None:
    assert len(accounts) == 0
    assert accounts.find(b"") is None
    ada, bo = accounts.add(Account("ada", jobs=2, disk=10**9, hours=1.5)), accounts.add(Account("bo"))
    assert accounts.find(ada.encode()) == Account("ada", 2, 10**9, 1.5)
    assert accounts.find(bo.encode()) == Account("bo")
    for wrong in (None, b"", b"x", ada.encode()[:-1], ada.encode() + b"x", ada.upper().encode(), b"\xff" * 40):
        assert accounts.find(wrong) is None
    assert len(ada) >= 40
    text = accounts.path.read_text()
    assert not any(token in text or token.encode().hex() in text for token in (ada, bo))
    entries = json.loads(text)["accounts"]
    assert entries["ada"]["salt"] != entries["bo"]["salt"]
    assert stat.S_IMODE(accounts.path.stat().st_mode) == 0o600


def test_a_running_service_notices_changes(accounts: Accounts) -> None:
    running = Accounts(accounts.path)
    assert len(running) == 0
    first = accounts.add(Account("ada"))
    assert running.find(first.encode()) == Account("ada")
    second = accounts.add(Account("ada", jobs=1))
    assert running.find(first.encode()) is None
    third = accounts.add(Account("ada", jobs=1))  # The file has the same size.
    assert [running.find(token.encode()) for token in (second, third)] == [None, Account("ada", jobs=1)]
    accounts.remove("ada")
    assert running.find(third.encode()) is None
    with pytest.raises(UserError, match="there is no account ada"):
        accounts.remove("ada")


@pytest.mark.parametrize(
    ("account", "message"),
    [
        *((Account(name), "got the account .*, expected a name of 1 to 100 letters") for name in ("", "..", "a\n")),
        (Account("ada", jobs=-1), "got jobs=.* for account ada, expected a"),
        (Account("ada", jobs=1.5), "got jobs=.* for account ada, expected a"),  # type: ignore[arg-type]
        (Account("ada", disk=True), "got disk=.* for account ada, expected a"),
        (Account("ada", hours=float("nan")), "got hours=.* for account ada, expected a"),
    ],
)
def test_a_wrong_name_or_limit_is_refused(accounts: Accounts, account: Account, message: str) -> None:
    with pytest.raises(UserError, match=message):
        accounts.add(account)
    assert not accounts.path.exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"accounts": []}', '{"accounts": {"../x": {}}}', '{"accounts": {"ada": {"jobs": 1}}}',
     '{"accounts": {"ada": {"jobs": null, "disk": null, "hours": null, "salt": "zz", "hash": ""}}}', "\ufeff\x00"],
)  # fmt: skip
def test_a_damaged_file_lets_nobody_in(accounts: Accounts, text: str) -> None:
    token = accounts.add(Account("ada"))
    accounts.path.write_text(text)
    os.utime(accounts.path, ns=(1, 1))
    with pytest.raises(UserError, match=r"accounts.json is damaged: restore it"):
        accounts.find(token.encode())


def test_limits_are_reached_in_words() -> None:
    free, limited = Account("ada"), Account("ada", jobs=2, disk=1_000, hours=10)
    assert free.find_excess(jobs=10**6, disk=10**15, hours=10**6) is None
    assert limited.find_excess(jobs=1, disk=1_000, hours=9.9) is None
    for excess, words in (
        ({"jobs": 2}, "ada has 2 jobs that run or wait, the limit: wait for one or cancel it"),
        ({"disk": 1_001}, "ada would have 1,001 bytes of data and jobs, the limit is 1,000: delete some"),
        ({"hours": 10}, "ada has used 10.0 of 10 hours in 30 days: wait, or ask for more"),
    ):
        assert limited.find_excess(**excess) == words
