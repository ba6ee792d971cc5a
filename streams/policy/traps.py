"""Traps: endless spaces of URLs, told by what a URL looks like, or by pages that bring nothing new.

Each check excludes with an id of its own (`trap:<check>`), and each can be set or switched off in the crawl's
definition (`Traps`). The limits are chosen so that real sites do not reach them; docs/scope.md has the figures.

- `length`: the URL has more characters.
- `depth`: its path has more segments.
- `repeats`: a segment, or a run of up to 8 segments, stands so often in a row: `/a/b/a/b/a/b/a/b`.
- `parameters`: its query has more parameters.
- `calendar`: it names a day or month (in the query also a year) further away from now than `years`. The future counts
  always. The past counts only where a calendar is told by its words or by a year beside a month in the query: archives
  keep old dates in their paths, calendars make them up.
- `novelty`: so many pages of one pattern of URLs (`pattern_of`) brought nothing in a row that the host's pages of this
  pattern had not brought already. Decided by `streams.frontier.novelty`, which remembers.

Session ids are no trap: the page behind them is wanted, once. `Keys.sessions` makes one page of them; without it,
novelty ends them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from streams.definitions import Traps

Trap = Callable[[str, int], str]
"""From a wire URL and now (ms) to the id of the trap it looks like, "" for none."""

NOVELTY: Final = "trap:novelty"
LONGEST_RUN: Final = 8
"""Segments of a run that is looked for."""
LONGEST_PATTERN: Final = 200

_YEAR_MS: Final = 31_556_952_000  # the mean year of the Gregorian calendar
_DIGITS: Final = re.compile(r"[0-9][0-9]{3,}")  # written so that the search for its beginning is a fast one
_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_BEFORE: Final = 3  # parts between slashes before a URL's first segment
_YEAR: Final = 4  # digits in a row
_JOINED: Final = (6, 8)  # a year with month, with day: dates in the query only
_MONTH: Final = r"(?:0[1-9]|1[0-2])"
_DAY: Final = r"(?:0[1-9]|[12][0-9]|3[01])"
_NAME: Final = r"[^=&;?]*"
_DATE: Final = re.compile(
    rf"(?<![0-9])(?P<first>[1-9][0-9]{{3}})(?P<sep>[-/._]|%2[Ff]){_MONTH}(?![0-9])(?P<day>(?P=sep){_DAY}(?![0-9]))?"
    rf"|=(?:[0-3]?[0-9](?:[-/.]|%2[Ff])){{2}}(?P<last>[1-9][0-9]{{3}})(?![0-9])"
    rf"|[?&;]{_NAME}(?:year|jahr|annee){_NAME}=(?P<plain>[1-9][0-9]{{3}})(?![0-9])"
    rf"|[?&;]{_NAME}(?:date|day|week|month|time){_NAME}=(?P<joined>[1-9][0-9]{{3}}){_MONTH}(?:{_DAY})?(?![0-9])",
    re.IGNORECASE,
)
_WORDS: Final = ("calend", "kalend", "agenda", "termine", "schedule")
_EVENTS: Final = re.compile("(?<![a-z])events?(?![a-z])")
_MONTH_PARAMETER: Final = re.compile(rf"[?&;]{_NAME}(?:month|monat|mois|mon)=[0-9]", re.IGNORECASE)
_VARYING: Final = re.compile(r"[0-9A-Fa-f]{8,}(?![A-Za-z])|[0-9]+")
_VALUE: Final = re.compile(r"=[^/;&]*")


def compile_traps(traps: Traps) -> Trap:
    """The checks of a definition as one function.

    Cheap, for each link is asked: what most URLs lack (segments that stand there twice, numbers like a far year) is
    looked for first, by means that may find too much but never too little.
    """
    length = traps.length or 1 << 30
    depth = traps.depth or 1 << 30
    repeats = traps.repeats if traps.repeats > 1 else 1 << 30
    parameters = traps.parameters or 1 << 30
    years = traps.years
    slashes = min(depth + 1, repeats) + 2  # those of the scheme, and one before each segment

    def trapped(url: str, now: int) -> str:
        if len(url) > length:
            return "trap:length"
        if url.count("/") >= slashes and (trap := _path_trap(url, depth, repeats)):
            return trap
        if "&" in url and url.partition("?")[2].count("&") >= parameters:
            return "trap:parameters"
        if years and b"0000" in url.encode().translate(_ZEROS):
            year = 1970 + now // _YEAR_MS
            near = _near(year, years)
            for digits in _DIGITS.findall(url):
                if digits[:4] not in near and _may_date(url, digits, year) and _calendar(url, year, years):
                    return "trap:calendar"
        return ""

    return trapped


def _path_trap(url: str, depth: int, repeats: int) -> str:
    parts = url.partition("?")[0].split("/")  # scheme, nothing, host, segments
    if not parts[-1]:
        parts.pop()
    number = len(parts) - _BEFORE
    if number > depth:
        return "trap:depth"
    if number < repeats:
        return ""
    if number < 2 * repeats:  # what stands there so often can be one segment only, and the one in the middle is of them
        middle = _BEFORE + repeats - 1
        if parts[middle] != parts[middle - 1] and parts[middle] not in parts[middle + 1 : middle + 2]:
            return ""
    return "trap:repeats" if _repeated(parts[_BEFORE:], repeats) else ""


def _repeated(segments: list[str], times: int) -> bool:
    """Whether a run of segments stands `times` times in a row."""
    if len(segments) - len(set(segments)) < times - 1:
        return False
    for run in range(1, min(len(segments) // times, LONGEST_RUN) + 1):
        same = 0
        for one, other in zip(segments, segments[run:], strict=False):
            same = same + 1 if one == other else 0
            if same == run * (times - 1):
                return True
    return False


@lru_cache(maxsize=64)
def _near(now: int, years: int) -> frozenset[str]:
    """The years that are not far from the year `now`."""
    return frozenset(f"{year:04}" for year in range(max(0, now - years), now + years + 1))


def _may_date(url: str, digits: str, now: int) -> bool:
    """Whether far digits in `url` may be of a date that makes it a calendar (see `_calendar`)."""
    if len(digits) != _YEAR:
        return len(digits) in _JOINED and f"={digits}" in url
    return int(digits) > now or "?" in url or _told(url)


def _told(url: str) -> bool:
    """Whether a URL says by a word that it is one of a calendar."""
    lower = url.lower()
    for word in _WORDS:  # a loop: half the time of a generator
        if word in lower:
            return True
    return "event" in lower and _EVENTS.search(lower) is not None


def _calendar(url: str, now: int, years: int) -> bool:
    """Whether `url` names a date more than so many years away from the year `now`."""
    query = url.find("?")
    for date in _DATE.finditer(url):
        year = int(date["first"] or date["last"] or date["plain"] or date["joined"])
        if abs(year - now) <= years:
            continue
        told = _told(url)
        if year < now:
            if told or (query >= 0 and date["plain"] and _MONTH_PARAMETER.search(url)):
                return True
        elif told or date["day"] or (query >= 0 and date.start() >= query):
            return True
    return False


def pattern_of(url: str) -> str:
    """What a URL has in common with those that a program makes like it: numbers, ids and values do not count.

    `http://h/item/17/x.php;v=2?id=5&tab=a` → `/item/#/x.php;v=?id&tab`. Words in the path stay, so pages that somebody
    wrote have patterns of their own.
    """
    path, _, query = url[url.find("/", len("https://")) :].partition("?")
    pattern = _VARYING.sub("#", _VALUE.sub("=", path))
    if query:
        names = sorted({_VARYING.sub("#", parameter.partition("=")[0]) for parameter in query.split("&")})
        pattern = f"{pattern}?{'&'.join(names)}"
    if len(pattern) <= LONGEST_PATTERN:
        return pattern
    return f"{pattern[:LONGEST_PATTERN]}…{blake2b(pattern.encode(), digest_size=8).hexdigest()}"
