"""A fetch-like loop on Faust with batches beside a plain aiokafka loop with the same acker: CPU per message of both.

`python -m tests.bench.faust_or_loop [--messages N] [--rounds R]`: 200 slots, each message answered by one awaited send.
The middle case is the fetcher's own: a small order in, a page out. The two take turns, in processes of their own; the
first fifth of the messages does not count. Printed are the medians of the rounds and their ratio (a busy machine needs
many rounds, and makes the thread that Faust's consumer has look dear), and what an idle worker uses of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer, OffsetAndMetadata, TopicPartition

from agents.delivery import Batch, Delivery, Shard, Slot, StageRunner
from agents.delivery.acker import Acker
from agents.delivery.producer import Producer
from agents.io.admin import Admin
from streams.feed import TP
from streams.settings import Settings
from streams.topics import FETCHES, PAGES, Topic
from tests.kafka import own_broker, settings_for

SLOTS = 200
IDLE_SECONDS = 15.0


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Pool:
    """Slots without fairness: who wakes takes all it can use, so that what is sent together stays large.

    `asyncio.Semaphore` hands over one slot a loop turn as soon as two wait for it (one call of `batch` a partition).
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._room = asyncio.Event()

    async def take(self) -> None:
        while not self._free:
            self._room.clear()
            await self._room.wait()
        self._free -= 1

    def give(self) -> None:
        self._free += 1
        self._room.set()


