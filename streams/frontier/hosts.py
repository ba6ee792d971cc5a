"""Host queues in memory: for each host with waiting URLs, whose turn it is and when it may be asked again.

Only the heads of queues are held; the rest stays in the index on disk. A head is a hint: the row decides.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from streams.frontier.index import QUEUE, REVISITS, queue_end, split_queue_entry
from streams.frontier.rows import HostRow
from streams.frontier.turn import RowReader
from streams.messages import RobotsHop
from streams.policy.in_force import HostAsks
from streams.policy.politeness import Limits
from streams.policy.retry import CLOSED, given_up, phase, set_back

NEVER = float("inf")
IN_LINE = float("-inf")
"""Stands for the time of a host whose time has come: no other is earlier."""
NO_LIMITS = Limits()
NO_ASKS = HostAsks()
SIZE = 16
"""Bytes of a fingerprint."""
HEADS = 16
"""Entries read from the index at once: 100,000 hosts hold them at the same time."""
LOOKAHEAD = 1000.0
"""ms before its turn an order may leave: what Kafka and the fetcher's queue take. The fetcher keeps the gap."""
WINDOWS = 4
"""Orders out for each connection of a host without delay: keeps its connections busy while answers travel."""
Parked = tuple[str, bytes, bool]
"""A URL that is set aside: its crawl, its fingerprint, whether it is visited again."""
PARKED = 128
"""URLs of origins without robots.txt that are set aside in memory; with more the whole host waits."""


@dataclass(slots=True)
class Lane:
    """Waiting URLs of one crawl on one host, in order: `again` (given back, due again) before the index.

    There are as many as hosts with waiting URLs: what is not always needed is made when it is, and fingerprints that
    were read ahead stay joined as they were read: a third of the memory of a list.
    """

    prefix: bytes
    again: deque[bytes] | None = None
    heads: bytes = b""  # fingerprints that were read ahead
    taken: int = 0  # bytes of `heads` that were popped
    start: bytes = b""  # the place behind which `heads` were read
    cursor: bytes = b""  # place of the last entry that was read
    exhausted: bool = False

    def note(self, place: bytes, fingerprint: bytes) -> None:
        """A row was queued in the index at `place`.

        One that belongs among what was read ahead has it read anew: put before all of it, such rows would keep it
        waiting for ever as soon as it holds one of low priority, before which all belong that come from then on.
        """
        at = self.heads.find(fingerprint, 0, self.taken) if self.taken else -1
        if at >= 0 and at % SIZE == 0:  # popped before: it is another entry now
            self.heads, self.taken = self.heads[:at] + self.heads[at + SIZE :], self.taken - SIZE
        if not self.cursor or place > self.cursor:
            self.exhausted = False
        elif self.taken < len(self.heads) and place > self.start:
            self.heads, self.cursor, self.exhausted = self.heads[: self.taken], self.start, False
        else:
            self.give_back(fingerprint)  # more urgent than what was popped already

    def give_back(self, fingerprint: bytes) -> None:
        """A row waits that the index no longer leads to: it was read past it, or the row has a due time."""
        if self.again is None:
            self.again = deque()
        self.again.append(fingerprint)

    def push(self, fingerprint: bytes) -> None:
        """Make a fingerprint that was just popped the next one again."""
        if self.again is None:
            self.again = deque()
        self.again.appendleft(fingerprint)

    def pop(self, store: RowReader) -> bytes | None:
        """The next fingerprint, None when nothing is queued."""
        if self.again:
            return self.again.popleft()
        self._read(store)
        if self.taken >= len(self.heads):
            return None
        begin = self.taken
        fingerprint = self.heads[begin : begin + SIZE]
        self.taken += SIZE
        if self.taken >= len(self.heads):
            self.heads, self.taken = b"", 0
        return fingerprint

    def peek(self, store: RowReader, number: int) -> list[bytes]:
        """Up to `number` of those that are next, so that their rows can be read in one call."""
        if self.again:
            return list(islice(self.again, number))
        self._read(store)
        end = min(len(self.heads), self.taken + SIZE * number)
        return [self.heads[at : at + SIZE] for at in range(self.taken, end, SIZE)]

    def _read(self, store: RowReader) -> None:
        if self.taken < len(self.heads) or self.exhausted:
            return
        # Only where it is read anew: the index may still lead to what was popped.
        popped = {self.heads[at : at + SIZE] for at in range(0, self.taken, SIZE)}
        after = self.prefix + self.cursor if self.cursor else b""
        entries = store.scan(self.prefix, after=after, limit=HEADS + len(popped))
        self.exhausted = len(entries) < HEADS + len(popped)
        self.start = self.cursor
        first = next((at for at, (_, key) in enumerate(entries) if key not in popped), len(entries))
        if first:
            self.start = entries[first - 1][0][len(self.prefix) :]
        known = [key for _, key in entries[first:] if key in popped]
        self.heads = b"".join((*known, *(key for _, key in entries[first:] if key not in popped)))
        self.taken = SIZE * len(known)
        if entries:
            self.cursor = entries[-1][0][len(self.prefix) :]
        if self.taken >= len(self.heads):
            self.heads, self.taken = b"", 0


