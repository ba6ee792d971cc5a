"""Clearing up: rows are deleted in bounded steps, many turns long, between the shard's other work.

Two reasons to delete: a crawl that ended so long ago that its rows expire, and a `forget` command. A walk through the
URL rows serves all reasons there are when it begins; those that come later wait for the next walk. A forget is kept as
a row of its own until it is finished, so that a new owner goes on with it (from the start: deleting again is harmless).

What is forgotten is also told to the sinks (`Turn.forgotten`), and exactly then when nothing can follow any more: a URL
whose order is out, or whose page waits for the parser, is let alone until that is over.

Host rows go when they say nothing any more: no hold, no failure, no robots.txt in force, and no URL waits.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import islice

import msgspec

from streams.definitions import CrawlDefinition
from streams.frontier.rows import (
    HOST_KEY,
    ROW_SCHEMA,
    SWEEP_KEY,
    URL_KEY,
    HostRow,
    State,
    UrlRow,
    decode_host_row,
)
from streams.frontier.tally import Tallies
from streams.frontier.turn import RowReader, Turn
from streams.messages import Command, Forgotten
from streams.policy.urls import hostname

NEVER = float("inf")
STEP = 500
"""Rows looked at in one turn."""
LOOK_AGAIN = 1000
"""ms until URLs that were under way are looked at again."""
ALL = 100_000
"""More commands than anybody gives while one is being carried out."""
HOSTS_EVERY = 3600 * 1000
"""ms between two walks through the host rows."""


class Sweep(msgspec.Struct, array_like=True, frozen=True):
    """A `forget` that is not finished: about one URL, a host, or all URLs that begin with `prefix`."""

    schema: int
    id: str
    crawl: str
    at: int
    url: str = ""
    fingerprint: bytes = b""
    host: str = ""
    prefix: str = ""

    def covers(self, row: UrlRow) -> bool:
        """Whether a row is to be forgotten."""
        if row.crawl != self.crawl:
            return False
        return hostname(row.url).removesuffix(".") == self.host if self.host else row.url.startswith(self.prefix)

    def word(self, url: str) -> Forgotten:
        """What sinks are told of a URL."""
        return Forgotten(url=url, crawl=self.crawl, id=self.id, at=self.at)


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Sweep)


class Sweeper:
    """Deletes rows of one shard. `expire_after`: seconds from the end of a crawl until its rows go.

    Whoever turns the shard does so at least each second: neither expiry nor the look at the hosts asks to be woken.
    """

    def __init__(
        self, store: RowReader, crawls: Mapping[str, CrawlDefinition], tallies: Tallies, expire_after: float
    ) -> None:
        self._store = store
        self._crawls = crawls
        self._tallies = tallies
        self._expire_after = round(expire_after * 1000)
        self._sweeps: dict[bytes, Sweep] = {}
        self._new: dict[bytes, None] = {}  # not walked for yet
        self._walking: dict[bytes, None] = {}
        self._cursor = b""  # through the URL rows; empty: nobody walks
        self._left: dict[bytes, bytes] = {}  # single URLs, and those under way: the sweep that wants them
        self._look_at: float = 0
        self._hosts = b""  # cursor through the host rows; empty: nobody walks
        self._hosts_at = 0
        for key, value in store.rows(SWEEP_KEY, limit=ALL):
            self._take(key, _decoder.decode(value))

    def forget(self, turn: Turn, command: Command, origin: str) -> None:
        """Take a command; `origin` names it and is the same on every replay."""
        many = bool(command.host or command.prefix)
        sweep = Sweep(
            ROW_SCHEMA, origin, command.crawl, turn.now, "" if many else command.url,
            b"" if many else command.fingerprint, command.host, command.prefix,
        )  # fmt: skip
        key = SWEEP_KEY + origin.encode()
        self._take(key, sweep)
        turn.put_other(key, _encode(sweep))

    def wake_at(self, now: int) -> float:
        """When the next step has something to do (ms)."""
        if self._cursor or self._hosts or self._new:
            return now
        return self._look_at if self._left else NEVER

    def run(self, turn: Turn, out: Container[bytes], busy: Container[str]) -> None:
        """One step. `out`: URLs whose orders are out; `busy`: hosts for which something waits or is out."""
        expired = self._expired(turn.now)
        if not self._cursor and (self._new or expired):
            self._walking, self._new, self._cursor = self._new, {}, URL_KEY
        if self._cursor:
            self._walk(turn, out, expired)
        if self._left and turn.now >= self._look_at:
            self._look(turn, out)
        if self._sweeps:
            self._finish(turn, busy)
        self._hosts_at = self._hosts_at or turn.now
        if not self._hosts and not 0 <= turn.now - self._hosts_at < HOSTS_EVERY:
            self._hosts = HOST_KEY
        if self._hosts:
            self._walk_hosts(turn, busy)

    # --- what is to be deleted

    def _take(self, key: bytes, sweep: Sweep) -> None:
        self._sweeps[key] = sweep
        if sweep.url:
            self._left[sweep.fingerprint] = key
            self._look_at = 0
        else:
            self._new[key] = None

    def _expired(self, now: int) -> set[str]:
        """Crawls whose rows are to go now: after what is to be forgotten. One without rows leaves the tallies."""
        expired = {crawl_id for crawl_id in self._tallies if self._gone(crawl_id, now)}
        for crawl_id in [crawl_id for crawl_id in expired if self._tallies[crawl_id].empty]:
            del self._tallies[crawl_id]
            expired.remove(crawl_id)
        forgetting = {sweep.crawl for sweep in self._sweeps.values()}  # sinks are told from rows
        return {name for name in expired - forgetting if any(self._tallies[name].states)}

    def _gone(self, crawl_id: str, now: int) -> bool:
        """Whether a crawl ended so long ago that its rows have expired."""
        crawl = self._crawls.get(crawl_id)
        return (
            crawl is not None and crawl.state == "ended" and crawl.ended > 0 and now >= crawl.ended + self._expire_after
        )

    # --- URL rows

    def _walk(self, turn: Turn, out: Container[bytes], expired: Container[str]) -> None:
        sweeps = [(name, self._sweeps[name]) for name in self._walking]
        entries = self._store.rows(URL_KEY, after=self._cursor, limit=STEP)
        for key, data in entries:
            row = turn.meet(key[1:], data)
            if row.crawl in expired:
                turn.drop(key[1:])
            elif name := next((name for name, sweep in sweeps if sweep.covers(row)), b""):
                self._let_go(turn, out, key[1:], row, name)
        self._cursor = entries[-1][0] if len(entries) == STEP else b""
        if not self._cursor:
            self._walking = {}
            self._expired(turn.now)
            self._hosts = self._hosts or HOST_KEY

    def _look(self, turn: Turn, out: Container[bytes]) -> None:
        """Look at the URLs that are let alone until they are not under way any more."""
        some = list(islice(self._left.items(), STEP))
        turn.load(fingerprint for fingerprint, _ in some)
        for fingerprint, name in some:
            del self._left[fingerprint]  # one that is still under way is put back, behind the others
            row, sweep = turn.url(fingerprint), self._sweeps[name]
            if row is not None:
                self._let_go(turn, out, fingerprint, row, name)
            elif sweep.url:  # its row may have expired; what it brought is in the sinks all the same
                turn.forgotten.append(sweep.word(sweep.url))
        self._look_at = turn.now + LOOK_AGAIN

    def _let_go(self, turn: Turn, out: Container[bytes], fingerprint: bytes, row: UrlRow, name: bytes) -> None:
        if fingerprint in out or row.state is State.FETCHED:
            self._left[fingerprint] = name
            return
        if _published(row):
            turn.forgotten.append(self._sweeps[name].word(row.url))
        turn.drop(fingerprint)

    def _finish(self, turn: Turn, busy: Container[str]) -> None:
        """Forget the sweeps that are done."""
        pending = {*self._new, *self._walking, *self._left.values()}
        for key in [key for key in self._sweeps if key not in pending]:
            host = self._sweeps.pop(key).host
            turn.put_other(key, None)
            if host and host not in busy and _held_until(turn.hosts([host])[0]) <= turn.now:
                turn.put_host(host, None)

    # --- host rows

    def _walk_hosts(self, turn: Turn, busy: Container[str]) -> None:
        adaptive = any(crawl.adaptive_delay and not self._gone(crawl.id, turn.now) for crawl in self._crawls.values())
        entries = self._store.rows(HOST_KEY, after=self._hosts, limit=STEP)
        for key, data in entries:
            host = key[1:].decode()
            if host in busy:
                continue
            row = decode_host_row(data)
            kept = self._without_gone(row, turn.now)
            if _silent(kept, turn.now, adaptive=adaptive):
                turn.put_host(host, None)
            elif kept != row:
                turn.put_host(host, kept)
        self._hosts = entries[-1][0] if len(entries) == STEP else b""
        self._hosts_at = turn.now

    def _without_gone(self, row: HostRow, now: int) -> HostRow:
        """The row without what it says about crawls that are gone, and without sums that are zero."""
        spent = {crawl_id: sums for crawl_id, sums in row.spent.items() if any(sums) and not self._gone(crawl_id, now)}
        patterns = {key: known for key, known in row.patterns.items() if not self._gone(key.partition("\0")[0], now)}
        sitemaps = {key: told for key, told in row.sitemaps.items() if not self._gone(key.partition("\0")[0], now)}
        return msgspec.structs.replace(row, spent=spent, patterns=patterns, sitemaps=sitemaps)


def _published(row: UrlRow) -> bool:
    """Whether a page, a record or a failure may have been sent for a URL."""
    return row.visit > 1 or row.attempt > 0 or row.state in (State.DONE, State.FAILED, State.REDIRECTED)


def _held_until(row: HostRow) -> float:
    """Until when a host's row says that it must not be asked (ms)."""
    return NEVER if row.breaker.since else row.not_before


def _silent(row: HostRow, now: int, *, adaptive: bool) -> bool:
    """Whether a row says nothing that a new one would not say."""
    return (
        _held_until(row) <= now
        and all(rules.expires <= now for rules in row.robots.values())
        and not (row.probes or row.spent or row.patterns)
        and not (adaptive and row.delay)
    )
