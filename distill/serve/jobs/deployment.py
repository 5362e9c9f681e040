"""The bundle of a finished job at work: asked in a child process, or put where a server serves it.

The program `python -m distill.serve.jobs.deployment BUNDLE`: a server of one bundle that ends with its parent. It is
`python -m distill.serve` on a free port of this machine, until its standard input ends.
"""

import asyncio
import http.client
import json
import os
import secrets
import shutil
import signal
import sys
import threading
import time
import uuid
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.responses import Response

from distill.core.errors import UserError
from distill.core.files import hash_file, read_checksums
from distill.edge.bundle_files import NAME, fingerprint, read_manifest
from distill.serve.__main__ import TOKEN, main
from distill.serve.client import Connection
from distill.serve.http import RefusedError

IDLE_SECONDS = 120.0
START_SECONDS = 120.0
MOST = 2  # Children, each with a model in memory; the one that has been idle longest makes room.
LINE = 1_000_000  # Bytes of the last lines of a child that could not start.
ACTIONS = ("predict", "rank", "generate")


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
            sys.executable, "-m", "distill.serve.jobs.deployment", f"bundle={bundle}",
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

    async def ask(self, path: str, body: bytes) -> Response:
        """Returns what the child answers to a request."""
        self.requests += 1
        try:
            return await asyncio.to_thread(self._ask, path, body)
        finally:
            self.requests -= 1
            self.idle_since = asyncio.get_running_loop().time()

    def _ask(self, path: str, body: bytes) -> Response:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)) as connection:
            try:
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                kind = answer.getheader("content-type") or "application/json"
                return Response(answer.read(), answer.status, media_type=kind)
            except (OSError, http.client.HTTPException):
                content = b'{"error": "the child that predicts has ended: try again"}'
                return Response(content, 503, media_type="application/json")

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
    """The children that run.

    Args:
        idle: seconds without a request after which a child ends.

    Attributes:
        running: the children by the directory of their bundle.
    """

    def __init__(self, idle: float = IDLE_SECONDS) -> None:
        self.idle = idle
        self.running: dict[Path, Child] = {}
        self._starting = asyncio.Lock()
        self._ends: set[asyncio.Task[None]] = set()

    async def ask(self, bundle: Path, action: str, body: bytes) -> Response:
        """Returns what the bundle answers, as `distill.serve` does.

        Args:
            action: one of `ACTIONS`.

        Raises:
            RefusedError: if the bundle cannot be served.
        """
        child = await self._find(bundle)
        return await child.ask(f"/{action}", body)

    async def _find(self, bundle: Path) -> Child:
        async with self._starting:  # One after the other, because each loads a model.
            child = self.running.get(bundle)
            if child is not None and child.process.returncode is None:
                return child
            if child is not None:
                del self.running[bundle]
            while len(self.running) >= MOST:
                idle = {path: one for path, one in self.running.items() if not one.requests}
                if not idle:
                    raise RefusedError(503, f"{MOST} other students are tried: try again in a minute")
                await self._remove(min(idle, key=lambda path: idle[path].idle_since))
            child = self.running[bundle] = await Child.start(bundle)
            task = asyncio.create_task(self._end_when_idle(bundle, child))
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)
            return child

    async def _end_when_idle(self, bundle: Path, child: Child) -> None:
        assert child.process.stdout is not None
        reading = asyncio.create_task(child.process.stdout.read())  # What it prints must not fill the pipe.
        while self.running.get(bundle) is child:
            quiet = 0.0 if child.requests else asyncio.get_running_loop().time() - child.idle_since
            if quiet >= self.idle or reading.done():
                await self._remove(bundle)
                return
            await asyncio.wait({reading}, timeout=self.idle - quiet)

    async def _remove(self, bundle: Path) -> None:
        child = self.running.pop(bundle, None)
        if child is not None:
            await child.stop()

    async def forget(self, directory: Path) -> None:
        """Ends the children whose bundles are in a directory, which is going to be removed."""
        for bundle in [bundle for bundle in self.running if bundle.is_relative_to(directory)]:
            await self._remove(bundle)

    async def stop(self) -> None:
        """Ends all children."""
        for bundle in list(self.running):
            await self._remove(bundle)
        for task in list(self._ends):
            task.cancel()


