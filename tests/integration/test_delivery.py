"""Delivery against a real broker, in one process: sending, acks and commits, take-over, readiness."""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from agents.clock import BrokerClock
from agents.delivery import Batch, Delivery, Shard, StageRunner
from agents.delivery.producer import Item, Producer
from agents.io.admin import Admin
from streams.errors import EnvironmentFault, MessageError
from streams.settings import Settings
from streams.topics import FAILURES, FETCHES, INBOX, PAGES, RECORDS, Topic
from streams.transport import MembershipLost
from tests.kafka import TestBroker, settings_for

pytestmark = pytest.mark.broker


@dataclass
class Recorder:
    """Acks what it gets, unless told to hold; remembers all."""

    name: str = "recorder"
    topics: tuple[Topic, ...] = (FETCHES,)
    hold: bool = False
    got: list[tuple[int, int]] = field(default_factory=list)
    owned: frozenset[Shard] = frozenset()
    held: list[Any] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    delivery: Delivery | None = None

    async def start(self, delivery: Delivery) -> None:
        self.delivery = delivery

    async def assigned(self, partitions: frozenset[Shard]) -> None:
        self.owned = partitions
        self.events.append("assigned")

    def revoked(self) -> None:
        self.owned = frozenset()
        self.events.append("revoked")

    async def batch(self, batch: Batch) -> None:
        assert self.delivery is not None
        slot = self.delivery.slot(batch, batch.first, batch.last)
        self.got += [(batch.partition, record.offset) for record in batch.records]
        if self.hold:
            self.held.append(slot)
        else:
            slot.done()

    async def drain(self) -> None:
        self.events.append("drain")

    async def stop(self) -> None:
        self.events.append("stop")


def settings_of(broker: TestBroker, name: str = "", **kafka: Any) -> Settings:
    return settings_for(
        broker.settings.worker.state,
        broker.bootstrap,
        broker.prefix,
        kafka={"session_timeout": 6, "heartbeat": 0.5, "commit_interval": 0.3, **kafka},
        worker={"name": name, "grace": 10},
    )


@asynccontextmanager
async def running(stage: Any, settings: Settings, clock: BrokerClock | None = None) -> AsyncIterator[StageRunner]:
    runner = StageRunner(
        stage,
        settings,
        bootstrap=settings.kafka.bootstrap,
        datadir=Path(settings.worker.state) / "tables",
        clock=clock,
    )
    stop = asyncio.Event()
    task = asyncio.create_task(runner.run(stop))
    try:
        await until(lambda: task.done() or not runner.ready())
        if task.done():
            task.result()
        yield runner
    finally:
        stop.set()
        await task


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the worker sets no events for tests
            await asyncio.sleep(0.01)


@pytest.fixture
async def admin(broker: TestBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.bootstrap, broker.settings) as connected:
        await connected.apply_topics()
        yield connected


@pytest.fixture
async def plain(broker: TestBroker) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
    await producer.start()
    yield producer
    await producer.stop()


async def read(broker: TestBroker, topic: Topic, partition: int, end: int) -> list[Any]:
    tp = TopicPartition(broker.prefix + topic.name, partition)
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([tp])
        found: list[Any] = []
        async with asyncio.timeout(60):
            while not found or found[-1].offset < end:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += records
        return found
    finally:
        await consumer.stop()


async def produce(plain: AIOKafkaProducer, broker: TestBroker, values: Sequence[bytes], partition: int = 0) -> None:
    futures = [await plain.send(broker.prefix + FETCHES.name, value, partition=partition) for value in values]
    await asyncio.gather(*futures)


async def test_messages_arrive_as_they_were_sent(broker: TestBroker, admin: Admin) -> None:
    stage = Recorder()
    async with running(stage, settings_of(broker)) as runner:
        assert runner.delivery.partitions(PAGES) == 4
        send = runner.delivery.send
        first = await send(PAGES, b"body", key=b"k", partition=1, headers=(("url", b"u"), ("status", b"200")))
        assert (await first).offset == 0
        items: list[Item] = [(b"%d" % i, random.randbytes(900)) for i in range(3000)]  # three batches
        items.insert(1500, (b"large", random.randbytes(3_000_000)))
        items.append((b"deleted", None))
        last = await runner.delivery.send_all(PAGES, 1, items)
        assert last == len(items)
        with pytest.raises(MessageError):
            _ = await send(PAGES, bytes(broker.settings.kafka.max_message), partition=0)
        with pytest.raises(MessageError):
            _ = await send(FETCHES, bytes(1_100_000), partition=0)
        with pytest.raises(MessageError):
            await runner.delivery.send_all(PAGES, 2, [(b"a", b"1"), (b"b", bytes(broker.settings.kafka.max_message))])
        largest = await send(PAGES, random.randbytes(runner.delivery.largest(PAGES)), partition=3)
        assert (await largest).offset == 0
        small = await send(FETCHES, random.randbytes(runner.delivery.largest(FETCHES)), partition=3)
        assert (await small).offset == 0
        assert await runner.delivery.send_all(PAGES, 2, []) == -1
    page, *rest = await read(broker, PAGES, 1, last)
    assert (page.key, page.value, page.headers) == (b"k", b"body", (("url", b"u"), ("status", b"200")))
    assert [(record.key, record.value) for record in rest] == items
    assert (await admin.end_offsets("pages"))[2] == 0


