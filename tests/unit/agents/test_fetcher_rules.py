"""The fetcher and limit rules: the newest that are known when a request is about to go out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from agents.io.http import now
from streams.definitions import LimitRule
from streams.messages import Basis, FetchOutcome
from tests.servers.hostile import Seen
from tests.unit.agents.stand import A, B, Stand, many, order, page, stand
from tests.unit.policy.test_windows import ms

PDF = [["Content-Type", "application/pdf"]]


def sent(request: Seen) -> dict[str, str]:
    """Request headers by lower-case name; each comes once."""
    headers = {name.lower(): value for name, value in request.headers}
    assert len(headers) == len(request.headers)
    return headers


def gaps(outcomes: Iterable[FetchOutcome]) -> list[float]:
    """Seconds between the starts of requests, by the fetcher's clock: a server in the same loop sees them late."""
    starts = sorted(request.start for outcome in outcomes for request in outcome.requests)
    return [(after - before) / 1000 for before, after in pairwise(starts)]


async def first_outcome(it: Stand) -> None:
    """Return when some order was answered."""
    async with asyncio.timeout(30):
        while not it.delivery.outcomes():
            it.delivery.changed.clear()
            await it.delivery.changed.wait()


def one(**values: Any) -> tuple[LimitRule, ...]:
    return (LimitRule(id="new", domain="a.test", **values),)


async def test_a_rule_that_is_newer_than_the_order_holds() -> None:
    async with stand(many(3)) as it:
        it.crawls.define(version=5, limits=one(delay=0.2))
        outcomes = await it.fetch(*(order(f"http://a.test/p{number}", rules=4) for number in range(3)))
        assert min(gaps(outcomes)) >= 0.2
        assert {outcome.rules for outcome in outcomes} == {5}


async def test_an_order_that_is_newer_than_the_rules_that_were_read_counts() -> None:
    async with stand(many(3)) as it:
        it.crawls.define(version=5, limits=one(user_agent="old/1"))
        orders = [order(f"http://a.test/p{n}", rules=6, delay=0.2, user_agent="order/1") for n in range(3)]
        outcomes = await it.fetch(*orders)
        assert min(gaps(outcomes)) >= 0.2
        assert {sent(request)["user-agent"] for request in it.server.seen} == {"order/1"}
        assert {outcome.rules for outcome in outcomes} == {6}


async def test_a_shorter_delay_holds_for_orders_that_wait_and_for_the_gap_that_has_begun() -> None:
    async with stand(many(5)) as it:
        it.crawls.define(delay=3.0)
        await it.give(*(order(f"http://a.test/p{n}", delay=3.0, basis=Basis()) for n in range(5)))
        await first_outcome(it)
        began = now()
        it.crawls.define(version=2, delay=0.1)
        outcomes = await it.delivery.until(5)
        assert now() - began < 2.0
        assert min(gaps(outcomes)) >= 0.1
        assert [request.delay for outcome in outcomes for request in outcome.requests] == [3.0, 0.1, 0.1, 0.1, 0.1]


async def test_a_longer_delay_holds_for_the_gap_that_has_begun() -> None:
    async with stand(many(2)) as it:
        it.crawls.define(delay=0.3)
        await it.give(*(order(f"http://a.test/p{n}", delay=0.3, basis=Basis()) for n in range(2)))
        await first_outcome(it)
        it.crawls.define(version=2, delay=0.9)
        assert min(gaps(await it.delivery.until(2))) >= 0.9


async def test_an_order_that_comes_too_early_tells_of_the_gap_and_not_of_the_hosts_word() -> None:
    async with stand(many(2)) as it:
        it.crawls.define(delay=60.0)
        await it.give(*(order(f"http://a.test/p{n}", delay=60.0, basis=Basis()) for n in range(2)))
        (early,) = [outcome for outcome in await it.delivery.until(2) if outcome.result == "deferred"]
        assert (early.reason, early.retry_after) == ("delay", None)
        assert early.gap == pytest.approx(60.0, abs=1.0)


async def test_a_random_delay_is_added_to_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.jobs.random.random", lambda: 0.5)
    async with stand(many(3)) as it:
        it.crawls.define(limits=one(delay=0.1, random_delay=0.4))
        orders = (order(f"http://a.test/p{n}", delay=0.1, random_delay=0.4) for n in range(3))
        assert min(gaps(await it.fetch(*orders))) >= 0.3


