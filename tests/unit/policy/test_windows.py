from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import UsageError
from streams.policy.windows import Windows, parse_window

MINUTE = 60_000
WEEK = 7 * 24 * 60 * MINUTE


def ms(text: str) -> int:
    """A UTC time such as `2026-11-30 22:00`."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


# 2026-11-30 is a Monday; clocks in Berlin: UTC+1, from 2026-03-29 01:00 UTC to 2026-10-25 01:00 UTC UTC+2
@pytest.mark.parametrize(
    ("windows", "now", "is_open", "until"),
    [
        (["22:00-06:00"], "2026-11-30 21:59", False, "2026-11-30 22:00"),
        (["22:00-06:00"], "2026-11-30 22:00", True, "2026-12-01 06:00"),
        (["22:00-06:00"], "2026-12-01 05:59", True, "2026-12-01 06:00"),
        (["22:00-06:00"], "2026-12-01 06:00", False, "2026-12-01 22:00"),
        (["Mon-Fri 22:00-06:00"], "2026-12-05 05:00", True, "2026-12-05 06:00"),  # began on Friday
        (["Mon-Fri 22:00-06:00"], "2026-12-05 23:00", False, "2026-12-07 22:00"),
        (["Fri-Mon 12:00-13:00"], "2026-12-01 12:30", False, "2026-12-04 12:00"),
        (["mon,wed-thu 12:00-13:00"], "2026-12-01 12:30", False, "2026-12-02 12:00"),
        (["Sat,Sun"], "2026-12-04 12:00", False, "2026-12-05 00:00"),
        (["Sat,Sun"], "2026-12-05 12:00", True, "2026-12-07 00:00"),
        (["08:00-24:00"], "2026-12-05 12:00", True, "2026-12-06 00:00"),
        (["08:00-08:00"], "2026-12-05 12:00", True, "2026-12-12 12:00"),  # always: ask again after a week
        (["Mon 00:00-00:00"], "2026-12-05 12:00", False, "2026-12-07 00:00"),
        (["08:00-10:00", "09:00-12:00", "12:00-13:00"], "2026-12-05 08:30", True, "2026-12-05 13:00"),
        (["08:00-10:00", "14:00-15:00"], "2026-12-05 10:00", False, "2026-12-05 14:00"),
        (["22:00-06:00 Europe/Berlin"], "2026-11-30 20:59", False, "2026-11-30 21:00"),
        (["22:00-06:00 Europe/Berlin"], "2026-07-01 19:59", False, "2026-07-01 20:00"),
        (["Mon 00:00-01:00 Asia/Tokyo"], "2026-11-29 15:30", True, "2026-11-29 16:00"),
        # the night in which clocks are set forward has seven hours of 22 to 6, the other one nine
        (["22:00-06:00 Europe/Berlin"], "2026-03-28 22:00", True, "2026-03-29 04:00"),
        (["22:00-06:00 Europe/Berlin"], "2026-10-24 22:00", True, "2026-10-25 05:00"),
        # 02:30 is left out: it counts as 03:30; nothing is left of a window that ends at 03:00
        (["02:30-04:00 Europe/Berlin"], "2026-03-29 00:00", False, "2026-03-29 01:30"),
        (["02:30-03:00 Europe/Berlin"], "2026-03-29 00:00", False, "2026-03-30 00:30"),
        # 02:30 comes twice: the first one counts
        (["02:30-04:00 Europe/Berlin"], "2026-10-25 00:00", False, "2026-10-25 00:30"),
        (["00:30-02:30 Europe/Berlin"], "2026-10-25 00:00", True, "2026-10-25 00:30"),
    ],
)
def test_opens_and_closes(windows: list[str], now: str, is_open: bool, until: str) -> None:
    opening = Windows(windows).at(ms(now))
    assert (opening.open, opening.until) == (is_open, ms(until))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "cannot be read"),
        ("Europe/Berlin", "cannot be read"),
        ("Mon-Foo 10:00-11:00", "cannot be read"),
        ("10-11", "cannot be read"),
        ("Mon 10:00-11:00 UTC and more", "cannot be read"),
        ("10:00-24:30", "a day ends at 24:00"),
        ("24:00-01:00", "a day ends at 24:00"),
        ("10:00-11:00 Europe/Nowhere", "no time zone is called Europe/Nowhere"),
        ("10:00-11:00 ../etc", "no time zone is called"),
        ("10:00-11:00 Europe", "no time zone is called"),
    ],
)
def test_says_what_cannot_be_read(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_window(text)


_times = st.integers(0, 23).map("{:02}:00".format)
_texts = st.builds(
    "{} {}-{} {}".format,
    st.sampled_from(["Mon", "Tue-Thu", "Sat,Mon", "Mon-Sun"]),
    _times,
    _times,
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
)
_moments = st.integers(ms("2026-01-01 00:00") // MINUTE, ms("2027-12-31 00:00") // MINUTE).map(lambda m: m * MINUTE)


@given(st.lists(_texts, min_size=1, max_size=3), _moments, st.floats(0, 0.999))
def test_an_answer_holds_until_it_says_and_then_changes(texts: list[str], now: int, part: float) -> None:
    found = Windows(texts).at(now)
    assert now < found.until <= now + WEEK
    later = now + int((found.until - now) * part)
    assert Windows(texts).at(later).open == found.open
    if found.until < now + WEEK:
        assert Windows(texts).at(found.until).open != found.open


@given(st.lists(_moments, min_size=2, max_size=6))
def test_what_is_remembered_changes_nothing(moments: list[int]) -> None:
    windows = Windows(["Mon-Fri 09:00-17:00", "Sat 10:00-12:00 Europe/Berlin"])
    for now in moments:
        opening, fresh = windows.at(now), Windows(["Mon-Fri 09:00-17:00", "Sat 10:00-12:00 Europe/Berlin"]).at(now)
        assert opening.open == fresh.open
