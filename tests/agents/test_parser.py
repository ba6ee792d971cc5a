from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agents import parser
from agents.delivery import Batch
from agents.io.isolation import Mark
from agents.parser import LINKS_IN_RECORD, ParserStage
from streams import codecs
from streams.deaths import Death
from streams.definitions import CrawlDefinition, Scope
from streams.messages import SCHEMA, PageHeaders, ParseOutcome, Record  # fmt: skip
from streams.page.parse import Limits
from streams.policy.forgetting import deny_url
from streams.topics import PAGES
from tests.agents import poison
from tests.agents.parser_rig import SHARDS, Fatal, Published, RecordingDelivery, Rig, batch, record, settings

ANY = CrawlDefinition(id="c")


MakeRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[MakeRig]:
    rigs: list[Rig] = []

    async def make(
        definition: CrawlDefinition | None = ANY,
        *,
        function: str = parser.PARSE,
        cpu: float | None = None,
        **parse: Any,
    ) -> Rig:
        published = Published({definition.id: definition} if definition else {})
        configuration = settings(tmp_path, **parse)
        delivery = RecordingDelivery(configuration, log=published.log)
        rig = Rig(ParserStage(configuration, published, function=function, cpu_limit=cpu), delivery, published)
        rig.delivery.gate.set()
        await rig.stage.start(rig.delivery)  # type: ignore[arg-type]  # records instead of sending
        await rig.stage.assigned(frozenset({(PAGES.name, 1)}))
        assert rig.delivery.log.pop() == ("caught up", None)  # with what former owners died of
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        await rig.stage.stop()


async def test_a_page_becomes_a_record_packs_and_an_outcome(make: MakeRig) -> None:
    rig = await make()
    body = b"<title>T</title><a href=/x>x</a><a href=http://b.test/y>y</a><a rel=nofollow href=/z>z</a>"
    await rig.run(
        body, first=7, depth=1, parent="http://a.test/", meta={"k": 1}, traceparent="00-1", truncated="length"
    )
    assert rig.delivery.of("record") == [
        (1, "http://a.test/7", Record(
            url="http://a.test/7", crawl="c", visit=3, status=200, content_type="text/html", title="T", text="x y z",
            links=["http://a.test/x", "http://b.test/y"], link_count=2, depth=1, parent="http://a.test/",
            fetched_at=12, meta={"k": 1}, truncated="length", traceparent="00-1",
        )),
    ]  # fmt: skip
    ((shard, outcomes),) = rig.delivery.of("outcomes")
    content = parser.parse(page_of(body), body, Limits(text=100, links=100)).content
    assert shard == 2
    assert outcomes.items == (
        ParseOutcome(
            crawl="c", fingerprint=bytes(15) + b"\x07", visit=3, depth=1, page=(1, 7), content=content, links=2,
            dropped={"nofollow:link": 1}, url="http://a.test/7", traceparent="00-1",
        ),
    )  # fmt: skip
    assert sorted(rig.delivery.sent) == ["http://a.test/x", "http://b.test/y"]
    for _, pack in rig.delivery.of("links"):
        assert [(parent.url, parent.depth) for parent in pack.parents] == [("http://a.test/7", 2)]


def page_of(body: bytes) -> PageHeaders:
    return codecs.decode_page_headers(record(7, body).headers)


async def test_packs_and_records_then_outcomes_then_the_ack(make: MakeRig) -> None:
    rig = await make(turn=3)
    bodies = [f"<a href=/x{n}>".encode() for n in range(7)]
    await rig.run(*bodies, first=100)
    kinds = [kind for kind, _ in rig.delivery.log]
    assert rig.delivery.slots == [(100, 102), (103, 105), (106, 106)]
    assert rig.delivery.of("ack") == rig.delivery.slots
    for begin, end in ((0, kinds.index("ack")), (kinds.index("ack") + 1, len(kinds))):
        part = kinds[begin:end]
        assert part.index("outcomes") > max(part.index("links"), part.index("record"))
    assert [outcome.page for outcome in rig.delivery.outcomes] == [(1, 100 + n) for n in range(7)]


