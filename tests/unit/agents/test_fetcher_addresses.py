"""The cap for each address (`fetch.per_address`), on hosts that share one."""

from __future__ import annotations

import asyncio

import pytest

from agents.io.http import now
from tests.unit.agents.stand import Stand, order, page, stand

HOSTS = [f"h{number}.test" for number in range(6)]
ORDERS = [order(f"http://{host}/a") for host in HOSTS]
SLOW = [page("/a", host=host, delay_ms=150) for host in HOSTS]


def most_at_once(it: Stand) -> int:
    spans = [(request.start, request.end) for outcome in it.delivery.outcomes() for request in outcome.requests]
    return max(sum(start <= at < end for start, end in spans) for at, _ in spans)


@pytest.mark.parametrize(("cap", "most"), [(0, 6), (1, 1), (2, 2)])
async def test_hosts_of_one_address_share_its_cap(cap: int, most: int) -> None:
    async with stand(SLOW, per_address=cap) as it:
        outcomes = await it.fetch(*ORDERS)
        assert {outcome.result for outcome in outcomes} == {"fetched"}
        assert most_at_once(it) == most


async def test_who_finds_no_room_goes_back_and_its_host_is_left_alone() -> None:
    routes = [page("/a", host=HOSTS[0], delay_ms=800), page("/a", host=HOSTS[1])]
    async with stand(routes, per_address=1, defer_after=0.2) as it:
        began = now()
        await it.give(*ORDERS[:2])
        first, second = await it.delivery.until(2)
        assert (first.result, first.reason, first.requests) == ("deferred", "address", ())
        assert first.retry_after == pytest.approx(5.0, abs=0.5)
        assert (second.result, second.url) == ("fetched", ORDERS[0].url)
        assert now() - began < 1.5


async def test_a_name_that_leads_nowhere_fails_as_ever() -> None:
    async with stand([], per_address=1, connect_to=(), total_timeout=2.0) as it:
        (outcome,) = await it.fetch(order("http://no-such-name.invalid/"))
        assert (outcome.failure, outcome.evidence["dns"]) == ("dns", "name not known")


async def test_orders_that_are_being_located_go_back_when_the_process_stops() -> None:
    async with stand(SLOW, per_address=1) as it:
        await it.give(*ORDERS)
        await it.stage.drain()
        outcomes = await it.delivery.until(len(ORDERS))
        assert {outcome.result for outcome in outcomes} == {"deferred"}
        assert it.server.connections == 0


async def test_orders_that_are_being_located_are_forgotten_with_their_partition() -> None:
    """They are read again by the next owner."""
    async with stand(SLOW, per_address=1) as it:
        await it.give(*ORDERS)
        it.stage.revoked()
        await asyncio.sleep(0.1)
        assert it.delivery.outcomes() == []
        await it.delivery.assign(it.stage, 0)
        await it.fetch(*ORDERS)
        assert it.server.connections > 0
