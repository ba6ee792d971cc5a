"""The changelog on Kafka: read in bulk and by position with an own group-less consumer, written through a given writer.

Ends are positions, never "the last record": a control record, a compaction gap or deleted records at the tail leave no
record to wait for (Faust's own recovery hangs there).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol

from faust.transport.drivers.aiokafka import Transport, credentials_to_aiokafka_auth, server_list

from streams.state.bulk import Bounds, TopicReader
from streams.state.fencing import Headers
from streams.state.fold import LogRecord
from streams.state.identity import Identity
from streams.state.ledger import Item


class ChangelogWriter(Protocol):
    """What writes the changelog: the process's idempotent producer (acks=all), owned by `agents.delivery`."""

    async def send_all(
        self, topic: str, partition: int, items: Sequence[Item], headers: Headers = ()
    ) -> list[tuple[int, int]]:
        """Send records in order, in as few batches as they fit in, each record with `headers`.

        `topic` is the full name. Returns (first offset, number of records) of each batch once all are acknowledged;
        raises if one is not.
        """
        ...


class Stretch(NamedTuple):
    """Consecutive records of a partition and the position behind them."""

    partition: int
    records: Sequence[LogRecord]
    position: int


class ChangelogReader:
    """Reads one changelog topic; `connection` are aiokafka's connection arguments. Raises `KafkaError`."""

    def __init__(self, topic: str, connection: Mapping[str, Any]) -> None:
        self.topic = topic
        self._connection = dict(connection)

    async def identities(self, partitions: Iterable[int]) -> dict[int, Identity]:
        """What the stores of partitions belong to. Asked each time: the topic may have been made again."""
        async with TopicReader(self.topic, self._connection) as topic:
            cluster, topic_id = await topic.origin()
        return {partition: Identity(cluster, self.topic, partition, topic_id=topic_id) for partition in partitions}

    async def partitions(self) -> frozenset[int]:
        """The partitions that the topic has."""
        async with TopicReader(self.topic, self._connection) as topic:
            return topic.partitions()

    async def bounds(self, partitions: Sequence[int]) -> dict[int, Bounds]:
        """The offsets of the first record of each partition, and of the next one."""
        async with TopicReader(self.topic, self._connection) as topic:
            return await topic.bounds(partitions)

    async def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """The offset of the next record of each partition."""
        return {partition: bounds.end for partition, bounds in (await self.bounds(partitions)).items()}

    async def read(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> AsyncGenerator[Stretch, None]:
        """All partitions of `starts`, one after the other, from there to `ends` (or somewhat beyond).

        A start below the first record is moved there. A partition that has nothing to read yields nothing.
        """
        todo = [partition for partition, start in starts.items() if start < ends[partition]]
        if not todo:
            return
        async with TopicReader(self.topic, self._connection) as topic:
            for partition in todo:
                async with aclosing(topic.records(partition, starts[partition], ends[partition])) as stretches:
                    async for records, position in stretches:
                        yield Stretch(partition, records, position)


class KafkaLog:
    """One partition of the changelog (`streams.state.ledger.PartitionLog`)."""

    def __init__(self, reader: ChangelogReader, writer: Callable[[], ChangelogWriter], partition: int) -> None:
        self._reader = reader
        self._writer = writer
        self._partition = partition

    async def append(self, items: Sequence[Item], headers: Headers) -> list[tuple[int, int]]:
        """See `PartitionLog`."""
        return await self._writer().send_all(self._reader.topic, self._partition, items, headers)

    async def read(self, start: int, end: int) -> AsyncGenerator[tuple[Sequence[LogRecord], int], None]:
        """See `PartitionLog`."""
        async with aclosing(self._reader.read({self._partition: start}, {self._partition: end})) as stretches:
            async for stretch in stretches:
                yield stretch.records, stretch.position

    async def end(self) -> int:
        """See `PartitionLog`."""
        return (await self._reader.ends([self._partition]))[self._partition]


def connection(conf: Any) -> dict[str, Any]:
    """How the app connects, as arguments of aiokafka's clients."""
    return {
        "bootstrap_servers": server_list(conf.broker_consumer, Transport.default_port),
        **credentials_to_aiokafka_auth(conf.broker_credentials, conf.ssl_context),
    }
