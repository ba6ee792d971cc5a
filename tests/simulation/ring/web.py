"""The sites of a plan: what each URL answers, and, walked without the crawler's code, what a crawl must reach."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from streams.definitions import CrawlDefinition
from streams.messages import FailureClass
from tests.simulation.ring import oracle
from tests.simulation.ring.engine import EPOCH
from tests.simulation.ring.plan import Plan

CHAIN = 13
"""Redirects in the chain that is too long."""
FAILING = 7
"""Failures in all that pages of one host may cost: fewer than its hold budget, so that all of them succeed at last."""
SHORT = 4
"""The same where time windows shut hosts for longer than their hold budget lasts: too few to open a breaker."""
NEVER = 10**9
HOUR = 3_600_000


@dataclass(frozen=True)
class Answer:
    """What a server says: `status` with links or a `location`, or what keeps it from saying anything.

    `etag` and `size` (bytes): of the body as it is now. Of a sitemap: `sitemaps` that it names beside its links, and
    `lastmod`, when all of them were changed (ms; 0: not told).
    """

    status: int = 200
    links: tuple[str, ...] = ()
    sitemaps: tuple[str, ...] = ()
    lastmod: int = 0
    etag: str = ""
    size: int = 0
    location: str = ""
    failure: FailureClass | None = None
    retry_after: float = 0.0
    seconds: float = 0.05
    body: bytes = b""


NOTHING = Answer()


@dataclass(frozen=True)
class Page:
    """A URL: its last answer, and how often it fails before. `changes`: after so many requests; 0: never."""

    answer: Answer
    fails: int = 0
    failing: Answer = Answer()
    changes: int = 0


@dataclass(frozen=True)
class Robots:
    """A host's robots.txt: `status` after it failed `fails` times; `moved`: on another host. It may name `sitemaps`."""

    body: bytes = b""
    private: bool = False
    delay: float = 0.0
    fails: int = 0
    status: int = 404
    moved: str = ""
    sitemaps: tuple[str, ...] = ()


