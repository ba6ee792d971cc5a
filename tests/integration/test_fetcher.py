"""The fetcher on a real broker: orders in, pages and outcomes out; first owner, next owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from agents.delivery import StageRunner
from agents.fetcher import FetcherStage
from agents.io.admin import Admin
from streams.codecs import decode_inbox, decode_page_headers, encode
from streams.messages import FetchOrder, FetchOutcome, Outcomes
from streams.topics import FETCHES, INBOX, PAGES
from tests.kafka import settings_for
from tests.servers.hostile import HostileServer
from tests.unit.agents.stand import Crawls, order, page

if TYPE_CHECKING:
    from streams.settings import Settings
    from tests.kafka import TestBroker

pytestmark = pytest.mark.broker


@asynccontextmanager
async def fetching(settings: Settings, crawls: Crawls) -> AsyncIterator[StageRunner]:
    """A fetcher that runs until the block ends."""
    runner = StageRunner(
        FetcherStage(settings, crawls), settings, bootstrap=settings.kafka.bootstrap, datadir=settings.worker.state
    )
    stop = asyncio.Event()
    work = asyncio.create_task(runner.run(stop))
    try:
        yield runner
    finally:
        stop.set()
        await work


async def produce(settings: Settings, *orders: FetchOrder) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap)
    await producer.start()
    try:
        for one in orders:
            await producer.send_and_wait(settings.kafka.prefix + FETCHES.name, encode(one), partition=0)
    finally:
        await producer.stop()


async def read(settings: Settings, topic: str, count: int) -> list[Any]:
    """The first `count` records of a topic, in the order in which they came."""
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.kafka.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        name = settings.kafka.prefix + topic
        partitions = consumer.partitions_for_topic(name) or await consumer._client._wait_on_metadata(name)
        consumer.assign([TopicPartition(name, number) for number in partitions])
        await consumer.seek_to_beginning()
        async with asyncio.timeout(90):
            return [await consumer.getone() for _ in range(count)]
    finally:
        await consumer.stop()


async def outcomes(settings: Settings, count: int) -> list[FetchOutcome]:
    """So many outcomes, however many messages they came in."""
    messages = 1
    while True:
        found: list[FetchOutcome] = []
        for record in await read(settings, INBOX.name, messages):
            message = decode_inbox(record.value)
            assert isinstance(message, Outcomes)
            found += [item for item in message.items if isinstance(item, FetchOutcome)]
        if len(found) >= count:
            return found
        messages += 1


async def test_orders_become_pages_and_outcomes_and_a_next_owner_waits(broker: TestBroker) -> None:
    crawls = Crawls()
    crawls.define()
    routes = [page("/a"), page("/b"), page("/c")]
    async with HostileServer(routes) as server:
        settings = settings_for(
            broker.settings.worker.state,
            broker.bootstrap,
            broker.prefix,
            fetch={"allow_private": True, "connect_to": server.connect_to()},
            kafka={"session_timeout": 6.0, "heartbeat": 0.5},
        )
        async with Admin(broker.bootstrap, settings) as admin:
            await admin.apply_topics()
        a, b, c = (order(f"http://a.test/{name}") for name in "abc")
        await produce(settings, a)  # before there is a fetcher: the first owner ever need not wait
        async with fetching(settings, crawls):
            (first,) = await outcomes(settings, 1)
            assert first.result == "fetched"
            (record,) = await read(settings, PAGES.name, 1)
            assert (decode_page_headers(record.headers).url, record.value) == ("http://a.test/a", b"body of /a")
            assert first.page == (record.partition, record.offset)
        await produce(settings, b)  # open at the take-over: it may run elsewhere, so it goes back
        async with fetching(settings, crawls):
            assert [found.reason for found in await outcomes(settings, 2)] == ["", "taken over"]
            await produce(settings, c)
            assert [found.result for found in await outcomes(settings, 3)] == ["fetched", "deferred", "fetched"]
        assert server.urls == ["http://a.test/a", "http://a.test/c"]
        waited = server.seen[1].at - server.seen[0].at
        assert waited > 2.0
