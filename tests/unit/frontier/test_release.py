"""Release just in time: order, windows, caps, limits of crawls, several crawls on one host."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from streams.frontier.release import BURST
from streams.frontier.rows import State
from tests.unit.frontier.rig import (
    HOUR,
    START,
    Rig,
    answer,
    crawl,
    done,
    failed,
    given,
    links,
    pages,
    parsed,
    rules,
    seed,
    seeds,
    urls_of,
)

# --- order and windows


def test_urgent_urls_first_then_in_order_of_arrival() -> None:
    rig = Rig(crawl(parallelism=16))
    rig.turn(seeds("http://h.example/a", "http://h.example/b", seed("http://h.example/c", priority=9)))
    assert urls_of(rig.settle()) == [f"http://h.example/{x}" for x in "cab"]


def test_a_host_with_delay_gets_what_is_under_way_and_a_second_ahead() -> None:
    rig = Rig(crawl(delay=0.4, parallelism=1))
    orders = given(rig, links(*pages(9)))
    assert len(orders) == 3  # at 0, 0.4 and 0.8 s
    assert len(rig.turn(wait=5000)) == 1
    assert rig.turn(wait=5000) == []  # its window of one connection and three ahead is full
    assert len(done(rig, orders[0])) == 1


def test_a_host_without_delay_gets_four_orders_for_each_connection() -> None:
    rig = Rig(crawl(parallelism=3))
    orders = given(rig, links(*pages(40)))
    assert len(orders) == 12
    assert len(done(rig, *orders[:5])) == 5


def test_hosts_take_turns() -> None:
    rig = Rig(crawl(parallelism=100))
    orders = given(rig, links(*pages(3 * BURST), *pages(3 * BURST, "http://x.example")))
    hosts = [order.host for order in orders]
    assert hosts[: 2 * BURST] == ["h.example"] * BURST + ["x.example"] * BURST
    assert len(orders) == 6 * BURST


def test_no_more_is_out_than_the_cap_and_the_shard_sleeps() -> None:
    rig = Rig(crawl(parallelism=100), release_floor=5)
    orders = given(rig, links(*pages(3), *pages(9, "http://x.example")))
    assert len(orders) == 5
    assert rig.shard.unanswered() == 5
    assert rig.shard.wake_at() == START + 600_001  # when the first is overdue
    assert len(done(rig, orders[0])) == 1


def test_nothing_is_released_while_too_many_pages_wait_for_the_parser() -> None:
    rig = Rig(crawl(parallelism=100), unparsed_limit=3)
    orders = given(rig, links(*pages(9)))
    assert len(orders) == 3
    assert given(rig, *(answer(order) for order in orders)) == []
    rig.load()
    assert rig.turn() == []  # nor by the next owner: they are counted from rows
    assert len(given(rig, parsed(orders[0]), parsed(orders[1]))) == 2


def test_unanswered_orders_go_out_again() -> None:
    rig = Rig(crawl(), answer_timeout=60.0)
    orders = given(rig, links(*pages(3)))
    again = rig.sleep()
    assert (rig.now, urls_of(again)) == (START + 60_001, urls_of(orders))
    assert [(o.visit, o.attempt) for o in again] == [(1, 0)] * 3
    assert given(rig, answer(orders[0]), answer(again[0])) == []  # guards make the second answer harmless
    assert rig.shard.unanswered() == 2


def test_a_restart_releases_again_what_was_out() -> None:
    rig = Rig()
    orders = given(rig, links(*pages(3)))
    rig.turn(answer(orders[0]))
    rig.load()
    assert urls_of(rig.turn()) == urls_of(orders[1:])


# --- politeness


def test_retry_after_outlives_a_restart() -> None:
    """restart-after-429."""
    rig = Rig()
    order, *_ = given(rig, links(*pages(30)))
    rig.turn(failed(order, "http_status", status=429, retry_after=3600.0))
    rig.load()
    assert rig.sleep() != []
    assert rig.now == START + HOUR  # not a moment earlier: the fetcher may be another one by now


def test_five_failures_open_the_breaker_and_one_probe_goes_at_a_time() -> None:
    rig = Rig(crawl(parallelism=2, attempts=9))
    orders = given(rig, links(*pages(30)))
    assert given(rig, *(failed(order, "connection") for order in orders[:5])) == []
    assert rig.shard.census(rig.now).broken == 1
    rig.turn(*(failed(order, "connection") for order in orders[5:]))
    (probe,) = rig.next_orders()
    assert rig.now == START + 60_000
    assert given(rig, failed(probe, "connection")) == []
    (probe,) = rig.next_orders()
    assert rig.now == START + 60_000 + 120_000
    assert len(given(rig, answer(probe))) > 1  # a success closes it: work goes on at once


def test_a_success_opens_a_closed_host_before_its_time() -> None:
    rig = Rig(crawl(parallelism=4, attempts=9))
    orders = given(rig, links(*pages(30)))
    rig.turn(*(failed(order, "connection") for order in orders[:5]))
    assert rig.settle() == []
    assert given(rig, *(answer(order) for order in orders[5:])) != []


def test_a_replayed_failure_does_not_feed_the_breaker() -> None:
    rig = Rig(crawl(attempts=9))
    order, *_ = given(rig, links(*pages(30)))
    rig.turn(*[failed(order, "connection")] * 6)
    assert len(rig.host("h.example").breaker.failures) == 1


def test_a_replayed_success_does_not_close_it() -> None:
    rig = Rig(crawl(attempts=9, parallelism=4))
    first, *orders = given(rig, links(*pages(30)))
    rig.turn(answer(first))
    rig.turn(*(failed(order, "connection") for order in orders[:5]), answer(first))
    assert rig.host("h.example").breaker.since


def test_eight_failed_probes_end_the_hosts_urls() -> None:
    """dead-hosts."""
    rig = Rig(crawl(attempts=2))
    orders = given(rig, links(*pages(400)))
    for _ in range(200):
        if not rig.shard.tallies["c"].open:
            break
        for order in orders:
            rig.turn(failed(order, "dns"))
        orders = rig.settle()
        if not orders and rig.shard.tallies["c"].open:
            orders = rig.sleep()
    outcomes = Counter(rig.row(url).outcome for url in pages(400))
    assert set(outcomes) == {"dns", "host_unreachable"}
    assert outcomes["dns"] <= 20
    (failure, *_) = [f for f in rig.failures if f.failure == "host_unreachable"]
    assert failure.evidence == {"probes": 8}
    assert rig.now < START + 6 * HOUR


def test_a_given_up_host_of_a_paused_crawl_costs_no_busy_loop() -> None:
    rig = Rig(crawl(attempts=1, parallelism=4))
    orders = given(rig, links(*pages(40)))
    rig.turn(*(failed(order, "dns") for order in orders))
    for _ in range(8):
        (probe,) = rig.sleep()
        rig.change(state="paused")
        rig.turn(failed(probe, "dns"))
        rig.settle()
        rig.change(state="open")
    rig.change(state="paused")
    rig.turn(links("http://h.example/new"))
    rig.settle()


def test_a_deferred_order_costs_nothing() -> None:
    rig = Rig(crawl(delay=1.0, parallelism=1))
    order, *_ = given(rig, links(*pages(3)))
    rig.turn(answer(order, "deferred", retry_after=9.0))
    assert (rig.state(order.url), rig.row(order.url).attempt) == (State.WAITING, 0)
    again = rig.next_orders()
    assert (rig.now, urls_of(again)[0], again[0].attempt) == (START + 9000, order.url, 0)


def test_the_strictest_of_several_crawls_holds() -> None:
    """two-crawls."""
    rig = Rig(crawl("a", delay=0.0, parallelism=8), crawl("b", delay=5.0, parallelism=1))
    orders = given(rig, links(*pages(3), name="a"), links(*pages(3, first=50), name="b"))
    while len(orders) < 6:
        orders += done(rig, orders[-1])
        if len(orders) < 6:
            orders += rig.sleep()
    assert Counter(order.crawl for order in orders) == {"a": 3, "b": 3}
    assert [order.crawl for order in orders[:4]] in (["a", "b"] * 2, ["b", "a"] * 2)  # shares are fair
    strict = orders[: max(i for i, order in enumerate(orders) if order.crawl == "b") + 1]
    assert {(order.delay, order.parallelism) for order in strict} == {(5.0, 1)}
    gaps = [b.released - a.released for a, b in itertools.pairwise(strict)]
    assert min(gaps) >= 4000


def test_a_crawl_whose_last_order_is_out_still_counts() -> None:
    rig = Rig(crawl("a", parallelism=8), crawl("b", delay=5.0, parallelism=1))
    (last,) = given(rig, links("http://h.example/b", name="b"))
    orders = given(rig, links(*pages(3), name="a"))
    assert orders == []
    (order,) = rig.sleep()
    assert (order.delay, order.parallelism) == (5.0, 1)
    done(rig, last, order)
    (order, *_) = rig.sleep()
    assert (order.delay, order.parallelism) == (0.0, 8)


@pytest.mark.parametrize("change", [{"delay": 7.0}, {"parallelism": 1}])
def test_newer_limits_hold_for_the_next_order(change) -> None:
    """late-rules."""
    rig = Rig(crawl(delay=0.3, parallelism=2))
    first, *_ = given(rig, links(*pages(20)))
    rig.change(**change)
    done(rig, first)
    orders = rig.sleep()
    while not orders:
        orders = rig.sleep(1000)
    assert {"delay": 0.3, "parallelism": 2, **change} == {
        "delay": orders[-1].delay, "parallelism": orders[-1].parallelism}  # fmt: skip


# --- memory


def test_finished_hosts_are_forgotten() -> None:
    """10,000 hosts one after the other; each is remembered until its delay has passed."""
    rig = Rig(crawl(delay=1.0))
    for batch in range(100):
        found = [f"http://h{batch}-{i}.example/" for i in range(100)]
        for order in given(rig, links(*found)):
            rig.turn(answer(order), parsed(order))
        rig.turn(wait=1001)
        rig.settle()
        assert len(rig.hosts) < 100
    assert rig.shard.tallies["c"].states[State.DONE] == 10_000
    assert rig.shard.wake_at() == float("inf")


def test_a_host_is_not_forgotten_before_its_delay_has_passed() -> None:
    rig = Rig(crawl(delay=3.0))
    (order,) = given(rig, links("http://h.example/1"))
    done(rig, order)
    assert given(rig, links("http://h.example/2")) == []
    assert urls_of(rig.sleep()) == ["http://h.example/2"]
    assert rig.now == START + 2000  # a second ahead of its turn


def test_a_late_answer_leaves_no_host_behind() -> None:
    rig = Rig()
    (order,) = given(rig, links("http://h.example/1"))
    rig.turn(answer(order), parsed(order))
    rig.turn(wait=5000)
    assert rig.hosts == {}
    rig.turn(failed(order, "http_status", status=429, retry_after=60.0))
    rig.settle()
    assert rig.hosts == {}
    assert rig.host("h.example").not_before == rig.now + 60_000


def test_what_was_learnt_in_a_turn_survives_forgetting_in_it() -> None:
    """The host is forgotten and met again in the turn that changes its row."""
    rig = Rig(crawl(robots=True))
    (robots,) = given(rig, links("http://h.example/1"))
    (order,) = given(rig, rules(robots))
    rig.turn(wait=2000)
    rig.turn(answer(order, retry_after=60.0), parsed(order), links("http://h.example/2"))
    assert rig.host("h.example").not_before == START + 62_000
    assert rig.host("h.example").robots
    assert urls_of(rig.sleep()) == ["http://h.example/2"]
    assert rig.now == START + 62_000


def test_the_census_counts_hosts() -> None:
    rig = Rig(crawl(), crawl("p", state="paused"), release_floor=3)
    rig.turn(links(*[f"http://h{i}.example/" for i in range(5)]), links("http://p.example/", name="p"))
    rig.settle()
    census = rig.shard.census(rig.now + 70)  # one that is out may not be all there is
    assert (census.known, census.runnable, census.broken, census.late) == (6, 2 + 1, 0, 70)


def test_hosts_are_counted_by_crawl() -> None:
    rig = Rig(crawl("a"), crawl("b", state="paused"))
    orders = given(rig, links(*pages(9), "http://x.example/", name="a"), links(*pages(2), name="b"))
    counts = rig.shard.progress(0).crawls
    assert (counts["a"].hosts, counts["b"].hosts) == (1, 1)
    for _ in range(3):
        orders = done(rig, *orders)
    assert rig.shard.progress(0).crawls["a"].hosts == 0


# --- clocks


def test_a_clock_that_is_set_back_blocks_nothing() -> None:
    """clock-skew."""
    rig = Rig(crawl(delay=2.0, attempts=9))
    orders = given(rig, links(*pages(9)))
    rig.turn(failed(orders[0], "timeout"))
    rig.turn(wait=-HOUR)
    at = rig.now
    for _ in range(6):
        rig.settle()
        for order in rig.sleep():
            rig.turn(answer(order), parsed(order))
    assert rig.now < at + 30_000
    rig.now += HOUR
    rig.settle()
    assert given(rig) == []


def test_what_a_host_asks_for_as_the_clock_is_set_back_counts_from_the_new_time() -> None:
    """hold-after-jump: the turn that notices the jump is the one that is told to wait.

    Another URL waits for the host: without one it would leave memory, and its row is right in either case.
    """
    rig = Rig(crawl(delay=60.0, attempts=9))
    (order,) = given(rig, links(*pages(2)))
    rig.turn(failed(order, status=503, retry_after=600.0), wait=-HOUR)
    assert rig.hosts["h.example"].row.not_before == rig.now + 600_000
    assert [*rig.turn(wait=599_000), *rig.settle()] == []
    assert len([*rig.turn(wait=2_000), *rig.settle()]) == 1


def test_orders_that_are_out_keep_their_age_over_a_clock_that_is_set_back() -> None:
    rig = Rig(crawl(), answer_timeout=60.0)
    given(rig, links(*pages(1)))
    rig.turn(wait=30_000)
    rig.turn(wait=-HOUR)
    at = rig.now
    assert len(rig.sleep()) == 1
    assert rig.now == at + 30_001


def test_a_small_step_back_changes_nothing() -> None:
    rig = Rig(crawl(delay=5.0))
    given(rig, links(*pages(3)))
    rig.turn(wait=-900)
    assert rig.hosts["h.example"].next_at == START + 5000
