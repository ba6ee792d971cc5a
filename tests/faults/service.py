"""Standing workers on the three brokers, and crawls on them that a line does something to."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from msgspec.structs import replace

from agents.broadcast import Broadcast, publish
from agents.cli.configuration import override
from agents.io.admin import Admin
from agents.io.seeds import Writer
from streams import messages
from streams.definitions import CrawlDefinition, Scope
from streams.errors import EnvironmentFault
from streams.settings import Settings, to_environment
from streams.topics import URLS, Topic
from tests.faults import checker, facts
from tests.faults.checker import Fault, Limits
from tests.faults.cluster import Cluster
from tests.faults.fleet import PATIENCE
from tests.faults.ledger import Journal
from tests.faults.lines import Verdict
from tests.faults.server import Sites
from tests.faults.site import Site
from tests.faults.workers import Command, Process, Static, Workers, first_is_static, product
from tests.sites.crawling import environment

SESSION, HEARTBEAT, REBALANCE = 6.0, 1.0, 15.0
"""Seconds. The shortest session time-out that brokers allow by default, so that a fault costs little time."""

COUNTS = {"frontier": 2, "fetcher": 2, "parser": 2, "exporter": 1}
WORKING = ("frontier", "fetcher", "parser")
READ = ("fetches", "inbox", "pages", "records", "failures", "crawls", "urls")
GROUPS = {
    "frontier": ("urls", "inbox"), "fetcher": ("fetches",), "parser": ("pages",), "exporter": ("records", "failures"),
}  # fmt: skip
DEATHS = "workers that ended by themselves"
"""The name of that figure; it counts over the life of the service."""

SETTLING = 60.0
"""Seconds after the end until everything is exported and committed."""


@dataclass(slots=True)
class Service:
    """A deployment: topics under a prefix of its own, and its workers."""

    cluster: Cluster
    folder: Path
    settings: Settings
    workers: Workers

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses."""
        return self.cluster.bootstrap

    @property
    def prefix(self) -> str:
        """Of topics and groups."""
        return self.settings.kafka.prefix

    @property
    def out(self) -> Path:
        """The exporter's folder."""
        return self.folder / "out"

    async def unread(self) -> dict[str, int]:
        """What the groups have not committed yet, by group and topic."""
        async with Admin(self.bootstrap, self.settings) as admin:
            return {
                f"{group} {topic}": sum((await admin.lag(group, topic)).values())
                for group, topics in GROUPS.items()
                for topic in topics
            }

    async def configure(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Replace the configuration of a topic."""
        resource = ConfigResource(ConfigResourceType.TOPIC, self.prefix + topic.name, dict(configs))
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            await admin.alter_configs([resource])
        finally:
            await admin.close()


@contextmanager
def service(
    cluster: Cluster, folder: Path, prefix: str, settings: Mapping[str, Any] | None = None, *, web: Sites,
    counts: Mapping[str, int] | None = None, command: Command = product,
    static: Static = first_is_static,
) -> Iterator[Service]:  # fmt: skip
    """Topics by `fyke topics apply`, then the workers, until the end of the block.

    `settings`: by dotted name; `web`: to where all host names lead.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = {
        "kafka.prefix": prefix, "kafka.session_timeout": SESSION, "kafka.heartbeat": HEARTBEAT,
        "kafka.rebalance_timeout": REBALANCE, "worker.state": folder / "state", "fetch.allow_private": True,
        "fetch.connect_to": (f"::127.0.0.1:{web.port}",), **(settings or {}),
    }  # fmt: skip
    made = override(cluster.settings, own)
    run_fyke(made, folder, "topics", "apply", expect=0)
    workers = Workers(
        folder / "workers", made, counts or COUNTS, extra={"exporter": {"export.out": folder / "out"}},
        command=command, static=static,
    )  # fmt: skip
    try:
        workers.start()
        yield Service(cluster, folder, made, workers)
    finally:
        workers.finish()


def run_fyke(settings: Settings, folder: Path, *arguments: str, expect: int | None = None) -> str:
    """`fyke …` with these settings; its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "agents.cli.main", *arguments], cwd=folder, env=environment() | to_environment(settings),
        capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert expect is None or done.returncode == expect, f"fyke {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


@dataclass(slots=True)
class Crawling:
    """One crawl of a deterministic site. Faults are noted as they happen; `verdict` reads and judges everything."""

    service: Service
    name: str
    site: Site
    limits: Limits
    web: Sites
    journal: Journal
    starts: dict[str, dict[int, int]]
    patience: float = PATIENCE
    faults: list[Fault] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0

    @property
    def workers(self) -> Workers:
        """The service's."""
        return self.service.workers

    def fetched(self) -> int:
        """Requests answered so far, robots.txt included."""
        return self.web.count(self.site)

    def reach(self, share: float) -> None:
        """Wait until so large a part of the site was asked for."""
        wanted = share * self.site.size
        self.workers.until(lambda: self.fetched() >= wanted, f"{wanted:.0f} pages are fetched", self.patience)

    def rate(self, seconds: float) -> float:
        """Pages a second over the next seconds."""
        before, at = self.fetched(), time.monotonic()
        self.workers.rest(seconds)
        return (self.fetched() - before) / (time.monotonic() - at)

    @contextmanager
    def fault(self, what: str, stage: str = "") -> Iterator[None]:
        """What happens in the block is a fault; it is over when the block is and rebalances that it caused are.

        `stage`: if only workers of that one suffer.
        """
        at = time.time()
        yield
        self.faults.append(Fault(f"{what} {stage}".strip(), at, time.time() + SESSION + REBALANCE, stage=stage))

    def kill(self, process: Process) -> None:
        """SIGKILL; the worker is started again at once."""
        with self.fault("kill", process.stage):
            process.kill()
            process.start()

    def frozen(self, processes: list[Process], seconds: float) -> None:
        """SIGSTOP for so long, then SIGCONT."""
        at = time.time()
        for process in processes:
            process.signal(signal.SIGSTOP)
        self.workers.rest(seconds)
        marks, thawed = {process.name: process.activity() for process in processes}, time.time()
        for process in processes:
            process.signal(signal.SIGCONT)
        for process in processes:
            process.wait_turned(marks[process.name])
            until = thawed + SESSION + REBALANCE
            self.faults.append(Fault(f"freeze {process.stage}", at, until, thawed, process.stage, time.time()))

    def finish(self, patience: float = PATIENCE) -> None:
        """Wait for the end, and until everything is exported and committed."""
        self.workers.until(self.has_ended, f"the crawl ends ({self.fetched()} fetched)", patience)
        self.ended = time.time()
        self.workers.until(self._all_read, "everything is exported and committed", SETTLING + patience / 4)

    def collect(self) -> facts.Facts:
        """Everything that is known of the crawl."""
        found = asyncio.run(facts.collect(self.service.bootstrap, self.service.prefix, self.name, self.starts))
        found.seeds = self.journal.read()
        found.requests = self.web.entries(self.site)
        found.unread = asyncio.run(self.service.unread())
        facts.exported(found, self.name, self.service.out)
        return found

    def verdict(self) -> Verdict:
        """Of the crawl: it must have ended, and everything must be right; the product's own audit agrees."""
        found = self.collect()
        verdict = checker.judge(self.site.expected(), found, self.faults, self.limits)
        audit = json.loads(
            run_fyke(self.service.settings, self.service.folder, "audit", "--crawl", self.name, "--json")
        )
        verdict.require(audit["clean"], f"fyke audit: {json.dumps(audit)[:1500]}")
        verdict.figures |= {DEATHS: self.workers.deaths}
        return verdict

    def has_ended(self) -> bool:
        """Whether the end was announced."""
        found, topic = facts.Facts(), self.service.prefix + "crawls"
        try:
            records = asyncio.run(facts.read(self.service.bootstrap, topic, self.starts["crawls"]))
        except KafkaError:  # a broker is down: the next look will tell
            return False
        facts.take_ends(found, self.name, records)
        return bool(found.ends)

    def _all_read(self) -> bool:
        try:
            return not any(asyncio.run(self.service.unread()).values())
        except EnvironmentFault:
            return False


@contextmanager
def crawling(
    on: Service, folder: Path, site: Site, limits: Limits, name: str, web: Sites, **definition: Any
) -> Iterator[Crawling]:
    """Journal the seeds, define the crawl, produce the seeds, seal it."""
    folder.mkdir(parents=True, exist_ok=True)
    web.add(site)
    journal = Journal(folder / "seeds.txt")
    journal.note(site.seeds())
    starts = asyncio.run(facts.ends(on.bootstrap, [on.prefix + topic for topic in READ]))
    own = {topic.removeprefix(on.prefix): ends for topic, ends in starts.items()}
    crawl = Crawling(on, name, site, limits, web, journal, own, began=time.time())
    made = CrawlDefinition(
        id=name, created=time.time_ns() // 1_000_000, delay=limits.delay, parallelism=limits.parallelism,
        scope=Scope(mode="domain", values=(site.domain,)), **definition,
    )  # fmt: skip
    asyncio.run(seal(on, made, journal.read()))
    yield crawl


async def seal(on: Service, definition: CrawlDefinition, seeds: list[str]) -> None:
    """As `fyke crawl` does it: the definition, the seeds, then where the last of them stand."""
    broadcast = Broadcast(on.bootstrap, on.settings)
    async with Admin(on.bootstrap, on.settings) as admin, Writer(on.bootstrap, on.settings) as writer:
        await broadcast.start()
        try:
            assert await publish(broadcast.crawls, definition, writer.send, broadcast.catch_up)
            await writer.seeds(messages.Seed(url=url, crawl=definition.id) for url in seeds)
            sealed = replace(definition, version=2, state="sealed", seal=await admin.end_offsets(URLS.name))
            assert await publish(broadcast.crawls, sealed, writer.send, broadcast.catch_up)
        finally:
            await broadcast.stop()
