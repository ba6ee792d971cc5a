"""Outcomes on their way to the shards: gathered for a moment, sent together, acked when they are durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from streams.codecs import encode
from streams.errors import MessageError
from streams.messages import FetchOutcome, Outcomes
from streams.topics import INBOX

if TYPE_CHECKING:
    from agents.delivery import Delivery, Slot

GATHER: Final = 0.002
"""Seconds that the first outcome of a message waits for others; later ones gather while a message is being sent."""

MOST: Final = 256
"""Outcomes of one message."""

Entry = tuple[FetchOutcome, "Slot"]


class Outbox:
    """One message at a time for each shard, so that outcomes stand in `inbox` in the order in which they happened."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._waiting: dict[int, list[Entry]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}

    def add(self, shard: int, outcome: FetchOutcome, slot: Slot) -> None:
        """Send `outcome` to `shard` soon; `slot` is done when it is durable."""
        self._waiting.setdefault(shard, []).append((outcome, slot))
        if shard not in self._senders:
            self._senders[shard] = asyncio.create_task(self._send(shard), name=f"outbox-{shard}")

    def clear(self) -> None:
        """The partitions were revoked: send nothing more of what is here."""
        self._waiting.clear()
        for sender in self._senders.values():
            sender.cancel()
        self._senders.clear()

    async def idle(self) -> None:
        """Return when everything is sent."""
        while self._senders:
            await asyncio.wait(self._senders.values())

    async def _send(self, shard: int) -> None:
        try:
            await asyncio.sleep(GATHER)
            while entries := self._waiting.pop(shard, None):
                for at in range(0, len(entries), MOST):
                    await self._message(shard, entries[at : at + MOST])
        except Exception as error:  # noqa: BLE001 - nothing may get lost here without a sound
            self._delivery.fatal(error)
        finally:
            if self._senders.get(shard) is asyncio.current_task():
                del self._senders[shard]

    async def _message(self, shard: int, entries: Sequence[Entry]) -> None:
        """Send outcomes as one message; as two, where long robots rules make it too large."""
        value = encode(Outcomes(items=tuple(outcome for outcome, _ in entries)))
        try:
            sent = await self._delivery.send(INBOX, value, partition=shard)
        except MessageError:
            if len(entries) == 1:
                raise
            half = len(entries) // 2
            await self._message(shard, entries[:half])
            await self._message(shard, entries[half:])
            return
        await sent
        for _, slot in entries:
            slot.done()
