"""The ordered acker: which offset of a partition is safe to commit. Pure, one for each partition and generation.

Work finishes in any order, Kafka commits one position a partition. So every taken range of offsets gets a slot, in
offset order, and the position moves over a slot only when that slot and all before it are done. A range that no slot
covers would be skipped for ever at the next commit; taking past it is therefore refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence


class Slot:
    """A range of offsets somebody works on. `done()` says that everything it caused is durable."""

    __slots__ = ("_acker", "_done", "end", "first")

    def __init__(self, acker: Acker, first: int, end: int) -> None:
        self._acker = acker
        self._done = False
        self.first = first
        self.end = end

    @property
    def alive(self) -> bool:
        """Whether this process still owns the range: False from the first sign of a rebalance."""
        return self._acker.open

    def done(self) -> None:
        """Let the range be acked, once all before it are. Again, or after a revocation: without effect."""
        if not self._done:
            self._done = True
            self._acker.settle()

    @property
    def settled(self) -> bool:
        """Whether `done` was called."""
        return self._done


class Acker:
    """Slots of one partition in one generation.

    `position` is the next offset to be read after a restart: all before it is done. `moved` is told the old and the new
    one each time.
    """

    __slots__ = ("_arrived", "_cursor", "_moved", "_slots", "open", "position")

    def __init__(self, position: int, moved: Callable[[int, int], None]) -> None:
        self.open = True
        self.position = position
        self._moved = moved
        self._slots: deque[Slot] = deque()
        self._arrived: Sequence[int] = ()
        self._cursor = 0

    def arrive(self, offsets: Sequence[int]) -> None:
        """A batch is handed to the stage. ValueError if the one before it was not taken completely."""
        if self._cursor != len(self._arrived):
            raise ValueError(f"offset {self._arrived[self._cursor]} was handed over but has no slot")
        self._arrived, self._cursor = offsets, 0

    def take(self, first: int, last: int) -> Slot:
        """A slot for the records `first` to `last` (offsets, both included).

        They must be the next untaken ones of the batch: ValueError if this leaves one out or takes one twice.
        """
        offsets, cursor = self._arrived, self._cursor
        if cursor == len(offsets) or offsets[cursor] != first:
            expected = offsets[cursor] if cursor < len(offsets) else "the next batch"
            raise ValueError(f"slot {first}..{last} does not begin at {expected}")
        while cursor < len(offsets) and offsets[cursor] <= last:
            cursor += 1
        if cursor == self._cursor or offsets[cursor - 1] != last:
            raise ValueError(f"slot {first}..{last} does not end at a record")
        self._cursor = cursor
        slot = Slot(self, first, last + 1)
        self._slots.append(slot)
        return slot

    @property
    def untaken(self) -> int:
        """Records of the current batch without a slot."""
        return len(self._arrived) - self._cursor

    @property
    def in_flight(self) -> int:
        """Slots that are not acked: being worked on, or waiting for an earlier one."""
        return len(self._slots)

    def settle(self) -> None:
        """Move the position over the done slots at the head."""
        slots = self._slots
        end = -1
        while slots and slots[0].settled:
            end = slots.popleft().end
        if end >= 0 and self.open:
            before, self.position = self.position, end
            self._moved(before, end)

    def close(self) -> None:
        """The partition is revoked: nothing is acked any more."""
        self.open = False
        self._slots.clear()
