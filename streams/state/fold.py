"""The fold: what a stretch of a changelog does to a store. Pure; recovery, the owner and the simulation share it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from streams.state.fencing import MARKER, Accept, Headers, check_format, epoch_of, fence


class LogRecord(Protocol):
    """What the fold reads of a record (aiokafka's `ConsumerRecord` has it)."""

    @property
    def offset(self) -> int:
        """Position in the partition."""
        ...

    @property
    def key(self) -> bytes:
        """A row's key, or `MARKER`."""
        ...

    @property
    def value(self) -> bytes | None:
        """None: deleted."""
        ...

    @property
    def headers(self) -> Headers:
        """With the writer's epoch."""
        ...


@dataclass(frozen=True, slots=True)
class Folded:
    """What a stretch of the log changes.

    `rows`: the newest accepted value of each key, None if deleted. `stale`: keys whose newest record does not count;
    compaction would keep just that one, so the owner has to write its own row (or delete) again. `epoch`: the highest
    up to the end of the stretch.
    """

    epoch: int
    rows: dict[bytes, bytes | None] = field(default_factory=dict)
    stale: set[bytes] = field(default_factory=set)


def fold(records: Iterable[LogRecord], epoch: int, accept: Accept = fence) -> Folded:
    """Fold `records`, in log order, onto a log whose highest epoch so far is `epoch`.

    Raises `NewerSchemaError` at a marker of a newer format.
    """
    rows: dict[bytes, bytes | None] = {}
    stale: set[bytes] = set()
    for record in records:
        key = record.key
        if key == MARKER:
            check_format(record.value or b"")
            epoch = record.offset
        elif accept(epoch_of(record.headers), epoch):
            rows[key] = record.value
            stale.discard(key)
        else:
            stale.add(key)
    return Folded(epoch, rows, stale)
