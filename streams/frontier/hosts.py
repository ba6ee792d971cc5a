"""Host queues in memory: for each host with waiting URLs, whose turn it is and when it may be asked again.

Only the heads of queues are held; the rest stays in the index on disk. A head is a hint: the row decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from streams.frontier.index import QUEUE, queue_prefix, split_queue_entry
from streams.frontier.rows import HostRow
from streams.frontier.turn import RowReader
from streams.policy.retry import given_up, phase

HEADS = 128
"""Entries read from the index at once."""


@dataclass(slots=True)
class CrawlQueue:
    """The waiting URLs of one crawl on one host, in order: `again` (given back, due again) before the index."""

    prefix: bytes
    again: deque[bytes] = field(default_factory=deque)
    heads: deque[bytes] = field(default_factory=deque)
    cursor: bytes = b""
    exhausted: bool = False

    def note(self, entry: bytes, fingerprint: bytes) -> None:
        """A row was queued in the index under `entry`."""
        if entry <= self.cursor:
            self.again.append(fingerprint)  # more urgent than what was read already
        else:
            self.exhausted = False

    def pop(self, store: RowReader) -> bytes | None:
        """The next fingerprint, None when nothing is queued."""
        if self.again:
            return self.again.popleft()
        if not self.heads and not self.exhausted:
            entries = store.scan(self.prefix, after=self.cursor, limit=HEADS)
            self.exhausted = len(entries) < HEADS
            if entries:
                self.cursor = entries[-1][0]
                self.heads.extend(value for _, value in entries)
        return self.heads.popleft() if self.heads else None


@dataclass(slots=True, eq=False)
class HostQueue:
    """One host: its row, the crawls that wait for it, and its orders that are out. Times in ms."""

    host: str
    row: HostRow
    crawls: dict[str, CrawlQueue] = field(default_factory=dict)
    out: int = 0
    next_at: float = 0.0
    robots_out: str = ""  # the origin whose robots.txt was ordered
    scheduled: bool = False
    delay: float = 0.0  # ms, in force: the strictest of the crawls that wait
    window: int = 1

    def queue(self, crawl: str) -> CrawlQueue:
        """The queue of a crawl, made when first asked for."""
        queue = self.crawls.get(crawl)
        if queue is None:
            queue = self.crawls[crawl] = CrawlQueue(queue_prefix(self.host, crawl))
        return queue

    def rotate(self, crawl: str) -> None:
        """Put a crawl last, so that crawls take turns on a host they share."""
        queue = self.crawls.pop(crawl)
        self.crawls[crawl] = queue

    def free(self, now: int) -> bool:
        """Whether another order may go out once its time has come."""
        return bool(self.crawls) and not self.robots_out and self.out < self._window(now)

    def at(self, now: int) -> float:
        """When the host may be asked next (ms); a host that was given up answers its URLs at once: with a failure."""
        if self.unreachable(now):
            return now
        return max(self.next_at, self.row.not_before, self.row.breaker.until)

    def unreachable(self, now: int) -> bool:
        """Whether its hold budget is spent and no probe is due."""
        return given_up(self.row.breaker, now) and phase(self.row.breaker, now) == "open"

    def _window(self, now: int) -> int:
        """Orders that may be out. An open breaker closes in time, so it narrows the window for the probe only."""
        return self.window if phase(self.row.breaker, now) == "closed" else 1


def waiting_hosts(store: RowReader) -> Iterable[tuple[str, str]]:
    """Each (host, crawl) with a queued URL, found by jumping through the index."""
    after = b""
    while entries := store.scan(QUEUE, after=after, limit=1):
        host, crawl = split_queue_entry(entries[0][0])
        yield host, crawl
        after = queue_prefix(host, crawl) + b"\xff" * 16