async def test_acked_is_committed_and_no_more(broker: TestBroker, admin: Admin, plain: AIOKafkaProducer) -> None:
    stage = Recorder()
    async with running(stage, settings_of(broker)) as runner:
        await until(lambda: len(stage.owned) == 4)
        await asyncio.sleep(0.7)
        committed = await admin.committed("recorder", "fetches")
        assert committed == dict.fromkeys(range(4), 0)  # so that the lag is known where no message ever came
        await produce(plain, broker, [b"x"] * 10)
        await until(lambda: len(stage.got) == 10)
        stage.hold = True
        await produce(plain, broker, [b"x"] * 5)
        await until(lambda: len(stage.got) == 15)
        assert runner.delivery.position(FETCHES, 0) == 10
        await asyncio.sleep(0.7)
    assert stage.events[-2:] == ["drain", "stop"]
    assert (await admin.committed("recorder", "fetches"))[0] == 10
    again = Recorder()
    async with running(again, settings_of(broker)):
        await until(lambda: len(again.got) == 5)
    assert again.got == [(0, offset) for offset in range(10, 15)]
    assert (await admin.committed("recorder", "fetches"))[0] == 15


async def test_late_acks_of_an_older_generation_are_ignored(
    broker: TestBroker, admin: Admin, plain: AIOKafkaProducer
) -> None:
    await produce(plain, broker, [b"x"] * 8)
    stage, other = Recorder(hold=True), Recorder(hold=True)
    async with running(stage, settings_of(broker)) as runner:
        await until(lambda: len(stage.got) == 8)
        slot = stage.held[0]
        assert slot.alive
        async with running(other, settings_of(broker)):
            await until(lambda: len(stage.owned) + len(other.owned) == 4 and bool(other.owned))
            assert not slot.alive
            slot.done()
            await asyncio.sleep(0.7)
            assert (await admin.committed("recorder", "fetches"))[0] == 0
        assert runner.ready() in {"", "rebalancing", "taking positions"}
    assert (await admin.committed("recorder", "fetches"))[0] == 0


@pytest.mark.alone
async def test_a_take_over_waits_for_nobody_and_partitions_stay_put(
    broker: TestBroker, admin: Admin, plain: AIOKafkaProducer
) -> None:
    for partition in range(4):
        await produce(plain, broker, [b"x"] * 50, partition)
    stage, other = Recorder(hold=True), Recorder()  # never acks: as if every message took for ever
    async with running(stage, settings_of(broker)):
        await until(lambda: len(stage.got) == 200)
        began = time.monotonic()
        async with running(other, settings_of(broker)):
            await until(lambda: len(other.owned) == 2 == len(stage.owned))
            assert time.monotonic() - began < 5
            kept = stage.owned
            third = Recorder()
            async with running(third, settings_of(broker)):
                await until(lambda: len(stage.owned) + len(other.owned) + len(third.owned) == 4)
                assert stage.owned <= kept


async def test_what_cannot_be_read_becomes_a_failure(broker: TestBroker, admin: Admin, plain: AIOKafkaProducer) -> None:
    class Reader(Recorder):
        async def batch(self, batch: Batch) -> None:
            assert self.delivery is not None
            for record in batch.records:
                await self.delivery.unreadable(batch, record, "not JSON")
            await super().batch(batch)

    stage = Reader()
    async with running(stage, settings_of(broker)) as runner:
        await produce(plain, broker, [b"\xff" * 100_000], partition=2)
        await until(lambda: len(stage.got) == 1)
        assert b'fyke_unreadable_total{stage="recorder",topic="fetches"} 1.0' in runner.metrics.text()
    (record,) = await read(broker, FAILURES, 2, 0)
    failure = msgspec.json.decode(record.value)
    assert failure["failure"] == "unreadable"
    assert failure["reason"] == "not JSON"
    assert failure["evidence"] | {"bytes": ""} == {"topic": "fetches", "partition": 2, "offset": 0, "bytes": ""}
    assert base64.b64decode(failure["evidence"]["bytes"]) == b"\xff" * 65536
    assert failure["next"] == {"action": "none"}


async def test_heartbeats_confirm_the_ownership(broker: TestBroker, admin: Admin) -> None:
    async with running(Recorder(), settings_of(broker)) as runner:
        joined = runner.app.confirmed_at()
        assert time.clock_gettime(time.CLOCK_BOOTTIME) - joined < 5
        await until(lambda: runner.app.confirmed_at() > joined)


