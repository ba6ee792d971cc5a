"""Reports what cannot be read in `crawls` and `progress` to `failures`.

Every worker reads these two topics, and none stops at a broken record. One of them reports it: the owner of shard 0.
What it has reported it commits under a group of its own, so that its successor, who reads the topics from their
beginning, does not report it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from streams.topics import BROADCAST_GROUP

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord

    from agents.broadcast import Broadcast
    from agents.io.admin import Admin
    from agents.io.seeds import Writer
    from streams.topics import Topic

Report = Callable[["Topic", "ConsumerRecord", str], Awaitable[None]]
"""Writes one record of a topic, with the reason, to `failures` and returns when it is there."""

LOOK_EVERY = 1.0


class Reporting:
    """Runs beside the frontier's shards of one process."""

    def __init__(
        self, broadcast: Broadcast, admin: Admin, writer: Writer, report: Report, owned: Callable[[], Collection[int]]
    ) -> None:
        self._broadcast = broadcast
        self._admin = admin
        self._writer = writer
        self._report = report
        self._owned = owned

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            topic, record, reason = await self._broadcast.unreadable.get()
            while 0 not in self._owned():  # noqa: ASYNC110 - rare; another one reports it, but may die before it does
                await asyncio.sleep(LOOK_EVERY)
            committed = await self._admin.committed(BROADCAST_GROUP, topic.name)
            if committed.get(0, 0) <= record.offset:
                await self._report(topic, record, reason)
                await self._writer.commit(BROADCAST_GROUP, {topic.name: {0: record.offset + 1}})
