"""What the head of an answer means for its order (RFC 9110 §15): a page, no change, a way on, or a failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from streams.messages import FailureClass, FetchResult
from streams.policy import urls

REDIRECTS: Final = frozenset({300, 301, 302, 303, 307, 308})
"""300 only with a Location: without one it is a page of choices nobody can follow by rule."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=:)")
_BLANKS: Final = "".join(map(chr, range(0x21)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one request that was answered. `location` is a wire URL, set for `redirected`."""

    result: FetchResult
    failure: FailureClass | None = None
    reason: str = ""
    location: str = ""


FETCHED: Final = Verdict("fetched")
UNCHANGED: Final = Verdict("unchanged")


def not_accepted(accept: Sequence[str], lines: Sequence[str]) -> str:
    """The media type of a response that is none of those taken, "" if it is one or says nothing.

    `accept`: `text/html`, or `text/*` for all of a kind; empty: everything. `lines`: of Content-Type.
    """
    if not accept or not lines:
        return ""
    found = lines[-1].partition(";")[0].strip().lower()
    taken = {each.lower() for each in accept}
    return "" if not found or taken & {found, f"{found.partition('/')[0]}/*", "*/*"} else found


def judge(url: str, status: int, locations: Sequence[bytes], *, conditional: bool) -> Verdict:
    """The verdict on `status` for a request to `url`; `locations`: its Location lines, bytes as received.

    `conditional`: a validator was sent. A 304 that nobody asked for is an error of the server: there is no copy it
    could speak of.
    """
    if 200 <= status < 300:
        return FETCHED
    if status == 304 and conditional:
        return UNCHANGED
    if status in REDIRECTS and (locations or status != 300):
        return _redirect(url, locations)
    return Verdict("failed", "http_status", f"status {status}")


def _redirect(url: str, locations: Sequence[bytes]) -> Verdict:
    """Where a redirect leads (RFC 9110 §10.2.2)."""
    if not locations:
        return Verdict("failed", "redirect_no_location", "redirect without Location")
    if len(set(locations)) > 1:
        return Verdict("failed", "redirect_bad_url", f"{len(locations)} different Location lines")
    text = _readable(locations[0])
    if not text.strip(_BLANKS):
        return Verdict("failed", "redirect_bad_url", "Location is empty")
    location = urls.parse(text, url)
    if location is not None:
        return Verdict("redirected", location=location)
    scheme = _SCHEME.match(text.lstrip(_BLANKS))
    if scheme and scheme[0].lower() not in ("http", "https"):
        return Verdict("failed", "redirect_scheme", f"Location has the scheme {scheme[0].lower()}")
    return Verdict("failed", "redirect_bad_url", "Location is not a URL")


def _readable(raw: bytes) -> str:
    """A Location as text. Bytes that are not UTF-8 go back to the server as they came, percent-encoded."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "".join(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in raw)
