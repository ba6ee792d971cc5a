"""One turn of a shard: the rows it read and changes, and what must be sent before and after they are durable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streams.frontier.rows import (
    HostRow,
    State,
    UrlRow,
    decode_host_row,
    decode_url_row,
    encode_row,
    host_key,
    url_key,
)
from streams.frontier.tally import Tallies
from streams.messages import Candidate, Failure, FetchOrder

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

    def counters(self, prefix: bytes = b"") -> dict[bytes, int]:
        """Counters with `prefix`."""
        ...


@dataclass(slots=True)
class Turn:
    """Changes decided in one turn.

    Order of writes: `candidates` and `failures` first (effects in other topics), then `rows()`, then `orders`, then the
    input is acknowledged. Only orders may come after the state: they can be rebuilt from rows.
    """

    store: RowReader
    tallies: Tallies
    now: int
    candidates: list[Candidate] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    orders: list[FetchOrder] = field(default_factory=list)
    links_new: int = 0
    links_known: int = 0
    finished: Counter[State] = field(default_factory=Counter)  # visits that ended, by how
    changed: dict[bytes, UrlRow] = field(default_factory=dict)
    _urls: dict[bytes, UrlRow | None] = field(default_factory=dict)
    _hosts: dict[str, HostRow] = field(default_factory=dict)

    def load(self, fingerprints: Iterable[bytes]) -> None:
        """Read many URL rows in one call; later `url` calls find them here."""
        wanted = [fp for fp in dict.fromkeys(fingerprints) if fp not in self._urls]
        found = self.store.get_many([url_key(fp) for fp in wanted])
        for fp, data in zip(wanted, found, strict=True):
            self._urls[fp] = decode_url_row(data) if data is not None else None

    def url(self, fingerprint: bytes) -> UrlRow | None:
        """The row of a URL as this turn has left it."""
        if fingerprint not in self._urls:
            self.load((fingerprint,))
        return self._urls[fingerprint]

    def put(self, fingerprint: bytes, row: UrlRow) -> None:
        """Change a URL's row, which this turn has read."""
        old = self._urls[fingerprint]
        self.tallies.move(old, row)
        if not row.open and (old is None or old.open):
            self.finished[row.state] += 1
        self._urls[fingerprint] = row
        self.changed[fingerprint] = row

    def hosts(self, hosts: Sequence[str]) -> list[HostRow]:
        """The rows of hosts as this turn has left them; an empty one for an unknown host."""
        stored = self.store.get_many([host_key(host) for host in hosts])
        found = [decode_host_row(data) if data is not None else UNKNOWN for data in stored]
        return [self._hosts.get(host, row) for host, row in zip(hosts, found, strict=True)]

    def put_host(self, host: str, row: HostRow) -> None:
        """Change a host's row."""
        self._hosts[host] = row

    @property
    def written(self) -> int:
        """Number of changed rows."""
        return len(self.changed) + len(self._hosts)

    def rows(self) -> list[tuple[bytes, bytes | None]]:
        """The changed rows, encoded."""
        urls: list[tuple[bytes, bytes | None]] = [(url_key(fp), encode_row(row)) for fp, row in self.changed.items()]
        return urls + [(host_key(host), encode_row(row)) for host, row in self._hosts.items()]