async def test_outcomes_go_to_the_shard_that_sent_for_the_page(make: MakeRig) -> None:
    rig = await make()
    mixed = Batch(PAGES.name, 1, 1, [record(n, b"<p>", shard=n % 2) for n in range(6)])
    await rig.stage.batch(mixed)
    await rig.stage.drain()
    assert {shard: [item.page[1] for item in message.items] for shard, message in rig.delivery.of("outcomes")} == {
        0: [0, 2, 4], 1: [1, 3, 5],
    }  # fmt: skip


async def test_nothing_is_acked_and_parsing_pauses_while_sends_wait(make: MakeRig) -> None:
    rig = await make(turn=1)
    rig.delivery.gate.clear()
    taking = asyncio.create_task(rig.stage.batch(batch(*[b"<a href=/x>"] * 6)))
    await asyncio.sleep(0.05)
    assert not taking.done()
    assert rig.delivery.slots == [(0, 0), (1, 1), (2, 2)]
    assert rig.delivery.log == []
    rig.delivery.gate.set()
    await taking
    await rig.stage.drain()
    assert len(rig.delivery.of("ack")) == 6


async def test_a_rebalance_forgets_what_was_not_sent(make: MakeRig) -> None:
    rig = await make(turn=1)
    rig.delivery.gate.clear()
    taking = asyncio.create_task(rig.stage.batch(batch(*[b"<a href=/x>"] * 4)))
    await asyncio.sleep(0.05)
    taking.cancel()
    rig.stage.revoked()
    await asyncio.gather(taking, return_exceptions=True)
    rig.delivery.gate.set()
    await rig.stage.drain()
    await asyncio.sleep(0.01)  # what was enqueued may still go out
    assert rig.delivery.of("ack") == []
    assert rig.delivery.of("outcomes") == []
    rig.delivery.log.clear()
    await rig.run(b"<a href=/x>", first=0)
    assert rig.delivery.sent == ["http://a.test/x"]  # not remembered: its delivery was never seen
    assert rig.delivery.of("ack") == [(0, 0)]


async def test_a_delivered_link_is_not_sent_again_but_counted(make: MakeRig) -> None:
    rig = await make()
    await rig.run(b"<a href=/x>")
    await rig.run(b"<a href=/x><a href=/y>", first=1)
    assert rig.delivery.sent == ["http://a.test/x", "http://a.test/y"]
    assert [outcome.links for outcome in rig.delivery.outcomes] == [1, 2]


async def test_links_out_of_scope_or_reach_stay(make: MakeRig) -> None:
    rig = await make(CrawlDefinition(id="c", depth=1, scope=Scope(mode="host", values=("a.test",))))
    await rig.run(b"<a href=/x><a href=http://b.test/>")
    await rig.run(b"<a href=/y><a href=/z>", first=1, depth=1)
    assert rig.delivery.sent == ["http://a.test/x"]
    assert [outcome.dropped for outcome in rig.delivery.outcomes] == [{"scope:host": 1}, {"depth": 2}]
    assert [record.link_count for record in rig.delivery.records] == [2, 2]


async def test_a_definition_that_is_not_read_yet_is_waited_for(make: MakeRig) -> None:
    rig = await make(None)
    rig.published.later = {"c": ANY}
    await rig.run(b"<a href=/x>")
    assert rig.delivery.sent == ["http://a.test/x"]
    rig.published.later = {"c": CrawlDefinition(id="c", version=5, depth=0)}
    await rig.run(b"<a href=/y>", first=1, rules=5)
    await rig.run(b"<a href=/z>", first=2, rules=4)
    assert rig.delivery.sent == ["http://a.test/x"]


FORGETTING = CrawlDefinition(id="c", version=2, scope_rules=(deny_url("http://a.test/1"),))


