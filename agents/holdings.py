"""The partitions of `fetches` this process owns: their wire clocks, and what their former owners may have left running.

A clock is kept only over a rebalance after which the partition is still ours and nobody else can have owned it in
between: the group's next generation, counted by Kafka. For every other partition the quarantine holds (DESIGN §4):

- orders that were open at the take-over may be running elsewhere until their owner notices its loss. So for two
  heartbeats, or the time an abort takes, no request starts, and those orders go back as `deferred`: they may predate a
  429 that the former owner saw;
- where no order was open, nothing can be running (an order is acked when it is over): only the host's delay counts;
- where nobody ever committed there was no former owner: the first one commits before its first request. (That a group
  is in its first generation says nothing: a static member that was killed comes back without a new one.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agents.io.http import now
from streams.policy.politeness import WireClock
from streams.topics import FETCHES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agents.delivery import Delivery

ABORT: Final = 2.0
"""Seconds within which an owner that lost its partitions has ended its requests (`FetcherStage` looks each second)."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One owned partition. Orders at offsets below `old` are older than the take-over and go back."""

    clock: WireClock
    old: int = 0


class Holdings:
    """All owned partitions by number."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._quarantine = max(2 * delivery.settings.kafka.heartbeat, ABORT)
        self._held: dict[int, Holding] = {}
        self._generation = 0

    def get(self, partition: int) -> Holding | None:
        """The holding, if the partition is ours."""
        return self._held.get(partition)

    def all(self) -> Iterable[Holding]:
        """Those of all owned partitions."""
        return self._held.values()

    def keep(self, owned: Iterable[int]) -> None:
        """A new generation owns these partitions: what is not kept is gone at once."""
        generation = self._delivery.app.consumer_generation_id
        kept = set(owned) if generation == self._generation + 1 else set()
        self._generation = generation
        self._held = {number: holding for number, holding in self._held.items() if number in kept}

    async def take(self, owned: Iterable[int]) -> None:
        """Then, for those that are not kept: a clock of their own."""
        new = sorted(set(owned) - self._held.keys())
        first = await self._delivery.claim(FETCHES, new)
        ends = await self._delivery.ends(FETCHES, set(new) - first)
        self._held.update((number, Holding(WireClock())) for number in first)
        self._held.update((number, self._taken_over(number, end)) for number, end in ends.items())

    def _taken_over(self, number: int, end: int) -> Holding:
        is_open = self._delivery.position(FETCHES, number) < end
        return Holding(WireClock(now(), self._quarantine if is_open else 0.0), end if is_open else 0)
