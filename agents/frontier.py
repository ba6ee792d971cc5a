"""Frontier: `inbox` → `fetches`, `failures`, `inbox`. A thin shell: one actor per shard around `streams.frontier`.

Order of writes in a turn, each durable before the next: candidates and failures → rows → orders → ack. If any of it
fails or the shard has moved, the shard's memory is dropped and loaded again before the next turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agents.effects import send_effects, send_orders
from agents.sizes import StoreMeter
from streams import messages as m
from streams.codecs import decode_inbox, encode
from streams.errors import MessageError, NewerSchemaError, OwnershipLost
from streams.frontier.gates import definitions_of
from streams.frontier.index import FrontierIndexer
from streams.frontier.release import ShardConfig
from streams.frontier.shard import Shard
from streams.policy.urls import parse, politeness_key
from streams.state.table import RowTable
from streams.topics import INBOX, PROGRESS, ROWS, Topic, shard_of

if TYPE_CHECKING:
    from agents.broadcast import Broadcast
    from agents.clock import BrokerClock
    from agents.delivery import Batch, Delivery, Slot
    from streams.frontier.hosts import Census
    from streams.frontier.turn import Turn
    from streams.metrics import FrontierMetrics
    from streams.settings import Frontier

log = logging.getLogger(__name__)

TURN_BYTES = 2 << 20
"""Messages a turn applies at most, in bytes beside their number: some 15,000 links, about half a second."""
LONGEST_SLEEP = 1.0
"""Seconds until a shard looks again: definitions of crawls and pages of other shards change without a message."""
PUBLISH_EVERY = 1.0
"""Seconds between two progress records of a shard that changes; at once when a crawl has nothing open any more."""
RECLAIM_PAUSE = 0.5


class FrontierStage:
    """Owns the shards assigned to this process."""

    name = "frontier"
    topics: tuple[Topic, ...] = (INBOX,)

    def __init__(
        self, settings: Frontier, broadcast: Broadcast, clock: BrokerClock, url: Callable[[], str] = str
    ) -> None:
        """`url`: of this worker's endpoints, once they are there."""
        self._settings = settings
        self._url = url
        self._broadcast = broadcast
        self._clock = clock
        self._actors: dict[int, Actor] = {}
        self.started = asyncio.Event()

    async def start(self, delivery: Delivery) -> None:
        """Make the table; its partitions come and go with those of `inbox`."""
        await delivery.learn_time()
        self._delivery = delivery
        self._table = RowTable(
            delivery.app, name=ROWS, indexer=FrontierIndexer(), settings=self._settings, writer=delivery.changelog,
            partitions=delivery.partitions(INBOX),
        )  # fmt: skip
        delivery.app.tables.add(self._table)
        self._meter = Meter(delivery.metrics.frontier, self.shards, self._clock)
        self._sizes = StoreMeter(delivery.metrics.frontier, self._table.sizes)
        self._broadcast.listen(self._look)
        self.started.set()

    async def assigned(self, partitions: frozenset[tuple[str, int]]) -> None:
        """Start an actor for each shard; each claims its epoch before its first turn."""
        for topic, partition in partitions:
            if topic == INBOX.name:
                self._actors[partition] = self._actor(partition)

    def revoked(self) -> None:
        """Stop all actors at once; what they had not acked is read again by the next owner."""
        for actor in self._actors.values():
            actor.cancel()
        self._actors.clear()

    async def batch(self, batch: Batch) -> None:
        """Hand a batch to its shard; waits while the shard has enough to do."""
        slot = self._delivery.slot(batch, batch.first, batch.last)
        actor = self._actors.get(batch.partition)
        if actor is not None:
            await actor.put(batch, slot)

    async def drain(self) -> None:
        """Let every shard apply what it was given."""
        await asyncio.gather(*(actor.idle() for actor in self._actors.values()))

    async def stop(self) -> None:
        """Stop the actors."""
        self.revoked()

    def why(self, crawl: str, url: str, epoch: int) -> bytes | None:
        """What `fyke why` asks; None if the shard of the URL, in that epoch, is not here. Raises `MessageError`."""
        wire = parse(url)
        if wire is None:
            raise MessageError(f"not an http or https URL: {url[:200]}")
        host = politeness_key(wire, self._settings.politeness)
        shard = self.shards().get(shard_of(host, self._delivery.partitions(INBOX)))
        if shard is None or shard.epoch != epoch:
            return None
        return encode(shard.why(crawl, wire, self._clock.now()))

    def shards(self) -> dict[int, Shard]:
        """The shards that are loaded, by number."""
        return {number: actor.shard for number, actor in self._actors.items() if actor.shard is not None}

    def _look(self) -> None:
        """Definitions were read: they hold from now on."""
        for actor in self._actors.values():
            actor.wake()

    def _actor(self, partition: int) -> Actor:
        config = ShardConfig(
            shard=partition,
            politeness=self._settings.politeness,
            release_floor=self._settings.release_floor,
            release_seconds=self._settings.release_seconds,
            unparsed_limit=self._settings.unparsed_limit,
            answer_timeout=self._settings.answer_timeout,
            expire_after=self._settings.expire_after,
        )
        actor = Actor(
            config, self._settings.turn, self._delivery, self._table, self._broadcast, self._clock, self._meter,
            self._url,
        )  # fmt: skip
        actor.start()
        return actor


