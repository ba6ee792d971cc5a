"""The table of the frontier's rows: Faust's own `Table`, addressed by explicit partition.

Assignment, the changelog topic and the coming and going of partitions stay Faust's; rows are written in packs that are
durable in the changelog before they are readable, and each partition is claimed before it is written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, NoReturn, cast

from aiokafka.errors import KafkaError
from faust.tables.table import Table
from faust.types import TP, AppT
from mode import Service

from streams.errors import OwnershipLost
from streams.settings import Frontier
from streams.state.bulk import Bounds
from streams.state.changelog import ChangelogReader, ChangelogWriter, KafkaLog, connection
from streams.state.faults import expired, refused
from streams.state.fencing import Accept, fence
from streams.state.identity import Identity
from streams.state.ledger import Item, Ledger
from streams.state.partitions import Partitions, by_partition
from streams.state.shelf import Shelf
from streams.state.store import Indexer, Sizes, Store
from streams.topics import CHANGELOG

__all__ = ["Indexer", "RowTable", "Store"]

log = logging.getLogger(__name__)

MAX_AGE = int(CHANGELOG.configs(0)["delete.retention.ms"]) // 2
"""ms; a store that was last up to date longer ago may have missed deletes that the changelog no longer has."""

SETTLE = 60.0
"""Seconds between two looks at the log of an idle partition; must stay well below `min.compaction.lag.ms`."""


def _now() -> int:
    return time.time_ns() // 1_000_000


class RowTable(Table[bytes, bytes]):
    """Rows (bytes -> bytes) of each partition, with an index and counters that `indexer` derives from them.

    Per partition and assignment: `await claim(partition)`, then `store(partition)` to read and `put_many` to write.
    `writer` may be set later, before the first claim. `settings`: cache and memtable sizes. `accept` and `clock` are
    for tests. Standbys are not supported (`streams.state.recovery.RowTables` checks it).
    """

    def __init__(
        self,
        app: AppT,
        *,
        indexer: Indexer,
        settings: Frontier,
        writer: ChangelogWriter | None = None,
        accept: Accept = fence,
        clock: Callable[[], int] = _now,
        **options: Any,
    ) -> None:
        super().__init__(app, key_type=bytes, value_type=bytes, **options)
        self.writer = writer
        self._indexer = indexer
        self._settings = settings
        self._accept = accept
        self._clock = clock
        self._shelf: Shelf | None = None
        self._reader: ChangelogReader | None = None

    def store(self, partition: int) -> Store:
        """The partition's store. Raises `OwnershipLost` if it is not here."""
        return self._partitions.ledger(partition).store

    def sizes(self) -> list[Sizes]:
        """What each store that is open here takes now; for metrics."""
        return [ledger.store.sizes() for ledger in self._partitions.open_ledgers()]

    def epoch(self, partition: int) -> int:
        """The epoch claimed for the partition. Raises `OwnershipLost` if there is none."""
        return self._partitions.ledger(partition).epoch

    async def claim(self, partition: int) -> int:
        """Begin an epoch of ours, after recovery and before the first turn; the epoch. Idempotent per assignment.

        Raises `OwnershipLost` if the partition moved meanwhile, and what the producer raises.
        """
        return await self._partitions.ledger(partition).claim()

    async def put_many(self, partition: int, items: Sequence[Item]) -> None:
        """Write rows; None deletes. On return they are durable in the changelog, readable, indexed and counted.

        One caller at a time per partition. Raises `OwnershipLost` when the partition moved: nothing is applied. After
        any error drop what was decided on these rows and `claim` again: only that tells which of them are durable.
        """
        await self._partitions.ledger(partition).put(items)

    # ---- recovery ------------------------------------------------------------------------------------------------

    async def recover(self, partitions: Iterable[int]) -> dict[int, int]:
        """Open stores and read the changelog to its present end; the last offset that each store contains.

        Waits for a broker that is away; is cancelled by the next rebalance.
        """
        wanted = sorted(partitions)
        while True:
            try:
                return await self._recover(wanted)
            except KafkaError as error:
                if not error.retriable:
                    raise refused(self.reader.topic, error) from error
                log.warning("recovery of %s: %s; trying again", self.name, error)
                await self.sleep(1.0)

    async def _recover(self, partitions: list[int]) -> dict[int, int]:
        started, count = time.monotonic(), 0
        async with AsyncExitStack() as locks:
            for partition in partitions:
                if ledger := self._partitions.get_open(partition):
                    await locks.enter_async_context(ledger.lock)  # nothing is written from here on
            identities, bounds = await self.reader.identities(partitions), await self.reader.bounds(partitions)
            ledgers = {
                partition: await self._open(identities[partition], bounds[partition], locks) for partition in partitions
            }
            starts = {partition: ledger.store.offset + 1 for partition, ledger in ledgers.items()}
            ends = {partition: found.end for partition, found in bounds.items()}
            async with aclosing(self.reader.read(starts, ends)) as stretches:
                async for partition, records, position in stretches:
                    ledgers[partition].absorb(records, position)
                    count += len(records)
            for ledger in ledgers.values():
                await ledger.derive()
        seconds = time.monotonic() - started
        log.info("%s: %d changelog records of %d partitions in %.2f s", self.name, count, len(partitions), seconds)
        return {partition: ledger.store.offset for partition, ledger in ledgers.items()}

    async def _open(self, identity: Identity, bounds: Bounds, locks: AsyncExitStack) -> Ledger:
        """The partition's ledger, locked; a store that is ahead of its changelog is replaced by an empty one."""
        partition = identity.partition
        ledger = self._partitions.get_open(partition)
        if ledger is not None and _fits(ledger.store, identity, bounds):
            return ledger
        self._partitions.close([partition])
        store = await self._open_store(identity, bounds)
        changelog = KafkaLog(self.reader, self._required_writer, partition)
        ledger = Ledger(store, changelog, lambda: self._generation(partition), self._accept)
        await locks.enter_async_context(ledger.lock)
        self._partitions.put_ledger(partition, ledger)
        return ledger

    async def _open_store(self, identity: Identity, bounds: Bounds) -> Store:
        """Raises `StateError` where the changelog has no more what the store lacks."""
        store = await self.shelf.open(identity.cluster, identity.topic, identity.partition, identity.topic_id)
        if store.offset >= bounds.end:
            reason = f"it contains offset {store.offset}, its changelog ends before {bounds.end}"
            store.close()
            self.shelf.set_aside(identity.partition, reason)
            store = await self.shelf.create(identity)
        if store.offset + 1 < bounds.begin:
            try:
                raise expired(store.path, store.offset, bounds.begin)
            finally:
                store.close()
        return store

    @Service.task
    async def _settle_idle(self) -> None:
        """Look into the logs of idle partitions, in which a former owner's records may have landed."""
        async for _ in self.itertimer(SETTLE, name=f"{self.name}.settle"):
            for ledger in self._partitions.open_ledgers():
                if ledger.claimed and self._clock() - ledger.store.touched >= SETTLE * 1000:
                    await self._settle(ledger)

    async def _settle(self, ledger: Ledger) -> None:
        try:
            await ledger.settle()
        except (OwnershipLost, KafkaError) as error:
            log.warning("%s: %s; the next put will say so", ledger.store.path.name, error)

    def on_key_set(self, key: bytes, value: bytes) -> NoReturn:
        """Refuse Faust's own door: it writes where the current event comes from, and awaits nothing."""
        raise by_partition()

    def on_key_del(self, key: bytes) -> NoReturn:
        """As `on_key_set`."""
        raise by_partition()

    # ---- wiring --------------------------------------------------------------------------------------------------

    def _generation(self, partition: int) -> int | None:
        """The group generation if it gives the partition to us."""
        tp = TP(self.reader.topic, partition)
        return self.app.consumer_generation_id if tp in self.app.assignor.assigned_actives() else None

    def _required_writer(self) -> ChangelogWriter:
        if self.writer is None:
            raise RuntimeError("RowTable.writer must be set before the first claim")
        return self.writer

    def _new_store(self) -> Partitions:
        return Partitions(self._store or self.app.conf.store, self.app, self, table_name=self.name, loop=self.loop)

    @property
    def _partitions(self) -> Partitions:
        return cast("Partitions", self.data)

    @property
    def shelf(self) -> Shelf:
        """Where the stores are: Faust's table folder, below the app's `datadir`."""
        if self._shelf is None:
            folder = Path(self.app.conf.tabledir)
            self._shelf = Shelf(folder, self.name, self._indexer, self._settings, MAX_AGE, self._clock)
        return self._shelf

    @property
    def reader(self) -> ChangelogReader:
        """Of the changelog topic."""
        if self._reader is None:
            self._reader = ChangelogReader(self.changelog_topic.get_topic_name(), connection(self.app.conf))
        return self._reader


def _fits(store: Store, identity: Identity, bounds: Bounds) -> bool:
    """Whether an open store can go on with the changelog as it is now."""
    return store.identity == identity and bounds.begin <= store.offset + 1 <= bounds.end
