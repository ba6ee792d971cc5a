"""The wire clock: when may a request to a host start (sans-IO).

Gap and parallelism hold at the moment of connecting and for every wire request: page, robots.txt, redirect hop, retry.
Units: seconds; `now` is any clock that never goes back (the fetcher's is CLOCK_BOOTTIME). One `WireClock` serves one
partition of `fetches` for as long as one process owns it. All requests to a politeness key pass through one partition,
so no two clocks ever serve one host at the same time; between two owners lies the quarantine of `WireClock`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

NEVER: Final = float("-inf")
FOREVER: Final = float("inf")
TRAVEL: Final = 0.05
"""A request is taken to reach the site so long after it was sent, or when it was answered, if that is earlier.

Two requests travel for different lengths of time: without this the site may see them closer together than promised.
"""

MEMORY: Final = 3600.0
"""Seconds. A host that was left alone for so long, and for its last gap, is forgotten."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one rule allows a host: `delay` between the starts of two requests, `parallelism` at the same time.

    `random_delay`: up to so much is added to the gap after a request. `jitter`, drawn once for each request by whoever
    makes it, says how much of it: uniform in [0, 1).
    """

    delay: float = 0.0
    parallelism: int = 1
    random_delay: float = 0.0
    jitter: float = 0.0

    @property
    def gap(self) -> float:
        """The delay, and 2 ms because times are reported in whole milliseconds; 0 without a delay."""
        return self.delay + 0.002 if self.delay else 0.0

    @property
    def gap_after(self) -> float:
        """The gap to the next request, with its part of the random delay."""
        return self.gap + self.random_delay * self.jitter

    @property
    def spaced(self) -> bool:
        """Whether requests keep a gap at all."""
        return self.delay > 0 or self.random_delay > 0

    @property
    def pace(self) -> float:
        """The gap to be expected between two requests."""
        return self.delay + self.random_delay / 2


@dataclass(frozen=True, slots=True)
class Start:
    """The request may start now."""


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Not before `at`; FOREVER: not before a running request is sent or ends.

    `spaced`: it is the gap after the last request that lasts so long: with other rules it may be a shorter one.
    """

    at: float
    spaced: bool = False


Decision = Start | WaitUntil
START: Final = Start()
WAIT_FOR_RUNNING: Final = WaitUntil(FOREVER)

Renew = Callable[[], Limits]
"""The limits of a request by the rules as they are now."""


@dataclass(slots=True, eq=False)
class _Request:
    host: _Host
    limits: Limits
    renew: Renew | None
    unsent: bool = True
    over: bool = False


@dataclass(slots=True)
class _Host:
    """One politeness key.

    `last`: when the `latest` request to start did so as the site sees it. `running`: how many requests run under each
    allowed parallelism. `unsent`: how many are still being connected, `unsent_spaced`: how many of those have a delay.
    """

    latest: _Request | None = None
    last: float = NEVER
    held: float = NEVER
    running: dict[int, int] = field(default_factory=dict)
    unsent: int = 0
    unsent_spaced: int = 0

    @property
    def last_gap(self) -> float:
        """What the rule of the latest request asks for after it."""
        return self.latest.limits.gap_after if self.latest is not None else 0.0

    def add(self, request: _Request) -> None:
        limits = request.limits
        self.running[limits.parallelism] = self.running.get(limits.parallelism, 0) + 1
        self.unsent += request.unsent
        self.unsent_spaced += request.unsent and limits.spaced

    def sent(self, request: _Request) -> None:
        if request.unsent:
            request.unsent = False
            self.unsent -= 1
            self.unsent_spaced -= request.limits.spaced

    def remove(self, request: _Request) -> None:
        limits = request.limits
        left = self.running[limits.parallelism] - 1
        if left:
            self.running[limits.parallelism] = left
        else:
            del self.running[limits.parallelism]
        self.unsent -= request.unsent
        self.unsent_spaced -= request.unsent and limits.spaced


