"""Topics, offsets and refusals on a real broker."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from agents.clock import BrokerClock
from agents.io import kraft
from agents.io.admin import Admin
from agents.trimming import Trimming
from streams import topics
from streams.errors import EnvironmentFault
from streams.settings import Settings
from tests.kafka import TestBroker, own_broker, settings_for

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


def _changed(broker: TestBroker, **groups: Any) -> Settings:
    kafka = {**broker.settings.kafka.model_dump(), **groups.pop("kafka", {})}
    return settings_for(broker.settings.worker.state, broker.bootstrap, kafka=kafka, **groups)


async def _topic_configs(broker: TestBroker, topic: str) -> dict[str, str]:
    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await client.start()
    (answer,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, broker.prefix + topic)])
    await client.close()
    return {name: value for name, value, *_ in answer.resources[0][4]}


async def _commit(broker: TestBroker, topic: str, offsets: dict[int, int]) -> None:
    """As the frontier's group."""
    group = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap, group_id=broker.prefix + "frontier", enable_auto_commit=False
    )
    await group.start()
    tps = {TopicPartition(broker.prefix + topic, partition): offset for partition, offset in offsets.items()}
    group.assign(list(tps))
    await group.commit(tps)
    await group.stop()


async def _send(broker: TestBroker, topic: str, counts: dict[int, int]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    await producer.start()
    for partition, count in counts.items():
        for _ in range(count):
            await producer.send_and_wait(broker.prefix + topic, b"x", partition=partition)
    await producer.stop()


async def test_topics_are_made_once_as_the_plan_says(broker: TestBroker) -> None:
    async with Admin(broker.bootstrap, broker.settings) as admin:
        with pytest.raises(EnvironmentFault, match="topics are missing") as missing:
            await admin.check_topics()
        assert "fyke topics apply" in missing.value.remedy
        assert len(await admin.apply_topics()) == len(topics.ALL) + 1
        assert await admin.apply_topics() == []
        await admin.check_topics()
        counts = await admin.partition_counts()
    mine = {name.removeprefix(broker.prefix): n for name, n in counts.items() if name.startswith(broker.prefix)}
    assert mine == {topic.name: 1 if topic.single else 4 for topic in topics.ALL}
    assert (await _topic_configs(broker, "crawls"))["cleanup.policy"] == "compact"
    pages = await _topic_configs(broker, "pages")
    assert pages["max.message.bytes"] == str(12 << 20)
    assert pages["cleanup.policy"] == "delete"
    assert (await _topic_configs(broker, "urls"))["retention.ms"] == "-1"


async def test_settings_that_drifted_are_corrected_and_those_of_others_stay(broker: TestBroker) -> None:
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.apply_topics()
        client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await client.start()
        drifted = {"retention.ms": "1000", "segment.ms": "3600000", "cleanup.policy": "delete"}
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, broker.prefix + "records", drifted)])
        await client.close()
        changes = await admin.apply_topics()
    assert any(f"retention.ms={7 * topics.DAY} on {broker.prefix}records" in change for change in changes)
    found = await _topic_configs(broker, "records")
    assert found["retention.ms"] == str(7 * topics.DAY)
    assert found["segment.ms"] == "3600000"


async def test_another_partition_count_is_refused_and_nothing_is_made(broker: TestBroker) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await client.start()
    await client.create_topics([NewTopic(broker.prefix + "fetches", 3, 1)])
    await client.close()
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.wait_for_leaders(broker.prefix + "fetches")
        with pytest.raises(EnvironmentFault, match=r"count of .*fetches is 3, settings say 4: .* is refused") as caught:
            await admin.apply_topics()
        assert "FYKE_KAFKA_PARTITIONS=3" in caught.value.remedy
        assert [name for name in await admin.partition_counts() if name.startswith(broker.prefix)] == [
            broker.prefix + "fetches"
        ]


async def test_the_politeness_key_is_pinned(broker: TestBroker) -> None:
    async with Admin(broker.bootstrap, broker.settings) as admin:
        assert await admin.deployment() is None
        await admin.apply_topics()
    async with Admin(broker.bootstrap, _changed(broker, frontier={"politeness": "domain"})) as admin:
        for check in (admin.check_topics, admin.apply_topics):
            with pytest.raises(EnvironmentFault, match="keeps politeness by host, settings say domain"):
                await check()


