"""Ends a worker that has work and does none: a consumer may stall silently, and only a restart helps.

Work is lag: the ends of the owned partitions, asked from the broker by another way than the fetcher's, minus what is
acked. A worker that never gets through a rebalance has work too. Recovery of tables may take as long as it takes. One
partition that stands still while others move gets more time: it may have to wait for its turn.
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

_SHOWN = 4

ONE_PARTITION = 5
"""Time-outs that a single partition may stand still while others move."""


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class StuckError(Exception):
    """Lag and no progress; the text says what waits where."""


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
        self._lags: dict[TP, int] | None = None  # None: not known since the assignment
        self._stands: dict[TP, tuple[int, float]] = {}  # with lag: position, and since when
        self._progress = -1
        self._last = clock()
        self._awake = 0.0  # seconds looked over: without those in which the process, or the machine, stood still itself
        self._since = 0.0

    @property
    def stalled(self) -> float:
        """Seconds with work and without progress, as of the last look."""
        return self._awake - self._since

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._period)
            await self.look()

    async def look(self) -> None:
        """One look; ends the process when it is stuck."""
        now = self._clock()
        if now - self._last <= 2 * self._period:
            self._awake += now - self._last
        self._last = now
        positions = self._shards.positions()
        limbo = self._limbo()
        busy = limbo or await self._lagging(positions)
        self._note(positions)
        if not busy or self._shards.progress != self._progress:
            self._progress = self._shards.progress
            self._since = self._awake
        elif self.stalled >= self._limit:
            self._end("the group gets through no rebalance" if limbo else self._waiting(positions), self.stalled)
        oldest = min(self._stands, key=lambda tp: self._stands[tp][1], default=None)
        if oldest is not None and (stands := self._awake - self._stands[oldest][1]) >= ONE_PARTITION * self._limit:
            self._end(self._waiting({oldest: positions[oldest]}), stands)

    async def _lagging(self, positions: Mapping[TP, int]) -> bool:
        """While the broker does not answer, the last lag counts; one not known since the assignment may be any."""
        if not positions:
            self._lags = None
            return False
        try:
            async with asyncio.timeout(self._period / 2):
                ends = await self._ends(list(positions))
        except (KafkaError, TimeoutError):
            return self._lags is None or any(self._lags.values())
        self._lags = {tp: max(0, end - positions[tp]) for tp, end in ends.items()}
        return any(self._lags.values())

    def _note(self, positions: Mapping[TP, int]) -> None:
        """Since when each partition stands where it stands; a new generation stands where the last one did."""
        lags = self._lags or {}
        before, self._stands = self._stands, {}
        for tp, position in positions.items():
            if lags.get(tp):
                was, since = before.get(tp, (-1, 0.0))
                self._stands[tp] = (position, since if was == position else self._awake)

    def _waiting(self, positions: Mapping[TP, int]) -> str:
        """What is stuck, in words."""
        if self._lags is None:
            return "an unknown number of messages wait: the broker has not answered since the assignment"
        stuck = [(tp, lag) for tp, position in sorted(positions.items()) if (lag := self._lags.get(tp, 0))]
        shown = ", ".join(f"{lag} in {tp[0]}-{tp[1]} from offset {positions[tp]}" for tp, lag in stuck[:_SHOWN])
        more = f" and {len(stuck) - _SHOWN} more partitions" if len(stuck) > _SHOWN else ""
        total = sum(lag for _, lag in stuck)
        return f"{total} messages wait ({shown}{more}; {self._shards.in_flight} slots are in flight)"

    def _end(self, what: str, seconds: float) -> NoReturn:
        self._fatal(StuckError(f"{what}, and nothing was acked for {seconds:.0f} s"))
