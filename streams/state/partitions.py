"""The stores that a worker has open, as Faust's store of a table: Faust says when partitions come and go."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NoReturn

from faust.stores.base import Store as FaustStore
from faust.types import TP, EventT

from streams.errors import FykeError, OwnershipLost
from streams.state.ledger import Ledger

log = logging.getLogger(__name__)


class Partitions(FaustStore[bytes, bytes]):
    """Ledgers by partition. Recovery opens them; a revoked partition's is closed for real, so that its lock is free."""

    def __post_init__(self) -> None:
        self._ledgers: dict[int, Ledger] = {}

    def ledger(self, partition: int) -> Ledger:
        """Raises `OwnershipLost` if the partition is not open here."""
        try:
            return self._ledgers[partition]
        except KeyError:
            raise OwnershipLost(f"partition {partition} of {self.table_name} is not here") from None

    def get_open(self, partition: int) -> Ledger | None:
        """The partition's ledger if it is open."""
        return self._ledgers.get(partition)

    def open_ledgers(self) -> list[Ledger]:
        """All that are open."""
        return list(self._ledgers.values())

    def put_ledger(self, partition: int, ledger: Ledger) -> None:
        """Add the ledger of a partition that was not open."""
        self._ledgers[partition] = ledger

    def close(self, partitions: Iterable[int]) -> None:
        """Close stores; those that are not open are left alone."""
        for partition in partitions:
            ledger = self._ledgers.pop(partition, None)
            if ledger is not None:
                try:
                    ledger.store.touch()
                except FykeError as error:  # a full disk: it is older by what was not noted
                    log.warning("%s", error)
                finally:
                    ledger.store.close()

    # ---- what Faust calls ----------------------------------------------------------------------------------------

    def persisted_offset(self, tp: TP) -> int | None:
        """The last changelog offset that an open store contains."""
        ledger = self._ledgers.get(tp.partition)
        return ledger.store.offset if ledger is not None else None

    def set_persisted_offset(self, tp: TP, offset: int) -> None:
        """The offset is written with the rows, never alone."""
        raise by_partition()

    async def on_rebalance(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int = 0
    ) -> None:
        """Close what went away; what came is opened by recovery."""
        topic = self.table.changelog_topic.get_topic_name()
        self.close(tp.partition for tp in revoked if tp.topic == topic)

    async def on_stop(self) -> None:
        """Close all."""
        self.close(list(self._ledgers))

    def apply_changelog_batch(self, batch: Iterable[EventT[Any]], to_key: Any, to_value: Any) -> None:
        """Faust flushes its buffers, which are always empty: our recovery leaves its own nothing to read."""
        if any(True for _ in batch):
            raise by_partition()

    def reset_state(self) -> None:
        """Remove nothing: `fyke clean` removes folders."""
        raise by_partition()

    async def backup_partition(self, tp: TP | int, flush: bool = True, purge: bool = False, keep: int = 1) -> None:
        """The changelog is the backup."""
        raise by_partition()

    def restore_backup(self, tp: TP | int, latest: bool = True, backup_id: int = 0) -> None:
        """The changelog is the backup."""
        raise by_partition()

    def __getitem__(self, key: bytes) -> NoReturn:
        raise by_partition()

    def __setitem__(self, key: bytes, value: bytes) -> None:
        raise by_partition()

    def __delitem__(self, key: bytes) -> None:
        raise by_partition()

    def __contains__(self, key: object) -> bool:
        raise by_partition()

    def __iter__(self) -> NoReturn:
        raise by_partition()

    def __len__(self) -> int:
        return len(self._ledgers)


def by_partition() -> TypeError:
    """What using the table like a dictionary raises."""
    return TypeError("this table is addressed by partition: store(partition), put_many(partition, items)")
