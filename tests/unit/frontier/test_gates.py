"""Whether a crawl's URLs may go."""

from __future__ import annotations

from typing import Any

import pytest

from streams.frontier.budgets import part
from streams.frontier.gates import Gates
from streams.frontier.rows import State
from streams.frontier.tally import Tallies
from streams.messages import CrawlCounts
from tests.unit.frontier.rig import crawl

NOW = 1_000_000


def gates(crawls: dict[str, Any], **numbers: int) -> Gates:
    """Numbers: URLs by state, `kept` waiting pages, `released`, `revisits`, `size`; `elsewhere`: of other shards."""
    tallies = Tallies()
    for name, number in {"waiting": 1, **numbers}.items():
        if name.upper() in State.__members__:
            tallies["c"].states[State[name.upper()]] = number
    tally = tallies["c"]
    tally.released, tally.revisits = numbers.get("released", 0), numbers.get("revisits", 0)
    tally.size, tally.kept[State.WAITING] = numbers.get("size", 0), numbers.get("kept", 0)
    others = CrawlCounts(
        done=numbers.get("elsewhere", 0), size=numbers.get("size_elsewhere", 0), open=numbers.get("open_elsewhere", 0),
        kept=numbers.get("kept_elsewhere", 0),
    )  # fmt: skip
    found = Gates(crawls, tallies)
    found.look(NOW, {"c": others, "other": CrawlCounts(done=99, size=9999)})
    return found


@pytest.mark.parametrize(
    ("fields", "numbers", "over"),
    [
        ({}, {}, ""),
        ({"state": "sealed"}, {}, ""),
        ({"state": "ended"}, {}, "ended"),
        ({"state": "ended"}, {"waiting": 0}, ""),  # nothing to exclude
        ({"deadline": NOW}, {}, "deadline"),
        ({"deadline": NOW + 1}, {}, ""),
        ({"limit": 5}, {"done": 3, "fetched": 1}, ""),
        ({"limit": 5}, {"done": 3, "fetched": 2}, "limit"),
        ({"limit": 5}, {"done": 1, "elsewhere": 4}, "limit"),
        ({"limit": 5}, {"done": 3, "failed": 9, "redirected": 9}, ""),
        ({"limit": 5, "state": "paused"}, {"done": 9}, ""),
        ({"duration": 2.0, "created": NOW - 2000}, {}, "deadline"),
        ({"duration": 2.0, "created": NOW - 1999}, {}, ""),
        ({"duration": 9.0, "created": NOW, "deadline": NOW}, {}, "deadline"),
        ({"duration": 2.0}, {}, ""),  # nobody said when it began
        ({"max_size": 100}, {"size": 99}, ""),
        ({"max_size": 100}, {"size": 60, "size_elsewhere": 40}, "size"),
        ({"max_size": 100, "limit": 1}, {"size": 100, "done": 1}, "size"),  # it keeps out pages that come back, too
        ({"limit": 5}, {"done": 4, "kept": 1}, ""),  # what waits is a page: it holds its place
        ({"limit": 5}, {"done": 4, "waiting": 2, "kept": 1}, "limit"),
        ({"limit": 5, "max_size": 9}, {"done": 4, "kept": 1, "size": 9}, "size"),
        ({"limit": 5}, {"done": 3, "kept_elsewhere": 2}, "limit"),
    ],
)
def test_which_crawls_are_over(fields, numbers, over: str) -> None:
    found = gates({"c": crawl(**fields)}, **numbers)
    assert found.over == ({"c": over} if over else {})


@pytest.mark.parametrize(
    ("fields", "numbers", "holds", "room"),
    [
        ({}, {"released": 1000}, False, float("inf")),
        ({"state": "paused"}, {}, True, float("inf")),
        ({"state": "ended"}, {}, False, float("inf")),
        ({"concurrency": 3}, {"released": 2}, False, 1),
        ({"concurrency": 3}, {"released": 3}, True, 0),
        ({"concurrency": 3}, {"released": 9}, True, -6),  # it was lowered while they were out
        ({"concurrency": 3, "limit": 5}, {"done": 5, "released": 3}, True, 0),  # over by pages: some come back
        ({"concurrency": 3, "max_size": 5}, {"size": 5, "released": 3}, False, float("inf")),
        ({"concurrency": 8}, {"waiting": 10, "open_elsewhere": 30, "released": 1}, False, 1),
        ({"concurrency": 8}, {"waiting": 5, "fetched": 5, "open_elsewhere": 30, "released": 2}, True, 0),
        ({"concurrency": 8}, {"open_elsewhere": 1000}, False, 1),
        ({"concurrency": 3, "state": "ended"}, {"released": 3}, False, float("inf")),
    ],
)
def test_which_crawls_must_wait(fields, numbers, holds: bool, room: float) -> None:
    found = gates({"c": crawl(**fields)}, **numbers)
    assert (found.holds("c"), found.room("c")) == (holds, room)


@pytest.mark.parametrize(
    ("fields", "numbers", "places"),
    [
        ({}, {"released": 1000}, float("inf")),
        ({"limit": 5}, {"done": 2, "fetched": 1, "released": 1}, 1),
        ({"limit": 5}, {"done": 2, "fetched": 1, "released": 2}, 0),
        ({"limit": 5}, {"done": 2, "fetched": 1, "released": 2, "revisits": 1}, 1),  # its page counts already
        ({"limit": 5}, {"done": 2, "elsewhere": 2, "released": 1}, 0),
        ({"limit": 5}, {"done": 2, "kept": 1, "kept_elsewhere": 1}, 1),
        ({"limit": 5}, {"waiting": 0, "done": 5}, float("inf")),
        ({"limit": 5}, {"done": 5}, float("inf")),  # over: what is new is excluded
    ],
)
def test_how_many_new_pages_have_a_place(fields, numbers, places: float) -> None:
    assert gates({"c": crawl(**fields)}, **{"waiting": 9, **numbers}).places("c") == places


@pytest.mark.parametrize("opens", [(1, 1, 1, 1), (0, 7, 900, 3), (5, 5), (10, 10, 10), (1000, 1)])
@pytest.mark.parametrize("concurrency", [1, 2, 7, 64])
def test_the_parts_of_a_concurrency_add_up(concurrency: int, opens: tuple[int, ...]) -> None:
    parts = [part(concurrency, mine, sum(opens) - mine) for mine in opens if mine]
    assert min(parts) >= 1
    assert sum(parts) <= concurrency + len(parts) - 1
    assert sum(parts) > concurrency - len(parts)


def test_an_unknown_crawl_waits() -> None:
    found = gates({})
    assert found.holds("c")
    assert not found.over


def test_the_next_deadline_wakes() -> None:
    assert gates({"c": crawl(deadline=NOW + 9)}).next_at() == NOW + 9
    assert gates({"c": crawl(deadline=NOW)}).next_at() == float("inf")
    assert gates({"c": crawl(deadline=NOW + 9)}, waiting=0).next_at() == float("inf")
    assert gates({"c": crawl()}).next_at() == float("inf")
