"""A changelog partition in memory, and owners that pause with a batch in their producer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocksdict import Options, Rdict

from streams.state.fencing import NO_EPOCH, Accept, Headers, fence
from streams.state.fold import fold
from streams.state.ledger import Item, Ledger
from streams.state.store import Store
from tests.unit.state.rows import ByState, Clock


@dataclass(frozen=True)
class Record:
    offset: int
    key: bytes
    value: bytes | None
    headers: Headers


@dataclass
class Held:
    """A batch that has left its owner and not arrived."""

    items: Sequence[Item]
    headers: Headers
    arrived: asyncio.Future[int]


@dataclass
class Changelog:
    """What a broker keeps of one partition, and what is on its way to it."""

    records: list[Record] = field(default_factory=list)
    end: int = 0
    held: list[Held] = field(default_factory=list)

    def append(self, items: Sequence[Item], headers: Headers) -> int:
        first = self.end
        for key, value in items:
            self.records.append(Record(self.end, key, value, headers))
            self.end += 1
        return first

    def control_record(self) -> None:
        """A transaction's marker: an offset without a record."""
        self.end += 1

    def land(self, which: int = 0) -> None:
        """The batch held arrives, whether or not its owner still listens."""
        batch = self.held.pop(which)
        first = self.append(batch.items, batch.headers)
        if not batch.arrived.done():
            batch.arrived.set_result(first)

    def compact(self, up_to: int, drop_tombstones: bool = False) -> None:
        """Keep the newest record of each key below `up_to`, and everything from there on."""
        newest = {record.key: record.offset for record in self.records if record.offset < up_to}
        self.records = [
            record
            for record in self.records
            if record.offset >= up_to
            or (newest[record.key] == record.offset and not (drop_tombstones and record.value is None))
        ]

    def rebuilt(self, accept: Accept = fence) -> dict[bytes, bytes]:
        """What an owner with a wiped disk would find."""
        rows = fold(self.records, NO_EPOCH, accept).rows
        return {key: value for key, value in rows.items() if value is not None}


class Owner:
    """One worker's view: its own disk, and whether it believes that the partition is its own.

    `pack`: records in one batch; `hold`: how many of the next batches stay on their way; `broken`: sending fails.
    """

    def __init__(self, changelog: Changelog, path: Path, accept: Accept = fence, pack: int = 3) -> None:
        self.changelog = changelog
        self.pack = pack
        self.hold = 0
        self.broken = False
        self.generation: int | None = None
        options = Options(raw_mode=True)
        options.create_if_missing(create_if_missing=True)
        options.set_write_buffer_size(64 << 10)
        self.store = Store(Rdict(str(path), options), path, ByState(), Clock())
        self.ledger = Ledger(self.store, self, lambda: self.generation, accept)

    # ---- PartitionLog --------------------------------------------------------------------------------------------

    async def append(self, items: Sequence[Item], headers: Headers) -> list[tuple[int, int]]:
        packs = [items[at : at + self.pack] for at in range(0, len(items), self.pack)]
        return [(await self._send(pack, headers), len(pack)) for pack in packs]

    async def _send(self, items: Sequence[Item], headers: Headers) -> int:
        if self.broken:
            raise ConnectionError("the broker is away")
        if not self.hold:
            return self.changelog.append(items, headers)
        self.hold -= 1
        batch = Held(items, headers, asyncio.get_running_loop().create_future())
        self.changelog.held.append(batch)
        return await batch.arrived

    async def read(self, start: int, end: int) -> AsyncGenerator[tuple[Sequence[Record], int], None]:
        while start < end:
            stretch = [record for record in self.changelog.records if record.offset >= start][:4]
            last = len(stretch) < 4 or stretch[-1].offset >= self.changelog.records[-1].offset
            start = self.changelog.end if last else stretch[-1].offset + 1
            yield stretch, start

    async def end(self) -> int:
        return self.changelog.end

    # ---- what a worker does --------------------------------------------------------------------------------------

    async def recover(self) -> None:
        async for records, position in self.read(self.store.offset + 1, self.changelog.end):
            self.ledger.absorb(records, position)

    def rows(self) -> dict[bytes, bytes]:
        return dict(self.store.rows(limit=10_000))

    def close(self) -> None:
        self.store.close()
