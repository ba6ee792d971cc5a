"""The fetcher against a real server on loopback, with a delivery that keeps what it sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pytest

from agents import holdings
from agents.fetcher import FetcherStage
from agents.io.http import now
from streams.messages import CrawlDefinition, FetchOrder
from streams.policy.urls import fingerprint, hostname
from streams.settings import Fetch, Kafka, Settings, Worker
from tests.servers.hostile import HostileServer
from tests.unit.agents.recording import Recorder

QUICK = {"connect_timeout": 2.0, "first_byte_timeout": 5.0, "stall_timeout": 2.0, "total_timeout": 10.0}


@dataclass
class Crawls:
    crawls: dict[str, CrawlDefinition] = field(default_factory=dict)

    def define(self, **facts: Any) -> None:
        facts = {"id": "c", "delay": 0.0, "parallelism": 32, **facts}
        self.crawls[facts["id"]] = CrawlDefinition(**facts)


@dataclass
class Stand:
    stage: FetcherStage
    delivery: Recorder
    server: HostileServer
    crawls: Crawls

    async def give(self, *orders: FetchOrder | bytes, first: int | None = None) -> None:
        await self.delivery.give(self.stage, 0, *orders, first=first)

    async def fetch(self, *orders: FetchOrder | bytes) -> Any:
        await self.give(*orders)
        return await self.delivery.until(len(orders))


@asynccontextmanager
async def stand(
    routes: Sequence[dict[str, Any]],
    *,
    kafka: Mapping[str, Any] = MappingProxyType({}),
    assign: bool = True,
    **fetch: Any,
) -> AsyncIterator[Stand]:
    async with HostileServer(routes) as server:
        settings = Settings(
            kafka=Kafka(**{"heartbeat": 0.1, "session_timeout": 5.0, **kafka}),
            fetch=Fetch(**{"allow_private": True, "connect_to": server.connect_to(), **QUICK, **fetch}),
            worker=Worker(name="fetcher-1", grace=2.0),
        )
        delivery, crawls = Recorder(settings), Crawls()
        crawls.define()
        stage = FetcherStage(settings, crawls)
        await stage.start(delivery)  # type: ignore[arg-type]  # the recorder is what a stage uses of a delivery
        try:
            if assign:
                await delivery.assign(stage, 0)
            yield Stand(stage, delivery, server, crawls)
        finally:
            await stage.stop()


def page(path: str, host: str = "a.test", **response: Any) -> dict[str, Any]:
    defaults = {"status": 200, "headers": [["Content-Type", "text/plain"]], "body": f"body of {path}"}
    return {"host": host, "path": path, "response": {**defaults, **response}}


def order(url: str, **facts: Any) -> FetchOrder:
    defaults: dict[str, Any] = {
        "crawl": "c", "url": url, "fingerprint": fingerprint("c", url), "host": hostname(url), "shard": 3, "epoch": 7,
        "visit": 1, "attempt": 0, "parallelism": 32,
    }  # fmt: skip
    return FetchOrder(**{**defaults, **facts})


A, B = "http://a.test/a", "http://a.test/b"


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
        async with asyncio.timeout(5):
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


# --- the wire clock


def many(count: int, **response: Any) -> list[dict[str, Any]]:
    return [{**page("/p{i}", **response), "generate": {"from": 0, "to": count - 1}}]


async def test_the_gap_holds_at_the_server():
    async with stand(many(6)) as it:
        await it.fetch(*(order(f"http://a.test/p{number}", delay=0.1, parallelism=4) for number in range(6)))
        assert all(after.at - before.at >= 0.1 for before, after in pairwise(it.server.seen))


async def test_parallelism_holds_and_is_used():
    async with stand(many(6, delay_ms=100)) as it:
        began = now()
        outcomes = await it.fetch(*(order(f"http://a.test/p{number}", parallelism=3) for number in range(6)))
        spans = sorted((request.start, request.end) for outcome in outcomes for request in outcome.requests)
        assert max(sum(start <= at < end for start, end in spans) for at, _ in spans) == 3
        assert now() - began < 0.5


async def test_of_two_crawls_on_one_host_the_strictest_rule_holds():
    async with stand(many(4)) as it:
        slow = [order(f"http://a.test/p{n}", delay=0.15 if n % 2 else 0.0) for n in range(4)]
        await it.fetch(*slow)
        assert all(after.at - before.at >= 0.15 for before, after in pairwise(it.server.seen))


async def test_late_rules_hold_for_orders_of_older_rules():
    async with stand(many(3)) as it:
        it.crawls.define(version=2, delay=0.2)
        await it.fetch(*(order(f"http://a.test/p{number}") for number in range(3)))
        assert all(after.at - before.at >= 0.2 for before, after in pairwise(it.server.seen))


@pytest.mark.parametrize("state", ["paused", "ended"])
async def test_orders_of_a_crawl_that_stopped_go_back(state):
    async with stand(many(2)) as it:
        it.crawls.define(version=2, state=state)
        (outcome,) = await it.fetch(order(A))
        assert (outcome.result, outcome.reason, it.server.connections) == ("deferred", state, 0)


async def test_a_host_that_asks_to_wait_is_left_alone_at_once():
    async with stand([page("/a", status=429, headers=[["Retry-After", "60"]]), page("/b")]) as it:
        (first,) = await it.fetch(order(A))
        assert (first.failure, first.status, first.retry_after) == ("http_status", 429, 60.0)
        await it.give(order(B))
        _, second = await it.delivery.until(2)
        assert (second.result, second.reason) == ("deferred", "host")
        assert second.retry_after == pytest.approx(60, abs=1)
        assert it.server.urls == [A]


async def test_what_cannot_start_in_time_goes_back():
    async with stand(many(2, delay_ms=800), defer_after=0.3) as it:
        began = now()
        await it.give(*(order(f"http://a.test/p{number}", parallelism=1) for number in range(2)))
        (outcome,) = [outcome for outcome in await it.delivery.until(2) if outcome.result == "deferred"]
        assert outcome.url == "http://a.test/p1"
        assert now() - began < 1.5
        assert len(it.server.seen) == 1


async def test_a_slow_host_holds_up_nobody_and_a_full_process_waits():
    routes = [page("/slow", host="s.test", delay_ms=500), *(page("/f", host=f"f{n}.test") for n in range(4))]
    async with stand(routes, concurrency=2) as it:
        await it.fetch(order("http://s.test/slow"), *(order(f"http://f{n}.test/f") for n in range(4)))
        assert [outcome.url for outcome in it.delivery.outcomes()][-1] == "http://s.test/slow"


async def test_the_same_order_joins_the_running_fetch_and_is_answered_again_later():
    async with stand([page("/a", delay_ms=100)]) as it:
        await it.give(order(A), order(A, epoch=8))
        first, second = await it.delivery.until(2)
        await it.give(order(A, epoch=9))
        *_, third = await it.delivery.until(3)
        assert [first.epoch, second.epoch, third.epoch] == [7, 8, 9]
        assert first.page == second.page == third.page
        assert it.server.urls == [A]
        await it.give(order(A, attempt=1))
        await it.delivery.until(4)
        assert it.server.urls == [A, A], "another attempt is another fetch"


async def test_a_broken_kept_alive_connection_costs_one_request_in_turn():
    routes = [
        page("/a"),
        {"host": "a.test", "path": "/b", "responses": [{"raw": "", "then": "close"}, page("/b")["response"]]},
    ]
    async with stand(routes) as it:
        await it.fetch(order(A, delay=0.2))
        await it.give(order(B, delay=0.2))
        _, outcome = await it.delivery.until(2)
        assert (outcome.result, [request.kind for request in outcome.requests]) == ("fetched", ["page", "retry"])
        assert it.server.urls == [A, B, B]
        assert all(after.at - before.at >= 0.2 for before, after in pairwise(it.server.seen))


# --- ownership


async def test_the_first_generation_of_a_group_starts_at_once():
    async with stand([page("/a")], assign=False) as it:
        it.delivery.app.end_offsets[0] = 1  # an order was there before us
        await it.delivery.assign(it.stage, 0)
        began = now()
        await it.fetch(order(A))
        assert now() - began < 0.5


async def test_a_new_owner_gives_old_orders_back_and_waits_with_new_ones(monkeypatch):
    monkeypatch.setattr(holdings, "ABORT", 0.6)
    async with stand([page("/a"), page("/b")], assign=False) as it:
        it.delivery.app.end_offsets[0] = 1
        await it.delivery.assign(it.stage, 0, generation=5)
        began = now()
        await it.give(order(A), order(B))
        old, new = await it.delivery.until(2)
        assert (old.url, old.result, old.reason) == (A, "deferred", "taken over")
        assert (new.url, new.result) == (B, "fetched")
        assert now() - began >= 0.6
        assert it.server.urls == [B]


async def test_where_no_order_was_open_only_the_delay_of_a_host_counts(monkeypatch):
    monkeypatch.setattr(holdings, "ABORT", 60.0)
    async with stand([*many(2), page("/p", host="b.test")], assign=False) as it:
        await it.delivery.assign(it.stage, 0, generation=5)
        began = now()
        await it.fetch(order("http://b.test/p"))
        assert now() - began < 0.5
        await it.give(order("http://a.test/p0", delay=0.7))
        await it.delivery.until(2)
        assert now() - began >= 0.6


async def test_what_runs_goes_on_when_its_partition_comes_back():
    async with stand([page("/a", delay_ms=400)]) as it:
        await it.give(order(A))
        await asyncio.sleep(0.1)
        it.delivery.revoke(it.stage)
        await it.delivery.assign(it.stage, 0)
        await it.give(order(A), first=0)
        (outcome,) = await it.delivery.until(1)
        assert (outcome.result, it.server.urls) == ("fetched", [A])
        assert it.delivery.acked == {0: 1}


async def test_between_two_generations_nothing_is_sent():
    async with stand([page("/a", delay_ms=100), page("/b")]) as it:
        await it.give(order(A))
        await asyncio.sleep(0.05)
        it.delivery.revoke(it.stage)
        await asyncio.sleep(0.3)
        assert (it.delivery.sent, it.delivery.acked) == ([], {})
        await it.delivery.assign(it.stage, 0)
        await it.give(order(A), order(B), first=0)
        await it.delivery.until(2)
        assert sorted(it.server.urls) == [A, B]


async def test_what_runs_for_a_lost_partition_is_aborted():
    async with stand([page("/a", delay_ms=300)]) as it:
        await it.give(order(A))
        await asyncio.sleep(0.1)
        it.delivery.revoke(it.stage)
        await it.delivery.assign(it.stage, 1)
        await asyncio.sleep(0.4)
        assert it.delivery.sent == []
        assert it.stage._open == 0


@pytest.mark.parametrize("skipped", [True, False])
async def test_a_partition_that_others_may_have_had_is_taken_over(monkeypatch, skipped):
    """A generation that we did not see may have given it to somebody else."""
    monkeypatch.setattr(holdings, "ABORT", 30.0)
    async with stand([page("/a", delay_ms=300)]) as it:
        await it.give(order(A))
        await asyncio.sleep(0.1)
        it.delivery.revoke(it.stage)
        await it.delivery.assign(it.stage, 0, generation=3 if skipped else 2)
        await it.give(order(A), first=0)
        (outcome,) = await it.delivery.until(1)
        assert outcome.result == ("deferred" if skipped else "fetched")


async def test_an_owner_that_is_not_confirmed_starts_nothing_and_ends_what_runs():
    async with stand([page("/a", delay_ms=1200), page("/b")]) as it:
        await it.give(order(A))
        await asyncio.sleep(0.2)
        it.delivery.confirmed = now() - 60
        await it.give(order(B))
        await asyncio.sleep(1.1)
        assert (it.stage._open, it.server.urls, it.delivery.sent) == (0, [A], [])
        it.delivery.confirmed = None
        outcomes = await it.delivery.until(2)
        assert sorted(outcome.url for outcome in outcomes) == [A, B]
        (repeated,) = [outcome for outcome in outcomes if outcome.url == A]
        assert [request.status for request in repeated.requests] == [0, 200], "the aborted request is reported, too"


async def test_a_drain_finishes_what_runs_and_gives_back_the_rest():
    async with stand(many(3, delay_ms=200)) as it:
        await it.give(*(order(f"http://a.test/p{number}", parallelism=1) for number in range(3)))
        await asyncio.sleep(0.1)
        await it.stage.drain()
        results = {outcome.url[-1]: outcome.result for outcome in it.delivery.outcomes()}
        assert results == {"0": "fetched", "1": "deferred", "2": "deferred"}
        assert it.delivery.acked == {0: 3}


async def test_a_drain_does_not_wait_for_ever():
    async with stand([page("/a", body={"endless": "x"}, pace={"bytes": 10, "every_ms": 50})]) as it:
        await it.give(order(A))
        await asyncio.sleep(0.2)
        began = now()
        await it.stage.drain()
        assert now() - began < 1.6
        (outcome,) = it.delivery.outcomes()
        assert (outcome.result, outcome.reason) == ("deferred", "draining")
        assert [request.status for request in outcome.requests] == [0]
