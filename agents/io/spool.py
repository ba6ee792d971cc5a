"""What an audit has read, sorted on disk: memory stays bounded however long the log is.

A private temporary database of SQLite, which keeps up to `CACHE` in memory and removes its file by itself (the folder
is TMPDIR's, else /var/tmp). Nothing in it outlives the audit, so nothing is ever forced to disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self

from streams.frontier.accounts import Named
from streams.policy.audit import Sent

CACHE: Final = 64 << 10
"""KiB of pages in memory."""

_SCHEMA: Final = f"""
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -{CACHE};
CREATE TABLE requests (host, start, end, fetcher, url, crawl, status, delay, parallelism, hold, owed_delay,
                       owed_parallelism, replaced, later_delay, later_parallelism);
CREATE TABLE urls (fingerprint BLOB PRIMARY KEY, crawl, url, state, named) WITHOUT ROWID;
CREATE TABLE seeds (partition, offset, number, PRIMARY KEY (partition, offset, number)) WITHOUT ROWID;
BEGIN;
"""

Place = tuple[int, int, int]
"""Of a seed in `urls`: partition, offset, and its number within the record."""

Row = tuple[bytes, str, str, int]
"""Fingerprint, crawl, URL and state of a URL's row; state -1: the row was deleted."""

REMOVED: Final = -1


class Url(NamedTuple):
    """A URL with a row, a name in a message, or both. `state` None: no row; `named` (ms) 0: by no message."""

    fingerprint: bytes
    crawl: str
    url: str
    state: int | None
    named: int


class Spool:
    """`with Spool() as spool`: takes what was read in any order, gives it back sorted."""

    def __enter__(self) -> Self:
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.executescript(_SCHEMA)
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def requests(self, requests: Iterable[Sent]) -> None:
        """Take wire requests."""
        self._db.executemany(
            "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            ((r.host, r.start, r.end, r.fetcher, r.url, r.crawl, r.status, r.delay, r.parallelism, r.hold,
              r.owed_delay, r.owed_parallelism, r.replaced, r.later_delay, r.later_parallelism) for r in requests),
        )  # fmt: skip

    def rows(self, rows: Iterable[Row]) -> None:
        """Take URL rows, each newer than what was taken of the same key before; a deleted one keeps what it was."""
        self._db.executemany(
            "INSERT INTO urls VALUES (?, ?, ?, ?, 0) ON CONFLICT DO UPDATE SET state = excluded.state, "
            "crawl = iif(excluded.crawl = '', crawl, excluded.crawl), url = iif(excluded.url = '', url, excluded.url)",
            rows,
        )

    def named(self, named: Iterable[Named], at: int) -> None:
        """Take URLs that a message of `at` (ms) names."""
        self._db.executemany(
            "INSERT INTO urls VALUES (?, ?, ?, NULL, ?) ON CONFLICT DO UPDATE SET "
            "named = iif(named = 0, excluded.named, min(named, excluded.named)), "
            "crawl = iif(crawl = '', excluded.crawl, crawl), url = iif(url = '', excluded.url, url)",
            ((item.fingerprint, item.crawl, item.url, at) for item in named),
        )

    def taken(self, places: Iterable[Place]) -> None:
        """Take the places of seeds that have come out of `urls`."""
        self._db.executemany("INSERT OR IGNORE INTO seeds VALUES (?, ?, ?)", places)

    def missing(self, places: Sequence[Place]) -> list[Place]:
        """Those places that were not taken."""
        sql = "SELECT 1 FROM seeds WHERE partition = ? AND offset = ? AND number = ?"
        return [place for place in places if self._db.execute(sql, place).fetchone() is None]

    def by_host(self, crawl: str = "") -> Iterator[Sent]:
        """All requests by host, start and end; `crawl`: only of hosts that this crawl asked."""
        for row in self._db.execute(
            "SELECT * FROM requests WHERE ?1 = '' OR host IN (SELECT host FROM requests WHERE crawl = ?1) "
            "ORDER BY host, start, end, fetcher, url, hold DESC",
            (crawl,),
        ):
            yield Sent(*row)

    def urls(self, crawl: str = "") -> Iterator[Url]:
        """All URLs, of one crawl if it is given."""
        for row in self._db.execute("SELECT * FROM urls WHERE ?1 IN ('', crawl)", (crawl,)):
            yield Url(*row)
