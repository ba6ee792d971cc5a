"""Limit rules in the frontier: what orders carry, whose rule holds, time windows, changes while a crawl runs."""

from __future__ import annotations

from typing import Any

import pytest

from streams.definitions import LimitRule
from streams.frontier.release import LONGEST_SHUT
from streams.frontier.rows import State
from streams.messages import Basis
from tests.unit.frontier.rig import HOUR, START, Rig, answer, crawl, done, given, links, pages, rules, seed, seeds

# START is 1970-01-12 13:46:40 UTC, a Monday
FOUR = START - 46 * 60_000 - 40_000 + 3 * HOUR  # 16:00 on that day


def test_an_order_carries_what_its_rule_says() -> None:
    rule = LimitRule(
        id="r", path="/x", delay=3.0, random_delay=1.0, parallelism=1, user_agent="rule/1", timeout=4.0, max_body=9,
        headers={"A": "r", "B": "r"}, accept=("text/html",),
    )  # fmt: skip
    rig = Rig(crawl(limits=(rule,), user_agent="own/1", version=7))
    order, other = given(rig, seeds(seed("http://h.example/x", headers={"a": "seed"}), "http://y.example/y"))
    assert (order.rules, order.rule, order.delay, order.random_delay, order.parallelism) == (7, "r", 3.0, 1.0, 1)
    assert (order.user_agent, order.timeout, order.max_body, order.accept) == ("rule/1", 4.0, 9, ("text/html",))
    assert order.headers == {"a": "seed", "B": "r"}
    assert (other.rule, other.delay, other.parallelism, other.user_agent, other.headers) == ("", 0.0, 2, "own/1", {})


def test_urls_with_a_rule_of_their_own_are_paced_by_it() -> None:
    rig = Rig(crawl(limits=(LimitRule(id="slow", path="/slow", delay=10.0, parallelism=1),)))
    given(rig, seeds("http://h.example/slow1", "http://h.example/slow2", "http://h.example/0"))
    rig.turn(wait=8000)
    assert [order.url for order in rig.turn(wait=1500)] == ["http://h.example/slow2"]


def test_a_rule_is_asked_for_robots_too() -> None:
    rule = LimitRule(id="r", domain="h.example", robots=False, delay=1.0)
    rig = Rig(crawl(limits=(rule,), robots=True, parallelism=9))
    orders = given(rig, seeds("http://h.example/a", "http://x.example/a"))
    assert {(order.host, order.kind) for order in orders} == {("h.example", "page"), ("x.example", "robots")}


def test_an_order_for_robots_carries_the_rule_of_its_url() -> None:
    rule = LimitRule(
        id="r", path="/robots.txt$", user_agent="r/1", timeout=3.0, accept=("text/html",), headers={"A": "b"}
    )
    rig = Rig(crawl(limits=(rule, LimitRule(id="h", domain="h.example", delay=2.0)), robots=True))
    (order,) = given(rig, seeds("http://h.example/a"))
    assert (order.kind, order.rule, order.user_agent, order.timeout) == ("robots", "r", "r/1", 3.0)
    assert (order.accept, order.headers, order.delay) == ((), {}, 2.0)


def test_crawl_delay_raises_what_a_rule_says_unless_it_ignores_robots() -> None:
    limits = (LimitRule(id="free", path="/free", robots=False, delay=0.2), LimitRule(id="r", delay=0.5))
    rig = Rig(crawl(limits=limits, robots=True))
    (order,) = given(rig, seeds("http://h.example/a", "http://h.example/free"))
    first = given(rig, rules(order, crawl_delay=4.0))
    found = {o.url: o.delay for o in [*first, *rig.sleep(), *rig.sleep()]}
    assert found == {"http://h.example/a": 4.0, "http://h.example/free": 0.2}


def test_of_several_crawls_with_open_urls_the_strictest_holds() -> None:
    strict = crawl("b", limits=(LimitRule(id="s", domain="h.example", delay=5.0, parallelism=1),))
    rig = Rig(crawl("a", delay=0.1, parallelism=4), strict)
    given(rig, links("http://h.example/b", name="b"))
    rig.turn(links(*pages(3), name="a"))
    (order,) = rig.turn(wait=4001)
    assert (order.crawl, order.delay, order.parallelism, order.rule) == ("a", 5.0, 1, "")


# --- time windows


def window(text: str, **about: Any) -> LimitRule:
    return LimitRule(id="night", windows=(text,), **about)


def test_a_host_is_left_alone_until_its_window_opens() -> None:
    rig = Rig(crawl(limits=(window("16:00-17:00", domain="h.example"),), robots=True))
    assert given(rig, seeds("http://h.example/a")) == []  # not even its robots.txt
    assert rig.shard.wake_at() == FOUR
    (order,) = rig.sleep()
    assert (rig.now, order.kind) == (FOUR, "robots")


def test_nothing_is_released_after_a_window_has_shut_and_it_costs_no_attempt() -> None:
    rig = Rig(crawl(limits=(window("13:00-13:47"),), parallelism=1))
    orders = given(rig, links(*pages(9)))
    assert orders
    rig.now = START + 20_000
    assert given(rig, *(answer(order) for order in orders[:-1])) == []
    assert given(rig, answer(orders[-1], "deferred")) == []
    assert rig.row(orders[-1].url).attempt == 0
    rig.load()  # the next owner keeps it, too
    assert rig.settle() == []
    assert rig.shard.wake_at() == START + 23 * HOUR + 13 * 60_000 + 20_000
    assert rig.sleep()


