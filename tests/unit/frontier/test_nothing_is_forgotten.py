"""Whatever happens, a URL that waits is released in the end, without a restart and without a busy loop."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from streams import messages as m
from streams.frontier.rows import State, decode_url_row
from tests.unit.frontier.rig import HOUR, Rig, answer, crawl, failed, links, parsed, rules, seed, seeds

HOSTS = [f"http://h{i}.example" for i in range(4)] + ["https://h0.example"]


class Chaos:
    """Random operations on one shard with two crawls."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        robots = number % 2 == 0
        self.rig = Rig(
            crawl("a", robots=robots, parallelism=1, delay=self.random.choice((0.0, 0.3, 2.0))),
            crawl("b", limit=None, depth=9),
            release_floor=self.random.choice((1, 3, 64)),
            answer_timeout=20.0,
        )
        self.out: list[m.FetchOrder] = []
        self.made = 0

    def url(self) -> str:
        self.made += 1
        return f"{self.random.choice(HOSTS)}/{self.made}"

    def known_url(self) -> str:
        return f"{self.random.choice(HOSTS)}/{self.random.randint(1, self.made + 1)}"

    def step(self) -> None:
        often: list[Callable[[], None]] = [self.links] * 3 + [self.answers] * 8 + [self.time] * 4
        rare = [self.seeds, self.again, self.hold, self.redrive, self.crash, self.clock, self.pause, self.limit]
        kinds = often + rare
        self.random.choice(kinds)()

    def turn(self, *messages: m.Inbox) -> None:
        self.out += self.rig.turn(*messages)

    def links(self) -> None:
        found = [self.url() for _ in range(self.random.choice((1, 3, 40)))]
        self.turn(links(*found, name=self.random.choice("ab"), depth=self.random.randint(0, 5)))

    def seeds(self) -> None:
        self.turn(seeds(seed(self.url(), self.random.choice("ab"), priority=self.random.randint(0, 9))))

    def again(self) -> None:
        name = self.random.choice("ab")
        self.turn(seeds(seed(self.known_url(), name, refetch=True)), links(self.known_url(), name=name, depth=0))

    def time(self) -> None:
        self.rig.now += self.random.choice((0, 1, 50, 300, 2000, 30_000))
        self.turn()

    def clock(self) -> None:
        self.rig.now += self.random.choice((-HOUR, HOUR))
        self.turn()

    def crash(self) -> None:
        self.rig.load()

    def pause(self) -> None:
        self.rig.change("a", state=self.random.choice(("paused", "open")))
        self.turn()

    def limit(self) -> None:
        self.rig.change("b", limit=self.random.choice((None, 1, 30, 10_000)))
        self.turn()

    def redrive(self) -> None:
        rows = [decode_url_row(value) for name, value in self.rig.store.rows.items() if name[:1] == b"u"]
        ended = [row for row in rows if not row.open]
        if ended:
            row = self.random.choice(ended)
            fingerprint = seed(row.url, row.crawl).fingerprint
            self.turn(m.Command(action="redrive", crawl=row.crawl, url=row.url, fingerprint=fingerprint,
                                visit=row.visit + 1))  # fmt: skip

    def hold(self) -> None:
        if self.out:
            self.turn(failed(self.random.choice(self.out), "http_status", status=429, retry_after=90.0))

    def answers(self) -> None:
        """Answer orders, sometimes never, sometimes twice, in any order."""
        self.random.shuffle(self.out)
        for order in self.out[: self.random.randint(0, 5)]:
            self.out.remove(order)
            for message in self.answer(order) * self.random.choice((1, 1, 2)):
                self.turn(message)

    def answer(self, order: m.FetchOrder) -> list[m.Inbox]:
        kind = self.random.random()
        if kind < 0.05:
            return []
        if kind < 0.2:
            return [answer(order, "deferred", retry_after=self.random.choice((None, 3.0)))]
        if kind < 0.35:
            return [failed(order)]
        if order.kind == "robots":
            return [rules(order, (False, "/1"), expires=self.rig.now + HOUR)]
        if kind < 0.4:
            return [answer(order, "redirected", status=301, location=self.url())]
        both: list[m.Inbox] = [answer(order), parsed(order)]
        return both if self.random.random() < 0.8 else both[::-1]

    def finish(self) -> None:
        """Everything is open again, every order is answered well, time passes as the shard asks."""
        self.rig.change("a", state="open")
        self.rig.change("b", limit=None)
        for _ in range(6000):
            self.out += self.rig.settle()
            todo, self.out = self.out, []
            for order in todo:
                if order.kind == "robots":
                    self.turn(rules(order, expires=self.rig.now + HOUR))
                else:
                    self.turn(answer(order), parsed(order))
            if not self.waiting():
                return
            if not self.out:
                self.out += self.rig.sleep()
        raise AssertionError(f"{len(self.waiting())} URLs are forgotten: {self.waiting()[:3]}")

    def waiting(self) -> list[str]:
        rows = [decode_url_row(value) for name, value in self.rig.store.rows.items() if name[:1] == b"u"]
        return [row.url for row in rows if row.state is State.WAITING]


@pytest.mark.parametrize("number", range(40))
def test_every_waiting_url_is_released(number: int) -> None:
    chaos = Chaos(number)
    for _ in range(120):
        chaos.step()
    chaos.finish()
    chaos.rig.settle()
    assert chaos.rig.shard.unanswered() == 0
    while chaos.rig.hosts:  # each is remembered until its delay has passed
        chaos.rig.sleep()
