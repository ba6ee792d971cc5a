from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.errors import OwnershipLost, StateError
from streams.state.fold import Folded
from streams.state.store import DAMAGED, Store
from tests.unit.state.rows import Clock, bare_store, counters_of, derived, index_of, shelf


@pytest.fixture
def store(tmp_path):
    opened = bare_store(tmp_path / "rows-0.db")
    yield opened
    opened.close()


async def reopened(store: Store) -> Store:
    store.close()
    return await shelf(store.path.parent).open("cluster", "topic", 0)


keys = st.binary(min_size=0, max_size=3)
values = st.tuples(st.sampled_from(b"wfd"), st.integers(0, 255), st.binary(max_size=2)).map(
    lambda parts: bytes(parts[:2]) + parts[2]
)
batches = st.lists(st.lists(st.tuples(keys, st.none() | values), max_size=12), max_size=6)


def assert_derived(store: Store, rows: dict[bytes, bytes]) -> None:
    assert store.rows(limit=1000) == sorted(rows.items())
    assert store.scan(b"", limit=1000) == index_of(rows)
    assert store.counters() == counters_of(rows)


@given(batches)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_index_and_counters_always_equal_what_the_rows_give(store, changes):
    store.apply([(key, None) for key, _ in store.rows(limit=1000)], 0)
    assert_derived(store, {})
    rows: dict[bytes, bytes] = {}
    for batch in changes:
        store.apply(batch, store.offset + len(batch))
        for key, value in batch:
            rows.pop(key, None)
            if value is not None:
                rows[key] = value
        assert_derived(store, rows)


async def test_everything_is_there_after_closing_and_opening(tmp_path):
    store = derived(await shelf(tmp_path).open("cluster", "topic", 0))
    store.apply([(b"a", b"w\x01"), (b"b", b"f\x02")], 41)
    again = await reopened(store)
    assert again.offset == 41
    assert_derived(again, {b"a": b"w\x01", b"b": b"f\x02"})
    again.close()


async def test_a_store_filled_from_nothing_is_derived_in_one_pass(tmp_path, monkeypatch):
    monkeypatch.setattr("streams.state.store._STEP", 2)
    store = await shelf(tmp_path).open("cluster", "topic", 0)
    rows = {b"": b"w\x01", b"a": b"d\x02", b"b": b"f\x00", b"c": b"w\x09", b"d": b"w\x00"}
    store.apply([(b"b", b"w\x07"), (b"gone", b"w\x01")], 1)
    store.apply([*rows.items(), (b"gone", None)], 7)
    assert not store.derived
    next(store.derive())  # interrupted
    store = await reopened(store)
    assert not store.derived
    store.apply([(b"d", b"f\x03")], 8)
    assert list(store.derive()) == [2, 2, 1]
    assert_derived(store, rows | {b"d": b"f\x03"})
    store = await reopened(store)
    assert store.derived
    assert list(store.derive()) == []
    assert_derived(store, rows | {b"d": b"f\x03"})
    store.close()


async def test_another_version_of_the_indexer_derives_anew_from_the_rows(tmp_path):
    store = derived(await shelf(tmp_path).open("cluster", "topic", 0))
    store.apply([(b"a", b"w\x01")], 4)
    store._db.put(b"i" + b"what another version made", b"")
    store._db.put(b"c" + b"and counted", bytes(8))
    store.close()
    store = await shelf(tmp_path, version=2).open("cluster", "topic", 0)
    assert (store.offset, store.derived) == (4, False)
    assert_derived(derived(store), {b"a": b"w\x01"})
    store.close()


async def test_rows_are_read_in_the_order_asked(store):
    store.apply([(b"a", b"w1"), (b"", b"w2"), (b"gone", b"w3"), (b"gone", None)], 3)
    assert store.get_many([b"", b"x", b"a", b"gone", b""]) == [b"w2", None, b"w1", None, b"w2"]
    assert store.get(b"a") == b"w1"
    assert store.get(b"x") is None
    assert store.get_many([]) == []


async def test_a_scan_stays_within_its_prefix_goes_on_after_a_key_and_stops_at_its_limit(store):
    rows = [
        (bytes([byte]), b"w" + bytes([priority])) for priority in (0, 1, 255) for byte in range(priority, priority + 1)
    ]
    store.apply([(b"a", b"w\x01"), (b"b", b"w\x01"), (b"c", b"w\x02"), (b"d", b"f\x01"), *rows], 6)
    assert [key for key, _ in store.scan(b"w\x01", limit=9)] == [b"w\x01\x01", b"w\x01a", b"w\x01b"]
    assert [key for key, _ in store.scan(b"w\x01", limit=1)] == [b"w\x01\x01"]
    assert [key for key, _ in store.scan(b"w\x01", after=b"w\x01\x01", limit=9)] == [b"w\x01a", b"w\x01b"]
    assert [key for key, _ in store.scan(b"w", after=b"w\x01a\x00", limit=9)] == [b"w\x01b", b"w\x02c", b"w\xff\xff"]
    assert [key for key, _ in store.scan(b"w\xff", limit=9)] == [b"w\xff\xff"]
    assert store.scan(b"w", after=b"a", limit=1) == store.scan(b"w", limit=1)
    assert store.scan(b"w", after=b"x", limit=9) == []
    assert [key for key, _ in store.rows(b"b")] == [b"b"]


