"""Faust's table recovery, replaced where it reads: in bulk, by position, without a time limit.

Give the app `Table=RowTable, TableManager=RowTables`. Stock recovery then finds offset and high water equal and goes on
to seek and resume the streams; it never reads a changelog record itself (it takes 72 µs a record, and never ends when
a partition's last record is not data).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from faust.tables.manager import TableManager
from faust.tables.recovery import RebalanceAgain, Recovery
from faust.types import TP

from streams.errors import OwnershipLost, SettingsError
from streams.state.table import RowTable


class RowRecovery(Recovery):
    """Builds on private names of faust-streaming 0.15.3, which is pinned."""

    async def _wait(self, coro: Any, timeout: Any = None) -> None:  # noqa: ASYNC109 - the signature is Faust's
        """Without Faust's limit of `broker_request_timeout`: how long recovery takes depends on the table's size."""
        await super()._wait(coro, None)

    async def _build_highwaters(self, consumer: Any, tps: set[TP], destination: Counter[TP], title: str) -> None:
        """Known only after reading: see `_build_offsets`."""
        destination.clear()

    async def _build_offsets(self, consumer: Any, tps: set[TP], destination: Counter[TP], title: str) -> None:
        """Read the changelogs; then what Faust has and what it needs are the same."""
        for table in self.tables.values():
            topic = table.changelog_topic.get_topic_name()
            partitions = [tp.partition for tp in tps if tp.topic == topic]
            if partitions:
                for partition, offset in (await self._recover(table, partitions)).items():
                    destination[TP(topic, partition)] = self.active_highwaters[TP(topic, partition)] = offset

    @staticmethod
    async def _recover(table: RowTable, partitions: list[int]) -> dict[int, int]:
        """Recover a table. A store that is closed meanwhile means that its partition has moved: begin again then."""
        try:
            return await table.recover(partitions)
        except OwnershipLost as error:
            raise RebalanceAgain from error


class RowTables(TableManager):
    """Faust's table manager with our recovery."""

    async def on_start(self) -> None:
        """Refuse what is not supported."""
        if self.app.conf.table_standby_replicas:
            raise SettingsError("table_standby_replicas must be 0", "Standbys starve the streams of a worker.")
        await super().on_start()

    def add(self, table: Any) -> Any:
        """Register a table; only `RowTable`s."""
        if not isinstance(table, RowTable):
            raise TypeError(f"{table.name}: the app's tables are RowTables")
        return super().add(table)

    @property
    def recovery(self) -> RowRecovery:
        """The recovery service."""
        if self._recovery is None:
            self._recovery = RowRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return cast("RowRecovery", self._recovery)
