"""What the command line writes to Kafka: seeds, commands, crawl definitions, and where an exporter begins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from streams import codecs, messages
from streams.errors import EnvironmentFault
from streams.settings import Settings
from streams.topics import INBOX, URLS, Topic

T = TypeVar("T")

_AT_ONCE = 1000


class Writer:
    """A producer for as long as a command runs: `async with Writer(bootstrap, settings) as writer`.

    Every method returns when all replicas in sync have what it wrote, and raises `EnvironmentFault` if they do not.
    """

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self._bootstrap = bootstrap
        self._prefix = settings.kafka.prefix
        self._timeout_ms = int(settings.kafka.request_timeout * 1000)
        self._producer: Any = None

    async def __aenter__(self) -> Self:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=True, compression_type="zstd",
            request_timeout_ms=self._timeout_ms,
        )  # fmt: skip
        try:
            await self._try("connect", self._producer.start())
        except BaseException:
            await self._producer.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.stop()

    async def send(self, topic: Topic, key: bytes, value: bytes) -> None:
        """Write one message to partition 0, as `agents.broadcast.publish` wants it."""
        await self._try(
            f"write {topic.name}", self._producer.send_and_wait(self._prefix + topic.name, value, key, partition=0)
        )

    async def seeds(self, seeds: Iterable[messages.Seed]) -> int:
        """Write seeds to `urls`; returns how many.

        If it raises, some may have been accepted. Producing them again does no harm: a URL that was visited a short
        time ago is not visited again.
        """
        topic, count, source = self._prefix + URLS.name, 0, iter(seeds)
        while chunk := list(islice(source, _AT_ONCE)):
            await self._try("write seeds", self._send_all(topic, [codecs.encode(seed) for seed in chunk]))
            count += len(chunk)
        return count

    async def commands(self, commands: Iterable[tuple[int, messages.Command]]) -> int:
        """Write commands to their shards; returns how many. Written again they do no harm."""
        topic, count, source = self._prefix + INBOX.name, 0, iter(commands)
        while chunk := list(islice(source, _AT_ONCE)):
            sent = [
                await self._try("write commands", self._producer.send(topic, codecs.encode(command), partition=shard))
                for shard, command in chunk
            ]
            await self._try("write commands", asyncio.gather(*sent))
            count += len(chunk)
        return count

    async def _send_all(self, topic: str, values: list[bytes]) -> None:
        await asyncio.gather(*[await self._producer.send(topic, value) for value in values])

    async def commit(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Let a group that has no members begin at these offsets (topic -> partition -> offset, without prefix)."""
        consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, group_id=self._prefix + group, enable_auto_commit=False,
            request_timeout_ms=self._timeout_ms,
        )  # fmt: skip
        wanted = {
            TopicPartition(self._prefix + topic, p): at for topic, ends in offsets.items() for p, at in ends.items()
        }
        try:
            await self._try("connect", consumer.start())
            consumer.assign(list(wanted))
            await self._try(f"commit offsets of group {self._prefix + group}", consumer.commit(wanted))
        finally:
            await consumer.stop()

    async def _try(self, operation: str, call: Awaitable[T]) -> T:
        try:
            return await call
        except (KafkaError, OSError) as error:
            raise EnvironmentFault(
                f"Kafka at {self._bootstrap} did not {operation}: {error!r}",
                "Is it running, and are its topics there (`fyke topics check`)? Then run the command again.",
            ) from error
