"""Children that predict with the bundles of jobs, each a server of one bundle, which ends when nobody asks it."""

import asyncio
import http.client
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distill.serve.refusals import RefusedError

IDLE_SECONDS = 120.0
START_SECONDS = 120.0
MOST = 2  # Children, each with a model in memory; the one that has been idle longest makes room.
LINE = 1_000_000  # Bytes of the last lines of a child that could not start.
TOKEN = "DISTILL_SERVE_TOKEN"
ACTIONS = ("predict", "rank", "generate")


@dataclass(frozen=True)
class Reply:
    """What a child answered."""

    status: int
    body: bytes
    type: str


class Child:
    """A server of one bundle on a free port of this machine, which asks for a token of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, token: str) -> None:
        self.process, self.port, self.token = process, port, token
        self.requests, self.idle_since = 0, asyncio.get_running_loop().time()

    @classmethod
    async def start(cls, bundle: Path) -> "Child":
        """Starts a child and waits until it can be asked.

        Raises:
            RefusedError: if the bundle cannot be served.
        """
        token = secrets.token_urlsafe(32)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "distill.service.predictor", f"bundle={bundle}",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, TOKEN: token}, start_new_session=True, limit=LINE,
        )  # fmt: skip
        assert process.stdout is not None
        last = b""
        try:
            async with asyncio.timeout(START_SECONDS):
                async for line in process.stdout:
                    last = line
                    if line.startswith(b"serving "):
                        return cls(process, int(line.rpartition(b":")[2]), token)
        except TimeoutError:
            last = b"it took too long to load"
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        reason = last.decode(errors="replace").strip().removeprefix("error: ")
        raise RefusedError(409, f"the bundle cannot be served: {reason.replace(str(bundle), 'it')}")

    async def ask(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Returns what the child answers to a request."""
        self.requests += 1
        try:
            return await asyncio.to_thread(self._ask, path, body, headers)
        finally:
            self.requests -= 1
            self.idle_since = asyncio.get_running_loop().time()

    def _ask(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        try:
            connection.request("POST", path, body, {**headers, "Authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            return Reply(response.status, response.read(), response.getheader("content-type") or "application/json")
        except (OSError, http.client.HTTPException):
            return Reply(503, b'{"error": "the child that predicts has ended: try again"}', "application/json")
        finally:
            connection.close()

    async def stop(self) -> None:
        """Ends the child, after the requests that it has."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), START_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()


class Children:
    """The children that run, by the directory of their bundle.

    Args:
        idle: seconds without a request after which a child ends.
    """

    def __init__(self, idle: float = IDLE_SECONDS) -> None:
        self.idle = idle
        self._children: dict[Path, Child] = {}
        self._starting = asyncio.Lock()
        self._ends: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """The number of children."""
        return len(self._children)

    async def ask(self, bundle: Path, action: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Returns what the bundle answers, as `distill.serve` does.

        Args:
            action: one of `ACTIONS`.

        Raises:
            RefusedError: if the bundle cannot be served.
        """
        child = await self._find(bundle)
        return await child.ask(f"/{action}", body, headers)

    async def _find(self, bundle: Path) -> Child:
        async with self._starting:  # One after the other, because each loads a model.
            child = self._children.get(bundle)
            if child is not None and child.process.returncode is None:
                return child
            if child is not None:
                del self._children[bundle]
            while len(self._children) >= MOST:
                idle = {path: one for path, one in self._children.items() if not one.requests}
                if not idle:
                    raise RefusedError(503, f"{MOST} other students are tried: try again in a minute")
                await self._remove(min(idle, key=lambda path: idle[path].idle_since))
            child = self._children[bundle] = await Child.start(bundle)
            self._watch(bundle, child)
            return child

    def _watch(self, bundle: Path, child: Child) -> None:
        task = asyncio.create_task(self._end_when_idle(bundle, child))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _end_when_idle(self, bundle: Path, child: Child) -> None:
        assert child.process.stdout is not None
        reading = asyncio.create_task(child.process.stdout.read())  # What it prints must not fill the pipe.
        while self._children.get(bundle) is child:
            quiet = 0.0 if child.requests else asyncio.get_running_loop().time() - child.idle_since
            if quiet >= self.idle or reading.done():
                await self._remove(bundle)
                return
            await asyncio.wait({reading}, timeout=self.idle - quiet)

    async def _remove(self, bundle: Path) -> None:
        child = self._children.pop(bundle, None)
        if child is not None:
            await child.stop()

    async def forget(self, directory: Path) -> None:
        """Ends the children whose bundles are in a directory, which is going to be removed."""
        for bundle in [bundle for bundle in self._children if bundle.is_relative_to(directory)]:
            await self._remove(bundle)

    async def stop(self) -> None:
        """Ends all children."""
        for bundle in list(self._children):
            await self._remove(bundle)
        for task in list(self._ends):
            task.cancel()
