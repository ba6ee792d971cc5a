"""Just-in-time release: an order leaves when its host may be visited, and no more are out than can be answered soon.

So the lag of `fetches` is work that could run now. The fetcher owns the wire clock; here only order and window are
decided, a little ahead of time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as replaced
from hashlib import blake2b
from typing import Any

import msgspec

from streams.frontier import outcomes
from streams.frontier.hosts import HostQueue, waiting_hosts
from streams.frontier.index import DUE, split_timed_entry
from streams.frontier.released import Out, Released
from streams.frontier.robots import HOPS, RobotsGate
from streams.frontier.rows import State, UrlRow
from streams.frontier.tally import Tallies, Tally
from streams.frontier.turn import RowReader, Turn
from streams.messages import CrawlDefinition, FetchOrder, FetchOutcome
from streams.policy.urls import PolitenessMode

LOOKAHEAD = 1000.0
"""ms before its time an order may leave: what Kafka and the fetcher's queue take. The fetcher keeps the gap."""
STEPS = 4000
"""Most URLs looked at in one turn, so that long runs of excluded URLs leave room for messages."""
BURST = 16
"""Most orders of one host before the next host has its turn."""
WINDOWS = 4
"""Orders out for each connection of a host without delay: keeps its connections busy while answers travel."""


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """What a shard must know of its deployment. Durations in seconds."""

    shard: int
    politeness: PolitenessMode = "host"
    release_floor: int = 256
    release_seconds: float = 10.0
    answer_timeout: float = 600.0


class Release:
    """The hosts that wait and the orders that are out."""

    def __init__(
        self, config: ShardConfig, store: RowReader, epoch: int, crawls: Mapping[str, CrawlDefinition], tallies: Tallies
    ) -> None:
        self.released = Released(config.release_floor, config.release_seconds)
        self._config = config
        self._store = store
        self._epoch = epoch
        self._crawls = crawls
        self._robots = RobotsGate(config.politeness)
        self._hosts: dict[str, HostQueue] = {}
        self._ready: list[tuple[float, int, HostQueue]] = []
        self._ticket = 0
        self._due: list[tuple[int, bytes]] = []
        self._due_cursor = b""
        self._elsewhere: Mapping[str, int] = {}
        boot = Turn(store, tallies, 0)
        for host, crawl in waiting_hosts(store):
            queue = self.host(boot, host)
            queue.queue(crawl)
            self.schedule(queue, boot.now)

    def host(self, turn: Turn, host: str) -> HostQueue:
        """The queue of a host, made when first asked for."""
        queue = self._hosts.get(host)
        if queue is None:
            queue = self._hosts[host] = HostQueue(host, turn.host(host))
        return queue

    def keep(self, turn: Turn, queue: HostQueue, **changes: Any) -> None:
        """Change a host's row."""
        queue.row = msgspec.structs.replace(queue.row, **changes)
        turn.put_host(queue.host, queue.row)

    def schedule(self, queue: HostQueue, now: int) -> None:
        """Put a host among those that will be asked, unless it is there or has nothing to ask."""
        if not queue.scheduled and queue.free(now):
            self._push(queue, queue.at(now))

    def _push(self, queue: HostQueue, at: float) -> None:
        queue.scheduled = True
        self._ticket += 1
        heapq.heappush(self._ready, (at, self._ticket, queue))

    def note_due(self, due: int, fingerprint: bytes) -> None:
        """A row waits until `due`. Only needed where the index was already read past that time."""
        if (due.to_bytes(8, "big"), fingerprint) <= (self._due_cursor[1:9], self._due_cursor[9:]):
            heapq.heappush(self._due, (due, fingerprint))
        elif not self._due or due < self._due[0][0]:
            # A hint for wake_at(); the index holds the row itself.
            heapq.heappush(self._due, (due, b""))

    def wake_at(self) -> float:
        """When something may be released next (ms); infinity when nothing waits for time alone."""
        ready = self._ready[0][0] - LOOKAHEAD if self._ready and self.released.room() > 0 else float("inf")
        return min(ready, float(self._due[0][0]) if self._due else float("inf"))

    def runnable_hosts(self) -> int:
        """Hosts with waiting URLs."""
        return sum(1 for queue in self._hosts.values() if queue.crawls)

    def hosts_by_crawl(self) -> Counter[str]:
        """Hosts with waiting URLs, by crawl."""
        return Counter(crawl for queue in self._hosts.values() for crawl in queue.crawls)

    def run(self, turn: Turn, elsewhere: Mapping[str, int]) -> None:
        """Release what may run now into `turn.orders`; exclusions and the like become rows."""
        self._elsewhere = elsewhere
        self.released.measure(turn.now)
        self._take_due(turn)
        steps = STEPS
        while steps > 0 and self.released.room() > 0 and self._ready and self._ready[0][0] <= turn.now + LOOKAHEAD:
            _, _, queue = heapq.heappop(self._ready)
            queue.scheduled = False
            if queue.at(turn.now) <= turn.now + LOOKAHEAD:
                steps -= max(1, self._serve(turn, queue))
            self.schedule(queue, turn.now)
            if not queue.crawls and not queue.out and not queue.robots_out:
                self._forget(queue, turn.now)

    def _forget(self, queue: HostQueue, now: int) -> None:
        """Nothing waits for the host: drop it from memory, but not before its delay has passed."""
        if queue.next_at <= now:
            self._hosts.pop(queue.host, None)
            return
        self._push(queue, queue.next_at + LOOKAHEAD)

    def _serve(self, turn: Turn, queue: HostQueue) -> int:
        """Release up to BURST orders of one host; returns the number of URLs looked at."""
        self._limits(queue)
        steps = released = 0
        held: set[str] = set()
        while (
            released < BURST and steps < STEPS and queue.free(turn.now) and queue.at(turn.now) <= turn.now + LOOKAHEAD
        ):
            crawl_id = next((c for c in queue.crawls if c not in held), None)
            if crawl_id is None or self.released.room() <= 0:
                break
            steps += 1
            crawl = self._crawls.get(crawl_id)
            if crawl is None or crawl.state == "paused" or self._full(crawl, turn.tallies[crawl_id]):
                held.add(crawl_id)
                continue
            queue.rotate(crawl_id)
            fingerprint = queue.crawls[crawl_id].pop(self._store)
            if fingerprint is None:
                del queue.crawls[crawl_id]
                continue
            row = turn.url(fingerprint)
            if row is None or row.state is not State.WAITING or row.due > turn.now or fingerprint in self.released:
                continue
            released += self._offer(turn, queue, crawl, fingerprint, row)
        if held and held.issuperset(queue.crawls):
            queue.next_at = max(queue.next_at, turn.now + LOOKAHEAD + 500)  # paused or full: look again later
        return steps

    def _full(self, crawl: CrawlDefinition, tally: Tally) -> bool:
        """Whether the page limit is reached if all that is out succeeds: wait for the answers."""
        if crawl.limit is None or crawl.state == "ended":
            return False
        pages = tally.pages + self._elsewhere.get(crawl.id, 0)
        return pages < crawl.limit <= pages + tally.released

    def _limits(self, queue: HostQueue) -> None:
        """Delay and window in force: the strictest of the crawls that wait for the host, and its Crawl-delay."""
        crawls = [crawl for name in queue.crawls if (crawl := self._crawls.get(name)) is not None]
        delay = max((crawl.delay for crawl in crawls), default=0.0)
        if any(crawl.robots for crawl in crawls):
            delay = max(delay, self._robots.crawl_delay(queue.row))
        queue.delay = delay * 1000
        parallelism = min((crawl.parallelism for crawl in crawls), default=1)
        ahead = int(LOOKAHEAD / queue.delay) + 1 if queue.delay else parallelism * (WINDOWS - 1)
        queue.window = parallelism + ahead

    def _offer(self, turn: Turn, queue: HostQueue, crawl: CrawlDefinition, key: bytes, row: UrlRow) -> int:
        """Release one URL, or say in its row why not. Returns the number of orders."""
        if rule := self._over(turn, crawl):
            self._exclude(turn, key, row, rule)
            return 0
        if queue.unreachable(turn.now):
            breaker = queue.row.breaker
            reason = f"no answer to {breaker.probes} probes in {(turn.now - breaker.since) // 1000} s"
            outcomes.fail(turn, key, row, outcomes.Fault("host_unreachable", reason, {"probes": breaker.probes}), 1)
            return 0
        if not crawl.robots:
            self._order(turn, queue, crawl, key, row, "")
            return 1
        return self._offer_by_robots(turn, queue, crawl, key, row)

    def _offer_by_robots(self, turn: Turn, queue: HostQueue, crawl: CrawlDefinition, key: bytes, row: UrlRow) -> int:
        verdict = self._robots.ask(queue.row, row.url, turn.now)
        if verdict.order:
            queue.queue(row.crawl).again.appendleft(key)
            self._order_robots(turn, queue, crawl, row, verdict.order)
            return 1
        if verdict.allowed:
            self._order(turn, queue, crawl, key, row, verdict.version)
            return 1
        if verdict.unreachable:
            outcomes.fail(turn, key, row, verdict.unreachable, 1)
        elif verdict.hold_until:
            turn.put(key, outcomes.replace(row, due=verdict.hold_until))
        else:
            self._exclude(turn, key, row, "robots")
        return 0

    def _over(self, turn: Turn, crawl: CrawlDefinition) -> str:
        """The limit of the crawl that keeps its remaining URLs out, "" for none."""
        if crawl.state == "ended":
            return "ended"
        if crawl.deadline is not None and turn.now >= crawl.deadline:
            return "deadline"
        pages = turn.tallies[crawl.id].pages + self._elsewhere.get(crawl.id, 0)
        return "limit" if crawl.limit is not None and pages >= crawl.limit else ""

    def _exclude(self, turn: Turn, key: bytes, row: UrlRow, rule: str) -> None:
        turn.put(key, outcomes.replace(row, state=State.EXCLUDED, outcome=rule, visited=turn.now, due=0))

    def _order(
        self, turn: Turn, queue: HostQueue, crawl: CrawlDefinition, key: bytes, row: UrlRow, robots: str
    ) -> None:
        conditional = row.visit > 1
        turn.orders.append(
            FetchOrder(
                crawl=row.crawl, url=row.url, fingerprint=key, host=row.host, shard=self._config.shard,
                epoch=self._epoch, visit=row.visit, attempt=row.attempt, depth=row.depth, priority=row.priority,
                parent=row.parent, via=row.via, headers=row.headers, meta=row.meta,
                delay=queue.delay / 1000, parallelism=crawl.parallelism, rules=crawl.version, robots=robots,
                user_agent=crawl.user_agent, max_body=crawl.max_body, etag=row.etag if conditional else "",
                last_modified=row.last_modified if conditional else "", released=turn.now,
                traceparent=traceparent(row, key),
            )
        )  # fmt: skip
        self._gone(turn, queue, key, Out(queue.host, row.crawl, row.visit, row.attempt, turn.now))
        turn.tallies[row.crawl].released += 1

    def _order_robots(self, turn: Turn, queue: HostQueue, crawl: CrawlDefinition, row: UrlRow, origin: str) -> None:
        out = Out(queue.host, row.crawl, 0, self._robots.probe(queue.row, origin), turn.now, origin)
        turn.orders.append(self._robots_order(turn, crawl, out, origin + "/robots.txt"))
        queue.robots_out = origin
        self._gone(turn, queue, robots_key(origin), out)

    def _robots_order(self, turn: Turn, crawl: CrawlDefinition, out: Out, url: str) -> FetchOrder:
        """An order for an origin's robots.txt, or for where it was redirected to (`visit` counts the hops)."""
        return FetchOrder(
            kind="robots", crawl=crawl.id, url=url, fingerprint=robots_key(out.origin),
            host=self._robots.host_of(url), shard=self._config.shard, epoch=self._epoch, visit=out.visit,
            attempt=out.attempt, parent=out.origin, delay=crawl.delay, parallelism=crawl.parallelism,
            rules=crawl.version, user_agent=crawl.user_agent, released=turn.now,
        )  # fmt: skip

    def _gone(self, turn: Turn, queue: HostQueue, key: bytes, out: Out) -> None:
        self.released.add(key, out)
        queue.out += 1
        queue.next_at = max(queue.next_at, turn.now) + queue.delay

    def robots_answer(self, turn: Turn, outcome: FetchOutcome, out: Out | None) -> None:
        """A robots.txt was fetched, or could not be; `out` None: nobody waits for it any more."""
        if out is None:
            return
        queue = self.host(turn, out.host)
        crawl = self._crawls.get(out.crawl)
        if outcome.result == "redirected" and out.visit < HOPS and crawl is not None:
            hop = replaced(out, visit=out.visit + 1, at=turn.now)
            turn.orders.append(self._robots_order(turn, crawl, hop, outcome.location))
            self.released.add(outcome.fingerprint, hop)
            return
        queue.out -= 1
        queue.robots_out = ""
        if outcome.result == "deferred":
            queue.next_at = max(queue.next_at, turn.now + (outcome.retry_after or 0.0) * 1000)
        else:
            self.keep(turn, queue, **self._robots.answered(queue.row, outcome, out.origin, turn.now))
        self.schedule(queue, turn.now)

    def robots_lost(self, turn: Turn, out: Out) -> None:
        """A robots order was never answered: ask again."""
        queue = self.host(turn, out.host)
        queue.out -= 1
        queue.robots_out = ""
        self.schedule(queue, turn.now)

    def _take_due(self, turn: Turn) -> None:
        """Queue the rows whose time has come."""
        keys: list[bytes] = []
        while self._due and self._due[0][0] <= turn.now:
            _, fingerprint = heapq.heappop(self._due)
            if fingerprint:
                keys.append(fingerprint)
        for entry, _ in self._store.scan(DUE, after=self._due_cursor, limit=STEPS):
            due, fingerprint = split_timed_entry(entry)
            if due > turn.now:
                self.note_due(due, fingerprint)
                break
            self._due_cursor = entry
            keys.append(fingerprint)
        turn.load(keys)
        for fingerprint in keys:
            row = turn.url(fingerprint)
            if row is not None and row.state is State.WAITING and row.due <= turn.now:
                queue = self.host(turn, row.host)
                queue.queue(row.crawl).again.append(fingerprint)
                self.schedule(queue, turn.now)


def robots_key(origin: str) -> bytes:
    """What stands for an origin's robots.txt among the orders that are out."""
    return blake2b(b"robots\0" + origin.encode(), digest_size=16).digest()


def traceparent(row: UrlRow, key: bytes) -> str:
    """W3C Trace Context of an order: one trace per URL and visit, unless the seed brought one."""
    span = blake2b(b"%b%d.%d" % (key, row.visit, row.attempt), digest_size=8).hexdigest()
    if len(row.traceparent) == len("00-") + 32 + 1 + 16 + 3:
        return f"{row.traceparent[:36]}{span}{row.traceparent[-3:]}"
    trace = blake2b(key + row.visit.to_bytes(4, "big"), digest_size=16).hexdigest()
    return f"00-{trace}-{span}-00"
