"""The frontier with many waiting URLs: speed, memory and disk as it fills, restart, and rebuild from its changelog.

    python -m tests.bench.scale [--sizes 100000,1000000] [--hosts 100000] [--shards 1] [--state DIR]

Shards over the real store (RocksDB), fed with packs of links (`tests.bench.web`) until so many URLs wait. At each size:
decisions about new and known links, the way of URLs from order to done, resident memory and what holds it, bytes on
disk. Then, each in a process of its own, a restart with the stores as they are, and a rebuild of wiped stores from the
changelog, up to the first order. The changelog is a file that is read like a partition: no broker is part of the
figures (`tests/bench/test_state.py` has one). CPU seconds are those of the process, RocksDB's threads included.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import msgspec

from streams import messages as m
from streams.codecs import decode_inbox
from streams.definitions import CrawlDefinition
from streams.frontier.index import FrontierIndexer
from streams.frontier.release import ShardConfig
from streams.frontier.shard import Shard
from streams.settings import Frontier, MiB
from streams.state.fold import fold
from streams.state.shelf import Shelf
from streams.state.store import Store
from tests.bench.frontier import answers
from tests.bench.web import CRAWL, Web

NOW = 1_700_000_000_000
PACK = 500
PROBE = 50_000
STRETCH = 5_000  # records, as `streams.state.changelog` reads them

PAUSED = CrawlDefinition(id=CRAWL, state="paused", delay=1.0, parallelism=1, robots=False)
RUNNING = msgspec.structs.replace(PAUSED, version=2, state="open")


class Meter:
    """CPU seconds of the process, without what the main thread uses `outside`."""

    def __init__(self) -> None:
        self._outside = 0.0

    def cpu(self) -> float:
        """Seconds so far."""
        return time.process_time() - self._outside

    @contextmanager
    def outside(self) -> Iterator[None]:
        """What is done here does not count."""
        began = time.thread_time()
        yield
        self._outside += time.thread_time() - began


class Member:
    """One shard, its store, its part of the web and the file that stands for its changelog."""

    def __init__(self, store: Store, number: int, web: Web, changelog: BinaryIO, meter: Meter) -> None:
        self.store = store
        self.web = web
        self.crawls = {CRAWL: PAUSED}
        self.shard = Shard(ShardConfig(number), store, 0, self.crawls)
        self.now = NOW
        self._changelog = changelog
        self._meter = meter
        self._offset = 0

    def turn(self, *values: bytes) -> list[m.FetchOrder]:
        inbox = [(offset, decode_inbox(value)) for offset, value in enumerate(values, self._offset)]
        self._offset += len(values)
        self.now += 20
        turn = self.shard.turn(inbox, self.now, {})
        if rows := turn.rows():
            self.store.apply(rows, self.store.offset + len(rows))
            with self._meter.outside():
                write_log(self._changelog, rows)
        return turn.orders

    def links(self, packs: Iterator[bytes]) -> None:
        """Each pack in a turn of its own; making packs does not count."""
        while True:
            with self._meter.outside():
                pack = next(packs, b"")
            if not pack:
                return
            self.turn(pack)

    def way(self, number: int) -> int:
        """At least so many URLs from order to done; answers come 100 a message."""
        self.crawls[CRAWL] = RUNNING
        orders, done = self.turn(), 0
        while done < number:
            taken, orders = orders[:100], orders[100:]
            if taken:
                with self._meter.outside():
                    fetched, parsed = answers(taken)
                orders += self.turn(fetched) + self.turn(parsed)
            else:
                orders += self.turn()
            done += len(taken)
        self.crawls[CRAWL] = PAUSED
        return done


@dataclass(frozen=True, slots=True)
class Change:
    """A record of the changelog (`streams.state.fold.LogRecord`)."""

    offset: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


def write_log(log: BinaryIO, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Append rows: lengths of key and value, then both."""
    for key, row in rows:
        value = row or b""
        log.write(len(key).to_bytes(2, "big") + len(value).to_bytes(4, "big") + key + value)


def read_log(path: Path) -> Iterator[list[Change]]:
    """Stretches of records."""
    with path.open("rb", buffering=4 * MiB) as log:
        offset, stretch = 0, []
        while sizes := log.read(6):
            key = log.read(int.from_bytes(sizes[:2], "big"))
            stretch.append(Change(offset, key, log.read(int.from_bytes(sizes[2:], "big"))))
            offset += 1
            if len(stretch) == STRETCH:
                yield stretch
                stretch = []
        yield stretch


