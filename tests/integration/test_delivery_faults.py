"""Workers as processes of their own, killed, stopped, frozen, started: nothing is lost, and nothing hangs."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from agents.delivery.core import FATAL
from agents.delivery.runner import OVERRUN
from agents.io.admin import Admin
from streams.errors import Exit
from streams.settings import Settings
from tests.kafka import TestBroker, own_broker, settings_for

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SESSION = 6.0
PATIENCE = 120.0

ENDING = 3.0
"""Seconds beyond its grace in which a process is surely gone, also on a busy machine."""


@dataclass
class Fleet:
    """Worker processes, the input they were given and the output seen."""

    settings: Settings
    folder: Path
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    seen: Counter[bytes] = field(default_factory=Counter)
    sent: int = 0

    def start(self, name: str, seconds: float) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.workers[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.delivery_worker", self.settings.model_dump_json(), name,
                 str(seconds)], stdout=log, stderr=log,
            )  # fmt: skip

    def signal(self, name: str, sign: signal.Signals) -> None:
        self.workers[name].send_signal(sign)

    async def gone(self, name: str) -> int:
        async with asyncio.timeout(PATIENCE):
            return await asyncio.to_thread(self.workers[name].wait)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    async def produce(self, count: int) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.settings.kafka.bootstrap, linger_ms=20)
        await producer.start()
        topic = f"{self.settings.kafka.prefix}fetches"
        numbers = range(self.sent, self.sent + count)
        await asyncio.gather(*[await producer.send(topic, b"%d" % n, key=b"%d" % n) for n in numbers])
        await producer.stop()
        self.sent += count

    async def collect(self) -> None:
        consumer = AIOKafkaConsumer(
            f"{self.settings.kafka.prefix}records",
            bootstrap_servers=self.settings.kafka.bootstrap, auto_offset_reset="earliest",
        )  # fmt: skip
        await consumer.start()
        try:
            async for record in consumer:
                self.seen[record.value.partition(b"|")[0]] += 1
        finally:
            await consumer.stop()

    async def share(self, part: float, seconds: float = PATIENCE) -> None:
        await until(lambda: len(self.seen) >= part * self.sent, seconds)


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - other processes set no events
            await asyncio.sleep(0.05)


@asynccontextmanager
async def fleet(bootstrap: str, prefix: str, folder: Path, **groups: Any) -> AsyncIterator[Fleet]:
    settings = settings_for(
        folder, bootstrap, prefix,
        kafka={"session_timeout": SESSION, "heartbeat": 1, "rebalance_timeout": 15, "poll_records": 100,
               **groups.pop("kafka", {})},
        worker={"grace": 10, **groups.pop("worker", {})},
    )  # fmt: skip
    async with Admin(bootstrap, settings) as admin:
        await admin.apply_topics()
    ours = Fleet(settings, folder)
    collector = asyncio.create_task(ours.collect())
    try:
        yield ours
    finally:
        for worker in ours.workers.values():
            if worker.poll() is None:
                worker.kill()
                worker.wait()
        collector.cancel()
        await asyncio.wait((collector,))


async def lag(ours: Fleet) -> int:
    async with Admin(ours.settings.kafka.bootstrap, ours.settings) as admin:
        ends = await admin.end_offsets("fetches")
        return sum(ends.values()) - sum((await admin.committed("relay", "fetches")).values())


@pytest.mark.timeout(300)
async def test_nothing_is_lost(broker: TestBroker, tmp_path: Path) -> None:
    """Kill -9, a restart, SIGTERM, a joiner, and a worker frozen for longer than the session time-out, under load."""
    async with fleet(broker.bootstrap, broker.prefix, tmp_path) as ours:
        await ours.produce(12_000)
        for name in ("a", "b"):
            ours.start(name, 0.25)
        await ours.share(0.1)
        ours.signal("a", signal.SIGKILL)
        ours.start("c", 0.25)
        await ours.share(0.3)
        ours.signal("b", signal.SIGSTOP)
        await asyncio.sleep(SESSION + 2)
        await ours.produce(1_000)
        ours.signal("b", signal.SIGCONT)
        ours.start("d", 0.25)
        await ours.share(0.7)
        ours.signal("c", signal.SIGTERM)
        assert await ours.gone("c") == 0
        await ours.share(1.0)
        await asyncio.sleep(2 * ours.settings.kafka.commit_interval)
        assert await lag(ours) == 0
        for name in ("b", "d"):
            ours.signal(name, signal.SIGTERM)
            assert await ours.gone(name) == 0
        assert len(ours.seen) == ours.sent
        assert await lag(ours) == 0


async def test_sigterm_finishes_what_is_in_flight(broker: TestBroker, tmp_path: Path) -> None:
    async with fleet(broker.bootstrap, broker.prefix, tmp_path) as ours:
        await ours.produce(1_000)
        ours.start("a", 1.0)
        await until(lambda: len(ours.seen) > 20)
        ours.signal("a", signal.SIGTERM)
        assert await ours.gone("a") == 0
        drained = re.search(r"DRAIN (\d+)", ours.log("a"))
        assert drained is not None
        assert int(drained[1]) > 20
        await asyncio.sleep(0.5)
        assert max(ours.seen.values()) == 1
        assert await lag(ours) == ours.sent - len(ours.seen)


@pytest.mark.alone
async def test_a_drain_longer_than_the_grace_is_cut(broker: TestBroker, tmp_path: Path) -> None:
    async with fleet(broker.bootstrap, broker.prefix, tmp_path, worker={"grace": 3}) as ours:
        await ours.produce(300)
        ours.start("a", 60.0)
        await until(lambda: "ASSIGNED" in ours.log("a"))
        await asyncio.sleep(1)
        began = time.monotonic()
        ours.signal("a", signal.SIGTERM)
        assert await ours.gone("a") == 0
        assert time.monotonic() - began < 3 + ENDING
        assert "slots are given up" in ours.log("a")


async def test_a_frozen_worker_is_not_confirmed_when_it_thaws(broker: TestBroker, tmp_path: Path) -> None:
    async with fleet(broker.bootstrap, broker.prefix, tmp_path) as ours:
        ours.start("a", 0.1)
        await until(lambda: "CONFIRMED 0" in ours.log("a"))
        ours.signal("a", signal.SIGSTOP)
        await asyncio.sleep(SESSION + 1)
        at = len(ours.log("a"))
        ours.signal("a", signal.SIGCONT)
        await until(lambda: ours.log("a").count("CONFIRMED", at) >= 2)
        ages = [float(age) for age in re.findall(r"CONFIRMED (\S+)", ours.log("a")[at:])]
        assert ages[0] > SESSION
        await until(lambda: "CONFIRMED 0" in ours.log("a")[at:])


async def test_a_programming_error_ends_the_process_and_loses_nothing(broker: TestBroker, tmp_path: Path) -> None:
    async with fleet(broker.bootstrap, broker.prefix, tmp_path) as ours:
        await ours.produce(50)
        ours.start("bug", 0.0)  # a worker of this name fails at one message
        assert await ours.gone("bug") == FATAL
        assert "ZeroDivisionError" in ours.log("bug")
        ours.start("a", 0.0)
        await ours.share(1.0)


TWINS: dict[str, dict[str, float]] = {
    "heartbeat": {"heartbeat": 0.3, "commit_interval": 20.0},
    "commit": {"heartbeat": 10.0, "session_timeout": 40.0},
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("first", TWINS)
async def test_of_two_workers_with_one_name_one_ends(broker: TestBroker, tmp_path: Path, first: str) -> None:
    """They would take the partitions from each other for ever, at every heartbeat or commit, whichever comes first.

    Mostly the older one ends; which one depends on who asks the coordinator first while the other is a member.
    """
    worker = {"name": "pod-0", "grace": 5}
    async with fleet(broker.bootstrap, broker.prefix, tmp_path, worker=worker, kafka=TWINS[first]) as ours:
        await ours.produce(2_000)
        ours.start("older", 0.2)
        await until(lambda: len(ours.seen) > 50)
        ours.start("newer", 0.2)
        await until(lambda: any(worker.poll() is not None for worker in ours.workers.values()))
        (ended,) = [name for name, worker in ours.workers.items() if worker.poll() is not None]
        (left,) = ours.workers.keys() - {ended}
        assert await ours.gone(ended) == Exit.ENVIRONMENT
        assert "another worker has joined the group" in ours.log(ended)
        assert "FYKE_WORKER_NAME" in ours.log(ended)
        await ours.share(1.0)
        assert ours.workers[left].poll() is None


@pytest.mark.alone
async def test_sigterm_in_a_rebalance_that_does_not_end(broker: TestBroker, tmp_path: Path) -> None:
    """A frozen member holds up the rebalance for its session; another one that is told to stop does not wait for it."""
    async with fleet(broker.bootstrap, broker.prefix, tmp_path, worker={"grace": 2}) as ours:
        await ours.produce(3_000)
        for name in ("a", "b"):
            ours.start(name, 0.2)
        await until(lambda: all("ASSIGNED" in ours.log(name) for name in ("a", "b")) and len(ours.seen) > 50)
        ours.signal("b", signal.SIGSTOP)
        revoked = ours.log("a").count("REVOKED")
        ours.start("c", 0.2)
        await until(lambda: ours.log("a").count("REVOKED") > revoked)
        began = time.monotonic()
        ours.signal("a", signal.SIGTERM)
        assert await ours.gone("a") in {0, OVERRUN}
        assert time.monotonic() - began < 2 + ENDING
        ours.signal("b", signal.SIGKILL)
        await ours.share(1.0)


@pytest.mark.alone
@pytest.mark.timeout(300)
async def test_without_a_broker(tmp_path: Path) -> None:
    """SIGTERM does not hang although the last commit is impossible; a worker that cannot work is ended in the end."""
    with own_broker(tmp_path / "kafka") as own:
        kafka = {"request_timeout": 7}
        async with fleet(own.bootstrap, "gone.", tmp_path, worker={"grace": 4, "stuck_after": 8}, kafka=kafka) as ours:
            await ours.produce(20_000)
            ours.start("sends", 0.1)
            ours.start("stops", 0.2)
            await until(lambda: "ASSIGNED" in ours.log("stops")[-2000:] and len(ours.seen) > 500)
            own.kill()
            began = time.monotonic()
            ours.signal("stops", signal.SIGTERM)
            # Whether the last commit fails at once or never returns depends on where the outage met the client.
            assert await ours.gone("stops") in {0, OVERRUN}
            assert time.monotonic() - began < 4 + ENDING
            assert await ours.gone("sends") == FATAL
            assert "nothing was acked for" in ours.log("sends")
