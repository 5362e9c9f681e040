"""Counters for Prometheus."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from distill.serve.models import ServedModel

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass
class Measured:
    """A request whose status is known at the end, and its model once it is read."""

    model: str
    status: int = 500


class Measurements:
    """The counters and histograms, in a registry of their own."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "distill_requests", "Requests by model and status", ("model", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "distill_request_seconds", "Time from a request to its answer in s", ("model",), buckets=SECONDS,
            registry=self.registry,
        )  # fmt: skip
        sizes = Histogram(
            "distill_batch_records", "Records that ran together", ("model",), buckets=SIZES, registry=self.registry
        )
        waiting = Gauge(
            "distill_waiting_requests", "Requests and texts to write in the queue", ("model",), registry=self.registry
        )
        running = Gauge("distill_running_texts", "Texts that are written", ("model",), registry=self.registry)
        steps = Histogram(
            "distill_step_texts", "Texts of a step, which adds a token to each", ("model",), buckets=SIZES,
            registry=self.registry,
        )  # fmt: skip
        tokens = Counter("distill_tokens", "Tokens of texts that have ended", ("model",), registry=self.registry)
        for name, model in models.items():
            waiting.labels(name).set_function(model.waiting)
            model.batcher.sizes.append(sizes.labels(name).observe)
            running.labels(name).set_function(model.scheduler.running)
            model.scheduler.sizes.append(steps.labels(name).observe)
            model.scheduler.lengths.append(tokens.labels(name).inc)

    @contextlib.contextmanager
    def time(self, model: str) -> Iterator[Measured]:
        """Counts a request with its status, and how long it took."""
        measured, started = Measured(model), time.perf_counter()
        try:
            yield measured
        finally:
            self._seconds.labels(measured.model).observe(time.perf_counter() - started)
            self._requests.labels(measured.model, str(measured.status)).inc()
