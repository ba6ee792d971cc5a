"""The fetcher's wire clock against a real server on loopback, and what a rebalance does to it."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from agents import holdings
from agents.fetcher import LOOK
from agents.io.http import Answer, Exchange, HttpClient, Request, now
from tests.unit.agents.stand import A, B, many, order, page, stand

pytestmark = pytest.mark.alone

# --- the wire clock


async def test_the_gap_holds_at_the_server():
    async with stand(many(6)) as it:
        await it.fetch(*(order(f"http://a.test/p{number}", delay=0.1, parallelism=4) for number in range(6)))
        assert all(after.at - before.at >= 0.1 for before, after in pairwise(it.server.seen))


@pytest.mark.parametrize("kept", [0.25, 0.45], ids=["less than the gap", "more than the gap"])
async def test_the_gap_holds_at_the_server_when_the_process_is_kept_from_writing(kept):
    """Whatever the loop runs between the decision to send and the end of its turn, when it writes."""

    class Held(HttpClient):
        async def fetch(self, request: Request, exchange: Exchange) -> Answer | None:
            noted = exchange.on_sent

            def kept_from_running(at: float) -> None:
                it.stage._look()  # something else has happened: the next requests are decided on before this one is out
                noted(at)
                if request.url.endswith("p0"):
                    time.sleep(kept)

            exchange.on_sent = kept_from_running
            return await super().fetch(request, exchange)

    async with stand(many(2, delay_ms=900), client=Held) as it:
        await it.fetch(*(order(f"http://a.test/p{number}", delay=0.3, parallelism=2) for number in range(2)))
        first, second = it.server.seen
        assert second.at - first.at >= 0.3


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


async def test_a_host_that_asks_to_wait_while_another_request_connects_gets_no_other():
    """Seen from the site, a request that begins after its answer is one too many, whenever it was decided on."""
    answered = asyncio.Event()

    class SlowToConnect(HttpClient):
        async def fetch(self, request: Request, exchange: Exchange) -> Answer | None:
            if request.url == B:
                await answered.wait()
            answer = await super().fetch(request, exchange)
            asyncio.get_running_loop().call_soon(answered.set)  # once the fetcher has looked at the answer
            return answer

    busy = page("/a", status=429, headers=[["Retry-After", "60"]])
    async with stand([busy, page("/b")], client=SlowToConnect) as it:
        _, second = await it.fetch(order(B), order(A))
        assert (second.url, second.result, second.reason, second.requests) == (B, "deferred", "host", ())
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


async def test_the_first_owner_ever_starts_at_once():
    async with stand([page("/a")], assign=False) as it:
        it.delivery.app.end_offsets[0] = 1  # an order was there before us
        await it.delivery.assign(it.stage, 0)
        began = now()
        await it.fetch(order(A))
        assert now() - began < 0.5


@pytest.mark.parametrize("generation", [1, 5])
async def test_a_new_owner_gives_old_orders_back_and_waits_with_new_ones(monkeypatch, generation):
    """Also in the group's first generation: a static member that was killed comes back without a new one."""
    monkeypatch.setattr(holdings, "ABORT", 0.6)
    async with stand([page("/a"), page("/b")], assign=False) as it:
        it.delivery.app.end_offsets[0] = 1
        await it.delivery.assign(it.stage, 0, generation=generation)
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
        it.delivery.heard = False
        await it.give(order(B))
        await asyncio.sleep(1.1)
        assert (it.stage._open, it.server.urls, it.delivery.sent) == (0, [A], [])
        it.delivery.heard = True
        outcomes = await it.delivery.until(2)
        assert sorted(outcome.url for outcome in outcomes) == [A, B]
        (repeated,) = [outcome for outcome in outcomes if outcome.url == A]
        assert [request.status for request in repeated.requests] == [0, 200], "the aborted request is reported, too"


async def test_a_request_that_is_aborted_before_its_first_step_leaves_no_trace(monkeypatch):
    async with stand([page("/a"), page("/b")]) as it:
        begin = it.stage._begin
        aborted: list[int] = []

        def begin_and_abort(job, ticket):
            begin(job, ticket)
            if not aborted:
                aborted.append(ticket)
                it.stage._abort(job)
                it.stage._next(job)

        monkeypatch.setattr(it.stage, "_begin", begin_and_abort)
        await it.give(order(A, parallelism=1))
        outcomes = await it.delivery.until(1)
        assert [(outcome.url, len(outcome.requests)) for outcome in outcomes] == [(A, 1)]
        assert (it.stage._open, len(aborted)) == (0, 1)


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


async def test_a_timer_that_fires_early_is_set_again(monkeypatch):
    loop = asyncio.get_running_loop()
    call_later = loop.call_later
    monkeypatch.setattr(
        loop, "call_later", lambda delay, *rest, **more: call_later(max(0.0, delay - 0.004), *rest, **more)
    )
    async with stand(many(8)) as it:
        began = now()
        await it.fetch(*(order(f"http://a.test/p{n}", delay=0.1) for n in range(8)))
        assert now() - began < 7 * 0.1 + 3 * LOOK  # each of the seven waits would last until the next look
