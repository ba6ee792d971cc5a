"""Whoever runs `fyke` commands meanwhile: changes of definitions by compare-and-set, and words to shards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from agents.broadcast import publish
from streams.definitions import CrawlDefinition, LimitRule
from streams.messages import Command
from streams.policy.forgetting import denied_by, deny_host, deny_url
from streams.policy.urls import canonical, fingerprint
from streams.topics import Topic, shard_of
from tests.simulation.ring.broker import Group
from tests.simulation.ring.engine import step, until
from tests.simulation.ring.stage import Stage

if TYPE_CHECKING:
    from tests.simulation.ring.ring import Ring

Change = Callable[[CrawlDefinition], CrawlDefinition]

replace = msgspec.structs.replace
TRIES = 5


class Operator(Stage):
    """Several people at one desk: what one of them reads another may be changing. Nothing strikes them."""

    def __init__(self, ring: Ring) -> None:
        super().__init__(ring, "operator", Group(ring.engine, ()))
        self.conflicts = 0

    def update(self, name: str, change: Change) -> None:
        """Change a crawl's definition, as soon as it is one's turn; `change` gives back what is not to be changed."""
        self.spawn(self._update(name, change))

    def forget(self, name: str, url: str, *, host: bool) -> None:
        """What `fyke forget` does, for a URL or for its whole host."""
        self.spawn(self._forget(name, url, host=host))

    def hold(self, name: str, seconds: float) -> None:
        """Pause a crawl for a while, and let it go on whoever else is changing it."""
        self.spawn(self._hold(name, seconds))

    async def _hold(self, name: str, seconds: float) -> None:
        await self._update(name, paused)
        await until(None, self.engine.time + seconds)
        while await self._update(name, unpaused) is None:
            await step()

    async def _update(self, name: str, change: Change) -> CrawlDefinition | None:
        for _ in range(TRIES):
            known = self.crawls[name]
            wanted = change(known)
            if wanted == known:
                return known
            wanted = replace(wanted, version=known.version + 1)
            if await publish(self.crawls, wanted, self._send, self._catch_up):
                return wanted
            self.conflicts += 1
        return None  # it is being changed by others: the command says so and does nothing more

    async def _forget(self, name: str, url: str, *, host: bool) -> None:
        where = url.split("/")[2]
        rule = deny_host(where) if host else deny_url(url)
        definition = await self._update(name, lambda known: denied_by(known, rule))
        if definition is None:
            return
        key = bytes(16) if host else fingerprint(name, canonical(url))
        command = Command(action="forget", crawl=name, rules=definition.version, fingerprint=key,
                          url="" if host else url, host=where if host else "")  # fmt: skip
        self.ring.judge.forgets(name, url, host=host)
        await self.write(partial(self.ring.deliver, shard_of(self.ring.key(url), self.ring.plan.shards), command))

    async def _send(self, topic: Topic, key: bytes, value: bytes) -> None:
        await self.write(partial(self.ring.define, key, value))

    async def _catch_up(self) -> None:
        await step()
        self.catch_up()


# ---- what they want


def slower(crawl: CrawlDefinition) -> CrawlDefinition:
    """A second more between two requests."""
    return _unless_ended(crawl, delay=crawl.delay + 1.0)


def fewer(crawl: CrawlDefinition) -> CrawlDefinition:
    """One request less at a time."""
    return _unless_ended(crawl, parallelism=max(1, crawl.parallelism - 1))


def paused(crawl: CrawlDefinition) -> CrawlDefinition:
    """`fyke pause`."""
    return _unless_ended(crawl, state="paused")


def unpaused(crawl: CrawlDefinition) -> CrawlDefinition:
    """`fyke unpause`."""
    return replace(crawl, state="sealed") if crawl.state == "paused" else crawl


def cancelled(at: int) -> Change:
    """`fyke cancel` at a time (ms)."""
    return lambda crawl: _unless_ended(crawl, state="ended", result="cancelled", ended=at)


def ruled(*rules: LimitRule) -> Change:
    """Other limit rules."""
    return lambda crawl: _unless_ended(crawl, limits=rules)


def _unless_ended(crawl: CrawlDefinition, **changes: object) -> CrawlDefinition:
    return crawl if crawl.state == "ended" else replace(crawl, **changes)
