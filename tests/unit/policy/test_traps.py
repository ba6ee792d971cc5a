"""Endless spaces of URLs, and the sites that only look like them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.definitions import Traps
from streams.policy.traps import LONGEST_PATTERN, compile_traps, pattern_of
from tests.unit.policy.test_urls import WIRES

NOW = 1_795_000_000_000  # 2026-11
OFF = Traps(repeats=0, depth=0, length=0, parameters=0, years=0, novelty=0)


@pytest.mark.parametrize(
    ("url", "trap"),
    [
        ("http://h/", ""),
        ("http://h/" + "x" * 2039, ""),
        ("http://h/" + "x" * 2040, "trap:length"),
        ("http://h/" + "/".join(map(str, range(32))), ""),
        ("http://h/" + "/".join(map(str, range(32))) + "/", ""),
        ("http://h/" + "/".join(map(str, range(33))), "trap:depth"),
        ("http://h/?" + "/" * 60, ""),
        ("http://h/a/a/a/", ""),
        ("http://h/a/a/a/a", "trap:repeats"),
        ("http://h/a/a/a/a?x", "trap:repeats"),
        ("http://h/a/a/a/a/?x", "trap:repeats"),
        ("http://h/x/y/z/a/a/a/a", "trap:repeats"),
        ("http://h/a/a/a/a/x/y/z", "trap:repeats"),
        ("http://h/x/y/z/w/a/a/a/a", "trap:repeats"),
        ("http://h/x/a/a/a/y/z/w", ""),
        ("http://h/x/a/a/a/b/a/a/a", ""),
        ("http://h/a/b/a/b/a/b/a/c", ""),
        ("http://h/x/a/b/a/b/a/b/a/b/y", "trap:repeats"),
        ("http://h/" + "1/2/3/4/5/6/7/8/" * 4, "trap:repeats"),
        ("http://h/1/2/1/3/1/4/1/5/1/6/", ""),
        ("http://h/?a/a/a/a/a/a", ""),
        ("http://h/////x", "trap:repeats"),
        ("http://h/?" + "&".join("a" * 32), ""),
        ("http://h/?" + "&".join("a" * 33), "trap:parameters"),
        ("http://h/" + "&" * 40, ""),
    ],
)
def test_shape(url: str, trap: str) -> None:
    assert compile_traps(Traps())(url, NOW) == trap
    assert compile_traps(OFF)(url, NOW) == ""


@pytest.mark.parametrize(
    ("way", "caught"),
    [
        # days and months ahead of us
        ("2046/12/31/", False),
        ("2047/01/01/", True),
        ("2047-01-01", True),
        ("a_2047_01_01.html", True),
        ("2047.01.01", True),
        ("2047/01/", False),  # thread 2047, page 1?
        ("calendar/2047/01/", True),
        ("events/2047-01", True),
        ("prevents/2047-01", False),
        ("?date=2047-01", True),
        ("?date=2046-12", False),
        ("?x=2047%2F01%2F01", True),
        ("?d=31.12.2047", True),
        ("?d=12/31/2047", True),
        ("?date=20470101", True),
        ("?month=204701", True),
        ("?id=20470101", False),
        ("?year=2047", True),
        ("?y=1&start_year=9999", True),
        # and behind
        ("1987/03/11/article", False),
        ("?date=1987-03-11", False),
        ("?year=1987", False),
        ("?year=1987&month=3", True),
        ("?month=3&amp;year=1987", True),
        ("?year=2010&month=3", False),
        ("calendar/1987/03", True),
        ("calendar.php?date=19870311", True),
        # no dates
        ("rfc/2119/3", False),
        ("rfc5234-01", False),
        ("item/4711?page=2", False),
        ("?id=482113", False),
        ("9999/99/99", False),
        ("?time=1795000000", False),
        ("?offset=4000", False),
        ("draft-2119-13-01", False),
        ("12047/01/01", False),
        ("2047/01/011", False),
    ],
)
def test_calendars(way: str, caught: bool) -> None:
    assert compile_traps(Traps())(f"http://h/{way}", NOW) == ("trap:calendar" if caught else "")
    assert compile_traps(OFF)(f"http://h/{way}", NOW) == ""


def calendar() -> Iterator[str]:
    """A calendar that leads from each month to the next, for ever."""
    for month in range(12 * 2026, 12 * 9999):
        yield f"http://h/calendar/{month // 12}/{month % 12 + 1:02}/"


def relative_links() -> Iterator[str]:
    """A broken relative link: each page leads to one below itself."""
    for depth in range(1, 1000):
        yield "http://h/" + "docs/intro/" * depth


def numbered_folders() -> Iterator[str]:
    """A folder in each folder."""
    for depth in range(1, 1000):
        yield "http://h/" + "".join(f"d{i}/" for i in range(depth))


def growing_query() -> Iterator[str]:
    """Each page adds a parameter."""
    for number in range(1, 1000):
        yield "http://h/?" + "&".join(f"p{i}=1" for i in range(number))


def growing_value() -> Iterator[str]:
    """Each page encodes the way to itself once more."""
    url = "http://h/?back="
    for _ in range(1000):
        yield url
        url += "%25252Fback%25253D"


@pytest.mark.parametrize(
    ("site", "longest", "trap"),
    [
        (calendar, 12 * 21 + 1, "trap:calendar"),
        (relative_links, 3, "trap:repeats"),
        (numbered_folders, 32, "trap:depth"),
        (growing_query, 32, "trap:parameters"),
        (growing_value, 120, "trap:length"),
    ],
)
def test_a_trap_ends_soon(site, longest: int, trap: str) -> None:
    trapped = compile_traps(Traps())
    verdicts = [trapped(url, NOW) for url in islice(site(), longest + 2)]
    assert verdicts[-1] == trap
    assert verdicts.index(trap) <= longest


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://h/item/17/", "http://h/item/18/", True),
        ("http://h/item17a", "http://h/item18a", True),
        ("https://h/list?page=2&id=x", "http://h/list?id=y&page=77", True),
        ("http://h/a;jsessionid=0A1B2C3D?x=1", "http://h/a;jsessionid=FFEE2211?x=2", True),
        ("http://h/s/0123456789abcdef/x", "http://h/s/fedcba9876543210/x", True),
        ("http://h/list?a=1", "http://h/list?b=1", False),
        ("http://h/en/core.html", "http://h/fr/core.html", False),
        ("http://h/facade/", "http://h/decade/", False),
        ("http://h/x?", "http://h/x", True),
    ],
)
def test_patterns(one: str, other: str, same: bool) -> None:
    assert (pattern_of(one) == pattern_of(other)) is same


@settings(deadline=None)
@given(WIRES)
def test_every_url_has_a_pattern_of_bounded_length(url: str) -> None:
    assert compile_traps(Traps())(url, NOW) in ("", "trap:repeats")
    assert len(pattern_of(url)) <= LONGEST_PATTERN + 17


@given(st.text("ab/", min_size=1, max_size=60))
def test_long_paths_of_one_kind_have_patterns_of_bounded_length(text: str) -> None:
    url = f"http://h/{text * 30}"
    assert len(pattern_of(url)) <= LONGEST_PATTERN + 17
