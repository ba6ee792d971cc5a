"""What answers mean for their host: how long to leave it alone, whether it is down, how often it may be asked.

All of it stands in the host's row, so that a restart or another owner makes no early request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streams.definitions import CrawlDefinition
from streams.frontier.history import noted
from streams.frontier.hosts import HostQueue
from streams.frontier.queues import HostQueues
from streams.frontier.turn import Turn
from streams.messages import FetchOutcome
from streams.policy import pace
from streams.policy.retry import HostEffect, breaker_after, patience, pause_after, rule_for


class HostEffects:
    """Applies answers to host rows."""

    def __init__(self, queues: HostQueues, crawls: Mapping[str, CrawlDefinition]) -> None:
        self._queues = queues
        self._crawls = crawls

    def hold(self, turn: Turn, host: str, seconds: float) -> None:
        """The host asks to be left alone (`Retry-After`), or the fetcher must leave it alone for so long."""
        queue = self._queues.host(turn, host)
        until = turn.now + round(seconds * 1000)
        if until > queue.row.not_before:
            self._queues.keep(turn, queue, not_before=until)

    def weigh(self, turn: Turn, outcome: FetchOutcome, host: str) -> None:
        """Take in one answer, once: a replay means nothing."""
        queue = self._queues.host(turn, host)
        effect: HostEffect = "none"
        if outcome.failure is not None:
            effect = rule_for(outcome.failure, outcome.status).host_effect
        changes = self._breaker(queue, outcome, effect, turn.now)
        crawl = self._crawls.get(outcome.crawl)
        if crawl is not None and crawl.adaptive_delay:
            changes |= _learned(queue, outcome, effect, crawl.delay)
        if changes:
            self._queues.keep(turn, queue, **changes)
            self._queues.schedule(queue, turn.now)

    def weigh_robots(self, turn: Turn, outcome: FetchOutcome, host: str, *, guest: bool) -> None:
        """The same for a robots.txt.

        While the breaker is closed, failures of the host's own files do not feed it: they have a budget of their own
        (`streams.frontier.robots`). Those of files that were redirected here have none.
        """
        if guest or outcome.failure is None or self._queues.host(turn, host).row.breaker.since:
            self.weigh(turn, outcome, host)
        else:  # the row is written with what became of the file
            queue = self._queues.host(turn, host)
            self._queues.keep(turn, queue, recent=noted(queue.row, outcome, turn.now))

    @staticmethod
    def _breaker(queue: HostQueue, outcome: FetchOutcome, effect: HostEffect, now: int) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        row = queue.row
        hold = patience(outcome.failure, outcome.evidence).hold
        breaker = breaker_after(row.breaker, effect == "none", now, hold)
        if breaker != row.breaker:
            changes["breaker"] = breaker
            if effect != "none":
                changes["recent"] = noted(row, outcome, now)
        if effect == "slow" and not outcome.retry_after:
            until = now + round(pause_after(breaker) * 1000)
            if until > row.not_before:
                changes["not_before"] = until
        return changes


def _learned(queue: HostQueue, outcome: FetchOutcome, effect: HostEffect, rule: float) -> dict[str, Any]:
    """Move the delay in memory; into the row it goes only when it has moved by enough."""
    if effect == "slow":
        queue.learned = pace.after_overload(queue.learned, rule)
    elif outcome.result in ("fetched", "unchanged") and outcome.kind == "page":
        queue.learned = pace.after_success(queue.learned, rule, outcome.elapsed)
    return {"delay": queue.learned} if pace.moved_enough(queue.row.delay, queue.learned) else {}
