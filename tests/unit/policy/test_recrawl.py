"""When a URL is visited again."""

from __future__ import annotations

from typing import Any

import pytest

from streams.definitions import Recrawl
from streams.policy.recrawl import TOLERANCE, Plan, due_by_sitemap, plan, visits_left

NOW = 1_000_000_000
HOUR = 3600.0
MS = 1000


def planned(recrawl: Recrawl, **facts: Any) -> Plan:
    given: dict[str, Any] = {"visit": 1, "interval": 0.0, "news": "first", "now": NOW}
    return plan(recrawl, **given | facts)


@pytest.mark.parametrize("news", ["first", "changed", "unchanged", "failed"])
def test_a_fixed_interval_stays_what_it_is(news) -> None:
    assert planned(Recrawl(interval=60.0), news=news, interval=5.0) == Plan(60.0, NOW + 60 * MS)


@pytest.mark.parametrize(
    ("news", "interval", "becomes"),
    [
        ("first", 0.0, 8 * HOUR),
        ("unchanged", 0.0, 12 * HOUR),
        ("unchanged", 12 * HOUR, 18 * HOUR),
        ("unchanged", 18 * HOUR, 24 * HOUR),  # longest
        ("changed", 0.0, 4 * HOUR),
        ("changed", 4 * HOUR, 2 * HOUR),
        ("changed", HOUR, HOUR),  # shortest
        ("failed", 4 * HOUR, 6 * HOUR),
    ],
)  # fmt: skip
def test_an_adaptive_interval_follows_the_page(news, interval: float, becomes: float) -> None:
    recrawl = Recrawl(interval=8 * HOUR, adaptive=True, shortest=HOUR, longest=24 * HOUR)
    assert planned(recrawl, news=news, interval=interval) == Plan(becomes, NOW + round(becomes * MS))


def test_a_limit_rule_says_where_it_begins() -> None:
    assert planned(Recrawl(interval=60.0), start=5.0).interval == 5.0
    adaptive = Recrawl(adaptive=True, shortest=1.0)
    assert planned(adaptive, start=10.0, news="unchanged").interval == 15.0
    assert planned(adaptive, start=10.0, interval=20.0, news="unchanged").interval == 30.0


@pytest.mark.parametrize("recrawl", [Recrawl(interval=0.0), Recrawl(adaptive=True, shortest=0.0, longest=0.0)])
def test_no_interval_is_a_busy_loop(recrawl: Recrawl) -> None:
    assert planned(recrawl).due == NOW + 1000


def test_contradictory_bounds_are_slow_rather_than_fast() -> None:
    assert planned(Recrawl(adaptive=True, shortest=2 * HOUR, longest=HOUR)).interval == 2 * HOUR


@pytest.mark.parametrize(("rounds", "visit", "left"), [(None, 10**6, True), (1, 1, False), (3, 2, True), (3, 3, False),
                                                       (3, 4, False)])  # fmt: skip
def test_rounds_are_visits_of_each_url(rounds, visit: int, left: bool) -> None:
    recrawl = Recrawl(interval=60.0, rounds=rounds)
    assert visits_left(recrawl, visit) is left
    assert planned(recrawl, visit=visit, interval=7.0) == (Plan(60.0, NOW + 60 * MS) if left else Plan(7.0, 0))


@pytest.mark.parametrize(
    ("visited", "known", "lastmod", "due"),
    [
        (NOW - 9000, 0, NOW - 8000, NOW),  # later than the visit
        (NOW - 9000, 0, NOW - 9000, 0),
        (NOW - 9000, 0, NOW - 90_000, 0),  # older, nothing was said before
        (NOW - 9000, NOW - 99_000, NOW - 90_000, NOW),  # older, but another date than before: perhaps of the same day
        (NOW - 9000, NOW - 90_000, NOW - 90_000, 0),
        (NOW - 9000, NOW - 80_000, NOW - 90_000, 0),
        (NOW - 1000, 0, NOW, NOW + 4000),  # not within `shortest` of the last visit
        (NOW - 9000, 0, NOW + TOLERANCE, NOW),
        (NOW - 9000, 0, NOW + TOLERANCE + 1, 0),  # nothing was changed in the future
    ],
)
def test_what_a_sitemap_says_is_news_or_not(visited: int, known: int, lastmod: int, due: int) -> None:
    recrawl = Recrawl(shortest=5.0)
    assert due_by_sitemap(recrawl, visited=visited, known=known, lastmod=lastmod, now=NOW) == due
