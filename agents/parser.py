"""The parser: pages become records, and their links become packs for the shards that own them.

Sitemaps make no record: the URLs they list are links, the sitemaps that an index names are candidates.

A turn of up to `parse.turn` pages is parsed, then sent in the order that makes a crash harmless (DESIGN §3): packs of
links and records, the outcomes, the ack; each step durable before the next. While one turn is being sent the next is
parsed. Links that the crawl does not follow are counted and stay here.

A page of a URL that was forgotten (`fyke forget`) makes no record if that is known here already; the frontier, which
hears of every page behind its record, tells the sinks of those that came too late.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from agents.deaths import Told, tell
from agents.io.isolation import Child, ChildDied, Mark, limit_computation, load
from agents.packs import Packer, Turn
from streams import codecs
from streams.deaths import Death
from streams.definitions import CrawlDefinition
from streams.errors import MessageError, NewerSchemaError
from streams.messages import Outcomes, PageHeaders, ParseOutcome, Record
from streams.page.parse import Limits, ParsedPage, parse_page
from streams.policy.forgetting import is_forgotten
from streams.policy.urls import Joiner, politeness_key
from streams.topics import INBOX, PAGES, RECORDS, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aiokafka import ConsumerRecord

    from agents.delivery import Batch, Delivery, Slot
    from agents.delivery.stage import Shard
    from streams.settings import Settings

LINKS_IN_RECORD = 1000
"""Links that a record lists at most."""

PARSE: Final = "agents.parser:parse"
_BREATH: Final = 0.1  # seconds of parsing after which heartbeats and timers get their turn
_REASON: Final = 500  # characters of a reason


class Crawls(Told, Protocol):
    """What the parser asks of `agents.broadcast`."""

    @property
    def crawls(self) -> Mapping[str, CrawlDefinition]:
        """The definitions that were read so far."""


def parse(page: PageHeaders, body: bytes, limits: Limits) -> ParsedPage:
    """Parse one page, here or in a child process."""
    return parse_page(page, body, Joiner, limits)


@dataclass(slots=True)
class _Turn:
    """Pages that are sent together. `outcomes` by shard."""

    slot: Slot
    partition: int
    links: Turn
    records: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)
    lists: int = 0
    outcomes: dict[int, list[ParseOutcome]] = field(default_factory=dict)


class _Faulty(Exception):
    """A page that cannot be parsed; the text is for people."""


class ParserStage:
    """Reads `pages`.

    `cpu_limit`: seconds that one page may compute before the process is ended (see `agents.io.isolation`); None where
    the process has other stages. `function`: what parses, as `module:function`.
    """

    name = "parser"
    topics: tuple[Topic, ...] = (PAGES,)

    def __init__(
        self, settings: Settings, broadcast: Crawls, *, cpu_limit: float | None = None, function: str = PARSE
    ) -> None:
        self._settings = settings.parse
        self._key = partial(politeness_key, mode=settings.frontier.politeness)
        self._run = settings.worker.state / "run"
        self._broadcast = broadcast
        self._cpu_limit = cpu_limit
        self._parse = load(function)
        self._child = Child(function, settings.parse.isolate_timeout, settings.parse.page_cpu)
        self._limits = Limits(text=settings.parse.text_limit, links=settings.parse.max_links)
        self._parsed: asyncio.Queue[_Turn] = asyncio.Queue(1)
        self._sender: asyncio.Task[None] | None = None

    async def start(self, delivery: Delivery) -> None:
        """Take a mark; if its last owner died, the pages it had begun are suspects, whoever gets their partitions."""
        self._delivery = delivery
        self._metrics = delivery.metrics.parser
        self._packer = Packer(delivery.partitions(INBOX), self._key)
        await delivery.learn_time()
        self._mark = Mark(self._run, self.name, delivery.partitions(PAGES))
        await tell(delivery, self._broadcast, *(self._death(*place) for place in self._mark.suspects.items()))
        self._send_from_now()

    def _death(self, partition: int, end: int, tries: int = 0) -> Death:
        return Death(stage=self.name, at=self._delivery.clock.now(), partition=partition, end=end, tries=tries)

    async def assigned(self, partitions: frozenset[Shard]) -> None:
        """Hear what former owners died of."""
        await self._broadcast.catch_up()

    def revoked(self) -> None:
        """Forget the turns that are not sent; what was delivered of them stays remembered."""
        if self._sender is not None:
            self._sender.cancel()
        while not self._parsed.empty():
            self._parsed.get_nowait()
            self._parsed.task_done()
        self._send_from_now()

    async def drain(self) -> None:
        """Send what is parsed."""
        await self._parsed.join()

    async def stop(self) -> None:
        """End the child and clear the mark: this process did not die of a page."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        await self._child.stop()
        self._mark.clear()

    async def batch(self, batch: Batch) -> None:
        """Parse in turns; waits while the turn before the last one is being sent."""
        for records in self._turns(batch):
            slot = self._delivery.slot(batch, int(records[0].offset), int(records[-1].offset))
            turn = _Turn(slot, batch.partition, self._packer.turn(_now()))
            await self._read(batch, records, turn)
            await self._parsed.put(turn)

    def _turns(self, batch: Batch) -> Iterator[list[ConsumerRecord]]:
        """A suspect is a turn of its own: what takes so long, or kills once more, holds up no ack of another page."""
        turn: list[ConsumerRecord] = []
        for record in batch.records:
            alone = self._is_suspect(batch.partition, int(record.offset))
            if turn and (alone or len(turn) == self._settings.turn):
                yield turn
                turn = []
            turn.append(record)
            if alone:
                yield turn
                turn = []
        if turn:
            yield turn

    async def _read(self, batch: Batch, records: list[ConsumerRecord], turn: _Turn) -> None:
        rested = began = _now()
        for record in records:
            if record.value is None and codecs.is_forgotten(record.headers):
                continue
            try:
                page = codecs.decode_page_headers(record.headers)
                self._check_shard(page)
            except NewerSchemaError as error:
                self._delivery.fatal(error)
            except MessageError as error:
                await self._delivery.unreadable(batch, record, error.reason)
                self._metrics.pages.labels("unreadable").inc()
                continue
            definition = await self._definition(page)
            await self._page(turn, page, record, definition)
            ended = _now()
            self._metrics.seconds.observe(ended - began)
            if ended - rested > _BREATH:
                await asyncio.sleep(0)
                rested = _now()
            began = _now()
        if self._cpu_limit is not None:
            limit_computation(0)
        self._metrics.pages.labels("parsed").inc(len(turn.records))
        self._metrics.pages.labels("list").inc(turn.lists)
        self._metrics.links.labels("sent").inc(turn.links.sent)

    def _check_shard(self, page: PageHeaders) -> None:
        """Its outcome could go nowhere: `MessageError`."""
        if not 0 <= page.shard < self._delivery.partitions(INBOX):
            raise MessageError(f"page headers: there is no shard {page.shard}")

    async def _definition(self, page: PageHeaders) -> CrawlDefinition | None:
        """The page's crawl, at least as new as it was when the page was fetched; None if nobody defined it."""
        definition = self._broadcast.crawls.get(page.crawl)
        if definition is None or definition.version < page.rules:
            await self._broadcast.catch_up()
            definition = self._broadcast.crawls.get(page.crawl)
        return definition

    async def _page(
        self, turn: _Turn, page: PageHeaders, record: ConsumerRecord, definition: CrawlDefinition | None
    ) -> None:
        """Parse one page into the turn."""
        place = (turn.partition, int(record.offset))
        outcomes = turn.outcomes.setdefault(page.shard, [])
        if definition is not None and is_forgotten(definition, page.url):
            outcomes.append(_outcome(page, place))
            return
        try:
            parsed = await self._understand(page, record.value or b"", place)
        except _Faulty as fault:
            self._metrics.pages.labels("failed").inc()
            outcomes.append(_outcome(page, place, failure="parser", reason=str(fault)[:_REASON]))
            return
        followed, dropped = turn.links.add(page, parsed.links, definition, parsed.lastmods)
        if parsed.dropped:
            dropped |= parsed.dropped
        if page.source == "sitemap":
            named, kept_back = turn.links.add_sitemaps(page, parsed.sitemaps, definition, parsed.lastmods)
            followed += named
            dropped |= kept_back
            turn.lists += 1
        else:
            key = page.url.encode()
            turn.records.append((key, _record(page, parsed, self._delivery.largest(RECORDS) - len(key))))
        outcomes.append(_outcome(page, place, content=parsed.content, links=followed, dropped=dropped))

    async def _understand(self, page: PageHeaders, body: bytes, place: tuple[int, int]) -> ParsedPage:
        """Parse in this process, or a suspect in a child. Raises `_Faulty`."""
        if self._is_suspect(*place):
            return await self._isolated(page, body, place)
        self._mark.begin(*place)
        if self._cpu_limit is not None:
            limit_computation(self._cpu_limit)
        try:
            return self._parse(page, body, self._limits)
        except Exception as error:
            raise _Faulty(f"{type(error).__name__}: {error}") from error

    def _is_suspect(self, partition: int, offset: int) -> bool:
        return self._mark.is_suspect(partition, offset) or self._broadcast.deaths.is_suspect(partition, offset)

    async def _isolated(self, page: PageHeaders, body: bytes, place: tuple[int, int]) -> ParsedPage:
        """Parse in a child, as often as a page may kill one, counting the tries of earlier processes and others too."""
        reason, others = "it killed the parser", self._broadcast.deaths.tries(*place)
        while max(self._mark.tries(*place), others) < self._settings.isolate_tries:
            tries = self._mark.count_try(*place, others)
            self._metrics.tries.inc()
            try:
                parsed = await self._child.parse(page, body, self._limits)
            except ChildDied as error:
                reason = f"it killed the parser at try {tries}: {error}"
                if error.final:
                    break
                await tell(self._delivery, self._broadcast, self._death(place[0], place[1] + 1, tries))
            except ValueError as error:
                self._mark.forget_tries(*place)
                raise _Faulty(str(error)) from error
            else:
                self._mark.forget_tries(*place)
                return parsed
        raise _Faulty(reason)

    def _send_from_now(self) -> None:
        self._sender = asyncio.create_task(self._send_forever(), name="parser-sender")

    async def _send_forever(self) -> None:
        while True:
            turn = await self._parsed.get()
            try:
                await self._send(turn)
            except Exception as error:  # noqa: BLE001 - whatever it is: what is not sent must not be acked
                self._delivery.fatal(error)
            finally:
                self._parsed.task_done()

    async def _send(self, turn: _Turn) -> None:
        send = self._delivery.send
        packs = [await send(INBOX, value, partition=shard) for shard, value in turn.links.messages()]
        if turn.records:
            count = self._delivery.partitions(RECORDS)
            await self._delivery.send_all(RECORDS, turn.partition % count, turn.records)
        for pack in packs:
            await pack
        turn.links.delivered(_now())
        outcomes = [
            await send(INBOX, codecs.encode(Outcomes(items=tuple(items))), partition=shard)
            for shard, items in turn.outcomes.items()
        ]
        for outcome in outcomes:
            await outcome
        turn.slot.done()


