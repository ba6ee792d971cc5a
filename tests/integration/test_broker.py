"""The embedded broker, really started: attached to, killed, robbed of its port, restarted."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from agents.io import kraft
from agents.io.admin import Admin
from agents.io.broker import EmbeddedBroker
from streams.errors import EnvironmentFault
from streams.settings import to_environment
from tests.kafka import OwnBroker, TestBroker, own_broker, settings_for

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

_RECORDS = 200


async def _write(broker: OwnBroker | TestBroker) -> None:
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.apply_topics()
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", compression_type="zstd")
    await producer.start()
    topic = broker.settings.kafka.prefix + "inbox"
    sent = [await producer.send(topic, b"x" * 100 + str(n).encode(), partition=n % 4) for n in range(_RECORDS)]
    await asyncio.gather(*sent)
    await producer.stop()


async def _count(broker: OwnBroker | TestBroker) -> int:
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap)
    await consumer.start()
    partitions = [TopicPartition(broker.settings.kafka.prefix + "inbox", p) for p in range(4)]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    ends = await consumer.end_offsets(partitions)
    found = 0
    for partition in partitions:
        while await consumer.position(partition) < ends[partition]:
            found += sum(map(len, (await consumer.getmany(partition, timeout_ms=500)).values()))
    await consumer.stop()
    return found


@contextmanager
def _user(broker: EmbeddedBroker, state: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that attaches, prints the address, and releases when its standard input ends."""
    code = (
        "import sys; from agents.io.broker import EmbeddedBroker; from streams.settings import Settings\n"
        "broker = EmbeddedBroker(Settings()); print(broker.ensure(), flush=True)\n"
        "sys.stdin.read(); print(broker.release(), flush=True)"
    )
    environment = {**os.environ, **to_environment(settings_for(state))}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == broker.status().bootstrap
        try:
            yield child
        finally:
            child.kill()


def _leave(child: subprocess.Popen[str]) -> str:
    out, _ = child.communicate(timeout=180)
    return out.strip()


async def test_what_was_acknowledged_survives_sigkill_and_the_ports_stay(tmp_path: Path) -> None:
    with own_broker(tmp_path) as broker:
        await _write(broker)
        broker.kill()
        reason = await broker.embedded.watch()
        assert "the embedded broker ended" in str(reason)
        assert not broker.embedded.status().running
        broker.start()
        assert await _count(broker) == _RECORDS
        status = broker.embedded.status()
        assert status.running
        assert status.bootstrap == broker.bootstrap
        assert 50e6 < status.rss < 600e6
        assert status.data > _RECORDS * 4
        assert 0 < status.uptime < 120
        assert status.users == 1


def test_a_number_that_another_process_has_got_is_not_taken_for_the_broker(tmp_path: Path) -> None:
    root = tmp_path / "broker"
    root.mkdir()
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        port, controller = kraft.free_port(), kraft.free_port()
        (root / "broker.json").write_text(
            f'{{"pid":{stranger.pid},"identity":"boot:1","port":{port},"controller":{controller}}}'
        )
        with own_broker(tmp_path) as broker:
            assert broker.pid != stranger.pid
            assert broker.bootstrap == f"127.0.0.1:{port}"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_the_last_user_to_leave_stops_it(tmp_path: Path) -> None:
    with own_broker(tmp_path) as broker:
        pid = broker.pid
        with _user(broker.embedded, tmp_path) as killed, _user(broker.embedded, tmp_path) as other:
            assert broker.embedded.status().users == 3
            killed.kill()
            killed.wait()
            assert broker.embedded.status().users == 2
            with pytest.raises(EnvironmentFault, match="used by 1 other process"):
                broker.embedded.stop()
            with pytest.raises(EnvironmentFault, match="is running"):
                broker.embedded.clean()
            assert broker.embedded.release() is False
            assert broker.pid == pid
            assert _leave(other) == "True"
        assert not broker.embedded.alive()
        assert broker.embedded.clean() > 0
        assert [path.name for path in (tmp_path / "broker").iterdir()] == ["lock"]


