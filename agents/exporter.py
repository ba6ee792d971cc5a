"""The exporter: records and final failures become lines of `records.jsonl` and `failures.jsonl`.

What `fyke forget` deletes becomes a line of `deletions.jsonl`, for whoever keeps copies; lines that were written stay.

What is promised: a line is written once for each identity, whatever is read again.

    record    crawl, URL key, visit
    failure   crawl, URL key, visit, attempt, action (`none`, later perhaps `resolved`)
    unreadable message   topic, partition, offset
    deletion  crawl, URL key, command

Only failures that are final leave the folder's writer; one that is `resolved` later (its fetch came late and succeeded)
is a second line, so that the last line about a visit holds. A message is acknowledged after its line, the line's
identity and the file's length are durable, in this order (DESIGN §3).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from agents.io.files import Line, OutputFolder
from streams import codecs, messages
from streams.errors import EnvironmentFault, MessageError, NewerSchemaError
from streams.policy import urls
from streams.topics import FAILURES, RECORDS, Topic

if TYPE_CHECKING:
    from agents.delivery import Batch, Delivery, Slot
    from streams.settings import Settings

RECORDS_FILE = "records.jsonl"
FAILURES_FILE = "failures.jsonl"
DELETIONS_FILE = "deletions.jsonl"
_WAITING_BATCHES = 16


@dataclass(frozen=True, slots=True)
class _Work:
    lines: list[Line]
    slot: Slot


class ExporterStage:
    """Reads `records` and `failures`, writes an output folder. One writer task takes all that waits at once."""

    topics: tuple[Topic, ...] = (RECORDS, FAILURES)

    def __init__(self, settings: Settings) -> None:
        out = settings.export.out
        if out is None:
            raise EnvironmentFault("the exporter has no output folder", "Set FYKE_EXPORT_OUT, or pass --out DIR.")
        self._crawl = settings.export.crawl
        self.name = f"exporter.{self._crawl}" if self._crawl else "exporter"  # also the consumer group
        self._folder = OutputFolder(out, (RECORDS_FILE, FAILURES_FILE), (DELETIONS_FILE,), fsync=settings.export.fsync)
        self._waiting: asyncio.Queue[_Work] = asyncio.Queue(_WAITING_BATCHES)
        self._thread = ThreadPoolExecutor(1, "exporter")  # the folder takes one call at a time
        self._writer: asyncio.Task[None] | None = None

    async def start(self, delivery: Delivery) -> None:
        """Open the folder. Raises `EnvironmentFault` if another exporter has it."""
        self._delivery = delivery
        await self._in_thread(self._folder.open)
        self._writer = asyncio.create_task(self._write_forever(), name="exporter-writer")

    async def assigned(self, partitions: frozenset[tuple[str, int]]) -> None:
        """Nothing to prepare: identities are known whatever the partition."""

    def revoked(self) -> None:
        """Forget what is not written yet: the next owner reads it again."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
            self._waiting.task_done()

    async def batch(self, batch: Batch) -> None:
        """Read the messages of one poll and hand their lines to the writer; waits while it is behind."""
        slot = self._delivery.slot(batch, batch.first, batch.last)
        line_of = _record_line if batch.topic == RECORDS.name else _failure_line
        lines = []
        for record in batch.records:
            try:
                word = codecs.decode_forgotten(record.key, record.headers) if record.value is None else None
                line = line_of(record.value, self._crawl) if word is None else _deletion_line(word, self._crawl)
            except NewerSchemaError as error:
                self._delivery.fatal(error)
            except MessageError as error:
                await self._delivery.unreadable(batch, record, error.reason)
            else:
                if line is not None:
                    lines.append(line)
        await self._waiting.put(_Work(lines, slot))

    async def _write_forever(self) -> None:
        while True:
            work = [await self._waiting.get()]
            while not self._waiting.empty():
                work.append(self._waiting.get_nowait())
            lines = [line for one in work for line in one.lines]
            try:
                await self._in_thread(self._folder.append, lines)
            except Exception as error:  # noqa: BLE001 - whatever it is: unwritten lines must not be acknowledged
                self._delivery.fatal(error)
            for one in work:
                one.slot.done()
                self._waiting.task_done()

    async def drain(self) -> None:
        """Write what was taken."""
        await self._waiting.join()

    async def stop(self) -> None:
        """Stop the writer; the folder closes behind a write that is under way."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        await self._in_thread(self._folder.close)
        self._thread.shutdown()

    async def _in_thread(self, call: Callable[..., object], *args: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)


def _record_line(value: bytes | None, crawl: str) -> Line | None:
    record = codecs.decode(messages.Record, value)
    if crawl and record.crawl != crawl:
        return None
    return Line(RECORDS_FILE, _visit(record.crawl, record.url, record.visit), _one_line(value))


def _failure_line(value: bytes | None, crawl: str) -> Line | None:
    failure = codecs.decode(messages.Failure, value)
    if failure.next.action == "retry":
        return None
    if failure.failure == "unreadable":
        if crawl and failure.crawl not in {"", crawl}:  # most unreadable messages do not say whose they are
            return None
        place = [failure.evidence.get(name) for name in ("topic", "partition", "offset", "index")]
        return Line(FAILURES_FILE, _hashed(codecs.encode(place)), _one_line(value))
    if crawl and failure.crawl != crawl:
        return None
    attempt = f":{failure.attempt}:{failure.next.action}".encode()
    return Line(FAILURES_FILE, _visit(failure.crawl, failure.url, failure.visit) + attempt, _one_line(value))


def _deletion_line(word: messages.Forgotten, crawl: str) -> Line | None:
    """One line for a URL and command, although both topics tell it."""
    if crawl and word.crawl != crawl:
        return None
    identity = urls.fingerprint(word.crawl, urls.canonical(word.url)) + word.id.encode()
    return Line(DELETIONS_FILE, identity, codecs.encode(word))


def _visit(crawl: str, url: str, visit: int) -> bytes:
    """The identity of a visit: the fingerprint that the frontier keeps the URL under, and the visit's number."""
    return urls.fingerprint(crawl, urls.canonical(url)) + str(visit).encode()


def _hashed(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _one_line(value: bytes | None) -> bytes:
    """The message as it came; one that a foreign producer spread over lines is put on one."""
    data = value or b""
    return msgspec.json.format(data, indent=-1) if b"\n" in data or b"\r" in data else data
