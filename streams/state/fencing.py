"""Which changelog records count: epochs, their markers, and how both look on the wire.

A paused worker may still hold a batch in its producer when another takes its partition over; the batch lands whenever
the worker wakes. Kafka orders the partition, so the log itself can tell who was the owner: a new owner first appends a
**marker**, whose offset is its **epoch**, and every record carries its writer's epoch. A record counts if no marker
with a higher epoch precedes it. What does not count is called *stale*.

The epoch travels in a header, not in the value: values stay what the table's user wrote, and a delete stays a real
tombstone that is fenced like any other record and that compaction can drop. It costs 0.3 µs a record and, compressed,
next to no bytes.

Compaction keeps only the newest record of a key, so a stale one must not stay the newest: the owner writes its own row
(or delete) again, at the latest when it next looks at the log. Until then `min.compaction.lag.ms` protects the row
that counts, and the marker. What is not covered: a stale batch lands, and for longer than that lag there is no owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

from streams.errors import NewerSchemaError

FORMAT = 1
"""Of the changelog; the value of every marker. A worker that meets a higher number stops."""

NO_EPOCH = -1
"""Of a record without one, and of a log without a marker."""

MARKER = b"\x00epoch"
"""The markers' key; no row may have it."""

MARKER_VALUE = str(FORMAT).encode()

_HEADER = "e"
_EPOCH = Struct(">q")

Headers = Sequence[tuple[str, bytes]]
Accept = Callable[[int, int], bool]
"""(epoch of a record, highest epoch before it) -> does the record count?"""


def fence(epoch: int, highest: int) -> bool:
    """The rule. Another one is given only by tests that show what happens without it."""
    return epoch >= highest


def epoch_headers(epoch: int) -> Headers:
    """The headers of every record written under `epoch`."""
    return [(_HEADER, _EPOCH.pack(epoch))]


def epoch_of(headers: Headers) -> int:
    """The epoch in a record's headers; `NO_EPOCH` if there is none."""
    for name, value in headers:
        if name == _HEADER and len(value) == _EPOCH.size:
            return int(_EPOCH.unpack(value)[0])
    return NO_EPOCH


def check_format(value: bytes) -> None:
    """Raise `NewerSchemaError` for the marker of a release that writes the changelog in a newer format."""
    if not value.isdigit() or int(value) > FORMAT:
        raise NewerSchemaError(
            f"the changelog has format {value.decode(errors='replace')}, this release reads up to {FORMAT}",
            "A newer release wrote it: upgrade this worker. Nothing was skipped.",
        )