async def test_a_forgotten_page_has_no_record(make: MakeRig) -> None:
    """Its outcome names it all the same: the frontier tells the sinks, for whom a record may stand from before."""
    rig = await make(FORGETTING)
    await rig.run(b"<a href=/x>", first=1)
    assert (rig.delivery.records, rig.delivery.sent) == ([], [])
    assert [(outcome.links, outcome.url, outcome.page) for outcome in rig.delivery.outcomes] == [
        (0, "http://a.test/1", (1, 1))
    ]


async def test_a_crawl_nobody_defined_has_records_only(make: MakeRig) -> None:
    rig = await make(None)
    await rig.run(b"<a href=/x>")
    assert rig.delivery.sent == []
    assert rig.delivery.outcomes[0].dropped == {"crawl:unknown": 1}
    assert len(rig.delivery.records) == 1


async def test_other_types_have_a_record_without_text(make: MakeRig) -> None:
    rig = await make()
    await rig.run(b"%PDF-1.4", headers=[("Content-Type", "application/pdf")])
    assert [(one.content_type, one.text, one.links) for one in rig.delivery.records] == [("application/pdf", "", [])]


async def test_a_message_that_cannot_be_read_costs_itself(make: MakeRig) -> None:
    rig = await make()
    broken = [("schema", b"1"), ("visit", b"x")]
    records = [record(0, b"<p>"), record(1, b"<p>", raw=broken), record(2, b"<p>", raw=[]), record(3, None)]
    await rig.stage.batch(Batch(PAGES.name, 1, 1, records))
    await rig.stage.drain()
    assert [(topic, offset) for topic, offset, _ in rig.delivery.of("unreadable")] == [("pages", 1), ("pages", 2)]
    assert [outcome.page[1] for outcome in rig.delivery.outcomes] == [0, 3]
    assert rig.delivery.of("ack") == [(0, 3)]


async def test_a_batch_of_nothing_readable_is_acked(make: MakeRig) -> None:
    rig = await make()
    await rig.stage.batch(Batch(PAGES.name, 1, 1, [record(0, b"", raw=[])]))
    await rig.stage.drain()
    assert [kind for kind, _ in rig.delivery.log] == ["unreadable", "ack"]


async def test_a_newer_schema_ends_the_worker(make: MakeRig) -> None:
    rig = await make()
    newer = [("schema", str(SCHEMA + 1).encode())]
    with pytest.raises(Fatal):
        await rig.stage.batch(Batch(PAGES.name, 1, 1, [record(0, b"", raw=newer)]))
    assert rig.delivery.log == []


async def test_a_delivery_that_fails_ends_the_worker(make: MakeRig) -> None:
    rig = await make()
    rig.delivery.failing = RuntimeError("lost")
    await rig.stage.batch(batch(b"<a href=/x>"))
    with pytest.raises(Fatal):
        await asyncio.gather(rig.stage._sender)  # type: ignore[arg-type]  # it runs
    assert rig.delivery.of("ack") == []


async def test_a_page_that_fails_the_parser_is_a_failed_outcome(make: MakeRig) -> None:
    rig = await make(function=f"{poison.__name__}:parse")
    await rig.run(b"<p>good", poison.RAISE, b"<a href=/x>good")
    assert [(outcome.failure, outcome.reason) for outcome in rig.delivery.outcomes] == [
        (None, ""), ("parser", "RuntimeError: no page of mine"), (None, ""),
    ]  # fmt: skip
    assert len(rig.delivery.records) == 2
    assert rig.delivery.of("ack") == [(0, 2)]


async def test_a_record_fits_its_topic(make: MakeRig) -> None:
    rig = await make()
    rig.delivery.room = 20_000
    await rig.run("".join(f"<p>\x01<a href=/{n}>word</a>" for n in range(2 * LINKS_IN_RECORD)).encode())
    (found,) = rig.delivery.records
    assert len(codecs.encode(found)) <= 20_000 - len(found.url)
    assert found.link_count == 2 * LINKS_IN_RECORD
    assert 0 < len(found.links) < LINKS_IN_RECORD
    assert len(rig.delivery.sent) == 2 * LINKS_IN_RECORD