def test_one_that_was_started_to_stay_stays(tmp_path: Path) -> None:
    with own_broker(tmp_path) as broker:
        broker.embedded.ensure(persistent=True)
        assert broker.embedded.release() is False
        assert broker.embedded.status().persistent
        assert broker.embedded.stop() is True
        assert broker.embedded.stop() is False


def test_a_chosen_port_that_is_taken_is_a_fault(tmp_path: Path) -> None:
    port = kraft.free_port()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(EnvironmentFault, match=f"port {port} .* is taken"):
        EmbeddedBroker(settings_for(tmp_path, broker={"port": port})).ensure()
    assert not list((tmp_path / "broker" / "users").iterdir())


def test_a_kept_port_that_is_taken_is_left_to_its_taker_unless_users_know_it(tmp_path: Path) -> None:
    with own_broker(tmp_path) as broker:
        port = int(broker.bootstrap.rpartition(":")[2])
        broker.kill()
        with socket.create_server(("127.0.0.1", port)):
            with pytest.raises(EnvironmentFault, match=f"port {port}"):
                broker.embedded.restart()
            assert broker.embedded.release() is False
            assert broker.embedded.ensure() != broker.bootstrap
        assert broker.embedded.alive()


def test_a_second_kafka_on_the_same_data_is_named(tmp_path: Path) -> None:
    with own_broker(tmp_path) as broker:
        pid = broker.pid
        record = tmp_path / "broker" / "broker.json"
        kept = record.read_bytes()
        record.unlink()
        try:
            with pytest.raises(EnvironmentFault, match=rf"another Kafka \(process {pid}\) works on"):
                EmbeddedBroker(broker.settings).ensure()
        finally:
            record.write_bytes(kept)
        assert broker.embedded.alive()


def test_a_broker_that_ends_at_its_start_shows_its_log(tmp_path: Path) -> None:
    data = tmp_path / "broker" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=7\n")
    broker = EmbeddedBroker(settings_for(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"the embedded broker ended:[\s\S]*node id 7") as caught:
        broker.ensure()
    assert str(tmp_path / "broker" / "broker.log") in caught.value.remedy
    (data / "meta.properties").rename(data / "something")
    with pytest.raises(EnvironmentFault, match=r"meta\.properties is missing"):
        broker.ensure()


def test_too_little_room_is_a_fault_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kraft, "FREE_BYTES", 1 << 60)
    with pytest.raises(EnvironmentFault, match="is full"):
        EmbeddedBroker(settings_for(tmp_path)).ensure()
    assert not (tmp_path / "broker" / "data").exists()


def test_a_state_folder_that_cannot_be_made_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    broker = EmbeddedBroker(settings_for(tmp_path / "file"))
    assert not broker.alive()
    with pytest.raises(EnvironmentFault, match="state folder"):
        broker.ensure()


def test_status_of_nothing_makes_nothing(tmp_path: Path) -> None:
    broker = EmbeddedBroker(settings_for(tmp_path / "new"))
    assert not broker.status().running
    assert broker.clean() == 0


async def test_many_large_pages_at_once_do_not_end_it(tmp_path: Path) -> None:
    async def send_all(broker: OwnBroker) -> None:
        async with Admin(broker.bootstrap, broker.settings) as admin:
            await admin.apply_topics()
        producers = [
            AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", max_request_size=12 << 20)
            for _ in range(4)
        ]
        body = os.urandom(10 << 20)
        await asyncio.gather(*(producer.start() for producer in producers))
        await asyncio.gather(
            *(
                producer.send_and_wait("fyke.pages", body, partition=partition)
                for producer in producers
                for partition in range(4)
            )
        )
        await asyncio.gather(*(producer.stop() for producer in producers))

    with own_broker(tmp_path) as broker:
        pid = broker.pid
        await send_all(broker)
        assert broker.pid == pid


async def test_of_two_that_start_it_at_once_one_does(tmp_path: Path) -> None:
    brokers = [EmbeddedBroker(settings_for(tmp_path)) for _ in range(2)]
    try:
        first, second = await asyncio.gather(*(asyncio.to_thread(broker.ensure) for broker in brokers))
        assert first == second
        assert brokers[0].status().users == 2
    finally:
        brokers[0].stop(force=True)