SECONDS = 60.0  # In which a server loads a new bundle.
EVERY_SECONDS = 0.25
ANSWER_SECONDS = 10.0


@dataclass(frozen=True)
class Target:
    """A server with the directory of the bundle that it serves.

    Args:
        url: such as `http://127.0.0.1:8000`.
    """

    url: str
    directory: Path

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Reads `URL=DIRECTORY`.

        Raises:
            UserError: for anything else.
        """
        url, _, directory = text.rpartition("=")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not directory:
            raise UserError(f"got --serve {text}, expected URL=DIRECTORY, such as http://127.0.0.1:8000=path/to/bundle")
        if not (Path(directory) / NAME).is_file():
            raise UserError(f"{directory} is no bundle that a server could serve: it has no {NAME}")
        return cls(url.rstrip("/"), Path(directory).resolve())

    def deploy(self, bundle: Path, *, seconds: float = SECONDS) -> dict[str, object]:
        """Replaces the bundle that is served, and returns the model of `/models` once it is the new one.

        The old bundle is put back if the server does not load the new one.

        Raises:
            RefusedError: if the bundle cannot be read, or the server does not load it in time.
        """
        expected, draft = self._copy(bundle)
        old = self.directory.with_name(f".{self.directory.name}.{uuid.uuid4().hex}")
        try:
            os.rename(self.directory, old)
            os.rename(draft, self.directory)
            model = self._wait(expected, seconds)
            if model is not None:
                return model
            os.rename(self.directory, draft)
            os.rename(old, self.directory)
        finally:
            if not self.directory.exists():
                os.rename(old, self.directory)
            for leftover in (draft, old):
                shutil.rmtree(leftover, ignore_errors=True)
        raise RefusedError(502, f"{self.url} did not load the bundle within {seconds:g} s: the old one is back")

    def _copy(self, bundle: Path) -> tuple[str, Path]:
        """Returns the fingerprint of a bundle, and a complete copy of it beside the directory that is served."""
        draft = self.directory.with_name(f".{self.directory.name}.{uuid.uuid4().hex}")
        try:
            expected = fingerprint(read_manifest(bundle))
            shutil.copytree(bundle, draft)
            checksums = read_checksums(draft) or {}
            wrong = [name for name, digest in checksums.items() if hash_file(draft / name) != digest]
        except (OSError, UserError) as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise RefusedError(409, f"the bundle cannot be copied: {error}") from error
        if wrong:
            shutil.rmtree(draft, ignore_errors=True)
            raise RefusedError(409, f"the bundle is damaged: {wrong[0]} does not have its SHA-256")
        return expected, draft

    def _wait(self, expected: str, seconds: float) -> dict[str, object] | None:
        end = time.monotonic() + seconds
        while True:
            for model in self._list_models():
                if model.get("fingerprint") == expected:
                    return model
            if time.monotonic() >= end:
                return None
            time.sleep(EVERY_SECONDS)

    def _list_models(self) -> list[dict[str, object]]:
        """Returns the models of the server; none if it does not answer."""
        parts, token = urlsplit(self.url), os.environ.get(TOKEN, "").strip()
        url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            with Connection(url, None, timeout=ANSWER_SECONDS).open("GET", "/models", headers=headers) as answer:
                models = json.loads(answer.read()).get("models")
        except (UserError, OSError, ValueError, AttributeError):
            return []
        return [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []


def _end_with_parent() -> None:
    """Stops the server when the service closes the pipe, or has died."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(main([*sys.argv[1:], "--port", "0", "--reload", "0"]))
