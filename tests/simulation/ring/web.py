"""The sites of a plan: what each URL answers, and, walked without the crawler's code, what a crawl must reach."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from streams.definitions import CrawlDefinition
from streams.messages import FailureClass
from tests.simulation.ring.plan import Plan

CHAIN = 13
"""Redirects in the chain that is too long."""
FAILING = 7
"""Failures in all that pages of one host may cost: fewer than its hold budget, so that all of them succeed at last."""
NEVER = 10**9


@dataclass(frozen=True)
class Answer:
    """What a server says: `status` with links or a `location`, or what keeps it from saying anything."""

    status: int = 200
    links: tuple[str, ...] = ()
    location: str = ""
    failure: FailureClass | None = None
    retry_after: float = 0.0
    seconds: float = 0.05
    body: bytes = b""


@dataclass(frozen=True)
class Page:
    """A URL: its last answer, and how often it fails before."""

    answer: Answer
    fails: int = 0
    failing: Answer = Answer()


@dataclass(frozen=True)
class Robots:
    """A host's robots.txt: `status` after it failed `fails` times; `moved`: on another host."""

    body: bytes = b""
    private: bool = False
    delay: float = 0.0
    fails: int = 0
    status: int = 404
    moved: str = ""


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
        if "redirects" in plan.quirks:
            self._chain()

    def ask(self, url: str) -> Answer:
        """A request arrives."""
        origin, path = self._split(url)
        asked, self.asked[url] = self.asked[url], self.asked[url] + 1
        if origin in self.dead:
            return Answer(0, failure=("dns", "connection", "timeout")[len(origin) % 3], seconds=0.3)
        if path == "/robots.txt":
            return self._robots_answer(self.robots[origin], asked)
        answer = self._answer(url, asked)
        return Answer(answer.status, answer.links, answer.location, answer.failure, answer.retry_after,
                      answer.seconds + 8.0 * (asked % 3)) if origin in self.slow else answer  # fmt: skip

    @cached_property
    def origins(self) -> list[str]:
        """The hosts' origins in order."""
        return list(self.robots)

    def reach(self, crawl: CrawlDefinition, seeds: Iterable[str], disallowing: bool) -> dict[str, frozenset[str]]:
        """Each URL that a crawl must have a row of, with the states in which it may end.

        `disallowing`: whether robots.txt counts. Breadth first, so that every URL is met on its shortest way.
        """
        ends: dict[str, frozenset[str]] = {}
        todo = deque((url, 0, 0) for url in seeds)
        while todo:
            url, depth, hops = todo.popleft()
            if url in ends or (crawl.depth is not None and depth > crawl.depth):
                continue
            ends[url], links, location = self._end(url, crawl, hops, disallowing)
            if location:
                todo.appendleft((location, depth, hops + 1))
            elif crawl.depth is None or depth < crawl.depth:
                todo.extend((link, depth + 1, 0) for link in links if in_scope(link, crawl))
        return ends

    def _end(
        self, url: str, crawl: CrawlDefinition, hops: int, disallowing: bool
    ) -> tuple[frozenset[str], tuple[str, ...], str]:
        origin, path = self._split(url)
        robots = self.robots[origin]
        if not in_scope(url, crawl):
            return frozenset({"excluded"}), (), ""
        if origin in self.dead or (disallowing and self._unreachable(robots)):
            return frozenset({"failed"}), (), ""
        if disallowing and path.startswith("/x/") and self._rules(robots).private:
            return frozenset({"excluded"}), (), ""
        answer = self._answer(url, NEVER)
        if answer.status >= 400:
            return frozenset({"failed"}), (), ""
        if answer.location:
            if hops >= crawl.max_redirects:
                return frozenset({"failed"}), (), ""
            return frozenset({"redirected", "failed"}), (), answer.location  # failed: a way that led in a circle
        return frozenset({"done"}), answer.links, ""

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
        return page.failing if asked < page.fails else page.answer

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

    def _host(self, number: int, rng: random.Random) -> None:
        quirks, origin = self.plan.quirks, f"http://h{number}.example"
        if "dead" in quirks and number and rng.random() < 0.25:
            self.dead.add(origin)
        if "slow" in quirks and rng.random() < 0.3:
            self.slow.add(origin)
        self.robots[origin] = self._robots_of(number, rng) if "robots" in quirks else Robots()

    def _robots_of(self, number: int, rng: random.Random) -> Robots:
        kind = rng.randrange(7)
        if kind == 5 and number:
            return Robots(moved="http://h0.example")
        if kind == 6 and number:
            return Robots(fails=NEVER)
        fails = rng.choice((0, 0, 3)) if number else 0
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
        return f"http://h{host}.example/{'x/' if private else ''}p{number}"

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
            links = (*links, "http://h0.example/c0")
        if "traps" in quirks and rng.random() < 0.2:
            links = (*links, f"{self._split(names[number])[0]}/t/0")
        answer = Answer(links=links, seconds=rng.uniform(0.01, 0.3))
        fails, failing = 0, Answer()
        if "flaky" in quirks and rng.random() < 0.25:
            fails = rng.randint(1, 3)
            failing = rng.choice((Answer(0, failure="timeout"), Answer(500), Answer(0, failure="incomplete")))
        elif "busy" in quirks and rng.random() < 0.25:
            fails = 1
            failing = Answer(rng.choice((429, 503)), retry_after=rng.choice((3.0, 30.0, 600.0)))
        origin, _ = self._split(names[number])
        if self._failing[origin] + fails > FAILING:
            fails = 0
        self._failing[origin] += fails
        return Page(answer, fails, failing)

    def _chain(self) -> None:
        hosts = self.plan.hosts
        urls = [f"http://h{i % hosts}.example/c{i}" for i in range(CHAIN)]
        for url, target in zip(urls, [*urls[1:], self.names[0]], strict=True):
            self.pages[url] = Page(Answer(301, location=target))


def in_scope(url: str, crawl: CrawlDefinition) -> bool:
    """Whether a URL belongs to a crawl; scopes of plans are hosts."""
    return crawl.scope.mode == "any" or url.split("/")[2] in crawl.scope.values