def resident() -> int:
    """Bytes of memory the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def shelf(folder: Path) -> Shelf:
    """With the default settings; no store is too old."""
    return Shelf(folder, "rows", FrontierIndexer(), Frontier(), 1 << 60, lambda: NOW)


def report(what: str, number: int, cpu: float) -> None:
    print(
        f"{what:>34}: {number / cpu:>9,.0f} a CPU-second  {cpu / number * 1e6:7.1f} us each  ({number:,})", flush=True
    )


def memory(stores: list[Store]) -> None:
    """Resident memory, and the parts of it that are known."""
    sizes = [store.sizes() for store in stores]
    mib = {
        "resident": resident(), "block cache": sizes[0].cache, "memtables": sum(s.memtables for s in sizes),
        "table readers": sum(s.tables for s in sizes), "on disk": sum(s.disk for s in sizes),
    }  # fmt: skip
    print(f"{'MiB':>34}: " + ", ".join(f"{what} {size / MiB:,.0f}" for what, size in mib.items()), flush=True)


class Fill:
    """The first process: fills the stores and measures at each size."""

    def __init__(self, members: list[Member], meter: Meter) -> None:
        self._members = members
        self._meter = meter

    def front_pages(self) -> int:
        began = self._meter.cpu()
        for member in self._members:
            member.links(member.web.front_pages(PACK))
        number = self._waiting()
        report("new links, each to a new host", number, self._meter.cpu() - began)
        return number

    def grow(self, size: int, what: str) -> None:
        """New links until `size` URLs wait."""
        missing = max(0, size - self._waiting())
        self._links(what, missing, lambda web, number: web.new(number, PACK))

    def known(self, *, popular: bool) -> None:
        what = "popular" if popular else "any"
        self._links(f"known links, {what}", 2 * PROBE, lambda web, number: web.known(number, PACK, popular=popular))

    def scattered(self) -> None:
        """The worst case, unlike any web: no link has anything to do with its page or the one before."""
        self._links("known links, no two alike", 2 * PROBE, lambda web, number: web.scattered(number, PACK))

    def way(self, number: int) -> None:
        began, done = self._meter.cpu(), 0
        for member in self._members:
            done += member.way(number // len(self._members))
        report("URLs from order to done", done, self._meter.cpu() - began)

    def memory(self) -> None:
        memory([member.store for member in self._members])

    def _links(self, what: str, number: int, packs: Callable[[Web, int], Iterator[bytes]]) -> None:
        if number < PACK * len(self._members):
            return
        began = self._meter.cpu()
        for member in self._members:
            member.links(packs(member.web, number // len(self._members)))
        report(what, number, self._meter.cpu() - began)

    def _waiting(self) -> int:
        return sum(member.shard.tallies[CRAWL].states[0] for member in self._members)


async def fill(folder: Path, sizes: list[int], hosts: int, shards: int) -> None:
    meter = Meter()
    stores = shelf(folder)
    members = []
    for number in range(shards):
        store = await stores.open("bench", "bench", number)
        for _ in store.derive():
            pass
        changelog = (folder / f"changelog-{number}").open("wb", buffering=4 * MiB)
        members.append(Member(store, number, Web(hosts // shards, number, f"host{number}-"), changelog, meter))
    filling = Fill(members, meter)
    print(f"--- {filling.front_pages():,} URLs wait")
    for size in sizes:
        filling.grow(size, f"new links, up to {size:,}")
        filling.grow(size + PROBE, f"new links, from {size:,}")
        filling.known(popular=True)
        filling.known(popular=False)
        filling.scattered()
        filling.memory()
        filling.way(hosts if size == sizes[-1] else PROBE // 2)
        filling.memory()
    for member in members:
        member.store.close()
        member._changelog.close()


async def restart(folder: Path, shards: int, *, rebuild: bool) -> None:
    """From stores as they are, or from nothing but the changelog, to the first order of each shard."""
    began, cpu, rows = time.perf_counter(), time.process_time(), 0
    stores, found = shelf(folder / "wiped" if rebuild else folder), []
    marks = {}
    for number in range(shards):
        store = await stores.open("bench", "bench", number)
        found.append(store)
        if rebuild:
            for records in read_log(folder / f"changelog-{number}"):
                store.absorb(fold(records, store.epoch), store.offset + len(records))
            marks["rows in the stores"] = time.perf_counter()
            rows += store.offset + 1
            for _ in store.derive():
                pass
            marks["index and counters made"] = time.perf_counter()
        shard = Shard(ShardConfig(number), store, 0, {CRAWL: RUNNING})
        marks["shards loaded"] = time.perf_counter()
        orders = shard.turn([], NOW * 2, {}).orders
        assert orders or not shard.tallies[CRAWL].open, "nothing is released"
    marks["first orders"] = time.perf_counter()
    what = f"rebuild of {rows:,} records" if rebuild else "restart"
    print(f"--- {what}: " + ", ".join(f"{mark}: {at - began:.2f} s" for mark, at in marks.items())
          + f", {time.process_time() - cpu:.1f} CPU-seconds")  # fmt: skip
    if rebuild:
        in_store, first = (marks[name] - began for name in ("rows in the stores", "first orders"))
        print(
            f"{'records a second':>34}: {rows / in_store:,.0f} into the store, {rows / first:,.0f} to the first order"
        )
    memory(found)


def child(phase: str, args: argparse.Namespace, folder: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.scale", "--phase", phase, "--state", str(folder)]
    subprocess.run(
        [*command, "--sizes", args.sizes, "--hosts", str(args.hosts), "--shards", str(args.shards)], check=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100000,1000000", help="numbers of waiting URLs, separated by commas")
    parser.add_argument("--hosts", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--state", type=Path, help="folder that is kept; default: one that is removed")
    parser.add_argument("--phase", choices=("all", "fill", "restart", "rebuild"), default="all")
    args = parser.parse_args()
    with TemporaryDirectory() as throw_away:
        folder = args.state or Path(throw_away)
        folder.mkdir(parents=True, exist_ok=True)
        match args.phase:
            case "fill":
                asyncio.run(fill(folder, [int(size) for size in args.sizes.split(",")], args.hosts, args.shards))
            case "restart" | "rebuild":
                asyncio.run(restart(folder, args.shards, rebuild=args.phase == "rebuild"))
            case _:
                for phase in ("fill", "restart", "rebuild"):
                    child(phase, args, folder)


if __name__ == "__main__":
    main()
