"""A worker that has work and does none is ended; one that is idle, busy, recovering or was asleep is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import pytest
from aiokafka.errors import KafkaConnectionError

from agents.delivery.watchdog import LOOKS, ONE_PARTITION, StuckError, Watchdog
from streams.feed import TP

LIMIT = 80.0
PERIOD = LIMIT / LOOKS
A: TP = ("fyke.fetches", 0)
B: TP = ("fyke.fetches", 1)


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
    in_flight: int = 3
    other: int = 0  # position of partition 1, which has no end
    away: bool = False
    limbo: bool = False
    asked: list[list[TP]] = field(default_factory=list)

    def positions(self) -> dict[TP, int]:
        if self.position is None:
            return {}
        return {A: self.position, B: self.other} if self.other else {A: self.position}

    async def ends(self, tps: list[TP]) -> Mapping[TP, int]:
        self.asked.append(tps)
        if self.away:
            raise KafkaConnectionError
        return {A: self.end, B: 10**9} if self.other else {A: self.end}


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
    assert str(ended.value.__cause__) == (
        "1 messages wait (1 in fyke.fetches-0 from offset 10; 3 slots are in flight), and nothing was acked for 80 s"
    )


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
    with pytest.raises(Ended) as ended:
        await look(watch(world), world, LOOKS + 1)
    assert "gets through no rebalance" in str(ended.value.__cause__)


async def test_one_partition_that_stands_still_while_others_move_is_stuck_in_the_end() -> None:
    world = World(end=11, other=100)
    dog = watch(world)
    for _ in range(LOOKS * ONE_PARTITION):
        await look(dog, world, 1)
        world.other += 1
        world.progress += 1
    with pytest.raises(Ended) as ended:
        await look(dog, world, 1)
    assert "1 in fyke.fetches-0 from offset 10" in str(ended.value.__cause__)
    assert "fyke.fetches-1" not in str(ended.value.__cause__)


async def test_a_partition_that_moves_at_least_once_in_that_time_is_not() -> None:
    world = World(end=1000, other=100)
    dog = watch(world)
    for at in range(3 * LOOKS * ONE_PARTITION):
        await look(dog, world, 1)
        world.other += 1
        world.progress += 1
        if at % (LOOKS * ONE_PARTITION - 2) == 0:
            assert world.position is not None
            world.position += 1


async def test_an_assignment_without_the_partition_ends_its_wait() -> None:
    world = World(end=11, other=100)
    dog = watch(world)
    for at in range(2 * LOOKS * ONE_PARTITION - 4):
        world.position = None if at == LOOKS * ONE_PARTITION - 2 else 10
        await look(dog, world, 1)
        world.progress += 1
        world.other += 1


async def test_time_in_which_the_process_itself_stood_still_does_not_count() -> None:
    world = World(end=11)
    dog = watch(world)
    await look(dog, world, 2)
    world.now += 10 * LIMIT  # SIGSTOP, or the machine slept
    await look(dog, world, 2)
