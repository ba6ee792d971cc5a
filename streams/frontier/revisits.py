"""URLs that come back: each visit that ends plans the next one, and when its time has come the row opens it itself.

The time stands in the row (`due`) and in the index, so neither a restart nor a replay changes it. Whatever ended a
visit, the URL comes back: a failure or a redirect may be over by then, and robots.txt may allow it; only what the
crawl's own rules keep out does not. Until then the row keeps what the last good visit found.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import msgspec

from streams.definitions import CrawlDefinition, Recrawl
from streams.frontier.budgets import PAGES
from streams.frontier.candidates import next_visit
from streams.frontier.due import DueRows
from streams.frontier.gates import Gates
from streams.frontier.index import COMING_BACK
from streams.frontier.rows import State, UrlRow
from streams.frontier.tally import Tallies
from streams.frontier.turn import RowReader, Turn
from streams.policy.recrawl import News, plan, visits_left

LOOK_AGAIN = 1000
"""ms after which a row is looked at again whose crawl is not known yet."""
UNCHANGED = 304
PLAIN = Recrawl()
"""What holds beside the interval where only limit rules ask for recrawls."""


class Revisits:
    """The rows of a shard whose next visit is due at a known time."""

    def __init__(self, store: RowReader, crawls: Mapping[str, CrawlDefinition], gates: Gates, tallies: Tallies) -> None:
        self.over: frozenset[str] = frozenset()
        """Crawls with rows that would come back, and will not: their end does not wait for these."""
        self._crawls = crawls
        self._gates = gates
        self._tallies = tallies
        self._due = DueRows(store, COMING_BACK)
        self._later: list[tuple[int, bytes]] = []  # a heap

    def plan(self, turn: Turn) -> None:
        """Plan what follows the visits that ended in this turn, and take note of what came to wait for a time."""
        for fingerprint, before in turn.ended.items():
            row = turn.url(fingerprint)
            if row is None or row.open:
                continue
            crawl = self._crawls.get(row.crawl)
            if crawl is not None and may_recrawl(crawl) and _comes_back(row):
                turn.put(fingerprint, self._planned(row, before, crawl, turn.now))
        for fingerprint, row in turn.changed.items():
            if row.due and not row.open:
                self._due.note(row.due, fingerprint)

    def open(self, turn: Turn) -> None:
        """Open the visits whose time has come."""
        fingerprints = self._due.take(turn.now)
        while self._later and self._later[0][0] <= turn.now:
            fingerprints.append(heapq.heappop(self._later)[1])
        turn.load(fingerprints)
        for fingerprint in fingerprints:
            row = turn.url(fingerprint)
            if row is not None and row.due and not row.open:
                self._open(turn, fingerprint, row)
        self.over = frozenset(name for name, tally in self._tallies.items()
                              if tally.due and not self._may_come_back(name, turn.now))  # fmt: skip

    def next_at(self) -> float:
        """When the next visit is due (ms)."""
        return min(self._due.next_at(), self._later[0][0] if self._later else float("inf"))

    def _open(self, turn: Turn, fingerprint: bytes, row: UrlRow) -> None:
        crawl = self._crawls.get(row.crawl)
        if crawl is None or row.due > turn.now:  # not read yet; or the clock was set back
            heapq.heappush(self._later, (max(row.due, turn.now + LOOK_AGAIN), fingerprint))
        elif self._may_come_back(row.crawl, turn.now) and visits_left(crawl.recrawl or PLAIN, row.visit):
            turn.tallies[row.crawl].activity += 1
            # Its own `seq` still tells it from all others; where it stands in its queue is decided by `arrived`.
            again = next_visit(row, row.seq, turn.now, row.depth, row.priority)
            turn.put(fingerprint, msgspec.structs.replace(again, traceparent=""))
        else:
            turn.put(fingerprint, msgspec.structs.replace(row, due=0))

    def _may_come_back(self, crawl_id: str, now: int) -> bool:
        """Whether a crawl still opens visits: not without a recrawl, and not when it is over.

        Its page limit does not count: it is about how many pages there are, not about how often they are visited.
        """
        crawl = self._crawls.get(crawl_id)
        if crawl is None:
            return True
        return may_recrawl(crawl) and self._gates.rule(crawl, now) in ("", PAGES)

    def _planned(self, row: UrlRow, before: UrlRow | None, crawl: CrawlDefinition, now: int) -> UrlRow:
        """The row with its next visit, if one is to follow: a limit rule may say so for some URLs only."""
        news = _news(row, before)
        interval, due = row.interval, 0
        start = self._gates.rules.of(crawl).for_url(row.url).recrawl
        if start is not None:
            interval, due = plan(
                crawl.recrawl or PLAIN, visit=row.visit, interval=row.interval, news=news, now=now, start=start
            )  # fmt: skip
        changed = now if news in ("first", "changed") else row.changed
        return msgspec.structs.replace(row, interval=interval, due=due, changed=changed)


def may_recrawl(crawl: CrawlDefinition) -> bool:
    """Whether any URL of a crawl comes back."""
    return crawl.recrawl is not None or any(rule.recrawl is not None for rule in crawl.limits)


def _comes_back(row: UrlRow) -> bool:
    """Whether a URL whose visit has ended so is worth another one."""
    return row.state is not State.EXCLUDED or row.outcome == "robots"


def _news(row: UrlRow, before: UrlRow | None) -> News:
    if row.state is not State.DONE:
        return "failed"
    if row.status == UNCHANGED:
        return "unchanged"
    if before is None or not before.content:
        return "first"
    return "unchanged" if row.content == before.content else "changed"
