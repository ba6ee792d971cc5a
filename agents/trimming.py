"""Trims `urls` and `inbox` below what the frontier group has committed: they have no time limit of their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from streams.errors import EnvironmentFault
from streams.topics import INBOX, URLS

if TYPE_CHECKING:
    from agents.io.admin import Admin

log = logging.getLogger(__name__)

TRIM_EVERY = 60.0


class Trimming:
    """Runs beside the frontier's shards of one process; each process trims the partitions of its own shards."""

    def __init__(self, admin: Admin, owned: Callable[[], Collection[int]]) -> None:
        self._admin = admin
        self._owned = owned
        self._trimmed: dict[tuple[str, int], int] = {}

    async def run(self) -> None:
        """Trim until cancelled."""
        while True:
            await asyncio.sleep(TRIM_EVERY)
            for topic in (URLS.name, INBOX.name):
                try:
                    await self._trim(topic)
                except EnvironmentFault as error:
                    log.warning("%s is not trimmed: %s", topic, error.problem)

    async def _trim(self, topic: str) -> None:
        committed = await self._admin.committed("frontier", topic)
        wanted = {p: committed[p] for p in self._owned() if committed.get(p, 0) > self._trimmed.get((topic, p), 0)}
        await self._admin.trim(topic, wanted)
        self._trimmed.update({(topic, partition): offset for partition, offset in wanted.items()})
