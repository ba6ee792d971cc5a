"""Cost of the frontier without a broker: decisions about links, and the way of a URL from order to done.

    python -m tests.bench.frontier [--rows 100000] [--hosts 1000] [--pack 500] [--profile]

A shard over the real store (RocksDB in a throw-away folder). Links come as packs of bytes with their fingerprints, as
the parser sends them; decoding, deciding, encoding and the write batch all count. CPU seconds are those of the process,
RocksDB's threads included. DESIGN: at least 150,000 known and 40,000 new links a CPU-second.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from streams import messages as m
from streams.codecs import decode_inbox, encode
from streams.definitions import CrawlDefinition
from streams.frontier.index import FrontierIndexer
from streams.frontier.release import ShardConfig
from streams.frontier.shard import Shard
from streams.policy import urls
from streams.settings import Frontier
from streams.state.shelf import Shelf
from streams.state.store import Store

NOW = 1_700_000_000_000
CRAWL = "bench"


def answers(orders: list[m.FetchOrder]) -> tuple[bytes, bytes]:
    """What the fetcher and the parser say about orders."""
    fetched = [
        m.FetchOutcome(crawl=o.crawl, fingerprint=o.fingerprint, url=o.url, visit=o.visit, attempt=o.attempt,
                       result="fetched", status=200, page=(0, i), etag='"abc"')
        for i, o in enumerate(orders)
    ]  # fmt: skip
    parsed = [
        m.ParseOutcome(crawl=o.crawl, fingerprint=o.fingerprint, visit=o.visit, depth=o.depth, page=(0, i),
                       content=bytes(16), links=30)
        for i, o in enumerate(orders)
    ]  # fmt: skip
    return encode(m.Outcomes(items=tuple(fetched))), encode(m.Outcomes(items=tuple(parsed)))


class Bench:
    """One shard, its store, and the packs."""

    def __init__(self, store: Store, rows: int, hosts: int, pack: int) -> None:
        self.store = store
        self.rows = rows
        self.crawls = {CRAWL: CrawlDefinition(id=CRAWL, state="paused", delay=0.0, parallelism=64, robots=False)}
        self.shard = Shard(ShardConfig(0, release_floor=2000), store, 0, self.crawls)
        self.offset = 0
        self.now = NOW
        found = [f"https://host{i % hosts}.example.org/folder/{i % 97}/page-{i}.html" for i in range(rows)]
        keys = [urls.fingerprint(CRAWL, url) for url in found]
        parent = "https://host1.example.org/folder/index.html"
        self.packs = [
            encode(m.Links(crawl=CRAWL, urls=found[i : i + pack], fingerprints=b"".join(keys[i : i + pack]),
                           parents=[m.LinkParent(url=parent, depth=1, count=len(found[i : i + pack]))]))
            for i in range(0, rows, pack)
        ]  # fmt: skip

    def turn(self, *values: bytes) -> list[m.FetchOrder]:
        inbox = [(offset, decode_inbox(value)) for offset, value in enumerate(values, self.offset)]
        self.offset += len(values)
        self.now += 10
        turn = self.shard.turn(inbox, self.now, {})
        if rows := turn.rows():
            self.store.apply(rows, self.offset)
        return turn.orders

    def links(self) -> int:
        """All packs, one a turn."""
        for pack in self.packs:
            self.turn(pack)
        return self.rows

    def way(self) -> int:
        """Every URL: order, fetched, parsed; answers come 100 a message."""
        self.crawls[CRAWL] = CrawlDefinition(id=CRAWL, version=2, delay=0.0, parallelism=64, robots=False)
        self.now += 1000
        orders, done = self.turn(), 0
        while orders:
            now, orders = orders, []
            for i in range(0, len(now), 100):
                orders += self.answer(now[i : i + 100])
            done += len(now)
        return done

    def answer(self, orders: list[m.FetchOrder]) -> list[m.FetchOrder]:
        fetched, parsed = answers(orders)
        return self.turn(fetched) + self.turn(parsed)


@contextmanager
def measured(what: str, profile: bool) -> Iterator[list[int]]:
    """Append the number of things done to what is yielded."""
    number: list[int] = []
    profiler = cProfile.Profile() if profile else None
    cpu = time.process_time()
    if profiler:
        profiler.enable()
    yield number
    if profiler:
        profiler.disable()
    cpu = time.process_time() - cpu
    print(f"{what:>28}: {number[0] / cpu:>9,.0f} a CPU-second, {cpu / number[0] * 1e6:6.1f} us each ({number[0]:,})")
    if profiler:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--pack", type=int, default=500)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        shelf = Shelf(Path(folder), "rows", FrontierIndexer(), Frontier(), 1 << 60, lambda: NOW)
        store = await shelf.open("bench", "bench", 0)
        for _ in store.derive():
            pass
        bench = Bench(store, args.rows, args.hosts, args.pack)
        with measured("new links", args.profile) as number:
            number.append(bench.links())
        with measured("known links", args.profile) as number:
            number.append(bench.links())
        with measured("URLs from order to done", args.profile) as number:
            number.append(bench.way())
        with measured("known links, all done", args.profile) as number:
            number.append(bench.links())
        print(f"peak resident memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
        store.close()


if __name__ == "__main__":
    asyncio.run(main())