@dataclass(slots=True)
class Waiting:
    """A batch that was taken, its messages read when its turn comes."""

    batch: Batch
    slot: Slot
    messages: list[tuple[int, m.Inbox]] | None = None
    size: int = 0  # bytes

    def __post_init__(self) -> None:
        self.size = sum(len(record.value or b"") for record in self.batch.records)


@dataclass(slots=True)
class Actor:
    """One shard and its inbox."""

    config: ShardConfig
    turn_limit: int
    delivery: Delivery
    table: RowTable
    broadcast: Broadcast
    clock: BrokerClock
    meter: Meter
    url: Callable[[], str]
    shard: Shard | None = None
    _inbox: deque[Waiting] = field(default_factory=deque)
    _waiting: int = 0
    _bytes: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _published: float = 0.0
    _last: tuple[int, int] | None = None
    _open: frozenset[str] = frozenset()

    def start(self) -> None:
        """Begin to work."""
        self._room.set()
        self._task = asyncio.create_task(self._run(), name=f"shard-{self.config.shard}")
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Stop at once."""
        if self._task is not None:
            self._task.cancel()

    def wake(self) -> None:
        """Take a turn, though no message came."""
        self._wake.set()

    async def put(self, batch: Batch, slot: Slot) -> None:
        """Take a batch; waits while two turns' worth is already waiting."""
        waiting = Waiting(batch, slot)
        self._inbox.append(waiting)
        self._waiting += len(batch.records)
        self._bytes += waiting.size
        self._idle.clear()
        self._wake.set()
        if self._waiting > 2 * self.turn_limit or self._bytes > 2 * TURN_BYTES:
            self._room.clear()
            await self._room.wait()

    async def idle(self) -> None:
        """Return when everything that was put has been applied."""
        if self._inbox:
            await self._idle.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.delivery.fatal(error)

    async def _run(self) -> None:
        while True:
            try:
                self.shard = None
                self.shard = shard = await self._load()
                await self._turns(shard)
            except OwnershipLost as error:
                log.info("shard %d: %s; loading it again", self.config.shard, error)
                await asyncio.sleep(RECLAIM_PAUSE)  # revoked() cancels this where the shard has really moved

    async def _load(self) -> Shard:
        began = self.clock.mark()
        epoch = await self.table.claim(self.config.shard)
        store = self.table.store(self.config.shard)
        shard = Shard(self.config, store, epoch, self.broadcast.crawls)
        first = self._inbox[0].batch.first if self._inbox else None
        shard.position = first if first is not None else self.delivery.position(INBOX, self.config.shard)
        shard.backlog = (await self.delivery.ends(INBOX, [self.config.shard]))[self.config.shard]
        await self._publish(shard)
        self.meter.loaded(self.clock.mark() - began)
        return shard

    async def _turns(self, shard: Shard) -> None:
        while True:
            began = self.clock.mark()
            taken = self._take()
            messages = [message for waiting in taken for message in await self._read(waiting)]
            await self._know(messages)
            turn = shard.turn(messages, self.clock.now(), self.broadcast.board.elsewhere(self.config.shard))
            await self._write(turn)
            if taken:
                shard.position = taken[-1].batch.last + 1  # also over messages that could not be read
            self._done(taken)
            self.meter.turn(messages, turn, self.clock.mark() - began)
            await self._publish_in_time(shard)
            if not self._inbox:
                await self._sleep(shard)

    def _take(self) -> list[Waiting]:
        """The next batches, up to a turn's worth; they stay in the inbox until the turn is durable."""
        taken: list[Waiting] = []
        records = size = 0
        for waiting in self._inbox:
            records += len(waiting.batch.records)
            size += waiting.size
            if taken and (records > self.turn_limit or size > TURN_BYTES):
                break
            taken.append(waiting)
        return taken

    def _done(self, taken: Sequence[Waiting]) -> None:
        for waiting in taken:
            self._inbox.popleft()
            self._waiting -= len(waiting.batch.records)
            self._bytes -= waiting.size
            waiting.slot.done()
        if self._waiting <= self.turn_limit and self._bytes <= TURN_BYTES:
            self._room.set()
        if not self._inbox:
            self._idle.set()

    async def _read(self, waiting: Waiting) -> list[tuple[int, m.Inbox]]:
        """The messages of a batch; one that cannot be read costs itself only."""
        if waiting.messages is None:
            messages: list[tuple[int, m.Inbox]] = []
            for record in waiting.batch.records:
                try:
                    messages.append((record.offset, decode_inbox(record.value)))
                except NewerSchemaError as error:
                    self.delivery.fatal(error)
                except MessageError as error:
                    await self.delivery.unreadable(waiting.batch, record, error.reason)
            waiting.messages = messages
        return waiting.messages

    async def _know(self, messages: Iterable[tuple[int, m.Inbox]]) -> None:
        """A message may name a crawl whose definition is newer than what was read: read on before deciding."""
        crawls = self.broadcast.crawls
        wanted = [wanted for _, message in messages for wanted in definitions_of(message)]
        if any(crawl not in crawls or crawls[crawl].version < version for crawl, version in wanted):
            await self.broadcast.catch_up()

    async def _write(self, turn: Turn) -> None:
        await send_effects(turn, self.delivery, self.config.politeness)
        if rows := turn.rows():
            await self.table.put_many(self.config.shard, rows)
        if turn.orders:
            if not self.delivery.confirmed():  # rows are checked where they are written; this turn may have had none
                raise OwnershipLost("the group has not confirmed this worker lately")
            await send_orders(turn.orders, self.delivery)

    async def _sleep(self, shard: Shard) -> None:
        """Until a message comes or something waits no longer."""
        self._wake.clear()
        wait = (shard.wake_at() - self.clock.now()) / 1000
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), min(max(wait, 0.001), LONGEST_SLEEP))

    def _unpublished(self, shard: Shard) -> bool:
        return (shard.changes, shard.position) != self._last

    async def _publish_in_time(self, shard: Shard) -> None:
        if not self._unpublished(shard):
            return
        now = self.clock.mark()
        still_open = frozenset(crawl for crawl, tally in shard.tallies.items() if tally.open)
        ended = self._open - still_open
        self._open = still_open
        if ended or now - self._published >= PUBLISH_EVERY:
            await self._publish(shard)

    async def _publish(self, shard: Shard) -> None:
        """Publish progress."""
        self._last = (shard.changes, shard.position)
        self._published = self.clock.mark()
        self.meter.open_urls()
        value = encode(replace(shard.progress(self.clock.now()), owner=self.url()))
        future = await self.delivery.send(PROGRESS, value, key=str(self.config.shard).encode(), partition=0)
        await future


