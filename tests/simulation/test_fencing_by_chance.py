"""Random schedules of puts, pauses, take-overs, restarts, late batches and compaction."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from streams.errors import OwnershipLost
from streams.state.fencing import Accept, fence
from streams.state.ledger import Item
from tests.simulation.changelog import Owner
from tests.simulation.owners import World, folder, no_fence, paused_put, world_in

__all__ = ["folder"]  # a fixture


class Chance:
    """Random schedules: puts, pauses, take-overs, restarts, late batches, compaction within what settling allows."""

    NAMES = ("a", "b", "c")
    KEYS = tuple(bytes([byte]) for byte in b"pqrst")

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.rows: dict[bytes, bytes] = {}  # what the owner was told is written
        self.doubtful: dict[bytes, set[bytes | None]] = {}  # what it was not told, and may be written all the same
        self.owner: Owner | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.settled = 0

    async def run(self, steps: int) -> None:
        acts = [
            self.put,
            self.put,
            self.put,
            self.pause,
            self.land,
            self.take_over,
            self.restart,
            self.zombie,
            self.compact,
        ]
        await self.take_over()
        for _ in range(steps):
            await self.random.choice(acts)()
            await asyncio.sleep(0)
        while self.world.changelog.held:
            await self.land()
        await self.take_over()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def items(self) -> list[Item]:
        keys = self.random.choices(self.KEYS, k=self.random.randint(1, 5))
        return [
            (key, self.random.choice([None, bytes([self.random.choice(b"wfd"), self.random.randrange(200)])]))
            for key in keys
        ]

    async def put(self) -> None:
        if self.owner is None:
            return
        items = self.items()
        self.doubt(items)
        try:
            await asyncio.wait_for(self.owner.ledger.put(items), 0.05)
        except (OwnershipLost, TimeoutError):
            await self.take_over()
            return
        for key, value in items:
            self.rows.pop(key, None)
            if value is not None:
                self.rows[key] = value
        self.accept_rows()

    def doubt(self, items: list[Item]) -> None:
        for key, value in items:
            self.doubtful.setdefault(key, set()).add(value)

    def accept_rows(self) -> None:
        """The owner is sure of its rows: they are all, and a rebuilt store has them too."""
        assert self.owner is not None
        self.doubtful.clear()
        self.world.check(self.owner, self.rows)
        self.settled = self.world.changelog.end

    async def pause(self) -> None:
        """The owner stops with a batch on its way; another takes over."""
        if self.owner is None:
            return
        items = self.items()
        self.doubt(items)
        self.tasks.append(await paused_put(self.owner, items, packs=self.random.randint(1, 2)))
        await self.take_over()

    async def land(self) -> None:
        held = self.world.changelog.held
        if held:
            self.world.changelog.land(self.random.randrange(len(held)))
            await asyncio.sleep(0)

    async def take_over(self) -> None:
        name = self.random.choice([name for name in self.NAMES if self.idle(name)] or ["fresh"])
        wiped = name not in self.world.workers and self.random.random() < 0.5
        if name == "fresh" or wiped:
            name = f"{name}{self.world.generation}"
        self.owner = await self.world.take_over(name)
        self.judge()

    def idle(self, name: str) -> bool:
        worker = self.world.workers.get(name)
        return worker is None or not worker.ledger.lock.locked()

    def judge(self) -> None:
        """A new owner finds what its predecessor was told, or what it was not told and landed in time."""
        assert self.owner is not None
        found = self.owner.rows()
        for key in self.KEYS:
            allowed = {self.rows.get(key)} | self.doubtful.get(key, set())
            assert found.get(key) in allowed, (key, found.get(key), allowed)
        self.rows = found
        self.accept_rows()

    async def restart(self) -> None:
        names = [name for name, worker in self.world.workers.items() if self.idle(name)]
        if names:
            name = self.random.choice(names)
            lost = self.world.workers[name] is self.owner
            self.world.restart(name)
            if lost:
                await self.take_over()

    async def zombie(self) -> None:
        """One that did not notice that it lost the partition writes on."""
        others = [worker for name, worker in self.world.workers.items() if worker is not self.owner and self.idle(name)]
        if others:
            with suppress(OwnershipLost):
                await asyncio.wait_for(self.random.choice(others).ledger.put(self.items()), 0.05)
                pytest.fail("a former owner was told that its rows are written")

    async def compact(self) -> None:
        if self.random.random() < 0.5 and self.owner is not None:
            with suppress(OwnershipLost):
                await self.owner.ledger.settle()
                self.accept_rows()
        self.world.changelog.compact(self.settled)


async def chance(folder: Path, seed: int, accept: Accept = fence, steps: int = 60) -> None:
    with world_in(folder, accept) as world:
        await Chance(world, seed).run(steps)


@pytest.mark.parametrize("seed", range(30))
async def test_any_schedule_leaves_the_owner_and_the_changelog_agreed(folder, seed):
    await chance(folder, seed)


async def test_random_schedules_find_the_fault_of_a_build_without_fencing(folder):
    for seed in range(5):
        with suppress(AssertionError):
            await chance(folder / str(seed), seed, no_fence)
            continue
        return
    pytest.fail("five schedules without fencing and no fault")
