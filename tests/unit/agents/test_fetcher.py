"""The fetcher against a real server on loopback: what becomes of an order."""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agents.io import rehearsal
from agents.io.culprit import Culprit
from streams.codecs import decode
from streams.deaths import Death
from streams.messages import FetchOrder
from streams.page.decoding import Decoder
from streams.topics import DEATHS
from tests.unit.agents.stand import A, B, order, page, stand

# --- pages and outcomes


async def test_a_page_is_sent_with_its_facts_and_then_its_outcome():
    headers = [["Content-Type", "text/html"], ["ETag", '"e"'], ["Last-Modified", "Mon, 02 Jan 2023 03:04:05 GMT"]]
    async with stand([page("/a", headers=headers)]) as it:
        (outcome,) = await it.fetch(order(A, depth=2, parent="http://a.test/", meta={"k": 1}, robots="r", rules=4))
        ((facts, body),) = it.delivery.pages()
        assert body == b"body of /a"
        assert (facts.url, facts.crawl, facts.visit, facts.shard, facts.status) == (A, "c", 1, 3, 200)
        assert (facts.depth, facts.parent, facts.meta, facts.robots, facts.rules) == (
            2,
            "http://a.test/",
            {"k": 1},
            "r",
            4,
        )
        assert ["ETag", '"e"'] in [list(pair) for pair in facts.headers]
        assert (facts.address, facts.truncated) == ("127.0.0.1", None)
        assert facts.start <= facts.first_byte <= facts.end
        assert (outcome.result, outcome.status, outcome.epoch, outcome.page) == ("fetched", 200, 7, (3, 0))
        assert outcome.size == len(body)
        assert (outcome.etag, outcome.last_modified) == ('"e"', "Mon, 02 Jan 2023 03:04:05 GMT")
        (request,) = outcome.requests
        assert (request.kind, request.host, request.url, request.status) == ("page", "a.test", A, 200)
        assert (request.fetcher, request.address, request.start) == ("fetcher-1", "127.0.0.1", facts.start)
        assert it.delivery.sent[-1].partition == 3
        assert it.delivery.acked == {0: 1}


async def test_an_outcome_waits_until_its_page_is_durable_and_the_ack_for_the_outcome():
    async with stand([page("/a"), page("/b", status=404)]) as it:
        it.delivery.gate.clear()
        await it.give(order(A), order(B))
        async with asyncio.timeout(30):
            while not it.delivery.outcomes():
                it.delivery.changed.clear()
                await it.delivery.changed.wait()
        await asyncio.sleep(0.05)
        assert [outcome.url for outcome in it.delivery.outcomes()] == [B]
        assert it.delivery.acked == {}, "never past unfinished work"
        it.delivery.gate.set()
        await it.delivery.until(2)
        assert it.delivery.acked == {0: 2}


async def test_statuses_redirects_and_validators_become_results():
    routes = [
        page("/gone", status=410),
        page("/moved", status=301, headers=[["Location", "/a#x"]]),
        page("/mail", status=302, headers=[["Location", "mailto:a@b.test"]]),
        {
            **page("/same", status=304, headers=[["ETag", '"1"']], body=""),
            "when_header": {"name": "If-None-Match", "equals": '"1"'},
        },
        page("/same", status=304, headers=[], body=""),
    ]
    async with stand(routes) as it:
        same = order("http://a.test/same", visit=2, etag='"1"', last_modified="Mon, 02 Jan 2023 03:04:05 GMT")
        orders = [*(order(f"http://a.test/{name}") for name in ("gone", "moved", "mail", "same")), same]
        results = {(o.url, o.visit): o for o in await it.fetch(*orders)}
        gone = results["http://a.test/gone", 1]
        assert (gone.result, gone.failure, gone.status) == ("failed", "http_status", 410)
        moved = results["http://a.test/moved", 1]
        assert (moved.result, moved.location, moved.status) == ("redirected", A, 301)
        assert results["http://a.test/mail", 1].failure == "redirect_scheme"
        assert results["http://a.test/same", 1].failure == "http_status"
        unchanged = results["http://a.test/same", 2]
        assert (unchanged.result, unchanged.etag, unchanged.last_modified) == (
            "unchanged", '"1"', "Mon, 02 Jan 2023 03:04:05 GMT",
        )  # fmt: skip
        assert it.delivery.pages() == []


async def test_a_fault_is_an_outcome_with_its_class():
    async with stand([page("/a", raw="", then="close")], connect_to=(), total_timeout=2.0) as it:
        unknown, refused = await it.fetch(order("http://no-such-name.invalid/"), order(f"http://127.0.0.1:{1}/"))
        assert {unknown.failure, refused.failure} == {"dns", "connection"}
        named = unknown if unknown.failure == "dns" else refused
        assert named.requests == (), "nothing went out"


