from __future__ import annotations

import json
import logging

import pytest

from streams.errors import EnvironmentFault, StateError
from streams.state import shelf as shelf_module
from tests.unit.state.rows import HOUR, Clock, shelf


async def fill(folder, **options):
    """A closed store with one row."""
    store = await shelf(folder, **options).open("cluster", "topic", 3)
    store.apply([(b"a", b"w\x00")], 0)
    store._db.flush()
    store.close()
    return store.path


async def test_a_store_is_found_again_where_faust_would_put_it(tmp_path):
    path = await fill(tmp_path)
    assert path == tmp_path / "rows-3.db"
    store = await shelf(tmp_path).open("cluster", "topic", 3)
    assert store.get(b"a") == b"w\x00"
    assert store.offset == 0
    store.close()


def spoil_manifest(path):
    for file in path.glob("MANIFEST*"):
        file.write_bytes(b"garbage")


def lose_manifest(path):
    for file in path.glob("MANIFEST*"):
        file.unlink()


def lose_current(path):
    (path / "CURRENT").unlink()


def lose_tables(path):
    for file in path.glob("*.sst"):
        file.unlink()


@pytest.mark.parametrize("spoil", [spoil_manifest, lose_manifest, lose_current, lose_tables])
async def test_a_damaged_store_is_set_aside_and_rebuilt_with_a_word(tmp_path, spoil, caplog):
    path = await fill(tmp_path)
    spoil(path)
    with caplog.at_level(logging.WARNING):
        store = await shelf(tmp_path).open("cluster", "topic", 3)
    assert store.offset == -1
    assert store.get(b"a") is None
    assert path.with_name("rows-3.db.aside").exists()
    assert "rebuilt from the changelog" in caplog.text
    store.close()


@pytest.mark.parametrize("owner", [("other", "topic", 3), ("cluster", "other", 3)])
async def test_a_foreign_store_is_set_aside(tmp_path, owner, caplog):
    await fill(tmp_path)
    store = await shelf(tmp_path).open(*owner)
    assert store.offset == -1
    assert "belongs to" in caplog.text
    store.close()


async def test_a_copied_store_of_another_partition_is_set_aside(tmp_path):
    path = await fill(tmp_path)
    path.rename(tmp_path / "rows-4.db")
    store = await shelf(tmp_path).open("cluster", "topic", 4)
    assert store.offset == -1
    store.close()


@pytest.mark.parametrize(("age", "offset"), [(HOUR, 0), (HOUR + 1, -1)])
async def test_a_store_that_may_have_missed_deletes_is_rebuilt(tmp_path, age, offset):
    clock = Clock()
    await fill(tmp_path, clock=clock, max_age=HOUR)
    clock.now += age
    store = await shelf(tmp_path, clock=clock, max_age=HOUR).open("cluster", "topic", 3)
    assert store.offset == offset
    store.close()


async def test_a_store_of_a_newer_release_stops_the_worker_and_stays_untouched(tmp_path):
    path = await fill(tmp_path)
    store = await shelf(tmp_path).open("cluster", "topic", 3)
    store._db.put(b"midentity", json.dumps({"schema": 2, "new": "field"}).encode())
    store.close()
    with pytest.raises(StateError, match="schema 2") as caught:
        await shelf(tmp_path).open("cluster", "topic", 3)
    assert "upgrade" in caught.value.remedy
    assert path.exists()
    assert not path.with_name("rows-3.db.aside").exists()


async def test_a_store_without_identity_is_not_trusted(tmp_path):
    await fill(tmp_path)
    store = await shelf(tmp_path).open("cluster", "topic", 3)
    store._db.put(b"midentity", b"[]")
    store.close()
    again = await shelf(tmp_path).open("cluster", "topic", 3)
    assert again.offset == -1
    again.close()


async def test_a_store_that_another_process_uses_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(shelf_module, "_LOCK_TRIES", 2)
    monkeypatch.setattr(shelf_module, "_LOCK_PAUSE", 0.01)
    store = await shelf(tmp_path).open("cluster", "topic", 3)
    store.apply([(b"a", b"w\x00")], 0)
    with pytest.raises(EnvironmentFault, match="used by another process"):
        await shelf(tmp_path).open("cluster", "topic", 3)
    assert store.get(b"a") == b"w\x00"
    store.close()
    again = await shelf(tmp_path).open("cluster", "topic", 3)
    assert again.offset == 0
    again.close()


async def test_only_the_last_store_set_aside_is_kept(tmp_path):
    for _ in range(3):
        spoil_manifest(await fill(tmp_path))
    store = await shelf(tmp_path).open("cluster", "topic", 3)
    store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows-3.db", "rows-3.db.aside"]


async def test_a_store_that_exists_is_opened_with_the_settings_of_today(tmp_path):
    await fill(tmp_path)
    one = shelf(tmp_path)
    store = await one.open("cluster", "topic", 3)
    assert store._db.property_int_value("rocksdb.block-cache-capacity") == one._settings.cache
    assert store.get(b"a") == b"w\x00"
    assert one._cache.get_usage() > 0
    store.close()


async def test_all_partitions_share_one_cache(tmp_path):
    one = shelf(tmp_path)
    first, second = await one.open("cluster", "topic", 0), await one.open("cluster", "topic", 1)
    used = []
    for store in (first, second):
        store.apply([(b"%05d" % number, b"w\x00" + b"v" * 200) for number in range(500)], 499)
        store._db.flush()
        store.rows(limit=500)
        used.append(one._cache.get_usage())
    assert used[1] > 1.5 * used[0]
    first.close()
    second.close()
