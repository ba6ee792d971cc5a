"""Recovery between two rebalances."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from faust.tables.recovery import RebalanceAgain
from faust.types import TP

from streams.errors import OwnershipLost
from streams.state.recovery import RowRecovery

TOPIC = "rows-changelog"


class Table:
    """Its stores are closed in the middle of recovery, or not."""

    changelog_topic = SimpleNamespace(get_topic_name=lambda: TOPIC)

    def __init__(self, *, closed: bool) -> None:
        self._closed = closed

    async def recover(self, partitions: list[int]) -> dict[int, int]:
        if self._closed:
            raise OwnershipLost("the partition's store is closed")
        return dict.fromkeys(partitions, 7)


def recovery(table: Table) -> Any:
    found: Any = object.__new__(RowRecovery)
    found.tables, found.active_highwaters = {"rows": table}, Counter()
    return found


async def test_a_partition_that_moves_while_it_is_recovered_ends_nothing_but_this_recovery() -> None:
    with pytest.raises(RebalanceAgain):  # Faust then waits for the next assignment
        await recovery(Table(closed=True))._build_offsets(None, {TP(TOPIC, 0)}, Counter(), "active")


async def test_what_was_recovered_is_all_that_faust_asks_for() -> None:
    ours, offsets = recovery(Table(closed=False)), Counter[TP]()
    await ours._build_offsets(None, {TP(TOPIC, 0), TP("other", 1)}, offsets, "active")
    assert offsets == ours.active_highwaters == {TP(TOPIC, 0): 7}
