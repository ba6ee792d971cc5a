"""What the log of wire requests proves: per host the gap between starts, requests at a time, and waits asked for.

The log is `inbox`: every outcome lists the requests that went out for it, as their fetcher timed them. Checked for each
politeness key, its requests in the order of their starts:

- **gap**: two requests in a row start no closer together than the longer of the delays that were in force for them;
  after a change of its crawl's definition the former one asks for no more than the kindest version since;
- **parallelism**: at no time run more than each running request's rules allow;
- **hold**: after an answer 429 or 5xx with `Retry-After` no request starts before the time it names has passed;
- **rules**: no request was sent under kinder rules than its crawl's definition and its host's robots.txt ask for.

What is not in the log cannot be checked: requests of a fetcher that was killed before it could report them, and what
was trimmed. Times are ms of the fetcher's wall clock, so between two fetchers their clocks' difference is allowed for
(`clocks`); of one fetcher's own times only their rounding is. Durations are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Literal

from streams.messages import FetchOutcome
from streams.policy.politeness import Limits

Rule = Literal["gap", "parallelism", "hold", "rules"]

NOTHING: Final = Limits(0.0, 0)
"""Nothing is owed, as far as the log knows."""

ROUNDING: Final = 2
"""ms: both ends of a span are whole milliseconds."""

KEPT: Final = 5
"""Offences of one host that are kept for printing; all are counted."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One wire request. `parallelism` 0: its fetcher did not tell. `hold`: the `Retry-After` of its answer.

    `owed_*`: what definition and robots.txt ask for, as far as the log still knows them (0: nothing known).
    `replaced`: when another version of its crawl's definition came into the log (ms; 0: none has); then it asks of
    later requests for no more than `later_*`, the least that a version since asks for.
    """

    host: str
    start: int
    end: int
    fetcher: str
    url: str
    crawl: str = ""
    status: int = 0
    delay: float = 0.0
    parallelism: int = 0
    hold: float = 0.0
    owed_delay: float = 0.0
    owed_parallelism: int = 0
    replaced: int = 0
    later_delay: float = 0.0
    later_parallelism: int = 0

    def asks(self, at: int) -> tuple[float, int]:
        """Delay and parallelism that it asks of a request at `at` (ms)."""
        return self._since(at, self.delay, self.parallelism)

    def owed(self, at: int) -> tuple[float, int]:
        """Delay and parallelism that it owed if it was sent at `at` (ms): an outcome names the first version only."""
        return self._since(at, self.owed_delay, self.owed_parallelism)

    def _since(self, at: int, delay: float, parallelism: int) -> tuple[float, int]:
        if not self.replaced or at < self.replaced:
            return delay, parallelism
        return min(delay, self.later_delay), max(parallelism, self.later_parallelism)

    @property
    def identity(self) -> tuple[str, str, int, int]:
        """An outcome may be told twice, its requests with it."""
        return (self.fetcher, self.url, self.start, self.end)


@dataclass(frozen=True, slots=True)
class Offence:
    """A broken rule: what was `found` where `allowed` is the limit (seconds, or a number of requests).

    `earlier` is the request that set the limit; for rule `rules` it is the offender itself.
    """

    rule: Rule
    host: str
    earlier: Sent
    later: Sent
    found: float
    allowed: float


@dataclass(slots=True)
class HostReport:
    """What was proven about one host. `gap`: between the two requests that came nearest to `delay`, their limit."""

    host: str
    requests: int = 0
    gap: float | None = None
    delay: float = 0.0
    parallel: int = 0
    parallelism: int = 0  # allowed when `parallel` ran
    holds: int = 0
    fetchers: set[str] = field(default_factory=set)
    offences: list[Offence] = field(default_factory=list)
    broken: dict[Rule, int] = field(default_factory=dict)

    @property
    def margin(self) -> float:
        """Seconds by which the tightest gap was longer than it had to be; infinite where there was no delay."""
        return self.gap - self.delay if self.gap is not None and self.delay else float("inf")


@dataclass(frozen=True, slots=True)
class Owed:
    """What the requests of an outcome owe by the definition they were sent under, and by those that `replaced` it."""

    limits: Limits
    replaced: int = 0
    later: Limits = NOTHING


def requests_of(outcome: FetchOutcome, owed: Owed) -> Iterator[Sent]:
    """The requests that an outcome reports; its `Retry-After` belongs to the last one."""
    last = len(outcome.requests) - 1
    for number, request in enumerate(outcome.requests):
        asked = number == last and outcome.result != "deferred" and _may_hold(request.status)
        yield Sent(
            host=request.host,
            start=request.start,
            end=request.end,
            fetcher=request.fetcher,
            url=request.url,
            crawl=outcome.crawl,
            status=request.status,
            delay=request.delay,
            parallelism=request.parallelism,
            hold=(outcome.retry_after or 0.0) if asked else 0.0,
            owed_delay=owed.limits.delay,
            owed_parallelism=owed.limits.parallelism,
            replaced=owed.replaced,
            later_delay=owed.later.delay,
            later_parallelism=owed.later.parallelism,
        )


def _may_hold(status: int) -> bool:
    return status == 429 or 500 <= status < 600


def audit(requests: Iterable[Sent], clocks: float = 0.0) -> Iterator[HostReport]:
    """A report for each host. `requests` by host, start, end; `clocks`: seconds two fetchers' clocks may differ."""
    for host, sent in groupby(requests, key=lambda request: request.host):
        watch = _Watch(HostReport(host), max(ROUNDING, round(clocks * 1000)))
        for request in sent:
            watch.take(request)
        yield watch.report


