"""Rates of the table with the frontier's own rows and index: writing in packs, and recovery after a wiped disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agents.delivery.producer import Producer
from agents.io.admin import Admin
from streams.definitions import CrawlDefinition
from streams.frontier.index import FrontierIndexer
from streams.frontier.release import ShardConfig
from streams.frontier.rows import State, UrlRow, encode_row, url_key
from streams.frontier.shard import Shard
from streams.settings import Frontier
from streams.state.changelog import ChangelogReader, KafkaLog
from streams.state.ledger import Item, Ledger
from streams.state.replay import replay
from streams.state.shelf import Shelf
from streams.state.store import Store
from streams.topics import CHANGELOG

pytestmark = [pytest.mark.bench, pytest.mark.broker, pytest.mark.timeout(300)]

ROWS = int(os.environ.get("FYKE_BENCH_ROWS", "200000"))
HOSTS = 200
CRAWL = CrawlDefinition(id="bench", version=1, created=0, state="open", delay=0.0)


def waiting(number: int) -> Item:
    host = f"host{number % HOSTS}.example.org"
    row = UrlRow(
        schema=1, state=State.WAITING, crawl="bench", url=f"https://{host}/folder/{number % 97}/page-{number}.html",
        host=host, visit=1, attempt=1, depth=number % 9, priority=5, seq=number,
        parent=f"https://{host}/folder/index.html",
    )  # fmt: skip
    return url_key(number.to_bytes(16, "big")), encode_row(row)


def done(number: int) -> Item:
    host = f"host{number % HOSTS}.example.org"
    row = UrlRow(
        schema=1, state=State.DONE, crawl="bench", url=f"https://{host}/folder/{number % 97}/page-{number}.html",
        host=host, visit=1, attempt=1, depth=number % 9, priority=5, seq=number, status=200, visited=1_700_000_000_000,
        page=(number % 4, number), content=bytes(16),
    )  # fmt: skip
    return url_key(number.to_bytes(16, "big")), encode_row(row)


@contextmanager
def measured(what: str, count: int) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"\n{what}: {count} rows, {count / wall:,.0f}/s, {cpu / count * 1e6:.1f} us CPU a row", end="")


async def write(ledger: Ledger, row: Callable[[int], Item], pack: int, count: int) -> None:
    for first in range(0, count, pack):
        await ledger.put([row(number) for number in range(first, min(first + pack, count))])


async def open_store(folder: Path) -> Store:
    return await Shelf(folder, "rows", FrontierIndexer(), Frontier(), 1 << 60, lambda: 0).open("", "", 0)


async def recover(reader: ChangelogReader, store: Store, end: int) -> None:
    """From nothing to the first order."""
    with measured("recovery, wiped disk, to the first order", end):
        began, read = time.perf_counter(), 0
        async for number in replay(reader, store, 0, end):
            read += number
            if number and read == end:
                print(f"\ninto the store: {end / (time.perf_counter() - began):,.0f}/s", end="")
        shard = Shard(ShardConfig(0), store, 0, {"bench": CRAWL})
        assert shard.turn([], 1_800_000_000_000, {}).orders
    assert store.counters() == {b"bench\0waiting": ROWS}


async def test_rates(broker):
    settings = broker.settings
    async with Admin(broker.bootstrap, settings) as admin:
        await admin.apply_topics()
    failures: list[Exception] = []
    producer = Producer(broker.bootstrap, settings, "bench", failures.append)
    await producer.start()
    reader = ChangelogReader(settings.kafka.prefix + CHANGELOG.name, {"bootstrap_servers": broker.bootstrap})
    log = KafkaLog(reader, lambda: producer, 0)
    with TemporaryDirectory() as folder:
        store = await open_store(Path(folder) / "a")
        ledger = Ledger(store, log, lambda: 1)
        with measured("claim", 1):
            await ledger.claim()
        for pack in (100, 500, 2000):
            count = min(ROWS, 200 * pack)
            with measured(f"put new rows in packs of {pack}", count):
                await write(ledger, waiting, pack, count)
            with measured(f"put waiting -> done in packs of {pack}", count):
                await write(ledger, done, pack, count)
        await write(ledger, waiting, 2000, ROWS)
        store.close()
        end = await log.end()
        fresh = await open_store(Path(folder) / "b")
        await recover(reader, fresh, end)
        with measured("scan of the index, 1,000 a call", ROWS):
            after, seen = b"", 0
            while entries := fresh.scan(b"", after=after, limit=1000):
                after = entries[-1][0]
                seen += len(entries)
        assert seen == ROWS
        keys = [waiting(number)[0] for number in range(0, ROWS, 7)]
        with measured("get_many, hits, 1,000 a call", len(keys)):
            for first in range(0, len(keys), 1000):
                fresh.get_many(keys[first : first + 1000])
        missing = [url_key(os.urandom(16)) for _ in keys]
        with measured("get_many, misses, 1,000 a call", len(keys)):
            for first in range(0, len(keys), 1000):
                fresh.get_many(missing[first : first + 1000])
        fresh.close()
    await producer.stop()
    assert failures == []
