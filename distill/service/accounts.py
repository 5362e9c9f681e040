"""The people who may use a service beyond its own machine, each with a bearer token and limits.

`accounts.json` has a salted hash of each token and never the token itself, which is random and 256 bits long, so that
nothing is gained by a slow hash: the SHA-256 of each request costs microseconds.
"""

import hashlib
import hmac
import json
import math
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distill.errors import UserError
from distill.service.names import check_name
from distill.storage import locks
from distill.storage.files import atomic_file

LOCAL = "local"  # The owner of everything on a service of this machine alone, without accounts.


@dataclass(frozen=True)
class Account:
    """A person with their limits.

    Args:
        jobs: that run or wait at once; None for any number.
        disk: bytes of data sets and jobs; None for any number.
        hours: that their jobs have run in the last 30 days; None for any number.
    """

    name: str
    jobs: int | None = None
    disk: int | None = None
    hours: float | None = None

    def find_excess(self, *, jobs: int = 0, disk: int = 0, hours: float = 0.0) -> str | None:
        """Returns which limit is reached, in words; None if none is.

        Args:
            jobs: that run or wait now.
            disk: bytes that are in use, with those of a request.
            hours: that jobs have run in the last 30 days.
        """
        if self.jobs is not None and jobs >= self.jobs:
            return f"{self.name} has {jobs} jobs that run or wait, the limit: wait for one or cancel it"
        if self.disk is not None and disk > self.disk:
            return f"{self.name} would have {disk:,} bytes of data and jobs, the limit is {self.disk:,}: delete some"
        if self.hours is not None and hours >= self.hours:
            return f"{self.name} has used {hours:.1f} of {self.hours:g} hours in 30 days: wait, or ask for more"
        return None


class Accounts:
    """The accounts of a file, which is read again when it has changed.

    Args:
        path: of `accounts.json`, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._entries: dict[str, dict[str, Any]] = {}

    def __len__(self) -> int:
        self._refresh()
        return len(self._entries)

    def add(self, account: Account) -> str:
        """Adds an account, or replaces that of the same name, and returns its new token, which nothing else can show.

        Raises:
            UserError: for a wrong name or limit.
        """
        check_name(account.name, "account")
        _check_limits(account)
        token, salt = secrets.token_urlsafe(32), secrets.token_bytes(16)
        entry = {**asdict(account), "salt": salt.hex(), "hash": _hash(salt, token.encode()).hex()}
        del entry["name"]
        self._change(account.name, entry)
        return token

    def remove(self, name: str) -> None:
        """Ends an account and its token; its data and jobs stay.

        Raises:
            UserError: if there is none of that name.
        """
        self._refresh()
        if name not in self._entries:
            raise UserError(f"there is no account {check_name(name, 'account')}")
        self._change(name, None)

    def find(self, token: bytes | None) -> Account | None:
        """Returns the account of a token, None if it is nobody's, in a time that does not depend on whose it is."""
        self._refresh()
        found = None
        for name, entry in self._entries.items():
            given = _hash(bytes.fromhex(entry["salt"]), token or b"")
            if hmac.compare_digest(given, bytes.fromhex(entry["hash"])):
                found = Account(name, entry["jobs"], entry["disk"], entry["hours"])
        return found if token else None

    def _change(self, name: str, entry: dict[str, Any] | None) -> None:
        lock = locks.acquire(self.path.with_name(f"{self.path.name}.lock"), wait=True)
        try:
            self._refresh()
            entries = {other: of for other, of in self._entries.items() if other != name}
            entries |= {} if entry is None else {name: entry}
            with atomic_file(self.path) as temporary:
                temporary.touch(mode=0o600)  # Others on this machine cannot read it.
                temporary.write_text(json.dumps({"accounts": entries}, indent=2) + "\n", encoding="utf-8")
        finally:
            locks.release(lock)

    def _refresh(self) -> None:
        """Reads the file if it has changed.

        Raises:
            UserError: for a damaged file.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._seen, self._entries = None, {}
            return
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen == self._seen:
            return
        try:
            self._entries = _read(json.loads(self.path.read_text(encoding="utf-8")))
        except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{self.path} is damaged: restore it, or remove it and add every account again") from error
        self._seen = seen


def _read(content: Any) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = content["accounts"]
    for name, entry in entries.items():
        check_name(name, "account")
        _check_limits(Account(name, entry["jobs"], entry["disk"], entry["hours"]))
        bytes.fromhex(entry["salt"]), bytes.fromhex(entry["hash"])
    return entries


def _hash(salt: bytes, token: bytes) -> bytes:
    return hmac.digest(salt, token, hashlib.sha256)


def _check_limits(account: Account) -> None:
    for name in ("jobs", "disk", "hours"):
        value = getattr(account, name)
        kinds = int | float if name == "hours" else int
        is_wrong = isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value) or value < 0
        if value is not None and is_wrong:
            raise UserError(f"got {name}={value!r} for account {account.name}, expected a number of at least 0")
