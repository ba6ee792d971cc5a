"""What the frontier remembers: one row per URL and crawl, one row per host; their keys and their bytes (MessagePack).

A row is the queue entry and the dedup claim in one, so the two cannot disagree. Rows begin with their schema number; a
newer one stops the worker instead of being misread.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from streams.errors import NewerSchemaError
from streams.history import PastFailure
from streams.messages import Candidate, Origin, RobotsRules, Source
from streams.policy.retry import CLOSED, Breaker

ROW_SCHEMA = 1
URL_KEY = b"u"
HOST_KEY = b"h"
SWEEP_KEY = b"s"
CRAWL_KEY = b"c"


class State(IntEnum):
    """Where a visit stands. WAITING and FETCHED are open; the others are terminal."""

    WAITING = 0
    FETCHED = 1  # the page is in `pages`, not yet parsed
    DONE = 2
    FAILED = 3
    EXCLUDED = 4
    REDIRECTED = 5


OPEN = (State.WAITING, State.FETCHED)
GONE = (404, 410)
"""Answers by which a site says that a page is no more (RFC 9110 §15.5.5, §15.5.11)."""


class Unresolved(msgspec.Struct, array_like=True, frozen=True):
    """The last visit that failed for good, while no later one has succeeded."""

    visit: int
    attempt: int
    failure: str


class UrlRow(msgspec.Struct, array_like=True, frozen=True):
    """A URL of a crawl. Times in ms. The first four fields are what `unmoved_by` reads, at fixed places.

    `due`: a waiting row waits until then (0: now, in the order of `arrived`); a row whose visit has ended opens the
    next one then (0: never). `etag`, `last_modified` and `content` are of the last page that was parsed.
    """

    schema: int
    state: State
    depth: int
    priority: int
    crawl: str
    url: str
    host: str
    visit: int
    attempt: int
    seq: int
    due: int = 0
    parent: str = ""
    via: tuple[str, ...] = ()
    visited: int = 0  # FETCHED: when; terminal: when it ended
    outcome: str = ""  # FAILED: failure class; EXCLUDED: rule id
    status: int = 0
    page: tuple[int, int] | None = None
    etag: str = ""
    last_modified: str = ""
    content: bytes = b""
    headers: dict[str, str] = {}
    meta: Any = None
    origins: tuple[Origin, ...] = ()  # the newest seed taken from each partition of `urls`
    traceparent: str = ""
    arrived: int = 0  # when this visit was opened; orders the queue together with priority and seq
    source: Source = "page"
    size: int = 0  # bytes of the newest body
    interval: float = 0.0  # seconds between two visits, learned; 0: not yet
    lastmod: int = 0  # what a sitemap said last
    changed: int = 0  # when the content was first seen as it is
    unresolved: Unresolved | None = None
    kept: bool = False  # an earlier visit brought a page, which still counts: see `keeps_place`
    then: Candidate | None = None  # a seed that wants one more visit when this one ends

    @property
    def placed(self) -> bool:
        """Whether it was read and still is what it was: it waits for no place any more."""
        return self.kept or self.state in (State.FETCHED, State.DONE)

    @property
    def counted(self) -> bool:
        """Whether it counts as a page against limits: a sitemap waits for a place, but takes none."""
        return self.source == "page" and self.placed

    @property
    def open(self) -> bool:
        """Whether the visit has no terminal row yet."""
        return self.state in OPEN


def keeps_place(old: UrlRow, new: UrlRow) -> bool:
    """Whether a URL whose row changes still holds the place of a page that an earlier visit brought.

    Page limits are about pages, not about visits: a page keeps its place while it waits for its next visit, and when
    that fails for a reason that may pass. It gives it up when the page is no page of the crawl any more: gone, moved,
    or kept out by a rule. A visit that has yet to bring a page holds none.
    """
    if new.state in (State.EXCLUDED, State.REDIRECTED) or (new.state is State.FAILED and new.status in GONE):
        return False
    return old.placed if new.visit != old.visit else old.kept


class Probe(msgspec.Struct, array_like=True, frozen=True):
    """Failed attempts in a row to get an origin's robots.txt. `since` in ms."""

    count: int
    since: int
    failure: str
    reason: str


