"""Crawls that are over (limit reached, deadline passed, ended): their waiting URLs are excluded at once.

At once means: not only when a host could be asked again, which after a `Retry-After` may be a day later. Nothing goes
out for them, so neither the hosts' times nor the number of orders out matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from streams.frontier.budgets import ABOUT_PAGES
from streams.frontier.gates import Gates
from streams.frontier.hosts import HostQueue
from streams.frontier.index import DUE
from streams.frontier.queues import HostQueues
from streams.frontier.released import Released
from streams.frontier.rows import State, UrlRow
from streams.frontier.turn import RowReader, Turn

SWEEP = 1000
"""Rows with a due time looked at in one turn."""


class Closing:
    """Excludes what still waits of crawls that are over. Orders that are out are waited for."""

    def __init__(self, store: RowReader, gates: Gates, released: Released) -> None:
        self._store = store
        self._gates = gates
        self._released = released
        self._sweeps: dict[str, bytes | None] = {}  # cursor through the due rows, None when all were seen
        self._hosts: dict[HostQueue, None] = {}

    @property
    def busy(self) -> bool:
        """Whether the next turn has something to exclude."""
        return bool(self._hosts) or any(cursor is not None for cursor in self._sweeps.values())

    def queued(self, queue: HostQueue, crawl_id: str, *, revisit: bool = False) -> None:
        """A URL was queued: if its crawl is over, or has nothing left for its host, it does not wait for that."""
        rule = self._gates.over_at(queue.row, crawl_id)
        if rule and not (revisit and rule in ABOUT_PAGES):
            self._hosts[queue] = None

    def begin(self, hosts: Mapping[str, HostQueue]) -> None:
        """A turn begins, the gates have looked: which crawls are over that were not before?"""
        over = self._gates.over
        for crawl_id in self._sweeps.keys() - over.keys():
            del self._sweeps[crawl_id]
        new = [crawl_id for crawl_id in over if crawl_id not in self._sweeps]
        if new:
            self._sweeps.update((crawl_id, b"") for crawl_id in new)
            self._hosts.update((queue, None) for queue in hosts.values() if _concerns(queue, new))

    def waiting(self) -> Iterator[HostQueue]:
        """The hosts on which crawls that are over have URLs queued; each is taken."""
        while self._hosts:
            queue = next(iter(self._hosts))
            del self._hosts[queue]
            yield queue

    def again(self, queue: HostQueue) -> None:
        """A host was not finished."""
        self._hosts[queue] = None

    def sweep(self, turn: Turn) -> None:
        """Exclude rows that wait for a time (retries)."""
        for crawl_id, cursor in self._sweeps.items():
            if cursor is None:
                continue
            entries = self._store.scan(DUE, after=cursor, limit=SWEEP)
            fingerprints = [entry[9:] for entry, _ in entries]
            turn.load(fingerprints)
            for fingerprint in fingerprints:
                row = turn.url(fingerprint)
                if row is not None and row.crawl == crawl_id and (rule := self._gates.keeps_out(row)):
                    self.exclude(turn, fingerprint, row, rule)
            self._sweeps[crawl_id] = entries[-1][0] if len(entries) == SWEEP else None

    def drop(self, turn: Turn, queues: HostQueues, queue: HostQueue, crawl_id: str, rule: str, most: int) -> int:
        """Exclude up to `most` URLs of a crawl that is over on one host; returns the number looked at."""
        waiting = queue.crawls[crawl_id]
        for steps in range(1, most + 1):
            fingerprint = waiting.pop(self._store) if rule in ABOUT_PAGES else waiting.take(self._store, new=True)
            if fingerprint is None:
                if not waiting.ahead(self._store, 1, new=False):
                    queues.emptied(queue, crawl_id)
                return steps
            row = turn.url(fingerprint)
            if row is not None:
                self.exclude(turn, fingerprint, row, rule)
        return max(most, 0)

    def exclude(self, turn: Turn, fingerprint: bytes, row: UrlRow, rule: str) -> None:
        """End the visit of a URL that still waits and of which no order is out."""
        if row.state is State.WAITING and fingerprint not in self._released:
            turn.put(fingerprint, excluded(row, rule, turn.now))


def excluded(row: UrlRow, rule: str, now: int) -> UrlRow:
    """The row after a rule kept it out."""
    return msgspec.structs.replace(row, state=State.EXCLUDED, outcome=rule, visited=now, due=0)


def _concerns(queue: HostQueue, crawls: Iterable[str]) -> bool:
    return bool(queue.parked) or any(crawl in queue.crawls or crawl in queue.held for crawl in crawls)
