"""The process that listens: it starts, is stopped by a signal, and answers what it has accepted before it ends."""

import asyncio
import contextlib
import math
import signal
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp

from distill.errors import UserError
from distill.serve.protocol import create_protocol
from distill.serve.settings import Limits

DRAIN_SECONDS = 2.0  # For a client with an open connection to send another request, and to be told to close it.
TICK_SECONDS = 0.02
OTHER_FILES = 64  # Open files that are no connections.
KEEP_ALIVE_SECONDS = 75  # Longer than the 60 s of common proxies, which would reuse a connection that we have closed.


class Served(Protocol):
    """The attributes of a service that the server reads and sets."""

    limits: Limits
    is_ready: bool
    log: Any

    @property
    def title(self) -> str:
        """Returns what is served, in words."""
        ...


class Server(uvicorn.Server):
    """A server that does not close a connection over which a request may be on its way.

    After a signal it accepts no connection. The answer to the next request of each open one says that it ends.
    """

    def __init__(self, service: Served, app: ASGIApp, *, host: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                app, host=host, port=port, log_level="warning", access_log=False, server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS, proxy_headers=False, ws="none",
                http=create_protocol(service.limits, most_connections(service.limits.connections)),
                timeout_graceful_shutdown=math.ceil(2 * service.limits.seconds),
            )
        )  # fmt: skip
        self.service = service

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        address = f"[{host}]" if ":" in host else host
        self.service.log(f"serving {self.service.title} at http://{address}:{port}")

    async def shutdown(self, sockets: Any = None) -> None:
        self.service.is_ready = False
        for server in self.servers:
            server.close()
        end = asyncio.get_running_loop().time() + DRAIN_SECONDS
        while self.server_state.connections and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(TICK_SECONDS)
        await super().shutdown(sockets)


def most_connections(most: int) -> int:
    """Returns how many connections may be open, which are files for the system."""
    with contextlib.suppress(ModuleNotFoundError):  # Windows has no limit that a program could read.
        import resource

        most = min(most, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES))
    return most


def run(service: Served, app: ASGIApp, *, host: str, port: int) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Raises:
        UserError: if it cannot listen.
    """
    # uvicorn raises the signal that stopped it once more, and the process would end as if it had been killed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        Server(service, app, host=host, port=port).run()
    except SystemExit as error:  # uvicorn has logged the reason.
        raise UserError(f"cannot listen on {host}, port {port}: choose another --host or --port") from error
