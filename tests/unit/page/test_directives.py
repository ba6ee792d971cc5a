from __future__ import annotations

import pytest

from streams.page.directives import NONE, Directives, from_headers, from_meta

BOTH = Directives(nofollow=True, noindex=True)
NOFOLLOW = Directives(nofollow=True)
NOINDEX = Directives(noindex=True)


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
        (["unavailable_after: Wed, 25 Jun 2031 15:00:00 GMT, nofollow"], NOFOLLOW),
        (["max-snippet: 5, none"], BOTH),
    ],
)
def test_headers(lines: list[str], expected: Directives) -> None:
    assert from_headers(lines) == expected
