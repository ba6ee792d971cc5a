"""Broker time: what persisted times are anchored to, so that they mean the same to every worker.

A worker's own wall clock may be wrong or jump. Each record of `progress` comes back with the broker's time stamp; in
between only CLOCK_BOOTTIME counts, which neither jumps nor stops during suspension.
"""

from __future__ import annotations

import time

SLOW = 2.0
"""Seconds: an answer that took longer says too little about the time at the broker."""


class BrokerClock:
    """Now at the broker, in ms since the epoch; this machine's own time until the broker was heard."""

    def __init__(self) -> None:
        self._base = time.time() * 1000 - self.mark() * 1000
        self.heard = False

    @staticmethod
    def mark() -> float:
        """Seconds on CLOCK_BOOTTIME."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return int(self._base + self.mark() * 1000)

    def observe(self, sent: float, timestamp: int) -> None:
        """The broker stamped (ms) a record that was sent at `sent` (mark) and has just been acknowledged."""
        now = self.mark()
        if timestamp > 0 and now - sent <= SLOW:
            self._base = timestamp - (sent + now) / 2 * 1000
            self.heard = True

    def skew(self) -> float:
        """Seconds by which this machine's clock is ahead of the broker's (negative: behind)."""
        return time.time() - self.now() / 1000
