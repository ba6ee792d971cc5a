"""A changelog and workers that own it in turn, with their disks: the world of the fencing schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from streams.state.fencing import Accept, fence
from streams.state.ledger import Item
from tests.simulation.changelog import Changelog, Owner
from tests.unit.state.rows import counters_of, index_of


def no_fence(epoch: int, highest: int) -> bool:
    """What recovery did before there were epochs."""
    return True


class World:
    """A changelog and workers with their disks below `folder`."""

    def __init__(self, folder: Path, accept: Accept = fence) -> None:
        self.folder = folder
        self.accept = accept
        self.changelog = Changelog()
        self.generation = 0
        self.workers: dict[str, Owner] = {}

    def worker(self, name: str) -> Owner:
        if name not in self.workers:
            self.workers[name] = Owner(self.changelog, self.folder / name, self.accept)
        return self.workers[name]

    async def take_over(self, name: str) -> Owner:
        """Assigned to `name`; whoever had it has not noticed."""
        self.generation += 1
        owner = self.worker(name)
        owner.generation = self.generation
        owner.hold = 0
        await owner.recover()
        await owner.ledger.claim()
        return owner

    def restart(self, name: str) -> None:
        """Kill -9 and start: the disk stays."""
        self.workers.pop(name).close()

    def check(self, owner: Owner, rows: dict[bytes, bytes]) -> None:
        assert owner.rows() == rows
        assert owner.store.scan(b"", limit=10_000) == index_of(rows)
        assert owner.store.counters() == counters_of(rows)
        assert self.changelog.rebuilt(self.accept) == rows

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()


@contextmanager
def world_in(folder: Path, accept: Accept = fence) -> Iterator[World]:
    world = World(folder, accept)
    try:
        yield world
    finally:
        world.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """For stores, in memory where there is such a folder: opening one forces files to disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture
def world(folder) -> Iterator[World]:
    with world_in(folder) as made:
        yield made


async def paused_put(owner: Owner, items: list[Item], packs: int = 1) -> asyncio.Task[None]:
    """A put whose first `packs` batches are still on their way."""
    owner.hold = packs
    task = asyncio.create_task(owner.ledger.put(items))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task