async def test_a_membership_that_fails_for_good_ends_the_process(
    broker: TestBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client would keep the error for a call that never comes: no heartbeat, no rejoin, no word."""
    ended: list[BaseException] = []

    async def unexpected() -> NoReturn:
        raise KafkaError("an answer that nobody knows")

    monkeypatch.setattr("agents.delivery.runner.die", ended.append)
    async with running(Recorder(), settings_of(broker)) as runner:
        monkeypatch.setattr(runner.app.batches._thread.kafka._coordinator, "_do_heartbeat", unexpected)
        await until(lambda: bool(ended))
    assert isinstance(ended[0], MembershipLost)
    assert str(ended[0]) == f"membership in {broker.prefix}recorder failed: KafkaError: an answer that nobody knows"


async def test_two_topics_and_the_numbers(broker: TestBroker, admin: Admin, plain: AIOKafkaProducer) -> None:
    stage = Recorder(topics=(FETCHES, INBOX))
    async with running(stage, settings_of(broker)) as runner:
        await until(lambda: len(stage.owned) == 8)
        await produce(plain, broker, [b"12345"] * 3, 1)
        await runner.delivery.send_all(INBOX, 3, [(None, b"x")] * 2)
        await until(lambda: len(stage.got) == 5)
        text = runner.metrics.text().decode()
    for line in (
        'fyke_messages_in_total{stage="recorder",topic="fetches"} 3.0',
        'fyke_bytes_in_total{stage="recorder",topic="fetches"} 15.0',
        'fyke_messages_in_total{stage="recorder",topic="inbox"} 2.0',
        'fyke_messages_out_total{stage="recorder",topic="inbox"} 2.0',
        'fyke_acked_offsets_total{stage="recorder"} 5.0',
        'fyke_assigned_partitions{stage="recorder"} 8.0',
        'fyke_in_flight{stage="recorder"} 0.0',
        'fyke_lag{stage="recorder"} 0.0',
    ):
        assert line in text


async def test_a_missing_topic_says_how_to_make_it(broker: TestBroker) -> None:
    with pytest.raises(EnvironmentFault, match=r"fetches does not exist\n  Run `fyke topics apply`"):
        async with running(Recorder(), settings_of(broker)):
            pass


async def test_a_broker_that_does_not_answer_is_an_environment_fault(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "127.0.0.1:1", "nobody.")
    with pytest.raises(EnvironmentFault, match="does not answer"):
        async with running(Recorder(), settings):
            pass


async def test_a_static_member_comes_back_without_a_rebalance(broker: TestBroker, admin: Admin) -> None:
    stage, other = Recorder(), Recorder()
    async with running(stage, settings_of(broker, "one")):
        async with running(other, settings_of(broker, "two")):
            await until(lambda: len(other.owned) == 2 == len(stage.owned))
            before = list(stage.events)
            owned = other.owned
        again = Recorder()
        async with running(again, settings_of(broker, "two")):
            await until(lambda: bool(again.owned))
            assert again.owned == owned
            assert stage.events == before


async def test_a_failed_delivery_is_reported_and_raised(broker: TestBroker) -> None:
    narrow = NewTopic(broker.prefix + RECORDS.name, 1, 1, topic_configs={"max.message.bytes": "1000"})
    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await client.start()
    await client.create_topics([narrow])
    await client.close()
    failures: list[Exception] = []
    producer = Producer(broker.bootstrap, broker.settings, "narrow", failures.append)
    await producer.start()
    with pytest.raises(KafkaError):
        await (await producer.send(RECORDS, random.randbytes(5000), key=None, partition=0))
    (failure,) = failures
    assert isinstance(failure, EnvironmentFault)
    assert str(failure).startswith(f"topic {producer.name(RECORDS)} takes smaller messages than the settings say\n")
    with pytest.raises(KafkaError):
        await producer.send_all(producer.name(RECORDS), 0, [(b"k", random.randbytes(5000))])
    assert len(failures) == 2
    await producer.stop()


async def test_an_acknowledgement_tells_the_time_of_the_broker(
    broker: TestBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to a worker that hears nothing else of the broker's: from the answer to its first send."""
    stage, right = Recorder(), time.time
    monkeypatch.setattr(time, "time", lambda: right() + 3600)  # a machine that is an hour ahead
    clock = BrokerClock()
    monkeypatch.undo()
    async with running(stage, broker.settings, clock):
        assert not clock.heard
        assert stage.delivery is not None
        await stage.delivery.learn_time()
        assert clock.heard
        assert clock.now() / 1000 == pytest.approx(time.time(), abs=1.0)


async def test_a_machine_that_is_hours_ahead_can_send(
    broker: TestBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker refuses what is stamped an hour or more ahead of its own time: nothing is stamped by this machine."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 2 * 3600)
    stage = Recorder()
    async with running(stage, broker.settings):
        assert stage.delivery is not None
        await stage.delivery.learn_time()
        await (await stage.delivery.send(RECORDS, b"one", partition=0))
        await stage.delivery.send_all(RECORDS, 0, [(b"k", b"two")])
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([TopicPartition(broker.prefix + RECORDS.name, 0)])
    stamps = [(await consumer.getone()).timestamp for _ in range(2)]
    await consumer.stop()
    assert stamps == [pytest.approx(right() * 1000, abs=10_000)] * 2
