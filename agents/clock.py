"""Broker time: what persisted times are anchored to, so that they mean the same to every worker.

A worker's own wall clock may be wrong or jump. The broker stamps the records of some topics with its own time
(`Topic.stamped`) and says so in its acknowledgement; in between only CLOCK_BOOTTIME counts, which neither jumps nor
stops during suspension.
"""

from __future__ import annotations

import time


class BrokerClock:
    """Now at the broker, in ms since the epoch; this machine's own time until the broker was heard.

    The broker stamped a record at some moment between its sending and its acknowledgement. As long as our time lies
    between these two it stays as it is, so that answers that come late do not make it waver: durations between two
    persisted times of one worker are right.
    """

    def __init__(self) -> None:
        self._base = time.time() * 1000 - self.mark() * 1000
        self.heard = False

    @staticmethod
    def mark() -> float:
        """Seconds on CLOCK_BOOTTIME."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return self.ms(self.mark())

    def ms(self, mark: float) -> int:
        """The time at a mark, in ms since the epoch."""
        return int(self._base + mark * 1000)

    def mark_at(self, ms: int) -> float:
        """The mark at a time in ms since the epoch."""
        return (ms - self._base) / 1000

    def observe(self, sent: float, timestamp: int) -> None:
        """The broker stamped (ms) a record that was sent at `sent` (mark) and has just been acknowledged."""
        if timestamp > 0:
            least, most = timestamp - self.mark() * 1000, timestamp + 1 - sent * 1000  # it counts whole ms
            self._base = min(max(self._base, least), most)
            self.heard = True

    def skew(self) -> float:
        """Seconds by which this machine's clock is ahead of the broker's (negative: behind)."""
        return time.time() - self.now() / 1000
