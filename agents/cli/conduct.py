"""One crawl from its start to its end, as `fyke crawl` and `fyke resume` conduct it.

workers load their code  |  the broker starts          (both at once)
topics, name, folder, definition, exporter
with several workers of a stage: wait until all of them are there
seeds are produced and acknowledged, then the crawl is sealed with the end offsets of `urls`
watch, until the frontier writes the end to `crawls`
wait, until the exporter has committed past the ends of `records` and `failures`
workers stop, then the broker
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from agents.broadcast import Broadcast, publish
from agents.cli.cluster import Cluster
from agents.cli.configuration import override
from agents.cli.outputs import Plan, make_folder, write_plan
from agents.cli.places import Places, Slot
from agents.cli.view import Snapshot, View
from agents.io.admin import Admin
from agents.io.members import gather, sign_off
from agents.io.seeds import Writer
from streams import messages
from streams.definitions import CrawlDefinition
from streams.errors import EnvironmentFault, UsageError
from streams.settings import Settings
from streams.topics import EXPORTER_GROUPS, FAILURES, RECORDS, URLS

T = TypeVar("T")

STAGES = ("frontier", "fetcher", "parser")  # as many of each as --workers says; always one exporter
_LOOK = 0.25
_TRIES = 5  # times a change is made anew because somebody else's came first
_GATHERING = 20.0  # seconds to wait for all workers; with fewer the crawl begins as well
_PAUSE_PATIENCE = 5.0
_SETTLING = 40.0  # seconds for what is in flight when a crawl is cancelled: a request takes 30 at most
_KILL_AFTER = 5.0  # seconds beyond the workers' own grace


class Interrupted(Exception):
    """Ctrl-C, SIGTERM or the terminal was closed."""


class Workers(Protocol):
    """The crawl's workers: child processes (`Supervisor`), or tasks of this process (`InProcess`)."""

    failed: asyncio.Future[EnvironmentFault]

    @property
    def restarts(self) -> int:
        """How often one had to be started again."""

    async def start(self, slot: Slot, settings: Settings) -> None:
        """Start a worker; it waits for `connect`."""

    def connect(self, bootstrap: str) -> None:
        """Tell all where the broker is."""

    def broker_away(self) -> None:
        """The broker has died; it is being started again."""

    def broker_back(self) -> None:
        """The broker takes connections again."""

    async def stop(self, grace: float) -> list[str]:
        """Let all finish what is in flight, for `grace` seconds at most; the names of those that were killed."""

    def kill(self) -> None:
        """End all at once."""


@dataclass(frozen=True, slots=True)
class Report:
    """How it went. `result` is empty after an interruption."""

    plan: Plan
    folder: Path | None  # None: interrupted before it was made
    result: str
    snapshot: Snapshot
    before: int  # pages that earlier runs of this crawl had fetched
    restarts: int
    killed: list[str]


