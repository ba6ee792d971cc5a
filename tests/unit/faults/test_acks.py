"""Commits over work that was not done are found, whatever came of it."""

from __future__ import annotations

import pytest

from tests.faults.acks import ack_problems
from tests.faults.facts import Commit, Facts, Place

FETCHES, PAGES = "fetches", "pages"


def orders(*commits: tuple[int, float], ordered: float = 1.0, **answers: float) -> Facts:
    """Orders a, b, c at offsets 0 to 2 of a partition; `answers`: when each was answered; commits: offset and time."""
    return Facts(
        order_places={(0, at): ((name.encode(), 1), ordered) for at, name in enumerate("abc")},
        answers={(name.encode(), 1): [at] for name, at in answers.items()},
        commits=[Commit("fetcher", FETCHES, 0, offset, at) for offset, at in commits],
    )


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        pytest.param(orders((1, 3.0), (3, 4.0), a=2.0, b=3.5, c=3.5), [], id="each after its answer"),
        pytest.param(orders((1, 3.0), a=2.0), [], id="what is behind the commit need not be done"),
        pytest.param(orders((3, 2.5), a=2.0, b=3.0, c=2.2), ["0@1 answered 0.500 s later"], id="out of order"),
        pytest.param(orders((3, 2.5), a=2.0, c=2.2), ["0@1 never answered"], id="lost"),
        pytest.param(orders((1, 2.0), a=2.001), [], id="rounding"),
        pytest.param(orders((2, 2.5), (1, 4.0), a=3.0, b=2.0), ["0@0 answered 0.500 s later"], id="moved back since"),
        pytest.param(orders((1, 5.0), ordered=4.0, a=2.0), ["0@0 never answered"], id="ordered again since"),
        pytest.param(orders((1, 5.0), ordered=2.01, a=2.0), [], id="the writer's notion of the time"),
        pytest.param(orders(a=2.0), [], id="no commit"),
    ],
)
def test_an_order_is_committed_once_it_is_answered(facts: Facts, found: list[str]) -> None:
    assert ack_problems(facts) == ([f"acked before it was done: {len(found)} orders: {found}"] if found else [])


@pytest.mark.parametrize(
    ("parsed", "found"),
    [
        pytest.param({(0, 0): 1.0, (0, 1): 1.5}, 0, id="done"),
        pytest.param({(0, 0): 1.0, (0, 1): 2.5}, 1, id="after the commit"),
        pytest.param({(0, 0): 1.0}, 1, id="never"),
        pytest.param({(0, 0): 1.0, (1, 1): 1.0}, 1, id="another partition"),
    ],
)
def test_a_page_is_committed_once_its_outcome_is_there(parsed: dict[Place, float], found: int) -> None:
    facts = Facts(page_places={(0, 0), (0, 1), (0, 2)}, parsed=parsed, commits=[Commit("parser", PAGES, 0, 2, 2.0)])
    assert len(ack_problems(facts)) == found
