"""The table on a real Kafka: writing, recovery from what is left, ownership and fencing."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from streams.errors import OwnershipLost
from streams.state.changelog import ChangelogReader, KafkaLog
from streams.state.fencing import MARKER, Accept, fence
from streams.state.ledger import Ledger
from tests.integration.rowtable import (
    PARTITION,
    ROWS,
    Pausing,
    assert_rows,
    changelog,
    control_record,
    raw_log,
    until,
    worker,
)
from tests.unit.state.rows import Clock, shelf

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


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