def _outcome(page: PageHeaders, place: tuple[int, int], **result: object) -> ParseOutcome:
    return ParseOutcome(
        crawl=page.crawl,
        fingerprint=page.fingerprint,
        url=page.url,
        visit=page.visit,
        depth=page.depth,
        page=place,
        traceparent=page.traceparent,
        **result,  # type: ignore[arg-type]  # the fields that tell how it went, by name
    )


def _record(page: PageHeaders, parsed: ParsedPage, limit: int) -> bytes:
    """The record as JSON, at most `limit` bytes: one that is longer loses text, then links, from their ends.

    Escapes in JSON and in URLs may make a record several times as long as the page.
    """
    text, links = parsed.text, parsed.links[:LINKS_IN_RECORD]
    while True:
        record = Record(
            url=page.url,
            crawl=page.crawl,
            visit=page.visit,
            status=page.status,
            content_type=parsed.content_type,
            title=parsed.title,
            text=text,
            links=links,
            link_count=len(parsed.links),
            depth=page.depth,
            parent=page.parent,
            fetched_at=page.end,
            meta=page.meta,
            truncated=page.truncated,
            noindex=parsed.noindex,
            traceparent=page.traceparent,
        )
        value = codecs.encode(record)
        if len(value) <= limit or not (text or links):
            return value
        text, links = (text[: len(text) // 2], links) if text else ("", links[: len(links) // 2])


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
