"""The ordered acker: positions leave in offset order, never past unfinished work, never after a revocation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.delivery.acker import Acker, Slot


def acker(position: int = 0) -> tuple[Acker, list[int]]:
    moves: list[int] = []

    def moved(before: int, position: int) -> None:
        assert before == (moves[-1] if moves else start)
        moves.append(position)

    start = position
    return Acker(position, moved), moves


def taken(ack: Acker, *ranges: tuple[int, int]) -> list[Slot]:
    return [ack.take(first, last) for first, last in ranges]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("012", [1, 2, 3]),
        ("210", [3]),
        ("120", [3]),
        ("021", [1, 3]),
        ("20", [1]),
        ("2", []),
        ("00", [1]),
    ],
)
def test_positions_leave_in_order(order: str, expected: list[int]) -> None:
    ack, moves = acker()
    ack.arrive([0, 1, 2])
    slots = taken(ack, (0, 0), (1, 1), (2, 2))
    for number in order:
        slots[int(number)].done()
    assert moves == expected
    assert ack.position == (expected[-1] if expected else 0)


def test_a_slot_covers_a_range() -> None:
    ack, moves = acker(7)
    ack.arrive([7, 8, 9, 10])
    first, second = taken(ack, (7, 9), (10, 10))
    second.done()
    assert moves == []
    first.done()
    assert moves == [11]


def test_holes_of_the_log_need_no_slot() -> None:
    ack, moves = acker(5)
    ack.arrive([9, 12])
    slots = taken(ack, (9, 9), (12, 12))
    slots[0].done()
    slots[1].done()
    assert moves == [10, 13]


@pytest.mark.parametrize(
    ("first", "last"),
    [(11, 11), (9, 9), (10, 12), (10, 9), (14, 14)],
    ids=["leaves one out", "before the batch", "ends between records", "backwards", "behind the batch"],
)
def test_a_slot_that_would_skip_a_record_is_refused(first: int, last: int) -> None:
    ack, _ = acker()
    ack.arrive([10, 11, 13])
    with pytest.raises(ValueError, match="slot"):
        ack.take(first, last)


def test_a_record_is_taken_once() -> None:
    ack, _ = acker()
    ack.arrive([0])
    ack.take(0, 0)
    with pytest.raises(ValueError, match="next batch"):
        ack.take(0, 0)


def test_the_next_batch_waits_until_all_of_this_one_have_slots() -> None:
    ack, _ = acker()
    ack.arrive([0, 1])
    ack.take(0, 0)
    assert ack.untaken == 1
    with pytest.raises(ValueError, match="offset 1"):
        ack.arrive([2])


def test_nothing_is_acked_after_a_revocation() -> None:
    ack, moves = acker()
    ack.arrive([0, 1])
    early, late = taken(ack, (0, 0), (1, 1))
    early.done()
    assert late.alive
    ack.close()
    late.done()
    assert not late.alive
    assert moves == [1]
    assert ack.position == 1


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=12),
    st.lists(st.integers(1, 3), min_size=1, max_size=40),
    st.data(),
)
def test_any_order_of_any_ranges(sizes: list[int], steps: list[int], data: st.DataObject) -> None:
    """The position is always the start of the first unfinished slot, or the end of the last."""
    offsets, at = [], 0
    for step in steps:
        at += step
        offsets.append(at)
    ack, moves = acker(offsets[0])
    ack.arrive(offsets)
    slots = []
    rest = list(offsets)
    for number in range(len(offsets)):
        if not rest:
            break
        count = min(sizes[number % len(sizes)], len(rest))
        slots.append(ack.take(rest[0], rest[count - 1]))
        rest = rest[count:]
    assert ack.in_flight == len(slots)
    done: set[int] = set()
    for index in data.draw(st.permutations(range(len(slots)))):
        slots[index].done()
        done.add(index)
        head = next((i for i in range(len(slots)) if i not in done), len(slots))
        assert ack.position == (slots[head - 1].end if head else offsets[0])
        assert ack.in_flight == len(slots) - head
    assert moves == sorted(set(moves))
    assert ack.position == offsets[-1] + 1
