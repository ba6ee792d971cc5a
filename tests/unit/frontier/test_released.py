"""Orders that are out."""

from __future__ import annotations

import pytest

from streams.frontier.released import Out, Released


def out(at: int = 0, visit: int = 1, attempt: int = 0) -> Out:
    return Out("h", "c", visit, attempt, at)


@pytest.mark.parametrize(
    ("visit", "attempt", "answers"), [(1, 0, True), (2, 0, False), (1, 1, False), (0, 0, False)]
)  # fmt: skip
def test_an_answer_belongs_to_its_visit_and_attempt(visit: int, attempt: int, answers: bool) -> None:
    released = Released(4, 10.0)
    released.add(b"k", out())
    assert (released.answer(b"k", visit, attempt) is not None) == answers
    assert (b"k" in released) != answers
    assert len(released) == (0 if answers else 1)


def test_an_order_is_answered_once() -> None:
    released = Released(4, 10.0)
    released.add(b"k", out())
    assert released.get(b"k") == released.answer(b"k", 1, 0) == out()
    assert released.answer(b"k", 1, 0) is None
    assert released.get(b"k") is None


def test_overdue_orders_are_taken_back() -> None:
    released = Released(4, 10.0)
    for i, at in enumerate((1, 2, 5, 7)):
        released.add(bytes((i,)), out(at))
    assert released.oldest() == 1
    assert released.overdue(5) == [(b"\0", out(1)), (b"\1", out(2))]
    assert released.oldest() == 5
    assert released.overdue(5) == []
    assert [key for key, _ in released.overdue(100)] == [b"\2", b"\3"]
    assert released.oldest() is None


def test_the_floor_is_always_free() -> None:
    released = Released(3, 10.0)
    assert released.room() == 3
    released.add(b"k", out())
    assert released.room() == 2


def answered(released: Released, number: int, now: int) -> None:
    for _ in range(number):
        released.add(b"k", out(now))
        released.answer(b"k", 1, 0)
    released.measure(now)


def test_room_grows_with_the_rate_of_answers_and_shrinks_again() -> None:
    released = Released(3, 10.0)
    released.measure(10_000)
    answered(released, 50, 10_500)  # within a second nothing is measured
    assert released.room() == 3
    answered(released, 50, 11_000)
    assert released.room() == 250  # a quarter of 100 a second, for ten seconds
    for second in range(12, 50):
        answered(released, 100, second * 1000)
    assert 990 < released.room() <= 1000
    for second in range(50, 90):
        answered(released, 0, second * 1000)
    assert released.room() == 3


def test_a_clock_that_is_set_back_takes_orders_along() -> None:
    released = Released(3, 10.0)
    released.measure(10_000)
    released.add(b"k", out(10_000))
    released.clock_went_back(4_000)
    assert released.oldest() == 6_000
    answered(released, 8, 7_000)
    assert released.room() == 20  # 8/s, a quarter of it, for ten seconds


def test_nothing_is_released_while_the_parsers_are_too_far_behind() -> None:
    """Pages are deleted by size and time: more of them than the parsers can take must not pile up."""
    released = Released(4, 10.0, unparsed_limit=6)
    released.unparsed = 3
    assert released.room() == 3
    released.add(b"1", Out("h", "c", 1, 0, 0))
    assert released.room() == 2
    released.unparsed = 6
    assert released.room() <= 0
    released.unparsed = 0
    assert released.room() == 3
