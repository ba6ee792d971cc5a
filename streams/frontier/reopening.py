"""URLs that a rule kept out come back when a new version of their crawl's definition lifts that rule.

Excluded rows have index entries by crawl and rule, in the order of their queues. When what bounds a crawl has changed,
they are walked through in bounded steps: what nothing keeps out any more gets another visit, in its old place. A walk
stops to wait while enough URLs of the crawl wait already, so raising a page limit by a hundred does not bring back ten
million; it is over when everything was looked at, or when a budget of the crawl is used up once more.

The bounds by which all excluded rows of a crawl were judged last are a row of their own: so a change that was made
while nobody owned the shard is seen by the next owner. As long as a walk goes on, the crawl counts one more open URL in
this shard, for it must not end meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from streams.definitions import CrawlDefinition
from streams.frontier.budgets import PAGES, over_on_host
from streams.frontier.candidates import ruled_out
from streams.frontier.gates import Gates
from streams.frontier.index import comes_back, excluded_prefix
from streams.frontier.novelty import no_news
from streams.frontier.rows import CRAWL_KEY, HostRow, State, UrlRow
from streams.frontier.tally import Tallies
from streams.frontier.turn import RowReader, Turn

STEP = 500
"""Rows looked at in one turn."""
ENOUGH = 2000
"""Waiting URLs of a crawl in a shard beside which no more are brought back."""
ALL = 100_000
"""More crawls than there are."""


@dataclass(slots=True)
class Walk:
    """Through the excluded rows of a crawl: the rules that are left, the first one from `cursor` on."""

    bounds: bytes
    rules: list[str]
    cursor: bytes = b""


class Reopening:
    """The walks of one shard."""

    def __init__(self, store: RowReader, crawls: Mapping[str, CrawlDefinition], tallies: Tallies, gates: Gates) -> None:
        self._store = store
        self._crawls = crawls
        self._tallies = tallies
        self._gates = gates
        self._seen: dict[str, CrawlDefinition] = {}
        self._judged = {key[1:].decode(): value for key, value in store.rows(CRAWL_KEY, limit=ALL)}
        self._walks: dict[str, Walk] = {}
        self.busy = False
        """Whether the next turn has something to look at."""

    def run(self, turn: Turn) -> None:
        """One step of each walk."""
        self._look()
        self.busy = False
        for crawl_id in list(self._walks):
            crawl = self._crawls.get(crawl_id)
            if crawl is None or crawl.state == "ended" or self._gates.rule(crawl, turn.now):
                self._end(turn, crawl_id)
            elif crawl.state != "paused" and self._tallies[crawl_id].states[State.WAITING] < ENOUGH:
                self._step(turn, crawl)

    def refill(self, turn: Turn) -> None:
        """Places that turn out to be free at the end of a turn go to URLs that the page limit kept out, in their order.

        A place is free when a page is gone, or when a URL for which it was meant has ended without one. It goes to a
        URL of the shard on which that happened, and in the batch in which it did: so no two shards give it away, and
        no crash loses it.
        """
        ended = Counter(row.crawl for key in turn.ended if (row := turn.url(key)) is not None and not row.counted)
        for crawl_id, number in ended.items():
            crawl = self._crawls.get(crawl_id)
            if crawl is None or not self._tallies[crawl_id].exclusions[PAGES]:
                continue
            if vacant := min(number, self._gates.vacant(crawl)):
                self._bring_back(turn, crawl, PAGES, b"", vacant)

    @property
    def waiting(self) -> int:
        """Walks that are not over."""
        return len(self._walks)

    def _look(self) -> None:
        """Begin a walk for each crawl of which other bounds hold than when its rows were judged last."""
        for crawl_id, tally in self._tallies.items():
            crawl = self._crawls.get(crawl_id)
            if crawl is None or crawl is self._seen.get(crawl_id):
                continue
            self._seen[crawl_id] = crawl
            bounds = bounds_digest(crawl)
            if crawl.state == "ended" or self._judged.get(crawl_id) == bounds:
                continue
            if rules := [rule for rule, number in tally.exclusions.items() if number and comes_back(rule)]:
                self._walks[crawl_id] = Walk(bounds, rules)
                tally.reopening = True
            else:
                self._judged[crawl_id] = bounds

    def _step(self, turn: Turn, crawl: CrawlDefinition) -> None:
        walk = self._walks[crawl.id]
        walk.cursor = self._bring_back(turn, crawl, walk.rules[0], walk.cursor, STEP)
        if not walk.cursor:
            walk.rules.pop(0)
        self.busy = True
        if not walk.rules:
            self._end(turn, crawl.id)

    def _bring_back(self, turn: Turn, crawl: CrawlDefinition, rule: str, cursor: bytes, most: int) -> bytes:
        """Look at up to STEP rows that a rule kept out and reopen up to `most`; the cursor, empty behind the last."""
        entries = self._store.scan(excluded_prefix(crawl.id, rule), after=cursor, limit=STEP)
        keys = [entry[-16:] for entry, _ in entries]
        turn.load(keys)
        found = [(key, row) for key in keys if (row := turn.url(key)) is not None and row.outcome == rule]
        hosts = turn.hosts([row.host for _, row in found])
        for (key, row), host in zip(found, hosts, strict=True):
            if row.state is State.EXCLUDED and not _kept_out(row, host, crawl, turn.now):
                turn.tallies[crawl.id].activity += 1
                turn.put(key, reopened(row))
                most -= 1
                if not most:
                    break
        return entries[-1][0] if len(entries) == STEP else b""

    def _end(self, turn: Turn, crawl_id: str) -> None:
        """A walk is over; the excluded rows that are left were judged by the bounds of now."""
        bounds = self._walks.pop(crawl_id).bounds
        self._judged[crawl_id] = bounds
        self._tallies[crawl_id].reopening = False
        turn.put_other(CRAWL_KEY + crawl_id.encode(), bounds)


def bounds_digest(crawl: CrawlDefinition) -> bytes:
    """8 bytes for all that may keep a crawl's URLs out."""
    what = (
        crawl.depth, crawl.scope, crawl.scope_rules, crawl.limit, crawl.max_size, crawl.host_limit, crawl.host_size,
        crawl.deadline, crawl.duration, crawl.robots, crawl.traps,
    )  # fmt: skip
    return blake2b(msgspec.msgpack.encode(what), digest_size=8).digest()


def reopened(row: UrlRow) -> UrlRow:
    """The row of another visit, in the place that it had in its queue."""
    return msgspec.structs.replace(
        row, state=State.WAITING, visit=row.visit + 1, attempt=0, due=0, outcome="", status=0, page=None
    )


def _kept_out(row: UrlRow, host: HostRow, crawl: CrawlDefinition, now: int) -> bool:
    """Whether something still keeps a URL out of a crawl that goes on."""
    if row.outcome == "robots":
        return crawl.robots
    return bool(ruled_out(row, crawl, now) or over_on_host(crawl, host) or no_news(host, row, crawl))
