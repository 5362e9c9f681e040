"""The labels of many examples: questions in parallel, limits of cost, votes, and a calibration on gold rows."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from distill.core.errors import Interrupted, UserError
from distill.labelling.answers import Answer, AnswerFile, Price, question_key
from distill.labelling.endpoint import Endpoint, Fault
from distill.labelling.forms import AnswerError, Form, Row
from distill.labelling.probabilities import fit_temperature, label_probabilities, temper

ASKS = 2  # Times that a question is asked whose replies have no answer.
REPLY = 20  # Tokens of a reply before one is known.
IN_A_ROW = 20  # Questions without an answer, one after another, at which the labelling ends.
_GOES_ON = "the answers so far are kept, and the same command goes on"
TRUST = 0.9  # Probability of a label without one, where no gold rows tell.
LEAST_GOLD = 20  # Rows by which probabilities are calibrated.


@dataclass(frozen=True)
class Label:
    """The answer about an example, with the probability of each option `[C]`, or None."""

    answer: Any  # One of the form.
    shares: np.ndarray | None


@dataclass
class Labeller:
    """Asks an endpoint about examples, and keeps every answer.

    Args:
        form: of the questions.
        endpoint: is asked.
        file: of the answers.
        votes: number of answers to a question without probabilities of its own.
        temperature: of votes; a single answer has 0.
        concurrency: number of questions at once.
        price: of the tokens; None if it is not known.
        max_cost: dollars that are spent at most, together with those of earlier commands; None for any.

    Attributes:
        is_over: whether another question could exceed the cost.
    """

    form: Form[Any]
    endpoint: Endpoint
    file: AnswerFile
    votes: int = 1
    temperature: float = 1.0
    concurrency: int = 8
    price: Price | None = None
    max_cost: float | None = None
    is_over: bool = False

    def __post_init__(self) -> None:
        self._lock, self._failed_in_a_row, self._underway, self._last = threading.Lock(), 0, 0.0, ""

    def request(self, row: Row, vote: int = 0) -> dict[str, object]:
        """Returns the messages and the settings of a question."""
        if not vote:
            return {"messages": self.form.messages(row), "temperature": 0}
        return {"messages": self.form.messages(row), "temperature": self.temperature, "seed": vote}

    def key(self, row: Row, vote: int = 0) -> str:
        """Returns the key of a question."""
        return question_key(self.request(row, vote), self.endpoint.model)

    def read(self, row: Row, vote: int = 0) -> Label | None:
        """Returns the kept answer to a question; None without one."""
        for answer in self.file.by_key.get(self.key(row, vote), ()):
            if answer.refusal is None:
                shares = None if answer.shares is None else np.array(answer.shares)
                return Label(self.form.parse(answer.text, row), shares)
        return None

    def answers(self, rows: Iterable[Row]) -> list[Answer]:
        """Returns the kept replies to all questions about examples."""
        keys = (self.key(row, vote) for row in rows for vote in range(self.votes))
        return [answer for key in keys for answer in self.file.by_key.get(key, ())]

    def is_done(self, row: Row) -> bool:
        """Returns whether nothing remains to be asked about an example."""
        return next(self._missing(row), None) is None

    def label(self, row: Row) -> Label | None:
        """Returns the answer about an example, of all votes; None if there is none."""
        labels = [label for vote in range(self.votes) if (label := self.read(row, vote)) is not None]
        if self.votes == 1 or not labels or labels[0].shares is not None:
            return labels[0] if labels else None
        return Label(*self.form.vote([label.answer for label in labels], row))

    def _missing(self, row: Row) -> Iterator[int]:
        """Yields the votes that are to be asked for."""
        for vote in range(self.votes):
            kept = self.file.by_key.get(self.key(row, vote), ())
            if len(kept) < ASKS and all(answer.refusal is not None for answer in kept):
                yield vote
            if any(answer.shares is not None for answer in self.file.by_key.get(self.key(row, vote), ())):
                return  # It has probabilities of its own.

    def cost(self) -> float:
        """Returns the dollars of all answers of the file."""
        return 0.0 if self.price is None else self.price.of(self.file.read, self.file.written)

    def run(self, rows: Sequence[Row], show: Callable[[int, str], None]) -> bool:
        """Asks about examples without an answer; returns whether the cost ended it before the last one.

        Args:
            show: is called with the number of examples done, and the cost and the faults in words.

        Raises:
            UserError: for a key or a model that is not accepted, and a server that fails again and again.
        """
        todo = iter([row for row in {self.key(row): row for row in rows}.values() if not self.is_done(row)])
        done, underway = 0, set[Future[None]]()
        with ThreadPoolExecutor(self.concurrency) as threads:
            try:
                while True:
                    while not self.is_over and len(underway) < self.concurrency and (row := next(todo, None)):
                        underway.add(threads.submit(self._ask_all, row))
                    if not underway:
                        return self.is_over
                    finished, underway = wait(underway, return_when=FIRST_COMPLETED)
                    for future in finished:
                        future.result()
                    done += len(finished)
                    show(done, self._describe())
            except BaseException as error:
                self.endpoint.stop()
                if isinstance(error, KeyboardInterrupt):
                    raise Interrupted(f"interrupted: {_GOES_ON}") from error
                raise

    @contextmanager
    def _spending(self, row: Row) -> Iterator[bool]:
        """Yields whether one more question may be asked, with those that are under way at the cost of their length."""
        cost = 0.0
        with self._lock:
            if self.max_cost is not None and self.price is not None:
                cost = self._expect(row)
                self.is_over = self.is_over or self.cost() + self._underway + cost > self.max_cost
            self._underway += cost
        try:
            yield not self.is_over
        finally:
            with self._lock:
                self._underway -= cost

    def _expect(self, row: Row) -> float:
        """Returns the dollars of a question: a token for every three characters, and the longest reply, or `REPLY`."""
        assert self.price is not None
        length = sum(len(message["content"]) for message in self.form.messages(row))
        return self.price.of(length / 3, self.file.longest or REPLY)

    def count_faults(self) -> Counter[str]:
        """Returns the faults of this process, and the replies of the file that have no answer, by their reason."""
        return self.endpoint.faults() + self.file.refusals

    def _describe(self) -> str:
        faults = self.endpoint.faults().total() + self.file.refused
        cost = "" if self.price is None else f"${self.cost():.4g}"
        return ", ".join(filter(None, (cost, f"{faults:,} faults" if faults else "")))

    def _ask_all(self, row: Row) -> None:
        """Asks for all that is missing about an example."""
        for vote in self._missing(row):
            answer: Answer | None = None
            for _ in range(ASKS - len(self.file.by_key.get(self.key(row, vote), ()))):
                with self._spending(row) as may_ask:
                    if not may_ask:
                        return
                    answer = self._ask(row, vote)
                if answer is None or answer.refusal is None or not answer.read:
                    break
            self._note(None if answer is None else answer.refusal, is_missing=answer is None)
            if answer is None:
                return

    def _ask(self, row: Row, vote: int) -> Answer | None:
        """Asks a question once and keeps the reply; returns None without one."""
        key = self.key(row, vote)
        number = len(self.file.by_key.get(key, ()))
        try:
            reply = self.endpoint.ask(self.request(row, vote), self.form.schema(row), f"{key}-{number}")
        except Fault as fault:
            self._last = str(fault)
            return None
        if self.price is not None and reply.refusal is None and not reply.read:
            raise UserError(
                f"{self.endpoint.url} counts no tokens, so that label.price tells no cost: leave out label.price and "
                "label.max_cost"
            )
        refusal, shares = reply.refusal, None
        try:
            if refusal is None:
                found = self.form.parse(reply.text, row)
                if reply.tokens and (options := self.form.options(row)):
                    shares = label_probabilities(reply.tokens, options, self.form.key, found)
        except AnswerError as error:
            refusal = str(error)
        kept = None if shares is None else shares.tolist()
        answer = Answer(key, reply.text, kept, reply.read, reply.written, reply.seconds, refusal)
        self.file.add(answer)
        return answer

    def _note(self, refusal: str | None, *, is_missing: bool) -> None:
        """Counts questions in a row without an answer, but those that are refused; raises UserError for many."""
        with self._lock:
            if not is_missing and (refusal is None or refusal.startswith("refused")):
                self._failed_in_a_row = 0
                return
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= IN_A_ROW:
                raise UserError(
                    f"{self.endpoint.url} has given no answer to {IN_A_ROW} questions in a row, the last time: "
                    f"{refusal or self._last}; {_GOES_ON}"
                )

    def estimate(self, rows: Sequence[Row]) -> tuple[float, float, float]:
        """Returns the tokens of the questions, those of the replies, and the seconds, for a label of each example.

        The answers that are kept are the sample. The tokens of a question are a line over its characters.
        """
        lengths = np.array([sum(len(message["content"]) for message in self.form.messages(row)) for row in rows])
        kept = {number: self.answers([row]) for number, row in enumerate(rows)}
        sample = [number for number, answers in kept.items() if answers]
        totals = np.array(
            [
                [sum(getattr(one, name) for one in kept[number]) for name in ("read", "written", "seconds")]
                for number in sample
            ]
        )
        base, slope = totals[:, 0].mean(), 0.0
        if len(set(lengths[sample].tolist())) > 1:
            slope, base = np.polyfit(lengths[sample], totals[:, 0], 1)
        written, seconds = (totals[:, 1:].mean(axis=0) * len(rows)).tolist()
        return float((base + slope * lengths).sum()), written, seconds / self.concurrency


@dataclass(frozen=True)
class Calibration:
    """How far the answers can be trusted, by gold rows.

    Args:
        temperature: of probabilities; 1 without gold rows.
        trust: the probability of an answer that has none.
    """

    temperature: float = 1.0
    trust: float | None = None

    @classmethod
    def fit(cls, form: Form[Any], gold: Sequence[tuple[Row, object, Label]]) -> "Calibration":
        """Returns the calibration by gold rows, each with its right answer and that of the model."""
        rows = [(form.options(row), right, label) for row, right, label in gold if form.options(row)]
        if len(rows) < LEAST_GOLD:
            return cls()
        trust = (sum(label.answer == right for _, right, label in rows) + 1) / (len(rows) + 2)
        known = [(options, right, label.shares) for options, right, label in rows if label.shares is not None]
        if len(known) < LEAST_GOLD or len({len(options) for options, _, _ in known}) > 1:
            return cls(trust=trust)
        numbers = np.array([options.index(right) for options, right, _ in known])
        return cls(fit_temperature(np.stack([shares for _, _, shares in known]), numbers), trust)

    def apply(self, form: Form[Any], row: Row, label: Label, *, needs_shares: bool) -> np.ndarray | None:
        """Returns the calibrated probabilities of an answer, `[C]`; None where a hard label is all that there is.

        Args:
            needs_shares: whether other examples have probabilities, so that this one needs some too.
        """
        options = form.options(row)
        if label.shares is not None:
            return temper(label.shares, self.temperature) if options else label.shares
        if not options or (self.trust is None and not needs_shares):
            return None
        trust = TRUST if self.trust is None else self.trust
        shares = np.full(len(options), (1 - trust) / max(1, len(options) - 1))
        shares[options.index(label.answer)] = trust
        return shares


def to_rows(
    form: Form[Any], rows: Iterable[Row], labels: Mapping[int, Label], calibration: Calibration
) -> list[dict[str, object]]:
    """Returns the rows of a file of outputs: the texts of each example that has an answer, and the answer.

    Args:
        labels: by the number of their example.
    """
    needs_shares = any(label.shares is not None for label in labels.values())
    found = []
    for number, row in enumerate(rows):
        if (label := labels.get(number)) is not None:
            shares = calibration.apply(form, row, label, needs_shares=needs_shares)
            found.append({**{name: row[name] for name in form.columns}, **form.columns_of(label.answer, shares, row)})
    return found
