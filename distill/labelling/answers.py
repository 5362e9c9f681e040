"""Answers that were paid for, one line each in a file that is synced before the next, and what they have cost."""

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from distill.core.errors import UserError
from distill.core.files import acquire_lock, make_directory, release_lock


def question_key(request: Mapping[str, object], model: str) -> str:
    """Returns the SHA-256 of all that an answer depends on: the messages with the text, the settings and the model."""
    content = json.dumps([model, request], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class Answer:
    """A reply as it is kept.

    Args:
        key: of its question.
        text: of the reply.
        shares: the probability of each option; None where the server gives none.
        read, written: tokens of the question and of the reply.
        seconds: from the question to the reply.
        refusal: the reason for which the reply has no answer, None for a reply that has one.
    """

    key: str
    text: str
    shares: list[float] | None
    read: int
    written: int
    seconds: float
    refusal: str | None = None


@dataclass(frozen=True)
class Price:
    """Dollars for a million tokens of questions and of replies."""

    input: float
    output: float

    def of(self, read: float, written: float) -> float:
        """Returns the dollars of so many tokens."""
        return (read * self.input + written * self.output) / 1e6


@dataclass
class AnswerFile:
    """The answers of a file by their questions; one process at a time may add some.

    Attributes:
        by_key: the answers to each question in their order.
        read, written: tokens of all questions and of all replies.
        longest: tokens of the longest reply.
        refusals: number of replies without an answer by the reason, to be read when no thread adds one.
        refused: number of these replies.
    """

    path: Path
    by_key: dict[str, list[Answer]] = field(default_factory=dict)
    read: int = 0
    written: int = 0
    longest: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    refused: int = 0

    def __enter__(self) -> Self:
        make_directory(self.path.parent)
        self._lock, self._thread_lock = acquire_lock(self.path), threading.Lock()
        if self._lock is None and os.name != "nt":
            raise UserError(f"{self.path} is written by another process: wait for its end, or set another label.output")
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content.rfind(b"\n") + 1  # What a killed process has written of a line is no answer.
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                self._add(Answer(**json.loads(line)))
            except (ValueError, TypeError):
                raise UserError(f"{self.path}, line {number} is no answer: it was edited, take the line out") from None
        self._file = open(self.path, "ab")
        self._file.truncate(whole)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        release_lock(self._lock)

    def add(self, answer: Answer) -> None:
        """Appends an answer, and returns when it is on the disk."""
        line = json.dumps(vars(answer), ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
        with self._thread_lock:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._add(answer)

    def _add(self, answer: Answer) -> None:
        self.by_key.setdefault(answer.key, []).append(answer)
        self.read += answer.read
        self.written += answer.written
        self.longest = max(self.longest, answer.written)
        if answer.refusal is not None:
            self.refusals[answer.refusal] += 1
            self.refused += 1
