"""A shard's rows seen from outside: beside a living owner, after a dead one, and from the log alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from streams.state.changelog import Stretch
from streams.state.fencing import MARKER, MARKER_VALUE, epoch_headers
from streams.state.glimpse import Glimpse, glimpse
from streams.state.identity import Identity
from streams.state.store import Store
from tests.unit.state.rows import ByState

TOPIC, CLUSTER = "t-changelog", "cluster"


@dataclass(frozen=True)
class Record:
    offset: int
    key: bytes
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass
class Log:
    """A changelog in memory; `read_from`: where the last reading began."""

    records: list[Record] = field(default_factory=list)
    topic: str = TOPIC
    read_from: int = -1

    def append(self, key: bytes, value: bytes | None, epoch: int) -> None:
        self.records.append(Record(len(self.records), key, value, epoch_headers(epoch)))

    def mark(self) -> int:
        self.records.append(Record(len(self.records), MARKER, MARKER_VALUE))
        return len(self.records) - 1

    async def identities(self, partitions: Sequence[int]) -> dict[int, Identity]:
        return {partition: Identity(CLUSTER, self.topic, partition) for partition in partitions}

    async def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        return dict.fromkeys(partitions, len(self.records))

    async def read(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> AsyncGenerator[Stretch, None]:
        ((partition, self.read_from),) = starts.items()
        for record in self.records[self.read_from :]:
            yield Stretch(partition, [record], record.offset + 1)


def store_in(state: Path, worker: str = "frontier-1", partition: int = 2, **identity: Any) -> Store:
    path = state / "workers" / worker / "frontier" / "v1" / "tables" / f"rows-{partition}.db"
    path.parent.mkdir(parents=True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    store = Store(Rdict(str(path), options), path, ByState(), lambda: 0)
    store.identity = Identity(**{"cluster": CLUSTER, "topic": TOPIC, "partition": partition, **identity})
    list(store.derive())
    return store


@pytest.fixture
def log() -> Log:
    """Two rows of a first owner, of which a second one has changed one."""
    log = Log()
    first = log.mark()
    log.append(b"a", b"v1", first)
    log.append(b"b", b"v1", first)
    second = log.mark()
    log.append(b"b", b"v2", second)
    log.append(b"a", b"late", first)  # fenced off
    return log


async def look(log: Log, state: Path) -> tuple[dict[bytes, bytes | None], bool]:
    async with glimpse(log, 2, [b"a", b"b", b"c"], state, "rows", ByState()) as seen:  # type: ignore[arg-type] # a double
        assert isinstance(seen, Glimpse)
        return seen.rows, seen.store is not None


NOW = {b"a": b"v1", b"b": b"v2", b"c": None}


async def test_without_a_store_the_whole_log_is_read(log: Log, tmp_path: Path) -> None:
    assert await look(log, tmp_path) == (NOW, False)
    assert log.read_from == 0


@pytest.mark.parametrize("alive", [True, False])
async def test_the_store_and_what_it_lacks(log: Log, tmp_path: Path, alive: bool) -> None:
    """Of an owner that lives the store is locked; one that died left its last batch in RocksDB's own log."""
    store = store_in(tmp_path)
    store.epoch = 0
    store.apply([(b"a", b"v1"), (b"b", b"v1")], 2)
    if not alive:
        store.close()
    assert await look(log, tmp_path) == (NOW, True)
    assert log.read_from == 3
    if alive:
        assert store.get(b"b") == b"v1"
        store.apply([(b"c", b"v1")], 6)  # nothing was taken from its owner
        store.close()


async def test_the_store_that_contains_most_counts(log: Log, tmp_path: Path) -> None:
    for number, offset in ((1, 2), (2, 4), (3, 1)):
        store = store_in(tmp_path, f"frontier-{number}")
        store.epoch = 3 if offset == 4 else 0
        store.apply([(b"a", b"v1"), (b"b", b"v2" if offset == 4 else b"v1")], offset)
        store.close()
    assert await look(log, tmp_path) == (NOW, True)
    assert log.read_from == 5


@pytest.mark.parametrize("identity", [{"cluster": "other"}, {"topic": "other"}, {"schema": 99}])
async def test_a_foreign_store_is_left_alone(log: Log, tmp_path: Path, identity: dict[str, Any]) -> None:
    store = store_in(tmp_path, **identity)
    store.apply([(b"a", b"foreign")], 5)
    store.close()
    assert await look(log, tmp_path) == (NOW, False)


async def test_a_store_that_cannot_be_read_is_no_obstacle(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "workers" / "frontier-1" / "frontier" / "v1" / "tables" / "rows-2.db"
    path.mkdir(parents=True)
    (path / "CURRENT").write_text("nothing")
    assert await look(log, tmp_path) == (NOW, False)