class Novelty(msgspec.Struct, array_like=True, frozen=True):
    """Pages in a row, of one pattern of URLs, whose content was known. `contents`: of the newest different ones."""

    stale: int
    contents: tuple[bytes, ...] = ()


class HostRow(msgspec.Struct, array_like=True, frozen=True):
    """What is known of a host (politeness key): survives restarts so that no new owner asks too early."""

    schema: int = ROW_SCHEMA
    not_before: int = 0  # ms; Retry-After and the like
    breaker: Breaker = CLOSED
    robots: dict[str, RobotsRules] = {}  # by origin
    probes: dict[str, Probe] = {}  # by origin
    delay: float = 0.0  # seconds, learned from answers; 0: nothing learned
    spent: dict[str, tuple[int, int]] = {}  # pages and bytes, by crawl: only for crawls with a budget for each host
    patterns: dict[str, Novelty] = {}  # by crawl and pattern of URL: only what brings the same again and again
    sitemaps: dict[str, int] = {}  # by crawl and origin: `fetched` of the robots.txt whose sitemaps it was told of
    recent: tuple[PastFailure, ...] = ()  # the newest that said something about the host


_encoder = msgspec.msgpack.Encoder()
_url_decoder = msgspec.msgpack.Decoder(UrlRow)
_host_decoder = msgspec.msgpack.Decoder(HostRow)
encode_row = _encoder.encode


def decode_url_row(data: bytes) -> UrlRow:
    """Read a URL row. Raises `NewerSchemaError` for a newer release's."""
    row = _url_decoder.decode(data)
    if row.schema > ROW_SCHEMA:
        raise _newer(row.schema)
    return row


_HEAD = encode_row(UrlRow(ROW_SCHEMA, State.WAITING, 0, 0, "", "", "", 1, 0, 0))[:4]
"""Of every row that this release writes: how many fields, and the schema's number."""
_ONE_BYTE = 0x80
"""A whole number below this is one byte in MessagePack (positive fixint)."""


def unmoved_by(data: bytes, depth: int, priority: int, *, endless: bool) -> bool:
    """Whether a link at this depth and priority surely changes nothing about a row, told from its first bytes alone.

    Most links are such ones, and decoding their rows would cost more than reading them. False: decode it and look.
    `endless`: in the row's crawl a link may open the next visit when the last has ended.
    """
    state, known_depth, known_priority = data[4], data[5], data[6]
    return (
        data[:4] == _HEAD
        and depth >= known_depth < _ONE_BYTE
        and state != State.EXCLUDED  # a link may lead to it on a way that does not keep it out
        and (state != State.WAITING or priority <= known_priority < _ONE_BYTE)
        and not (endless and state not in OPEN)
    )


def decode_host_row(data: bytes) -> HostRow:
    """Read a host row; errors as `decode_url_row`."""
    row = _host_decoder.decode(data)
    if row.schema > ROW_SCHEMA:
        raise _newer(row.schema)
    return row


def readable(key: bytes, value: bytes) -> None:
    """Read a row of any kind as a worker would. Raises what decoding it raises."""
    if key[:1] == URL_KEY:
        decode_url_row(value)
    elif key[:1] == HOST_KEY:
        decode_host_row(value)


def _newer(schema: int) -> NewerSchemaError:
    return NewerSchemaError(
        f"the frontier's rows have schema {schema}, this release reads up to {ROW_SCHEMA}",
        "A newer release wrote them: upgrade this worker. Nothing was changed.",
    )


def url_key(fingerprint: bytes) -> bytes:
    """Key of a URL's row (17 bytes)."""
    return URL_KEY + fingerprint


def host_key(host: str) -> bytes:
    """Key of a host's row."""
    return HOST_KEY + host.encode()
