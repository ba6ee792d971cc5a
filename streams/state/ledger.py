"""One partition's changelog and store in the hands of one owner: claim, put, settle.

What makes a put safe: it is appended under an epoch that is in force, and applied only when the log shows that nothing
else came between. The offsets of its records must follow on what the store contains; where they do not, the stretch is
read back and folded like in recovery, and keys that a foreign record touched are written again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Protocol

from streams.errors import DamagedError, OwnershipLost
from streams.state.fencing import MARKER, MARKER_VALUE, NO_EPOCH, Accept, Headers, epoch_headers, fence
from streams.state.fold import Folded, LogRecord, fold
from streams.state.store import Store

Item = tuple[bytes, bytes | None]


class PartitionLog(Protocol):
    """The changelog of one partition."""

    async def append(self, items: Sequence[Item], headers: Headers) -> list[tuple[int, int]]:
        """Write records in packs; (first offset, number) of each, once all are durable."""
        ...

    def read(self, start: int, end: int) -> AsyncGenerator[tuple[Sequence[LogRecord], int], None]:
        """Records from `start`, with the position behind them, until that is `end` or more.

        By position: what compaction, control records and deletion leave out needs no record.
        """
        ...

    async def end(self) -> int:
        """The offset of the next record."""
        ...


class Ledger:
    """`owner()` is the group generation under which the partition is ours, None if it is not.

    Everything that writes is serialised by `lock`; recovery takes it too.
    """

    def __init__(
        self, store: Store, changelog: PartitionLog, owner: Callable[[], int | None], accept: Accept = fence
    ) -> None:
        self.store = store
        self.lock = asyncio.Lock()
        self._log = changelog
        self._owner = owner
        self._accept = accept
        self._generation: int | None = None  # under which the epoch was claimed; None: no claim
        self._epoch = NO_EPOCH

    @property
    def epoch(self) -> int:
        """The claimed epoch. Raises `OwnershipLost` where there is none (any more)."""
        if self._generation is None or self._owner() != self._generation:
            raise OwnershipLost("the partition is not claimed")
        return self._epoch

    @property
    def claimed(self) -> bool:
        """Whether `put` may be called."""
        return self._generation is not None and self._owner() == self._generation

    async def claim(self) -> int:
        """Begin an epoch, contain all before it, write again what former owners left stale. The epoch; idempotent.

        Raises `OwnershipLost` if the partition moved, or a later marker stands in the log; then claim again.
        """
        async with self.lock:
            if not self.claimed:
                self._generation = None
                generation = self._owner()
                if generation is None:
                    raise OwnershipLost("the partition is assigned to another worker")
                await self._begin(generation)
            return self._epoch

    async def _begin(self, generation: int) -> None:
        ((first, _),) = await self._log.append([(MARKER, MARKER_VALUE)], ())
        self._check_length(first)
        if first == self.store.offset + 1:
            self.store.absorb(Folded(first), first)
        else:
            await self._read_back(first + 1)
        if self.store.epoch != first or self._owner() != generation:
            raise OwnershipLost("the partition moved while it was claimed")
        await self.derive()
        self._epoch, self._generation = first, generation
        with self._void_on_error():
            await self._write_again()

    async def put(self, items: Sequence[Item]) -> None:
        """Write rows (None deletes). On return they are durable and readable; on any error claim before the next put.

        Raises `OwnershipLost` (the rows are not applied), `ValueError` for the key that only markers may have, and
        whatever the log raises: then it is not known which rows are durable; the next claim finds out.
        """
        if any(key == MARKER for key, _ in items):
            raise ValueError(f"{MARKER!r} is the key of markers")
        async with self.lock:
            epoch = self.epoch
            if not items:
                return
            with self._void_on_error():
                if await self._append(items, epoch):
                    self.store.apply(items, self.store.offset + len(items))
                await self._write_again()

    async def settle(self) -> None:
        """Find and mend what foreign records did since the last put, and note that the store is up to date.

        An idle owner must call it well within the changelog's `min.compaction.lag.ms`. Errors as in `put`.
        """
        if not self.claimed:
            return
        async with self.lock:
            epoch = self.epoch
            end = await self._log.end()
            self._check_length(end)
            if end > self.store.offset + 1:
                await self._read_back(end)
            with self._void_on_error():
                self._check(epoch)
                await self._write_again()
            self.store.touch()

    async def derive(self) -> None:
        """Make the store's index and counters where they are not those of its rows; `lock` is held."""
        for _ in self.store.derive():
            await asyncio.sleep(0)

    def absorb(self, records: Iterable[LogRecord], position: int) -> None:
        """Fold a stretch of the log that ends before `position` into the store."""
        self.store.absorb(fold(records, self.store.epoch, self._accept), position - 1)

    @contextmanager
    def _void_on_error(self) -> Iterator[None]:
        """End the claim where what was sent may still land, or ownership is lost; cancellation counts too."""
        try:
            yield
        except BaseException:
            self._generation = None
            raise

    async def _append(self, items: Sequence[Item], epoch: int) -> bool:
        """Append; True: nothing came between, apply them. False: they were read back together with what did."""
        packs = await self._log.append(items, epoch_headers(epoch))
        self._check(epoch)
        expected = self.store.offset + 1
        for first, count in packs:
            self._check_length(first)
            if first != expected:
                await self._read_back(max(first + count for first, count in packs))
                self._check(epoch)
                return False
            expected += count
        return True

    def _check(self, epoch: int) -> None:
        """Raise `OwnershipLost` if the group, or a marker that was read, says that the partition is another's."""
        if self.epoch != epoch or self.store.epoch != epoch:
            raise OwnershipLost("the partition moved")

    def _check_length(self, offset: int) -> None:
        """Raise `DamagedError` if `offset`, where the log goes on, lies in what the store already contains."""
        if offset <= self.store.offset:
            raise DamagedError(
                f"the changelog of {self.store.path} goes on at offset {offset}, "
                f"the store contains offset {self.store.offset}: the topic was made again, or brokers lost its end",
                "Start the worker again: it compares the two and says what to do.",
            )

    async def _read_back(self, end: int) -> None:
        async with aclosing(self._log.read(self.store.offset + 1, end)) as stretches:
            async for records, position in stretches:
                self.absorb(records, position)

    async def _write_again(self) -> None:
        """Write the rows, or deletes, of stale keys, so that the newest record of each key is one that counts."""
        while self.store.stale:
            keys = sorted(self.store.stale)
            items = list(zip(keys, self.store.get_many(keys), strict=True))
            if await self._append(items, self._epoch):
                self.store.apply(items, self.store.offset + len(items))
