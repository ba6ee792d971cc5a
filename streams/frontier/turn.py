"""One turn of a shard: the rows it read and changes, and what must be sent before and after they are durable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from streams.frontier.rows import (
    HostRow,
    State,
    UrlRow,
    decode_host_row,
    decode_url_row,
    encode_row,
    host_key,
    keeps_place,
    url_key,
)
from streams.frontier.tally import Tallies
from streams.messages import Candidate, Failure, FetchOrder, Forgotten, Inbox

UNKNOWN = HostRow()
"""Of every host of which nothing is known yet: most of 100,000."""


class RowReader(Protocol):
    """The part of `streams.state.store.Store` a shard reads."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of rows, None where absent."""
        ...

    def scan(self, prefix: bytes, *, after: bytes = b"", limit: int) -> list[tuple[bytes, bytes]]:
        """Index entries with `prefix`, in order, strictly after `after`."""
        ...

    def leap(self, prefix: bytes, behind: Callable[[bytes], bytes]) -> Iterator[bytes]:
        """The first index entry with `prefix`, then the first one after `behind` of the last, and so on."""
        ...

    def rows(self, prefix: bytes = b"", *, after: bytes = b"", limit: int = 1000) -> list[tuple[bytes, bytes]]:
        """Rows with `prefix`, in the order of their keys, strictly after `after`."""
        ...

    def counters(self, prefix: bytes = b"") -> dict[bytes, int]:
        """Counters with `prefix`."""
        ...


@dataclass(slots=True)
class Turn:
    """Changes decided in one turn.

    Order of writes: `candidates`, `routed`, `failures` and `forgotten` first (effects in other topics), then `rows()`,
    then `orders`, then the input is acknowledged. Only orders may come after the state: they can be rebuilt from rows.
    """

    store: RowReader
    tallies: Tallies
    now: int
    budgeted: Collection[str] = ()  # crawls with a budget for each host
    candidates: list[Candidate] = field(default_factory=list)
    routed: list[tuple[str, Inbox]] = field(default_factory=list)  # messages for the shards of these URLs
    failures: list[Failure] = field(default_factory=list)
    forgotten: list[Forgotten] = field(default_factory=list)
    orders: list[FetchOrder] = field(default_factory=list)
    links_new: int = 0
    links_known: int = 0
    finished: Counter[State] = field(default_factory=Counter)  # visits that ended, by how
    ended: dict[bytes, UrlRow | None] = field(default_factory=dict)  # the rows before those visits ended
    changed: dict[bytes, UrlRow] = field(default_factory=dict)
    dropped: dict[bytes, None] = field(default_factory=dict)
    spent: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # pages and bytes, by host and crawl
    _urls: dict[bytes, UrlRow | None] = field(default_factory=dict)
    _hosts: dict[str, HostRow | None] = field(default_factory=dict)
    _met: dict[str, HostRow] = field(default_factory=dict)  # hosts that were read, not those that were changed
    _others: dict[bytes, bytes | None] = field(default_factory=dict)

    def load(self, fingerprints: Iterable[bytes]) -> None:
        """Read many URL rows in one call; later `url` calls find them here."""
        for fp, data in self.stored(fingerprints).items():
            self.learn(fp, data)

    def stored(self, fingerprints: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """What the store has of URLs whose rows this turn has not read yet: for callers that need not decode all."""
        wanted = [fp for fp in dict.fromkeys(fingerprints) if fp not in self._urls]
        return dict(zip(wanted, self.store.get_many([url_key(fp) for fp in wanted]), strict=True))

    def learn(self, fingerprint: bytes, data: bytes | None) -> None:
        """Take up a row that `stored` has read."""
        self._urls[fingerprint] = decode_url_row(data) if data is not None else None

    def url(self, fingerprint: bytes) -> UrlRow | None:
        """The row of a URL as this turn has left it."""
        if fingerprint not in self._urls:
            self.load((fingerprint,))
        return self._urls[fingerprint]

    def meet(self, fingerprint: bytes, data: bytes) -> UrlRow:
        """The row of a URL, not dropped, as this turn has left it; `data` is what the store has, read by the caller."""
        row = self._urls.get(fingerprint)
        if row is None:
            row = self._urls[fingerprint] = decode_url_row(data)
        return row

    def put(self, fingerprint: bytes, row: UrlRow) -> None:
        """Change a URL's row, which this turn has read."""
        old = self._urls[fingerprint]
        if old is not None and row.kept != (kept := keeps_place(old, row)):
            row = msgspec.structs.replace(row, kept=kept)
        self.tallies.move(old, row)
        if row.crawl in self.budgeted:
            self._spend(row, 1)
            if old is not None:
                self._spend(old, -1)
        if not row.open and (old is None or old.open):
            self.finished[row.state] += 1
        if not row.open and (old is None or old.state is not row.state):
            self.ended[fingerprint] = old
        self._urls[fingerprint] = row
        self.changed[fingerprint] = row
        if self.dropped:
            self.dropped.pop(fingerprint, None)

    def drop(self, fingerprint: bytes) -> None:
        """Delete a URL's row, which this turn has read and which is there."""
        row = self._urls[fingerprint]
        assert row is not None  # noqa: S101 - callers have looked at it
        self.tallies.remove(row)
        if row.crawl in self.budgeted:
            self._spend(row, -1)
        self._urls[fingerprint] = None
        self.changed.pop(fingerprint, None)
        self.dropped[fingerprint] = None

    def _spend(self, row: UrlRow, by: int) -> None:
        """Count a row in (1) or out (-1) of what its crawl has spent on its host."""
        pages, size = self.spent.get((row.host, row.crawl), (0, 0))
        self.spent[row.host, row.crawl] = pages + by * row.counted, size + by * row.size

    def hosts(self, hosts: Sequence[str]) -> list[HostRow]:
        """The rows of hosts as this turn has left them; an empty one for an unknown host."""
        stored = self.store.get_many([host_key(host) for host in hosts])
        found = [decode_host_row(data) if data is not None else UNKNOWN for data in stored]
        return [self._hosts.get(host, row) or UNKNOWN for host, row in zip(hosts, found, strict=True)]

    def host(self, host: str) -> HostRow:
        """The row of one host as this turn has left it, read once in a turn: many URLs of a dead host end in one."""
        if host in self._hosts:
            return self._hosts[host] or UNKNOWN
        if host not in self._met:
            (self._met[host],) = self.hosts((host,))
        return self._met[host]

    def put_host(self, host: str, row: HostRow | None) -> None:
        """Change a host's row; None deletes it."""
        self._hosts[host] = row

    def put_other(self, key: bytes, value: bytes | None) -> None:
        """Change a row that is neither a URL's nor a host's; None deletes it."""
        self._others[key] = value

    @property
    def written(self) -> int:
        """Number of changed rows."""
        return len(self.changed) + len(self.dropped) + len(self._hosts) + len(self._others)

    def rows(self) -> list[tuple[bytes, bytes | None]]:
        """The changed rows, encoded; None for those that are deleted."""
        rows: list[tuple[bytes, bytes | None]] = [(url_key(fp), encode_row(row)) for fp, row in self.changed.items()]
        rows += [(url_key(fp), None) for fp in self.dropped]
        rows += [(host_key(host), encode_row(row) if row else None) for host, row in self._hosts.items()]
        return [*rows, *self._others.items()]
