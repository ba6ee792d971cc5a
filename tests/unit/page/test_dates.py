"""Dates of sitemaps and feeds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.page.dates import instant

DAY = 24 * 3600 * 1000
NOON = 12 * 3600 * 1000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        # NOTE-datetime, the profile of ISO 8601 that sitemaps and Atom use
        ("1971", 365 * DAY),
        ("1970-02", 31 * DAY),
        ("1970-01-02", DAY),
        ("1970-01-02T12:00Z", DAY + NOON),
        ("1970-01-02T12:00:00Z", DAY + NOON),
        ("1970-01-02T12:00:00.123456Z", DAY + NOON),
        ("1970-01-02T12:00:00,5+01:00", DAY + NOON - 3_600_000),
        ("1970-01-02T12:00:00-01:30", DAY + NOON + 5_400_000),
        ("1970-01-02T23:59:60Z", 2 * DAY - 1000),  # a leap second
        # what else is written
        (" 1970-01-02\n", DAY),
        ("1970-1-2", DAY),
        ("1970-01-02 12:00:00", DAY + NOON),
        ("1970-01-02t12:00:00z", DAY + NOON),
        ("1970-01-02T12:00:00", DAY + NOON),
        ("1970-01-02T12:00:00+0100", DAY + NOON - 3_600_000),
        ("1970-01-02 12:00:00 UTC", DAY + NOON),
        ("1970-01-02T12:00:00 +01:00", DAY + NOON - 3_600_000),
        # RFC 822
        ("Fri, 02 Jan 1970 12:00:00 GMT", DAY + NOON),
        ("02 Jan 1970 12:00:00 +0100", DAY + NOON - 3_600_000),
        ("Fri, 02 Jan 70 12:00 EST", DAY + NOON + 5 * 3_600_000),
        ("Fri, 02 Jan 1970 12:00:00 +0000 (UTC)", DAY + NOON),
        # no dates
        ("", 0), ("yesterday", 0), ("1970-13-01", 0), ("1970-02-30", 0), ("1970-01-02T25:00Z", 0), ("0000-00-00", 0),
        ("1970-01-02T12", 0), ("1970-01-02X", 0), ("1969-12-31", 0), ("Fri, 02 Jan 1970 12:00:00", 0),
        ("99 Jan 1970 12:00:00 GMT", 0), ("1720000000", 0), ("1970-01-02T12:00:00+99:99", 0), ("9" * 5000, 0),
        ("0001-01-01T00:00:00+23:00", 0), ("02 Jan 1970 12:00:00 +99999999999999", 0),
    ],
)  # fmt: skip
def test_instants(text: str, ms: int) -> None:
    assert instant(text) == ms


@given(st.text())
def test_nothing_raises(text: str) -> None:
    assert instant(text) >= 0
