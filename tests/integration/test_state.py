"""The table on a real Kafka: writing, recovery from what is left, ownership and fencing."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import faust
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from agents.delivery.producer import Producer
from agents.io.admin import Admin
from streams.errors import DamagedError, OwnershipLost, StateError
from streams.state.changelog import ChangelogReader, KafkaLog
from streams.state.fencing import MARKER, Accept, Headers, epoch_headers, fence
from streams.state.ledger import Item, Ledger
from streams.state.recovery import RowTables
from streams.state.table import RowTable
from streams.topics import CHANGELOG, INBOX
from tests.unit.state.rows import ByState, Clock, counters_of, index_of, shelf

pytestmark = [pytest.mark.broker, pytest.mark.timeout(90)]

PARTITION = 1
ROWS = {b"%05d" % number: b"w" + bytes([number % 7]) + b"row" for number in range(3000)}


@pytest.fixture
async def settings(broker):
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.apply_topics()
    return broker.settings


@pytest.fixture
async def producer(settings):
    failures: list[Exception] = []
    producer = Producer(settings.kafka.bootstrap, settings, "test", failures.append)
    await producer.start()
    yield producer
    await producer.stop()
    assert failures == []


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


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
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


async def test_rows_survive_a_restart_with_the_disk_and_without_it(settings, producer, tmp_path, caplog):
    caplog.set_level(logging.INFO, "streams.state")
    rows = dict(ROWS)
    async with worker(settings, producer, tmp_path) as table:
        epoch = await table.claim(PARTITION)
        assert table.epoch(PARTITION) == epoch == await table.claim(PARTITION)
        await table.put_many(PARTITION, list(rows.items()))
        await table.put_many(PARTITION, [(b"00000", None), (b"00001", b"f\x01"), (b"new", b"d\x00")])
        del rows[b"00000"]
        rows |= {b"00001": b"f\x01", b"new": b"d\x00"}
        assert_rows(table, rows)
        path = table.store(PARTITION).path
    assert path.is_relative_to(tmp_path)

    caplog.clear()
    async with worker(settings, producer, tmp_path) as table:
        assert_rows(table, rows)
        assert "rows: 0 changelog records" in caplog.text
        assert await table.claim(PARTITION) > epoch
        await table.put_many(PARTITION, [(b"again", b"w\x01")])
        rows[b"again"] = b"w\x01"

    shutil.rmtree(tmp_path)
    async with worker(settings, producer, tmp_path) as table:
        assert_rows(table, rows)


async def test_marker_at_tail(settings, producer, tmp_path):
    async with worker(settings, producer, tmp_path) as table:
        await table.claim(PARTITION)
        await table.put_many(PARTITION, [(b"a", b"w\x01")])
        await control_record(settings)
        await table.put_many(PARTITION, [(b"b", b"w\x02")])
        await control_record(settings)
    for _ in range(2):
        async with worker(settings, producer, tmp_path) as table:
            assert_rows(table, {b"a": b"w\x01", b"b": b"w\x02"})
        shutil.rmtree(tmp_path)


async def test_a_deleted_tail_neither_hangs_nor_empties_a_store_that_has_it(settings, producer, tmp_path):
    async with worker(settings, producer, tmp_path) as table:
        await table.claim(PARTITION)
        await table.put_many(PARTITION, [(b"a", b"w\x01")])
        end = table.store(PARTITION).offset + 1
    await delete_records(settings, end)
    async with worker(settings, producer, tmp_path) as table:
        assert_rows(table, {b"a": b"w\x01"})
        await table.claim(PARTITION)
        await table.put_many(PARTITION, [(b"b", b"w\x01")])
        assert_rows(table, {b"a": b"w\x01", b"b": b"w\x01"})


@pytest.mark.parametrize("wiped", [True, False])
async def test_a_changelog_that_lost_what_a_store_lacks_stops_the_worker_by_name(settings, producer, tmp_path, wiped):
    async with worker(settings, producer, tmp_path) as table:
        await table.claim(PARTITION)
        await table.put_many(PARTITION, list(ROWS.items())[:10])
        end = table.store(PARTITION).offset + 1
    if wiped:
        shutil.rmtree(tmp_path)
    else:  # another worker has written since
        await producer.send_all(changelog(settings), PARTITION, [(b"later", b"w\x01")], epoch_headers(end))
        end += 1
    await delete_records(settings, end)
    for _ in range(2):
        with pytest.raises(StateError, match=f"begins at offset {end}") as caught:
            await refused(settings, producer, tmp_path)
        assert "fyke state rebuild --incomplete" in caught.value.remedy


async def test_a_topic_made_again_under_the_same_name_is_not_taken_for_the_old_one(settings, producer, tmp_path):
    async with worker(settings, producer, tmp_path) as table:
        await table.claim(PARTITION)
        await table.put_many(PARTITION, [(b"a", b"w\x01")])
    await make_again(settings)
    await producer.send_all(changelog(settings), PARTITION, [(b"%d" % each, b"w\x01") for each in range(10)])
    with pytest.raises(StateError, match="deleted and made again"):
        await refused(settings, producer, tmp_path)


async def test_a_topic_made_again_under_a_running_worker_ends_it(settings, producer, tmp_path):
    async with worker(settings, producer, tmp_path) as table:
        await table.claim(PARTITION)
        await table.put_many(PARTITION, list(ROWS.items())[:10])
        await make_again(settings)
        with pytest.raises(DamagedError, match="goes on at offset 0"):
            await table.put_many(PARTITION, [(b"a", b"w\x01")])
        with pytest.raises(OwnershipLost):
            await table.put_many(PARTITION, [(b"a", b"w\x01")])


async def make_again(settings) -> None:
    """Delete the changelog topic and make it again, as somebody might who wants to begin anew."""
    async with Admin(settings.kafka.bootstrap, settings) as admin:
        await admin._client.delete_topics([changelog(settings)])
        async with asyncio.timeout(30):
            while changelog(settings) in await admin.partition_counts():  # noqa: ASYNC110 - the broker signals nothing
                await asyncio.sleep(0.05)
        await admin.apply_topics()


async def refused(settings, producer, folder: Path) -> None:
    """Recover the partition as a worker does at its start. Raises why it cannot."""
    table = RowTable(
        faust.App("alone", broker=f"kafka://{settings.kafka.bootstrap}", datadir=folder, store="memory://"),
        name="rows", partitions=settings.kafka.partitions, indexer=ByState(), settings=settings.frontier,
        writer=producer, changelog_topic=None,
    )  # fmt: skip
    table._reader = ChangelogReader(changelog(settings), {"bootstrap_servers": settings.kafka.bootstrap})
    await table.recover([PARTITION])


async def test_a_store_ahead_of_its_changelog_is_rebuilt_with_a_word(settings, producer, tmp_path, caplog):
    async with worker(settings, producer, tmp_path) as table:
        await table.claim(PARTITION)
        await table.put_many(PARTITION, [(b"a", b"w\x01")])
        store = table.store(PARTITION)
        store.apply([(b"never written", b"w\x01")], store.offset + 10)
    async with worker(settings, producer, tmp_path) as table:
        assert_rows(table, {b"a": b"w\x01"})
    assert "its changelog ends before" in caplog.text


async def test_a_damaged_store_is_rebuilt(settings, producer, tmp_path):
    async with worker(settings, producer, tmp_path) as table:
        await table.claim(PARTITION)
        await table.put_many(PARTITION, list(ROWS.items()))
        path = table.store(PARTITION).path
    for manifest in path.glob("MANIFEST*"):
        manifest.write_bytes(b"garbage")
    async with worker(settings, producer, tmp_path) as table:
        assert_rows(table, ROWS)


async def test_ownership_that_moved_is_noticed_and_the_store_closed_for_real(settings, producer, tmp_path):
    writer = Pausing(producer)
    async with worker(settings, writer, tmp_path / "a") as first:
        kept = {}
        for partition in range(settings.kafka.partitions):
            await first.claim(partition)
            await first.put_many(partition, [(b"a", b"w\x01")])
            kept[partition] = first.store(partition)
        writer.thaw.clear()
        pending = {partition: asyncio.create_task(first.put_many(partition, [(b"b", b"w\x02")])) for partition in kept}
        await asyncio.sleep(0.1)
        async with worker(settings, producer, tmp_path / "b") as second:
            moved = [p for p in kept if second.app.assignor.assigned_actives() >= {(second.changelog_topic_name, p)}]
            assert 0 < len(moved) < len(kept)
            for partition in moved:
                await second.claim(partition)
                assert dict(second.store(partition).rows()) == {b"a": b"w\x01"}
            writer.thaw.set()
            for task in pending.values():
                with pytest.raises(OwnershipLost):
                    await task
            for partition in moved:
                with pytest.raises(OwnershipLost):
                    first.store(partition)
                with pytest.raises(OwnershipLost):
                    kept[partition].get(b"a")
                reopened = await shelf(kept[partition].path.parent, clock=Clock()).open("", "", partition)
                reopened.close()  # the lock was free
                await second.put_many(partition, [(b"c", b"w\x03")])
                assert dict(second.store(partition).rows()) == {b"a": b"w\x01", b"c": b"w\x03"}
            for partition in kept.keys() - set(moved):
                await until(lambda: not first.app.rebalancing)
                await first.claim(partition)
                assert dict(first.store(partition).rows()) == {b"a": b"w\x01", b"b": b"w\x02"}


async def late_batch(settings, producer, folder: Path, accept: Accept) -> None:
    """A is frozen with a batch in its producer, B takes over and writes, A's batch lands; then both disks are lost."""
    reader = ChangelogReader(changelog(settings), {"bootstrap_servers": settings.kafka.bootstrap})
    frozen = Pausing(producer)
    stores = [await shelf(folder / name, clock=Clock()).open("", reader.topic, PARTITION) for name in "ab"]
    a = Ledger(stores[0], KafkaLog(reader, lambda: frozen, PARTITION), lambda: 1, accept)
    b = Ledger(stores[1], KafkaLog(reader, lambda: producer, PARTITION), lambda: 1, accept)
    await a.claim()
    await a.put([(b"url", b"w\x01"), (b"kept", b"w\x01")])
    frozen.thaw.clear()
    late = asyncio.create_task(a.put([(b"url", b"d\x00"), (b"kept", None)]))
    await b.claim()
    await b.put([(b"url", b"f\x02")])
    frozen.thaw.set()
    try:
        with pytest.raises(OwnershipLost):
            await late
        await b.settle()
        newest = dict(await raw_log(settings))
        assert {key: newest[key] for key in (b"url", b"kept")} == {b"url": b"f\x02", b"kept": b"w\x01"}
        async with worker(settings, producer, folder / "c", accept) as table:
            assert_rows(table, {b"url": b"f\x02", b"kept": b"w\x01"})
    finally:
        for store in stores:
            store.close()


