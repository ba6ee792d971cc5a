from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.page.directives import NONE, Directives, from_headers, from_meta

BOTH = Directives(nofollow=True, noindex=True)
NOFOLLOW = Directives(nofollow=True)
NOINDEX = Directives(noindex=True)
HOUR = 3_600_000
LIMIT = 1_940_166_000_000  # Wed, 25 Jun 2031 15:00:00 GMT


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("noindex, nofollow", BOTH),
        ("NONE", BOTH),
        ("NoFollow", NOFOLLOW),
        ("noindex follow", NOINDEX),
        ("all", NONE),
        ("", NONE),
        ("nofollowed", NONE),
        ("unavailable_after: 25 Jun 2031 15:00:00 GMT", Directives(until=LIMIT)),
        ("nofollow, Unavailable_After: Wed, 25 Jun 2031 15:00:00 GMT", Directives(nofollow=True, until=LIMIT)),
        ("unavailable_after: Wednesday, 25-Jun-31 15:00:00 GMT, noindex", Directives(noindex=True, until=LIMIT)),
        ("unavailable_after: 2031-06-25T17:00:00+02:00", Directives(until=LIMIT)),
        ("unavailable_after:2031-06-25T15:00:00z", Directives(until=LIMIT)),
        ("unavailable_after: 2031-06-25", Directives(until=LIMIT - 15 * HOUR)),
        ("unavailable_after: 25 Jun 2031 08:00:00 -0700", Directives(until=LIMIT)),
        ("unavailable_after: soon", NONE),
        ("unavailable_after:", NONE),
        ("unavailable_after: 99999-99-99", NONE),
        ("unavailable_after: 25 Jun 99999999999 08:00:00", NONE),
    ],
)
def test_meta(content: str, expected: Directives) -> None:
    assert from_meta(content) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], NONE),
        (["noindex", "nofollow"], BOTH),
        (["noindex, nofollow"], BOTH),
        (["Fyke: nofollow"], NOFOLLOW),
        (["robots: nofollow"], NOFOLLOW),
        (["otherbot: noindex, nofollow"], NONE),
        (["otherbot: noindex, fyke: nofollow"], NOFOLLOW),
        (["noindex, otherbot: nofollow"], NOINDEX),
        (["otherbot: nofollow", "noindex"], NOINDEX),
        (["unavailable_after: Wed, 25 Jun 2031 15:00:00 GMT, nofollow"], Directives(nofollow=True, until=LIMIT)),
        (["noindex", "fyke: unavailable_after: 25 Jun 2031 15:00:00 GMT"], Directives(noindex=True, until=LIMIT)),
        (["otherbot: unavailable_after: 25 Jun 2031 15:00:00 GMT, noindex"], NONE),
        (["unavailable_after: 2040-01-01", "unavailable_after: 2031-06-25T15:00:00Z"], Directives(until=LIMIT)),
        (["max-snippet: 5, none"], BOTH),
    ],
)
def test_headers(lines: list[str], expected: Directives) -> None:
    assert from_headers(lines) == expected


def test_a_page_is_hidden_from_its_limit_on() -> None:
    limited = Directives(until=LIMIT)
    assert [limited.hidden(at) for at in (LIMIT - 1, LIMIT)] == [False, True]
    assert NOINDEX.hidden(0)
    assert not NONE.hidden(2**61)


@given(st.text(), st.sampled_from(["", "unavailable_after:", "noindex, unavailable_after: "]))
def test_anything_may_stand_there(text: str, before: str) -> None:
    assert from_meta(before + text).until > -(10**15)
    from_headers([before + text])
