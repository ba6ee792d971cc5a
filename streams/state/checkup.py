"""A store examined from outside: what is in the folder, what it says of itself, what its changelog says of it.

Nothing is decided here that a start would not decide (`streams.state.shelf`, `streams.state.table`), except about what
no start looks at: whether every row can be read, and whether index and counters are those of the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from rocksdict import AccessType, Options, Rdict

from streams.errors import FykeError, NewerSchemaError
from streams.state.bulk import Bounds
from streams.state.faults import ASIDE
from streams.state.identity import SCHEMA, Identity
from streams.state.manifest import Manifest
from streams.state.store import DAMAGED, Indexer, Store
from streams.topics import HOUR

Effect = Literal["none", "rebuilt", "wrong", "stop"]
"""What a finding leads to: nothing; the next start rebuilds the store by itself; nobody notices; the worker stops."""

REBUILD: Final = "Nothing: the next start rebuilds the store from the changelog by itself."
BY_HAND: Final = "Rebuild it: `fyke state rebuild`."
INCOMPLETE: Final = "Look for a complete store; or go on with what Kafka has: `fyke state rebuild --incomplete`."
_NAMED = 3  # examples of what is wrong
_MASK = (1 << 64) - 1

Read = Callable[[bytes, bytes], object]
"""Decodes a row from its key and value; raises if it cannot."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, what it leads to, and what a person should do."""

    effect: Effect
    text: str
    remedy: str = ""


@dataclass(slots=True)
class Checkup:
    """A store as it was found. `offset`: -1 if it contains nothing or cannot be opened. `touched` in ms, 0: unknown."""

    path: Path
    partition: int
    rows: int = 0
    offset: int = -1
    touched: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether a start takes it as it is, and finds what its rows say."""
        return all(finding.effect == "none" for finding in self.findings)

    def found(self, effect: Effect, text: str, remedy: str = "") -> None:
        """Add a finding."""
        self.findings.append(Finding(effect, text, remedy))


@dataclass(frozen=True, slots=True)
class Known:
    """What the broker says of the changelog: which one it is, and where its partitions begin and end."""

    identities: Mapping[int, Identity]
    bounds: Mapping[int, Bounds]


def partition_of(path: Path) -> int:
    """The partition that a store's folder is named after."""
    return int(path.stem.rpartition("-")[2])


def examine(path: Path, indexer: Indexer, read: Read | None, known: Known | None, *, max_age: int, now: int) -> Checkup:
    """Examine the store at `path`, which is opened for reading only.

    `read`: None where what is in it does not matter; `known`: None where no broker was asked; `max_age` and `now` in
    ms. A store that turns out damaged is marked so that the next start rebuilds it.
    """
    checkup = Checkup(path, partition_of(path))
    _look_at_folder(checkup)
    try:
        store = Store.opened(
            Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only()), path, indexer, lambda: now
        )
    except Exception as error:  # noqa: BLE001 - rocksdict has one exception
        checkup.found("rebuilt", f"it cannot be opened: {error}", REBUILD)
        return checkup
    with closing(store):
        checkup.offset, checkup.touched = store.offset, store.touched
        try:
            _look_at_identity(checkup, store, known)
            _look_at_age(checkup, max_age, now)
            _look_at_position(checkup, store, known)
            if read is not None:
                _look_at_rows(checkup, store, indexer, read)
        except FykeError as error:
            checkup.found("rebuilt", error.problem, REBUILD)
    return checkup


def _look_at_folder(checkup: Checkup) -> None:
    path = checkup.path
    if (path / DAMAGED).exists():
        checkup.found("rebuilt", f"a worker found it damaged: {(path / DAMAGED).read_text()}", REBUILD)
    aside = path.with_name(path.name + ASIDE)
    if aside.exists():
        size = sum(file.stat().st_size for file in aside.iterdir() if file.is_file())
        text = f"an earlier one is kept as {aside.name} ({size / (1 << 20):,.1f} MiB)"
        checkup.found("none", text, "Remove it when nothing is missing.")


def _look_at_identity(checkup: Checkup, store: Store, known: Known | None) -> None:
    if store.schema > SCHEMA:
        text = f"it has schema {store.schema}, this release reads up to {SCHEMA}"
        checkup.found("stop", text, "Upgrade Fyke, or remove the folder and it is rebuilt.")
        return
    found = store.identity
    if Manifest(checkup.path).length() < store.noted:
        checkup.found("rebuilt", "its MANIFEST is shorter than it was: it does not know all of its files", REBUILD)
    if found is None:
        checkup.found("rebuilt", "it does not say what it belongs to", REBUILD)
        return
    if found.partition != checkup.partition:
        checkup.found("rebuilt", f"it is the store of shard {found.partition}, copied or renamed", REBUILD)
    elif known is not None:
        _look_at_owner(checkup, found, known.identities.get(checkup.partition))


