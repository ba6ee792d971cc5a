"""What a frontier remembers is lost, damaged, old or without room; its changelog loses its beginning."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import TopicPartition
from rocksdict import Options, Rdict

from streams.errors import Exit
from streams.frontier.index import FrontierIndexer
from streams.frontier.rows import URL_KEY, decode_url_row
from streams.state.store import Store
from streams.state.table import MAX_AGE
from streams.topics import CHANGELOG
from tests.faults import checker, facts
from tests.faults.bench import Bench
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.service import Crawling, Service
from tests.faults.tables import agree, home, read, stores
from tests.faults.workers import Process

RECOVERED = re.compile(r"rows: (\d+) changelog records of \d+ partitions in ([\d.]+) s")
ROOM = "24m"


def back(crawl: Crawling, process: Process) -> float:
    """Start a worker, wait until it serves again; seconds."""
    began = time.monotonic()
    if not process.pid:
        process.start()
    crawl.workers.until(process.serves, f"{process.name} serves again")
    return round(time.monotonic() - began, 1)


def recovery(process: Process) -> tuple[int, float]:
    """Records and seconds of the largest recovery that a worker told of."""
    return max(
        ((int(records), float(seconds)) for records, seconds in RECOVERED.findall(process.said())), default=(0, 0)
    )


# --- state lost


def state_lost(bench: Bench, dose: Dose) -> Verdict:
    """Remove all that a busy frontier remembers: while it is down, and while it runs (it is killed later)."""
    slowest, records, seconds = 0.0, 0, 0.0
    with (
        bench.own_service() as service,
        bench.crawl(service, size=dose.size, delay=0.05, pause=0.03) as crawl,
    ):
        for number in range(dose.times):
            crawl.reach(0.6 * (number + 1) / dose.times)
            process = crawl.workers.busy("frontier")
            folder = home(process)
            with crawl.fault("state lost"):
                if number % 2:
                    shutil.rmtree(folder)
                    crawl.workers.rest(bench.random.uniform(0.5, 3))
                process.kill()
                shutil.rmtree(folder, ignore_errors=True)
                slowest = max(slowest, back(crawl, process))
            found = recovery(process)
            if found[0] > records:
                records, seconds = found
        crawl.finish()
        verdict = crawl.verdict()
        verdict.add(agree(service))
    verdict.figures |= {
        "times": dose.times, "slowest start to serving, s": slowest, "most records recovered": records,
        "records a second": round(records / seconds) if seconds else 0,
    }  # fmt: skip
    verdict.require(records > 0, "nothing was recovered from the changelog")
    return verdict


# --- state damaged


@dataclass(frozen=True, slots=True)
class Damage:
    """Something done to the stores of a worker that was killed; `says`: in its log when it starts, "" for nothing."""

    name: str
    do: Callable[[Path], None]
    says: str


def into_files(path: Path) -> None:
    """Write what is only in the write-ahead log into a table file, so that there is one to damage, and a row after it.

    As a worker does it when it starts, or has written enough.
    """
    store = Store(
        Rdict(str(path), Options(raw_mode=True)), path, FrontierIndexer(), lambda: time.time_ns() // 1_000_000
    )
    store.touch()
    store.close()


def truncate(pattern: str) -> Callable[[Path], None]:
    """Cut files in half."""

    def do(path: Path) -> None:
        for file in path.glob(pattern):
            os.truncate(file, file.stat().st_size // 2)

    return do


def flip(path: Path) -> None:
    """Another bit in the middle of each table file."""
    for file in path.glob("*.sst"):
        data = bytearray(file.read_bytes())
        data[len(data) // 3] ^= 0x10
        file.write_bytes(data)


def lose(pattern: str) -> Callable[[Path], None]:
    """Remove files."""

    def do(path: Path) -> None:
        for file in path.glob(pattern):
            file.unlink()

    return do


def keep_lock(path: Path) -> None:
    """The lock of a process that is gone is there already."""
    assert (path / "LOCK").exists()


def age(path: Path) -> None:
    """As if the worker had been away for longer than deletes are kept in the changelog."""
    store = Store(Rdict(str(path), Options(raw_mode=True)), path, FrontierIndexer(), _long_ago)
    store.touch()
    store.close()


def _long_ago() -> int:
    return time.time_ns() // 1_000_000 - MAX_AGE - 3_600_000


REBUILT = "is rebuilt from the changelog"
DAMAGES = (
    Damage("truncated SST", truncate("*.sst"), REBUILT),
    Damage("stale LOCK", keep_lock, ""),
    Damage("old store", age, "the changelog may have forgotten deletes"),
    Damage("flipped bits in SSTs", flip, REBUILT),
    Damage("truncated write-ahead log", truncate("*.log"), ""),
    Damage("no MANIFEST", lose("MANIFEST-*"), REBUILT),
)


def state_damaged(bench: Bench, dose: Dose) -> Verdict:
    """Each damage to the stores of a busy frontier that was killed; then one whose disk is full."""
    with (
        bench.own_service() as service,
        bench.crawl(service, size=dose.size, delay=0.3, pause=0.03) as crawl,
    ):
        damages = DAMAGES[: dose.times]
        verdict = Verdict()
        for number, damage in enumerate(damages):
            crawl.reach(0.4 * (number + 1) / len(damages))
            process = crawl.workers.busy("frontier")
            with crawl.fault(damage.name):
                process.kill()
                for path in stores(process):
                    into_files(path)
                    damage.do(path)
                seconds = back(crawl, process)
            verdict.figures[f"{damage.name}, s"] = seconds
            verdict.require(
                not damage.says or damage.says in process.log.read_text(), f"{damage.name}: nothing is said"
            )
        verdict.add(full_disk(crawl))
        crawl.finish()
        verdict.add(crawl.verdict())
        verdict.add(agree(service))
    return verdict


def full_disk(crawl: Crawling) -> Verdict:
    """A worker's disk is full for a while: it ends by name each time it starts, and goes on when there is room."""
    verdict, process = Verdict(), crawl.workers.busy("frontier")
    if not may_mount(home(process).with_name("probe")):
        verdict.figures["full disk"] = "not run: no file system can be mounted here"
        return verdict
    with crawl.fault("full disk"):
        process.kill()
        with small_disk(home(process)) as folder:
            back(crawl, process)
            deaths = len(process.deaths)
            (folder / "ballast").write_bytes(bytes(_free(folder)))
            process.kill()  # what it had open has room; what a start makes has none
            process.start()
            crawl.workers.until(lambda: len(process.deaths) > deaths, "the worker ends by itself")
            named = "No space left" in process.log.read_text() and "Make room" in process.log.read_text()
            verdict.require(process.deaths[deaths] == Exit.ENVIRONMENT, f"ended with {process.deaths[deaths:]}")
            verdict.require(named, "the log does not say that the disk is full")
            (folder / "ballast").unlink()
            verdict.figures["full disk, s after there is room"] = back(crawl, process)
            process.kill()
        back(crawl, process)
    return verdict