class Meter:
    """The frontier's metrics. What must be counted in memory is counted when somebody asks."""

    def __init__(self, metrics: FrontierMetrics, shards: Callable[[], Mapping[int, Shard]], clock: BrokerClock) -> None:
        self._metrics = metrics
        self._shards = shards
        self._clock = clock
        self._open: set[str] = set()
        self._counts: list[Census] = []
        self._counted = 0  # when, ms
        metrics.unanswered.set_function(lambda: sum(shard.unanswered() for shard in shards().values()))
        metrics.hosts_in_memory.set_function(lambda: sum(census.held for census in self._census()))
        metrics.queues.set_function(lambda: sum(census.queues for census in self._census()))
        metrics.known_hosts.set_function(lambda: sum(census.known for census in self._census()))
        metrics.runnable_hosts.set_function(lambda: sum(census.runnable for census in self._census()))
        metrics.broken_hosts.set_function(lambda: sum(census.broken for census in self._census()))
        metrics.oldest_waiting.set_function(lambda: max((census.late for census in self._census()), default=0) / 1000)

    def loaded(self, seconds: float) -> None:
        """A shard's memory was built."""
        self._metrics.recoveries.inc()
        self._metrics.recovery_seconds.observe(seconds)

    def turn(self, messages: Sequence[tuple[int, m.Inbox]], turn: Turn, seconds: float) -> None:
        """A turn is durable."""
        metrics = self._metrics
        metrics.turns.inc()
        metrics.turn_seconds.observe(seconds)
        for kind, number in Counter(type(message) for _, message in messages).items():
            metrics.applied.labels(str(kind.__struct_config__.tag)).inc(number)
        for verdict, number in (("new", turn.links_new), ("known", turn.links_known)):
            metrics.links.labels(verdict).inc(number)
        metrics.rows.inc(turn.written)
        for order, number in Counter(order.kind for order in turn.orders).items():
            metrics.released.labels(order).inc(number)
        for state, number in turn.finished.items():
            metrics.finished.labels(state.name.lower()).inc(number)

    def open_urls(self) -> None:
        """Bring the gauges of crawls up to date; one that has nothing open has none."""
        totals: Counter[str] = Counter()
        for shard in self._shards().values():
            totals.update({crawl: tally.open for crawl, tally in shard.tallies.items() if tally.open})
        for crawl, number in totals.items():
            self._metrics.open_urls.labels(crawl).set(number)
        for crawl in self._open - totals.keys():
            self._metrics.open_urls.remove(crawl)
        self._open = set(totals)

    def _census(self) -> list[Census]:
        """Counted once for all the gauges of a scrape."""
        now = self._clock.now()
        if abs(now - self._counted) > 100:
            self._counts = [shard.census(now) for shard in self._shards().values()]
            self._counted = now
        return self._counts
