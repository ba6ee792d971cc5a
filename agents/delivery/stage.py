"""What a stage is to the machinery that feeds it: the protocol between an agent and its delivery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord

    from agents.delivery.core import Delivery
    from streams.topics import Topic

Shard = tuple[str, int]
"""A partition as stages name it: the topic without prefix, and the number."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one poll returned for one partition: never empty, in offset order (the log may have gaps).

    `topic` is without prefix. `generation` counts the assignments of this process, not Kafka's: a rebalance always
    changes it, and nothing of an older generation can be acked.
    """

    topic: str
    partition: int
    generation: int
    records: list[ConsumerRecord]

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return int(self.records[0].offset)

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return int(self.records[-1].offset)


class Stage(Protocol):
    """One kind of agent: what it reads, and what it does with it. All calls come from one event loop.

    An exception that leaves any of these methods is a programming error and ends the process, except `OwnershipLost`
    after the partition was revoked.
    """

    name: str
    """Also the name of the consumer group, behind the prefix."""

    topics: tuple[Topic, ...]
    """What it reads; topics with the same number of partitions are assigned together."""

    async def start(self, delivery: Delivery) -> None:
        """Once, with the producer running, before the first assignment."""

    async def assigned(self, partitions: frozenset[Shard]) -> None:
        """The partitions of a new generation: tables are recovered, positions stand at the committed offsets.

        The first batch comes after this returns. It may be cancelled by the next rebalance.
        """

    def revoked(self) -> None:
        """At the first sign of a rebalance: cancel, forget. What is still done for it is neither acked nor lost."""

    async def batch(self, batch: Batch) -> None:
        """Take a batch: when this returns, every record of it has a slot. Awaiting here is the back-pressure.

        There is one call at a time for a partition; calls for different partitions overlap. Cancelled by `revoked`.
        """

    async def drain(self) -> None:
        """No further batch comes: finish what is in flight. Cancelled when the grace is over."""

    async def stop(self) -> None:
        """Cancel what is left and give back what `start` took. Called once, also after a drain that was cut short."""
