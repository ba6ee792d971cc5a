"""What answers do to their host, and that a new owner knows it."""

from __future__ import annotations

from typing import Any

import pytest

from streams import messages as m
from streams.policy.retry import NO_SUCH_NAME
from tests.unit.frontier.rig import START, Rig, answer, crawl, failed, given, links, pages, parsed, rules, urls_of


def started(number: int = 1, **definition: Any) -> tuple[Rig, list[m.FetchOrder]]:
    """A shard with many URLs of a host, some of them out."""
    rig = Rig(crawl(**{"attempts": 9, "parallelism": number, **definition}))
    return rig, given(rig, links(*pages(400)))


def given_back(*orders: m.FetchOrder) -> list[m.Inbox]:
    return [answer(order, "deferred") for order in orders]


def next_gap(rig: Rig) -> int:
    """Ms until the host is asked again."""
    at = rig.now
    rig.next_orders()
    return rig.now - at


# --- hosts that are overloaded and do not say for how long


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize(("failures", "pause"), [(1, 1000), (2, 2000), (3, 4000), (4, 8000), (5, 60_000)])
@pytest.mark.parametrize(("failure", "status"), [("http_status", 429), ("http_status", 503), ("timeout", 0)])
def test_an_overloaded_host_has_a_rest(
    failure: m.FailureClass, status: int, failures: int, pause: int, reload: bool
) -> None:
    """The URLs that wait do not find it any sooner than the one that failed."""
    rig, orders = started(8)
    given(rig, *(failed(order, failure, status=status) for order in orders[:failures]), *given_back(*orders[failures:]))
    if reload:
        rig.load()
    assert next_gap(rig) == pause


def test_what_the_host_asks_for_is_what_it_gets() -> None:
    rig, orders = started(8)
    given(rig, failed(orders[0], "http_status", status=503, retry_after=0.5))
    assert next_gap(rig) == 500


@pytest.mark.parametrize(
    ("failure", "status"), [("http_status", 500), ("http_status", 404), ("connection", 0), ("dns", 0)]
)
def test_others_go_on(failure: m.FailureClass, status: int) -> None:
    rig, orders = started(8)
    assert given(rig, failed(orders[0], failure, status=status)) != []


def test_a_success_between_makes_the_rests_short_again() -> None:
    rig, orders = started(8)
    given(rig, *(failed(order, "timeout") for order in orders[:3]))
    given(rig, answer(orders[3]))
    given(rig, failed(orders[4], "timeout"))
    assert rig.host("h.example").breaker.failures == (START,)
    assert rig.host("h.example").not_before == START + 4000  # what was begun is kept


@pytest.mark.parametrize(("evidence", "hold"), [({"dns": NO_SUCH_NAME}, 2000), ({"dns": "no answer"}, 60_000)])
def test_a_host_without_a_name_is_waited_for_less(evidence: dict[str, str], hold: int) -> None:
    rig, orders = started(8)
    given(rig, *(failed(order, "dns", evidence=evidence) for order in orders[:5]), *given_back(*orders[5:]))
    assert next_gap(rig) == hold


def test_urls_of_a_name_that_does_not_exist_end_within_nine_minutes() -> None:
    """dead-hosts, without robots.txt: 400 URLs, each ends with its class."""
    rig, orders = started(2, attempts=5)
    for _ in range(200):
        if not rig.shard.tallies["c"].open:
            break
        given(rig, *(failed(order, "dns", evidence={"dns": NO_SUCH_NAME}) for order in orders))
        orders = rig.settle() or (rig.sleep() if rig.shard.tallies["c"].open else [])
    assert rig.shard.tallies["c"].failures["host_unreachable"] > 390
    assert rig.now - START <= 9 * 60_000


# --- robots.txt


def test_retry_after_of_a_robots_txt_is_the_hosts() -> None:
    """It holds its other origins, too, also after a restart."""
    rig = Rig(crawl(robots=True))
    (order,) = given(rig, links("http://h.example/"))
    given(rig, failed(order, "http_status", status=429, retry_after=100.0))
    rig.load()
    given(rig, links("https://h.example/"))
    rig.next_orders()
    assert rig.now == START + 100_000


def test_a_robots_txt_is_a_probe_of_an_open_breaker() -> None:
    rig = Rig(crawl(robots=True, parallelism=8, attempts=9))
    (robots,) = given(rig, links(*pages(60)))
    orders = given(rig, rules(robots, expires=START + 30_000))
    given(rig, *(failed(order, "connection") for order in orders[:5]), *given_back(*orders[5:]))
    (probe,) = rig.next_orders()
    assert (probe.kind, rig.now) == ("robots", START + 60_000)
    given(rig, failed(probe, "connection"))
    assert rig.host("h.example").breaker.until == rig.now + 120_000
    (probe,) = rig.next_orders()
    assert (probe.kind, rig.now) == ("robots", START + 180_000)
    given(rig, rules(probe))
    assert not rig.host("h.example").breaker.since