async def test_late_batch_of_old_owner(settings, producer, tmp_path):
    await late_batch(settings, producer, tmp_path, fence)
    assert [key for key, _ in await raw_log(settings)].count(MARKER) == 2


async def test_late_batch_of_old_owner_overwrites_rows_without_fencing(settings, producer, tmp_path):
    def no_fence(epoch: int, highest: int) -> bool:
        return True

    with pytest.raises(AssertionError):
        await late_batch(settings, producer, tmp_path, no_fence)


async def test_an_idle_owner_finds_a_late_batch_by_itself(settings, producer, tmp_path, monkeypatch):
    monkeypatch.setattr("streams.state.table.SETTLE", 0.2)
    async with worker(settings, producer, tmp_path) as table:
        await table.claim(PARTITION)
        await table.put_many(PARTITION, [(b"a", b"w\x01")])
        await producer.send_all(changelog(settings), PARTITION, [(b"a", b"d\x00")])
        end = table.store(PARTITION).offset + 2
        await until(lambda: table.store(PARTITION).offset > end - 1)
        assert dict(await raw_log(settings))[b"a"] == b"w\x01"
        assert_rows(table, {b"a": b"w\x01"})


async def test_the_table_has_no_other_door(settings, producer, tmp_path):
    async with worker(settings, producer, tmp_path) as table:
        with pytest.raises(OwnershipLost):
            await table.put_many(PARTITION, [(b"a", b"w\x01")])
        with pytest.raises(TypeError, match="by partition"):
            _ = table[b"a"]
        with pytest.raises(TypeError, match="by partition"):
            table[b"a"] = b"w"
        with pytest.raises(TypeError, match="by partition"):
            list(table)
