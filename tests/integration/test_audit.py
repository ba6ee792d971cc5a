"""`agents.audit` on a real log: what is clean, and each way in which a log can be broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from click.testing import CliRunner, Result

from agents.audit import Auditor, Report
from agents.cli.main import cli
from agents.io.admin import Admin
from streams import messages as m
from streams.codecs import encode
from streams.definitions import CrawlDefinition
from streams.errors import Exit
from streams.frontier.rows import ROW_SCHEMA, State, UrlRow, encode_row, url_key
from streams.policy.urls import fingerprint
from streams.state.fencing import MARKER, MARKER_VALUE, epoch_headers
from tests.kafka import TestBroker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

CRAWL = CrawlDefinition(id="c", delay=0.5, parallelism=1)


def key(url: str) -> bytes:
    return fingerprint("c", url)


def row(url: str, state: State = State.DONE) -> tuple[bytes, bytes]:
    value = UrlRow(ROW_SCHEMA, state, 0, 5, "c", url, "a.test", 1, 0, 0)
    return url_key(key(url)), encode_row(value)


def seed(url: str, offset: int) -> m.Candidates:
    origin = m.Origin("urls", 0, offset, 0)
    return m.Candidates(items=(m.Candidate(url=url, fingerprint=key(url), crawl="c", origin=origin),))


def links(*urls: str) -> m.Links:
    parent = m.LinkParent(url="http://a.test/", depth=1, count=len(urls))
    return m.Links(crawl="c", urls=list(urls), fingerprints=b"".join(map(key, urls)), parents=[parent])


def fetched(url: str, *starts: int, delay: float = 0.5, **facts: Any) -> m.Outcomes:
    requests = tuple(
        m.WireRequest(kind="page", host="a.test", url=url, start=start, end=start + 9, status=200, fetcher="f",
                      delay=delay, parallelism=1)
        for start in starts
    )  # fmt: skip
    outcome = m.FetchOutcome(crawl="c", fingerprint=key(url), url=url, visit=1, attempt=0, result="failed", rules=1,
                             requests=requests, **facts)  # fmt: skip
    return m.Outcomes(items=(outcome,))


@dataclass
class Log:
    """What to put into the topics; all of it in partition 0. `applied`: the frontier's commit, None: all."""

    inbox: Sequence[m.Inbox | bytes] = ()
    rows: Sequence[tuple[bytes, bytes | None]] = ()
    urls: Sequence[bytes] = ()
    failures: Sequence[m.Failure] = ()
    crawls: Sequence[CrawlDefinition] = (CRAWL,)
    applied: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    async def audit(self, broker: TestBroker) -> Report:
        async with Admin(broker.bootstrap, broker.settings) as admin:
            await admin.apply_topics()
            await self._write(broker)
            auditor = Auditor(broker.bootstrap, broker.prefix, admin, **self.options)
            return await auditor.run()

    async def _write(self, broker: TestBroker) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
        await producer.start()
        for definition in self.crawls:
            await producer.send(broker.prefix + "crawls", encode(definition), definition.id.encode(), 0)
        for message in self.inbox:
            value = message if isinstance(message, bytes) else encode(message)
            await producer.send(broker.prefix + "inbox", value, partition=0)
        for value in self.urls:
            await producer.send(broker.prefix + "urls", value, partition=0)
        for failure in self.failures:
            await producer.send(broker.prefix + "failures", encode(failure), partition=0)
        changelog = broker.prefix + "frontier-rows-changelog"
        await producer.send(changelog, MARKER_VALUE, MARKER, 0)
        for name, row_value in self.rows:
            await producer.send(changelog, row_value, name, 0, headers=epoch_headers(0))
        await producer.flush()
        await producer.stop()
        applied = len(self.inbox) if self.applied is None else self.applied
        await self._commit(broker, {"inbox": applied, "urls": len(self.urls)})

    async def _commit(self, broker: TestBroker, offsets: dict[str, int]) -> None:
        group = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=broker.prefix + "frontier",
                                 enable_auto_commit=False)  # fmt: skip
        await group.start()
        wanted = {TopicPartition(broker.prefix + topic, 0): offset for topic, offset in offsets.items()}
        group.assign(list(wanted))
        await group.commit(wanted)
        await group.stop()


A, B = "http://a.test/a", "http://a.test/b"


async def test_a_clean_log(broker: TestBroker) -> None:
    log = Log(
        urls=[A.encode()],
        inbox=[
            seed(A, 0),
            fetched(A, 1000),
            fetched(A, 1000),
            links(B),
            fetched(B, 1500),
            b"{}",
            links("http://a.test/c"),
        ],
        rows=[row(A, State.WAITING), row(B, State.FAILED), row(A), row("http://a.test/older")],
        applied=6,
    )
    report = await log.audit(broker)
    assert report.clean, report
    assert (report.hosts, report.requests, report.unreadable, report.inbox, report.since) == (1, 2, 1, 1, 0)
    assert report.crawls["c"].accounts == {"done": 2, "failed": 1}
    assert [(host.gap, host.delay) for host in report.tightest] == [(0.5, 0.5)]


