"""The changelog on Kafka: read in bulk and by position with an own group-less consumer, written through a given writer.

Ends are positions, never "the last record": a control record, a compaction gap or deleted records at the tail leave no
record to wait for (Faust's own recovery hangs there).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from faust.transport.drivers.aiokafka import Transport, credentials_to_aiokafka_auth, server_list

from streams.settings import MiB
from streams.state.fencing import Headers
from streams.state.fold import LogRecord
from streams.state.ledger import Item

log = logging.getLogger(__name__)

_STRETCH = 5_000  # records folded at once: some 50 ms in which the loop does nothing else
_WAIT_MS = 200


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
    """Reads one changelog topic; `connection` are aiokafka's connection arguments."""

    def __init__(self, topic: str, connection: Mapping[str, Any]) -> None:
        self.topic = topic
        self._connection = dict(connection)
        self._cluster = ""

    async def cluster(self) -> str:
        """The id of the cluster (asked once)."""
        if not self._cluster:
            admin = AIOKafkaAdminClient(**self._connection)
            try:
                await admin.start()
                self._cluster = str((await admin.describe_cluster())["cluster_id"])
            finally:
                await admin.close()
        return self._cluster

    async def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """The offset of the next record of each partition."""
        tps = [TopicPartition(self.topic, partition) for partition in partitions]
        async with self._consumer() as consumer:
            return {tp.partition: end for tp, end in (await consumer.end_offsets(tps)).items()}

    async def read(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> AsyncGenerator[Stretch, None]:
        """All partitions of `starts` from there to `ends` (or somewhat beyond), interleaved.

        A start below the first record is moved there. A partition that has nothing to read yields nothing.
        """
        todo = {TopicPartition(self.topic, p): ends[p] for p, start in starts.items() if start < ends[p]}
        if not todo:
            return
        async with self._consumer() as consumer:
            consumer.assign(list(todo))
            for tp in todo:
                consumer.seek(tp, starts[tp.partition])
            while todo:
                stretches = await consumer.getmany(*todo, timeout_ms=_WAIT_MS, max_records=_STRETCH)
                for tp in list(todo):
                    position = await consumer.position(tp)
                    records = stretches.get(tp, ())
                    done = position >= todo[tp]
                    if done:
                        del todo[tp]
                    if records or done:
                        yield Stretch(tp.partition, records, position)

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            **self._connection, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest",
            max_partition_fetch_bytes=4 * MiB, fetch_max_wait_ms=_WAIT_MS,
        )  # fmt: skip
        try:
            await consumer.start()
            yield consumer
        finally:
            await consumer.stop()


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
