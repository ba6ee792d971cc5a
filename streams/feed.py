"""What a poll returned goes to the stage partition by partition, and nothing is ever skipped.

Faust's own loop hands over event by event; this one hands over batches, and keeps what the stock loop guards. Four
rules keep it from losing messages over rebalances (each was found as a loss on a real broker):

1. A position has one meaning: the next offset to be read. Records before it are dropped, the one at it is kept.
2. From the first sign of a rebalance until the next assignment nothing is handed over: calls are cancelled, and what
   belongs to an older generation is refused.
3. After each assignment the positions are taken from the committed offsets before the first poll; what a poll brings
   that began before that is dropped.
4. A poll whose data does not start at the expected position was preceded by data that got lost on the way (a dropped
   poll, a foreign seek, a reset): the partition is read again from the expected position. Holes in data that does start
   there are holes of the log (compaction, control records).

Back-pressure: a partition whose batch is still being taken is left out of the polls; the others go on, and so does the
group membership, which lives in the source's own thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from streams.errors import OwnershipLost

log = logging.getLogger(__name__)

TP = tuple[str, int]
"""Topic (with prefix) and partition. Faust's and aiokafka's own kinds are equal to it."""

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Haul:
    """What one poll returned for one partition: read from position `start`; the next position is `end`."""

    start: int
    end: int
    records: list[Any]


class Source(Protocol):
    """The consumer, as seen from the event loop of the stage. A lost connection is waited out, not raised."""

    async def poll(self, wanted: frozenset[TP], seconds: float) -> Mapping[TP, Haul]:
        """Data of the wanted partitions as soon as there is any; empty after `seconds`."""

    def want(self, tp: TP) -> None:
        """The poll that is running may return this partition too."""

    async def rewind(self) -> Mapping[TP, int]:
        """Stand at the committed offset of each owned partition (none: at its earliest record); the positions."""

    async def seek(self, tp: TP, position: int) -> int:
        """Stand at `position`, or where the log begins or ends if it does not reach there; that position."""


class Port(Protocol):
    """The receiving end."""

    def revoked(self) -> None:
        """The first sign of a rebalance."""

    async def assigned(self, generation: int, positions: Mapping[TP, int]) -> None:
        """Positions are known; the first batch follows."""

    async def batch(self, tp: TP, generation: int, records: list[Any]) -> None:
        """Take a batch; one call at a time for a partition."""

    def fatal(self, error: BaseException) -> NoReturn:
        """End the process."""


class Feed:
    """The loop between a source and a port. All methods but `interrupt` are for the event loop it runs in."""

    def __init__(self, source: Source, port: Port) -> None:
        self.generation = 0  # written by the source's thread, at the first sign of a rebalance
        self._source = source
        self._port = port
        self._granted = -1  # the generation of the newest assignment
        self._due = -1  # the generation whose positions are to be taken
        self._open = -1  # the generation that is being fed
        self._held = False
        self._expected: dict[TP, int] = {}
        self._takers: dict[TP, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._opener: asyncio.Task[bool] | None = None
        self._polling = False
        self._wake = asyncio.Event()
        self.returns = 0  # times rule 4 sent a partition back

    def interrupt(self, loop: asyncio.AbstractEventLoop) -> None:
        """The first sign of a rebalance (rule 2); the only method for the source's thread."""
        self.generation += 1
        with suppress(RuntimeError):  # the loop is closed: the process ends anyway
            loop.call_soon_threadsafe(self.revoke)

    def revoke(self) -> None:
        """Cancel what was handed over and tell the port."""
        self._cancel_takers()
        if self._opener is not None:
            self._opener.cancel()
        self._port.revoked()

    def grant(self) -> None:
        """Partitions were assigned: the newest generation is ours."""
        self._granted = self.generation

    def resume(self) -> None:
        """All is recovered: take the positions (rule 3), then hand over. Ignored while a rebalance is under way."""
        if self._granted == self.generation and not self._held:
            self._due = self.generation
            self._wake.set()

    async def hold(self) -> None:
        """Hand over nothing more, for good; returns when nobody is taking any more."""
        self._held = True
        self._cancel_takers()
        if self._opener is not None:
            self._opener.cancel()
        if self._leaving:
            await asyncio.wait(self._leaving)

    @property
    def fed(self) -> bool:
        """Whether the newest generation is being fed."""
        return self._open == self.generation and not self._held

    async def run(self) -> None:
        """Feed until cancelled."""
        while True:
            generation = self.generation
            if self._due != generation or self._held:
                await self._sleep()
            elif self._open == generation:
                await self._round(generation)
            elif not await self._begin(generation):
                await asyncio.sleep(0)

    def _current(self, generation: int) -> bool:
        return generation == self.generation and not self._held

    async def _sleep(self, seconds: float | None = None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    async def _begin(self, generation: int) -> bool:
        """Open a generation: rule 3. False if the next rebalance came in between."""
        if self._leaving:
            await asyncio.wait(self._leaving)  # calls for the old generation: a partition has one at a time
        self._opener = asyncio.create_task(self._take_positions(generation))
        try:
            opened = await self._opener
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # this loop was cancelled, not the opener
            return False
        finally:
            self._opener.cancel()
            self._opener = None
        if opened:
            self._open = generation
        return opened

    async def _take_positions(self, generation: int) -> bool:
        positions = await self._source.rewind()
        if not self._current(generation):
            return False
        self._expected = dict(positions)
        try:
            await self._port.assigned(generation, positions)
        except Exception as error:  # noqa: BLE001 - whatever a stage raises is a programming error
            self._port.fatal(error)
        return self._current(generation)

    async def _round(self, generation: int) -> None:
        """One poll, and its data handed over."""
        wanted = frozenset(self._expected.keys() - self._takers.keys())
        if not wanted:
            await self._sleep(POLL_SECONDS)
            return
        self._polling = True
        try:
            hauls = await self._source.poll(wanted, POLL_SECONDS)
        finally:
            self._polling = False
        for tp, haul in hauls.items():
            if not self._current(generation):
                return  # rule 3: the next generation begins with a seek
            if haul.start != self._expected[tp]:
                await self._return(tp, haul.start)
            else:
                self._hand_over(tp, generation, haul)

    async def _return(self, tp: TP, start: int) -> None:
        """Rule 4: read again from the expected position."""
        expected = self._expected[tp]
        position = await self._source.seek(tp, expected)
        self.returns += 1
        if position > expected:
            log.error("%s-%d: %d offsets were removed before they were read", *tp, position - expected)
        else:
            log.warning("%s-%d: data began at %d instead of %d; reading again from %d", *tp, start, expected, position)
        self._expected[tp] = position

    def _hand_over(self, tp: TP, generation: int, haul: Haul) -> None:
        expected = self._expected[tp]
        records = haul.records
        if records[0].offset < expected:  # rule 1; a compressed batch may begin before the position
            records = [record for record in records if record.offset >= expected]
        self._expected[tp] = haul.end
        if records:
            self._takers[tp] = asyncio.create_task(self._take(tp, generation, records))

    async def _take(self, tp: TP, generation: int, records: list[Any]) -> None:
        try:
            if self._current(generation):
                await self._port.batch(tp, generation, records)
        except OwnershipLost as error:
            if self._current(generation):
                self._port.fatal(error)
        except Exception as error:  # noqa: BLE001 - whatever a stage raises is a programming error
            self._port.fatal(error)
        finally:
            if self._takers.get(tp) is asyncio.current_task():
                del self._takers[tp]
                self._wake.set()
                if self._polling and self._current(generation):
                    self._source.want(tp)

    def _cancel_takers(self) -> None:
        for taker in self._takers.values():
            taker.cancel()
            self._leaving.add(taker)
            taker.add_done_callback(self._leaving.discard)
        self._takers.clear()