async def test_a_record_has_at_most_so_many_links(make: MakeRig) -> None:
    rig = await make()
    await rig.run("".join(f"<a href=/{n}>" for n in range(LINKS_IN_RECORD + 5)).encode())
    assert (len(rig.delivery.records[0].links), rig.delivery.records[0].link_count) == (LINKS_IN_RECORD, 1005)


class TestUncleanStart:
    """The former process died after it had begun the pages of partition 1 up to offset 4."""

    @pytest.fixture
    def state(self, tmp_path: Path) -> Path:
        mark = Mark(tmp_path / "run", "parser", SHARDS)
        mark.begin(1, 4)
        mark.close()
        return tmp_path

    async def test_killers_are_given_up_and_the_partition_moves_on(self, state: Path, make: MakeRig) -> None:
        rig = await make(function=f"{poison.__name__}:parse", isolate_tries=2)
        once = poison.KILL_ONCE + bytes(state / "once")
        await rig.run(b"<a href=/x>good", poison.KILL, once, poison.RAISE, b"<p>last", b"<p>beyond")
        assert [(outcome.page[1], outcome.failure) for outcome in rig.delivery.outcomes] == [
            (0, None), (1, "parser"), (2, None), (3, "parser"), (4, None), (5, None),
        ]  # fmt: skip
        assert rig.delivery.outcomes[1].reason == "it killed the parser at try 2: it ended with code -9"
        assert rig.delivery.outcomes[3].reason == "RuntimeError: no page of mine"
        assert rig.delivery.sent == ["http://a.test/x"]
        assert rig.delivery.of("ack") == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]  # none waits for another
        samples = [sample for family in rig.delivery.metrics.registry.collect() for sample in family.samples]
        assert [sample.value for sample in samples if sample.name == "fyke_parser_isolated_tries_total"] == [7.0]

    async def test_tries_of_earlier_processes_count(self, state: Path, make: MakeRig) -> None:
        mark = Mark(state / "run", "parser", SHARDS)
        mark.count_try(1, 1)
        mark.count_try(1, 1)
        mark.close()
        rig = await make(function=f"{poison.__name__}:parse", isolate_tries=2)
        await rig.run(b"<p>good", poison.KILL)
        assert [(outcome.failure, outcome.reason) for outcome in rig.delivery.outcomes] == [
            (None, ""), ("parser", "it killed the parser"),
        ]  # fmt: skip

    async def test_what_it_died_of_is_told(self, state: Path, make: MakeRig) -> None:
        rig = await make(function=f"{poison.__name__}:parse", isolate_tries=2)
        assert rig.delivery.of("death") == [Death(stage="parser", at=99, partition=1, end=5)]
        await rig.run(b"<p>good", poison.KILL)
        assert [(death.end, death.tries) for death in rig.delivery.of("death")] == [(5, 0), (2, 1), (2, 2)]

    async def test_a_page_that_computes_without_end_is_tried_once(self, state: Path, make: MakeRig) -> None:
        rig = await make(function=f"{poison.__name__}:parse", isolate_tries=3, page_cpu=0.5)
        await rig.run(b"<p>good", poison.SPIN, b"<p>last")
        assert [(outcome.failure, outcome.reason) for outcome in rig.delivery.outcomes] == [
            (None, ""), ("parser", "it killed the parser at try 1: it computed for more than 0.5 s"), (None, ""),
        ]  # fmt: skip

    async def test_turns_begin_and_end_at_suspects(self, state: Path, make: MakeRig) -> None:
        rig = await make(turn=2)
        await rig.run(*[b"<p>x"] * 6, first=3)
        assert rig.delivery.of("ack") == [(3, 3), (4, 4), (5, 6), (7, 8)]

    @pytest.mark.usefixtures("state")
    async def test_other_partitions_are_not_suspected(self, make: MakeRig) -> None:
        rig = await make(function=f"{poison.__name__}:parse")
        await rig.run(b"<p>good", partition=2)
        assert rig.stage._child._process is None

    async def test_a_clean_stop_clears_suspicion(self, state: Path, make: MakeRig) -> None:
        rig = await make()
        await rig.run(b"<p>good", first=5)
        await rig.stage.stop()
        assert Mark(state / "run", "parser", SHARDS).suspects == {}
        await rig.stage.start(rig.delivery)  # type: ignore[arg-type]  # for the fixture, which stops it


