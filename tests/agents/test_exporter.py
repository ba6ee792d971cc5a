from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from agents.delivery import Batch
from agents.exporter import ExporterStage
from streams import codecs
from streams.errors import EnvironmentFault
from streams.messages import Failure, Forgotten, Next, Record
from streams.settings import Settings


class Fatal(BaseException):
    """What `Delivery.fatal` does to the process."""


@dataclass
class RecordingSlot:
    delivery: RecordingDelivery
    last: int

    def done(self) -> None:
        lines = {path.name: path.read_bytes() for path in self.delivery.out.glob("*.jsonl")}
        self.delivery.acked.append((self.last, lines))


@dataclass
class RecordingDelivery:
    """Notes what a stage does; an ack notes what the files held at that moment."""

    out: Path
    acked: list[tuple[int, dict[str, bytes]]] = field(default_factory=list)
    reported: list[tuple[str, int, str]] = field(default_factory=list)
    fatals: list[BaseException] = field(default_factory=list)

    def slot(self, batch: Batch, first: int, last: int) -> RecordingSlot:
        assert (first, last) == (batch.first, batch.last)
        return RecordingSlot(self, last)

    async def unreadable(self, batch: Batch, record: Any, reason: str) -> None:
        self.reported.append((batch.topic, record.offset, reason))

    def fatal(self, error: BaseException) -> None:
        self.fatals.append(error)
        raise Fatal


def batch(topic: str, *values: bytes | None, first: int = 0, partition: int = 0) -> Batch:
    records: list[Any] = [
        SimpleNamespace(offset=first + n, value=value, key=None, headers=()) for n, value in enumerate(values)
    ]
    return Batch(topic, partition, 1, records)


def deletion(topic: str, url: str = "http://a/", crawl: str = "c", command: str = "0:7", at: int = 9) -> Batch:
    """What `fyke forget` writes into a topic for a URL."""
    headers = codecs.encode_forgotten(Forgotten(url=url, crawl=crawl, id=command, at=at))
    return Batch(topic, 0, 1, [SimpleNamespace(offset=0, value=None, key=url.encode(), headers=headers)])


def record(url: str = "http://a/", visit: int = 0, crawl: str = "c", **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "url": url, "crawl": crawl, "visit": visit, "status": 200, "content_type": "text/html", "title": "t",
        "text": "x", "links": [], "link_count": 0, "depth": 0, "parent": "", "fetched_at": 1,
    }  # fmt: skip
    return codecs.encode(Record(**fields | changes))


def failure(action: Any = "none", url: str = "http://a/", attempt: int = 0, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "url": url, "crawl": "c", "visit": 0, "attempt": attempt, "failure": "timeout", "reason": "r", "evidence": {},
        "next": Next(action=action), "at": 1,
    }  # fmt: skip
    return codecs.encode(Failure(**fields | changes))


def unreadable(offset: int, crawl: str = "") -> bytes:
    evidence: dict[str, Any] = {"topic": "urls", "partition": 0, "offset": offset, "bytes": "eA=="}
    return failure(url="", crawl=crawl, failure="unreadable", evidence=evidence)


class Running:
    """An exporter at work on a folder."""

    def __init__(self, out: Path, crawl: str = "") -> None:
        self.out = out
        self.stage = ExporterStage(Settings.model_validate({"export": {"out": out, "crawl": crawl, "fsync": False}}))
        self.delivery = RecordingDelivery(out)

    async def __aenter__(self) -> Self:
        await self.stage.start(self.delivery)  # type: ignore[arg-type]  # a recording double
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stage.stop()

    async def take(self, *batches: Batch) -> None:
        for one in batches:
            await self.stage.batch(one)
        await asyncio.wait_for(self.stage.drain(), 30)

    def lines(self, name: str = "records") -> list[bytes]:
        return (self.out / f"{name}.jsonl").read_bytes().splitlines()


async def test_records_are_written_as_they_came_and_acked_after_that(tmp_path):
    async with Running(tmp_path) as exporter:
        one, two = record(meta={"a": "ü"}), record("http://a/2")
        await exporter.take(batch("records", one, two, first=7))
        assert exporter.lines() == [one, two]
        ((last, files),) = exporter.delivery.acked
        assert last == 8
        assert files["records.jsonl"].splitlines() == [one, two]


async def test_nothing_is_written_twice_whatever_is_read_again(tmp_path):
    same_page = [record("http://a/%7e"), record("http://a/~")]  # one URL key
    async with Running(tmp_path) as exporter:
        await exporter.take(batch("records", *same_page), batch("records", same_page[0], record(visit=1), partition=1))
        await exporter.take(batch("failures", failure(), failure()))
    async with Running(tmp_path) as exporter:
        await exporter.take(batch("records", *same_page), batch("failures", failure()), batch("records", record()))
        assert exporter.lines() == [same_page[0], record(visit=1), record()]
        assert exporter.lines("failures") == [failure()]
        assert len(exporter.delivery.acked) == 3


async def test_only_final_failures_are_written_and_later_that_they_were_resolved(tmp_path):
    async with Running(tmp_path) as exporter:
        await exporter.take(
            batch("failures", failure("retry"), failure("none", attempt=4), failure("resolved", attempt=4))
        )
        actions = [json.loads(line)["next"]["action"] for line in exporter.lines("failures")]
        assert actions == ["none", "resolved"]


