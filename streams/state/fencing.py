"""Which changelog records count: epochs, their markers, and how both look on the wire.

A paused worker may still hold a batch in its producer when another takes its partition over; the batch lands whenever
the worker wakes. Kafka orders the partition, so the log itself can tell who was the owner: a new owner first appends a
**marker**, whose offset is its **epoch**, and every record carries its writer's epoch. A record counts if no marker
with a higher epoch precedes it. What does not count is called *stale*.

The epoch travels in a header, not in the value: values stay what the table's user wrote, and a delete stays a real
tombstone that is fenced like any other record and that compaction can drop. It costs 0.3 µs a record and, compressed,
next to no bytes.

A marker has a key of its own, so that compaction keeps it for as long as records that it fences may be there: with one
key for all, a newer marker would let compaction drop the older one before its stale records were overwritten. The owner
deletes the markers of former owners once it has done that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

from streams.errors import NewerSchemaError

FORMAT = 1
"""Of the changelog; the value of every marker. A worker that meets a higher number stops."""

NO_EPOCH = -1
"""Of a record without one, and of a log without a marker."""

MARKER = b"\x00epoch:"
"""Every marker's key begins with it; a row's key must not."""

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


def marker(token: bytes) -> tuple[bytes, bytes]:
    """A marker's key and value; `token` makes the key its own."""
    return MARKER + token, str(FORMAT).encode()


def check_format(value: bytes) -> None:
    """Raise `NewerSchemaError` for the marker of a release that writes the changelog in a newer format."""
    if not value.isdigit() or int(value) > FORMAT:
        raise NewerSchemaError(
            f"the changelog has format {value.decode(errors='replace')}, this release reads up to {FORMAT}",
            "A newer release wrote it: upgrade this worker. Nothing was skipped.",
        )
