"""When a URL is visited again: a fixed interval, or one that follows how often its content changes.

Adaptive (as StormCrawler's and Nutch's schedules, with factors between theirs): half the interval after a change, one
and a half times of it after none, never beyond `shortest` and `longest`. So a page that changes each day settles near
a day, and one that never does costs a conditional request a month.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from streams.definitions import Recrawl

News = Literal["first", "changed", "unchanged", "failed"]
"""What a visit found: new content, the same (by fingerprint, or 304), or nothing (a failure, a redirect, a ban)."""

FACTORS: Final[dict[News, float]] = {"first": 1.0, "changed": 0.5, "unchanged": 1.5, "failed": 1.5}

LEAST: Final = 1.0
"""Seconds between two visits at least, whatever is asked for: an interval of 0 would be a loop."""

TOLERANCE: Final = 24 * 3600 * 1000
"""ms that a sitemap's date may be ahead of us, for days begin earlier in the east; a later one is a mistake."""


class Plan(NamedTuple):
    """The interval in force from now on (seconds), and when the next visit is due (ms; 0: there will be none)."""

    interval: float
    due: int


def visits_left(recrawl: Recrawl, visit: int) -> bool:
    """Whether another visit may follow the one with this number."""
    return recrawl.rounds is None or visit < recrawl.rounds


def plan(recrawl: Recrawl, *, visit: int, interval: float, news: News, now: int, start: float | None = None) -> Plan:
    """What follows a visit that ended at `now` (ms).

    `interval`: learned so far, 0 for none. `start`: what a limit rule says instead of the crawl's interval.
    """
    if not visits_left(recrawl, visit):
        return Plan(interval, 0)
    seconds = _next_interval(recrawl, interval, news, recrawl.interval if start is None else start)
    return Plan(seconds, now + round(seconds * 1000))


def _next_interval(recrawl: Recrawl, interval: float, news: News, start: float) -> float:
    if not recrawl.adaptive:
        return max(LEAST, start)
    return max(LEAST, recrawl.shortest, min(recrawl.longest, (interval or start) * FACTORS[news]))


def due_by_sitemap(recrawl: Recrawl, *, visited: int, known: int, lastmod: int, now: int) -> int:
    """When a page is due because a sitemap says that it was changed at `lastmod`; 0: that is no news.

    It is news when it is later than the last visit, or than the date the sitemap gave before (`known`, 0 for none):
    dates are often days, so a change may lie before a visit of the same day. A sitemap that always says `now` brings
    no page back sooner than `shortest` after its last visit. All times in ms.
    """
    if lastmod > now + TOLERANCE or not (lastmod > visited or 0 < known < lastmod):
        return 0
    return max(now, visited + round(max(LEAST, recrawl.shortest) * 1000))
