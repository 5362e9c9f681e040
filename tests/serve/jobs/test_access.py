"""Tests of the host, the origin and the token of requests."""

import asyncio
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from distill.serve.http import refuse_path
from distill.serve.jobs.accounts import Account, AccountMiddleware, Accounts


async def tell_account(scope: Scope, receive: Receive, send: Send) -> None:
    account = scope["account"]
    await JSONResponse({"account": account and account.name}, headers={"X-Frame-Options": "SAMEORIGIN"})(
        scope, receive, send
    )


class Asked:
    """A service that tells the account of a request."""

    def __init__(self, accounts: Accounts, *, is_local: bool = True, hosts: Collection[str] | None = ("box",)) -> None:
        self.app = AccountMiddleware(tell_account, accounts=accounts, is_local=is_local, hosts=hosts)

    def get(self, path: str = "/jobs", *, method: str = "GET", **headers: str) -> tuple[int, Any, dict[str, str]]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            sent.append(message)

        pairs = {"host": "127.0.0.1:8080"} | {name.replace("_", "-"): value for name, value in headers.items()}
        scope: Scope = {
            "type": "http", "method": method, "path": path,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in pairs.items()],
        }  # fmt: skip
        asyncio.run(self.app(scope, receive, send))
        answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], json.loads(sent[1]["body"]), answered


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    return Accounts(tmp_path / "accounts.json")


def test_on_this_machine_alone_everybody_is_local_until_there_is_an_account(accounts: Accounts) -> None:
    service = Asked(accounts)
    assert service.get()[:2] == (200, {"account": "local"})
    token = accounts.add(Account("ada"))
    status, body, headers = service.get()
    assert (status, body) == (401, {"error": "the bearer token is missing or wrong"})
    assert headers["www-authenticate"] == "Bearer"
    assert service.get(authorization=f"Bearer {token}")[:2] == (200, {"account": "ada"})
    assert service.get(authorization=f"bearer  {token} ")[:2] == (200, {"account": "ada"})
    for wrong in (f"Basic {token}", token, "Bearer", "Bearer x", f"Bearer {token}x", "Bearer é\xff"):
        assert service.get(authorization=wrong)[0] == 401


def test_beyond_this_machine_nobody_enters_without_an_account(accounts: Accounts) -> None:
    service = Asked(accounts, is_local=False, hosts=None)
    assert service.get(host="anything.example")[0] == 401
    for path in ("/", "/healthz"):
        assert service.get(path)[:2] == (200, {"account": None})
    for path in ("//", "/healthz/", "/jobs", "/data/x", "/metrics", "/docs", "/openapi.json"):
        assert service.get(path)[0] == 401
    token = accounts.add(Account("ada"))
    accounts.path.write_text("{")
    status, body, _ = Asked(accounts).get(authorization=f"Bearer {token}")
    assert status == 503
    assert "is damaged" in body["error"]


def test_other_hosts_are_refused(accounts: Accounts) -> None:
    for host in ("127.0.0.1", "localhost:8080", "BOX:1"):
        assert Asked(accounts).get(host=host)[0] == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "", "\xe9"):
        status, body, headers = Asked(accounts).get(host=host)
        assert status == 403
        assert "is not served: start the service with --allow-host NAME" in body["error"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    assert Asked(accounts).get()[2]["x-frame-options"] == "SAMEORIGIN"  # That of the path itself stays.


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_of_another_address_is_refused(accounts: Accounts, method: str) -> None:
    service = Asked(accounts)
    for origin in (
        "https://evil.example", "http://127.0.0.1:9", "null", "", "http://[", "http://127.0.0.1:8080.evil.example",
    ):  # fmt: skip
        status, body, _ = service.get(method=method, origin=origin)
        assert status == 403, origin
        assert "may not use the service" in body["error"]
    for site in ("cross-site", "same-site", "x"):
        assert service.get(method=method, sec_fetch_site=site)[0] == 403
    assert service.get(method=method, origin="http://127.0.0.1:8080", sec_fetch_site="same-origin")[0] == 200
    assert service.get(method=method, sec_fetch_site="none")[0] == 200
    # A link of another page is followed.
    headers = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert service.get("/", method=method, **headers)[0] == (200 if method == "GET" else 403)


def test_a_reason_is_one_short_line() -> None:
    scope = {
        "type": "http", "method": "GET", "path": f"/a\n\x1c\ud800{'b' * 10_000}", "headers": [], "query_string": b"",
        "server": ("127.0.0.1", 80), "scheme": "http", "root_path": "",
    }  # fmt: skip
    answer = asyncio.run(refuse_path(Request(scope), HTTPException(404)))
    reason = json.loads(bytes(answer.body))["error"]
    assert reason.startswith("GET /a")
    assert len(reason.splitlines()) == 1
    assert len(reason) < 300
