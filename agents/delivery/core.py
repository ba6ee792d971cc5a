"""What a stage holds in its hands: sending, slots, and the way to give up."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from aiokafka.errors import KafkaError

from streams import codecs, messages
from streams.errors import FykeError, MessageError
from streams.topics import FAILURES, INBOX, Topic

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord
    from aiokafka.structs import RecordMetadata

    from agents.clock import BrokerClock
    from agents.delivery.acker import Slot
    from agents.delivery.producer import Headers, Item, Producer
    from agents.delivery.shards import Shards
    from agents.delivery.stage import Batch
    from streams.app import StageApp
    from streams.metrics import Count, Metrics
    from streams.settings import Settings

log = logging.getLogger(__name__)

RETRY = 0.25
"""Seconds until a question is asked again that the broker did not answer."""

FATAL = 70
"""Exit code of a worker that met a programming error or lost its producer (EX_SOFTWARE of sysexits.h)."""

_EVIDENCE = 64 * 1024
_LOUD = 10
"""Unreadable messages of a topic that a stage logs; all of them are counted in its metrics."""


def die(error: BaseException) -> NoReturn:
    """Log and end the process at once. What is not acked is read again by its next owner.

    What a person can mend (`FykeError`) ends it with that error's exit code and its text alone: starting again would
    not help.
    """
    if isinstance(error, FykeError) and not isinstance(error, MessageError):
        log.critical("this worker ends: %s", error)
        code = int(error.exit_code)
    else:
        log.critical("this worker ends: %s", error, exc_info=error)
        code = FATAL
    logging.shutdown()
    os._exit(code)


class Delivery:
    """The services of one stage in one process."""

    def __init__(
        self, settings: Settings, metrics: Metrics, app: StageApp, producer: Producer, shards: Shards, name: str,
        clock: BrokerClock,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.metrics = metrics
        self.app = app
        """The Faust app: a stage with tables makes them in `start`."""
        self.clock = clock
        """Broker time: for all that is persisted."""
        self._producer = producer
        self._shards = shards
        self._name = name
        self._sent: dict[str, tuple[Count, Count]] = {}
        self._unreadable: Counter[str] = Counter()

    def partitions(self, topic: Topic) -> int:
        """How many partitions a topic has. Raises `EnvironmentFault` if it does not exist."""
        return self._producer.partitions(topic)

    def largest(self, topic: Topic) -> int:
        """The most bytes key, value and headers of one message may have together."""
        return self._producer.largest(topic)

    async def send(
        self, topic: Topic, value: bytes | None, *, key: bytes | None = None, partition: int, headers: Headers = ()
    ) -> asyncio.Future[RecordMetadata]:
        """Enqueue one message; await the future before acking what it came from.

        Raises `MessageError` if it is too large. A failed delivery ends the process.
        """
        future = await self._producer.send(topic, value, key=key, partition=partition, headers=headers)
        self._count(topic, 1, len(value or b"") + len(key or b""))
        return future

    async def send_all(self, topic: Topic, partition: int, items: Sequence[Item]) -> int:
        """Send key-value pairs of one partition in packed batches, in order, and await them.

        Returns the offset of the last one (-1: there was none). Raises `MessageError` before anything is sent if one
        is too large.
        """
        if not items:
            return -1
        batches = await self._producer.send_all(self._producer.name(topic), partition, items)
        self._count(topic, len(items), sum(len(key or b"") + len(value or b"") for key, value in items))
        first, count = batches[-1]
        return first + count - 1

    @property
    def changelog(self) -> Producer:
        """What tables write their changelog with (`streams.state.changelog.ChangelogWriter`)."""
        return self._producer

    async def ends(self, topic: Topic, partitions: Iterable[int]) -> dict[int, int]:
        """Where partitions end now, asked from the broker; waits for it. Raises `KafkaError` if it refuses."""
        name = self._producer.name(topic)
        wanted = [(name, number) for number in partitions]
        while True:
            try:
                ends = await self.app.ends(wanted)
            except KafkaError as error:
                if not error.retriable:
                    raise
                log.warning("ends of %s: %s; asking again", name, error)
                await asyncio.sleep(RETRY)
            else:
                return {tp[1]: end for tp, end in ends.items()}

    async def claim(self, topic: Topic, partitions: Iterable[int]) -> set[int]:
        """Those of our partitions that no worker had before us; from now on their next owner knows that we had them."""
        name = self._producer.name(topic)
        return {tp[1] for tp in await self.app.batches.claim((name, number) for number in partitions)}

    async def learn_time(self) -> None:
        """Hear the broker's time before the first time is persisted; waits for its answer.

        It tells it only of a record that it takes: an empty list of outcomes, which says nothing to a shard.
        """
        await (await self.send(INBOX, codecs.encode(messages.Outcomes(items=())), partition=0))

    def slot(self, batch: Batch, first: int, last: int) -> Slot:
        """Register the records `first` to `last` of a batch (offsets, both included) as taken, in offset order.

        Call `done()` on it when everything they caused is durable. Acks leave in order, per partition and generation;
        a slot of an older generation acks nothing.
        """
        return self._shards.slot(batch, first, last)

    def position(self, topic: Topic, partition: int) -> int:
        """All before this offset is done, so that a restart would begin here. Raises `OwnershipLost` if not ours."""
        return self._shards.position(topic, partition)

    async def unreadable(
        self, batch: Batch, record: ConsumerRecord, reason: str, part: tuple[int, bytes] | None = None, **known: Any
    ) -> None:
        """Write a message that cannot be read to `failures`, and wait until it is there. Its slot is the caller's.

        `part`: index and bytes, where only this part of the message is wrong; `known`: fields of the failure that are
        known all the same. A message of `failures` itself is logged and counted: to report it there would never end.
        """
        self.metrics.streams.unreadable.labels(self._name, batch.topic).inc()
        self._unreadable[batch.topic] += 1
        if self._unreadable[batch.topic] <= _LOUD:
            log.warning("%s-%d@%d cannot be read: %s", batch.topic, batch.partition, record.offset, reason)
        if batch.topic == FAILURES.name:
            return
        evidence: dict[str, str | int] = {
            "topic": batch.topic, "partition": batch.partition, "offset": int(record.offset)
        }  # fmt: skip
        data = record.value or b""
        if part is not None:
            evidence["index"], data = part
        evidence["bytes"] = base64.b64encode(data[:_EVIDENCE]).decode()
        nothing: dict[str, Any] = {"url": "", "crawl": "", "visit": 0, "attempt": 0}
        failure = messages.Failure(
            failure="unreadable", reason=reason, evidence=evidence, next=messages.Next(action="none"),
            at=self.clock.now(), **nothing | known,
        )  # fmt: skip
        partition = batch.partition % self.partitions(FAILURES)
        await (await self.send(FAILURES, codecs.encode(failure), partition=partition))

    def fatal(self, error: BaseException) -> NoReturn:
        """Log and end the process: a programming error, or a delivery that failed for good."""
        die(error)

    def confirmed(self) -> bool:
        """Whether the group's coordinator surely still counts us as the owner: if not, another one may be at work.

        By CLOCK_BOOTTIME, from the send of the last heartbeat (or join) that it accepted.
        """
        silent = time.clock_gettime(time.CLOCK_BOOTTIME) - self.app.confirmed_at()
        return silent < self.settings.kafka.session_timeout

    def _count(self, topic: Topic, number: int, size: int) -> None:
        counts = self._sent.get(topic.name)  # by name: a dataclass is hashed field by field
        if counts is None:
            streams, labels = self.metrics.streams, (self._name, topic.name)
            counts = (
                self.metrics.count(streams.messages_out.labels(*labels)),
                self.metrics.count(streams.bytes_out.labels(*labels)),
            )
            self._sent[topic.name] = counts
        counts[0].number += number
        counts[1].number += size