async def test_unreadable_messages_are_told_apart_by_their_place(tmp_path):
    async with Running(tmp_path) as exporter:
        await exporter.take(batch("failures", unreadable(1), unreadable(2), unreadable(1)))
        assert exporter.lines("failures") == [unreadable(1), unreadable(2)]


async def test_an_exporter_of_one_crawl_leaves_the_others_out_and_has_a_group_of_its_own(tmp_path):
    async with Running(tmp_path, crawl="c") as exporter:
        assert exporter.stage.name == "exporter.c"
        await exporter.take(
            batch("records", record(), record(crawl="d")),
            batch("failures", failure(), failure(crawl="d"), unreadable(1), unreadable(2, crawl="d")),
        )
        assert exporter.lines() == [record()]
        assert exporter.lines("failures") == [failure(), unreadable(1)]
        assert len(exporter.delivery.acked) == 2
    assert ExporterStage(Settings.model_validate({"export": {"out": tmp_path}})).name == "exporter"


async def test_a_broken_record_is_reported_and_the_stream_goes_on(tmp_path):
    async with Running(tmp_path) as exporter:
        await exporter.take(batch("records", b"{", None, record(), b"[]"))
        assert [(topic, offset) for topic, offset, _ in exporter.delivery.reported] == [
            ("records", 0), ("records", 1), ("records", 3),
        ]  # fmt: skip
        assert exporter.lines() == [record()]


async def test_a_broken_failure_costs_itself_only(tmp_path):
    async with Running(tmp_path) as exporter:
        await exporter.take(batch("failures", b"nonsense", failure()))
        assert [(topic, offset) for topic, offset, _ in exporter.delivery.reported] == [("failures", 0)]
        assert exporter.lines("failures") == [failure()]


async def test_a_newer_schema_stops_the_worker_before_anything_is_acked(tmp_path):
    async with Running(tmp_path) as exporter:
        with pytest.raises(Fatal):
            await exporter.stage.batch(batch("records", record(), record("http://a/2", schema=99)))
        assert "schema 99" in str(exporter.delivery.fatals[0])
        assert exporter.delivery.acked == []


async def test_a_record_spread_over_lines_becomes_one_line(tmp_path):
    pretty = json.dumps(json.loads(record()) | {"extra": {"kept": True}}, indent=2).encode()
    async with Running(tmp_path) as exporter:
        await exporter.take(batch("records", pretty))
        (line,) = exporter.lines()
        assert json.loads(line) == json.loads(pretty)


async def test_what_is_not_written_at_a_revocation_is_left_to_the_next_owner(tmp_path):
    async with Running(tmp_path) as exporter:
        exporter.stage._writer.cancel()  # type: ignore[union-attr]  # a disk that stands still
        await asyncio.sleep(0)
        await exporter.stage.batch(batch("records", record()))
        exporter.stage.revoked()
        await asyncio.wait_for(exporter.stage.drain(), 30)
        assert exporter.lines() == []
        assert exporter.delivery.acked == []


async def test_a_disk_that_fails_ends_the_worker_without_an_ack(tmp_path):
    async with Running(tmp_path) as exporter:

        def full(_lines: Any) -> None:
            raise EnvironmentFault("no space left")

        exporter.stage._folder.append = full  # type: ignore[method-assign,assignment]
        await exporter.stage.batch(batch("records", record()))
        with pytest.raises(Fatal):
            await exporter.stage._writer  # type: ignore[misc]
        assert "no space left" in str(exporter.delivery.fatals[0])
        assert exporter.delivery.acked == []


async def test_a_second_exporter_on_the_folder_is_refused(tmp_path):
    async with Running(tmp_path):
        with pytest.raises(EnvironmentFault, match="another process exports"):
            await Running(tmp_path).__aenter__()


def test_without_a_folder_there_is_no_exporter():
    with pytest.raises(EnvironmentFault, match="no output folder"):
        ExporterStage(Settings())


async def test_what_is_forgotten_becomes_one_line_in_a_file_of_its_own(tmp_path):
    async with Running(tmp_path, "c") as exporter:
        await exporter.take(batch("records", record()))
        assert not (tmp_path / "deletions.jsonl").exists()
        for url in ("http://a/%7e", "http://a/~"):  # one URL key
            await exporter.take(deletion("records", url), deletion("failures", url, at=10))
        await exporter.take(deletion("records", crawl="other"))
    async with Running(tmp_path, "c") as exporter:
        await exporter.take(deletion("failures", "http://a/~"), deletion("records", "http://a/~", command="0:8"))
        lines = [json.loads(line) for line in exporter.lines("deletions")]
        assert lines == [
            {"url": "http://a/%7e", "crawl": "c", "id": "0:7", "at": 9},
            {"url": "http://a/~", "crawl": "c", "id": "0:8", "at": 9},
        ]
        assert exporter.lines() == [record()]
        assert exporter.delivery.reported == []


async def test_a_record_without_value_that_deletes_nothing_is_unreadable(tmp_path):
    async with Running(tmp_path) as exporter:
        await exporter.take(batch("records", None))
        assert [reason for *_, reason in exporter.delivery.reported] == ["empty message"]


async def test_a_tail_of_deletions_that_was_not_acknowledged_is_cut_off(tmp_path):
    async with Running(tmp_path) as exporter:
        await exporter.take(deletion("records"))
    with (tmp_path / "deletions.jsonl").open("ab") as file:
        file.write(b'{"url"')
    async with Running(tmp_path) as exporter:
        await exporter.take(deletion("records", command="0:8"))
        assert len(exporter.lines("deletions")) == 2
