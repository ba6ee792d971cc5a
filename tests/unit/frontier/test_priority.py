"""Who is asked first: high priorities overtake, and nothing starves."""

from __future__ import annotations

from streams import messages as m
from streams.frontier.index import HEAD_START
from tests.unit.frontier.rig import HOUR, Rig, answer, crawl, done, pages, parsed, seed, seeds, urls_of

LOW = "http://h.example/low"


def one_at_a_time() -> Rig:
    """A crawl that asks its host once a minute; it is paused."""
    return Rig(crawl(delay=60.0, parallelism=1, state="paused"))


def first_order(rig: Rig) -> list[m.FetchOrder]:
    rig.change(state="open")
    rig.now += 1000  # held crawls are looked at again each second
    return rig.settle()


def order_of(rig: Rig, orders: list[m.FetchOrder], number: int) -> list[str]:
    """The URLs that are released from these orders on, each answered before the next."""
    found = urls_of(orders)
    while len(found) < number:
        orders = done(rig, *orders) or rig.sleep()
        found += urls_of(orders)
    return found


def test_a_high_priority_overtakes_what_waits() -> None:
    rig = one_at_a_time()
    rig.turn(seeds(*pages(5)))
    rig.turn(seeds(seed(LOW, priority=0), seed("http://h.example/high", priority=9)))
    assert order_of(rig, first_order(rig), 7) == ["http://h.example/high", *pages(5), LOW]


def test_a_raised_priority_overtakes_although_the_queue_was_read_already() -> None:
    rig = one_at_a_time()
    rig.turn(seeds(*pages(40)))
    orders = first_order(rig)
    rig.turn(seeds(seed("http://h.example/39", priority=9)))
    assert order_of(rig, orders, 4) == ["http://h.example/0", "http://h.example/39", *pages(2, first=1)]


def test_nothing_starves() -> None:
    """Urgent URLs come faster than they are served, for ever: only those of the head start overtake what waits."""
    rig = one_at_a_time()
    rig.turn(seeds(seed(LOW, priority=0), seed("http://h.example/first", priority=9)))
    rig.change(state="open")
    began, arrived = rig.now, {"http://h.example/first": rig.now}
    found, orders = list[str](), list[m.FetchOrder]()
    while LOW not in found:
        urgent = pages(2, first=len(arrived))
        answers = [message for order in orders for message in (answer(order), parsed(order))]
        orders = [*rig.turn(*answers, seeds(*(seed(url, priority=9) for url in urgent)), wait=6 * HOUR), *rig.settle()]
        arrived |= dict.fromkeys(urgent, rig.now)
        found += urls_of(orders)
    assert set(found[:-1]) == {url for url, at in arrived.items() if at < began + 9 * HEAD_START}
    assert len(arrived) > len(found)  # others came later, and wait