def _look_at_owner(checkup: Checkup, found: Identity, expected: Identity | None) -> None:
    if expected is None:
        text = f"the changelog has no partition {checkup.partition}"
        checkup.found("none", text, "Remove the folder: no worker will open it.")
    elif found.recreated(expected) and checkup.offset >= 0:
        checkup.found("stop", "its changelog topic was deleted and made again since it was written", INCOMPLETE)
    elif found.cluster != expected.cluster:
        checkup.found("rebuilt", f"it belongs to cluster {found.cluster}, this one is {expected.cluster}", REBUILD)
    elif found != expected:
        checkup.found("rebuilt", f"it belongs to {found.topic}, not to {expected.topic}", REBUILD)


def _look_at_age(checkup: Checkup, max_age: int, now: int) -> None:
    age = now - checkup.touched
    if age > max_age:
        text = f"it was last up to date {age // HOUR:,} h ago: the changelog may have forgotten deletes since"
        checkup.found("rebuilt", text, REBUILD)


def _look_at_position(checkup: Checkup, store: Store, known: Known | None) -> None:
    if known is None or checkup.partition not in known.bounds:
        return
    bounds = known.bounds[checkup.partition]
    if store.offset + 1 < bounds.begin:
        text = (
            f"it contains offset {store.offset:,}, its changelog begins at {bounds.begin:,}: records were deleted "
            "otherwise than by compaction"
        )
        checkup.found("stop", text, INCOMPLETE)
    elif store.offset >= bounds.end:
        text = f"it contains offset {store.offset:,}, its changelog ends before {bounds.end:,}"
        checkup.found("rebuilt", text, REBUILD + " What brokers lost is lost; see docs/state.md.")
    elif behind := bounds.end - 1 - store.offset:
        checkup.found("none", f"the next start reads {behind:,} records of the changelog")
    if bounds.begin and store.offset + 1 >= bounds.begin:
        text = f"its changelog begins at {bounds.begin:,}: without this store, rows would be missing"
        checkup.found("none", text, "Keep it. Set the topic's cleanup.policy to compact: `fyke topics apply`.")


def _look_at_rows(checkup: Checkup, store: Store, indexer: Indexer, read: Read) -> None:
    """Read everything that is there: each block is held to its checksum, each row decoded, index and counters added up.

    Entries are compared by number and the sum of their hashes, so that a store of any size fits into memory.
    """
    counters: Counter[bytes] = Counter()
    expected, unreadable = Digest(), []
    for key, value in store.every_row():
        checkup.rows += 1
        try:
            read(key, value)
            expected.add(indexer.entries(key, value))
            for name, number in indexer.counters(key, value):
                counters[name] += number
        except NewerSchemaError as error:
            checkup.found("stop", error.problem, error.remedy)
            return
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises, the row is unreadable
            unreadable.append(f"{key.hex()}: {error}")
    if unreadable:
        text = f"{len(unreadable):,} rows cannot be read: {'; '.join(unreadable[:_NAMED])}"
        checkup.found("wrong", text, BY_HAND)
        return
    if not store.derived:
        checkup.found("none", "index and counters are not made yet: the next start makes them from the rows")
        return
    entries = Digest()
    entries.add(store.every_entry())
    if entries != expected:
        text = f"the index does not follow from the rows: {entries.number:,} entries, {expected.number:,} expected"
        checkup.found("wrong", text, BY_HAND)
    _compare_counters(checkup, store.counters(), {name: number for name, number in counters.items() if number})


def _compare_counters(checkup: Checkup, found: Mapping[bytes, int], expected: Mapping[bytes, int]) -> None:
    wrong = [name for name in sorted(found.keys() | expected.keys()) if found.get(name) != expected.get(name)]
    if wrong:
        examples = "; ".join(
            f"{name.decode(errors='replace').replace(chr(0), ' ')} is {found.get(name, 0):,}, "
            f"rows say {expected.get(name, 0):,}"
            for name in wrong[:_NAMED]
        )
        checkup.found("wrong", f"{len(wrong):,} counters do not follow from the rows: {examples}", BY_HAND)


@dataclass(slots=True)
class Digest:
    """A set of entries whatever their order: their number, and the sum of their hashes."""

    number: int = 0
    total: int = 0

    def add(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Add entries."""
        for entry in entries:
            self.number += 1
            self.total = (self.total + hash(entry)) & _MASK
