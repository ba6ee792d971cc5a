"""A whole crawl without a broker: shards, fetchers and parsers over a log in memory, with virtual time and faults.

Every actor does its writes one at a time and may die between any two of them; the log keeps what was written, offsets
are committed last. What an actor had read but not committed is read again. So each run is one schedule of crashes,
replays and reorderings; the seed decides which.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec

from streams import messages as m
from streams.codecs import decode, decode_inbox, encode
from streams.definitions import CrawlDefinition
from streams.frontier.end import EndWatch, result_of, seems_over
from streams.frontier.release import ShardConfig
from streams.frontier.rows import URL_KEY, State, UrlRow, decode_url_row
from streams.frontier.shard import Shard
from streams.frontier.tally import counted
from streams.policy import urls
from streams.policy.forgetting import is_forgotten
from streams.policy.scope import compile_scope
from streams.topics import shard_of
from tests.simulation.store import MemoryStore

CRAWL = "c"
FORGOTTEN = -1
"""In the place of a visit: what tells the sinks to delete."""
LAG = 500
"""ms for which a parser may not have read of a new definition."""
DEFINITION = CrawlDefinition(id=CRAWL, delay=0.0, parallelism=4, robots=False)


@dataclass(frozen=True)
class Answer:
    """What the web answers: `status` with links, a redirect `location`, or a `failure`."""

    status: int = 200
    links: tuple[str, ...] = ()
    location: str = ""
    failure: m.FailureClass | None = None
    retry_after: float | None = None


Web = Callable[[str, int], Answer]
"""URL and how often it was asked before → answer."""


def no_robots(_url: str, _asked: int) -> Answer:
    """Every host lets everything be fetched."""
    return Answer(status=404)


class Crash(Exception):
    """The process dies here."""


@dataclass
class Log:
    """Topics by name and partition; values only."""

    partitions: defaultdict[tuple[str, int], list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def append(self, topic: str, partition: int, value: bytes) -> int:
        log = self.partitions[topic, partition]
        log.append(value)
        return len(log) - 1

    def end(self, topic: str, partition: int) -> int:
        return len(self.partitions[topic, partition])


@dataclass
class World:
    """Everything that happens, driven by one random number generator."""

    web: Web
    seed: int
    shards: int = 2
    crash: float = 0.05
    definition: CrawlDefinition = DEFINITION
    robots: Web = no_robots
    answer_timeout: float = 5.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 1_000_000
        self.log = Log()
        self.crawls: dict[str, CrawlDefinition] = {self.definition.id: self.definition}
        self.stores = [MemoryStore() for _ in range(self.shards)]
        self.committed: Counter[tuple[str, int]] = Counter()
        self.position: Counter[tuple[str, int]] = Counter()
        self.loaded: dict[int, Shard] = {}
        self.epochs = 0
        self.board: dict[int, m.Progress] = {}
        self.asked: Counter[str] = Counter()
        self.requests: list[tuple[int, str]] = []
        self.records: list[tuple[str, int]] = []
        self.failures: list[m.Failure] = []
        self.crashes = 0
        self.watch: EndWatch | None = None
        self.ended_with: list[tuple[int, str]] = []
        self.known: list[dict[str, CrawlDefinition]] = [{} for _ in range(self.shards)]
        self.read: tuple[int, dict[str, CrawlDefinition]] = (0, {})  # what parsers know, and since when
        self.released: list[tuple[int, m.FetchOrder]] = []
        self.parsers_run = True
        self.die_at = -1
        """The process dies at so manieth of the places where it may, and nowhere else; -1: by chance."""

    # --- running

    def seed_urls(self, *seeds: str, **fields: object) -> None:
        """Put seeds into the inbox, as the intake does."""
        for i, url in enumerate(seeds):
            wire = urls.parse(url) or ""
            facts = {"crawl": CRAWL, "origin": m.Origin("urls", 0, self.now + i), **fields}
            key = key_of(wire, str(facts["crawl"]))
            self._candidate(m.Candidate(url=wire, fingerprint=key, **facts))  # type: ignore[arg-type] # fields of Candidate

    def run(self, steps: int = 20_000) -> None:
        """Until the end is announced and nothing is left to read; fails when that does not come."""
        for _ in range(steps):
            self.step()
            if self.ended_with and self._quiet():
                return
        raise AssertionError(f"seed {self.seed}: no end after {steps} steps, {self.rows_open()} URLs open")

    def step(self) -> None:
        """One thing happens."""
        stages = (self._frontier, self._fetcher, self._parser) if self.parsers_run else (self._frontier, self._fetcher)
        actors = [partial(stage, shard) for stage in stages for shard in range(self.shards)]
        actors.append(partial(self._ending))
        self.now += self.random.choice((0, 1, 5, 20))
        if self._quiet() and self.random.random() < 0.2:
            self._sleep()
        try:
            self.random.choice(actors)()
        except Crash:
            self.crashes += 1

    def rows(self) -> dict[str, UrlRow]:
        """All URL rows by URL."""
        found = {}
        for store in self.stores:
            for key, value in store.rows.items():
                if key[:1] == URL_KEY:
                    row = decode_url_row(value)
                    found[row.url] = row
        return found

    def rows_open(self) -> list[str]:
        return [url for url, row in self.rows().items() if row.open]

    def _sleep(self) -> None:
        """Nothing is on its way: time passes until a shard wants to wake."""
        wake = min((shard.wake_at() for shard in self.loaded.values()), default=0.0)
        if self.now < wake < float("inf"):
            self.now = int(wake) + 1

    def _quiet(self) -> bool:
        return all(self.position[key] >= self.log.end(*key) for key in list(self.log.partitions) if key[0] != "pages")

    def _may_die(self) -> None:
        if self.die_at >= 0:
            self.die_at -= 1
            if self.die_at < 0:
                raise Crash
        elif self.random.random() < self.crash:
            raise Crash

    def _take(self, topic: str, partition: int, most: int) -> list[tuple[int, bytes]]:
        """Read on from the position; sometimes a process has died and its successor reads from the commit."""
        key = (topic, partition)
        if self.random.random() < self.crash:
            self.position[key] = self.committed[key]
        start = self.position[key]
        values = self.log.partitions[key][start : start + self.random.randint(1, most)]
        return list(enumerate(values, start))

    def _commit(self, topic: str, partition: int, taken: list[tuple[int, bytes]]) -> None:
        key = (topic, partition)
        self.position[key] = taken[-1][0] + 1
        if self.random.random() > self.crash:
            self.committed[key] = max(self.committed[key], self.position[key])

    # --- frontier

    def _frontier(self, number: int) -> None:
        shard = self.loaded.get(number)
        if shard is None or self.random.random() < self.crash:
            self.position["inbox", number] = self.committed["inbox", number]
            self.epochs += 1
            floor = self.random.choice((1, 4, 64))
            config = ShardConfig(number, release_floor=floor, answer_timeout=self.answer_timeout)
            self.known[number] = {}  # a new worker has read nothing yet
            shard = self.loaded[number] = Shard(config, self.stores[number], self.epochs, self.known[number])
            shard.position = self.position["inbox", number]
            shard.backlog = self.log.end("inbox", number)
        start = self.position["inbox", number]
        values = self.log.partitions["inbox", number][start : start + self.random.randint(0, 6)]
        taken = list(enumerate(values, start))
        try:
            self._turn(shard, number, taken)
        except Crash:
            del self.loaded[number]
            raise
        if taken:
            self._commit("inbox", number, taken)
        self.board[number] = shard.progress(self.now)

    def _turn(self, shard: Shard, number: int, taken: list[tuple[int, bytes]]) -> None:
        inbox = [(offset, decode_inbox(value)) for offset, value in taken]
        named = {crawl for _, message in inbox for crawl in crawls_of(message)}
        if not named <= self.known[number].keys() or self.random.random() < 0.1:
            self.known[number].update(self.crawls)  # as a worker does that meets a crawl it has not read of
        turn = shard.turn(inbox, self.now, self._elsewhere(number))
        for item in turn.candidates:
            self._candidate(item)
            self._may_die()
        for url, message in turn.routed:
            self.deliver(url, message)
            self._may_die()
        for failure in turn.failures:
            self.failures.append(failure)
            self._may_die()
        for word in turn.forgotten:
            self.records.append((word.url, FORGOTTEN))
            self._may_die()
        rows = turn.rows()
        try:
            self._may_die()
        except Crash:  # some packs of the changelog were durable, some were not
            self.random.shuffle(rows)
            self.stores[number].apply(rows[: self.random.randint(0, len(rows))])
            raise
        self.stores[number].apply(rows)
        for order in turn.orders:
            self._may_die()
            self.log.append("fetches", shard_of(order.host, self.shards), encode(order))
            self.released.append((self.now, order))
        self._may_die()

    def _elsewhere(self, number: int) -> dict[str, m.CrawlCounts]:
        return counted(report for other, report in self.board.items() if other != number)

    def _candidate(self, item: m.Candidate) -> None:
        self.deliver(item.url, m.Candidates(items=(item,)))

    def deliver(self, url: str, message: m.Inbox) -> None:
        """Put a message into the inbox of a URL's shard."""
        shard = shard_of(urls.politeness_key(url, "host"), self.shards)
        self.log.append("inbox", shard, encode(message))

    # --- fetcher and parser

    def _fetcher(self, number: int) -> None:
        taken = self._take("fetches", number, 4)
        if not taken:
            return
        for _, value in self.random.sample(taken, len(taken)):
            self._fetch(decode(m.FetchOrder, value))
        self._commit("fetches", number, taken)

    def _fetch(self, order: m.FetchOrder) -> None:
        if self.random.random() < 0.02:
            return self._outcome(order, result="deferred")
        self._may_die()
        self.requests.append((self.now, order.url))
        if order.kind == "robots":
            return self._fetch_robots(order)
        answer = self.web(order.url, self.asked[order.url])
        self.asked[order.url] += 1
        if answer.failure or answer.status >= 400:
            return self._outcome(order, result="failed", failure=answer.failure or "http_status", status=answer.status,
                                 retry_after=answer.retry_after)  # fmt: skip
        if answer.location:
            return self._outcome(order, result="redirected", status=301, location=answer.location)
        page = (0, self.log.append("pages", self.random.randrange(self.shards), encode((order, answer.links))))
        self._may_die()
        return self._outcome(order, result="fetched", status=200, page=page)

    def _fetch_robots(self, order: m.FetchOrder) -> None:
        answer = self.robots(order.url, self.asked[order.url])
        self.asked[order.url] += 1
        if answer.location:
            return self._outcome(order, result="redirected", status=301, location=answer.location)
        if answer.failure or answer.status >= 500 or answer.status == 429:
            return self._outcome(order, result="failed", failure=answer.failure or "http_status", status=answer.status,
                                 retry_after=answer.retry_after)  # fmt: skip
        rules = m.RobotsRules(origin=order.parent, version="v", fetched=self.now, expires=self.now + 86_400_000,
                              sitemaps=answer.links)  # fmt: skip
        return self._outcome(order, result="fetched", robots_rules=rules)

    def _outcome(self, order: m.FetchOrder, **fields: object) -> None:
        outcome = m.FetchOutcome(kind=order.kind, crawl=order.crawl, fingerprint=order.fingerprint, url=order.url,
                                 visit=order.visit, attempt=order.attempt, epoch=order.epoch, **fields)  # type: ignore[arg-type] # fmt: skip # fields of FetchOutcome
        self.log.append("inbox", order.shard, encode(m.Outcomes(items=(outcome,))))
        self._may_die()

    def _parser(self, number: int) -> None:
        taken = self._take("pages", number, 3)
        if not taken:
            return
        for offset, value in taken:
            order, links = msgspec.json.decode(value, type=tuple[m.FetchOrder, tuple[str, ...]])
            self._parse(order, links, (number, offset))
        self._commit("pages", number, taken)

    def _parse(self, order: m.FetchOrder, links: tuple[str, ...], page: tuple[int, int]) -> None:
        definition = self._as_read(order)
        limit = definition.depth
        keep = compile_scope(definition.scope, definition.scope_rules)
        if is_forgotten(definition, order.url):
            links = ()
        depth = 1 if order.source == "sitemap" else order.depth + 1
        followed = [] if limit is not None and depth > limit else [u for u in links if not keep(u)]
        if order.source == "sitemap":
            self._name_sitemaps(order, [url for url in followed if url.endswith(".xml")])
            followed = [url for url in followed if not url.endswith(".xml")]
        for shard, found in self._by_shard(followed):
            parent = m.LinkParent(url=order.url, depth=depth, count=len(found))
            keys = b"".join(key_of(url, order.crawl) for url in found)
            pack = m.Links(crawl=order.crawl, urls=found, fingerprints=keys, parents=[parent])
            self.log.append("inbox", shard, encode(pack))
            self._may_die()
        if order.source == "page" and not is_forgotten(definition, order.url):
            self.records.append((order.url, order.visit))
        self._may_die()
        outcome = m.ParseOutcome(crawl=order.crawl, fingerprint=order.fingerprint, visit=order.visit, depth=order.depth,
                                 page=page, url=order.url)  # fmt: skip
        self.log.append("inbox", order.shard, encode(m.Outcomes(items=(outcome,))))
        self._may_die()

    def _as_read(self, order: m.FetchOrder) -> CrawlDefinition:
        """The definition that the parser knows: up to `LAG` old, but not older than the order."""
        since, read = self.read
        if order.crawl not in read or read[order.crawl].version < order.rules or self.now - since >= LAG:
            self.read = self.now, dict(self.crawls)
        return self.read[1][order.crawl]

    def _name_sitemaps(self, order: m.FetchOrder, found: list[str]) -> None:
        for url in found:
            key = key_of(url, order.crawl)
            self._candidate(m.Candidate(url=url, fingerprint=key, crawl=order.crawl, depth=order.depth + 1,
                                        parent=order.url, source="sitemap"))  # fmt: skip
            self._may_die()

    def _by_shard(self, links: list[str]) -> Iterator[tuple[int, list[str]]]:
        shards: defaultdict[int, list[str]] = defaultdict(list)
        for url in links:
            shards[shard_of(urls.politeness_key(url, "host"), self.shards)].append(url)
        yield from shards.items()

    # --- the end

    def _ending(self) -> None:
        crawl = self.crawls[CRAWL]
        if crawl.state != "sealed" or not seems_over(CRAWL, self.board, self.shards):
            self.watch = None
            return
        self.watch = self.watch or EndWatch(CRAWL, self.shards)
        ends = [self.log.end("inbox", shard) for shard in range(self.shards)]
        if self.watch.step(self.board, ends):
            assert not self.rows_open(), f"seed {self.seed}: the end was announced with URLs open"
            result = result_of(CRAWL, self.board.values())
            self.ended_with.append((self.now, result))
            self.crawls[CRAWL] = msgspec.structs.replace(crawl, state="ended", version=crawl.version + 1, result=result)


def key_of(url: str, crawl: str = CRAWL) -> bytes:
    """Fingerprint of a URL of a simulated crawl."""
    return urls.fingerprint(crawl, urls.canonical(url))


def crawls_of(message: m.Inbox) -> set[str]:
    """The crawls a message is about."""
    return (
        {message.crawl}
        if isinstance(message, m.Links | m.Command | m.RobotsHop)
        else {item.crawl for item in message.items}
    )


def terminal(state: State) -> bool:
    """Whether a visit has ended."""
    return state not in (State.WAITING, State.FETCHED)