@pytest.mark.parametrize(
    ("prefix", "found"),
    [(b"w", [b"w\x01a", b"w\x02c", b"w\xffe"]), (b"w\x01", [b"w\x01a"]), (b"w\x03", []), (b"f", [b"f\x01d"])],
)
async def test_leaping_shows_the_first_entry_of_each_group(store, prefix, found):
    values = {b"a": b"w\x01", b"b": b"w\x01", b"c": b"w\x02", b"d": b"f\x01", b"e": b"w\xff"}
    store.apply(list(values.items()), 4)
    assert list(store.leap(prefix, lambda entry: entry[:2] + b"\xff")) == found


async def test_what_was_read_before_a_write_is_read_anew_after_it(store):
    changes: list[list[bytes | None]] = [[b"w\x01", b"w\x02"], [b"d\x01", None], [None, b"w\x03"]]
    for number, values in enumerate(changes):
        store.get_many([b"a", b"b", b"c"])
        rows = dict(zip((b"a", b"b"), values, strict=True))
        store.apply(list(rows.items()), number)
        assert store.get_many([b"a", b"b", b"c"]) == [*values, None]
        assert_derived(store, {key: value for key, value in rows.items() if value is not None})


async def test_reading_without_writing_remembers_a_bounded_number(store, monkeypatch):
    monkeypatch.setattr("streams.state.store._REMEMBERED", 10)
    store.apply([(b"a", b"w\x01")], 0)
    for number in range(100):
        store.get_many([b"%d" % number, b"a"])
        assert len(store._read) <= 12
    store.apply([(b"a", b"d\x01"), (b"7", b"w\x01")], 1)
    assert_derived(store, {b"a": b"d\x01", b"7": b"w\x01"})


async def test_a_counter_that_is_zero_is_absent(store):
    store.apply([(b"a", b"w\x05"), (b"b", b"d\x00")], 1)
    assert store.counters(b"state:") == {b"state:w": 1, b"state:d": 1}
    store.apply([(b"a", b"d\x00")], 2)
    assert store.counters() == {b"state:d": 2}


async def test_offset_epoch_and_stale_keys_are_kept(tmp_path):
    store = await shelf(tmp_path).open("cluster", "topic", 0)
    store.absorb(Folded(7, {b"a": b"w\x00"}, {b"b", b"c"}), 9)
    store.absorb(Folded(8, {b"b": b"w\x00"}), 12)
    again = await reopened(store)
    assert (again.offset, again.epoch, again.stale) == (12, 8, {b"c"})
    again.close()


async def test_a_value_that_is_written_again_is_no_longer_stale(store):
    store.absorb(Folded(1, {b"a": b"w\x00"}), 0)
    store.absorb(Folded(1, {}, {b"a"}), 1)
    store.apply([(b"a", b"w\x00")], 2)
    assert store.stale == set()


async def test_a_closed_store_says_that_ownership_is_lost(tmp_path):
    store = await shelf(tmp_path).open("cluster", "topic", 0)
    store.close()
    for use in (lambda: store.get(b"a"), lambda: store.apply([], 0), lambda: store.scan(b"", limit=1), store.counters):
        with pytest.raises(OwnershipLost):
            use()


async def test_touching_moves_only_the_time(tmp_path):
    clock = Clock()
    store = await shelf(tmp_path, clock=clock).open("cluster", "topic", 0)
    store.apply([(b"a", b"w\x00")], 0)
    clock.now += 5
    store.touch()
    store.close()
    again = await shelf(tmp_path, clock=clock).open("cluster", "topic", 0)
    assert (again.touched, again.offset) == (clock.now, 0)
    again.close()


async def test_damage_found_while_reading_is_noted_for_the_next_start(tmp_path):
    store = derived(await shelf(tmp_path).open("cluster", "topic", 0))
    store.apply([(b"%05d" % number, b"w\x00" + os.urandom(100)) for number in range(2000)], 1999)
    store._db.flush()
    store.close()
    for table in store.path.glob("*.sst"):
        data = bytearray(table.read_bytes())
        middle_of_rows = len(data) * 7 // 10
        data[middle_of_rows : middle_of_rows + 2000] = bytes(2000)
        table.write_bytes(data)
    again = await shelf(tmp_path).open("cluster", "topic", 0)
    with pytest.raises(StateError, match="damaged"):
        again.rows(limit=2000)
    assert (again.path / DAMAGED).exists()
    again.close()
    rebuilt = await shelf(tmp_path).open("cluster", "topic", 0)
    assert rebuilt.offset == -1
    rebuilt.close()
