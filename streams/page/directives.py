"""What a page asks of crawlers: `<meta name=robots>` and the X-Robots-Tag header.

Neither is a standard; the meaning is the one their inventors document (HTML §4.2.5.2 refers to it). Directives for all
crawlers and those for ours are joined, so the stricter one holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SEPARATORS: Final = re.compile(r"[,\s]+")
_ADDRESS: Final = re.compile(r"\s*([a-z][\w-]*)\s*:")
_WITH_VALUE: Final = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
AUDIENCE: Final = ("robots", "fyke")
"""Whom a directive must be for: everybody, or our product token."""


@dataclass(frozen=True, slots=True)
class Directives:
    """`nofollow`: no link of the page is followed. `noindex`: the page is not to be found by searching."""

    nofollow: bool = False
    noindex: bool = False

    def __or__(self, other: Directives) -> Directives:
        return Directives(self.nofollow or other.nofollow, self.noindex or other.noindex)


NONE: Final = Directives()


def from_meta(content: str) -> Directives:
    """The directives of one `<meta content>` whose name is one of AUDIENCE."""
    return _read(_SEPARATORS.split(content.lower()))


def from_headers(lines: Iterable[str]) -> Directives:
    """The directives of all X-Robots-Tag lines, as far as they are for everybody or for us.

    `agent: nofollow, noindex`: a token with a colon names the crawler that the rest of its line is for.
    """
    found = NONE
    for line in lines:
        ours = True
        for part in line.lower().split(","):
            address = _ADDRESS.match(part)
            if address and address[1] not in _WITH_VALUE:
                ours = address[1] in AUDIENCE
            if ours:
                found |= _read(part[address.end() if address else 0 :].split())
    return found


def _read(tokens: Iterable[str]) -> Directives:
    words = frozenset(tokens)
    everything = "none" in words
    return Directives(nofollow=everything or "nofollow" in words, noindex=everything or "noindex" in words)