class Conductor:
    """Conducts the crawl of `plan`: a new one, unless `folder` has been made for it already (then it goes on)."""

    def __init__(self, plan: Plan, settings: Settings, view: View, *, folder: Path | None, out: Path | None) -> None:
        self._plan = plan
        self._settings = settings
        self._view = view
        self.folder = folder  # once it is made, `fyke resume` can go on
        self._out = out
        self._began = time.monotonic()
        self._snapshot = Snapshot(plan.name, "starting", 0.0, limit=plan.definition.limit)
        self._before = 0
        self._bootstrap = ""
        self._members: dict[str, list[str]] = {}
        self._interrupted = asyncio.get_running_loop().create_future()

    async def run(self, workers: Workers) -> Report:
        """Conduct it. Raises `FykeError`; an interruption is no error but a report without a result."""
        places, cluster = Places(self._settings), Cluster(self._settings, self._view.say)
        result, grace = "", _KILL_AFTER
        with self._signals(workers):
            try:
                result = await self._until_done(workers, places, cluster)
                grace += self._settings.worker.grace
            except Interrupted:
                self._view.say("Stopping: what is in flight is finished (Ctrl-C again: stop at once)")
                grace += self._settings.worker.grace
            finally:
                self._show("stopping")
                killed = await workers.stop(grace)
                if self._bootstrap:
                    await sign_off(self._bootstrap, self._settings, self._members_by_group())
                await cluster.release()
                places.leave()
        return Report(self._plan, self.folder, result, self._snapshot, self._before, workers.restarts, killed)

    async def _until_done(self, workers: Workers, places: Places, cluster: Cluster) -> str:
        """All that can be interrupted. Returns the crawl's result."""
        places.enter()
        starting = asyncio.ensure_future(cluster.start())
        for stage in STAGES:
            for _ in range(self._plan.workers):
                await self._start_worker(workers, places.slot(stage), {})
        self._bootstrap = bootstrap = await self._unless(workers, starting)
        keeper = asyncio.ensure_future(cluster.keep_running(workers.broker_away, workers.broker_back))
        keeper.add_done_callback(lambda done: _pass_on(done, workers.failed))
        try:
            async with AsyncExitStack() as stack:
                admin = await stack.enter_async_context(Admin(bootstrap, self._settings))
                # A Kafka of somebody's own is provisioned by `fyke topics apply`, perhaps by another person.
                provision = admin.check_topics if self._settings.kafka.bootstrap else admin.apply_topics
                await self._unless(workers, provision())
                writer = await stack.enter_async_context(Writer(bootstrap, self._settings))
                broadcast = Broadcast(bootstrap, self._settings, progress=True)
                stack.push_async_callback(broadcast.stop)
                await self._unless(workers, broadcast.start())
                return await self._crawl(workers, places.slot("exporter"), _Kafka(bootstrap, admin, writer, broadcast))
        finally:
            keeper.cancel()

    async def _crawl(self, workers: Workers, exporter: Slot, kafka: _Kafka) -> str:
        """From a running broker to the end of the export."""
        await self._unless(workers, self._open(kafka))
        assert self.folder is not None  # noqa: S101 - `_open` made it
        export = {"export.out": self.folder.absolute(), "export.crawl": self._plan.name}
        await self._start_worker(workers, exporter, export)
        workers.connect(kafka.bootstrap)
        if self._plan.workers > 1:
            await self._unless(workers, gather(kafka.bootstrap, self._settings, self._members_by_group(), _GATHERING))
        try:
            await self._unless(workers, self._go_on(kafka))
            if not self._plan.sealed:
                await self._unless(workers, self._seal(kafka))
            result = await self._unless(workers, self._watch(kafka))
            await self._unless(workers, self._exported(kafka))
        except (Interrupted, EnvironmentFault):
            await self._pause(kafka)
            raise
        self._keep(result=result)
        return result

    # The steps

    async def _start_worker(self, workers: Workers, slot: Slot, extra: Mapping[str, object]) -> None:
        member = slot.member_name(self._settings.kafka.bootstrap)
        self._members.setdefault(slot.stage, []).append(member)
        own = {"worker.state": slot.folder, "worker.name": member, "worker.port": 0}
        await workers.start(slot, override(self._settings, {**own, **extra}))

    async def _open(self, kafka: _Kafka) -> None:
        """Give a new crawl its name, folder, definition and the start of its export."""
        if self.folder is None:
            name, self.folder = make_folder(
                self._plan.name, self._out, kafka.broadcast.crawls.__contains__, exact=self._plan.named
            )
            definition = msgspec.structs.replace(self._plan.definition, id=name, created=time.time_ns() // 1_000_000)
            self._keep(name=name, definition=definition)
        name = self._plan.name
        known = kafka.broadcast.crawls.get(name)
        if known is None:
            if self._plan.sealed:
                raise EnvironmentFault(
                    f"the broker knows no crawl {name}: its data was removed, or this is another broker",
                    "Name the state folder or broker of the crawl (--state, --kafka), or crawl again.",
                )
            await kafka.begin_export(name)
            if not await kafka.publish(self._plan.definition):
                self.folder = None  # it holds nothing that could go on
                raise UsageError(f"another crawl took the name {name} at this moment", "Start again, or pass --name.")
            return
        if known.seal is not None and not self._plan.sealed:  # killed before it could note that
            self._keep(sealed=True)

    async def _go_on(self, kafka: _Kafka) -> None:
        """Let a crawl that was paused go on."""
        known = kafka.broadcast.crawls[self._plan.name]
        if known.state == "paused":
            await kafka.update(known.id, state="open" if known.seal is None else "sealed")

    async def _seal(self, kafka: _Kafka) -> None:
        """Produce the seeds; when all are acknowledged, say where the last of them stand."""
        name = self._plan.name
        await kafka.writer.seeds(messages.Seed(url=url, crawl=name) for url in self._plan.seeds)
        if not await kafka.update(name, state="sealed", seal=await kafka.admin.end_offsets(URLS.name)):
            raise EnvironmentFault(f"the crawl {name} was changed by somebody else", f"Go on with: fyke resume {name}")
        self._keep(sealed=True)

    async def _watch(self, kafka: _Kafka) -> str:
        """Show what happens until the frontier writes the end. Returns how it ended."""
        name = self._plan.name
        self._before = kafka.broadcast.board.totals(name).done
        while (state := kafka.broadcast.crawls[name].state) != "ended":
            kafka.broadcast.check()
            phase = f"paused (fyke unpause {name})" if state == "paused" else "crawling"
            self._show(phase, kafka.broadcast.board.totals(name))
            await asyncio.sleep(_LOOK)
        if kafka.broadcast.crawls[name].result == "cancelled":
            await self._settled(kafka)
        await kafka.broadcast.catch_up()
        self._show("exporting", kafka.broadcast.board.totals(name))
        return kafka.broadcast.crawls[name].result

    async def _settled(self, kafka: _Kafka) -> None:
        """Return when nothing of a crawl that was cancelled is open any more; without patience for what is stuck."""
        until = time.monotonic() + _SETTLING
        while (counts := kafka.broadcast.board.totals(self._plan.name)).open and time.monotonic() < until:
            self._show("cancelled: finishing what is in flight", counts)
            await asyncio.sleep(_LOOK)

    async def _exported(self, kafka: _Kafka) -> None:
        """Return when the exporter has committed everything that was in its topics when the crawl had ended."""
        group = exporter_group(self._plan.name)
        for topic in (RECORDS.name, FAILURES.name):
            ends = await kafka.admin.end_offsets(topic)
            while True:
                committed = await kafka.admin.committed(group, topic)
                if all(committed.get(partition, 0) >= end for partition, end in ends.items()):
                    break
                self._show("exporting")
                await asyncio.sleep(_LOOK)

    async def _pause(self, kafka: _Kafka) -> None:
        """Let no later crawl on this broker go on with this one unasked. Best effort: the broker may be gone."""
        with contextlib.suppress(EnvironmentFault, TimeoutError):
            async with asyncio.timeout(_PAUSE_PATIENCE):
                if kafka.broadcast.crawls[self._plan.name].state in {"open", "sealed"}:
                    await kafka.update(self._plan.name, state="paused")

    # How it is done

    def _members_by_group(self) -> dict[str, list[str]]:
        """The workers as their groups know them."""
        groups = self._members | {exporter_group(self._plan.name): self._members.get("exporter", [])}
        return {group: names for group, names in groups.items() if group != "exporter"}

    def _keep(self, **changes: object) -> None:
        self._plan = msgspec.structs.replace(self._plan, **changes)
        assert self.folder is not None  # noqa: S101 - callers made it
        write_plan(self.folder, self._plan)

    def _show(self, phase: str, counts: messages.CrawlCounts | None = None) -> None:
        last = self._snapshot
        if counts is None:
            counts = last.counts
        elif counts.hosts < last.counts.hosts:  # the frontier counts hosts with open URLs; people want those seen
            counts = msgspec.structs.replace(counts, hosts=last.counts.hosts)
        self._snapshot = Snapshot(self._plan.name, phase, time.monotonic() - self._began, counts, last.limit)
        self._view.show(self._snapshot)

    async def _unless(self, workers: Workers, work: Awaitable[T]) -> T:
        """Await `work`, unless somebody interrupts or the workers or the broker are beyond help."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._interrupted, workers.failed}, return_when=asyncio.FIRST_COMPLETED)
            if workers.failed.done():
                raise workers.failed.result()
            if self._interrupted.done() and not task.done():
                raise Interrupted
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    @contextlib.contextmanager
    def _signals(self, workers: Workers) -> Iterator[None]:
        """The first signal interrupts, the second kills."""

        def received() -> None:
            if self._interrupted.done():
                workers.kill()
            else:
                self._interrupted.set_result(None)

        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for sign in signals:
            loop.add_signal_handler(sign, received)
        try:
            yield
        finally:
            for sign in signals:
                loop.remove_signal_handler(sign)


@dataclass(frozen=True, slots=True)
class _Kafka:
    """The connections of a conductor."""

    bootstrap: str
    admin: Admin
    writer: Writer
    broadcast: Broadcast

    async def publish(self, definition: CrawlDefinition) -> bool:
        """Publish a definition; False if another one of that version came first."""
        return await publish(self.broadcast.crawls, definition, self.writer.send, self.broadcast.catch_up)

    async def update(self, name: str, **changes: object) -> bool:
        """Publish the next version of a definition, also if somebody changes its rules at the same moment."""
        for _ in range(_TRIES):
            known = self.broadcast.crawls[name]
            changes = {"by": "fyke crawl", **changes}
            if await self.publish(msgspec.structs.replace(known, version=known.version + 1, **changes)):
                return True
        return False

    async def begin_export(self, name: str) -> None:
        """Let the exporter of a new crawl begin at the present: what earlier crawls left is not its business."""
        ends = {topic: await self.admin.end_offsets(topic) for topic in (RECORDS.name, FAILURES.name)}
        await self.writer.commit(exporter_group(name), ends)


def exporter_group(crawl: str) -> str:
    """The consumer group of the exporter of one crawl, without the prefix."""
    return EXPORTER_GROUPS + crawl


def _pass_on(done: asyncio.Future[EnvironmentFault], failed: asyncio.Future[EnvironmentFault]) -> None:
    if not done.cancelled() and not failed.done():
        error = done.exception()
        failed.set_result(error if isinstance(error, EnvironmentFault) else done.result())
