"""Ends a worker that has work and does none: a consumer may stall silently, and only a restart helps.

Work is lag: the ends of the owned partitions, asked from the broker by another way than the fetcher's, minus what is
acked. A worker that never gets through a rebalance has work too. Recovery of tables may take as long as it takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

from aiokafka.errors import KafkaError

if TYPE_CHECKING:
    from agents.delivery.shards import Shards
    from streams.feed import TP

LOOKS = 8
"""Looks within the time-out."""


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class StuckError(Exception):
    """Lag and no progress."""


class Watchdog:
    """Looks at one stage. `ends` asks the broker; `limbo` says whether it stands between two assignments."""

    def __init__(
        self,
        shards: Shards,
        ends: Callable[[list[TP]], Awaitable[Mapping[TP, int]]],
        limbo: Callable[[], bool],
        limit: float,
        fatal: Callable[[BaseException], NoReturn],
        clock: Callable[[], float] = _boottime,
    ) -> None:
        self._shards = shards
        self._ends = ends
        self._limbo = limbo
        self._limit = limit
        self._fatal = fatal
        self._clock = clock
        self._period = limit / LOOKS
        self._lag: int | None = None
        self._progress = -1
        self._since = clock()
        self._last = clock()

    @property
    def stalled(self) -> float:
        """Seconds with work and without progress, as of the last look."""
        return self._last - self._since

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._period)
            await self.look()

    async def look(self) -> None:
        """One look; ends the process when it is stuck."""
        now = self._clock()
        if now - self._last > 2 * self._period:
            self._since += now - self._last  # the process, or the machine, stood still itself
        self._last = now
        busy = self._limbo() or await self._lagging()
        if not busy or self._shards.progress != self._progress:
            self._progress = self._shards.progress
            self._since = now
        elif now - self._since >= self._limit:
            lag = "an unknown number of" if self._lag is None else self._lag
            self._fatal(StuckError(f"{lag} messages wait, and nothing was acked for {now - self._since:.0f} s"))

    async def _lagging(self) -> bool:
        """While the broker does not answer, the last lag counts; one not known since the assignment may be any."""
        positions = self._shards.positions()
        if not positions:
            self._lag = None
            return False
        try:
            async with asyncio.timeout(self._period / 2):
                ends = await self._ends(list(positions))
        except (KafkaError, TimeoutError):
            return self._lag != 0
        self._lag = sum(max(0, end - positions[tp]) for tp, end in ends.items())
        return self._lag > 0
