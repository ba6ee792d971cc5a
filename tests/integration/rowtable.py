"""A worker with nothing but the table, and what tests do to its changelog behind its back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import faust
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from agents.delivery.producer import Producer
from agents.io.admin import Admin
from streams.state.fencing import Accept, Headers, fence
from streams.state.ledger import Item
from streams.state.recovery import RowTables
from streams.state.table import RowTable
from streams.topics import CHANGELOG, INBOX
from tests.unit.state.rows import ByState, counters_of, index_of

PARTITION = 1
ROWS = {b"%05d" % number: b"w" + bytes([number % 7]) + b"row" for number in range(3000)}


class Pausing:
    """A producer whose process is frozen while a batch is in it: nothing leaves before `thaw`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.thaw = asyncio.Event()
        self.thaw.set()

    async def send_all(
        self, topic: str, partition: int, items: Sequence[Item], headers: Headers = ()
    ) -> list[tuple[int, int]]:
        await self.thaw.wait()
        return await self._producer.send_all(topic, partition, items, headers)


@asynccontextmanager
async def worker(settings, writer, datadir: Path, accept: Accept = fence) -> AsyncIterator[RowTable]:
    """A worker of the frontier's group with nothing but the table; ready when the block begins."""
    kafka = settings.kafka
    app = faust.App(
        f"{kafka.prefix}frontier",
        broker=f"kafka://{kafka.bootstrap}",
        datadir=datadir,
        store="memory://",
        Table=RowTable,
        TableManager=RowTables,
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        broker_session_timeout=6,
        broker_heartbeat_interval=1,
        broker_rebalance_timeout=10,
        broker_request_timeout=10,
        stream_wait_empty=False,
    )
    table = RowTable(
        app,
        name="rows",
        partitions=kafka.partitions,
        indexer=ByState(),
        settings=settings.frontier,
        writer=writer,
        accept=accept,
    )
    tables = app.tables
    assert isinstance(tables, RowTables)
    tables.add(table)

    async def idle(stream):
        async for _ in stream:
            pass

    app.agent(app.topic(kafka.prefix + INBOX.name, key_type=bytes, value_type=bytes))(idle)
    await app.start()
    try:
        await until(tables.recovery.completed.is_set)
        yield table
    finally:
        await app.stop()


async def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the conditions are Faust's and RocksDB's, which signal nothing
            await asyncio.sleep(0.02)


def assert_rows(table: RowTable, rows: dict[bytes, bytes]) -> None:
    store = table.store(PARTITION)
    assert dict(store.rows(limit=100_000)) == rows
    assert store.scan(b"", limit=100_000) == index_of(rows)
    assert store.counters() == counters_of(rows)


def changelog(settings) -> str:
    return settings.kafka.prefix + CHANGELOG.name


async def control_record(settings) -> None:
    """End the changelog with a transaction's marker, which no consumer is ever given."""
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap, transactional_id=settings.kafka.prefix)
    await producer.start()
    with suppress(RuntimeError):
        async with producer.transaction():
            await producer.send_and_wait(changelog(settings), b"?", b"aborted", partition=PARTITION)
            raise RuntimeError
    await producer.stop()


async def delete_records(settings, before: int) -> None:
    """Empty the changelog up to an offset, as an operator could; the broker refuses it for a topic only compacted."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap)
    await admin.start()
    policy = {"cleanup.policy": "compact,delete"}
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, changelog(settings), policy)])
    tp = TopicPartition(changelog(settings), PARTITION)
    await admin.delete_records({tp: RecordsToDelete(before_offset=before)})
    await admin.close()


async def raw_log(settings) -> list[tuple[bytes, bytes | None]]:
    """Every record of the changelog partition, marker or stale."""
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.kafka.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        tp = TopicPartition(changelog(settings), PARTITION)
        consumer.assign([tp])
        end = (await consumer.end_offsets([tp]))[tp]
        records = []
        while await consumer.position(tp) < end:
            records += (await consumer.getmany(tp, timeout_ms=200)).get(tp, [])
        return [(record.key, record.value) for record in records]
    finally:
        await consumer.stop()


async def make_again(settings) -> None:
    """Delete the changelog topic and make it again, as somebody might who wants to begin anew."""
    async with Admin(settings.kafka.bootstrap, settings) as admin:
        await admin._client.delete_topics([changelog(settings)])
        async with asyncio.timeout(90):
            while changelog(settings) in await admin.partition_counts():  # noqa: ASYNC110 - the broker signals nothing
                await asyncio.sleep(0.05)
        await admin.apply_topics()
