"""A changelog that has no more what a store needs: its beginning deleted, or the topic made again."""

from __future__ import annotations

import shutil
from pathlib import Path

import faust
import pytest

from streams.errors import DamagedError, OwnershipLost, StateError
from streams.state.changelog import ChangelogReader, KafkaLog
from streams.state.fencing import epoch_headers
from streams.state.ledger import Ledger
from streams.state.table import RowTable
from tests.integration.rowtable import PARTITION, ROWS, assert_rows, changelog, delete_records, make_again, worker
from tests.unit.state.rows import ByState, Clock, shelf

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


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


async def test_a_topic_made_again_under_its_owner_ends_it(settings, producer, tmp_path):
    reader = ChangelogReader(changelog(settings), {"bootstrap_servers": settings.kafka.bootstrap})
    store = await shelf(tmp_path, clock=Clock()).open("", reader.topic, PARTITION)
    ledger = Ledger(store, KafkaLog(reader, lambda: producer, PARTITION), lambda: 1)
    try:
        await ledger.claim()
        await ledger.put(list(ROWS.items())[:10])
        await make_again(settings)
        with pytest.raises(DamagedError, match="goes on at offset 0"):
            await ledger.put([(b"a", b"w\x01")])
        with pytest.raises(OwnershipLost):  # the claim is void
            await ledger.put([(b"a", b"w\x01")])
        with pytest.raises(DamagedError, match="goes on at offset 1"):
            await ledger.claim()
    finally:
        store.close()


async def refused(settings, producer, folder: Path) -> None:
    """Recover the partition as a worker does at its start. Raises why it cannot."""
    table = RowTable(
        faust.App("alone", broker=f"kafka://{settings.kafka.bootstrap}", datadir=folder, store="memory://"),
        name="rows", partitions=settings.kafka.partitions, indexer=ByState(), settings=settings.frontier,
        writer=producer, changelog_topic=None,
    )  # fmt: skip
    table._reader = ChangelogReader(changelog(settings), {"bootstrap_servers": settings.kafka.bootstrap})
    await table.recover([PARTITION])
