"""The one producer of a process: idempotent, acknowledged by all replicas in sync, zstd.

aiokafka retries what can be retried without an end: an idempotent producer must not leave a hole in its sequence. So an
outage of the broker is waited out (and ended by the watchdog if there is work). Any failure it does report leaves the
order of a partition unknown and ends the process (`agents.delivery.undelivered` says it in words): its supervisor
starts it again from the committed offsets. A message that is too large is refused before it is sent; that costs one
message (`MessageError`).

Records carry the broker's time, not this machine's: a broker refuses what is stamped an hour ahead of it, and deletes
by these stamps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from agents.clock import BrokerClock
from agents.delivery.undelivered import explain
from streams.errors import EnvironmentFault, MessageError
from streams.topics import ALL, Topic

if TYPE_CHECKING:
    from aiokafka.structs import RecordMetadata

    from streams.settings import Settings

Headers = Sequence[tuple[str, bytes]]
Item = tuple[bytes | None, bytes | None]
"""Key and value; a value of None deletes the key (compacted topics)."""

BATCH_BYTES = 1_000_000
"""Of one batch before compression; just below what a broker takes by default (1,048,588 bytes)."""

_BY_BROKER = 1  # LogAppendTime, in the attributes of a batch (Kafka protocol, record batches)
_SPARE = 1024  # bytes of a batch that are not the record's own, rounded up


class Producer:
    """Sends to topics named without prefix. `failed` is told each failed delivery; it must not return normally.

    `clock` learns the broker's time from what it acknowledges.
    """

    def __init__(
        self,
        bootstrap: str,
        settings: Settings,
        name: str,
        failed: Callable[[Exception], None],
        clock: BrokerClock | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        self._name = name
        self._failed = failed
        self._clock = clock or BrokerClock()
        self._partitions: dict[str, int] = {}
        self._largest = {self.name(topic): self._limit(topic) - _SPARE for topic in ALL}
        self._routes = {topic.name: (self.name(topic), self.largest(topic), topic.stamped) for topic in ALL}
        self._kafka: Any = None

    def name(self, topic: Topic) -> str:
        """The topic's full name."""
        return self._settings.kafka.prefix + topic.name

    def _limit(self, topic: Topic) -> int:
        return self._settings.kafka.max_message if topic.large else min(self._settings.kafka.max_message, BATCH_BYTES)

    async def start(self) -> None:
        """Connect and read how many partitions each topic has (fixed for its life). Raises `EnvironmentFault`."""
        kafka = self._settings.kafka
        self._kafka = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            client_id=self._name,
            acks="all",
            enable_idempotence=True,
            compression_type="zstd",
            linger_ms=0,  # one request in flight per broker batches by itself; waiting only starves the windows
            max_batch_size=BATCH_BYTES,
            max_request_size=kafka.max_message,
            request_timeout_ms=int(kafka.request_timeout * 1000),
        )
        try:
            await self._kafka.start()
            cluster = await self._kafka.client.fetch_all_metadata()  # asking by name could create a topic
        except (KafkaError, OSError) as error:
            await self._kafka.stop()
            raise EnvironmentFault(
                f"the broker at {self._bootstrap} does not answer: {error}", "Start it, or name another with --kafka."
            ) from error
        self._partitions = {name: len(cluster.partitions_for_topic(name) or ()) for name in self._largest}

    async def stop(self) -> None:
        """Deliver what is enqueued and disconnect."""
        if self._kafka is not None:
            await self._kafka.stop()

    def partitions(self, topic: Topic) -> int:
        """How many partitions a topic has. Raises `EnvironmentFault` if it does not exist."""
        count = self._partitions.get(self.name(topic), 0)
        if not count:
            raise EnvironmentFault(f"topic {self.name(topic)} does not exist", "Run `fyke topics apply`.")
        return count

    def largest(self, topic: Topic) -> int:
        """The most bytes key, value and headers of one message may have together."""
        return self._largest[self.name(topic)]

    async def send(
        self, topic: Topic, value: bytes | None, *, key: bytes | None, partition: int, headers: Headers = ()
    ) -> asyncio.Future[RecordMetadata]:
        """Enqueue one message; await the future before acking what it came from. Raises `MessageError` if too large."""
        name, largest, stamped = self._routes[topic.name]  # by name: a dataclass is hashed field by field
        _check_size(name, largest, key, value, headers)
        sent = self._clock.mark() if stamped else 0.0
        try:
            future: asyncio.Future[RecordMetadata] = await self._kafka.send(
                name, value, key, partition=partition, headers=list(headers), timestamp_ms=self._clock.now()
            )
        except KafkaError as error:
            self._failed(explain(name, error))
            raise
        if stamped:
            future.add_done_callback(partial(self._stamped, sent))
        future.add_done_callback(partial(self._delivered, name))
        return future

    async def send_all(
        self, topic: str, partition: int, items: Sequence[Item], headers: Headers = ()
    ) -> list[tuple[int, int]]:
        """Send many small messages of one partition in packed batches, in order, and await them.

        `topic` is the full name; each message gets the `headers`. Returns first offset and number of messages of each
        batch: other senders' messages may stand between them. Raises `MessageError` before anything is sent if one is
        too large.
        """
        largest = self._largest.get(topic, self._settings.kafka.max_message - _SPARE)
        for key, value in items:
            _check_size(topic, largest, key, value, headers)
        futures: list[tuple[asyncio.Future[RecordMetadata], int]] = []
        at = 0
        try:
            while at < len(items):
                batch, count = self._pack(items, at, list(headers))
                futures.append((await self._kafka.send_batch(batch, topic, partition=partition), count))
                at += count
            return [((await future).offset, count) for future, count in futures]
        except KafkaError as error:
            self._failed(explain(topic, error))
            raise

    def _pack(self, items: Sequence[Item], start: int, headers: list[tuple[str, bytes]]) -> tuple[Any, int]:
        """A closed batch of the items from `start` on, and their number. The first is taken whatever its size."""
        batch, at_ms = self._kafka.create_batch(), self._clock.now()
        at = start
        while at < len(items):
            key, value = items[at]
            if batch.append(key=key, value=value, headers=headers, timestamp=at_ms) is None:
                break
            at += 1
        batch.close()
        return batch, at - start

    def _delivered(self, topic: str, future: asyncio.Future[RecordMetadata]) -> None:
        if not future.cancelled() and isinstance(error := future.exception(), Exception):
            self._failed(explain(topic, error))

    def _stamped(self, sent: float, future: asyncio.Future[RecordMetadata]) -> None:
        """Learn the broker's time; not from a topic that keeps the producers' (it was made by an earlier release)."""
        if not future.cancelled() and future.exception() is None:
            metadata = future.result()
            if metadata.timestamp_type == _BY_BROKER:
                self._clock.observe(sent, metadata.timestamp)


def _check_size(topic: str, largest: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
    size = len(key or b"") + len(value or b"")
    for name, text in headers:
        size += len(name) + len(text)
    if size > largest:
        raise MessageError("message too large", f"{size} bytes for {topic}, which takes {largest}")
