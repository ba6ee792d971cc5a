"""The composition root: which agents make a stage, and what they are given. Reads like the picture in the README.

seeds -> urls -> intake -> inbox -> frontier -> fetches -> fetcher -> pages -> parser -> records -> exporter
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agents.broadcast import Broadcast
from agents.clock import BrokerClock
from agents.delivery import Batch
from agents.delivery.runner import StageRunner
from agents.ending import Ending
from agents.frontier import FrontierStage
from agents.intake import IntakeStage
from agents.io.admin import Admin
from agents.io.endpoints import Why, advertised, endpoints, skew_check
from agents.io.logs import limit_libraries
from agents.io.seeds import Writer
from agents.reporting import Reporting
from agents.trimming import Trimming
from streams.metrics import Metrics
from streams.state.recovery import RowTables
from streams.state.table import RowTable
from streams.topics import INBOX, Topic

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord

    from agents.delivery import Delivery, Stage
    from streams.settings import Settings

log = logging.getLogger(__name__)


async def run(stages: Sequence[str], settings: Settings, bootstrap: str, stop: asyncio.Event) -> None:
    """Run stages in this process until `stop` is set; when one ends, all end. Raises what ended it."""
    limit_libraries()
    async with AsyncExitStack() as stack:
        worker = Worker(settings, bootstrap, stack, frozenset(stages))
        runners = [await worker.make(name) for name in stages]
        worker.url = await stack.enter_async_context(worker.endpoints(runners))
        log.info("%s: metrics and health at %s", ", ".join(stages), worker.url)
        halt = asyncio.Event()
        work = [asyncio.create_task(runner.run(halt), name=runner.delivery.app.conf.id) for runner in runners]
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((*work, stopped, *worker.background), return_when=asyncio.FIRST_COMPLETED)
        halt.set()
        stopped.cancel()
        results = await asyncio.gather(*work, return_exceptions=True)
        for task in worker.background:
            if not task.done():
                task.cancel()
        results += await asyncio.gather(*worker.background, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


@dataclass(slots=True)
class Worker:
    """What the stages of one process share."""

    settings: Settings
    bootstrap: str
    stack: AsyncExitStack
    stages: frozenset[str]
    """All that run in the process."""
    metrics: Metrics = field(default_factory=Metrics)
    clock: BrokerClock = field(default_factory=BrokerClock)
    background: list[asyncio.Task[None]] = field(default_factory=list)
    url: str = ""
    """Of its endpoints, once they are there."""
    why: Why | None = None
    _broadcast: Broadcast | None = None

    async def make(self, name: str) -> StageRunner:
        """A stage by its name, ready to run."""
        makers = {
            "frontier": self._frontier,
            "fetcher": self._fetcher,
            "parser": self._parser,
            "exporter": self._exporter,
        }
        return await makers[name]()

    def endpoints(self, runners: Sequence[StageRunner]) -> AbstractAsyncContextManager[str]:
        """`/metrics`, `/healthz`, `/readyz` and `/why` of the process."""
        own = self.settings.worker
        skewed = skew_check(lambda: self.clock.skew() if self.clock.heard else None)
        return endpoints(
            own.host, own.port, metrics=self.metrics.text, live=[runner.live for runner in runners],
            ready=[skewed, *(runner.ready for runner in runners)], why=self.why,
        )  # fmt: skip

    async def _frontier(self) -> StageRunner:
        broadcast = await self._known()
        frontier = FrontierStage(
            self.settings.frontier, broadcast, self.clock, lambda: advertised(self.url, self.settings.worker.advertise)
        )
        self.why = frontier.why
        intake = IntakeStage(broadcast, self.settings.frontier.politeness)
        runner = self._runner(Together("frontier", (intake, frontier)), Table=RowTable, TableManager=RowTables)
        self.background.append(asyncio.create_task(self._look_after(frontier, runner, broadcast), name="ending"))
        return runner

    async def _fetcher(self) -> StageRunner:
        from agents.fetcher import FetcherStage

        return self._runner(FetcherStage(self.settings, await self._known()))

    async def _parser(self) -> StageRunner:
        from agents.parser import ParserStage

        cpu_limit = self.settings.parse.page_cpu if len(self.stages) == 1 else None
        return self._runner(ParserStage(self.settings, await self._known(), cpu_limit=cpu_limit))

    async def _exporter(self) -> StageRunner:
        from agents.exporter import ExporterStage

        return self._runner(ExporterStage(self.settings))

    def _runner(self, stage: Stage, **classes: type) -> StageRunner:
        datadir = self.settings.worker.state / stage.name
        self.metrics.streams.clock_skew.labels(stage.name).set_function(self.clock.skew)
        return StageRunner(
            stage,
            self.settings,
            bootstrap=self.bootstrap,
            datadir=datadir,
            metrics=self.metrics,
            clock=self.clock,
            **classes,
        )

    async def _known(self) -> Broadcast:
        """Crawl definitions, and the shards' progress where the frontier needs it."""
        if self._broadcast is None:
            mortal = not self.stages.isdisjoint(("fetcher", "parser"))
            self._broadcast = Broadcast(
                self.bootstrap, self.settings, progress="frontier" in self.stages, deaths=mortal
            )
            self.stack.push_async_callback(self._broadcast.stop)
            await self._broadcast.start()
            self.background.append(asyncio.create_task(self._broadcast.ended(), name="broadcast"))
        return self._broadcast

    async def _look_after(self, frontier: FrontierStage, runner: StageRunner, broadcast: Broadcast) -> None:
        """What the owner of shards does beside their turns: ends, trimming, reports on what is broken."""

        async def send(topic: Topic, key: bytes, value: bytes) -> None:
            await (await runner.delivery.send(topic, value, key=key, partition=0))

        async def report(topic: Topic, record: ConsumerRecord, reason: str) -> None:
            await runner.delivery.unreadable(Batch(topic.name, 0, 0, [record]), record, reason)

        await frontier.started.wait()
        shards = runner.delivery.partitions(INBOX)
        writer = Writer(self.bootstrap, self.settings)  # only to commit: needs no connection of its own
        async with Admin(self.bootstrap, self.settings) as admin:
            await asyncio.gather(
                Ending(broadcast, admin, self.clock, send, shards, frontier.shards).run(),
                Trimming(admin, frontier.shards, self.clock, self.settings.kafka.keep_applied).run(),
                Reporting(broadcast, admin, writer, report, frontier.shards).run(),
            )


class Together:
    """Two agents of one stage: they share its consumer group, each takes the batches of its topics."""

    def __init__(self, name: str, stages: Sequence[Stage]) -> None:
        self.name = name
        self.topics: tuple[Topic, ...] = tuple(topic for stage in stages for topic in stage.topics)
        self._stages = stages
        self._by_topic = {topic.name: stage for stage in stages for topic in stage.topics}

    async def start(self, delivery: Delivery) -> None:
        """Start all."""
        for stage in self._stages:
            await stage.start(delivery)

    async def assigned(self, partitions: frozenset[tuple[str, int]]) -> None:
        """Tell each about its own."""
        for stage in self._stages:
            await stage.assigned(frozenset(p for p in partitions if self._by_topic[p[0]] is stage))

    def revoked(self) -> None:
        """Tell all."""
        for stage in self._stages:
            stage.revoked()

    async def batch(self, batch: Batch) -> None:
        """Hand it to the agent that reads its topic."""
        await self._by_topic[batch.topic].batch(batch)

    async def drain(self) -> None:
        """Drain in order: what the first sends, the second may still take."""
        for stage in self._stages:
            await stage.drain()

    async def stop(self) -> None:
        """Stop all."""
        for stage in self._stages:
            await stage.stop()