class Loop:
    """The work of both: take a slot, send the value on, await its delivery, ack."""

    def __init__(self, expected: int, answer: int) -> None:
        self._answer = text(answer)[0] if answer else b""
        self._expected = expected
        self._slots = Pool(SLOTS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._done = 0
        self._began = 0.0
        self.used = 0.0
        """CPU seconds a message, over all but the first fifth: starting up is another matter."""
        self.ready = asyncio.Event()
        self.finished = asyncio.Event()

    async def start(self, delivery: Delivery | Producer) -> None:
        self._send = delivery.send
        self._partitions = delivery.partitions(PAGES)

    async def take(self, record: Any, slot: Slot) -> None:
        await self._slots.take()
        task = asyncio.create_task(self._work(record, slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, record: Any, slot: Slot) -> None:
        partition = record.offset % self._partitions
        value = self._answer or record.value
        await (await self._send(PAGES, value, key=None, partition=partition))
        slot.done()
        self._slots.give()
        self._done += 1
        if self._done == self._expected // 5:
            self._began = cpu()
        if self._done == self._expected:
            self.used = (cpu() - self._began) / (self._expected - self._expected // 5)
            self.finished.set()


class OnFaust(Loop):
    """The same as a stage."""

    name = "bench"
    topics: tuple[Topic, ...] = (FETCHES,)

    async def start(self, delivery: Delivery | Producer) -> None:
        await super().start(delivery)
        assert isinstance(delivery, Delivery)
        self._delivery = delivery

    async def batch(self, batch: Batch) -> None:
        for record in batch.records:
            await self.take(record, self._delivery.slot(batch, record.offset, record.offset))

    async def assigned(self, partitions: frozenset[Shard]) -> None:
        self.ready.set()

    def revoked(self) -> None:
        pass

    async def drain(self) -> None:
        pass

    async def stop(self) -> None:
        pass


async def on_faust(settings: Settings, loop: OnFaust, idle: float) -> dict[str, float]:
    runner = StageRunner(loop, settings, bootstrap=settings.kafka.bootstrap, datadir=Path(settings.worker.state))
    stop = asyncio.Event()
    task = asyncio.create_task(runner.run(stop))
    await loop.ready.wait()
    if idle:
        await asyncio.sleep(1)
        before = cpu()
        await asyncio.sleep(idle)
        stop.set()
        await task
        return {"idle": (cpu() - before) / idle}
    await loop.finished.wait()
    stop.set()
    await task
    return {"cpu": loop.used}


async def on_loop(settings: Settings, loop: Loop) -> dict[str, float]:
    def failed(error: Exception) -> None:
        raise error

    producer = Producer(settings.kafka.bootstrap, settings, "bench-loop", failed)
    await producer.start()
    await loop.start(producer)
    kafka = settings.kafka
    consumer = AIOKafkaConsumer(
        kafka.prefix + FETCHES.name, bootstrap_servers=kafka.bootstrap, group_id=f"{kafka.prefix}bench",
        enable_auto_commit=False, auto_offset_reset="earliest", max_poll_records=kafka.poll_records,
    )  # fmt: skip
    await consumer.start()
    ackers: dict[TP, Acker] = {}
    positions: dict[TP, int] = {}
    committer = asyncio.create_task(commit(consumer, positions, kafka.commit_interval))
    feeder = asyncio.create_task(feed(consumer, loop, ackers, positions))
    await loop.finished.wait()
    feeder.cancel()
    committer.cancel()
    await consumer.stop()
    await producer.stop()
    return {"cpu": loop.used}


async def feed(consumer: Any, loop: Loop, ackers: dict[TP, Acker], positions: dict[TP, int]) -> None:
    while True:
        for tp, records in (await consumer.getmany(timeout_ms=1000)).items():
            acker = ackers.get(tp)
            if acker is None:
                acker = ackers[tp] = Acker(0, lambda _, position, tp=tp: positions.__setitem__(tp, position))  # type: ignore[misc]  # the lambda's own default
            acker.arrive([record.offset for record in records])
            for record in records:
                await loop.take(record, acker.take(record.offset, record.offset))


async def commit(consumer: Any, positions: Mapping[TP, int], interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        if positions:
            await consumer.commit({TopicPartition(*tp): OffsetAndMetadata(at, "") for tp, at in positions.items()})


def text(size: int) -> list[bytes]:
    """Values that compress about as well as HTML."""
    letters = bytes(random.Random(1).choices(b"etaoin shrdlu <a href=>", k=3 * size))
    return [letters[start : start + size] for start in range(0, 2 * size, max(1, size // 50))]


def child(kind: str, settings: str, messages: int, answer: int) -> None:
    loaded = Settings.model_validate_json(settings)

    async def main() -> dict[str, float]:
        if kind == "loop":
            return await on_loop(loaded, Loop(messages, answer))
        return await on_faust(loaded, OnFaust(messages, answer), IDLE_SECONDS if kind == "idle" else 0.0)

    uvloop.install()
    print(json.dumps(asyncio.run(main())))


def measure(kind: str, settings: Settings, messages: int, answer: int = 0) -> float:
    command = [sys.executable, "-m", "tests.bench.faust_or_loop", "--child", kind, "--messages", str(messages)]
    command += ["--answer", str(answer), "--settings", settings.model_dump_json()]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return float(next(iter(json.loads(run.stdout).values())))


async def fill(settings: Settings, messages: int, size: int) -> int:
    """Input for a round; how many messages it became."""
    async with Admin(settings.kafka.bootstrap, settings) as admin:
        await admin.apply_topics()
    producer = Producer(settings.kafka.bootstrap, settings, "bench-fill", print)
    await producer.start()
    values = text(size)
    topic = producer.name(FETCHES)
    partitions = producer.partitions(FETCHES)
    items = [(None, values[n % len(values)]) for n in range(messages // partitions)]
    for partition in range(partitions):
        await producer.send_all(topic, partition, items)
    await producer.stop()
    return len(items) * partitions


def compare(bootstrap: str, folder: Path, size: int, answer: int, messages: int, rounds: int) -> None:
    figures: dict[str, list[float]] = {"loop": [], "faust": []}
    for number in range(rounds):
        for kind, found in figures.items():
            settings = settings_for(folder, bootstrap, f"b{size}-{answer}-{number}-{kind}.")
            count = asyncio.run(fill(settings, messages, size))
            found.append(measure(kind, settings, count, answer) * 1e6)
    loop, faust = median(figures["loop"]), median(figures["faust"])
    shape = f"{size} B in, {answer or size} B out"
    print(f"{shape:26} plain loop {loop:6.1f} µs, Faust {faust:6.1f} µs, ratio {faust / loop:.3f}", flush=True)
    for kind, found in figures.items():
        print(f"  {kind:5}", *(f"{value:6.1f}" for value in sorted(found)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--child", default="")
    parser.add_argument("--settings", default="")
    parser.add_argument("--answer", type=int, default=0)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.settings, options.messages, options.answer)
        return
    with tempfile.TemporaryDirectory() as folder, own_broker(Path(folder)) as broker:
        idle = settings_for(Path(folder), broker.bootstrap, "idle.")
        asyncio.run(fill(idle, 0, 200))
        print(f"idle: {measure('idle', idle, 1):.2%} of a core; load {os.getloadavg()[0]:.1f}", flush=True)
        began = time.monotonic()
        for size, answer, share in ((200, 0, 1), (200, 26_000, 3), (26_000, 0, 3)):
            compare(broker.bootstrap, Path(folder), size, answer, options.messages // share, options.rounds)
        print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
