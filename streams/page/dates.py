"""When something was changed, as sitemaps and feeds write it. Anything else is no date: 0."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_tz
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_W3C: Final = re.compile(
    r"(\d{4})(?:-(\d\d?)(?:-(\d\d?)(?:[Tt ]\s*(\d\d):(\d\d)(?::(\d\d)(?:[.,]\d+)?)?\s*"
    r"(?:[Zz]|UTC|GMT|([+-])(\d\d):?(\d\d))?)?)?)?\Z"
)
_YEAR_FIRST: Final = re.compile(r"\d{4}(?:-|\Z)")
_ZONED: Final = re.compile(r"(?:[+-]\d{4}|\b[A-Za-z]{1,5})\s*(?:\([^)]*\))?\Z")


def instant(text: str) -> int:
    """Milliseconds since the epoch for a W3C date (NOTE-datetime, from year to fraction of a second) or RFC 822's.

    The earliest moment of what is written: `2026-11` is its first midnight, UTC. A W3C time without a zone is taken for
    UTC, for all that write so seem to mean something near it; an RFC 822 time without one is no date.
    """
    text = text.strip()
    try:
        return _w3c(text) if _YEAR_FIRST.match(text) else _rfc822(text)
    except (ValueError, OverflowError, TypeError):
        return 0


def _w3c(text: str) -> int:
    found = _W3C.match(text)
    if found is None:
        return 0
    year, month, day, hour, minute, second, sign, hours, minutes = found.groups()
    first = datetime(int(year), int(month or 1), int(day or 1), tzinfo=UTC)
    at = first.replace(hour=int(hour or 0), minute=int(minute or 0), second=min(int(second or 0), 59))
    away = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    return _ms(at + away if sign == "-" else at - away)


def _rfc822(text: str) -> int:
    """RFC 822 §5 as RSS has it: the day of the week may be missing, the year may have two digits."""
    found = parsedate_tz(text)
    if found is None or found[9] is None or _ZONED.search(text) is None:
        return 0
    at = datetime(*found[:5], min(found[5], 59), tzinfo=UTC)
    return _ms(at - timedelta(seconds=found[9]))


def _ms(at: datetime) -> int:
    """Whole milliseconds; before 1970 nothing was changed on the web."""
    return max(0, (at - _EPOCH) // timedelta(milliseconds=1))
