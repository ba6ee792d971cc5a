"""Announces the end of sealed crawls: the owner of shard hash(crawl) watches, and writes the end to `crawls`, once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from agents.broadcast import Send, publish
from streams.definitions import CrawlDefinition
from streams.errors import EnvironmentFault
from streams.frontier.end import EndWatch, result_of, seems_over
from streams.topics import INBOX, URLS, shard_of

if TYPE_CHECKING:
    from agents.broadcast import Broadcast
    from agents.clock import BrokerClock
    from agents.io.admin import Admin

log = logging.getLogger(__name__)

LOOK_EVERY = 0.25
"""Seconds between two looks; the expensive questions are asked only when nothing seems open."""


class Ending:
    """Runs beside the frontier's shards of one process."""

    def __init__(
        self, broadcast: Broadcast, admin: Admin, clock: BrokerClock, send: Send, shards: int,
        owned: Callable[[], Collection[int]],
    ) -> None:  # fmt: skip
        self._broadcast = broadcast
        self._admin = admin
        self._clock = clock
        self._send = send
        self._shards = shards
        self._owned = owned
        self._watches: dict[str, EndWatch] = {}

    async def run(self) -> None:
        """Look for ends until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for crawl in list(self._broadcast.crawls.values()):
                if not self._mine(crawl):
                    self._watches.pop(crawl.id, None)
                    continue
                try:
                    await self._look(crawl)
                except EnvironmentFault as error:  # the broker is away: nothing ends meanwhile
                    log.warning("the end of crawl %s cannot be decided now: %s", crawl.id, error.problem)

    def _mine(self, crawl: CrawlDefinition) -> bool:
        return (
            crawl.state == "sealed"
            and shard_of(crawl.id, self._shards) in self._owned()
            and seems_over(crawl.id, self._broadcast.board, self._shards)
        )

    async def _look(self, crawl: CrawlDefinition) -> None:
        if not await self._seeds_taken(crawl):
            return
        watch = self._watches.setdefault(crawl.id, EndWatch(crawl.id, self._shards))
        ends = await self._admin.end_offsets(INBOX.name)
        if watch.step(self._broadcast.board, [ends[shard] for shard in range(self._shards)]):
            del self._watches[crawl.id]
            await self._announce(crawl)

    async def _seeds_taken(self, crawl: CrawlDefinition) -> bool:
        """Whether the crawl's last seeds have left `urls`: the intake has committed past the seal."""
        if crawl.id in self._watches:
            return True
        committed = await self._admin.committed("frontier", URLS.name)
        return all(committed.get(partition, 0) >= end for partition, end in (crawl.seal or {}).items())

    async def _announce(self, crawl: CrawlDefinition) -> None:
        result = result_of(crawl.id, self._broadcast.board.values())
        ended = msgspec.structs.replace(
            crawl, version=crawl.version + 1, by="frontier", state="ended", ended=self._clock.now(), result=result
        )
        if await publish(self._broadcast.crawls, ended, self._send, self._broadcast.catch_up):
            log.info("crawl %s ended: %s", crawl.id, result)
