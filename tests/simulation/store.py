"""A store in memory that derives index and counters as the real one does (`streams.state.store`)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence

from streams.frontier.index import FrontierIndexer


class Rows(dict[bytes, bytes]):
    """Rows by key; called, it is `Store.rows`."""

    def __call__(self, prefix: bytes = b"", *, after: bytes = b"", limit: int = 1000) -> list[tuple[bytes, bytes]]:
        return sorted((k, v) for k, v in self.items() if k.startswith(prefix) and k > after)[:limit]


class MemoryStore:
    """Rows of one partition. What was applied survives a crash of the shard."""

    def __init__(self) -> None:
        self.rows = Rows()
        self._indexer = FrontierIndexer()
        self._order: list[bytes] = []
        self._entries: dict[bytes, bytes] = {}
        self._counters: Counter[bytes] = Counter()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.rows.get(key) for key in keys]

    def scan(self, prefix: bytes, *, after: bytes = b"", limit: int) -> list[tuple[bytes, bytes]]:
        start = bisect_right(self._order, after) if after >= prefix else bisect_left(self._order, prefix)
        found: list[tuple[bytes, bytes]] = []
        for key in self._order[start:]:
            if len(found) == limit or not key.startswith(prefix):
                break
            found.append((key, self._entries[key]))
        return found

    def counters(self, prefix: bytes = b"") -> dict[bytes, int]:
        return {key: n for key, n in self._counters.items() if n and key.startswith(prefix)}

    def mislead(self, entry: bytes, value: bytes) -> None:
        """Put an index entry that no row stands for."""
        self._entries[entry] = value
        insort(self._order, entry)

    def apply(self, items: Sequence[tuple[bytes, bytes | None]]) -> None:
        for key, value in items:
            old = self.rows.pop(key, None)
            if old is not None:
                for entry, _ in self._indexer.entries(key, old):
                    del self._entries[entry]
                    self._order.remove(entry)
                for name, number in self._indexer.counters(key, old):
                    self._counters[name] -= number
            if value is None:
                continue
            self.rows[key] = value
            for entry, content in self._indexer.entries(key, value):
                assert entry not in self._entries, "an index entry belongs to one row"
                self._entries[entry] = content
                insort(self._order, entry)
            for name, number in self._indexer.counters(key, value):
                self._counters[name] += number
