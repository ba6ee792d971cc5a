"""Fair shares: of a host among its crawls, and of a shard's orders among all crawls."""

from __future__ import annotations

from collections import Counter

import pytest

from streams import messages as m
from streams.frontier.hosts import Agenda, CrawlQueue, HostQueue
from streams.frontier.rows import HostRow
from tests.unit.frontier.rig import Rig, answer, crawl, done, given, links, pages, parsed, seed, seeds


def run(rig: Rig, orders: list[m.FetchOrder], until: int) -> list[m.FetchOrder]:
    """Answer what is out, in order, until so many orders of the crawl `small` have left; all orders."""
    out, every = list(orders), list(orders)
    while sum(order.crawl == "small" for order in every) < until:
        assert len(every) < 5000, "the small crawl starves"
        new = done(rig, out.pop(0)) if out else rig.next_orders()
        out += new
        every += new
    return every


def big_on_one_host(rig: Rig, number: int) -> list[m.FetchOrder]:
    orders: list[m.FetchOrder] = []
    for first in range(0, number, 2000):
        orders += rig.turn(links(*pages(2000, first=first), name="big"))
    return orders + rig.settle()


@pytest.mark.parametrize(
    ("number", "delay", "big", "small"),
    [(100_000, 0.0, 5, 5), (4000, 0.0, 9, 0), (4000, 0.0, 0, 9), (4000, 1.0, 9, 0), (4000, 1.0, 0, 9)],
)
def test_a_host_serves_crawls_in_turn_however_much_they_want(number: int, delay: float, big: int, small: int) -> None:
    """100,000 URLs against 10 that came later: a priority orders the URLs of one crawl, it buys no share of a host."""
    rig = Rig(crawl("big", delay=delay, parallelism=1), crawl("small", delay=delay, parallelism=1))
    orders = big_on_one_host(rig, number)
    urgent = [seed(url, "big", priority=big) for url in pages(20, first=200_000)]
    late = [seed(url, "small", priority=small) for url in pages(10, first=300_000)]
    before = len(orders)
    orders += given(rig, seeds(*urgent), seeds(*late))
    every = run(rig, orders, until=10)
    assert Counter(order.crawl for order in every[before:])["big"] <= 10 + 1
    assert rig.shard.tallies["small"].released + rig.shard.tallies["small"].pages == 10


def test_three_crawls_get_a_third_each() -> None:
    rig = Rig(*(crawl(name, delay=2.0, parallelism=1) for name in ("a", "b", "c")))
    for number, name in ((500, "a"), (200, "b"), (40, "c")):
        given(rig, links(*pages(number), name=name))
    orders: list[m.FetchOrder] = []
    while len(orders) < 90:
        new = rig.next_orders()
        done(rig, *new)
        orders += new
    shares = Counter(order.crawl for order in orders[3:])
    assert max(shares.values()) - min(shares.values()) <= 1


def test_a_crawl_that_gets_one_url_at_a_time_has_its_turn_with_each() -> None:
    """A chain of links: when its next URL comes, it waits for one of the others, not for all."""
    rig = Rig(crawl("big", parallelism=1), crawl("small", parallelism=1))
    orders = given(rig, links(*pages(1000), name="big"), links("http://h.example/chain0", name="small"))
    seen: list[str] = []
    out = list(orders)
    for step in range(1, 200):
        order = out.pop(0)
        seen.append(order.crawl)
        messages: list[m.Inbox] = [answer(order), parsed(order)]
        if order.crawl == "small":
            messages.insert(1, links(f"http://h.example/chain{step}", name="small"))
        out += given(rig, *messages)
    # Four orders are out on a host without delay, and a link is released in the turn after the one that took it in.
    assert seen.count("small") >= 200 / 6 - 1


@pytest.mark.parametrize("delay", [0.0, 5.0])
def test_a_crawl_on_many_hosts_leaves_the_others_their_share_of_the_orders(delay: float) -> None:
    """3,000 hosts wait for eight orders; a host of the other crawl comes after them all."""
    rig = Rig(crawl("big", delay=delay), crawl("small", delay=0.0), release_floor=8, release_seconds=0.0)
    found = [f"http://h{i}.example/{page}" for i in range(3000) for page in range(2)]
    orders: list[m.FetchOrder] = []
    for first in range(0, len(found), 2000):
        orders += rig.turn(links(*found[first : first + 2000], name="big"))
    orders += given(rig, links(*pages(10, "http://small.example"), name="small"))
    assert {order.crawl for order in orders} == {"big"}
    every = run(rig, orders, until=10)
    assert Counter(order.crawl for order in every)["big"] <= 8 + 10 + 8


def test_many_crawls_on_many_hosts_each_get_their_share() -> None:
    names = [f"c{i}" for i in range(5)]
    rig = Rig(*(crawl(name) for name in names), release_floor=10, release_seconds=0.0)
    out: list[m.FetchOrder] = []
    for number, name in enumerate(names):
        out += given(rig, links(*[f"http://{name}-{i}.example/" for i in range(100 * (number + 1))], name=name))
    every: list[m.FetchOrder] = []
    while len(every) < 400:
        every.append(out.pop(0))
        out += done(rig, every[-1])
    shares = Counter(order.crawl for order in every[10:])
    assert max(shares.values()) - min(shares.values()) <= 4


def host(crawl: str) -> HostQueue:
    return HostQueue("h", HostRow(), crawls={crawl: CrawlQueue(b"")})


def test_the_agenda_lets_crawls_take_turns() -> None:
    agenda = Agenda()
    a1, a2, a3, b1, b2, none = host("a"), host("a"), host("a"), host("b"), host("b"), HostQueue("h", HostRow())
    for at, queue in enumerate((a1, a2, a3, b1, b2, none)):
        agenda.put(queue, at)
    assert agenda.pop(2) is a1
    agenda.put(a1, 50)
    assert [agenda.pop(9) for _ in range(6)] == [a2, b1, none, a3, b2, None]
    assert agenda.next_at() == 50


def test_a_host_in_line_stands_there_once() -> None:
    agenda, first, second = Agenda(), host("a"), host("a")
    agenda.put(first, 1)
    agenda.put(second, 2)
    assert agenda.pop(5) is first
    agenda.put(second, 0)
    agenda.put(second, 9)
    assert (agenda.next_at(), agenda.due(5)) == (2, 1)
    assert agenda.pop(5) is second
    assert agenda.pop(99) is None