class WireClock:
    """Starts, running requests and holds of the hosts of one partition.

    `taken`: when this process took the partition over from an owner that may have sent requests; the default says that
    there was none. Until `taken` + max(delay, `quarantine`) no host gets a request: that owner's last request may have
    started just before, and it needs up to `quarantine` to notice its loss and abort what runs.
    """

    def __init__(self, taken: float = NEVER, quarantine: float = 0.0) -> None:
        self._taken = taken
        self._quarantine = quarantine
        self._hosts: dict[str, _Host] = {}
        self._running: dict[int, _Request] = {}
        self._tickets = 0
        self._prune_at = 1024

    def decide(self, key: str, limits: Limits, now: float) -> Decision:
        """May a request to `key` start now, under `limits`?

        Between two requests the longer of their gaps holds, and at no time run more than each of them allows. While a
        request is being connected its start on the wire is not known yet, so nobody with a delay starts beside it.
        """
        not_before = self._taken + max(limits.gap, self._quarantine)
        host = self._hosts.get(key)
        if host is None:
            return START if not_before <= now else WaitUntil(not_before)
        after_last = self._after_last(host, limits)
        not_before = max(not_before, host.held, after_last)
        if not_before > now:
            return WaitUntil(not_before, spaced=not_before == after_last)
        if host.running and sum(host.running.values()) >= min(limits.parallelism, *host.running):
            return WAIT_FOR_RUNNING
        if host.unsent if limits.spaced else host.unsent_spaced:
            return WAIT_FOR_RUNNING
        return START

    @staticmethod
    def _after_last(host: _Host, limits: Limits) -> float:
        gap = max(host.last_gap, limits.gap)
        return host.last + gap if gap else NEVER

    def start(self, key: str, limits: Limits, now: float, renew: Renew | None = None) -> int:
        """Note that a request to `key` starts now; `decide` has just allowed it. The ticket names it from here on.

        `renew`: asked by `review` for its limits; without it they stay as they are.
        """
        if len(self._hosts) >= self._prune_at:
            self._prune(now)
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = _Host()
        self._tickets += 1
        request = self._running[self._tickets] = _Request(host, limits, renew)
        host.latest, host.last = request, now
        host.add(request)
        return self._tickets

    def sent(self, ticket: int, now: float) -> None:
        """By now its head has surely left: the gap counts from here, whatever connecting took.

        Not to be told before: a busy process may write it a good while after it decided to.
        """
        request = self._running[ticket]
        host = request.host
        host.sent(request)
        host.latest, host.last = request, now + TRAVEL

    def end(self, ticket: int, now: float) -> None:
        """It is over: answered, failed or aborted. One that did not get through may have knocked until now."""
        request = self._running.pop(ticket)
        request.over = True
        host = request.host
        host.remove(request)
        if host.latest is request:
            host.last = now if request.unsent else min(host.last, now)

    def review(self, now: float) -> None:
        """Rules have changed: those of now hold for requests that run, and for gaps that have not passed yet.

        So a shorter delay does not wait for the end of a longer one, and a longer one counts from the last request.
        What hosts asked for (`hold`) stays as it is.
        """
        for request in self._running.values():
            if request.renew is not None:
                request.host.remove(request)
                request.limits = request.renew()
                request.host.add(request)
        for host in self._hosts.values():
            latest = host.latest
            if latest is None or latest.renew is None or not latest.over:
                continue
            if host.last + latest.limits.gap_after > now:
                latest.limits = latest.renew()

    def hold(self, key: str, until: float) -> None:
        """The host asked to be left alone (429 or 503 with Retry-After). A hold is never shortened."""
        host = self._hosts.setdefault(key, _Host())
        host.held = max(host.held, until)

    def held_until(self, key: str) -> float:
        """When the host may be asked again by its own word; `NEVER` has passed: it has not asked to be left alone."""
        host = self._hosts.get(key)
        return host.held if host is not None else NEVER

    def _prune(self, now: float) -> None:
        self._hosts = {
            key: host
            for key, host in self._hosts.items()
            if host.running or max(host.last + max(host.last_gap, MEMORY), host.held + MEMORY) > now
        }  # fmt: skip
        self._prune_at = max(1024, 2 * len(self._hosts))