@dataclass(slots=True)
class CrawlQueue(Lane):
    """All waiting URLs of one crawl on one host: new ones, and in a lane of their own pages that are visited again.

    The lanes take turns, so that neither a long backlog of new URLs nor short intervals starve the other; and pages
    go on while new URLs must wait for a place, however many of these there are.
    """

    revisits: Lane | None = None
    revisited: bool = False  # by the last turn

    def lane(self, *, revisit: bool) -> Lane:
        """Where a URL belongs; the second lane is made when first asked for. `prefix` is that of new URLs."""
        if not revisit:
            return self
        if self.revisits is None:
            self.revisits = Lane(REVISITS + self.prefix[1:])
        return self.revisits

    def take(self, store: RowReader, *, new: bool) -> bytes | None:
        """The next fingerprint, None when nothing is queued that may go. `new`: whether new URLs may."""
        found = None
        if self.revisits is not None and not (new and self.revisited):
            found = self.revisits.pop(store)
        self.revisited = found is not None
        if found is None and new:
            found = self.pop(store)
            if found is None and self.revisits is not None:
                found = self.revisits.pop(store)
        return found

    def ahead(self, store: RowReader, number: int, *, new: bool) -> list[bytes]:
        """Those that are likely to be taken next, up to `number` of each lane."""
        found = self.peek(store, number) if new else []
        return [*found, *self.revisits.peek(store, number)] if self.revisits is not None else found


@dataclass(slots=True, eq=False)
class HostQueue:
    """One host: its row, the crawls that wait for it, and its orders that are out. Times in ms.

    A crawl's queue is in one of three places: `crawls` (something is queued; the next in turn first), `held` (its
    crawl may not go on, or all pages are out that it has left for this host), `idle` (empty; it keeps its cursor, so
    that consumed entries are not read over again).
    """

    host: str
    row: HostRow
    crawls: dict[str, CrawlQueue] = field(default_factory=dict)
    held: dict[str, CrawlQueue] = field(default_factory=dict)
    idle: dict[str, CrawlQueue] = field(default_factory=dict)
    out: dict[str, int] = field(default_factory=dict)  # orders that are out, by crawl
    revisits: dict[str, int] = field(default_factory=dict)  # among them those of pages that hold their places
    robots_out: bool = False
    guests: dict[str, RobotsHop] | None = None  # by origin: robots.txt files of others that lead here
    next_at: float = 0.0  # one delay after the last order
    pace: float = 0.0  # seconds; that delay
    shut_until: float = 0.0  # its time window opens
    learned: float = 0.0  # seconds; the delay that answers taught, finer than in the row
    limits: Limits = NO_LIMITS  # the strictest of the crawls that wait
    asks: HostAsks = NO_ASKS  # what it asks for itself
    parked: list[Parked] = field(default_factory=list)  # wait for an origin's robots.txt
    parked_until: int = 0
    when: float = NEVER  # its time on the agenda

    @property
    def empty(self) -> bool:
        """Whether nothing waits for it and nothing is out."""
        return not (self.crawls or self.held or self.parked or self.out or self.guests or self.robots_out)

    @property
    def guest_crawls(self) -> list[str]:
        """The crawls of its guests."""
        return [hop.crawl for hop in self.guests.values()] if self.guests else []

    @property
    def visitors(self) -> set[str]:
        """The crawls that want something of it, now or later: the strictest of their rules holds."""
        return {*self.crawls, *self.held, *self.out, *(crawl for crawl, _, _ in self.parked), *self.guest_crawls}

    def obey(self, limits: Limits) -> None:
        """Take over the limits in force now; another delay counts from the last order."""
        longer = max(limits.pace - self.limits.pace, -self.pace)
        self.next_at += longer * 1000
        self.pace += longer
        self.limits = limits

    def started(self, crawl: str, now: int, pace: float, *, revisit: bool = False) -> None:
        """An order goes out; the next one may follow after `pace` seconds."""
        self.out[crawl] = self.out.get(crawl, 0) + 1
        if revisit:
            self.revisits[crawl] = self.revisits.get(crawl, 0) + 1
        self.next_at = max(self.next_at, now) + pace * 1000
        self.pace = pace

    def spaced(self, until: float) -> None:
        """The gap after its last request passes at `until`: an order came too early for it."""
        self.next_at = max(self.next_at, until)

    def ended(self, crawl: str, *, revisit: bool = False) -> None:
        """An order is no longer out."""
        for numbers in (self.out, self.revisits) if revisit else (self.out,):
            numbers[crawl] -= 1
            if not numbers[crawl]:
                del numbers[crawl]

    def rotate(self, crawl: str) -> None:
        """Put a crawl last, so that crawls take turns on a host they share."""
        queue = self.crawls.pop(crawl)
        self.crawls[crawl] = queue

    def park(self, url: Parked, until: int) -> None:
        """Set a URL aside until its origin's robots.txt is asked for again."""
        self.parked_until = min(self.parked_until, until) if self.parked else until
        self.parked.append(url)

    def at(self, now: int) -> float:
        """When it is to be looked at next; NEVER: not before something else happens to it."""
        if not self.crawls and not self.guests:
            return self._at_rest()
        if (self.robots_out and not self.guests) or self.room(now) <= 0:
            return NEVER
        if self.unreachable(now):
            return now  # its URLs end at once
        # Only the delay may be anticipated: what the host or its failures ask for must have passed.
        at = max(self.next_at - LOOKAHEAD, self.row.not_before, self.row.breaker.until, self.shut_until)
        return max(at, self.parked_until) if len(self.parked) >= PARKED and not self.guests else at

    def room(self, now: int) -> int:
        """Orders that may still go out. An open breaker closes in time, so it leaves room for the probe only."""
        limits = self.limits
        window = 1
        if phase(self.row.breaker, now) == "closed":
            ahead = int(LOOKAHEAD / (limits.pace * 1000)) + 1 if limits.pace else limits.parallelism * (WINDOWS - 1)
            window = limits.parallelism + ahead
        return window - sum(self.out.values())

    def unreachable(self, now: int) -> bool:
        """Whether its hold budget is spent and no probe is due."""
        return given_up(self.row.breaker, now) and phase(self.row.breaker, now) == "open"

    def clock_went_back(self, by: int) -> None:
        """Times that are counted from now move with it, in the row too; it is written when it next changes."""
        row = self.row
        if row.not_before or row.breaker is not CLOSED:
            not_before = max(0, row.not_before - by)
            self.row = msgspec.structs.replace(row, not_before=not_before, breaker=set_back(row.breaker, by))
        self.next_at -= by
        self.parked_until = max(0, self.parked_until - by)
        self.when = NEVER

    def _at_rest(self) -> float:
        if self.parked:
            return self.parked_until
        return self.next_at if self.empty else NEVER  # then it is forgotten


