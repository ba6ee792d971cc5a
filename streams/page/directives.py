"""What a page asks of crawlers: `<meta name=robots>` and the X-Robots-Tag header.

Neither is a standard; the meaning is the one their inventors document (HTML §4.2.5.2 refers to it). Directives for all
crawlers and those for ours are joined, so the stricter one holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import mktime_tz, parsedate_tz
from typing import Final

_SEPARATORS: Final = re.compile(r"[,\s]+")
_ADDRESS: Final = re.compile(r"\s*([a-z][\w-]*)\s*:")
_UNAVAILABLE: Final = re.compile(r"\bunavailable_after\s*:(.*)", re.DOTALL)
_WITH_VALUE: Final = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
FOREVER: Final = 2**62
AUDIENCE: Final = ("robots", "fyke")
"""Whom a directive must be for: everybody, or our product token."""


@dataclass(frozen=True, slots=True)
class Directives:
    """`nofollow`: no link of the page is followed. `noindex`: the page is not to be found by searching.

    `until`: the same from a time on (ms; `unavailable_after`); FOREVER: it was not limited.
    """

    nofollow: bool = False
    noindex: bool = False
    until: int = FOREVER

    def __or__(self, other: Directives) -> Directives:
        return Directives(self.nofollow or other.nofollow, self.noindex or other.noindex, min(self.until, other.until))

    def hidden(self, at: int) -> bool:
        """Whether the page is not to be found by searching, for one that was fetched at `at` (ms)."""
        return self.noindex or at >= self.until


NONE: Final = Directives()


def from_meta(content: str) -> Directives:
    """The directives of one `<meta content>` whose name is one of AUDIENCE."""
    text = content.lower()
    return _read(_SEPARATORS.split(text)) | _limited(text)


def from_headers(lines: Iterable[str]) -> Directives:
    """The directives of all X-Robots-Tag lines, as far as they are for everybody or for us.

    `agent: nofollow, noindex`: a token with a colon names the crawler that the rest of its line is for.
    """
    found = NONE
    for line in lines:
        ours = True
        parts = line.lower().split(",")
        for number, part in enumerate(parts):
            address = _ADDRESS.match(part)
            if address and address[1] not in _WITH_VALUE:
                ours = address[1] in AUDIENCE
            if ours:
                found |= _read(part[address.end() if address else 0 :].split())
                found |= _limited(",".join(parts[number : number + 2]) if "unavailable_after" in part else "")
    return found


def _limited(text: str) -> Directives:
    """What `unavailable_after: DATE` asks for; a date that cannot be read asks for nothing.

    Its inventor names RFC 822, RFC 850 and ISO 8601 as forms: of a date with a comma that is the weekday's.
    """
    found = _UNAVAILABLE.search(text)
    if found is None:
        return NONE
    parts = found[1].upper().split(",")
    times = [at for date in (",".join(parts[:2]), parts[0]) if (at := _time(date.strip())) is not None]
    return Directives(until=times[0]) if times else NONE


def _time(date: str) -> int | None:
    """A date as ms since the epoch; without a time zone it is UTC."""
    try:
        parsed = datetime.fromisoformat(date)
        return round(parsed.replace(tzinfo=parsed.tzinfo or UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    try:
        fields = parsedate_tz(date)
        return None if fields is None else 1000 * round(mktime_tz((*fields[:9], fields[9] or 0)))
    except (ValueError, OverflowError, IndexError, TypeError):
        return None


def _read(tokens: Iterable[str]) -> Directives:
    words = frozenset(tokens)
    everything = "none" in words
    return Directives(nofollow=everything or "nofollow" in words, noindex=everything or "noindex" in words)
