"""Counters for Prometheus, computed when they are asked for."""

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from distill.service.children import Children
from distill.service.queue import Queue, State
from distill.service.usage import count_bytes

SIZES_SECONDS = 300.0  # After which directories are measured again.
FOLDERS = ("data", "jobs", "cache")


class Measurements:
    """The numbers of a service, in a registry of their own.

    Args:
        directory: of the service.
    """

    def __init__(self, directory: Path, queue: Queue, children: Children) -> None:
        self.registry = CollectorRegistry()
        self.requests: Counter[str] = Counter()  # By status.
        self._directory, self._queue, self._children = directory, queue, children
        self._sizes: dict[str, int] = {}
        self._sized = 0.0
        self.registry.register(self)  # type: ignore[arg-type]  # It has the method of a collector.

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        jobs, now = self._queue.jobs(), time.time()
        states = Counter(job.state for job in jobs)
        by_state = GaugeMetricFamily("distill_service_jobs", "Jobs by state", labels=["state"])
        for state in State:
            by_state.add_metric([state], states[state])
        yield by_state
        queued = [job.created for job in jobs if job.state == State.QUEUED]
        yield GaugeMetricFamily("distill_service_queue_length", "Jobs that wait", value=len(queued))
        oldest = now - min(queued) if queued else 0.0
        yield GaugeMetricFamily("distill_service_queue_seconds", "Time that the oldest job waits in s", value=oldest)
        seconds = GaugeMetricFamily("distill_service_job_seconds", "Time of the last attempts in s", labels=["state"])
        for state in State:
            spans = [(job.ended or now) - job.started for job in jobs if job.state == state and job.started is not None]
            seconds.add_metric([state], sum(spans))
        yield seconds
        yield from self._disk()
        children = self._children.running
        yield GaugeMetricFamily("distill_service_children", "Processes that predict", value=children)
        requests = CounterMetricFamily("distill_service_requests", "Requests by status", labels=["status"])
        for status, number in self.requests.items():
            requests.add_metric([status], number)
        yield requests

    def _disk(self) -> Iterator[Metric]:
        if not self._sizes or time.monotonic() - self._sized > SIZES_SECONDS:
            self._sizes = {name: count_bytes(self._directory / name) for name in FOLDERS}
            self._sized = time.monotonic()
        used = GaugeMetricFamily("distill_service_disk_bytes", "Bytes of a folder", labels=["folder"])
        for name, size in self._sizes.items():
            used.add_metric([name], size)
        yield used
        free = shutil.disk_usage(self._directory).free
        yield GaugeMetricFamily("distill_service_disk_free_bytes", "Bytes that are free", value=free)