async def test_lag_counts_what_a_group_has_yet_to_commit(broker: TestBroker) -> None:
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.apply_topics()
        assert await admin.lag("frontier", "inbox") == {0: 0, 1: 0, 2: 0, 3: 0}
        await _send(broker, "inbox", {0: 5, 2: 3})
        assert await admin.end_offsets("inbox") == {0: 5, 1: 0, 2: 3, 3: 0}
        assert await admin.lag("frontier", "inbox") == {0: 5, 1: 0, 2: 3, 3: 0}
        await _commit(broker, "inbox", {0: 4})
        assert await admin.committed("frontier", "inbox") == {0: 4}
        assert await admin.committed("frontier", "urls") == {}
        assert await admin.trim("inbox", {0: 4, 2: 1}) == {0: 4, 2: 1}
        assert await admin.begin_offsets("inbox") == {0: 4, 1: 0, 2: 1, 3: 0}
        assert await admin.lag("frontier", "inbox") == {0: 1, 1: 0, 2: 2, 3: 0}
        assert await admin.trim("inbox", {}) == {}
        assert await admin.end_offsets("nothing") == {}


async def test_what_was_applied_stays_for_a_while(broker: TestBroker) -> None:
    """Trimmed is what is both committed and old enough."""
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.apply_topics()
        assert await admin.offsets_at("inbox", 1) == {0: 0, 1: 0, 2: 0, 3: 0}
        assert await admin.offsets_at("nothing", 1) == {}
        await _send(broker, "inbox", {0: 3, 1: 3})
        await asyncio.sleep(0.01)
        middle = int(time.time() * 1000)
        await asyncio.sleep(0.01)
        await _send(broker, "inbox", {0: 2})
        assert await admin.offsets_at("inbox", middle) == {0: 3, 1: 3, 2: 0, 3: 0}
        await _commit(broker, "inbox", {0: 5, 1: 2})
        clock = BrokerClock()
        await Trimming(admin, lambda: (0, 1), clock, 3600.0).trim("inbox")
        assert await admin.begin_offsets("inbox") == {0: 0, 1: 0, 2: 0, 3: 0}
        await Trimming(admin, lambda: (0, 1), clock, (clock.now() - middle) / 1000).trim("inbox")
        assert await admin.begin_offsets("inbox") == {0: 3, 1: 2, 2: 0, 3: 0}
        await Trimming(admin, lambda: (0,), clock, 0.0).trim("inbox")
        assert await admin.begin_offsets("inbox") == {0: 5, 1: 2, 2: 0, 3: 0}


async def test_several_questions_at_once_share_a_connection(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(**options: Any) -> AIOKafkaConsumer:
        made.append(AIOKafkaConsumer(**options))
        return made[-1]

    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.apply_topics()
    monkeypatch.setattr("agents.io.admin.AIOKafkaConsumer", counted)
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await asyncio.gather(*(admin.lag("frontier", name) for name in ("inbox", "urls")))
    assert len(made) == 1


async def test_a_coordinator_that_has_just_started_is_waited_for(tmp_path: Path) -> None:
    """It reads its offsets first; until then it answers that it is not responsible, without any."""
    with own_broker(tmp_path) as own:
        async with Admin(own.bootstrap, own.settings) as admin:
            await admin.apply_topics()
        consumer = AIOKafkaConsumer(bootstrap_servers=own.bootstrap, group_id="fyke.late", enable_auto_commit=False)
        await consumer.start()
        tps = [TopicPartition("fyke.inbox", partition) for partition in range(4)]
        consumer.assign(tps)
        for number in range(2000):
            await consumer.commit(dict.fromkeys(tps, number))
        await consumer.stop()
        own.stop()
        own.start()
        async with Admin(own.bootstrap, own.settings) as admin:
            assert await admin.committed("late", "inbox") == dict.fromkeys(range(4), 1999)
            assert await admin.committed("nobody", "inbox") == {}


async def test_trimming_beyond_the_end_is_refused_with_the_topics_name(broker: TestBroker) -> None:
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.apply_topics()
        with pytest.raises(EnvironmentFault, match=f"refused to delete records of {broker.prefix}urls"):
            await admin.trim("urls", {0: 9})


async def test_nobody_at_the_address() -> None:
    address = f"127.0.0.1:{kraft.free_port()}"
    with pytest.raises(EnvironmentFault, match=f"no Kafka answers at {address}") as caught:
        async with Admin(address, Settings(), patience=0.5):
            pass
    assert "FYKE_KAFKA_BOOTSTRAP" in caught.value.remedy


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silence", "another protocol"])
async def test_something_else_at_the_address(answer: bytes) -> None:
    open_connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.append(writer)
        await reader.read(1)
        if answer:
            writer.write(answer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        with pytest.raises(EnvironmentFault, match=f"no Kafka answers at {host}:{port}"):
            async with Admin(f"{host}:{port}", Settings(), patience=1.5):
                pass
        for writer in open_connections:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@pytest.mark.parametrize("address", ["host:port", "a:1:2:3"])
async def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(EnvironmentFault, match=r"is not a list of host:port|no Kafka answers"):
        async with Admin(address, Settings(), patience=0.3):
            pass