async def test_a_gap_that_is_too_short_and_rules_that_were_not_kept(broker: TestBroker) -> None:
    report = await Log(inbox=[fetched(B, 1490), fetched(A, 1000, delay=0.2)]).audit(broker)
    assert not report.clean
    assert report.broken == {"gap": 1, "rules": 1}
    gap = next(offence for offence in report.offences if offence.rule == "gap")
    assert (gap.earlier.url, gap.later.url, gap.found, gap.allowed) == (A, B, 0.49, 0.5)


async def test_urls_without_a_row_and_without_an_end(broker: TestBroker) -> None:
    ended = CrawlDefinition(id="c", version=2, state="ended", result="exhausted", ended=2**62)
    log = Log(inbox=[links(A, B)], rows=[row(B, State.WAITING), row("http://a.test/gone")], crawls=[CRAWL, ended])
    report = await log.audit(broker)
    assert not report.clean
    assert {(offender.url, offender.why) for offender in report.crawls["c"].offenders} == {
        (A, "lost"),
        (B, "left open"),
    }
    assert report.crawls["c"].accounts == {"lost": 1, "left open": 1, "done": 1}


async def test_open_and_removed_rows_of_a_running_crawl_are_no_offenders(broker: TestBroker) -> None:
    rows = [row(A, State.FETCHED), row(B), (url_key(key(B)), None)]
    report = await Log(inbox=[links(A, B)], rows=rows).audit(broker)
    assert report.clean
    assert report.crawls["c"].accounts == {"open": 1, "removed": 1}


async def test_a_row_of_an_owner_that_was_fenced_off_does_not_count(broker: TestBroker) -> None:
    """Its marker is at offset 0, the next owner's at 1: a row with epoch 0 behind that comes too late."""
    report = await Log(inbox=[links(A)], rows=[(MARKER, MARKER_VALUE), row(A)]).audit(broker)
    assert report.crawls["c"].accounts == {"lost": 1}


async def test_seeds_that_left_urls_must_have_come_out_somewhere(broker: TestBroker) -> None:
    evidence: dict[str, str | int] = {"topic": "urls", "partition": 0, "offset": 1, "index": 1, "bytes": ""}
    failure = m.Failure(url="", crawl="", visit=0, attempt=0, failure="unreadable", reason="", evidence=evidence,
                        next=m.Next(action="none"), at=3)  # fmt: skip
    lost = b'{"url": "http://a.test/lost", "crawl": "c"}'
    log = Log(urls=[A.encode(), b'["http://a.test/b", 7]', lost], inbox=[seed(A, 0), seed(B, 1)], failures=[failure],
              rows=[row(A), row(B)])  # fmt: skip
    report = await log.audit(broker)
    assert not report.clean
    assert report.crawls["c"].lost_seeds == 1
    assert [offender.url for offender in report.crawls["c"].offenders] == ["http://a.test/lost"]


async def test_one_crawl_of_several(broker: TestBroker) -> None:
    log = Log(inbox=[links(A), fetched(A, 1000)], rows=[row(A)], options={"crawl": "other"})
    report = await log.audit(broker)
    assert (report.hosts, report.crawls) == (0, {})


async def test_a_trimmed_log_says_since_when_it_is_complete(broker: TestBroker) -> None:
    log = Log(inbox=[links(A), fetched(A, 1000)], rows=[row(A)])
    assert (await log.audit(broker)).since == 0
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.trim("inbox", {0: 1})
        report = await Auditor(broker.bootstrap, broker.prefix, admin).run()
    assert report.since > 1_600_000_000_000
    assert report.clean


# --- the command


def command(broker: TestBroker, *arguments: str) -> Result:
    """`fyke audit …` as a person runs it, on the test's topics."""
    options = ("--kafka", broker.bootstrap, "--state", str(broker.settings.worker.state), *arguments)
    return CliRunner().invoke(cli, ["audit", *options], env={"FYKE_KAFKA_PREFIX": broker.prefix})


def test_the_command_says_clean_and_leaves_with_0(broker: TestBroker) -> None:
    asyncio.run(Log(inbox=[links(A), fetched(A, 1000)], rows=[row(A)]).audit(broker))
    result = command(broker)
    assert result.exit_code == Exit.ENDED, result.output
    assert "The log is complete: nothing of it was trimmed." in result.output
    assert "1 requests to 1 hosts by 1 fetchers" in result.output
    assert result.output.endswith("Clean.\n")
    assert json.loads(command(broker, "--json", "--crawl", "c").output)["crawls"][0]["urls"]["done"] == 1
    unknown = command(broker, "--crawl", "nobody")
    assert (unknown.exit_code, "knows no crawl nobody" in unknown.output) == (Exit.USAGE, True)


def test_the_command_prints_what_is_broken_and_leaves_with_5(broker: TestBroker) -> None:
    asyncio.run(Log(inbox=[links(A, B), fetched(A, 1000), fetched(B, 1100)], rows=[row(A)]).audit(broker))
    result = command(broker)
    assert result.exit_code == Exit.BROKEN, result.output
    assert "a.test: 0.1 s between two starts, 0.5 s is the least" in result.output
    assert f"a URL has no row: {B}\n  crawl c" in result.output
    assert result.output.endswith("Broken: gap 1 times, 1 URLs of crawl c.\n")
    found = json.loads(command(broker, "--json").output)
    assert (found["clean"], found["broken"]) == (False, {"gap": 1})
    assert found["offences"][0]["later"]["url"] == B
    assert found["crawls"][0]["offenders"] == [{"url": B, "why": "lost"}]