@dataclass(frozen=True, slots=True)
class Census:
    """Hosts in memory at a moment: `held` all of them, `known` those with something to do.

    `queues`: with waiting URLs, one for each crawl on each host. `late`: ms that the first runnable host has been
    waiting for an order.
    """

    held: int
    queues: int
    known: int
    runnable: int
    broken: int
    late: float


class Agenda:
    """Which host is to be looked at when. A host stands in for its earliest time; looking again costs little.

    Hosts whose time has come wait in line by crawl (the one whose turn it is there), and the crawls take turns: so a
    crawl on many hosts does not keep one on few hosts from the orders that a shard may have out.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, HostQueue]] = []
        self._ticket = 0
        self._lines: dict[str, deque[tuple[float, HostQueue]]] = {}  # whose turn it is first; never an empty line

    def put(self, queue: HostQueue, at: float) -> None:
        """Look at a host at `at` (ms), or earlier if that was asked for before."""
        if at < queue.when:
            queue.when = at
            self._ticket += 1
            heapq.heappush(self._heap, (at, self._ticket, queue))

    def pop(self, now: int) -> HostQueue | None:
        """The next host whose time has come; it leaves the agenda."""
        self._line_up(now)
        if not self._lines:
            return None
        crawl = next(iter(self._lines))
        line = self._lines.pop(crawl)
        _, queue = line.popleft()
        if line:
            self._lines[crawl] = line
        queue.when = NEVER
        return queue

    def next_at(self) -> float:
        """The earliest time, NEVER for an empty agenda."""
        if self._lines:
            return min(line[0][0] for line in self._lines.values())
        return self._waiting_at()

    def due(self, now: int) -> int:
        """Number of hosts whose time has come."""
        waiting = sum(1 for at, _, queue in self._heap if at <= now and queue.when == at)
        return waiting + sum(map(len, self._lines.values()))

    def _line_up(self, now: int) -> None:
        while (at := self._waiting_at()) <= now:
            _, _, queue = heapq.heappop(self._heap)
            queue.when = IN_LINE
            self._lines.setdefault(next(iter(queue.crawls), ""), deque()).append((at, queue))

    def _waiting_at(self) -> float:
        while self._heap and self._heap[0][2].when != self._heap[0][0]:
            heapq.heappop(self._heap)  # an earlier time was put since
        return self._heap[0][0] if self._heap else NEVER


def waiting_hosts(store: RowReader) -> Iterable[tuple[str, str, bool]]:
    """Each (host, crawl, whether of pages visited again) with a queued URL, found by leaping through the index."""
    for kind in (QUEUE, REVISITS):
        for entry in store.leap(kind, queue_end):
            yield *split_queue_entry(entry), kind == REVISITS
