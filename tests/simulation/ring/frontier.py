"""The frontier's processes: intake, shards, and the announcing of ends, as in `agents.frontier` and its neighbours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from agents.broadcast import publish
from streams import messages as m
from streams.codecs import decode_inbox, encode
from streams.definitions import CrawlDefinition
from streams.errors import OwnershipLost
from streams.frontier.end import EndWatch, result_of, seems_over
from streams.frontier.release import ShardConfig
from streams.frontier.shard import Shard
from streams.policy.urls import canonical, fingerprint
from streams.state.fencing import Headers
from streams.state.ledger import Ledger
from streams.topics import FAILURES, INBOX, PROGRESS, RECORDS, URLS, Topic, shard_of
from tests.simulation.ring.engine import Task, step, until, when
from tests.simulation.ring.parser import DELETED
from tests.simulation.ring.stage import Stage
from tests.simulation.world import crawls_of

if TYPE_CHECKING:
    from streams.frontier.turn import Turn
    from streams.state.ledger import Item
    from streams.state.store import Store
    from tests.simulation.ring.broker import Group, Place, Record
    from tests.simulation.ring.engine import Worker
    from tests.simulation.ring.ring import Ring

BATCH = 6
"""Most messages a turn takes; most rows in a pack of the changelog."""


class ChangelogOf:
    """One partition's changelog in the hands of one process (`streams.state.ledger.PartitionLog`)."""

    def __init__(self, ring: Ring, worker: Worker, shard: int) -> None:
        self._log = ring.changelogs[shard]
        self._worker = worker

    async def append(self, items: Sequence[Item], headers: Headers) -> list[tuple[int, int]]:
        random = self._worker.engine.random
        packs: list[tuple[int, int]] = []
        at = 0
        while at < len(items):
            pack = items[at : at + (BATCH if len(items) > 50 else random.randint(1, BATCH))]
            packs.append((await self._worker.write(partial(self._log.append, pack, headers)), len(pack)))
            at += len(pack)
        return packs

    async def read(self, start: int, end: int) -> AsyncGenerator[tuple[Sequence[Record], int], None]:
        yield self._log.records[start:], len(self._log.records)

    async def end(self) -> int:
        return len(self._log.records)


