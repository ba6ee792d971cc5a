"""The parser's processes with the real packing of links (`agents.packs`), and the exporter's."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from agents.packs import Packer
from streams import messages as m
from streams.policy.forgetting import is_forgotten
from streams.policy.urls import canonical, fingerprint
from streams.topics import RECORDS
from tests.simulation.ring.engine import step, when
from tests.simulation.ring.stage import Stage

if TYPE_CHECKING:
    from agents.packs import Turn
    from tests.simulation.ring.broker import Group, Place
    from tests.simulation.ring.engine import Task
    from tests.simulation.ring.ring import Ring
    from tests.simulation.ring.web import Answer

Identity = tuple[bytes, int]
"""Fingerprint of crawl and URL key, and the visit; -1 for the word that all of the URL is to be deleted."""
DELETED = -1


@dataclass(slots=True)
class Batch:
    """Pages of one partition that are parsed together."""

    place: Place
    links: Turn
    records: list[Identity] = field(default_factory=list)
    outcomes: dict[int, list[m.ParseOutcome]] = field(default_factory=dict)
    end: int = 0


class ParserWorker(Stage):
    """Owns partitions of `pages`."""

    def __init__(self, ring: Ring, name: str, group: Group) -> None:
        self._packer = Packer(ring.plan.shards, ring.key)
        self._work: Task | None = None
        super().__init__(ring, name, group)

    def revoked(self) -> None:
        super().revoked()
        if self._work is not None:
            self.cancel(self._work)

    def assigned(self, generation: int, owned: frozenset[Place]) -> None:
        super().assigned(generation, owned)
        self._work = self.spawn(self._parse({place: self.group.committed.get(place, 0) for place in owned}))

    async def _parse(self, positions: dict[Place, int]) -> None:
        broker = self.ring.broker
        while True:
            await when(lambda: any(broker.end(*place) > position for place, position in positions.items()))
            for place, position in sorted(positions.items()):
                batch = Batch(place, self._packer.turn(self.engine.time), end=position)
                for offset, (page, answer) in broker.read(*place, position, self.engine.random.randint(1, 3)):
                    self._page(batch, offset, page, answer)
                if batch.end > position:
                    for write in self.ring.build.parser:
                        await getattr(self, write)(batch)
                positions[place] = max(batch.end, broker.lost[place])

    def _page(self, batch: Batch, offset: int, page: m.PageHeaders, answer: Answer) -> None:
        definition = self.crawls.get(page.crawl)
        if definition is None or definition.version < page.rules:
            self.catch_up()
            definition = self.crawls.get(page.crawl)
        batch.end = offset + 1
        outcome = m.ParseOutcome(crawl=page.crawl, fingerprint=page.fingerprint, visit=page.visit, depth=page.depth,
                                 page=(batch.place[1], offset), url=page.url,
                                 content=content_of(answer))  # fmt: skip
        batch.outcomes.setdefault(page.shard, []).append(outcome)
        if definition is not None and is_forgotten(definition, page.url):
            return
        dates = dict.fromkeys((*answer.links, *answer.sitemaps), answer.lastmod) if answer.lastmod else {}
        batch.links.add(page, list(answer.links), definition, dates)
        if page.source == "sitemap":
            batch.links.add_sitemaps(page, list(answer.sitemaps), definition, dates)
        else:
            batch.records.append((fingerprint(page.crawl, canonical(page.url)), page.visit))

    # ---- the writes of a batch

    async def packs(self, batch: Batch) -> None:
        for shard, value in batch.links.messages():
            await self.write(partial(self.ring.deliver, shard, value))

    async def records(self, batch: Batch) -> None:
        for identity in batch.records:
            await self.write(partial(self.append, RECORDS.name, 0, identity))

    async def delivered(self, batch: Batch) -> None:
        batch.links.delivered(self.engine.time)

    async def outcomes(self, batch: Batch) -> None:
        for shard, items in batch.outcomes.items():
            await self.write(partial(self.ring.deliver, shard, m.Outcomes(items=tuple(items))))

    async def ack(self, batch: Batch) -> None:
        self.may_die()
        await step()
        self.group.commit(self, self.generation, batch.place, batch.end)


@dataclass
class Folder:
    """What an output folder holds: lines, and what was made durable together: identities and the file's length."""

    lines: list[Identity] = field(default_factory=list)
    known: set[Identity] = field(default_factory=set)
    length: int = 0


class ExporterWorker(Stage):
    """Writes each identity once."""

    _work: tuple[Task, ...] = ()

    def revoked(self) -> None:
        super().revoked()
        for task in self._work:
            self.cancel(task)

    def assigned(self, generation: int, owned: frozenset[Place]) -> None:
        super().assigned(generation, owned)
        self._work = tuple(self.spawn(self._export(place, self.group.committed.get(place, 0))) for place in owned)

    async def _export(self, place: Place, position: int) -> None:
        broker, folder = self.ring.broker, self.ring.folder
        del folder.lines[folder.length :]  # of a writer that died before it knew them
        while True:
            await when(lambda: broker.end(*place) > position)  # noqa: B023
            taken = broker.read(*place, position, self.engine.random.randint(1, 8))
            wanted = dict.fromkeys(value for _, value in taken if value[1] != DELETED)
            new = [identity for identity in wanted if identity not in folder.known]
            self.may_die()
            await step()
            folder.lines += new
            self.may_die()
            await step()
            folder.known.update(new)
            folder.length = len(folder.lines)
            self.may_die()
            await step()
            position = taken[-1][0] + 1
            self.group.commit(self, self.generation, place, position)


def content_of(answer: Answer) -> bytes:
    """The fingerprint of what a page says: what has no validator is always the same."""
    return blake2b(answer.etag.encode() + str(answer.size).encode(), digest_size=8).digest()
