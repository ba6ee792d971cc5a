"""The parser stage with a delivery that records instead of sending: order and content are judged without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agents.delivery import Batch
from agents.parser import ParserStage
from streams import codecs
from streams.deaths import Death, Deaths
from streams.definitions import CrawlDefinition
from streams.messages import PageHeaders, ParseOutcome, Record
from streams.metrics import Metrics
from streams.settings import Parse, Settings, Worker
from streams.topics import DEATHS, INBOX, PAGES, RECORDS, Topic

SHARDS = 4


class Fatal(BaseException):
    """What `Delivery.fatal` does to the process."""


@dataclass
class RecordingSlot:
    log: list[tuple[str, Any]]
    first: int
    last: int

    def done(self) -> None:
        self.log.append(("ack", (self.first, self.last)))


@dataclass
class RecordingDelivery:
    """A delivery without a broker. `log` has what became durable, in its order; `gate` holds durability back."""

    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    log: list[tuple[str, Any]] = field(default_factory=list)
    slots: list[tuple[int, int]] = field(default_factory=list)
    room: int = 12_000_000
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    failing: Exception | None = None
    fatals: list[BaseException] = field(default_factory=list)
    clock: Any = field(default_factory=lambda: SimpleNamespace(now=lambda: 99))

    def partitions(self, _topic: Topic) -> int:
        return SHARDS

    async def learn_time(self) -> None:
        """The rig's clock is right."""

    def largest(self, _topic: Topic) -> int:
        return self.room

    async def send(
        self, topic: Topic, value: bytes, *, key: bytes | None = None, partition: int, headers: Any = ()
    ) -> Awaitable[None]:
        if topic is DEATHS:
            return asyncio.create_task(self._durable("death", codecs.decode(Death, value)))
        assert topic is INBOX
        assert key is None
        assert not headers
        message = codecs.decode_inbox(value)
        return asyncio.create_task(self._durable(type(message).__name__.lower(), (partition, message)))

    async def _durable(self, kind: str, what: Any) -> None:
        await self.gate.wait()
        if self.failing is not None:
            raise self.failing
        self.log.append((kind, what))

    async def send_all(self, topic: Topic, partition: int, items: Any) -> int:
        assert topic is RECORDS
        await self.gate.wait()
        for key, value in items:
            self.log.append(("record", (partition, key.decode(), codecs.decode(Record, value))))
        return 0

    def slot(self, _batch: Batch, first: int, last: int) -> RecordingSlot:
        self.slots.append((first, last))
        return RecordingSlot(self.log, first, last)

    async def unreadable(self, batch: Batch, record: Any, reason: str) -> None:
        self.log.append(("unreadable", (batch.topic, record.offset, reason)))

    def fatal(self, error: BaseException) -> None:
        self.fatals.append(error)
        raise Fatal(error)

    def of(self, kind: str) -> list[Any]:
        return [what for name, what in self.log if name == kind]

    @property
    def outcomes(self) -> list[ParseOutcome]:
        return [item for _, message in self.of("outcomes") for item in message.items]

    @property
    def sent(self) -> list[str]:
        return [url for _, message in self.of("links") for url in message.urls]

    @property
    def records(self) -> list[Record]:
        return [record for _, _, record in self.of("record")]


@dataclass
class Published:
    """Definitions; those in `later` are only read by `catch_up`; `log` is the delivery's."""

    crawls: dict[str, CrawlDefinition]
    later: dict[str, CrawlDefinition] = field(default_factory=dict)
    deaths: Deaths = field(default_factory=Deaths)
    log: list[tuple[str, Any]] = field(default_factory=list)

    async def catch_up(self) -> None:
        self.log.append(("caught up", None))
        self.crawls.update(self.later)


@dataclass
class Rig:
    stage: ParserStage
    delivery: RecordingDelivery
    published: Published

    async def run(self, *bodies: bytes, first: int = 0, partition: int = 1, **facts: Any) -> None:
        """Give the stage one batch and wait until all of it is acked."""
        await self.stage.batch(batch(*bodies, first=first, partition=partition, **facts))
        await self.stage.drain()


def batch(*bodies: bytes, first: int = 0, partition: int = 1, **facts: Any) -> Batch:
    records = [record(first + n, body, **facts) for n, body in enumerate(bodies)]
    return Batch(PAGES.name, partition, 1, records)


def record(offset: int, body: bytes | None, raw: Any = None, **facts: Any) -> Any:
    given: dict[str, Any] = {
        "crawl": "c", "url": f"http://a.test/{offset}", "fingerprint": bytes(15) + bytes([offset % 256]), "visit": 3,
        "shard": 2, "status": 200, "headers": [("Content-Type", "text/html")], "start": 10, "first_byte": 11, "end": 12,
    } | facts  # fmt: skip
    headers = codecs.encode_page_headers(PageHeaders(**given)) if raw is None else raw
    return SimpleNamespace(offset=offset, value=body, headers=headers)


def settings(state: Path, **parse: Any) -> Settings:
    return Settings(worker=Worker(state=state), parse=Parse(**parse))
