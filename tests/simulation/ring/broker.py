"""Topics, offsets and consumer groups: what of a broker the schedules need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streams.state.fencing import MARKER, NO_EPOCH, Headers, epoch_of, fence
from streams.topics import CRAWLS, PROGRESS
from tests.simulation.ring.engine import Engine, Worker, step

if TYPE_CHECKING:
    from streams.state.ledger import Item

SESSION = 20.0
"""Seconds after which a silent worker has lost its partitions."""

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Record:
    """Of a changelog."""

    offset: int
    key: bytes
    value: bytes | None
    headers: Headers


@dataclass
class Changelog:
    """One partition of rows; `accepted` hears of each record that counts."""

    accepted: Callable[[bytes, bytes | None], None]
    records: list[Record] = field(default_factory=list)
    epoch: int = NO_EPOCH

    def append(self, items: Sequence[Item], headers: Headers) -> int:
        first = len(self.records)
        for offset, (key, value) in enumerate(items, first):
            self.records.append(Record(offset, key, value, headers))
            if key == MARKER:
                self.epoch = offset
            elif fence(epoch_of(headers), self.epoch):
                self.accepted(key, value)
        return first


class Broker:
    """Logs by topic and partition, and what groups have committed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._logs: defaultdict[Place, list[Any]] = defaultdict(list)
        self.definitions: list[Any] = self._logs[CRAWLS.name, 0]
        self.progress: list[Any] = self._logs[PROGRESS.name, 0]
        self.lost: defaultdict[Place, int] = defaultdict(int)  # retention: all before this offset is gone

    def append(self, topic: str, partition: int, value: Any) -> int:
        log = self._logs[topic, partition]
        log.append(value)
        self._engine.changes += 1
        return len(log) - 1

    def end(self, topic: str, partition: int) -> int:
        return len(self._logs[topic, partition])

    def read(self, topic: str, partition: int, start: int, most: int) -> list[tuple[int, Any]]:
        """Up to so many records from `start`, or from where the log begins."""
        start = max(start, self.lost[topic, partition])
        return list(enumerate(self._logs[topic, partition][start : start + most], start))

    def trim(self, topic: str, partition: int) -> None:
        """Retention: all that is there is gone; what comes after it is not."""
        self.lost[topic, partition] = self.end(topic, partition)


class Member(Worker):
    """A worker in a consumer group. `generation`: what it believes to be in force, None between two of them."""

    generation: int | None = None
    owned: frozenset[Place] = frozenset()

    def __init__(self, engine: Engine, name: str, group: Group) -> None:
        super().__init__(engine, name)
        self.group = group

    def revoked(self) -> None:
        """Its partitions are being given out anew."""
        self.generation = None

    def assigned(self, generation: int, owned: frozenset[Place]) -> None:
        """What it owns from now on."""
        self.generation, self.owned = generation, owned

    def pause(self, until: float) -> None:
        super().pause(until)
        self.spawn(self._back())

    async def _back(self) -> None:
        """After a pause, and perhaps after having done this and that: hear that all is well, or join again."""
        await step()
        if not self.confirmed():
            self.expired()
        self.silent = None
        if self not in self.group.members:
            self.revoked()
            self.group.join(self)

    def expired(self) -> None:
        """It has been silent for so long that others may own what it owned."""

    def confirmed(self) -> bool:
        """Whether the group surely still counts it as the owner."""
        return self.silent is None or self.engine.time - self.silent < SESSION


class Group:
    """A consumer group with static members: one that is back in time keeps its partitions without a new generation."""

    def __init__(self, engine: Engine, places: Iterable[Place]) -> None:
        self.engine = engine
        self.places = list(places)
        self.members: list[Member] = []
        self.generation = 0
        self.committed: dict[Place, int] = {}
        self.assignment: dict[Place, Member] = {}
        self._due = False
        self.pending = False
        """Whether `coordinate` may have something to do."""

    def join(self, member: Member) -> None:
        if member not in self.members:
            self.members.append(member)
        self._due = self.pending = True

    def leave(self, member: Member) -> None:
        if member in self.members:
            self.members.remove(member)
        self._due = self.pending = True

    def shuffle(self) -> None:
        """Somebody asks for a new distribution."""
        self._due = self.pending = True

    def restarted(self, member: Member) -> None:
        """A member that died is back: as it was, if its session is not over."""
        if member in self.members and not self._due:
            member.assigned(self.generation, frozenset(p for p, owner in self.assignment.items() if owner is member))
        else:
            self.join(member)

    def commit(self, member: Member, generation: int | None, place: Place, offset: int) -> None:
        """A commit of somebody who is not the owner (any more) is refused."""
        if generation == self.generation and self.assignment.get(place) is member:
            self.committed[place] = max(self.committed.get(place, 0), offset)

    def owns(self, member: Member, place: Place) -> bool:
        """Whether a partition is a member's, whatever it believes."""
        return member.generation == self.generation and self.assignment.get(place) is member

    def watch(self, member: Member) -> None:
        """It fell silent: look again when its session ends."""
        self.engine.at((member.silent or self.engine.time) + SESSION, self._look)

    def _look(self) -> None:
        self.pending = True

    def coordinate(self) -> None:
        """Evict whom nobody has heard of, and give the partitions out anew when all others have answered."""
        for member in [m for m in self.members if m.silent is not None]:
            if self.engine.time - (member.silent or 0.0) >= SESSION:
                self.leave(member)
        ready = [member for member in self.members if member.alive]
        if any(member.silent is not None for member in self.members):
            return
        self.pending = False
        if not self._due or not ready:
            return
        self._due = False
        self.generation += 1
        for member in ready:
            member.revoked()
        for place in self.places:
            owner = self.assignment.get(place)
            if owner not in ready or self.engine.random.random() < 0.4:
                self.assignment[place] = self.engine.random.choice(ready)
        for member in ready:
            member.assigned(self.generation, frozenset(p for p, owner in self.assignment.items() if owner is member))
