"""Rows that wait for a time: read from the index when it comes."""

from __future__ import annotations

import heapq

from streams.frontier.index import DUE, split_timed_entry
from streams.frontier.turn import RowReader

NEVER = float("inf")
TAKEN = 4000
"""Rows taken in one turn, about."""
STRETCH = 64
"""Entries read from the index at once."""


class DueRows:
    """The rows with a due time, earliest first. `kind`: of their entries, DUE for those that wait.

    The index is read once: at and before the cursor nothing waits but what `note` was told.
    """

    def __init__(self, store: RowReader, kind: bytes = DUE) -> None:
        self._store = store
        self._kind = kind
        self._cursor = b""
        self._next: float = 0  # no row beyond the cursor is due earlier; at first nobody knows
        self._early: list[tuple[int, bytes]] = []  # a heap: due at or before the cursor

    def note(self, due: int, fingerprint: bytes) -> None:
        """A row has to wait until `due` (ms); it will be in the index when the next turn begins."""
        if (due.to_bytes(8, "big"), fingerprint) <= (self._cursor[1:9], self._cursor[9:]):
            heapq.heappush(self._early, (due, fingerprint))
        else:
            self._next = min(self._next, due)

    def take(self, now: int) -> list[bytes]:
        """Fingerprints whose time has come: hints, as all entries of the index."""
        taken: list[bytes] = []
        while self._early and self._early[0][0] <= now:
            taken.append(heapq.heappop(self._early)[1])
        while self._next <= now and len(taken) < TAKEN:
            taken += self._read(now)
        return taken

    def _read(self, now: int) -> list[bytes]:
        """Read a stretch of the index and find out when the rest is due."""
        found: list[bytes] = []
        entries = self._store.scan(self._kind, after=self._cursor, limit=STRETCH)
        for entry, _ in entries:
            due, fingerprint = split_timed_entry(entry)
            if due > now:
                self._next = due
                return found
            self._cursor = entry
            found.append(fingerprint)
        self._next = NEVER if len(entries) < STRETCH else now
        return found

    def next_at(self) -> float:
        """When `take` may have something next (ms)."""
        return min(self._next, self._early[0][0] if self._early else NEVER)
