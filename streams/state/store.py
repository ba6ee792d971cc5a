"""One partition's rows with their index and counters: one RocksDB, changed by one atomic batch at a time.

Only rows come from the changelog. Index entries and counters are *derived*: for every changed row the old value's
contribution is taken away and the new one's added, in the WriteBatch that changes the row and moves the changelog
offset. So they can neither drift nor be half there, whoever writes the row: the owner or recovery.

A store that is filled from nothing, or whose index was made by another version of the indexer, is *underived*: rows
come alone, and `derive` then makes index and counters in one pass. That reads a changelog with several versions of
each row more than twice as fast. The store itself remembers that it is underived until the pass is complete.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any, NoReturn, Protocol, cast

from rocksdict import Rdict, ReadOptions, WriteBatch

from streams.errors import DamagedError, OwnershipLost
from streams.state.faults import removed, unusable
from streams.state.fencing import NO_EPOCH
from streams.state.fold import Folded
from streams.state.identity import Identity
from streams.state.manifest import Manifest, unpack

log = logging.getLogger(__name__)

DAMAGED = "DAMAGED"
"""Name of the file that tells the next start that reading found this store damaged."""

_ROW, _INDEX, _COUNTER, _STALE = b"r", b"i", b"c", b"s"
_IDENTITY, _POSITION, _DERIVED, _MANIFEST = b"midentity", b"mposition", b"mderived", b"mmanifest"
_NUMBER = Struct(">q")
_PLACE = Struct(">qqq")  # offset, epoch, time in ms
_REMEMBERED = 20_000  # rows; a turn reads fewer
_STEP = 5_000  # rows derived at once: some 50 ms in which the loop does nothing else


class Indexer(Protocol):
    """Derives index entries and counters from a row. Pure, and equal for equal rows; the frontier brings it."""

    @property
    def version(self) -> int:
        """Raised whenever `entries` or `counters` change: what another version derived is made anew."""
        ...

    def entries(self, key: bytes, value: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Index entries (key, value) of a row. An entry's key belongs to one row: let it end in the row's key."""
        ...

    def counters(self, key: bytes, value: bytes) -> Iterable[tuple[bytes, int]]:
        """What a row adds to which counters."""
        ...


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that a store takes, and its `rows` as RocksDB estimates them.

    `disk`: all files; `memtables`: rows not in files yet; `cache`: blocks in the cache that all stores of a worker
    share; `tables`: indexes and filters outside of that cache; `behind`: what compaction has yet to rewrite.
    """

    rows: int
    disk: int
    memtables: int
    cache: int
    tables: int
    behind: int


class _Closed:
    """In the place of the database of a closed store: its partition is no longer here."""

    def __getattr__(self, name: str) -> NoReturn:
        raise OwnershipLost("the partition's store is closed")


class Store:
    """An open store. Opened by `streams.state.shelf`, filled by `streams.state.ledger`; callers read.

    `offset`: of the last changelog record it contains (-1: none); `epoch`: highest marker up to there; `stale`: keys
    that the owner has to write again; `derived`: index and counters are those of the rows; `noted`: how long its
    MANIFEST was at the last write before it was opened. `clock`: ms since 1970.
    """

    def __init__(self, db: Rdict, path: Path, indexer: Indexer, clock: Callable[[], int]) -> None:
        self.path = path
        self._db: Any = db
        self._indexer = indexer
        self._clock = clock
        self._manifest = Manifest(path)
        place, version, length = self._get([_POSITION, _DERIVED, _MANIFEST])
        self.noted = unpack(length)
        self.offset, self.epoch, self.touched = _PLACE.unpack(place) if place else (-1, NO_EPOCH, clock())
        self._read: dict[bytes, bytes | None] = {}  # since the last write: what is written next was mostly read before
        self.stale = {key for key, _ in self._scan(_STALE)}
        self.derived = version == self._version()

    @classmethod
    def opened(cls, db: Rdict, path: Path, indexer: Indexer, clock: Callable[[], int]) -> Store:
        """The store in an open database, which is closed if it cannot be read, so that its lock is free."""
        try:
            return cls(db, path, indexer, clock)
        except BaseException:
            db.close()
            raise

    # ---- reading -------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """A row's value, or None."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows' values in the order of `keys`, None where there is no row."""
        found = self._get([_ROW + key for key in keys])
        if len(self._read) > _REMEMBERED:
            self._read.clear()
        self._read.update(zip(keys, found, strict=True))
        return found

    def scan(self, prefix: bytes, *, after: bytes = b"", limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` index entries with `prefix`, by key; with `after`, those whose key comes strictly after it."""
        return list(self._scan(_INDEX, prefix, after, limit))

    def leap(self, prefix: bytes, behind: Callable[[bytes], bytes]) -> Iterator[bytes]:
        """Keys of the index with `prefix`, in order, leaping from one group of them to the next.

        The first one; then each time the first one after `behind` of the last, a key after all of its group. Much
        faster than a scan for each group: it seeks in one view of the store, the one of its begin.
        """
        low = _INDEX + prefix
        bounds = _within(low)
        at = self._db.iter(bounds)
        at.seek(low)
        while at.valid():
            key = at.key()[1:]
            yield key
            at.seek(_INDEX + behind(key))
        self._finish(at)

    def rows(self, prefix: bytes = b"", *, after: bytes = b"", limit: int = 1000) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows whose key has `prefix`, by key; `after` as in `scan`."""
        return list(self._scan(_ROW, prefix, after, limit))

    def every_row(self) -> Iterator[tuple[bytes, bytes]]:
        """All rows by key, for whoever looks at the whole store."""
        return self._scan(_ROW)

    def every_entry(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries of the index by key."""
        return self._scan(_INDEX)

    def counters(self, prefix: bytes = b"") -> dict[bytes, int]:
        """The counters whose name has `prefix`; a counter that is 0 is absent."""
        return {name: _NUMBER.unpack(value)[0] for name, value in self._scan(_COUNTER, prefix)}

    def sizes(self) -> Sizes:
        """What the store takes now; looks at its folder, so it is for metrics."""
        return Sizes(
            rows=self._number("estimate-num-keys"),
            disk=sum(file.stat().st_size for file in self.path.iterdir() if file.is_file()),
            memtables=self._number("cur-size-all-mem-tables"),
            cache=self._number("block-cache-usage"),
            tables=self._number("estimate-table-readers-mem"),
            behind=self._number("estimate-pending-compaction-bytes"),
        )

    # ---- writing -------------------------------------------------------------------------------------------------

    def apply(self, items: Sequence[tuple[bytes, bytes | None]], offset: int) -> None:
        """Put (or with None delete) rows; the changelog is contained up to `offset` then. Atomic."""
        self.absorb(Folded(self.epoch, dict(items)), offset)

    def absorb(self, folded: Folded, offset: int) -> None:
        """Apply a folded stretch of the changelog that ends at `offset`. Atomic."""
        batch = WriteBatch(raw_mode=True)
        if self.derived:
            self._change_rows(batch, folded.rows)
        else:
            _put_rows(batch, folded.rows)
        stale = (self.stale - folded.rows.keys()) | folded.stale
        for key in stale - self.stale:
            batch.put(_STALE + key, b"")
        for key in self.stale - stale:
            batch.delete(_STALE + key)
        now = self._clock()
        batch.put(_POSITION, _PLACE.pack(offset, folded.epoch, now))
        self._read.clear()
        self._write(batch)
        self.offset, self.epoch, self.touched, self.stale = offset, folded.epoch, now, stale

    def derive(self) -> Iterator[int]:
        """Make index and counters from the rows, in steps of so many rows; nothing may be written before the last.

        Interrupted, it begins anew. Nothing to do in a store that is derived.
        """
        if self.derived:
            return
        self._db.delete_range(_INDEX, _successor(_INDEX))
        self._db.delete_range(_COUNTER, _successor(_COUNTER))
        totals: dict[bytes, int] = {}
        rows = self._scan(_ROW)
        while chunk := list(islice(rows, _STEP)):
            batch = WriteBatch(raw_mode=True)
            for key, value in chunk:
                for entry, content in self._indexer.entries(key, value):
                    batch.put(_INDEX + entry, content)
                for name, number in self._indexer.counters(key, value):
                    totals[name] = totals.get(name, 0) + number
            self._write(batch)
            yield len(chunk)
        batch = WriteBatch(raw_mode=True)
        for name, number in totals.items():
            if number:
                batch.put(_COUNTER + name, _NUMBER.pack(number))
        batch.put(_DERIVED, self._version())
        self._write(batch)
        self.derived = True

    def touch(self) -> None:
        """Note that the store is up to date now."""
        now = self._clock()
        batch = WriteBatch(raw_mode=True)
        batch.put(_POSITION, _PLACE.pack(self.offset, self.epoch, now))
        self._write(batch)
        self.touched = now

    def begin_at(self, offset: int) -> None:
        """Say of an empty store that it contains the changelog up to `offset`: what was there is gone for good."""
        self.offset = offset
        self.touch()

    def close(self) -> None:
        """Release the folder's lock. Whoever still holds the store then gets `OwnershipLost`."""
        db, self._db = self._db, _Closed()
        try:
            db.close()
        except Exception as error:  # noqa: BLE001 - a full disk: what it could not write is in the changelog
            log.warning("%s was not closed cleanly: %s", self.path, error)

    # ---- identity ------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity | None:
        """None: never written, or not readable by this release."""
        (raw,) = self._get([_IDENTITY])
        try:
            return Identity(**json.loads(raw)) if raw else None
        except (ValueError, TypeError):
            return None

    @identity.setter
    def identity(self, identity: Identity) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.put(_IDENTITY, json.dumps(asdict(identity)).encode())
        self._write(batch)

    @property
    def schema(self) -> int:
        """The layout's number; readable whatever else a newer release wrote. 0: none."""
        try:
            return int(json.loads(self._get([_IDENTITY])[0] or b"{}").get("schema", 0))
        except (ValueError, TypeError, AttributeError):
            return 0

    # ---- inside --------------------------------------------------------------------------------------------------

    def _number(self, name: str) -> int:
        return int(self._db.property_int_value("rocksdb." + name) or 0)

    def _version(self) -> bytes:
        return str(self._indexer.version).encode()

    def _change_rows(self, batch: WriteBatch, rows: Mapping[bytes, bytes | None]) -> None:
        keys = list(rows)
        deltas: dict[bytes, int] = {}
        for key, old in zip(keys, self._old(keys), strict=True):
            new = rows[key]
            if new != old:
                self._change_derived(batch, deltas, key, old, new)
        _put_rows(batch, rows)
        self._change_counters(batch, deltas)

    def _old(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows' values before a write: those the owner has read since the last one are not read again."""
        unread = [key for key in keys if key not in self._read]
        self._read.update(zip(unread, self._get([_ROW + key for key in unread]), strict=True))
        return [self._read[key] for key in keys]

    def _change_derived(
        self, batch: WriteBatch, deltas: dict[bytes, int], key: bytes, old: bytes | None, new: bytes | None
    ) -> None:
        before: dict[bytes, bytes] = {}
        if old is not None:  # all of one value, then all of the other: an indexer may keep the last row it decoded
            before = dict(self._indexer.entries(key, old))
            for name, number in self._indexer.counters(key, old):
                deltas[name] = deltas.get(name, 0) - number
        if new is not None:
            for entry, value in self._indexer.entries(key, new):
                if before.pop(entry, None) != value:
                    batch.put(_INDEX + entry, value)
            for name, number in self._indexer.counters(key, new):
                deltas[name] = deltas.get(name, 0) + number
        for entry in before:
            batch.delete(_INDEX + entry)

    def _change_counters(self, batch: WriteBatch, deltas: Mapping[bytes, int]) -> None:
        names = [_COUNTER + name for name, delta in deltas.items() if delta]
        for name, old in zip(names, self._get(names), strict=True):
            number = (_NUMBER.unpack(old)[0] if old else 0) + deltas[name[1:]]
            if number:
                batch.put(name, _NUMBER.pack(number))
            else:
                batch.delete(name)

    def _scan(
        self, space: bytes, prefix: bytes = b"", after: bytes = b"", limit: int = -1
    ) -> Iterator[tuple[bytes, bytes]]:
        low = space + prefix
        bounds = _within(low)
        at = self._db.iter(bounds)  # not `items()`: at a damaged block that ends like at the last entry
        at.seek(max(low, space + after + b"\0") if after else low)
        while limit and at.valid():
            yield at.key()[1:], at.value()
            limit -= 1
            at.next()
        self._finish(at)

    def _finish(self, at: Any) -> None:
        try:
            at.status()
        except Exception as error:
            self._examine(error)
            raise

    def _get(self, keys: list[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        try:
            return cast("list[bytes | None]", self._db.get(keys))
        except Exception as error:
            self._examine(error)
            raise

    def _write(self, batch: WriteBatch) -> None:
        batch.put(_MANIFEST, self._manifest.length().pack())
        try:
            self._db.write(batch)
        except Exception as error:
            self._examine(error)
            raise

    def _examine(self, error: Exception) -> None:
        """Raise what a person can mend: rocksdict has one exception for all, and says more only in its text.

        A store that turns out damaged is marked, so that the next start rebuilds it.
        """
        problem = str(error)
        if "Corruption" in problem:
            with suppress(OSError):  # a full disk: the next start meets the damage again
                (self.path / DAMAGED).write_text(problem)
            remedy = "Start the worker again: it rebuilds the store from the changelog."
            raise DamagedError(f"{self.path} is damaged: {problem}", remedy) from error
        if not (self.path / "CURRENT").exists():
            raise removed(self.path) from error
        if "IO error" in problem:
            raise unusable(self.path, problem) from error


def _put_rows(batch: WriteBatch, rows: Mapping[bytes, bytes | None]) -> None:
    for key, value in rows.items():
        if value is None:
            batch.delete(_ROW + key)
        else:
            batch.put(_ROW + key, value)


def _within(low: bytes) -> ReadOptions:
    """Options of an iterator that never walks into another space, nor its deleted entries.

    Keep them as long as the iterator: it reads its bound from their memory.
    """
    options = ReadOptions()
    options.set_iterate_upper_bound(_successor(low))
    return options


def _successor(prefix: bytes) -> bytes:
    """The first key after all keys with `prefix` (which begins with a space's letter, so there is one)."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])
