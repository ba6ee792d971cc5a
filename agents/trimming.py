"""Trims `urls` and `inbox` below what the frontier group has committed: they have no time limit of their own.

What was applied stays for `kafka.keep_applied` seconds, so that `fyke audit` can look at it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from streams.errors import EnvironmentFault
from streams.topics import INBOX, URLS

if TYPE_CHECKING:
    from agents.clock import BrokerClock
    from agents.io.admin import Admin

log = logging.getLogger(__name__)

TRIM_EVERY = 60.0


class Trimming:
    """Runs beside the frontier's shards of one process; each process trims the partitions of its own shards."""

    def __init__(self, admin: Admin, owned: Callable[[], Collection[int]], clock: BrokerClock, keep: float) -> None:
        self._admin = admin
        self._owned = owned
        self._clock = clock
        self._keep = keep
        self._trimmed: dict[tuple[str, int], int] = {}

    async def run(self) -> None:
        """Trim until cancelled."""
        while True:
            await asyncio.sleep(TRIM_EVERY)
            for topic in (URLS.name, INBOX.name):
                try:
                    await self.trim(topic)
                except EnvironmentFault as error:
                    log.warning("%s is not trimmed: %s", topic, error.problem)

    async def trim(self, topic: str) -> None:
        """Delete what is both applied and old enough, once."""
        committed = await self._admin.committed("frontier", topic)
        if self._keep:
            kept = await self._admin.offsets_at(topic, self._clock.now() - round(self._keep * 1000))
            committed = {p: min(offset, kept.get(p, offset)) for p, offset in committed.items()}
        wanted = {p: committed[p] for p in self._owned() if committed.get(p, 0) > self._trimmed.get((topic, p), 0)}
        await self._admin.trim(topic, wanted)
        self._trimmed.update({(topic, partition): offset for partition, offset in wanted.items()})
