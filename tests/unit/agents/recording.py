"""A delivery without a broker: it keeps what a stage sends, and hands out real slots."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

from agents.clock import BrokerClock
from agents.delivery.acker import Acker, Slot
from agents.delivery.stage import Batch
from streams.codecs import decode_inbox, decode_page_headers, encode
from streams.errors import MessageError
from streams.messages import FetchOrder, FetchOutcome, Outcomes, PageHeaders
from streams.metrics import Metrics
from streams.settings import Settings
from streams.topics import FETCHES, INBOX, PAGES, Topic

PARTITIONS = 4


@dataclass
class Sent:
    topic: str
    partition: int
    key: bytes | None
    value: bytes
    headers: Sequence[tuple[str, bytes]]


@dataclass
class Group:
    """What the fetcher asks of its Faust app."""

    consumer_generation_id: int = 0
    end_offsets: dict[int, int] = field(default_factory=dict)


@dataclass
class Recorder:
    """Stands in for `agents.delivery.Delivery`. `gate`: cleared, sends to `pages` are not acknowledged."""

    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    clock: BrokerClock = field(default_factory=BrokerClock)
    app: Group = field(default_factory=Group)
    sent: list[Sent] = field(default_factory=list)
    acked: dict[int, int] = field(default_factory=dict)
    poisoned: list[str] = field(default_factory=list)
    heard: bool = True  # the group's coordinator confirms us
    page_limit: int = 12 << 20
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    claimed: set[int] = field(default_factory=set)
    _ackers: dict[int, Acker] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate.set()

    # ---- what the stage calls

    def partitions(self, topic: Topic) -> int:
        return PARTITIONS

    async def learn_time(self) -> None:
        """The stand's clock is right."""

    def largest(self, topic: Topic) -> int:
        return self.page_limit

    async def send(
        self,
        topic: Topic,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> asyncio.Future[Any]:
        size = len(value) + len(key or b"") + sum(len(name) + len(content) for name, content in headers)
        if size > self.page_limit:
            raise MessageError(f"a message of {size} bytes is too large for {topic.name}")
        self.sent.append(Sent(topic.name, partition, key, value, headers))
        self.changed.set()
        return asyncio.ensure_future(self._acknowledge(topic, len(self.sent) - 1))

    async def _acknowledge(self, topic: Topic, offset: int) -> Any:
        await asyncio.sleep(0)
        if topic is PAGES:
            await self.gate.wait()
        return SimpleNamespace(offset=offset)

    def slot(self, batch: Batch, first: int, last: int) -> Slot:
        return self._ackers[batch.partition].take(first, last)

    def position(self, topic: Topic, partition: int) -> int:
        assert topic is FETCHES
        return self._ackers[partition].position

    async def ends(self, topic: Topic, partitions: Iterable[int]) -> dict[int, int]:
        assert topic is FETCHES
        return {number: self.app.end_offsets.get(number, 0) for number in partitions}

    async def claim(self, topic: Topic, partitions: Iterable[int]) -> set[int]:
        assert topic is FETCHES
        first = set(partitions) - self.claimed
        self.claimed |= first
        return first

    def confirmed(self) -> bool:
        return self.heard

    async def unreadable(self, batch: Batch, record: Any, reason: str) -> None:
        self.poisoned.append(reason)

    def fatal(self, error: BaseException) -> NoReturn:
        raise SystemExit(f"fatal: {error!r}") from error

    # ---- what a test does

    async def assign(self, stage: Any, *partitions: int, generation: int | None = None) -> None:
        """The group gives partitions to the stage; positions are what was acked.

        `generation`: not the next one of this member; others had the partitions before.
        """
        if generation is not None:
            self.claimed.update(partitions)
        self.app.consumer_generation_id = generation or self.app.consumer_generation_id + 1
        self._ackers = {number: self._acker(number) for number in partitions}
        await stage.assigned(frozenset((FETCHES.name, number) for number in partitions))

    def revoke(self, stage: Any) -> None:
        """The first sign of a rebalance."""
        for acker in self._ackers.values():
            acker.close()
        stage.revoked()

    async def give(self, stage: Any, partition: int, *orders: FetchOrder | bytes, first: int | None = None) -> None:
        """A batch of orders. `first`: their first offset, where they were given before."""
        start = self._offsets.get(partition, 0) if first is None else first
        records = [
            SimpleNamespace(
                offset=start + at, value=order if isinstance(order, bytes) else encode(order), key=b"", headers=()
            )
            for at, order in enumerate(orders)
        ]
        self._offsets[partition] = max(self._offsets.get(partition, 0), start + len(records))
        self.app.end_offsets[partition] = self._offsets[partition]
        self._ackers[partition].arrive([record.offset for record in records])
        await stage.batch(Batch(FETCHES.name, partition, self.app.consumer_generation_id, records))

    def _acker(self, number: int) -> Acker:
        return Acker(self.acked.get(number, 0), lambda _, position: self._moved(number, position))

    def _moved(self, number: int, position: int) -> None:
        self.acked[number] = position
        self.changed.set()

    def outcomes(self) -> list[FetchOutcome]:
        """All outcomes that were sent, in order."""
        found: list[FetchOutcome] = []
        for sent in self.sent:
            if sent.topic == INBOX.name:
                message = decode_inbox(sent.value)
                assert isinstance(message, Outcomes)
                found += [item for item in message.items if isinstance(item, FetchOutcome)]
        return found

    def pages(self) -> list[tuple[PageHeaders, bytes]]:
        """All pages that were sent, in order."""
        return [(decode_page_headers(sent.headers), sent.value) for sent in self.sent if sent.topic == PAGES.name]

    async def until(self, outcomes: int, seconds: float = 30.0) -> list[FetchOutcome]:
        """Wait until so many outcomes were sent and acked; all of them."""
        async with asyncio.timeout(seconds):
            while len(self.outcomes()) < outcomes or not self._idle():
                self.changed.clear()
                await self.changed.wait()
        return self.outcomes()

    def _idle(self) -> bool:
        return all(acker.in_flight == 0 for acker in self._ackers.values())
