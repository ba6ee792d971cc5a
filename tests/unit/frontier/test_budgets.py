"""Pages and bytes: what a crawl may spend in all, and on each host."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from streams import messages as m
from streams.frontier.rows import State, decode_url_row
from tests.unit.frontier.rig import (
    HOUR,
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

A, B = "http://a.example", "http://b.example"


def finish(rig: Rig, orders: list[m.FetchOrder], size: int = 100, limit: int = 200) -> list[str]:
    """Every order is answered with a page of `size` bytes, one at a time; the URLs that were asked for."""
    asked: list[str] = []
    queue = list(orders)
    while queue and len(asked) < limit:
        order = queue.pop(0)
        asked.append(order.url)
        queue += given(rig, answer(order, size=size), parsed(order))
    return asked


def spent(rig: Rig) -> dict[str, tuple[int, int]]:
    """Pages and bytes of crawl `c` by host, from the rows of its URLs."""
    sums: Counter[tuple[str, int]] = Counter()
    for key, value in rig.store.rows.items():
        if key[:1] == b"u" and (row := decode_url_row(value)).crawl == "c":
            sums[row.host, 0] += row.counted
            sums[row.host, 1] += row.size
    return {host: (sums[host, 0], sums[host, 1]) for host in {host for host, _ in sums} if sums[host, 0]}


def books(rig: Rig, *hosts: str) -> None:
    """What the host rows say is what the URL rows say."""
    assert {host: rig.host(host).spent.get("c", (0, 0)) for host in hosts} == {
        host: spent(rig).get(host, (0, 0)) for host in hosts
    }


def test_a_crawl_ends_when_its_bytes_are_spent() -> None:
    rig = Rig(crawl(max_size=250, parallelism=1))
    asked = finish(rig, given(rig, links(*pages(40))))
    counts = rig.shard.progress(0).crawls["c"]
    assert (len(asked), counts.size, counts.exclusions) == (counts.done, 100 * len(asked), {"size": 40 - len(asked)})
    assert 3 <= len(asked) <= 6  # what was out already


def test_a_crawl_ends_when_its_time_is_over() -> None:
    rig = Rig(crawl(duration=3600.0, created=0, delay=60.0, parallelism=1))
    rig.change(created=rig.now)
    rig.turn(links(*pages(40)))
    (order,) = rig.settle()
    rig.turn(answer(order), wait=HOUR - 1)
    assert rig.shard.progress(0).crawls["c"].exclusions == {}
    rig.sleep()
    assert rig.now == START + HOUR
    assert rig.shard.progress(0).crawls["c"].exclusions == {"deadline": 38}  # one is out


@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("parallelism", [1, 8])
def test_no_host_gives_more_pages_than_its_budget(limit: int, parallelism: int) -> None:
    rig = Rig(crawl(host_limit=limit, parallelism=parallelism))
    asked = finish(rig, given(rig, links(*pages(20, A), *pages(20, B))))
    assert Counter(url[: len(A)] for url in asked) == Counter({A: limit, B: limit} if limit else {})
    counts = rig.shard.progress(0).crawls["c"]
    assert counts.exclusions == {"limit:host": 40 - 2 * limit}
    assert (counts.open, rig.shard._release.queues.held) == (0, {})
    books(rig, "a.example", "b.example")


def test_what_fails_leaves_its_page_to_others() -> None:
    rig = Rig(crawl(host_limit=2, attempts=1))
    orders = given(rig, links(*pages(9, A)))
    assert len(orders) == 2
    assert rig.shard.wake_at() > rig.now + 1000  # for the answers, not in between
    (third,) = given(rig, failed(orders[0], "http_status", status=404))
    assert given(rig, answer(third), parsed(third)) == []
    assert given(rig, answer(orders[1]), parsed(orders[1])) == []
    assert rig.shard.progress(0).crawls["c"].exclusions == {"limit:host": 6}


def test_what_is_given_back_leaves_its_page_to_others() -> None:
    rig = Rig(crawl(host_limit=1))
    (order,) = given(rig, links(*pages(3, A)))
    (again,) = given(rig, answer(order, "deferred"))
    assert again.url == order.url
    assert finish(rig, [again]) == [order.url]


def test_bytes_of_a_host() -> None:
    rig = Rig(crawl(host_size=250, parallelism=1))
    asked = finish(rig, given(rig, links(*pages(30, A), *pages(2, B))))
    assert {f"{B}/0", f"{B}/1"} <= set(asked)
    assert rig.shard.progress(0).crawls["c"].exclusions == {"size:host": 32 - len(asked)}
    assert len(asked) <= 2 + 3 + 4  # what was out already
    books(rig, "a.example", "b.example")


def test_other_crawls_have_their_own() -> None:
    rig = Rig(crawl(host_limit=1), crawl("free"))
    orders = given(rig, links(*pages(3, A)), links(*pages(3, A), name="free"))
    asked = [order.crawl for order in orders]
    while orders:
        order = orders.pop()
        orders += (more := given(rig, answer(order), parsed(order)))
        asked += [order.crawl for order in more]
    assert Counter(asked) == {"c": 1, "free": 3}
    assert rig.host("a.example").spent == {"c": (1, 0)}


def test_a_host_that_must_not_be_asked_does_not_keep_its_urls_waiting() -> None:
    rig = Rig(crawl(host_limit=1, parallelism=1))
    (order,) = given(rig, links(*pages(3, A)))
    given(rig, answer(order, retry_after=7 * 24 * 3600.0))
    assert rig.shard.progress(0).crawls["c"].exclusions == {"limit:host": 2}


def test_what_comes_later_is_excluded_at_once() -> None:
    rig = Rig(crawl(host_limit=1))
    finish(rig, given(rig, links(f"{A}/0")))
    rig.load()
    assert given(rig, links(*pages(3, A)), seeds(seed(f"{A}/seed"))) == []
    assert rig.shard.progress(0).crawls["c"].exclusions == {"limit:host": 3}


def test_a_budget_that_comes_later_counts_from_then_on() -> None:
    rig = Rig(crawl(parallelism=1, state="paused"))
    rig.turn(links(*pages(6, A)))
    rig.change(state="open", host_limit=2)
    rig.now += 1000
    assert len(finish(rig, rig.settle())) == 2


def test_an_order_that_is_answered_after_its_owner_died_may_exceed_a_budget() -> None:
    """A late success wins over the failure of the order that the new owner sent: the page is there, and counts."""
    rig = Rig(crawl(host_limit=1, attempts=1))
    (order,) = given(rig, links(*pages(3, A)))
    assert rig.shard.unanswered() == 1
    rig.load()
    (again,) = [*rig.turn(), *rig.settle()]
    assert (again.url, again.attempt) == (order.url, order.attempt)
    (other,) = given(rig, failed(again, "http_status", status=404))
    given(rig, answer(other), parsed(other))
    given(rig, answer(order), parsed(order))
    assert (rig.state(order.url), rig.state(other.url)) == (State.DONE, State.DONE)
    assert spent(rig)["a.example"][0] == 1 + 1
    books(rig, "a.example")


@pytest.mark.parametrize("dies", [0.0, 0.1], ids=["one owner", "many owners"])
@pytest.mark.parametrize("random", [Random(n) for n in range(8)], ids=range(8))
def test_nothing_is_counted_twice_whatever_is_read_again(random: Random, dies: float) -> None:
    """What exceeds the budget was out, unanswered, when an owner died. With one owner nothing does."""
    rig = Rig(crawl(host_limit=6, attempts=2, parallelism=4), answer_timeout=1e9)
    unanswered = 0
    told: list[m.Outcomes] = []
    orders = given(rig, links(*pages(30, A), *pages(10, B)))
    for _ in range(120):
        if orders:
            order = orders.pop(random.randrange(len(orders)))
            fields: dict[str, Any] = {"size": random.randrange(1000)}
            page, unreadable = answer(order, **fields), parsed(order, failure="parser")
            told += random.choice([[page, parsed(order)], [parsed(order), page], [failed(order)], [unreadable, page]])
        if told:
            orders += given(rig, *random.choices(told[-9:], k=3))
        if random.random() < dies:
            unanswered += rig.hosts["a.example"].out.get("c", 0) if "a.example" in rig.hosts else 0
            rig.load()
            orders = []
        orders += rig.turn(wait=random.choice([0, 10_000]))
        books(rig, "a.example", "b.example")
    assert set(rig.shard.progress(0).crawls["c"].exclusions) <= {"limit:host"}
    assert spent(rig)["a.example"][0] <= 6 + unanswered


def test_orders_are_those_of_the_queue() -> None:
    rig = Rig(crawl(host_limit=2))
    assert urls_of(given(rig, links(*pages(9, A)))) == pages(2, A)
    assert rig.state(f"{A}/5") is State.WAITING