class FrontierWorker(Stage):
    """Owns shards, and the partition of `urls`."""

    follows_progress = True

    def __init__(self, ring: Ring, name: str, group: Group) -> None:
        self._ledgers: dict[int, Ledger] = {}
        self._actors: list[Task] = []
        self._said: dict[int, tuple[tuple[int, int], float]] = {}
        self.shards: dict[int, Shard] = {}
        super().__init__(ring, name, group)
        self.spawn(self._ending())

    # ---- membership

    def revoked(self) -> None:
        super().revoked()
        self.shards.clear()
        actors, self._actors = self._actors, []
        for task in actors:
            self.cancel(task)

    def assigned(self, generation: int, owned: frozenset[Place]) -> None:
        super().assigned(generation, owned)
        for topic, number in sorted(owned):
            self._actors.append(self.spawn(self._actor(number) if topic == INBOX.name else self._intake()))

    def _owner(self, number: int) -> int | None:
        return self.generation if (INBOX.name, number) in self.owned else None

    # ---- a shard

    async def _actor(self, number: int) -> None:
        while True:
            try:
                self.shards.pop(number, None)
                shard = self.shards[number] = await self._load(number)
                await self._turns(number, shard)
            except OwnershipLost:
                await until(None, self.engine.time + 0.5)

    async def _load(self, number: int) -> Shard:
        ring = self.ring
        disk = ring.disk(self.name, number)
        ledger = self._ledgers.get(number)
        if ledger is None:
            log = ChangelogOf(ring, self, number)
            ledger = Ledger(cast("Store", disk), log, partial(self._owner, number), ring.build.accept)
            self._ledgers[number] = ledger
        records = ring.changelogs[number].records
        ledger.absorb(records[disk.offset + 1 :], len(records))
        epoch = await ledger.claim()
        config = ShardConfig(
            number, ring.mode, release_floor=ring.floor, answer_timeout=ring.answer_timeout,
            expire_after=ring.expire_after,
        )  # fmt: skip
        shard = Shard(config, disk, epoch, self.crawls)
        ring.judge.loaded(number, epoch, shard, disk)
        shard.position = self.group.committed.get((INBOX.name, number), 0)
        await step()
        shard.backlog = ring.broker.end(INBOX.name, number)
        await self._publish(shard)
        return shard

    async def _turns(self, number: int, shard: Shard) -> None:
        broker, random = self.ring.broker, self.engine.random
        still_open: set[str] = set()
        while True:
            taken = broker.read(INBOX.name, number, shard.position, random.randint(1, BATCH))
            inbox = [(at, decode_inbox(value) if isinstance(value, bytes) else value) for at, value in taken]
            if not all(self._knows(message) for _, message in inbox):
                await step()
                self.catch_up()
            news = self.news
            elsewhere = self.board.elsewhere(number)
            turn = shard.turn(inbox, self.engine.broker(), elsewhere)
            self.ring.judge.turn(shard, turn, inbox, elsewhere)
            for write in self.ring.build.frontier:
                await getattr(self, write)(number, shard, turn)
            self.ring.judge.durable(shard, turn)
            now_open = {crawl for crawl, tally in shard.tallies.items() if tally.open}
            if still_open - now_open or self._publish_at(shard) <= self.engine.time:
                await self._publish(shard)
            still_open = now_open
            if broker.end(INBOX.name, number) <= shard.position:
                more = partial(self._more, shard, news)
                await until(more, min(self._publish_at(shard), self.engine.mark(shard.wake_at())))

    def _knows(self, message: m.Inbox) -> bool:
        """Whether the definitions that a message is about have been read."""
        if isinstance(message, m.Command):
            return message.crawl in self.crawls and self.crawls[message.crawl].version >= message.rules
        return all(crawl in self.crawls for crawl in crawls_of(message))

    def _more(self, shard: Shard, news: int) -> bool:
        return self.news != news or self.ring.broker.end(INBOX.name, shard.config.shard) > shard.position

    def _publish_at(self, shard: Shard) -> float:
        said, at = self._said[shard.config.shard]
        return float("inf") if said == (shard.changes, shard.position) else at + 1.0

    # ---- the writes of a turn

    async def effects(self, number: int, shard: Shard, turn: Turn) -> None:
        candidates = ((item.url, m.Candidates(items=(item,))) for item in turn.candidates)
        for url, message in (*candidates, *turn.routed):
            target = shard_of(self.ring.key(url), self.ring.plan.shards)
            await self.write(partial(self.ring.deliver, target, message))
        for failure in turn.failures:
            self.ring.judge.failed(failure)
            await self.write(partial(self.append, FAILURES.name, 0, failure))
        for word in turn.forgotten:
            key = fingerprint(word.crawl, canonical(word.url))
            await self.write(partial(self.append, RECORDS.name, 0, (key, DELETED)))

    async def rows(self, number: int, shard: Shard, turn: Turn) -> None:
        if rows := [(key, value) for key, value in turn.rows() if not key.startswith(self.ring.build.forgets)]:
            await self._ledgers[number].put(rows)

    async def orders(self, number: int, shard: Shard, turn: Turn) -> None:
        if not turn.orders:
            return
        if self.ring.build.confirms and not self.confirmed():
            raise OwnershipLost("the group has not confirmed this worker lately")
        owner = self.ring.groups[0].owns(self, (INBOX.name, number))
        self.ring.judge.orders.sent(shard, turn, owner=owner)
        for order in turn.orders:
            target = shard_of(order.host, self.ring.plan.shards)
            await self.write(partial(self.ring.release, target, order, shard))

    async def ack(self, number: int, shard: Shard, turn: Turn) -> None:
        self.may_die()
        await step()
        self.group.commit(self, self.generation, (INBOX.name, number), shard.position)

    async def _publish(self, shard: Shard) -> None:
        self._said[shard.config.shard] = (shard.changes, shard.position), self.engine.time
        progress = shard.progress(self.engine.broker())
        progress = msgspec.structs.replace(progress, epoch=self.ring.build.epoch(progress.epoch))
        value = (str(shard.config.shard).encode(), encode(progress))
        await self.write(partial(self.append, PROGRESS.name, 0, value))

    # ---- intake

    async def _intake(self) -> None:
        broker, place = self.ring.broker, (URLS.name, 0)
        position = self.group.committed.get(place, 0)
        while True:
            await when(lambda: broker.end(*place) > position)  # noqa: B023
            for offset, seed in broker.read(*place, position, self.engine.random.randint(1, 3)):
                if seed.crawl not in self.crawls:
                    self.catch_up()
                item = self.ring.candidate(seed, offset)
                target = shard_of(self.ring.key(item.url), self.ring.plan.shards)
                await self.write(partial(self.ring.deliver, target, m.Candidates(items=(item,))))
                position = offset + 1
            self.may_die()
            await step()
            self.group.commit(self, self.generation, place, position)

    # ---- the end

    async def _ending(self) -> None:
        watches: dict[str, EndWatch] = {}
        while True:
            news = self.news
            mine = [crawl for crawl in self.crawls.values() if self._mine(crawl)]
            for crawl_id in watches.keys() - {crawl.id for crawl in mine}:
                del watches[crawl_id]
            for crawl in mine:
                await self._look(crawl, watches)
            await until(lambda: self.news != news, self.engine.time + 0.25 if mine else float("inf"))  # noqa: B023

    def _mine(self, crawl: CrawlDefinition) -> bool:
        shards = self.ring.plan.shards
        return (
            crawl.state == "sealed"
            and self._owner(shard_of(crawl.id, shards)) is not None
            and seems_over(crawl.id, self.board, shards)
        )

    async def _look(self, crawl: CrawlDefinition, watches: dict[str, EndWatch]) -> None:
        taken = self.group.committed.get((URLS.name, 0), 0)
        if crawl.id not in watches and taken < (crawl.seal or {}).get(0, 0):
            return
        watch = watches.setdefault(crawl.id, self.ring.build.watch(crawl.id, self.ring.plan.shards))
        ends = [self.ring.broker.end(INBOX.name, shard) for shard in range(self.ring.plan.shards)]
        await step()
        if watch.step(self.board, ends):
            del watches[crawl.id]
            self.ring.judge.looked(crawl.id, {shard: report.position for shard, report in self.board.items()})
            ended = msgspec.structs.replace(
                crawl, version=crawl.version + 1, state="ended", ended=self.engine.broker(),
                result=result_of(crawl.id, self.board.values()),
            )  # fmt: skip
            await publish(self.crawls, ended, self._send, self._catch_up)

    async def _send(self, topic: Topic, key: bytes, value: bytes) -> None:
        await self.write(partial(self.ring.define, key, value))

    async def _catch_up(self) -> None:
        await step()
        self.catch_up()
