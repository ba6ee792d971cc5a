"""The fetcher's metrics, their labelled children looked up once."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agents.io.http import Answer
    from agents.jobs import Job
    from streams.messages import FetchOutcome
    from streams.metrics import FetchMetrics


class Meter:
    """Counts requests and outcomes."""

    def __init__(self, metrics: FetchMetrics) -> None:
        self._metrics = metrics
        self._requests = cache(metrics.requests.labels)
        self._results = cache(metrics.results.labels)
        self._statuses = cache(metrics.statuses.labels)

    def started(self, waited: float) -> None:
        """An order's first request starts, `waited` seconds after the order was taken."""
        self._metrics.wait_seconds.observe(waited)

    def answered(self, job: Job, answer: Answer) -> None:
        """A request is over."""
        metrics = self._metrics
        self._requests(job.kind).inc()
        if answer.status:
            self._statuses(f"{answer.status // 100}xx").inc()
        metrics.bytes.inc(answer.received)
        metrics.seconds.observe(answer.end - answer.start)
        if answer.truncated:
            metrics.truncated.labels(answer.truncated).inc()
        if answer.body:
            metrics.body_bytes.observe(len(answer.body))

    def concluded(self, outcome: FetchOutcome) -> None:
        """An order is answered."""
        self._results(outcome.result, outcome.failure or "").inc()

    def deferred(self, reason: str) -> None:
        """An order is given back."""
        self._results("deferred", "").inc()
        self._metrics.deferred.labels(reason).inc()

    def joined(self) -> None:
        """An order was repeated."""
        self._metrics.joined.inc()
