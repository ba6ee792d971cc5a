"""Intake: `urls` → `inbox`. Reads what people produce, checks it, and routes each seed to its shard."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from streams import messages as m
from streams.codecs import decode_seed, encode, split_seeds
from streams.errors import MessageError
from streams.policy import urls
from streams.policy.keys import canonical_by
from streams.topics import INBOX, URLS, Topic, shard_of

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord

    from agents.broadcast import Broadcast
    from agents.delivery import Batch, Delivery


class IntakeStage:
    """Stateless: a record of `urls` is done when all its seeds are durable in `inbox` (or in `failures`)."""

    name = "intake"
    topics: tuple[Topic, ...] = (URLS,)

    def __init__(self, broadcast: Broadcast, politeness: urls.PolitenessMode) -> None:
        self._broadcast = broadcast
        self._politeness = politeness

    async def start(self, delivery: Delivery) -> None:
        """Remember where to send."""
        self._delivery = delivery
        self._shards = delivery.partitions(INBOX)

    async def assigned(self, partitions: frozenset[tuple[str, int]]) -> None:
        """Nothing is kept between batches."""

    def revoked(self) -> None:
        """Nothing is kept between batches."""

    async def batch(self, batch: Batch) -> None:
        """Route the seeds of one batch."""
        slot = self._delivery.slot(batch, batch.first, batch.last)
        shards: dict[int, list[m.Candidate]] = defaultdict(list)
        for record in batch.records:
            for item in await self._candidates(batch, record):
                key = urls.politeness_key(item.url, self._politeness)
                shards[shard_of(key, self._shards)].append(item)
        sent = [
            await self._delivery.send(INBOX, encode(m.Candidates(items=tuple(pack))), partition=shard)
            for shard, items in shards.items()
            for pack in packs(items)
        ]
        await asyncio.gather(*sent)
        slot.done()

    async def drain(self) -> None:
        """A batch is finished before the next is taken."""

    async def stop(self) -> None:
        """Nothing to give back."""

    async def _candidates(self, batch: Batch, record: ConsumerRecord) -> list[m.Candidate]:
        """The seeds of one record that can be crawled; each of the others becomes a failure."""
        try:
            parts, array = split_seeds(record.value)
        except MessageError as error:
            await self._delivery.unreadable(batch, record, error.reason)
            return []
        trace = next((value.decode("ascii", "replace") for name, value in record.headers if name == "traceparent"), "")
        items: list[m.Candidate] = []
        for index, data in enumerate(parts):
            origin = m.Origin(batch.topic, batch.partition, record.offset, index)
            known: dict[str, Any] = {}
            try:
                seed = decode_seed(data)
                known = {"url": seed.url, "crawl": seed.crawl, "meta": seed.meta,
                         "traceparent": seed.traceparent or trace}  # fmt: skip
                items.append(await self._candidate(seed, origin, trace))
            except MessageError as error:
                part = (index, data) if array else None
                await self._delivery.unreadable(batch, record, error.reason, part, **known)
        return items

    async def _candidate(self, seed: m.Seed, origin: m.Origin, trace: str) -> m.Candidate:
        wire = urls.parse(seed.url)
        if wire is None:
            raise MessageError(f"not an http or https URL: {seed.url[:200]}")
        if seed.crawl not in self._broadcast.crawls:
            await self._broadcast.catch_up()  # the definition may be newer than what was read
            if seed.crawl not in self._broadcast.crawls:
                raise MessageError(f"no crawl is called {seed.crawl}: publish its definition first")
        key = canonical_by(self._broadcast.crawls[seed.crawl].keys)(wire)
        return m.Candidate(
            url=wire, fingerprint=urls.fingerprint(seed.crawl, key), crawl=seed.crawl,
            depth=seed.depth, priority=seed.priority, refetch=seed.refetch, headers=seed.headers, meta=seed.meta,
            origin=origin, traceparent=seed.traceparent or trace,
        )  # fmt: skip


def packs(items: list[m.Candidate]) -> list[list[m.Candidate]]:
    """Cut a list of candidates so that each part is one message: at most PACK_ITEMS and PACK_BYTES."""
    out: list[list[m.Candidate]] = []
    room = 0
    for item in items:
        size = len(encode(item)) + 1
        if not out or size > room or len(out[-1]) == m.PACK_ITEMS:
            out.append([])
            room = m.PACK_BYTES
        out[-1].append(item)
        room -= size
    return out
