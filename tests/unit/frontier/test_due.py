"""Rows that wait for a time."""

from __future__ import annotations

from streams.frontier.due import STRETCH, TAKEN, DueRows
from streams.frontier.rows import State, UrlRow, encode_row, url_key
from tests.simulation.store import MemoryStore


def fp(number: int) -> bytes:
    return number.to_bytes(16, "big")


def store_with(*dues: int) -> MemoryStore:
    store = MemoryStore()
    for number, due in enumerate(dues):
        put(store, number, due)
    return store


def put(store: MemoryStore, number: int, due: int) -> None:
    row = UrlRow(1, State.WAITING, 0, 5, "c", "http://h/", "h", 1, 0, number, due=due)
    store.apply([(url_key(fp(number)), encode_row(row))])


def test_rows_are_taken_when_their_time_comes_and_once() -> None:
    due = DueRows(store_with(30, 10, 20))
    assert due.next_at() == 0
    assert due.take(5) == []
    assert due.next_at() == 10
    assert due.take(20) == [fp(1), fp(2)]
    assert due.next_at() == 30
    assert due.take(29) == []
    assert due.take(30) == [fp(0)]
    assert due.next_at() == float("inf")
    assert due.take(1000) == []


def test_a_row_noted_later_moves_the_time() -> None:
    store = store_with(50)
    due = DueRows(store)
    due.take(5)
    put(store, 9, 40)
    due.note(40, fp(9))
    assert due.next_at() == 40
    due.note(60, fp(8))
    assert due.next_at() == 40
    assert due.take(45) == [fp(9)]
    assert due.next_at() == 50


def test_a_row_noted_behind_the_cursor_is_not_missed() -> None:
    store = store_with(50)
    due = DueRows(store)
    assert due.take(50) == [fp(0)]
    due.note(50, fp(0))  # the clock was set back
    due.note(20, fp(3))
    assert due.next_at() == 20
    assert due.take(30) == [fp(3)]
    assert due.take(50) == [fp(0)]
    due.note(50, fp(1))  # beyond the cursor: it lies in the index
    assert due.take(50) == []


def test_many_rows_are_taken_in_turns() -> None:
    number = TAKEN + STRETCH + 3
    due = DueRows(store_with(*range(1, number + 1)))
    first = due.take(number)
    assert TAKEN <= len(first) < TAKEN + STRETCH
    assert due.next_at() <= number  # there is more now
    assert first + due.take(number) == [fp(i) for i in range(number)]


def test_a_full_last_stretch_ends() -> None:
    due = DueRows(store_with(*range(1, STRETCH + 1)))
    assert len(due.take(1000)) == STRETCH
    assert due.next_at() == float("inf")


def test_rows_in_the_far_future_cost_one_stretch() -> None:
    store = store_with(*range(100, 100 + 3 * STRETCH))
    reads: list[int] = []
    scan = store.scan
    store.scan = lambda *a, limit, **k: reads.append(limit) or scan(*a, limit=limit, **k)  # type: ignore[method-assign, func-returns-value] # counts
    due = DueRows(store)
    for now in range(50):
        due.take(now)
    assert reads == [STRETCH]
