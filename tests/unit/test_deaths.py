"""Who is blamed for which deaths, for how long, and that being told twice does no harm."""

from __future__ import annotations

import pytest

from streams.deaths import KEPT, REMEMBERED, Death, Deaths

URL = "http://a.test/bomb"
NOW = 10 * REMEMBERED


def known(*told: Death) -> Deaths:
    deaths = Deaths()
    for death in told:
        deaths.add(death)
    return deaths


@pytest.mark.parametrize(
    ("ages", "count"), [((), 0), ((0,), 1), ((0, 5, REMEMBERED - 1), 3), ((REMEMBERED,), 0), ((3, 2 * REMEMBERED), 1)]
)
def test_bodies_are_blamed_for_an_hour(ages: tuple[int, ...], count: int) -> None:
    deaths = known(*(Death(stage="fetcher", at=NOW - age, url=URL) for age in ages))
    assert deaths.of_body(URL, NOW) == count
    assert deaths.of_body("http://a.test/other", NOW) == 0
    assert not deaths.is_suspect(0, 0)


def test_pages_are_suspects_up_to_where_anybody_had_begun() -> None:
    ends = ((1, 5), (1, 3), (2, 1))
    deaths = known(*(Death(stage="parser", at=NOW, partition=partition, end=end) for partition, end in ends))
    assert [deaths.is_suspect(1, offset) for offset in (0, 4, 5)] == [True, True, False]
    assert [deaths.is_suspect(2, offset) for offset in (0, 1)] == [True, False]
    assert not deaths.is_suspect(3, 0)
    assert deaths.tries(1, 4) == 0


def test_the_most_tries_of_a_page_count() -> None:
    deaths = known(*(Death(stage="parser", at=NOW, partition=1, end=5, tries=tries) for tries in (1, 2, 2, 1)))
    assert deaths.tries(1, 4) == 2
    assert deaths.tries(1, 3) == deaths.tries(0, 4) == 0
    assert deaths.is_suspect(1, 4)


def test_the_first_are_forgotten_when_there_are_too_many() -> None:
    deaths = known(*(Death(stage="fetcher", at=NOW, url=f"{URL}{n}") for n in range(KEPT + 1)))
    assert [deaths.of_body(f"{URL}{n}", NOW) for n in (0, 1, KEPT)] == [0, 1, 1]
    deaths = known(*(Death(stage="parser", at=NOW, partition=0, end=n + 1, tries=1) for n in range(KEPT + 1)))
    assert [deaths.tries(0, n) for n in (0, 1, KEPT)] == [0, 1, 1]
