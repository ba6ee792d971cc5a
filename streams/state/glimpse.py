"""Rows of a shard seen from outside, whether its owner runs or not: from its store on this machine, or its changelog.

A store is opened read-only, so a lock that somebody holds or left behind is no obstacle, and nothing is changed. What
it lacks is read from the changelog behind its offset; without a store, the whole changelog is read. The fence holds for
that reading as for recovery.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocksdict import AccessType, Options, Rdict

from streams.errors import FykeError
from streams.state.changelog import ChangelogReader
from streams.state.fencing import MARKER, NO_EPOCH
from streams.state.fold import fold
from streams.state.identity import SCHEMA, Identity
from streams.state.store import Indexer, Store

log = logging.getLogger(__name__)

STORES: Final = "workers/frontier-*/frontier/*/tables/{table}-{partition}.db"
"""Below the state folder: where workers keep the stores of a partition (`agents.cli.places`, `streams.state.shelf`)."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """Rows by key (None: absent). `store`: open for reading, for its index; None: there is none on this machine."""

    rows: dict[bytes, bytes | None]
    store: Store | None


def stores(state: Path, table: str, indexer: Indexer) -> Iterator[Store]:
    """All stores of a table below a state folder, by their paths: each is open, read-only, while it is looked at.

    One that cannot be opened now, since its owner is changing its files, is left out.
    """
    for path in sorted(state.glob(STORES.format(table=table, partition="*"))):
        store = _open(path, indexer)
        if store is not None:
            with closing(store):
                yield store


@asynccontextmanager
async def glimpse(
    reader: ChangelogReader, partition: int, keys: Sequence[bytes], state: Path, table: str, indexer: Indexer
) -> AsyncIterator[Glimpse]:
    """The rows with these keys as of now; the store is closed with the block."""
    identities = await reader.identities([partition])
    store = _newest(state, identities[partition], table, indexer)
    try:
        rows = dict(zip(keys, store.get_many(keys), strict=True)) if store is not None else dict.fromkeys(keys)
        epoch, start = (store.epoch, store.offset + 1) if store is not None else (NO_EPOCH, 0)
        wanted = {*keys, MARKER}
        ends = await reader.ends([partition])
        async with aclosing(reader.read({partition: start}, ends)) as stretches:
            async for _, records, _ in stretches:
                folded = fold((record for record in records if record.key in wanted), epoch)
                epoch = folded.epoch
                rows |= folded.rows
        yield Glimpse(rows, store)
    finally:
        if store is not None:
            store.close()


def _newest(state: Path, identity: Identity, table: str, indexer: Indexer) -> Store | None:
    """Of the stores of a partition the one that contains most; workers that owned it before may have left others."""
    newest: Store | None = None
    for path in state.glob(STORES.format(table=table, partition=identity.partition)):
        store = _open(path, indexer)
        if store is None:
            continue
        known = store.schema <= SCHEMA and store.identity == identity and store.derived
        if known and (newest is None or store.offset > newest.offset):
            store, newest = newest, store
        if store is not None:
            store.close()
    return newest


def _open(path: Path, indexer: Indexer) -> Store | None:
    """A store that is only read; None if it cannot be: its owner may be in the middle of a change of files."""
    try:
        return Store.opened(
            Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only()), path, indexer, _now
        )
    except FykeError:
        raise
    except Exception as error:  # noqa: BLE001 - rocksdict has one exception; the changelog says the same
        log.info("%s cannot be read: %s", path, error)
        return None


def _now() -> int:
    return time.time_ns() // 1_000_000
