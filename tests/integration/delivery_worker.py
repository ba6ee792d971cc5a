"""A worker for the loss tests: reads `fetches`, works on up to 200 messages for a random while, writes to `records`.

`python -m tests.integration.delivery_worker SETTINGS NAME SECONDS`: settings as JSON, mean time of work in seconds.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import uvloop

from agents.delivery import Batch, Delivery, Shard, Slot, StageRunner
from streams.settings import Settings
from streams.topics import FETCHES, RECORDS, Topic

log = logging.getLogger(__name__)

SLOTS = 200


class Relay:
    """Like a fetcher: many at a time, each answered by one message whose delivery is awaited before the ack."""

    name = "relay"
    topics: tuple[Topic, ...] = (FETCHES,)

    def __init__(self, worker: str, seconds: float) -> None:
        self._worker = worker.encode()
        self._seconds = seconds
        self._slots = asyncio.Semaphore(SLOTS)
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()

    async def start(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._partitions = delivery.partitions(RECORDS)
        self._teller = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        while True:
            log.info("CONFIRMED %.1f", time.clock_gettime(time.CLOCK_BOOTTIME) - self._delivery.app.confirmed_at())
            await asyncio.sleep(0.2)

    async def assigned(self, partitions: frozenset[Shard]) -> None:
        log.info("ASSIGNED %s", sorted(number for _, number in partitions))

    def revoked(self) -> None:
        log.info("REVOKED with %d in flight", len(self._tasks))
        for task in self._tasks:
            task.cancel()

    async def batch(self, batch: Batch) -> None:
        for record in batch.records:
            await self._slots.acquire()
            slot = self._delivery.slot(batch, record.offset, record.offset)
            task = asyncio.create_task(self._work(record.value, record.offset, slot))
            self._tasks.add(task)
            task.add_done_callback(self._finished)

    async def drain(self) -> None:
        log.info("DRAIN %d", len(self._tasks))
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        self._teller.cancel()
        for task in self._tasks:
            task.cancel()
        log.info("STOP after %s", dict(self.counts))

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._delivery.fatal(error)

    async def _work(self, value: bytes, offset: int, slot: Slot) -> None:
        await asyncio.sleep(random.random() * 2 * self._seconds)
        if self._worker == b"bug" and offset == 3:
            value = b"%d" % (1 // 0)
        if not slot.alive:
            return
        await (await self._delivery.send(RECORDS, value + b"|" + self._worker, partition=offset % self._partitions))
        slot.done()
        self.counts["done"] += 1


async def work(settings: Settings, name: str, seconds: float) -> None:
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    runner = StageRunner(
        Relay(name, seconds), settings, bootstrap=settings.kafka.bootstrap, datadir=Path(settings.worker.state) / name
    )
    await runner.run(stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    uvloop.install()
    asyncio.run(work(Settings.model_validate_json(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