async def test_a_body_larger_than_the_topic_takes_is_cut_and_marked():
    async with stand([page("/a", body={"repeat": "x", "times": 300_000})]) as it:
        it.delivery.page_limit = 100_000
        (outcome,) = await it.fetch(order(A))
        ((facts, body),) = it.delivery.pages()
        assert (outcome.result, facts.truncated) == ("fetched", "length")
        assert 90_000 < len(body) < 100_000


@pytest.mark.parametrize(("limit", "length"), [(0, 1000), (2000, 2000), (500, 500)])
async def test_the_body_limit_is_the_crawls_or_else_our_own(limit, length):
    async with stand([page("/a", body={"repeat": "x", "times": 5000})], max_body=1000) as it:
        await it.fetch(order(A, max_body=limit))
        ((facts, body),) = it.delivery.pages()
        assert (len(body), facts.truncated) == (length, "length")


async def test_what_cannot_be_read_costs_one_message():
    async with stand([page("/a")]) as it:
        await it.give(b"{", order(A), b'{"schema":1}')
        await it.delivery.until(1)
        assert len(it.delivery.poisoned) == 2
        assert it.delivery.acked == {0: 3}
        with pytest.raises(SystemExit, match="schema 99"):
            await it.give(b'{"schema":99}')


# --- robots.txt

ROBOTS = "http://a.test/robots.txt"


def robots_order(url: str = ROBOTS, **facts: Any) -> FetchOrder:
    return order(url, kind="robots", visit=0, parent="http://a.test", **facts)


async def test_robots_rules_come_with_the_outcome():
    async with stand([page("/robots.txt", body="User-agent: fyke\nDisallow: /private\nCrawl-delay: 2\n")]) as it:
        (outcome,) = await it.fetch(robots_order())
        assert (outcome.kind, outcome.result) == ("robots", "fetched")
        rules = outcome.robots_rules
        assert (rules.origin, rules.access, rules.crawl_delay) == ("http://a.test", "rules", 2.0)
        assert rules.rules == ((False, "/private"),)
        assert it.delivery.pages() == []


@pytest.mark.parametrize(
    ("status", "result", "access"),
    [(404, "fetched", "allow_all"), (403, "fetched", "allow_all"), (500, "failed", "disallow_all"),
     (429, "failed", "disallow_all")],
)  # fmt: skip
async def test_statuses_of_a_robots_file(status, result, access):
    async with stand([page("/robots.txt", status=status)]) as it:
        (outcome,) = await it.fetch(robots_order())
        assert (outcome.result, outcome.robots_rules.access, outcome.status) == (result, access, status)


async def test_a_robots_file_that_cannot_be_had_forbids_everything():
    async with stand([page("/robots.txt", raw="", then="close")]) as it:
        (outcome,) = await it.fetch(robots_order())
        assert (outcome.result, outcome.failure) == ("failed", "connection")
        assert outcome.robots_rules.access == "disallow_all"


async def test_robots_redirects_within_the_host_are_requests_of_their_own():
    routes = [
        page("/robots.txt", status=302, headers=[["Location", "/1"]]),
        page("/1", status=301, headers=[["Location", "http://a.test:8081/2"]]),
        page("/2", host="a.test:8081", body="User-agent: *\nDisallow: /\n"),
    ]
    async with stand(routes) as it:
        (outcome,) = await it.fetch(robots_order(delay=0.1))
        assert outcome.robots_rules.rules == ((False, "/"),)
        assert [request.kind for request in outcome.requests] == ["robots", "redirect", "redirect"]
        assert all(after.at - before.at >= 0.1 for before, after in pairwise(it.server.seen))


async def test_a_robots_redirect_to_another_host_is_left_to_the_frontier():
    async with stand([page("/robots.txt", status=302, headers=[["Location", "http://b.test/r"]])]) as it:
        (outcome,) = await it.fetch(robots_order())
        assert (outcome.result, outcome.location) == ("redirected", "http://b.test/r")
        assert it.server.urls == []
        assert len(it.server.seen) == 1


async def test_robots_redirects_end_after_five():
    async with stand([page("/{any}", status=302, headers=[["Location", "{path}x"]])]) as it:
        (outcome,) = await it.fetch(robots_order())
        assert (outcome.result, outcome.robots_rules.access) == ("fetched", "allow_all")
        assert len(it.server.seen) == 6


# --- evidence


