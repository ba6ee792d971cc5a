"""What every worker knows: crawl definitions, the shards' progress, and what workers died of, folded from topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from streams.codecs import CRAWL_ID, decode, encode
from streams.deaths import Death, Deaths
from streams.definitions import CrawlDefinition
from streams.errors import MessageError
from streams.frontier.tally import counted
from streams.messages import DEFAULT_CRAWL, CrawlCounts, Progress
from streams.policy.limits import faults_of
from streams.settings import Settings
from streams.topics import CRAWLS, DEATHS, PROGRESS, Topic

DEFAULT_DEFINITION = CrawlDefinition(id=DEFAULT_CRAWL, endless=True, depth=0)
"""The crawl of seeds that name none: fetches exactly what is produced."""

KEPT = 100
"""Unreadable records that are kept until somebody reports them."""

Send = Callable[[Topic, bytes, bytes], Awaitable[None]]
"""Sends value under key to partition 0 of a topic and returns when it is durable."""


class Crawls(Mapping[str, CrawlDefinition]):
    """Crawl definitions by id. Of two updates with one version the first in the log holds, for every reader alike."""

    def __init__(self) -> None:
        self._definitions: dict[str, CrawlDefinition] = {DEFAULT_CRAWL: DEFAULT_DEFINITION}

    def __getitem__(self, crawl_id: str) -> CrawlDefinition:
        return self._definitions[crawl_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._definitions)

    def __len__(self) -> int:
        return len(self._definitions)

    def fold(self, record: ConsumerRecord) -> str:
        """Take one record of `crawls`; what is wrong with rules of a definition that holds from now on.

        Raises `MessageError`, or `NewerSchemaError`.
        """
        crawl_id = (record.key or b"").decode("utf-8", "replace")
        if record.value is None:
            self._definitions.pop(crawl_id, None)
            self._definitions.setdefault(DEFAULT_CRAWL, DEFAULT_DEFINITION)
            return ""
        definition = decode(CrawlDefinition, record.value)
        if definition.id != crawl_id or not CRAWL_ID.match(crawl_id):
            raise MessageError(f"the key {crawl_id!r} must be the crawl's id, which is {definition.id!r}")
        known = self._definitions.get(crawl_id)
        if known is None or known is DEFAULT_DEFINITION or definition.version > known.version:
            self._definitions[crawl_id] = definition
            return "; ".join(f"rule {rule} matches nothing: {fault}" for rule, fault in faults_of(definition).items())
        return ""


class Board(dict[int, Progress]):
    """The newest progress of each shard."""

    def fold(self, record: ConsumerRecord) -> str:
        """Take one record of `progress`. Raises `MessageError`, or `NewerSchemaError`."""
        if record.value is None:
            return ""  # deleted: the shard will say more
        progress = decode(Progress, record.value)
        known = self.get(progress.shard)
        if known is None or progress.epoch >= known.epoch:
            self[progress.shard] = progress
        return ""

    def totals(self, crawl: str) -> CrawlCounts:
        """A crawl's numbers over all shards."""
        reports = [report.crawls[crawl] for report in self.values() if crawl in report.crawls]
        numbers = {
            name: sum(getattr(counts, name) for counts in reports)
            for name in CrawlCounts.__struct_fields__
            if name not in ("failures", "exclusions")
        }
        return CrawlCounts(
            **numbers,
            failures=_added(counts.failures for counts in reports),
            exclusions=_added(counts.exclusions for counts in reports),
        )

    def elsewhere(self, shard: int) -> dict[str, CrawlCounts]:
        """What the other shards count for each crawl, as far as budgets are about it."""
        return counted(report for other, report in self.items() if other != shard)


def _added(parts: Iterator[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return total


class Broadcast:
    """Reads `crawls` (and `progress` and `deaths` where asked) from the beginning and stays with them; in no group.

    `unreadable`: records that could not be read, or rules of theirs, with the reason; the first ones, for whoever
    reports them.
    """

    def __init__(self, bootstrap: str, settings: Settings, *, progress: bool = False, deaths: bool = False) -> None:
        self.crawls = Crawls()
        self.board = Board()
        self.deaths = Deaths()
        self._bootstrap = bootstrap
        self._prefix = settings.kafka.prefix
        self.unreadable: asyncio.Queue[tuple[Topic, ConsumerRecord, str]] = asyncio.Queue(KEPT)
        self._folds = {self._prefix + CRAWLS.name: (CRAWLS, self.crawls.fold)}
        if progress:
            self._folds[self._prefix + PROGRESS.name] = (PROGRESS, self.board.fold)
        if deaths:
            self._folds[self._prefix + DEATHS.name] = (DEATHS, self._died)
        self._partitions = [TopicPartition(name, 0) for name in self._folds]
        self._task: asyncio.Task[None] | None = None
        self._consumer: AIOKafkaConsumer | None = None
        self._folded: dict[TopicPartition, int] = {}
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after definitions were read: rules hold from the moment at which they are known."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Connect, read up to the present, and go on reading in the background."""
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest",
            fetch_max_wait_ms=500,
        )  # fmt: skip
        await self._consumer.start()
        self._consumer.assign(self._partitions)
        self._task = asyncio.create_task(self._read(self._consumer), name="broadcast")
        await self.catch_up()

    async def stop(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._consumer is not None:
            await self._consumer.stop()

    async def catch_up(self) -> None:
        """Return when everything that is in the topics now has been folded. Raises what ended the reading."""
        if self._consumer is None or self._task is None:
            raise RuntimeError("start() first")
        consumer = self._consumer
        ends = await consumer.end_offsets(self._partitions)
        while any(self._folded.get(partition, -1) < end for partition, end in ends.items()):
            self.check()
            await asyncio.sleep(0.005)

    def check(self) -> None:
        """Raise what ended the reading, such as `NewerSchemaError`, if it has ended: nothing here is news any more."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def ended(self) -> None:
        """Return when the reading is stopped. Raises what ended it."""
        if self._task is not None:
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.result()

    def _died(self, record: ConsumerRecord) -> str:
        """Take one record of `deaths`. Raises `MessageError`, or `NewerSchemaError`."""
        self.deaths.add(decode(Death, record.value))
        return ""

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            # Positions, not offsets of records: a compacted topic may end in a gap.
            self._folded = {partition: await consumer.position(partition) for partition in self._partitions}
            for partition, records in (await consumer.getmany(timeout_ms=500)).items():
                topic, fold = self._folds[partition.topic]
                for record in records:
                    try:
                        fault = fold(record)
                    except MessageError as error:
                        fault = error.reason
                    if fault and not self.unreadable.full():
                        self.unreadable.put_nowait((topic, record, fault))
                if topic is CRAWLS:
                    for listener in self._listeners:
                        listener()


async def publish(
    crawls: Crawls, definition: CrawlDefinition, send: Send, catch_up: Callable[[], Awaitable[None]]
) -> bool:
    """Publish an update that carries the next version; False if somebody else's update of that version came first.

    Compaction could keep the loser of such a race as the key's last record: the loser writes the winner again.
    """
    await send(CRAWLS, definition.id.encode(), encode(definition))
    await catch_up()
    winner = crawls[definition.id]
    if winner == definition:
        return True
    await send(CRAWLS, winner.id.encode(), encode(winner))
    return False
