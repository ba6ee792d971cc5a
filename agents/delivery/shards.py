"""The partitions this process owns: their ackers, and the calls into the stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from agents.delivery.acker import Acker, Slot
from agents.delivery.stage import Batch, Shard, Stage
from streams.errors import OwnershipLost

if TYPE_CHECKING:
    from streams.feed import TP
    from streams.metrics import Metrics
    from streams.topics import Topic


class Shards:
    """A `streams.feed.Port` for one stage. `advance` is told which position of a partition is safe to commit."""

    def __init__(self, stage: Stage, prefix: str, metrics: Metrics, fatal: Callable[[BaseException], NoReturn]) -> None:
        self.advance: Callable[[TP, int], None] = _unheard
        self.progress = 0
        """Grows with every ack: what the watchdog looks at."""
        self._stage = stage
        self._prefix = prefix
        self._fatal = fatal
        self._generation = -1
        self._ackers: dict[Shard, Acker] = {}
        streams = metrics.streams
        self._rebalances = streams.rebalances.labels(stage.name)
        self._acked = metrics.count(streams.acked.labels(stage.name))
        streams.assigned.labels(stage.name).set_function(lambda: len(self._ackers))
        streams.in_flight.labels(stage.name).set_function(lambda: self.in_flight)
        self._counters = {
            topic.name: tuple(
                counter.labels(stage.name, topic.name)
                for counter in (streams.messages_in, streams.bytes_in, streams.batches)
            )
            for topic in stage.topics
        }

    @property
    def in_flight(self) -> int:
        """Slots that are taken and not acked."""
        return sum(acker.in_flight for acker in self._ackers.values())

    def positions(self) -> dict[TP, int]:
        """The acked positions of the owned partitions, by full topic name."""
        return {(self._prefix + topic, partition): acker.position for (topic, partition), acker in self._ackers.items()}

    def position(self, topic: Topic, partition: int) -> int:
        """The acked position of one partition. Raises `OwnershipLost` if it is not ours."""
        acker = self._ackers.get((topic.name, partition))
        if acker is None:
            raise OwnershipLost(f"{topic.name}-{partition}")
        return acker.position

    def slot(self, batch: Batch, first: int, last: int) -> Slot:
        """See `Delivery.slot`."""
        if batch.generation != self._generation:
            return Slot(_GONE, first, last + 1)
        try:
            return self._ackers[batch.topic, batch.partition].take(first, last)
        except ValueError as error:
            self._fatal(error)

    # ---- Port -----------------------------------------------------------------------------------------------------

    def revoked(self) -> None:
        """See `streams.feed.Port`."""
        for acker in self._ackers.values():
            acker.close()
        self._ackers.clear()
        self._generation = -1
        self._rebalances.inc()
        try:
            self._stage.revoked()
        except Exception as error:  # noqa: BLE001 - whatever a stage raises is a programming error
            self._fatal(error)

    async def assigned(self, generation: int, positions: Mapping[TP, int]) -> None:
        """See `streams.feed.Port`."""
        self._generation = generation
        self._ackers = {
            (topic.removeprefix(self._prefix), partition): Acker(position, self._mover((topic, partition)))
            for (topic, partition), position in positions.items()
        }
        await self._stage.assigned(frozenset(self._ackers))

    async def batch(self, tp: TP, generation: int, records: list[Any]) -> None:
        """See `streams.feed.Port`."""
        topic, partition = tp[0].removeprefix(self._prefix), tp[1]
        acker = self._ackers.get((topic, partition))
        if acker is None or generation != self._generation:
            return
        batch = Batch(topic, partition, generation, records)
        messages, size, batches = self._counters[topic]
        messages.inc(len(records))
        size.inc(sum(len(record.key or b"") + len(record.value or b"") for record in records))
        batches.inc()
        acker.arrive([record.offset for record in records])
        await self._stage.batch(batch)
        if acker.open and acker.untaken:
            raise ValueError(f"{self._stage.name} left {acker.untaken} records of {topic}-{partition} without a slot")

    def fatal(self, error: BaseException) -> NoReturn:
        """See `streams.feed.Port`."""
        self._fatal(error)

    def _mover(self, tp: TP) -> Callable[[int, int], None]:
        def moved(before: int, position: int) -> None:
            self.progress += 1
            self._acked.number += position - before
            self.advance(tp, position)

        return moved


def _unheard(tp: TP, position: int) -> None:
    """Before there is a consumer nothing is acked."""


def _unmoved(before: int, position: int) -> None:
    """Nothing is acked for a partition that is not ours."""


_GONE = Acker(0, _unmoved)
_GONE.close()
