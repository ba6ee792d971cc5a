"""Runs a stage on Faust from start to drained stop: `await StageRunner(stage, …).run(stop)`."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agents.clock import BrokerClock
from agents.delivery.core import Delivery, die
from agents.delivery.producer import Producer
from agents.delivery.shards import Shards
from agents.delivery.watchdog import Watchdog
from streams.app import create_app
from streams.metrics import Metrics

if TYPE_CHECKING:
    from agents.delivery.stage import Stage
    from streams.settings import Settings

log = logging.getLogger(__name__)

OVERRUN = 75
"""Exit code of a worker that could not stop within its grace, such as without a broker (EX_TEMPFAIL of sysexits.h)."""

_DRAIN_SHARE = 0.7
"""Of the grace for the work in flight; the rest is for the last commit, leaving the group, flushing the producer."""


class StageRunner:
    """One stage in one process; several may run in one loop, each with an app of its own.

    `datadir` belongs to this worker alone if the stage has tables; `classes`: their `Table` and `TableManager`.
    `clock` learns the broker's time; stages of one process share it.
    """

    def __init__(
        self,
        stage: Stage,
        settings: Settings,
        *,
        bootstrap: str,
        datadir: Path,
        metrics: Metrics | None = None,
        clock: BrokerClock | None = None,
        **classes: type,
    ) -> None:
        prefix = settings.kafka.prefix
        group = prefix + stage.name
        self.metrics = metrics or Metrics()
        self._stage = stage
        self._settings = settings
        self._stopping = False
        self._shards = Shards(stage, prefix, self.metrics, die)
        clock = clock or BrokerClock()
        self._producer = Producer(bootstrap, settings, group, self._undelivered, clock)
        self.app = create_app(
            group,
            settings,
            bootstrap=bootstrap,
            topics=[prefix + topic.name for topic in stage.topics],
            datadir=datadir,
            port=self._shards,
            **classes,
        )
        self.delivery = Delivery(settings, self.metrics, self.app, self._producer, self._shards, stage.name, clock)
        self._watchdog = Watchdog(
            self._shards, self.app.ends, self.app.in_limbo, settings.worker.stuck_after, die
        )  # fmt: skip
        self._export_gauges()

    def ready(self) -> str:
        """Why the stage takes no work now; empty if it does."""
        return "stopping" if self._stopping else self.app.ready()

    def live(self) -> str:
        """Why the process should be restarted; empty if it need not."""
        stalled = self._watchdog.stalled
        return f"no progress for {stalled:.0f} s" if stalled >= self._settings.worker.stuck_after else ""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then drain and leave within the grace.

        Raises `EnvironmentFault` when the broker does not answer or a topic is missing, and what crashed the app. A
        stop that takes longer than the grace (no broker: the last commit cannot be made) ends the process.
        """
        await self._producer.start()
        started = False
        try:
            for topic in self._stage.topics:
                self._producer.partitions(topic)
            await self._stage.start(self.delivery)
            started = True
            self._shards.advance = self.app.batches.advance
            await self._work(stop)
        finally:
            self._stopping = True
            with _deadline(self._settings.worker.grace):
                if started:
                    await self._finish()
                await self._producer.stop()

    async def _work(self, stop: asyncio.Event) -> None:
        starting = asyncio.create_task(self.app.start())
        stopped = asyncio.create_task(stop.wait())
        ended = asyncio.create_task(self.app.ended())
        watchdog = asyncio.create_task(self._watchdog.run())
        try:
            await asyncio.wait((starting, stopped, ended), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await asyncio.wait((stopped, ended), return_when=asyncio.FIRST_COMPLETED)
            if not stopped.done():
                raise self.app.crash_reason or RuntimeError(f"{self.app.conf.id} stopped by itself")
        finally:
            for task in (starting, stopped, ended, watchdog):
                task.cancel()

    async def _finish(self) -> None:
        began = time.monotonic()
        await self.app.batches.feed.hold()
        try:
            async with asyncio.timeout(self._settings.worker.grace * _DRAIN_SHARE):
                await self._stage.drain()
        except TimeoutError:
            log.warning("%s: %d slots are given up and will be repeated", self._stage.name, self._shards.in_flight)
        await self._stage.stop()
        await self.app.stop()
        log.info("%s: stopped in %.1f s", self._stage.name, time.monotonic() - began)

    def _undelivered(self, error: Exception) -> None:
        if not self._stopping:
            die(error)

    def _export_gauges(self) -> None:
        streams, name = self.metrics.streams, self._stage.name
        streams.lag.labels(name).set_function(self._lag)
        streams.returns.labels(name).set_function(lambda: self.app.batches.feed.returns)
        streams.stalled.labels(name).set_function(lambda: self._watchdog.stalled)
        streams.confirmed_age.labels(name).set_function(
            lambda: time.clock_gettime(time.CLOCK_BOOTTIME) - self.app.confirmed_at()
        )

    def _lag(self) -> int:
        positions = self._shards.positions()
        ends = self.app.batches.ends_seen() if positions else {}
        return sum(max(0, ends[tp] - position) for tp, position in positions.items() if tp in ends)


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """End the process if the block takes longer, also when its event loop hangs."""
    timer = threading.Timer(seconds, _overrun, (seconds,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _overrun(seconds: float) -> None:
    log.critical("this worker did not stop within %.0f s and ends at once; nothing that was acked is lost", seconds)
    logging.shutdown()
    os._exit(OVERRUN)