def test_failures_of_a_robots_txt_have_a_budget_of_their_own() -> None:
    rig = Rig(crawl(robots=True))
    given(rig, links(*pages(3)))
    for _ in range(6):
        (order,) = rig.next_orders() if rig.now > START else [_robots(rig)]
        given(rig, failed(order, "connection"))
    assert rig.host("h.example").breaker.failures == ()


def _robots(rig: Rig) -> m.FetchOrder:
    rig.load()
    (order,) = rig.sleep()
    return order


# --- the learned delay


def slow(order: m.FetchOrder, elapsed: float) -> list[m.Inbox]:
    return [answer(order, elapsed=elapsed), parsed(order)]


def test_a_slow_host_is_asked_less_often_also_by_a_new_owner() -> None:
    rig, orders = started(1, adaptive_delay=True, delay=0.5)
    for _ in range(6):
        for order in orders:
            given(rig, *slow(order, 8.0))
        orders = rig.next_orders()
    learned = rig.hosts["h.example"].learned
    assert 7.5 < learned < 8.0
    assert orders[-1].delay == pytest.approx(learned)
    rig.load()
    (order, *_) = rig.next_orders()
    assert learned * 0.75 < order.delay == rig.host("h.example").delay < 8.0


def test_an_overload_doubles_it() -> None:
    rig, orders = started(8, adaptive_delay=True, delay=0.5)
    given(rig, failed(orders[0], "http_status", status=503))
    assert rig.host("h.example").delay == 1.0
    given(rig, failed(orders[1], "timeout"))
    assert rig.host("h.example").delay == 2.0


def test_without_the_option_nothing_is_learned() -> None:
    rig, orders = started(8)
    given(rig, failed(orders[0], "timeout"), *slow(orders[1], 9.0))
    assert rig.host("h.example").delay == 0.0
    assert rig.hosts["h.example"].learned == 0.0


def test_what_says_nothing_about_the_hosts_speed_teaches_nothing() -> None:
    """Errors and redirects are quick on the slowest host."""
    rig, orders = started(8, adaptive_delay=True)
    given(rig, *slow(orders[0], 4.0))
    before = rig.hosts["h.example"].learned
    given(rig, failed(orders[1], "http_status", status=404, elapsed=0.001),
          answer(orders[2], "redirected", location="http://h.example/x", status=301, elapsed=0.001),
          failed(orders[3], "connection", elapsed=0.001))  # fmt: skip
    assert rig.hosts["h.example"].learned == before == 2.0


def test_a_host_row_is_not_written_with_every_page() -> None:
    rig, orders = started(1, adaptive_delay=True, delay=0.5)
    writes = 0
    before = rig.host("h.example")
    for number in range(40):
        given(rig, *(message for order in orders for message in slow(order, 1.0 + 0.1 * (number % 3))))
        orders = rig.next_orders()
        writes += rig.host("h.example") != before
        before = rig.host("h.example")
    assert 1 <= writes <= 5


def test_a_crawl_without_the_option_does_not_wait_longer_alone() -> None:
    rig = Rig(crawl("a", adaptive_delay=True, delay=0.5), crawl("b", delay=0.5))
    (order, *_) = given(rig, links("http://h.example/1", name="a"))
    given(rig, *slow(order, 20.0), links(*pages(9), name="b"))
    (order, *_) = rig.next_orders()
    assert (order.crawl, order.delay) == ("b", 0.5)


def test_urls_of_both_obey_it() -> None:
    rig = Rig(crawl("a", adaptive_delay=True, delay=0.5), crawl("b", delay=0.5))
    (order, *_) = given(rig, links(*pages(9), name="a"))
    given(rig, *slow(order, 20.0), links(*pages(9), name="b"))
    orders = [*rig.next_orders(), *rig.next_orders()]
    assert {order.crawl for order in orders} == {"a", "b"}
    assert {order.delay for order in orders} == {10.25}


def test_orders_keep_the_learned_gap() -> None:
    rig, orders = started(1, adaptive_delay=True, delay=0.0)
    given(rig, *slow(orders[0], 10.0), *(answer(order, "deferred") for order in orders[1:]))
    first = rig.next_orders()
    assert urls_of(first) != []
    assert next_gap(rig) == 5000
