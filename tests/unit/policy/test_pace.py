from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.policy import pace

SECONDS = st.floats(0, 1000)


@pytest.mark.parametrize(
    ("delay", "rule", "elapsed", "expected"),
    [
        (0.0, 0.5, 0.2, 0.0),  # faster than the rule: nothing to learn
        (0.0, 0.5, 0.5, 0.0),
        (0.0, 0.5, 2.5, 1.5),  # half of the way to one request at a time
        (1.5, 0.5, 2.5, 2.0),
        (2.0, 0.5, 1.0, 1.9),  # slowly back
        (1.0, 0.5, 0.99, 0.99),  # but not below what the answer took
        (0.51, 0.5, 0.1, 0.0),  # the rule's is enough again
        (0.0, 0.0, 0.03, 0.015),
        (0.0, 0.5, 900.0, 30.25),  # one absurd answer counts as a minute
        (60.0, 0.5, 900.0, 60.0),
        (0.0, 90.0, 900.0, 0.0),  # a rule beyond the cap stands for itself
    ],
)
def test_after_a_page(delay: float, rule: float, elapsed: float, expected: float) -> None:
    assert pace.after_success(delay, rule, elapsed) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("delay", "rule", "expected"),
    [(0.0, 0.0, 1.0), (0.0, 0.2, 1.0), (0.0, 2.0, 4.0), (5.0, 2.0, 10.0), (45.0, 1.0, 60.0), (0.0, 60.0, 0.0)],
)
def test_after_an_overload(delay: float, rule: float, expected: float) -> None:
    assert pace.after_overload(delay, rule) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kept", "delay", "enough"),
    [(0.0, 0.0, False), (0.0, 0.1, True), (1.0, 1.25, False), (1.0, 1.26, True), (1.0, 0.75, False), (1.0, 0.74, True),
     (0.1, 0.0, True)],
)  # fmt: skip
def test_what_is_worth_a_write(kept: float, delay: float, enough: bool) -> None:
    assert pace.moved_enough(kept, delay) is enough


@given(st.floats(0, pace.LONGEST), SECONDS, st.lists(SECONDS | st.none(), max_size=60))
def test_a_learned_delay_only_ever_raises_the_rules_and_ends_at_a_minute(delay, rule, answers) -> None:
    for elapsed in answers:
        before = delay
        if elapsed is None:
            delay = pace.after_overload(delay, rule)
            assert delay >= min(before, pace.LONGEST) or delay == 0.0 >= before - rule
        else:
            delay = pace.after_success(delay, rule, elapsed)
        assert delay == 0.0 or rule < delay <= pace.LONGEST


def test_recovery_takes_some_45_pages() -> None:
    delay, pages = 10.0, 0
    while delay > 1.0:
        delay, pages = pace.after_success(delay, 0.5, 0.1), pages + 1
    assert pages == 45
