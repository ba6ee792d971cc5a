"""The frontier's tables beside their changelog: a store holds what its changelog says, compacted or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from aiokafka.errors import KafkaError
from rocksdict import AccessType, Options, Rdict

from streams.frontier.index import FrontierIndexer
from streams.state.fencing import MARKER, NO_EPOCH, epoch_of
from streams.state.fold import LogRecord, fold
from streams.state.store import Store
from streams.topics import CHANGELOG, ROWS
from tests.faults import facts
from tests.faults.lines import Verdict
from tests.faults.service import Service, run_fyke
from tests.faults.workers import Process


def home(process: Process) -> Path:
    """The folder of a frontier worker's tables."""
    (found,) = process.log.parent.glob("workers/frontier-*/frontier")
    return found


def stores(process: Process) -> list[Path]:
    """The stores below it."""
    return sorted(home(process).glob(f"*/tables/{ROWS}-*.db"))


def read(path: Path) -> tuple[int, dict[bytes, bytes]]:
    """Offset and rows of a store, whether its worker runs or not."""
    db = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only())
    with closing(Store.opened(db, path, FrontierIndexer(), lambda: 0)) as store:
        return store.offset, dict(store.every_row())


def changelog(service: Service) -> dict[int, list[LogRecord]]:
    """All of it, by partition; waits for brokers that choose a new leader just now."""
    logs: dict[int, list[Any]] = {}

    def whole() -> bool:
        logs.clear()
        try:
            records = asyncio.run(facts.read(service.bootstrap, service.prefix + CHANGELOG.name))
        except KafkaError:
            return False
        for record in records:
            logs.setdefault(record.partition, []).append(record)
        return True

    service.workers.until(whole, "the changelog can be read")
    return logs


def compact(log: Iterable[LogRecord]) -> list[LogRecord]:
    """What compaction may leave of a log: the newest record of each key, whether it counts or not. Pure."""
    newest = {record.key: record for record in log}
    return sorted(newest.values(), key=lambda record: record.offset)


def stale(logs: Mapping[int, Sequence[LogRecord]]) -> int:
    """Keys whose newest record does not count: its owner has not written its own again yet."""
    return sum(len(fold(log, NO_EPOCH).stale) for log in logs.values())


def late(log: Iterable[LogRecord]) -> int:
    """Records that came after the marker of an owner newer than their writer."""
    highest, found = NO_EPOCH, 0
    for record in log:
        if record.key == MARKER:
            highest = record.offset
        else:
            found += epoch_of(record.headers) < highest
    return found


def differences(held: Mapping[bytes, bytes], log: Sequence[LogRecord]) -> list[str]:
    """Where the rows of a store are not those of its changelog up to its offset, or of what compaction leaves of it."""
    problems = []
    for name, records in (("changelog", log), ("compacted changelog", compact(log))):
        rows = {key: value for key, value in fold(records, NO_EPOCH).rows.items() if value is not None}
        if held != rows:
            other = sum(held.get(key) != value for key, value in rows.items()) + len(held.keys() - rows.keys())
            problems.append(f"{len(held)} rows, of which {other} are not what the {name} says")
    return problems


def unchanged_since(
    offset: int, held: Mapping[bytes, bytes], log: Sequence[LogRecord]
) -> tuple[dict[bytes, bytes], list[LogRecord]]:
    """The rows of a store at `offset`, and the records, of keys that nothing was written of behind it. Pure."""
    written = {record.key for record in log if record.offset > offset} - {MARKER}
    rows = {key: value for key, value in held.items() if key not in written}
    return rows, [record for record in log if record.key not in written]


def agree(service: Service, *, compacted: bool = False) -> Verdict:
    """Every store holds the fold of its changelog up to its offset, and `fyke state check` finds each one sound.

    A store whose partition has moved away stays behind. What it holds of keys that were written since can be judged
    only while the log is whole: once the brokers have `compacted` it, what it said at that offset is gone.
    """
    verdict, rows = Verdict(), 0
    logs = changelog(service)
    for process in service.workers.of("frontier"):
        for path in stores(process):
            offset, held = read(path)
            rows += len(held)
            log = logs.get(int(path.stem.rpartition("-")[2]), [])
            if compacted:
                held, log = unchanged_since(offset, held, log)
            log = [record for record in log if record.offset <= offset]
            verdict.problems += [f"{path}: {problem}" for problem in differences(held, log)]
        said = run_fyke(service.settings, service.folder, "state", "check", str(home(process)), "--json")
        for found in json.loads(said):
            verdict.require(found["sound"], f"fyke state check: {found}")
    verdict.figures["rows compared with the changelog"] = rows
    return verdict
