"""The folder with a worker's stores: opens what can be trusted, sets aside what cannot. Never silently empty.

A store is a copy of its changelog, so anything doubtful about it has one remedy: it is moved aside, said why, and
rebuilt. Two things stop the worker instead, since the store may know more than its changelog: a store of a newer
release, and one whose changelog was deleted and made again.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from rocksdict import BlockBasedIndexType, BlockBasedOptions, Cache, DBCompressionType, Options, Rdict

from streams.errors import DamagedError, EnvironmentFault, FykeError, StateError
from streams.settings import Frontier, MiB
from streams.state.faults import ASIDE, recreated, unusable
from streams.state.identity import SCHEMA, Identity
from streams.state.manifest import Length, Manifest
from streams.state.store import DAMAGED, Indexer, Store
from streams.topics import HOUR

log = logging.getLogger(__name__)

_BLOOM_BITS = 10  # a key: 1 % false positives, so that a new URL costs no read
_BLOCK = 2048
"""Bytes of a block before compression. Reading one of millions of rows costs the decompression of its block: with lz4
and small blocks half of what zstd and 4 KiB cost, for a third more disk."""
_METADATA_BLOCK = 4096
"""Bytes of a piece of an index or filter. In one piece they are larger than a shard of the cache (its capacity / 64):
it could not keep them and every read would load them again, at 10^6 rows at thirty times the cost."""
_MEMTABLE_BLOOM = 0.02  # of its bytes: some 30 bits a key
_OPEN_FILES = 512
_LOCK_TRIES, _LOCK_PAUSE = 20, 0.5  # a predecessor that is just stopping holds the lock for some seconds
_DAMAGE = ("Corruption", "No such file", "Invalid argument")


class Shelf:
    """Opens the stores of one table.

    `folder` and `name` give `folder/name-PARTITION.db`; `max_age` in ms: a store that was not touched for longer is
    rebuilt, because the changelog may have forgotten deletes that it has not seen; `clock` in ms since 1970.
    All stores share one block cache.
    """

    def __init__(
        self, folder: Path, name: str, indexer: Indexer, settings: Frontier, max_age: int, clock: Callable[[], int]
    ) -> None:
        self._folder = folder
        self._name = name
        self._indexer = indexer
        self._settings = settings
        self._cache = Cache(settings.cache)
        self._max_age = max_age
        self._clock = clock

    def path(self, partition: int) -> Path:
        """Where the store of `partition` is (Faust's own layout)."""
        return self._folder / f"{self._name}-{partition}.db"

    async def open(self, cluster: str, topic: str, partition: int, topic_id: str = "") -> Store:
        """The store of a partition: as it was left if it can be trusted, else a new, empty one (offset -1).

        Raises `StateError` for a store of a newer release, or of a changelog that was deleted and made again;
        `EnvironmentFault` where the folder cannot be used.
        """
        identity = Identity(cluster, topic, partition, topic_id=topic_id)
        path = self.path(partition)
        if (path / DAMAGED).exists():
            self.set_aside(partition, f"it is damaged: {(path / DAMAGED).read_text()}")
        if path.exists():
            try:
                store = await self._open(path)
            except DamagedError as error:
                self.set_aside(partition, error.problem)
            else:
                doubt = self._examine(store, identity)
                if not doubt:
                    return store
                self.set_aside(partition, doubt)
        return await self.create(identity)

    def set_aside(self, partition: int, reason: str) -> None:
        """Move a closed store out of the way; the one set aside before it is removed."""
        path = self.path(partition)
        aside = path.with_name(path.name + ASIDE)
        try:
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        except OSError as error:
            raise unusable(path, str(error)) from error
        log.warning("%s is rebuilt from the changelog: %s (kept as %s)", path, reason, aside.name)

    async def create(self, identity: Identity) -> Store:
        """A new, empty store, where there is none."""
        path = self.path(identity.partition)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unusable(path, str(error)) from error
        store = await self._open(path)
        store.identity = identity
        return store

    def _examine(self, store: Store, identity: Identity) -> str:
        """Why a store that was opened cannot be used; empty if it can. It is closed unless it can."""
        doubt = "unreadable"
        try:
            doubt = self._doubt(store, identity)
        except DamagedError as error:
            doubt = error.problem
        finally:
            if doubt:
                store.close()
        return doubt

    def _doubt(self, store: Store, identity: Identity) -> str:
        if (schema := store.schema) > SCHEMA:
            raise StateError(
                f"{store.path} has schema {schema}, this release reads up to {SCHEMA}",
                "A newer release wrote it: upgrade this worker, or remove the folder and it is rebuilt.",
            )
        found = store.identity
        if found is None:
            return "it does not say what it belongs to"
        if found.recreated(identity) and store.offset >= 0:
            raise recreated(store.path, store.sizes().rows)
        if found != identity:
            return f"it belongs to {found}, not to {identity}"
        age = self._clock() - store.touched
        if age > self._max_age:
            return f"it was last up to date {age // HOUR} h ago: the changelog may have forgotten deletes since"
        return ""

    async def _open(self, path: Path) -> Store:
        """Open or create; raises `DamagedError` if what is there is damaged."""
        for _ in range(_LOCK_TRIES):
            length = Manifest(path).length()  # before: opening begins another one
            options = self._options()
            try:
                # Named as the family's options, too: else a store that exists is opened with those it was last opened
                # with, and with a cache of its own, which is not among what a store remembers.
                db = Rdict(str(path), options, {"default": options})
                return _checked(Store.opened(db, path, self._indexer, self._clock), length)
            except FykeError:
                raise
            except Exception as error:  # rocksdict has one exception, and says more only in its text
                problem = str(error)
                if any(word in problem for word in _DAMAGE):
                    raise DamagedError(f"it is damaged: {problem}") from error
                if "lock hold" not in problem and "While lock file" not in problem:
                    raise unusable(path, problem) from error
            await asyncio.sleep(_LOCK_PAUSE)
        raise EnvironmentFault(f"{path} is used by another process", "Stop it, or give this worker its own --state.")

    def _options(self) -> Options:
        blocks = BlockBasedOptions()
        blocks.set_block_cache(self._cache)
        blocks.set_bloom_filter(_BLOOM_BITS, block_based=False)
        blocks.set_cache_index_and_filter_blocks(v=True)  # else they are memory beyond every budget
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(v=True)
        blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
        blocks.set_partition_filters(True)
        blocks.set_metadata_block_size(_METADATA_BLOCK)
        blocks.set_pin_top_level_index_and_filter(v=True)
        blocks.set_block_size(_BLOCK)
        blocks.set_format_version(5)
        options = Options(raw_mode=True)
        options.create_if_missing(create_if_missing=True)
        options.set_block_based_table_factory(blocks)
        options.set_write_buffer_size(self._settings.write_buffer)
        options.set_max_write_buffer_number(2)
        options.set_target_file_size_base(32 * MiB)
        options.set_level_compaction_dynamic_level_bytes(v=True)
        # Most keys that are asked for are not among the newest rows, and walking a list to see it costs more than this.
        options.set_memtable_whole_key_filtering(whole_key_filter=True)
        options.set_memtable_prefix_bloom_ratio(_MEMTABLE_BLOOM)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_max_open_files(_OPEN_FILES)
        options.set_max_background_jobs(2)
        # The index is a queue: its front is deleted entries, which a scan would walk over until they are compacted.
        options.add_compact_on_deletion_collector_factory(4096, 2048, 0.5)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(MiB)
        options.set_stats_dump_period_sec(0)
        return options


def _checked(store: Store, length: Length) -> Store:
    """The store, if its MANIFEST is as long as it was when the store was last written to."""
    if length < store.noted:
        store.close()
        raise DamagedError(f"it is damaged: its MANIFEST was {store.noted.size} bytes long, it is {length.size}")
    return store