class _Watch:
    """One host: holds what still runs and what still has to be waited for, never all its requests."""

    def __init__(self, report: HostReport, clocks: int) -> None:
        self.report = report
        self._clocks = clocks
        self._last: Sent | None = None
        self._running: list[Sent] = []
        self._holds: list[Sent] = []

    def take(self, request: Sent) -> None:
        """The next request."""
        if self._last is not None and self._last.identity == request.identity:
            return
        self.report.requests += 1
        self.report.fetchers.add(request.fetcher)
        self._rules(request)
        self._gap(request)
        self._parallelism(request)
        self._hold(request)
        self._last = request

    def _slack(self, one: Sent, other: Sent) -> int:
        return ROUNDING if one.fetcher == other.fetcher else self._clocks

    def _rules(self, request: Sent) -> None:
        owed_delay, most = request.owed(request.start + self._clocks)
        if request.parallelism and request.delay < owed_delay:
            self._offence("rules", request, request, request.delay, owed_delay)
        if most and request.parallelism > most:
            self._offence("rules", request, request, request.parallelism, most)

    def _gap(self, request: Sent) -> None:
        last = self._last
        if last is None:
            return
        gap = (request.start - last.start) / 1000
        allowed = max(last.asks(request.start + self._slack(last, request))[0], request.delay)
        report = self.report
        if report.gap is None or (gap - allowed, gap) < (report.gap - report.delay, report.gap):
            report.gap, report.delay = gap, allowed
        if gap * 1000 + self._slack(last, request) < allowed * 1000:
            self._offence("gap", last, request, gap, allowed)

    def _parallelism(self, request: Sent) -> None:
        self._running = [other for other in self._running if other.end > request.start + self._slack(other, request)]
        self._running.append(request)
        limits = [
            other.asks(request.start + self._slack(other, request))[1] for other in self._running if other.parallelism
        ]
        most, number = min(limits, default=0), len(self._running)
        if number > self.report.parallel:
            self.report.parallel, self.report.parallelism = number, most
        if most and number > most:
            self._offence("parallelism", self._running[0], request, number, most)

    def _hold(self, request: Sent) -> None:
        self._holds = [other for other in self._holds if other.end + other.hold * 1000 > request.start]
        for other in self._holds:
            slack = self._slack(other, request)
            waited = request.start - other.end
            if slack < waited < other.hold * 1000 - slack:
                self._offence("hold", other, request, waited / 1000, other.hold)
                break
        if request.hold:
            self.report.holds += 1
            self._holds.append(request)

    def _offence(self, rule: Rule, earlier: Sent, later: Sent, found: float, allowed: float) -> None:
        self.report.broken[rule] = self.report.broken.get(rule, 0) + 1
        if len(self.report.offences) < KEPT:
            self.report.offences.append(Offence(rule, self.report.host, earlier, later, found, allowed))