async def test_a_failure_says_what_was_asked_where_how_long_it_took_and_how_the_answer_began():
    headers = [["Server", "x/1"], ["X-Long", "y" * 3000]]
    async with stand([page("/a", status=503, headers=headers)]) as it:
        (outcome,) = await it.fetch(order(A))
        evidence = outcome.evidence
        assert evidence["address"] == "127.0.0.1"
        assert 0 <= float(evidence["first_byte"]) <= float(evidence["elapsed"]) < 5
        assert evidence["head"].startswith("Server: x/1\nX-Long: yyy")
        assert len(evidence["head"]) == 1024
        assert "url" not in evidence, "it is the order's"


async def test_a_failure_without_an_answer_says_how_far_it_came():
    async with stand([page("/a", delay_ms=3000)], first_byte_timeout=0.2) as it:
        (silent,) = await it.fetch(order(A))
        assert (silent.failure, silent.evidence["phase"], silent.evidence["address"]) == (
            "timeout", "answer", "127.0.0.1")  # fmt: skip
    async with stand([], connect_to=()) as it:
        (refused,) = await it.fetch(order("http://127.0.0.1:1/"))
        assert (refused.failure, refused.evidence["phase"]) == ("connection", "connect")


async def test_a_robots_failure_says_where_it_had_been_redirected_to():
    routes = [page("/robots.txt", status=302, headers=[["Location", "/r"]]), page("/r", status=500)]
    async with stand(routes) as it:
        (outcome,) = await it.fetch(robots_order())
        assert (outcome.failure, outcome.evidence["url"]) == ("http_status", "http://a.test/r")


async def test_an_overloaded_host_is_left_alone_for_a_moment_though_it_does_not_ask():
    async with stand([page("/a", status=503), page("/b")]) as it:
        await it.fetch(order(A))
        await it.give(order(B))
        await it.delivery.until(2)
        first, second = it.server.seen
        assert second.at - first.at >= 1.0


async def test_a_body_that_killed_its_decoder_is_asked_for_no_more(tmp_path: Path) -> None:
    async with stand([page("/a"), page("/b")], state=tmp_path) as it:
        for url in (A, A, B):
            it.crawls.died(url, it.delivery)
        outcomes = {outcome.url: outcome for outcome in await it.fetch(order(A), order(B))}
        assert (outcomes[A].result, outcomes[A].failure) == ("failed", "decode")
        assert outcomes[A].reason == "its body killed its decoder's process 2 times"
        assert outcomes[A].requests == ()
        assert outcomes[B].result == "fetched"
        assert [request.url for request in it.server.seen] == [B]


@pytest.mark.parametrize("kills", [False, True])
async def test_a_body_that_killed_once_is_rehearsed(kills: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is decoded here only after a process of its own has survived that."""
    if kills:
        monkeypatch.setattr(rehearsal, "COMMAND", (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"))
    coded = page("/a", headers=[["Content-Encoding", "gzip"]], body={"gzip": "text"})
    async with stand([coded]) as it:
        it.crawls.died(A, it.delivery)
        (outcome,) = await it.fetch(order(A))
        told = [decode(Death, sent.value).url for sent in it.delivery.sent if sent.topic == DEATHS.name]
        if kills:
            assert (outcome.result, outcome.failure, told) == ("failed", "decode", [A])
            assert outcome.reason == "its body killed its decoder's process 2 times"
        else:
            assert (outcome.result, told) == ("fetched", [])
            assert [body for _, body in it.delivery.pages()] == [b"text"]


async def unheard(url: str) -> None:
    raise AssertionError(f"{url} killed nobody")


async def test_the_body_that_a_former_process_died_of_is_told_once(tmp_path: Path) -> None:
    former = Culprit(tmp_path / "run", "fetcher", lambda _: 0, unheard)
    former.decoding(A).__enter__()
    former._hold.drop()
    for told in (1, 0):
        async with stand([], state=tmp_path) as it:
            deaths = [decode(Death, sent.value) for sent in it.delivery.sent if sent.topic == DEATHS.name]
            assert [(death.stage, death.url) for death in deaths] == [("fetcher", A)] * told


async def test_a_coded_body_is_named_while_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[str] = []
    feed = Decoder.feed

    def noting(self: Decoder, chunk: bytes) -> bytes:
        named.append((tmp_path / "run" / "fetcher-0.decoding").read_bytes()[4:].rstrip(b"\0").decode())
        return feed(self, chunk)

    monkeypatch.setattr(Decoder, "feed", noting)
    coded = page("/a", headers=[["Content-Encoding", "gzip"]], body={"gzip": "text"})
    async with stand([coded], state=tmp_path) as it:
        (outcome,) = await it.fetch(order(A))
        assert outcome.result == "fetched"
    assert set(named) == {A}
