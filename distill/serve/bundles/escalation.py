"""Predictions that a served model is least sure of, which are left to a language model at an endpoint."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from distill.core.errors import UserError, first_line
from distill.edge.bundle import Bundle
from distill.edge.decoder import Prediction, Record
from distill.edge.prediction import ESCALATE
from distill.labelling.answers import question_key
from distill.labelling.endpoint import Endpoint
from distill.labelling.forms import OptionForm, read_question

Log = Callable[[str], object]
ESCALATED = "escalated"  # The key of a prediction that says whether the language model has made it.
FAILURES = 5  # One after another, at which nothing is asked for some time.
PAUSE = 30.0  # s for which nothing is asked then.


@dataclass
class Breaker:
    """Says whether an endpoint is asked: not for `PAUSE` after `FAILURES` failures, then once, and then as before."""

    failures: int = 0
    opened: float = 0.0

    def allows(self, now: float) -> bool:
        """Returns whether a request may be sent; behind the pause it lets one through."""
        if self.failures < FAILURES:
            return True
        if now - self.opened < PAUSE:
            return False
        self.opened = now
        return True

    def note(self, now: float, *, is_failure: bool) -> None:
        """Counts a reply or a failure."""
        self.failures = self.failures + 1 if is_failure else 0
        self.opened = now if is_failure else self.opened


class Escalation:
    """Asks the question of `labels.json` about the predictions that a bundle marks.

    A prediction of the language model has `escalated: true` and no probability. Where it has no answer in time,
    the prediction of the student stays.

    Args:
        question: the record of job=label.
        url: of the endpoint.
        share: of dev whose least sure predictions are left to the language model.
        seconds: that a request to the endpoint may take.
        concurrency: number of requests to it at once.
        log: is called with why the language model is not asked for some time, in words.

    Raises:
        UserError: for a record of another kind of question.
    """

    def __init__(
        self, question: Path, url: str, *, share: float, seconds: float, concurrency: int = 8, log: Log = print
    ) -> None:
        form, model = read_question(question)
        if not isinstance(form, OptionForm):
            raise UserError(
                f"{question} has no question for one of several classes, expected the labels of a classifier"
            )
        self.form = form
        self.share, self.seconds, self.source, self.log = share, seconds, question, log
        self.endpoint = Endpoint(url, model, seconds, retries=0)
        self.breaker = Breaker()
        self._threads = ThreadPoolExecutor(concurrency)

    def check(self, bundle: Bundle) -> None:
        """Raises UserError for a bundle that marks no predictions, or has other classes than the question."""
        bundle.predict([], escalate=self.share)
        if self.form.names and set(self.form.names) != set(bundle.manifest["labels"]):
            raise UserError(
                f"{self.source} asks for {', '.join(self.form.names)}, and {bundle.directory} has the classes "
                f"{', '.join(bundle.manifest['labels'])}: give the labels.json of its labels"
            )

    async def improve(
        self, bundle: Bundle, records: Sequence[Record], predictions: Sequence[Prediction]
    ) -> list[Prediction]:
        """Returns the predictions, with those of the language model in the place of the marked ones."""
        loop = asyncio.get_running_loop()
        marked = {
            loop.run_in_executor(self._threads, self._ask, bundle, record): number
            for number, (record, prediction) in enumerate(zip(records, predictions, strict=True))
            if prediction[ESCALATE]
        }
        improved = [{**prediction, ESCALATED: False} for prediction in predictions]
        if marked:
            done, late = await asyncio.wait(marked, timeout=self.seconds)
            for future in late:
                future.cancel()
            for future in done:
                if (found := future.result()) is not None:
                    improved[marked[future]] = {**found, ESCALATE: True, ESCALATED: True}
        return improved

    def stop(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, bundle: Bundle, record: Record) -> Mapping[str, object] | None:
        """Returns the prediction of the language model, None without one."""
        if not self.breaker.allows(time.monotonic()):
            return None
        try:
            example = bundle.decoder.read(record)
            row = self.form.row(example.text, example.pair, example.choices)
            request: dict[str, object] = {"messages": self.form.messages(row), "temperature": 0}
            key = question_key(request, self.endpoint.model)
            reply = self.endpoint.ask(request, self.form.schema(row), key)
            found = self.form.to_prediction(self.form.parse(reply.text, row), row)
        except Exception as error:  # Whatever it is, the student has an answer.
            self.breaker.note(time.monotonic(), is_failure=True)
            if self.breaker.failures == FAILURES:
                self.log(f"{self.endpoint.url} is not asked for {PAUSE:g} s: {first_line(error)}")
            return None
        self.breaker.note(time.monotonic(), is_failure=False)
        return found
