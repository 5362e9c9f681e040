"""Puts the bundle of a job into the directory that a `distill.serve` of this machine serves."""

import http.client
import json
import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from distill.edge.manifest import NAME, fingerprint, read_manifest
from distill.errors import UserError
from distill.serve.refusals import RefusedError
from distill.storage.files import hash_file, read_checksums

TOKEN = "DISTILL_SERVE_TOKEN"  # Of the server, where it has one.
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
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)
        token = os.environ.get(TOKEN, "").strip()
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request("GET", f"{parts.path}/models", headers=headers)
            models = json.loads(connection.getresponse().read()).get("models")
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return []
        finally:
            connection.close()
        return [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []
