"""A shard over a store in memory, driven by hand; every turn checks the books."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from streams import messages as m
from streams.definitions import CrawlDefinition
from streams.frontier.release import ShardConfig
from streams.frontier.rows import HostRow, State, UrlRow, decode_host_row, decode_url_row, host_key, url_key
from streams.frontier.shard import Shard
from streams.frontier.tally import Tallies
from streams.frontier.turn import Turn
from streams.policy import urls
from tests.simulation.store import MemoryStore

START = 1_000_000_000
HOUR = 3_600_000


def crawl(name: str = "c", **fields: Any) -> CrawlDefinition:
    """A crawl without delay and robots, unless said otherwise."""
    return CrawlDefinition(**{"id": name, "delay": 0.0, "parallelism": 2, "robots": False, **fields})


def key(url: str, name: str = "c") -> bytes:
    return urls.fingerprint(name, urls.canonical(url))


def seed(url: str, name: str = "c", **fields: Any) -> m.Candidate:
    return m.Candidate(url=url, fingerprint=key(url, name), crawl=name, **fields)


def seeds(*found: str | m.Candidate) -> m.Candidates:
    return m.Candidates(items=tuple(seed(item) if isinstance(item, str) else item for item in found))


def links(*found: str, name: str = "c", depth: int = 1, parent: str = "http://parent.example/") -> m.Links:
    parents = [m.LinkParent(url=parent, depth=depth, count=len(found))]
    return m.Links(crawl=name, urls=list(found), fingerprints=b"".join(key(u, name) for u in found), parents=parents)


def answer(order: m.FetchOrder, result: m.FetchResult = "fetched", **fields: Any) -> m.Outcomes:
    """What the fetcher says about an order; a fetched page stands at (0, 7)."""
    if result == "fetched" and order.kind == "page":
        fields = {"page": (0, 7), "status": 200, **fields}
    return m.Outcomes(items=(m.FetchOutcome(
        kind=order.kind, crawl=order.crawl, fingerprint=order.fingerprint, url=order.url, visit=order.visit,
        attempt=order.attempt, result=result, **fields,
    ),))  # fmt: skip


def failed(order: m.FetchOrder, failure: m.FailureClass = "timeout", **fields: Any) -> m.Outcomes:
    return answer(order, "failed", failure=failure, **fields)


def parsed(order: m.FetchOrder, **fields: Any) -> m.Outcomes:
    """What the parser says about the order's page."""
    fields = {"depth": order.depth, "page": (0, 7), **fields}
    outcome = m.ParseOutcome(
        crawl=order.crawl, fingerprint=order.fingerprint, visit=order.visit, url=order.url, **fields
    )  # fmt: skip
    return m.Outcomes(items=(outcome,))


def rules(order: m.FetchOrder, *lines: tuple[bool, str], **fields: Any) -> m.Outcomes:
    """A robots.txt that was fetched."""
    content = m.RobotsRules(**{"origin": order.parent, "version": "v1", "fetched": START, "expires": START + 24 * HOUR,
                               "rules": lines, **fields})  # fmt: skip
    return answer(order, robots_rules=content)


class Rig:
    """`turn` is what the agent does in a turn: everything it decides becomes durable."""

    def __init__(self, *crawls: CrawlDefinition, **config: Any) -> None:
        self.crawls = {definition.id: definition for definition in crawls or (crawl(),)}
        self.config = ShardConfig(shard=3, **config)
        self.store = MemoryStore()
        self.now = START
        self.offset = 0
        self.failures: list[m.Failure] = []
        self.candidates: list[m.Candidate] = []
        self.routed: list[tuple[str, m.Inbox]] = []
        self.load()

    def load(self) -> None:
        """The process dies, another one begins."""
        self.shard = Shard(self.config, self.store, self.offset, self.crawls)

    def change(self, name: str = "c", **fields: Any) -> None:
        definition = self.crawls[name]
        self.crawls[name] = msgspec.structs.replace(definition, version=definition.version + 1, **fields)

    def turn(self, *messages: m.Inbox, wait: int = 0, elsewhere: dict[str, int] | None = None) -> list[m.FetchOrder]:
        """Let `wait` ms pass, hand in messages; the orders that leave."""
        self.now += wait
        inbox = list(enumerate(messages, self.offset))
        self.offset += len(messages)
        others = {name: m.CrawlCounts(done=number) for name, number in (elsewhere or {}).items()}
        turn = self.shard.turn(inbox, self.now, others)
        self.store.apply(turn.rows())
        self.failures += turn.failures
        self.candidates += turn.candidates
        self.routed += turn.routed
        self.check(turn)
        return turn.orders

    def settle(self, turns: int = 20) -> list[m.FetchOrder]:
        """Turns until the shard wants to sleep. Fails if it never does: a busy loop."""
        orders: list[m.FetchOrder] = []
        for _ in range(turns):
            if self.shard.wake_at() > self.now:
                return orders
            orders += self.turn()
        raise AssertionError("the shard does not sleep")

    def sleep(self, longest: float = float("inf")) -> list[m.FetchOrder]:
        """Sleep until the shard wants to wake, as its agent does."""
        self.settle()
        wake = min(self.shard.wake_at(), self.now + longest)
        assert wake < float("inf"), "it would sleep for ever"
        self.now = max(self.now, int(wake) + (wake % 1 > 0))
        return self.turn()

    def next_orders(self, sleeps: int = 60) -> list[m.FetchOrder]:
        """Sleep and wake until something is released."""
        for _ in range(sleeps):
            if orders := self.sleep():
                return orders
        raise AssertionError("nothing is released")

    def check(self, turn: Turn) -> None:
        """Books that must agree: orders out, by host and by crawl; counters in memory and in the store."""
        release = self.shard._release
        outs = release.released._out.values()
        by_host = Counter((out.host, out.crawl) for out in outs if out.leg != "away")
        assert by_host == {(q.host, c): n for q in release.queues.hosts.values() for c, n in q.out.items()}
        pages = Counter(out.crawl for out in outs if not out.origin)
        assert pages == Counter({c: t.released for c, t in self.shard.tallies.items() if t.released})
        again = Counter((out.host, out.crawl) for out in outs if out.revisit)
        assert again == {(q.host, c): n for q in release.queues.hosts.values() for c, n in q.revisits.items()}
        assert sum(again.values()) == sum(tally.revisits for tally in self.shard.tallies.values())
        stored = Tallies.from_counters(self.store.counters())
        for name, tally in self.shard.tallies.items():
            assert (tally.states, tally.size) == (stored[name].states, stored[name].size)
            assert (tally.pages, tally.unplaced) == (stored[name].pages, stored[name].unplaced)
            assert {k: n for k, n in tally.failures.items() if n} == dict(stored[name].failures)
            assert {k: n for k, n in tally.exclusions.items() if n} == dict(stored[name].exclusions)
        hosts = Counter(c for q in release.queues.hosts.values() for c in (*q.crawls, *q.held))
        assert hosts == +release.queues.hosts_by_crawl
        for order in turn.orders:
            assert order.fingerprint in release.released

    def row(self, url: str, name: str = "c") -> UrlRow:
        return decode_url_row(self.store.rows[url_key(key(url, name))])

    def host(self, host: str) -> HostRow:
        data = self.store.rows.get(host_key(host))
        return decode_host_row(data) if data is not None else HostRow()

    def state(self, url: str, name: str = "c") -> State:
        return self.row(url, name).state

    @property
    def hosts(self) -> dict[str, Any]:
        return self.shard._release.queues.hosts


def pages(number: int, host: str = "http://h.example", first: int = 0) -> list[str]:
    """URLs of a host."""
    return [f"{host}/{i}" for i in range(first, first + number)]


def urls_of(orders: list[m.FetchOrder]) -> list[str]:
    return [order.url for order in orders]


def given(rig: Rig, *messages: m.Inbox) -> list[m.FetchOrder]:
    """The orders that messages cause at once."""
    return [*rig.turn(*messages), *rig.settle()]


def done(rig: Rig, *orders: m.FetchOrder) -> list[m.FetchOrder]:
    """Pages are fetched and parsed; the orders that follow at once."""
    return given(rig, *(message for order in orders for message in (answer(order), parsed(order))))