@dataclass
class Web:
    """All sites. How often each URL was asked is all that changes."""

    plan: Plan
    pages: dict[str, Page] = field(default_factory=dict)
    robots: dict[str, Robots] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        plan = self.plan
        self.dead: set[str] = set()
        self.slow: set[str] = set()
        self._failing: Counter[str] = Counter()
        for number in range(plan.hosts):
            self._host(number, random.Random(f"host {plan.seed} {number}"))
        self.names = [self._name(number) for number in range(plan.urls)]
        for number in range(plan.urls):
            self.pages[self.names[number]] = self._page(number, random.Random(f"page {plan.seed} {number}"))
        if "sitemaps" in plan.quirks:
            for origin in list(self.robots):
                self._sitemaps(origin, random.Random(f"sitemaps {plan.seed} {origin}"))
        if "redirects" in plan.quirks:
            self._chain()

    def ask(self, url: str, etag: str = "") -> Answer:
        """A request arrives; with the `etag` of what the client has, if it has something."""
        origin, path = self._split(url)
        asked, self.asked[url] = self.asked[url], self.asked[url] + 1
        if origin in self.dead:
            return Answer(0, failure=("dns", "connection", "timeout")[len(origin) % 3], seconds=0.3)
        if path == "/robots.txt":
            return self._robots_answer(self.robots[origin], asked)
        answer = self._answer(url, asked)
        if etag and etag == answer.etag:
            answer = Answer(304, etag=etag, seconds=answer.seconds)
        return replace(answer, seconds=answer.seconds + 8.0 * (asked % 3)) if origin in self.slow else answer

    @cached_property
    def origins(self) -> list[str]:
        """The hosts' origins in order."""
        return list(self.robots)

    def reach(self, crawl: CrawlDefinition, seeds: Iterable[str], disallowing: bool) -> dict[str, frozenset[str]]:
        """Each URL that a crawl must have a row of, with the states in which it may end.

        `disallowing`: whether robots.txt counts. Breadth first, so that every URL is met on its shortest way.
        """
        ends: dict[str, frozenset[str]] = {}
        depths: dict[str, int] = {}
        todo = deque((url, 0, 0, False) for url in seeds)
        while todo:
            url, depth, hops, listed = todo.popleft()  # `listed`: it is a sitemap
            if depths.get(url, NEVER) <= depth or (crawl.depth is not None and depth > crawl.depth and not listed):
                continue
            depths[url] = depth
            if (
                disallowing
                and crawl.sitemaps
                and crawl.depth != 0
                and (in_scope(url, crawl) or (listed and not oracle.forgotten(crawl, url)))
            ):
                todo.extend((found, 0, 0, True) for found in self._named(url))
            ends[url], answer = self._end(url, crawl, hops, disallowing, listed)
            below = 0 if listed else depth
            if answer.location:
                todo.appendleft((answer.location, depth, hops + 1, False))
            elif crawl.depth is None or below < crawl.depth:
                todo.extend((link, below + 1, 0, False) for link in answer.links if in_scope(link, crawl))
                todo.extend((found, depth + 1, 0, True) for found in answer.sitemaps)
        return ends

    def _named(self, url: str) -> tuple[str, ...]:
        """The sitemaps that the robots.txt of a URL's origin names, if it can be had."""
        robots = self.robots[self._split(url)[0]]
        return () if self._split(url)[0] in self.dead or self._unreachable(robots) else self._rules(robots).sitemaps

    def _end(
        self, url: str, crawl: CrawlDefinition, hops: int, disallowing: bool, listed: bool
    ) -> tuple[frozenset[str], Answer]:
        """The states in which a URL may end, and the answer that leads on."""
        origin, path = self._split(url)
        robots = self.robots[origin]
        if oracle.forgotten(crawl, url) or not (listed or in_scope(url, crawl)):
            return frozenset({"excluded"}), NOTHING
        if origin in self.dead or (disallowing and self._unreachable(robots)):
            return frozenset({"failed"}), NOTHING
        if disallowing and path.startswith("/x/") and self._rules(robots).private:
            return frozenset({"excluded"}), NOTHING
        answer = self._answer(url, NEVER)
        if answer.status >= 400:
            return frozenset({"failed"}), NOTHING
        if answer.location:
            if hops >= crawl.max_redirects:
                return frozenset({"failed"}), NOTHING
            return frozenset({"redirected", "failed"}), answer  # failed: a way that led in a circle
        return frozenset({"done"}), answer

    def _rules(self, robots: Robots) -> Robots:
        return self.robots[robots.moved] if robots.moved else robots

    def _unreachable(self, robots: Robots) -> bool:
        return robots.fails >= NEVER or (bool(robots.moved) and (
            robots.moved in self.dead or self.robots[robots.moved].fails >= NEVER))  # fmt: skip

    def _answer(self, url: str, asked: int) -> Answer:
        if "/t/" in url:  # a calendar: each page leads to the next
            root, number = url.rsplit("/", 1)
            return Answer(links=(f"{root}/{int(number) + 1}",))
        page = self.pages[url]
        if asked < page.fails:
            return page.failing
        if not (page.changes and page.answer.etag):
            return page.answer
        version = asked // page.changes
        lastmod = page.answer.lastmod and page.answer.lastmod + version * HOUR
        return replace(page.answer, etag=f"{page.answer.etag}.{version}", lastmod=lastmod)

    @staticmethod
    def _robots_answer(robots: Robots, asked: int) -> Answer:
        if robots.moved:
            return Answer(301, location=robots.moved + "/robots.txt")
        if asked < robots.fails:
            return Answer(503)
        return Answer(robots.status, body=robots.body)

    @staticmethod
    def _split(url: str) -> tuple[str, str]:
        at = url.index("/", 8)
        return url[:at], url[at:]

    # ---- making it

    def _origin(self, number: int) -> str:
        """Where a host is; with politeness by domain two of them share one."""
        return (
            f"http://h{number}.s{number // 2}.example" if "domain" in self.plan.quirks else f"http://h{number}.example"
        )

    def _host(self, number: int, rng: random.Random) -> None:
        quirks, origin = self.plan.quirks, self._origin(number)
        if "domain" in quirks and number % 2:  # they share a breaker, so one of them is not dead alone
            dead = self._origin(number - 1) in self.dead
        else:
            dead = "dead" in quirks and number > 0 and rng.random() < 0.25
        if dead:
            self.dead.add(origin)
        if "slow" in quirks and rng.random() < 0.3:
            self.slow.add(origin)
        self.robots[origin] = self._robots_of(number, rng) if "robots" in quirks else Robots()

    def _robots_of(self, number: int, rng: random.Random) -> Robots:
        kind = rng.randrange(7)
        if kind == 5 and number:
            return Robots(moved=self._origin(0))
        if kind == 6 and number:
            return Robots(fails=NEVER)
        fails = rng.choice((0, 0, 3)) if number and "windows" not in self.plan.quirks else 0
        delay = rng.choice((0.0, 1.5)) if kind < 3 else 0.0
        if kind == 4:
            return Robots(fails=fails)
        body = b"User-agent: *\nDisallow: /x/\n" + (b"Crawl-delay: %g\n" % delay if delay else b"")
        return Robots(body, private=True, delay=delay, fails=fails, status=200)

    def _name(self, number: int) -> str:
        rng = random.Random(f"name {self.plan.seed} {number}")
        host = number % self.plan.hosts
        if number >= self.plan.hosts and "narrow" not in self.plan.quirks:
            host = rng.randrange(self.plan.hosts)
        private = number and "robots" in self.plan.quirks and rng.random() < 0.2
        return f"{self._origin(host)}/{'x/' if private else ''}p{number}"

    def _page(self, number: int, rng: random.Random) -> Page:
        quirks, names = self.plan.quirks, self.names
        narrow = "narrow" in quirks
        wide = 1 if narrow else max(2, self.plan.urls // 40)
        below = names[number * wide + 1 : (number + 1) * wide + 1]
        if number and "redirects" in quirks and rng.random() < 0.15:
            return Page(Answer(301, location=rng.choice(names)))
        if number and "gone" in quirks and rng.random() < 0.15:
            return Page(Answer(rng.choice((404, 410, 403))))
        links = (*below, *(rng.choice(names) for _ in range(0 if narrow else rng.randrange(4))))
        if "redirects" in quirks and number == 0:
            links = (*links, f"{self._origin(0)}/c0")
        if "traps" in quirks and rng.random() < 0.2:
            links = (*links, f"{self._split(names[number])[0]}/t/0")
        answer = Answer(links=links, seconds=rng.uniform(0.01, 0.3), size=rng.randrange(100, 3000),
                        etag=f"e{number}" if rng.random() < 0.6 else "")  # fmt: skip
        changes = rng.choice((0, 0, 1, 3))
        fails, failing = 0, Answer()
        if "flaky" in quirks and rng.random() < 0.25:
            fails = rng.randint(1, 3)
            failing = rng.choice((Answer(0, failure="timeout"), Answer(500), Answer(0, failure="incomplete")))
        elif "busy" in quirks and rng.random() < 0.25:
            fails = 1
            failing = Answer(rng.choice((429, 503)), retry_after=rng.choice((3.0, 30.0, 600.0)))
        site = ".".join(names[number].split("/")[2].split(".")[1 if "domain" in quirks else 0 :])
        if self._failing[site] + fails > (SHORT if "windows" in quirks else FAILING):
            fails = 0
        self._failing[site] += fails
        return Page(answer, fails, failing, changes)

    def _sitemaps(self, origin: str, rng: random.Random) -> None:
        """One sitemap, which may be an index of another one, in a robots.txt that can be read."""
        robots = self.robots[origin]
        if robots.moved or robots.fails >= NEVER or rng.random() < 0.4:
            return
        index, below = f"{origin}/s0.xml", f"{origin}/s1.xml"
        lastmod = rng.choice((0, EPOCH))
        for url, named in ((index, (below,) if rng.random() < 0.4 else ()), (below, (index,))):
            links = tuple(rng.choice(self.names) for _ in range(rng.randint(1, 4)))
            answer = Answer(links=links, sitemaps=named, lastmod=lastmod, etag=rng.choice(("", url)), size=50)
            self.pages[url] = Page(answer, changes=1)
        body = robots.body + b"Sitemap: " + index.encode() + b"\n"
        self.robots[origin] = replace(robots, body=body, status=200, sitemaps=(index,))

    def _chain(self) -> None:
        hosts = self.plan.hosts
        urls = [f"{self._origin(i % hosts)}/c{i}" for i in range(CHAIN)]
        for url, target in zip(urls, [*urls[1:], self.names[0]], strict=True):
            self.pages[url] = Page(Answer(301, location=target))


def in_scope(url: str, crawl: CrawlDefinition) -> bool:
    """Whether a URL belongs to a crawl; scopes of plans are hosts."""
    if oracle.forgotten(crawl, url):
        return False
    return crawl.scope.mode == "any" or url.split("/")[2] in crawl.scope.values