def may_mount(probe: Path) -> bool:
    """Whether this process may mount file systems."""
    probe.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "fyke", str(probe)], check=False, capture_output=True)
    if mounted.returncode == 0:
        subprocess.run(["umount", str(probe)], check=True)
    probe.rmdir()
    return mounted.returncode == 0


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own in the place of a folder, which is empty there until the block ends."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "fyke", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


# --- changelog partly expired


def changelog_expired(bench: Bench, dose: Dose) -> Verdict:
    """The store is away and the changelog has lost its beginning: the worker ends by name until the store is back."""
    verdict = Verdict()
    with (
        bench.own_service(counts={"frontier": 1, "fetcher": 1, "parser": 1, "exporter": 1}) as service,
        bench.crawl(service, size=dose.size, delay=0.05, pause=0.03) as crawl,
    ):
        crawl.reach(0.4)
        process = crawl.workers.busy("frontier")
        with crawl.fault("changelog partly expired"):
            process.kill()
            folder = home(process)
            folder.rename(folder.with_name("kept"))
            asyncio.run(expire(service))
            process.start()
            crawl.workers.until(lambda: len(process.deaths) >= dose.times, "the worker ends by itself")
            process.kill()
            verdict.require(set(process.deaths) == {int(Exit.ENVIRONMENT)}, f"ended with {process.deaths}")
            verdict.require("begins at offset" in process.log.read_text(), "the log does not say why")
            shutil.rmtree(folder)
            folder.with_name("kept").rename(folder)
            verdict.figures["s with the store back"] = back(crawl, process)
        crawl.finish()
        found = crawl.collect()
        found.rows = [row for path in stores(process) for row in rows_of(path, crawl.name)]  # the only copy of them
        verdict.add(checker.judge(crawl.site.expected(), found, crawl.faults, crawl.limits))
    return verdict


def rows_of(path: Path, crawl: str) -> Iterator[facts.Row]:
    """The URLs of a crawl in a store."""
    for key, value in read(path)[1].items():
        if key.startswith(URL_KEY):
            row = decode_url_row(value)
            if row.crawl == crawl:
                yield facts.Row(row.url, row.state)


async def expire(service: Service) -> None:
    """Delete the first half of each partition of the changelog, as a wrong cleanup.policy would."""
    topic = service.prefix + CHANGELOG.name
    ends = (await facts.ends(service.bootstrap, [topic]))[topic]
    admin = AIOKafkaAdminClient(bootstrap_servers=service.bootstrap)
    await admin.start()
    try:
        policy = {"cleanup.policy": "compact,delete"}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, policy)])
        await admin.delete_records(
            {TopicPartition(topic, partition): RecordsToDelete(end // 2) for partition, end in ends.items() if end > 1}
        )
    finally:
        await admin.close()


LINES = (
    Line(
        "state-lost", "state lost",
        "lost 0; each store equals the fold of its changelog; `fyke state check` finds it sound",
        state_lost,
        Dose("a busy frontier's folder is removed 8 times, every other time while it runs", times=8, size=8_000),
        Dose("a busy frontier's folder is removed twice, once while it runs", times=2, size=1_600),
    ),
    Line(
        "state-damaged", "state damaged",
        "rebuilt with a word, or a named stop; lost 0; each store equals the fold of its changelog",
        state_damaged,
        Dose(f"{', '.join(damage.name for damage in DAMAGES)}, full disk", times=len(DAMAGES), size=6_000),
        Dose(f"{', '.join(damage.name for damage in DAMAGES[:3])}, full disk", times=3, size=1_600),
    ),
    Line(
        "changelog-expired", "changelog partly expired",
        "a worker without a store ends by name each time it starts; with the store back, lost 0",
        changelog_expired,
        Dose("half of each partition deleted, store away for 3 starts", times=3, size=2_400),
        Dose("half of each partition deleted, store away for one start", times=1, size=800),
    ),
)  # fmt: skip