class TestTakenOver:
    """Another worker had begun the pages of partition 1 up to offset 4, and died."""

    async def test_its_pages_are_suspects_here_too(self, make: MakeRig) -> None:
        rig = await make(function=f"{poison.__name__}:parse", isolate_tries=2)
        rig.published.deaths.add(Death(stage="parser", at=99, partition=1, end=5))
        await rig.run(b"<p>good", poison.KILL, b"<p>last")
        assert [outcome.failure for outcome in rig.delivery.outcomes] == [None, "parser", None]
        assert rig.delivery.outcomes[1].reason == "it killed the parser at try 2: it ended with code -9"

    async def test_its_tries_count(self, make: MakeRig) -> None:
        rig = await make(function=f"{poison.__name__}:parse", isolate_tries=3)
        rig.published.deaths.add(Death(stage="parser", at=99, partition=1, end=2, tries=2))
        await rig.run(b"<p>good", poison.KILL)
        assert rig.delivery.outcomes[1].reason == "it killed the parser at try 3: it ended with code -9"


async def test_what_is_begun_is_marked(make: MakeRig, tmp_path: Path) -> None:
    rig = await make(cpu=60.0)
    await rig.run(b"<p>1", b"<p>2", first=41)
    rig.stage._mark._hold.drop()  # as the kernel does when the process dies
    heir = Mark(tmp_path / "run", "parser", SHARDS)
    assert heir.suspects == {1: 43}
    heir.close()


async def test_a_sitemap_makes_links_and_no_record(make: MakeRig) -> None:
    rig = await make()
    body = b"<urlset><url><loc>http://a.test/x</loc></url><url/></urlset>"
    await rig.run(body, url="http://a.test/map.xml", source="sitemap", depth=3)
    assert (rig.delivery.records, rig.delivery.sent) == ([], ["http://a.test/x"])
    (outcome,) = rig.delivery.outcomes
    assert (outcome.links, outcome.dropped, outcome.failure) == (1, {"sitemap:entry": 1}, None)
    assert outcome.content
    assert [kind for kind, _ in rig.delivery.log] == ["links", "outcomes", "ack"]


async def test_an_index_sends_its_sitemaps_before_its_outcome(make: MakeRig) -> None:
    rig = await make()
    body = b"<sitemapindex><sitemap><loc>http://b.test/1.xml</loc></sitemap></sitemapindex>"
    await rig.run(body, url="http://a.test/map.xml", source="sitemap", depth=1)
    assert [kind for kind, _ in rig.delivery.log] == ["candidates", "outcomes", "ack"]
    ((_, message),) = rig.delivery.of("candidates")
    (item,) = message.items
    assert (item.url, item.source, item.depth, item.parent) == (
        "http://b.test/1.xml", "sitemap", 2, "http://a.test/map.xml")  # fmt: skip
    assert [outcome.links for outcome in rig.delivery.outcomes] == [1]


async def test_an_error_page_is_no_sitemap(make: MakeRig) -> None:
    rig = await make()
    await rig.run(b"<!doctype html><a href=/x>Not found</a>", source="sitemap")
    assert (rig.delivery.records, rig.delivery.sent) == ([], [])
    assert [outcome.dropped for outcome in rig.delivery.outcomes] == [{"sitemap:none": 1}]


async def test_a_feed_is_a_page_with_links(make: MakeRig) -> None:
    rig = await make()
    body = b"<rss><channel><item><link>http://a.test/x</link></item></channel></rss>"
    await rig.run(body, headers=[("Content-Type", "application/rss+xml")])
    (made,) = rig.delivery.records
    assert (made.links, made.content_type, rig.delivery.sent) == (
        ["http://a.test/x"], "application/rss+xml", ["http://a.test/x"])  # fmt: skip