def test_another_crawl_waits_for_the_window_of_a_host_they_share_but_not_for_that_of_a_paused_one() -> None:
    rig = Rig(crawl("a", limits=(window("16:00-17:00"),)), crawl("b"))
    assert given(rig, links(*pages(1), name="a"), links(*pages(1), name="b")) == []
    rig.change("a", state="paused")
    assert [order.crawl for order in rig.turn(wait=1000)] == ["b"]


def test_a_window_of_a_path_sets_its_own_urls_aside() -> None:
    rig = Rig(crawl(limits=(window("16:00-17:00", path="/api"),)))
    (order,) = given(rig, seeds("http://h.example/api/1", "http://h.example/a"))
    assert order.url == "http://h.example/a"
    row = rig.row("http://h.example/api/1")
    assert (row.state, row.attempt, row.due) == (State.WAITING, 0, START + LONGEST_SHUT)
    assert rig.failures == []
    done(rig, order)
    found = rig.next_orders()
    assert ([o.url for o in found], found[0].attempt, rig.now) == (["http://h.example/api/1"], 0, FOUR)


# --- changes while a crawl runs


@pytest.mark.parametrize("changes", [{"delay": 0.5}, {"limits": (LimitRule(id="r", delay=0.5),)}])
def test_a_shorter_delay_counts_within_a_second(changes) -> None:
    rig = Rig(crawl(delay=100.0))
    orders = given(rig, links(*pages(9)))
    assert len(orders) == 1
    rig.change(**changes)
    rig.sleep(1000)
    assert rig.turn(wait=500)


def test_a_shorter_delay_lets_out_a_whole_window_at_once() -> None:
    rig = Rig(crawl(delay=5.0, parallelism=1))
    assert len(given(rig, links(*pages(40)))) == 1
    assert rig.turn(wait=300) == []
    rig.change(delay=0.1)
    assert len(given(rig)) >= 10


def test_an_order_that_came_too_early_is_not_due_again_before_the_gap_has_passed() -> None:
    """Nor is the row written: a rule may make the gap shorter, what a host asked for nobody may."""
    rig = Rig(crawl(delay=60.0, parallelism=1))
    (order,) = given(rig, links(*pages(3)))
    assert given(rig, answer(order, "deferred", reason="delay", gap=50.0)) == []
    assert rig.host("h.example").not_before == 0
    rig.sleep(58_000)
    assert rig.turn() == []
    assert len(given(rig)) == 0
    rig.change(delay=1.0)
    assert given(rig), "the gap that was told of is shorter now, too"


def test_what_a_host_asked_for_outlasts_a_shorter_delay() -> None:
    rig = Rig(crawl(delay=60.0, parallelism=1))
    (order,) = given(rig, links(*pages(3)))
    assert given(rig, answer(order, "deferred", reason="host", retry_after=50.0)) == []
    rig.change(delay=0.0)
    assert given(rig) == []
    assert rig.shard.wake_at() == START + 50_000


def test_what_is_said_of_a_gap_by_rules_of_before_is_asked_again_soon() -> None:
    rig = Rig(crawl(delay=60.0, parallelism=1))
    (order,) = given(rig, links(*pages(3)))
    rig.change(delay=0.5)
    given(rig)
    given(rig, answer(order, "deferred", reason="delay", gap=50.0))
    assert order.url in [again.url for again in rig.turn(wait=1500)]


def test_orders_say_what_their_limits_are_made_of() -> None:
    strict = crawl("b", delay=5.0, adaptive_delay=True, version=3)
    rig = Rig(crawl("a", delay=0.1, robots=True), strict)
    given(rig, links("http://h.example/b", name="b"))
    (robots,) = [*given(rig, links(*pages(3), name="a")), *rig.turn(wait=4001)]
    assert (robots.kind, robots.delay, robots.basis) == ("robots", 5.0, Basis(others={"a": 1, "b": 3}))
    given(rig, rules(robots, crawl_delay=7.0))
    order = rig.next_orders()[0]
    assert (order.kind, order.delay, order.basis) == ("page", 7.0, Basis(others={"b": 3}, crawl_delay=7.0))


def test_a_longer_delay_counts_from_the_next_order() -> None:
    rig = Rig(crawl(delay=0.1, parallelism=1))
    orders = given(rig, links(*pages(40)))
    rig.change(limits=(LimitRule(id="slow", delay=3.0),))
    assert done(rig, *orders) == []  # the next one may follow three seconds after the last
    rig.turn(wait=1500)
    (order,) = rig.turn(wait=1500)
    assert (order.delay, order.rule, order.rules) == (3.0, "slow", 2)


def test_a_window_that_is_taken_away_frees_its_hosts_within_a_second() -> None:
    rig = Rig(crawl(limits=(window("16:00-17:00"),)))
    assert given(rig, links(*pages(2))) == []
    rig.change(limits=())
    assert len(rig.turn(wait=1000)) == 2


def test_robots_is_asked_for_when_a_rule_that_ignored_it_is_gone() -> None:
    rig = Rig(crawl(limits=(LimitRule(id="r", robots=False),), robots=True, parallelism=1, delay=5.0))
    (order,) = given(rig, links(*pages(3)))
    rig.change(limits=())
    done(rig, order)
    (order,) = rig.next_orders()
    assert order.kind == "robots"


def test_a_rule_that_cannot_be_read_matches_nothing() -> None:
    rig = Rig(crawl(delay=0.3, limits=(LimitRule(id="bad", regex="(", delay=9.0),)))
    order = given(rig, links(*pages(1)))[0]
    assert (order.delay, order.rule) == (0.3, "")
