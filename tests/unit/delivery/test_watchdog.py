"""A worker that has work and does none is ended; one that is idle, busy, recovering or was asleep is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import pytest
from aiokafka.errors import KafkaConnectionError

from agents.delivery.watchdog import LOOKS, StuckError, Watchdog
from streams.feed import TP

LIMIT = 80.0
PERIOD = LIMIT / LOOKS
A: TP = ("fyke.fetches", 0)


class Ended(Exception):
    pass


def fatal(error: BaseException) -> NoReturn:
    raise Ended from error


@dataclass
class World:
    """Stands in for the shards and the broker."""

    now: float = 0.0
    progress: int = 0
    position: int | None = 10
    end: int = 10
    away: bool = False
    limbo: bool = False
    asked: list[list[TP]] = field(default_factory=list)

    def positions(self) -> dict[TP, int]:
        return {} if self.position is None else {A: self.position}

    async def ends(self, tps: list[TP]) -> Mapping[TP, int]:
        self.asked.append(tps)
        if self.away:
            raise KafkaConnectionError
        return {A: self.end}


def watch(world: World) -> Watchdog:
    return Watchdog(world, world.ends, lambda: world.limbo, LIMIT, fatal, lambda: world.now)  # type: ignore[arg-type]  # stand-in


async def look(dog: Watchdog, world: World, times: int) -> None:
    for _ in range(times):
        world.now += PERIOD
        await dog.look()


async def test_lag_without_progress_ends_the_process_after_the_limit() -> None:
    world = World(end=11)
    dog = watch(world)
    await look(dog, world, LOOKS)
    assert dog.stalled == pytest.approx(LIMIT - PERIOD)
    with pytest.raises(Ended) as ended:
        await look(dog, world, 1)
    assert isinstance(ended.value.__cause__, StuckError)
    assert "1 messages wait" in str(ended.value.__cause__)


async def test_no_lag_is_no_work() -> None:
    world = World()
    await look(watch(world), world, 3 * LOOKS)


async def test_nothing_assigned_is_no_work() -> None:
    world = World(position=None)
    await look(watch(world), world, 3 * LOOKS)
    assert world.asked == []


async def test_any_ack_is_progress() -> None:
    world = World(end=1000)
    dog = watch(world)
    for _ in range(5):
        await look(dog, world, LOOKS - 1)
        world.progress += 1
    assert dog.stalled < LIMIT


async def test_the_wait_for_work_does_not_count() -> None:
    world = World()
    dog = watch(world)
    await look(dog, world, 3 * LOOKS)
    world.end = 20
    await look(dog, world, LOOKS - 1)


async def test_while_the_broker_does_not_answer_the_last_lag_counts() -> None:
    world = World(end=11)
    dog = watch(world)
    await look(dog, world, 2)
    world.away = True
    with pytest.raises(Ended):
        await look(dog, world, LOOKS)
    idle = World()
    dog = watch(idle)
    await look(dog, idle, 1)
    idle.away = True
    await look(dog, idle, 3 * LOOKS)


async def test_a_lag_not_known_since_the_assignment_may_be_any() -> None:
    """The broker died right after the assignment: the worker has work as far as anybody knows."""
    world = World(away=True)
    with pytest.raises(Ended) as ended:
        await look(watch(world), world, LOOKS + 1)
    assert "an unknown number of messages wait" in str(ended.value.__cause__)


async def test_a_rebalance_that_never_ends_is_stuck() -> None:
    world = World(position=None, limbo=True)
    with pytest.raises(Ended):
        await look(watch(world), world, LOOKS + 1)


async def test_time_in_which_the_process_itself_stood_still_does_not_count() -> None:
    world = World(end=11)
    dog = watch(world)
    await look(dog, world, 2)
    world.now += 10 * LIMIT  # SIGSTOP, or the machine slept
    await look(dog, world, 2)
