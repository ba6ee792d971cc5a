"""What the processes of all stages have in common: the definitions they read, and how a build may differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

from agents.broadcast import Board, Crawls
from streams.frontier.end import EndWatch
from streams.policy.politeness import WireClock
from streams.state.fencing import Accept, fence
from streams.topics import CRAWLS, PROGRESS
from tests.simulation.ring.broker import Group, Member
from tests.simulation.ring.engine import step, when

if TYPE_CHECKING:
    from tests.simulation.ring.ring import Ring


@dataclass(frozen=True)
class Build:
    """What a mutant does otherwise. The orders of writes are those of DESIGN §3, by name of a stage's method."""

    frontier: tuple[str, ...] = ("effects", "rows", "orders", "ack")
    parser: tuple[str, ...] = ("packs", "records", "delivered", "outcomes", "ack")
    accept: Accept = fence
    clock: Callable[..., WireClock] = WireClock
    watch: Callable[[str, int], EndWatch] = EndWatch
    epoch: Callable[[int], int] = int
    """What `progress` says of an owner's epoch."""
    forgets: bytes = b"none"
    """Rows whose key begins so are not written."""
    confirms: bool = True
    """Whether a shard's owner makes sure that it is one before it sends orders."""
    patches: tuple[tuple[object, str, object], ...] = ()
    """What is put in the place of an object's attribute while a schedule runs."""


class Stage(Member):
    """A process that follows `crawls`, some also `progress`."""

    follows_progress = False

    def __init__(self, ring: Ring, name: str, group: Group) -> None:
        super().__init__(ring.engine, name, group)
        self.ring = ring
        self.crawls = Crawls()
        self.board = Board()
        self.news = 0
        """Counts what was read of the two."""
        self._read = {CRAWLS.name: 0, PROGRESS.name: 0}
        self.spawn(self._follow())
        self.catch_up()

    def revoked(self) -> None:
        super().revoked()
        self.ring.judge.trouble()

    def catch_up(self) -> None:
        """Read all that there is now."""
        while self._behind():
            self._fold()

    def append(self, topic: str, partition: int, value: object) -> int:
        """Append a message."""
        return self.ring.broker.append(topic, partition, value)

    def _behind(self) -> bool:
        if self._read[CRAWLS.name] < len(self.ring.broker.definitions):
            return True
        return self.follows_progress and self._read[PROGRESS.name] < len(self.ring.broker.progress)

    async def _follow(self) -> None:
        while True:
            await when(self._behind)
            self._fold()
            await step()

    def _fold(self) -> None:
        self.news += 1
        self.engine.changes += 1
        for topic, fold in ((CRAWLS.name, self.crawls.fold), (PROGRESS.name, self.board.fold)):
            if topic == PROGRESS.name and not self.follows_progress:
                continue
            for offset, (key, value) in self.ring.broker.read(topic, 0, self._read[topic], 3):
                self._read[topic] = offset + 1
                fold(SimpleNamespace(key=key, value=value))
                if topic == CRAWLS.name:
                    self.read()

    def read(self) -> None:
        """A definition was read."""
