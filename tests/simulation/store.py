"""A store in memory that derives index and counters as the real one does (`streams.state.store`)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from streams.frontier.index import FrontierIndexer
from streams.state.fencing import NO_EPOCH
from streams.state.fold import Folded


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
        for at in range(start, min(start + limit, len(self._order))):
            key = self._order[at]
            if not key.startswith(prefix):
                break
            found.append((key, self._entries[key]))
        return found

    def leap(self, prefix: bytes, behind: Callable[[bytes], bytes]) -> Iterator[bytes]:
        after = b""
        while found := self.scan(prefix, after=after, limit=1):
            yield found[0][0]
            after = behind(found[0][0])

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
                    del self._order[bisect_left(self._order, entry)]
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


class Disk:
    """A store as the ledger of its owner sees it: with the place in the changelog up to which it is filled."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        memory = self.memory
        self.get_many, self.scan, self.counters, self.rows = memory.get_many, memory.scan, memory.counters, memory.rows
        self.leap = memory.leap
        self.offset = -1
        self.epoch = NO_EPOCH
        self.stale: set[bytes] = set()

    def apply(self, items: Sequence[tuple[bytes, bytes | None]], offset: int) -> None:
        self.absorb(Folded(self.epoch, dict(items)), offset)

    def absorb(self, folded: Folded, offset: int) -> None:
        self.memory.apply(list(folded.rows.items()))
        self.stale = (self.stale - folded.rows.keys()) | folded.stale
        self.offset, self.epoch = offset, folded.epoch

    def derive(self) -> Iterator[int]:
        """Index and counters are always those of the rows."""
        return iter(())

    def touch(self) -> None:
        """Nobody asks how old this store is."""
