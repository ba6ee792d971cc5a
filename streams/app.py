"""The Faust app of a stage: one factory, no app at module level. One app is one consumer group is one stage.

Faust is the frame: membership, assignment, tables and their recovery, commits. Bytes go in and out; batches come from
`streams.transport`; sends go through the producer of `agents.delivery`, so Faust's own is never started.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import faust
from faust.app.base import BootStrategy
from faust.sensors import Monitor
from mode import Service
from yarl import URL

from streams.errors import EnvironmentFault
from streams.feed import TP, Port
from streams.settings import Settings
from streams.transport import BatchConsumer, BatchTransport

TESTED = {"faust-streaming": "0.15.3", "mode-streaming": "0.7.1", "aiokafka": "0.14.0"}
"""The versions whose private names `streams.transport` builds on."""

REBALANCING = "rebalancing"
TAKING_POSITIONS = "taking positions"
_DAY = 86_400.0


def check_versions() -> None:
    """Refuse other versions than the tested ones: a silent change in them could lose messages."""
    for package, tested in TESTED.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            found = "none"
        if found != tested:
            raise EnvironmentFault(
                f"{package} {tested} is required, found {found}", f"Run `pip install {package}=={tested}`."
            )


class QuietMonitor(Monitor):
    """Faust's monitor without its sampler, which wakes every second for figures that nobody reads here."""

    @Service.task
    async def _sampler(self) -> None:
        return


class ConsumerOnly(BootStrategy):
    """Without Faust's producer: `agents.delivery` has the only one."""

    enable_kafka_producer = False


class StageApp(faust.App):
    """A Faust app whose consumer hands batches to `port`."""

    BootStrategy = ConsumerOnly

    def __init__(self, group: str, port: Port, **options: Any) -> None:
        self.port = port
        super().__init__(group, **options)

    def _new_transport(self) -> BatchTransport:
        return BatchTransport(self.conf.broker_consumer, self)

    @property
    def batches(self) -> BatchConsumer:
        """The consumer by its own type."""
        return cast("BatchConsumer", self.consumer)

    def on_rebalance_start(self) -> None:
        """In the consumer's thread, at the first sign of a rebalance: everything in flight is told at once."""
        self.batches.feed.interrupt(self.loop)
        super().on_rebalance_start()

    def _create_directories(self) -> None:
        if self.tables:  # a stage without tables leaves no folders
            self.conf.datadir.mkdir(parents=True, exist_ok=True)
            super()._create_directories()

    def confirmed_at(self) -> float:
        """CLOCK_BOOTTIME at the send of the last heartbeat or join the coordinator accepted; 0.0: none yet."""
        return self.batches.confirmed_at

    async def ends(self, tps: Iterable[TP]) -> Mapping[TP, int]:
        """The ends of partitions, asked from the broker now. Raises `KafkaError`."""
        return await self.batches.ends(tps)

    async def ended(self) -> None:
        """Return when the app stops or crashes by itself."""
        await self.wait(asyncio.Event().wait())

    def in_limbo(self) -> bool:
        """Whether the worker stands between two assignments (tables being recovered do not count)."""
        return self.ready() in {REBALANCING, TAKING_POSITIONS}

    def ready(self) -> str:
        """Why the worker is not ready; empty when it is assigned, recovered and not rebalancing."""
        if self.rebalancing:
            return REBALANCING
        tables: Any = self.tables
        if not tables.recovery.completed.is_set():
            return "recovering"
        if self.batches.assignment() and not self.batches.feed.fed:
            return TAKING_POSITIONS
        return ""


async def _idle(stream: AsyncIterable[Any]) -> None:
    """The agent of a topic: it holds the subscription; batches pass it by."""
    async for _ in stream:
        raise AssertionError("an event in a stream: the batch consumer is not in place")


def create_app(
    group: str,
    settings: Settings,
    *,
    bootstrap: str,
    topics: Sequence[str],
    datadir: Path,
    port: Port,
    **classes: type,
) -> StageApp:
    """The app of one stage.

    `group`: consumer group and app id; `topics`: full names of what it reads; `datadir`: of this worker alone;
    `classes`: `Table` and `TableManager` for a stage with tables. Raises `EnvironmentFault` for untested versions.
    """
    check_versions()
    kafka = settings.kafka
    app = StageApp(
        group,
        port,
        broker=[URL(f"kafka://{server.strip()}") for server in bootstrap.split(",")],
        broker_client_id=group,
        broker_session_timeout=kafka.session_timeout,
        broker_heartbeat_interval=kafka.heartbeat,
        broker_rebalance_timeout=kafka.rebalance_timeout,
        broker_request_timeout=max(kafka.request_timeout, kafka.session_timeout),
        broker_commit_interval=kafka.commit_interval,
        broker_max_poll_records=kafka.poll_records,
        broker_max_poll_interval=_DAY,  # a stage may take as long as it likes; the watchdog decides what is stuck
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=settings.worker.name or None,
        datadir=datadir,
        store="memory://",
        key_serializer="raw",
        value_serializer="raw",
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        autodiscover=False,
        worker_redirect_stdouts=False,
        Monitor=QuietMonitor,
        **classes,
    )
    for topic in topics:
        channel = app.topic(topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
        app.agent(channel, name=topic)(_idle)
    return app
