"""What workers died of. Their successors tell it through the topic `deaths`, so that whoever has the work next knows.

A worker finds at its start what its predecessor in the same folder was at when it died: the body that it was decoding,
the pages that it had begun to parse. The partition may be another worker's by then, which would die of it in turn.
"""

from __future__ import annotations

from typing import Final, TypeVar

from streams.messages import Message

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED: Final = 3600 * 1000
"""Milliseconds for which a body is blamed: after that the page, or the code that it killed, may have been mended."""

KEPT: Final = 1000
"""URLs, and pages, of which deaths are remembered; the first ones are forgotten first."""

Page = tuple[int, int]
"""Partition and offset in `pages`."""


class Death(Message, frozen=True, kw_only=True, omit_defaults=True):
    """What a process was at when it died: decoding the body of `url`, or parsing pages of `partition` below `end`.

    `tries`: so many processes of their own, one after the other, died of the last of these pages alone.
    """

    stage: str
    at: int  # ms, broker's clock
    url: str = ""
    partition: int = -1
    end: int = 0
    tries: int = 0


class Deaths:
    """All that was told within the retention of the topic. The same word told twice changes no more than it must."""

    def __init__(self) -> None:
        self._bodies: dict[str, list[int]] = {}
        self._ends: dict[int, int] = {}
        self._tries: dict[Page, int] = {}

    def add(self, death: Death) -> None:
        """Take one word."""
        if death.url:
            self._bodies.setdefault(death.url, []).append(death.at)
            _bound(self._bodies)
        if death.partition >= 0:
            self._ends[death.partition] = max(death.end, self._ends.get(death.partition, 0))
        if death.tries:
            page = (death.partition, death.end - 1)
            self._tries[page] = max(death.tries, self._tries.pop(page, 0))
            _bound(self._tries)

    def of_body(self, url: str, now: int) -> int:
        """How many processes died within the last hour while they decoded the body of a URL. `now` in ms."""
        return sum(at > now - REMEMBERED for at in self._bodies.get(url, ()))

    def is_suspect(self, partition: int, offset: int) -> bool:
        """Whether a process that died may have died of this page."""
        return offset < self._ends.get(partition, 0)

    def tries(self, partition: int, offset: int) -> int:
        """How many processes of its own a page has killed."""
        return self._tries.get((partition, offset), 0)


def _bound(known: dict[K, V]) -> None:
    if len(known) > KEPT:
        del known[next(iter(known))]