async def test_newer_rules_renew_what_is_sent() -> None:
    async with stand([page("/a")], max_body=100) as it:
        it.crawls.define(version=2, limits=one(user_agent="new/1", headers={"A": "rule", "B": "rule"}, max_body=4))
        (outcome,) = await it.fetch(order(A, user_agent="old/1", headers={"a": "seed"}))
        (request,) = it.server.seen
        assert [sent(request)[name] for name in ("user-agent", "a", "b")] == ["new/1", "seed", "rule"]
        ((facts, body),) = it.delivery.pages()
        assert (len(body), facts.truncated, facts.rules, outcome.rules) == (4, "length", 2, 2)


@pytest.mark.parametrize(("time", "reason"), [("2026-12-05 12:00", "window"), ("2026-12-04 12:00", "")])
async def test_orders_outside_of_their_time_window_go_back(
    time: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stand([page("/a")]) as it:
        monkeypatch.setattr(it.delivery.clock, "ms", lambda _: ms(time))
        it.crawls.define(limits=one(windows=("Mon-Fri 09:00-17:00",)))
        (outcome,) = await it.fetch(order(A, rules=1))
        assert (outcome.result, outcome.reason) == (("deferred", reason) if reason else ("fetched", ""))
        assert outcome.retry_after == (pytest.approx(1.0, abs=0.1) if reason else None)
        assert len(it.server.seen) == (not reason)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"rules": 1}, "robots"),
        ({"rules": 2}, ""),  # the frontier knew: another rule may have let it go
        ({"rules": 1, "robots": "v"}, ""),
        ({"rules": 1, "kind": "robots", "parent": "http://a.test"}, ""),
    ],
)
async def test_an_order_that_ignores_robots_goes_back_when_the_rules_obey_it_now(facts: Any, reason: str) -> None:
    async with stand([page("/a")]) as it:
        it.crawls.define(version=2, limits=one(robots=True))
        (outcome,) = await it.fetch(order(A, **facts))
        assert outcome.reason == reason
        assert len(it.server.seen) == (not reason)


async def test_a_rule_has_a_time_limit_of_its_own() -> None:
    async with stand([page("/a", delay_ms=1500), page("/b", delay_ms=900)], total_timeout=0.5) as it:
        began = now()
        (short,) = await it.fetch(order(A, timeout=0.3))
        assert (short.failure, now() - began < 1.0) == ("timeout", True)
        await it.give(order(B, timeout=5.0))
        _, long = await it.delivery.until(2)
        assert long.result == "fetched"


async def test_a_media_type_that_is_not_taken_is_excluded_and_its_body_not_kept() -> None:
    routes = [page("/a", headers=PDF), page("/b", headers=PDF, body={"endless": "x" * 1000})]
    async with stand(routes) as it:
        asked = order(A, accept=("text/html", "text/*"), rule="html"), order(B, accept=("text/html",), rule="html")
        outcomes = await it.fetch(*asked)
        for outcome in outcomes:
            assert (outcome.result, outcome.reason, outcome.failure) == ("excluded", "accept:html", None)
            assert (outcome.status, outcome.evidence) == (200, {"content_type": "application/pdf"})
            assert len(outcome.requests) == 1
        assert it.delivery.pages() == []
        assert sent(it.server.seen[0])["accept"] == "text/html, text/*"
        assert it.delivery.acked == {0: 2}


async def test_an_error_is_an_error_whatever_its_media_type_and_a_taken_one_is_kept() -> None:
    async with stand([page("/a", status=404, headers=PDF), page("/b")]) as it:
        outcomes = {o.url: o for o in await it.fetch(order(A, accept=("text/*",)), order(B, accept=("text/*",)))}
        assert (outcomes[A].result, outcomes[A].failure) == ("failed", "http_status")
        assert outcomes[B].result == "fetched"


async def test_the_seeds_own_accept_header_is_sent() -> None:
    async with stand([page("/a")]) as it:
        await it.fetch(order(A, accept=("text/*",), headers={"accept": "text/plain"}))
        assert sent(it.server.seen[0])["accept"] == "text/plain"


async def test_an_outcome_names_the_version_under_which_it_began() -> None:
    """A rule that comes between robots.txt and where it redirects to holds for the second request."""
    routes = [page("/robots.txt", status=302, headers=[["Location", "/1"]]), page("/1", body="User-agent: *\n")]
    async with stand(routes) as it:
        await it.give(order("http://a.test/robots.txt", kind="robots", visit=0, parent="http://a.test", delay=0.5))
        while not it.server.seen:  # noqa: ASYNC110 - nobody sets events for tests
            await asyncio.sleep(0.01)
        it.crawls.define(version=2, limits=one(delay=0.8))
        (outcome,) = await it.delivery.until(1)
        assert outcome.rules == 1
        assert [request.delay for request in outcome.requests] == [0.5, 0.8]
        assert min(gaps([outcome])) >= 0.8
