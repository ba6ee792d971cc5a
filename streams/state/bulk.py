"""A topic read in bulk: straight from fetch answers, without a consumer and its object for each record.

A consumer of aiokafka takes about twice the time for a record that recovery may take for everything. This reader asks
for the next stretch while the last one is looked at, and hands out the records as they are decoded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords

from streams.settings import MiB
from streams.state.fold import LogRecord
from streams.state.metadata import OriginRequest

log = logging.getLogger(__name__)
T = TypeVar("T")

STRETCH = 5_000
"""Records handed out at once: some 20 ms in which the loop does nothing else."""

PATIENCE = 40.0
"""Seconds for which a question is asked again while brokers elect, restart or do not answer."""

_PAUSE = 0.2
_FETCH_BYTES = 4 * MiB  # of one answer, compressed
_WAIT_MS = 200
_EARLIEST, _LATEST = -2, -1  # Kafka protocol, ListOffsets
_READ_UNCOMMITTED = 0


class Bounds(NamedTuple):
    """Of a partition: the offset of its first record, and of the next one to be written."""

    begin: int
    end: int


class Origin(NamedTuple):
    """Which topic it is: of which cluster, and which of those that had its name. "" where the broker does not say."""

    cluster: str
    topic: str


class TopicReader:
    """Connections to the brokers of one topic, for the block of an `async with`. Raises `KafkaError`.

    `connection` are aiokafka's connection arguments.
    """

    def __init__(self, topic: str, connection: Mapping[str, Any]) -> None:
        self.topic = topic
        self._connection = dict(connection)

    async def __aenter__(self) -> Self:
        self._client = AIOKafkaClient(**self._connection)
        try:
            await self._client.bootstrap()
            await self._client.set_topics([self.topic])
        except BaseException:
            await self._client.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def origin(self) -> Origin:
        """Raises `UnknownTopicOrPartitionError` where there is no such topic."""

        async def ask() -> Origin:
            try:
                answer = await self._client.send(self._client.get_random_node(), OriginRequest(self.topic))
            except NotImplementedError:  # brokers before 3.0
                return Origin("", "")
            ((error, _, topic_id, *_),) = answer.topics
            _check(error)
            return Origin(answer.cluster or "", topic_id.hex() if any(topic_id) else "")

        return await self._patiently(ask)

    def partitions(self) -> frozenset[int]:
        """The partitions that the topic has."""
        return frozenset(self._client.cluster.partitions_for_topic(self.topic) or ())

    async def bounds(self, partitions: Sequence[int]) -> dict[int, Bounds]:
        """Where partitions begin and end now."""

        async def ask(partition: int) -> Bounds:
            return Bounds(await self._offset(partition, _EARLIEST), await self._offset(partition, _LATEST))

        return {partition: await self._patiently(lambda: ask(partition)) for partition in partitions}  # noqa: B023 - awaited at once

    async def _offset(self, partition: int, when: int) -> int:
        request = OffsetRequest(-1, _READ_UNCOMMITTED, [(self.topic, [(partition, when)])])
        answer = await self._client.send(self._leader(partition), request)
        ((_, ((_, error, _, offset, *_),)),) = answer.topics
        _check(error)
        return int(offset)

    async def records(self, partition: int, start: int, end: int) -> AsyncGenerator[tuple[list[LogRecord], int], None]:
        """The records of a partition from `start` on, with the position behind them, until that is `end` or more.

        A start below the first record is moved there. Control records are left out; positions pass over them.
        """
        fetch = self._ahead(partition, start)
        try:
            while start < end:
                begin, batches = await fetch
                ahead = batches[-1].next_offset if batches else begin
                fetch = self._ahead(partition, ahead)
                for records, position in _stretches(batches, start):
                    yield records, position
                    await asyncio.sleep(0)
                if not batches and ahead > start:  # what was asked for is deleted
                    yield [], ahead
                start = ahead
        finally:
            fetch.cancel()
            with suppress(asyncio.CancelledError, kafka_errors.KafkaError):
                await fetch

    def _ahead(self, partition: int, position: int) -> asyncio.Task[tuple[int, list[Any]]]:
        return asyncio.create_task(self._patiently(lambda: self._fetch(partition, position)))

    async def _fetch(self, partition: int, position: int) -> tuple[int, list[Any]]:
        """Batches that begin at `position` or before; without any, the partition's begin if that is behind it."""
        request = FetchRequest(
            _WAIT_MS, 1, _FETCH_BYTES, _READ_UNCOMMITTED, [(self.topic, [(partition, position, _FETCH_BYTES)])]
        )
        answer = await self._client.send(self._leader(partition), request)
        ((_, ((_, error, *_, data),)),) = answer.topics
        if kafka_errors.for_code(error) is kafka_errors.OffsetOutOfRangeError:
            begin = await self._offset(partition, _EARLIEST)
            if begin > position:
                return begin, []
        _check(error)
        return position, _batches(data or b"")

    def _leader(self, partition: int) -> int:
        leader = self._client.cluster.leader_for_partition(TopicPartition(self.topic, partition))
        if leader is None or leader == -1:
            raise kafka_errors.LeaderNotAvailableError(f"{self.topic}-{partition}")
        return int(leader)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again after passing errors, with the cluster's news of who leads what."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            try:
                return await ask()
            except kafka_errors.KafkaError as error:
                if not error.retriable or loop.time() > deadline:
                    raise
                log.info("%s: %s; asking again", self.topic, error or type(error).__name__)
            await asyncio.sleep(_PAUSE)
            await self._client.force_metadata_update()


def _check(code: int) -> None:
    error = kafka_errors.for_code(code)
    if error is not kafka_errors.NoError:
        raise error


def _batches(data: bytes) -> list[Any]:
    """The record batches of an answer, not unpacked yet. Raises `CorruptRecordException`."""
    found = []
    memory = MemoryRecords(data)
    while memory.has_next():
        batch: Any = memory.next_batch()
        if not batch.validate_crc():
            raise kafka_errors.CorruptRecordException(f"the batch at offset {batch.base_offset}")
        found.append(batch)
    return found


def _stretches(batches: Sequence[Any], start: int) -> Iterator[tuple[list[LogRecord], int]]:
    """The records from `start` on in stretches of about `STRETCH`, with the position behind each."""
    records: list[LogRecord] = []
    for batch in batches:
        if not batch.is_control_batch:
            records.extend(batch if batch.base_offset >= start else (r for r in batch if r.offset >= start))
        if len(records) >= STRETCH or batch is batches[-1]:
            yield records, batch.next_offset
            records = []
