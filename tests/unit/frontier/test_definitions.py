"""What a crawl's definition says about its waiting URLs: pause, page limit, deadline, end, narrower rules."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from streams import messages as m
from streams.definitions import Scope, ScopeRule
from streams.frontier.closing import SWEEP
from streams.frontier.queues import Hold
from streams.frontier.release import STEPS
from streams.frontier.rows import State
from tests.unit.frontier.rig import (
    START,
    Rig,
    answer,
    crawl,
    failed,
    given,
    links,
    pages,
    parsed,
    seed,
    seeds,
    urls_of,
)


@pytest.mark.parametrize("known", [True, False])
def test_a_paused_or_unknown_crawl_waits_without_a_busy_loop_and_goes_on_within_a_second(known: bool) -> None:
    rig = Rig(crawl(), crawl("other"))
    held = [f"http://h{i}.example/" for i in range(200)]
    rig.turn(links(*held))
    rig.load()
    if known:
        rig.change(state="paused")
        rig.turn(links(*pages(50)))
    else:
        definition = rig.crawls.pop("c")
    rig.settle()
    before = rig.shard.progress(0)
    for _ in range(5):
        at = rig.now
        assert rig.sleep() == []
        assert rig.now == at + 1000
    assert rig.shard.progress(0) == before
    assert len(given(rig, links("http://h.example/x", name="other"))) == 1  # others are not held up
    if known:
        rig.change(state="open")
    else:
        rig.crawls["c"] = definition
    at = rig.now
    assert len([*rig.sleep(), *rig.settle()]) >= 200
    assert rig.now <= at + 1000


def test_a_held_crawl_does_not_hold_up_another_on_its_host() -> None:
    rig = Rig(crawl("a", state="paused"), crawl("b"))
    orders = given(rig, links(*pages(3), name="a"), links(*pages(3), name="b"))
    assert [order.crawl for order in orders] == ["b"] * 3
    given(rig, links(*pages(2, first=7), name="a"))  # more of it while it is held
    rig.change("a", state="open")
    assert [order.crawl for order in rig.sleep()] == ["a"] * 5


def test_a_page_limit_waits_for_what_is_out() -> None:
    rig = Rig(crawl(limit=3, parallelism=8))
    orders = given(rig, links(*pages(20), *[f"http://h{i}.example/" for i in range(300)]))
    assert len(orders) == 3
    assert rig.shard.tallies["c"].open == 320
    (again,) = given(rig, failed(orders[0], "tls"))  # it was no page: one more may go
    assert len(rig.shard._release.queues.held[Hold("c", places=True)]) >= 298  # and not every host is looked at for it
    rig.turn(answer(orders[1]), answer(orders[2]))
    assert rig.shard.tallies["c"].states[State.EXCLUDED] == 0
    rig.turn(answer(again))
    rig.settle()
    counts = rig.shard.progress(0).crawls["c"]
    assert (counts.fetched, counts.failed, counts.exclusions) == (3, 1, {"limit": 316})
    given(rig, *(parsed(order) for order in (*orders[1:], again)))
    assert rig.shard.progress(0).crawls["c"].open == 0
    assert given(rig, links("http://late.example/")) == []
    assert rig.state("http://late.example/") is State.EXCLUDED


def test_a_page_limit_counts_other_shards() -> None:
    rig = Rig(crawl(limit=10, parallelism=8))
    orders = rig.turn(links(*pages(20)), elsewhere={"c": 7})
    orders += rig.turn(elsewhere={"c": 7})
    assert len(orders) == 3
    rig.turn(elsewhere={"c": 10}, wait=1000)
    assert Counter(rig.state(url) for url in pages(20)) == {State.WAITING: 3, State.EXCLUDED: 17}


def test_a_higher_limit_lets_a_held_crawl_go_on() -> None:
    rig = Rig(crawl(limit=2, parallelism=8))
    assert len(given(rig, links(*pages(20)))) == 2
    rig.change(limit=5)
    assert len(rig.sleep()) == 3


def waiting_everywhere(**definition: Any) -> tuple[Rig, list[m.FetchOrder]]:
    """URLs behind a Retry-After of an hour, behind a retry, behind robots, out, and in a queue."""
    rig = Rig(crawl(**{"robots": False, "parallelism": 1, **definition}))
    late, retried, *_ = given(rig, links(*pages(9), *pages(5, "http://x.example")))
    rig.turn(failed(late, "http_status", status=429, retry_after=3600.0))
    rig.turn(failed(retried, "http_status", status=503, retry_after=7200.0))
    rig.change(robots=True)
    (robots,) = given(rig, links("http://r.example/"))
    given(rig, failed(robots, "dns"))
    rig.change(robots=False)
    out = given(rig, links(*pages(7, "http://out.example")))
    return rig, out


def test_scope_rules_and_traps_that_came_later_exclude_what_waits() -> None:
    rig = Rig(crawl(state="paused"))
    found = ["http://h.example/a", "http://h.example/a?print", "http://h.example/?date=2099-01"]
    rig.turn(links(*found), seeds(seed("http://h.example/?date=2098-01", origin=m.Origin("urls", 0, 1))))
    rig.now = 1_795_000_000_000
    rig.change(state="open", scope_rules=(ScopeRule(id="print", path="/*?print"),))
    assert sorted(urls_of(rig.next_orders())) == ["http://h.example/?date=2098-01", "http://h.example/a"]
    assert [rig.row(url).outcome for url in found] == ["", "scope:print", "trap:calendar"]


@pytest.mark.parametrize(("change", "rule"), [({"limit": 1}, "limit"), ({"state": "ended"}, "ended"),
                                              ({"deadline": START + 500}, "deadline")])  # fmt: skip
def test_a_crawl_that_is_over_excludes_at_once_whatever_its_urls_wait_for(change, rule: str) -> None:
    rig, out = waiting_everywhere()
    rig.turn(*((answer(out[0]), parsed(out[0])) if rule == "limit" else ()))
    rig.change(**change)
    if rule == "deadline":
        rig.turn()
        rig.sleep()
        assert rig.now == START + 500  # it wakes for it
    rig.turn()
    rig.settle()
    counts = rig.shard.progress(0).crawls["c"]
    assert set(counts.exclusions) == {rule}
    assert counts.open == rig.shard.unanswered() > 0  # only what is out is waited for
    released = [order for order in out if rig.state(order.url) is State.WAITING]
    given(rig, *(failed(order, "timeout") for order in released))
    given(rig, links("http://new.example/"), seeds("http://new.example/2"))
    rig.turn(wait=601_000)  # the others are never answered
    rig.settle()
    counts = rig.shard.progress(0).crawls["c"]
    assert (counts.open, set(counts.exclusions)) == (0, {rule})
    assert rig.shard.wake_at() >= rig.now


def test_many_urls_of_a_crawl_that_is_over_are_excluded_in_turns() -> None:
    rig = Rig(crawl(limit=1, parallelism=1))
    hosts = [links(*pages(STEPS // 2, f"http://h{i}.example")) for i in range(4)]
    first, *_ = given(rig, *hosts, links(*pages(7)))
    rig.turn(answer(first))
    excluded = rig.shard.tallies["c"].states[State.EXCLUDED]
    assert STEPS - 10 <= excluded <= STEPS + 10
    rig.settle()
    assert rig.shard.tallies["c"].states[State.WAITING] == rig.shard.unanswered()


def test_many_retries_of_a_crawl_that_is_over_are_excluded_in_turns() -> None:
    number = SWEEP + 5
    rig = Rig(crawl("a", parallelism=number), crawl("b"), release_floor=2 * number)
    orders = given(rig, links(*pages(number), name="a"), links("http://b.example/b", name="b"))
    assert len(orders) == number + 1
    rig.turn(*(failed(order, "http_status", status=425, retry_after=60.0) for order in orders))
    rig.change("a", state="ended")
    rig.turn()
    assert rig.shard.tallies["a"].states[State.EXCLUDED] == SWEEP - 1  # one of the rows was the other crawl's
    rig.settle()
    assert rig.shard.progress(0).crawls["a"].open == 0
    assert rig.shard.progress(0).crawls["b"].open == 1


def test_a_paused_crawl_is_not_over() -> None:
    rig = Rig(crawl(state="paused", deadline=START))
    given(rig, links(*pages(3)))
    assert rig.shard.progress(0).crawls["c"].open == 3
    rig.change(state="open")
    rig.sleep()
    assert rig.shard.progress(0).crawls["c"].open == 0


def test_a_crawl_that_is_over_may_go_on_after_all() -> None:
    rig = Rig(crawl(limit=1, parallelism=1), release_floor=4)
    orders = given(rig, links(*pages(STEPS // 2), *pages(STEPS, "http://x.example")))
    rig.turn(answer(orders[0]))
    rig.change(limit=None)
    waiting = rig.shard.tallies["c"].states[State.WAITING]
    assert waiting > 1000
    assert given(rig, *(answer(order) for order in orders[1:])) != []
    assert rig.shard.tallies["c"].states[State.EXCLUDED] > 1000


@pytest.mark.parametrize(("change", "rule"), [
    ({"depth": 0}, "depth"),
    ({"scope": Scope(mode="host", values=("x.example",))}, "scope:host"),
])  # fmt: skip
def test_a_definition_that_shrinks_excludes_what_waits(change, rule: str) -> None:
    rig = Rig(crawl(state="paused"))
    given(rig, links(*pages(3)))
    rig.change(state="open", **change)
    assert rig.sleep() == []
    assert rig.shard.progress(0).crawls["c"].exclusions == {rule: 3}


# --- concurrency of a crawl over all hosts


def test_a_crawl_at_its_concurrency_waits_for_an_answer_and_holds_nobody_back() -> None:
    rig = Rig(crawl("a", concurrency=3, parallelism=8), crawl("b", parallelism=8))
    orders = given(rig, links(*pages(20), name="a"), links(*pages(4), name="b"))
    assert Counter(order.crawl for order in orders) == {"a": 3, "b": 4}
    first = next(order for order in orders if order.crawl == "a")
    assert [order.crawl for order in given(rig, answer(first))] == ["a"]
    assert rig.shard.tallies["a"].released == 3


def test_hosts_of_a_crawl_at_its_concurrency_take_turns() -> None:
    rig = Rig(crawl(concurrency=2, parallelism=1))
    orders = given(rig, links(*[url for i in range(6) for url in pages(3, f"http://h{i}.example")]))
    served = [order.host for order in orders]
    for _ in range(8):
        orders = [*orders[1:], *given(rig, answer(orders[0]))]
        assert len(orders) == 2
        served.append(orders[-1].host)
    assert {f"h{i}.example" for i in range(6)} <= set(served)


def test_the_concurrency_of_a_crawl_changes_while_it_runs() -> None:
    rig = Rig(crawl(concurrency=2, parallelism=8))
    orders = given(rig, links(*pages(30)))
    assert len(orders) == 2
    rig.change(concurrency=5)
    assert len(rig.sleep()) == 3
    rig.change(concurrency=1)
    assert given(rig, answer(orders[0]), answer(orders[1])) == []
    assert rig.shard.tallies["c"].released == 3
