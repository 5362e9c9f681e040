"""What every request to the service passes: its host, its origin and its token are checked."""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distill.errors import UserError
from distill.serve.hosts import is_known_host
from distill.serve.refusals import read_bearer, refuse
from distill.service.accounts import LOCAL, Account, Accounts
from distill.service.names import show

OPEN_PATHS = ("/healthz", "/")  # Without a token: they tell nothing of anybody, and the page asks for it.
# An answer is never taken for a page, and no other page reads or frames it.
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class AccessMiddleware:
    """Asks for the host, the origin and the token, and notes the account of a request as `scope["account"]`.

    A request of a page of another address is refused, because a browser sends it without its user's knowledge: its
    `Origin`, or `Sec-Fetch-Site`, tells so. A client that is no browser sends neither.

    Args:
        accounts: whose tokens are asked for.
        is_local: whether only this machine reaches the service: without any account, everybody is the owner `local`.
        hosts: names by which the service may be addressed beside those of loopback; None for any.
    """

    def __init__(self, app: ASGIApp, *, accounts: Accounts, is_local: bool, hosts: Collection[str] | None) -> None:
        self.app, self.accounts, self.is_local, self.hosts = app, accounts, is_local, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # No path takes a WebSocket.
            await self.app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._choose(scope)(scope, receive, send_safely)

    def _choose(self, scope: Scope) -> ASGIApp:
        """Returns the application, or the refusal of a request."""
        headers, host = Headers(scope=scope), Headers(scope=scope).get("host")
        if not is_known_host(host, self.hosts):
            return refuse(403, f"the host {show(host)} is not served: start the service with --allow-host NAME")
        if is_foreign(headers, scope["method"]):
            return refuse(403, f"a page of {show(headers.get('origin') or 'another site')} may not use the service")
        account = self._find_account(scope)
        if isinstance(account, UserError):
            return refuse(503, str(account))
        if account is None and scope["path"] not in OPEN_PATHS:
            return refuse(401, "the bearer token is missing or wrong", {"WWW-Authenticate": "Bearer"})
        scope["account"] = account
        return self.app

    def _find_account(self, scope: Scope) -> Account | UserError | None:
        try:
            is_open = self.is_local and not len(self.accounts)
            return Account(LOCAL) if is_open else self.accounts.find(read_bearer(scope["headers"]))
        except UserError as error:
            return error


def is_foreign(headers: Headers, method: str) -> bool:
    """Returns whether a request comes from a page of another address than the one that is asked.

    A link from another page to one of ours is none, because it only reads.
    """
    origin, host = headers.get("origin"), headers.get("host")
    if origin is not None:
        return host is None or _find_host(origin) != host.lower()
    site = headers.get("sec-fetch-site", "none")
    is_link = method in SAFE_METHODS and headers.get("sec-fetch-mode") == "navigate"
    return site not in ("none", "same-origin") and not is_link


def _find_host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
