"""The frontier's shell around a shard: what leaves it, and when it must not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from agents import frontier
from agents.broadcast import Board, Crawls
from agents.clock import BrokerClock
from agents.frontier import Actor, Meter
from streams.codecs import decode
from streams.frontier.release import ShardConfig
from streams.messages import FetchOrder
from streams.metrics import Metrics
from streams.topics import FETCHES, Topic
from tests.simulation.store import MemoryStore
from tests.unit.frontier.rig import Rig, crawl, links, pages


@dataclass
class Table:
    """The rows of one shard, without a changelog."""

    memory: MemoryStore
    claims: int = 0
    claimed: asyncio.Event = field(default_factory=asyncio.Event)

    async def claim(self, shard: int) -> int:
        self.claims += 1
        self.claimed.set()
        return self.claims

    def store(self, shard: int) -> MemoryStore:
        return self.memory

    async def put_many(self, shard: int, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        self.memory.apply(rows)


@dataclass
class Delivery:
    """Keeps the orders that are sent. `heard`: the group has confirmed this worker lately."""

    heard: bool = True
    orders: list[FetchOrder] = field(default_factory=list)
    sent: asyncio.Event = field(default_factory=asyncio.Event)

    def confirmed(self) -> bool:
        return self.heard

    def partitions(self, topic: Topic) -> int:
        return 4

    def position(self, topic: Topic, partition: int) -> int:
        return 0

    async def ends(self, topic: Topic, partitions: Iterable[int]) -> dict[int, int]:
        return dict.fromkeys(partitions, 0)

    async def send(self, topic: Topic, value: bytes, **place: Any) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.set_result(SimpleNamespace(timestamp=0, offset=0))
        return done

    async def send_all(self, topic: Topic, partition: int, items: Iterable[tuple[bytes, bytes]]) -> None:
        assert topic is FETCHES
        self.orders += [decode(FetchOrder, value) for _, value in items]
        self.sent.set()

    def fatal(self, error: BaseException) -> NoReturn:
        raise error


@pytest.fixture
def waiting() -> MemoryStore:
    """The store of a shard in which URLs wait: an owner that loads it has orders to send and no row to write."""
    rig = Rig(crawl())
    rig.turn(links(*pages(3)))
    return rig.store


async def test_an_owner_that_is_not_confirmed_sends_no_order_though_it_has_no_row_to_write(
    waiting: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen and woken again it may have lost its shard: rows are checked where they are written, orders here.

    It loads the shard anew until somebody confirms it, or takes the shard away.
    """
    monkeypatch.setattr(frontier, "RECLAIM_PAUSE", 0.0)
    table, delivery = Table(waiting), Delivery(heard=False)
    crawls = Crawls()
    crawls._definitions["c"] = crawl()
    actor = Actor(
        ShardConfig(shard=3), 100, cast("Any", delivery), cast("Any", table),
        cast("Any", SimpleNamespace(crawls=crawls, board=Board())), BrokerClock(),
        Meter(Metrics().frontier, dict, BrokerClock()), str,
    )  # fmt: skip
    actor.start()
    try:
        async with asyncio.timeout(30):
            while table.claims < 4:
                table.claimed.clear()
                await table.claimed.wait()
            assert delivery.orders == []
            delivery.heard = True
            await delivery.sent.wait()
        assert sorted(order.url for order in delivery.orders) == sorted(pages(3))
        assert {order.epoch for order in delivery.orders} == {table.claims}, "by what was loaded since"
    finally:
        actor.cancel()
