"""Time windows: when a host may be asked.

A window is written `Mon-Fri 22:00-06:00 Europe/Berlin`: days, times, time zone, each of which may be left out (every
day, all day, UTC), but not days and times both. Several days are joined by commas (`Mon,Wed-Fri`). A window that ends
before it begins, or at the same time, ends on the next day; its days are those on which it begins. `24:00` is the end
of a day.

Times are those of the zone's clocks. Where clocks are set forward, a time that is left out counts as the one an hour
later (RFC 5545 §3.3.5); where they are set back, a time that comes twice counts as the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from streams.errors import UsageError

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIMES: Final = re.compile(r"([01]\d|2[0-4]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")
_DAY_MINUTES: Final = 24 * 60
_AHEAD: Final = 9  # days that are worked out: a week, and what began before and ends after it


@dataclass(frozen=True, slots=True)
class Window:
    """`days`: 0 for Monday; `start` and `end` in minutes of the day it begins, `end` perhaps beyond its end."""

    days: frozenset[int]
    start: int
    end: int
    zone: ZoneInfo

    def spans(self, now: int) -> Iterator[tuple[int, int]]:
        """When it is open (ms, begin and end), from before `now` to about a week after."""
        today = datetime.fromtimestamp(now / 1000, self.zone).date()
        for offset in range(-2, _AHEAD):
            day = today + timedelta(offset)
            if day.weekday() in self.days:
                begin, end = self._at(day, self.start), self._at(day, self.end)
                if begin < end:
                    yield begin, end

    def _at(self, day: date, minutes: int) -> int:
        day += timedelta(minutes // _DAY_MINUTES)
        hour, minute = divmod(minutes % _DAY_MINUTES, 60)
        return int(datetime(day.year, day.month, day.day, hour, minute, tzinfo=self.zone).timestamp()) * 1000


def parse_window(text: str) -> Window:
    """Read one window. Raises `UsageError`."""
    words = text.split()
    days = _read_days(words[0]) if words else None
    times = _TIMES.fullmatch(words[days is not None]) if len(words) > (days is not None) else None
    zone = words[(days is not None) + (times is not None) :]
    if (days is None and times is None) or len(zone) > 1:
        raise _unreadable(text)
    start, end = _minutes(times, text) if times else (0, _DAY_MINUTES)
    if end <= start:
        end += _DAY_MINUTES
    return Window(days or frozenset(range(7)), start, end, _zone(zone[0] if zone else "UTC", text))


def _unreadable(text: str, detail: str = "") -> UsageError:
    return UsageError(
        f"the time window {text!r} cannot be read" + (f": {detail}" if detail else ""),
        "Write `Mon-Fri 22:00-06:00 Europe/Berlin`; days, times or the zone (UTC) may be left out.",
    )


def _read_days(text: str) -> frozenset[int] | None:
    """`Mon-Fri` or `Mon,Wed-Fri`; None if it is something else."""
    days: set[int] = set()
    for part in text.lower().split(","):
        first, _, last = part.partition("-")
        if first not in _DAYS or (last or first) not in _DAYS:
            return None
        begin, end = _DAYS.index(first), _DAYS.index(last or first)
        days.update(day % 7 for day in range(begin, end + (7 if end < begin else 0) + 1))
    return frozenset(days)


def _minutes(times: re.Match[str], text: str) -> tuple[int, int]:
    hour, minute, end_hour, end_minute = map(int, times.groups())
    start, end = hour * 60 + minute, end_hour * 60 + end_minute
    if max(start, end) > _DAY_MINUTES or start == _DAY_MINUTES:
        raise _unreadable(text, "a day ends at 24:00")
    return start, end


def _zone(name: str, text: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not found, not a name, a directory
        raise _unreadable(text, f"no time zone is called {name}") from None


@dataclass(frozen=True, slots=True)
class Opening:
    """Whether a host may be asked, and until when this holds (ms); a week at most, then ask again."""

    open: bool
    until: int


class Windows:
    """Several windows: open when any of them is. Remembers its last answer for as long as that holds."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._windows = tuple(parse_window(text) for text in texts)
        self._since = 0
        self._last = Opening(open=False, until=0)

    def at(self, now: int) -> Opening:
        """How it stands at `now` (ms)."""
        if not self._since <= now < self._last.until:
            self._last = self._work_out(now)
            self._since = now
        return self._last

    def _work_out(self, now: int) -> Opening:
        spans = sorted(span for window in self._windows for span in window.spans(now))
        horizon = now + 7 * 24 * 3600 * 1000
        until = now
        for begin, end in spans:
            if begin > until:
                return Opening(open=until > now, until=min(until if until > now else begin, horizon))
            until = max(until, end)
        return Opening(open=until > now, until=min(until, horizon) if until > now else horizon)


def describe_time(at: int) -> str:
    """A time for people, e.g. `Mon 2026-11-30 22:00 UTC`."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%a %Y-%m-%d %H:%M UTC")
