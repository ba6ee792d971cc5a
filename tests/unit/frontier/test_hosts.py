"""Queues of hosts, and the agenda."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from streams.frontier.hosts import HEADS, LOOKAHEAD, NEVER, PARKED, Agenda, CrawlQueue, HostQueue, waiting_hosts
from streams.frontier.index import queue_place, queue_prefix
from streams.frontier.rows import HostRow, State, UrlRow, encode_row, url_key
from streams.policy.politeness import Limits
from streams.policy.retry import Breaker
from tests.simulation.store import MemoryStore

NOW = 1_000_000
WAITS = ("0", b"", False)


def fp(number: int) -> bytes:
    return number.to_bytes(16, "big")


def put(store: MemoryStore, number: int, *, priority: int = 5, host: str = "h", crawl: str = "c",
        kept: bool = False, seq: int = 0) -> UrlRow:  # fmt: skip
    row = UrlRow(1, State.WAITING, 0, priority, crawl, "http://h/", host, 1, 0, seq or number, kept=kept)
    store.apply([(url_key(fp(number)), encode_row(row))])
    return row


def queue_of(store: MemoryStore, *numbers: int) -> CrawlQueue:
    for number in numbers:
        put(store, number)
    return CrawlQueue(queue_prefix("h", "c"))


def drain(queue: CrawlQueue, store: MemoryStore) -> list[int]:
    return [int.from_bytes(found, "big") for found in iter(lambda: queue.pop(store), None)]


def test_a_queue_gives_each_row_once_in_order() -> None:
    store = MemoryStore()
    numbers = list(range(1, 3 * HEADS + 2))
    queue = queue_of(store, *reversed(numbers))
    assert drain(queue, store) == numbers
    assert drain(queue, store) == []


@pytest.mark.parametrize("read", [0, 1, HEADS, HEADS + 1, HEADS + 5, 3 * HEADS])
def test_a_row_queued_meanwhile_is_not_missed(read: int) -> None:
    """Whether it belongs behind everything, before everything, or among the heads that are loaded."""
    store = MemoryStore()
    numbers = list(range(10, 10 + HEADS + 5))
    queue = queue_of(store, *numbers)
    taken = [queue.pop(store) for _ in range(read)]
    for number, priority in ((9, 5), (500, 5), (501, 9), (502, 0)):
        queue.note(queue_place(put(store, number, priority=priority)), fp(number))
    rest = drain(queue, store)
    expected = {*numbers, 9, 500, 501, 502} - {int.from_bytes(found, "big") for found in taken if found}
    assert set(rest) == expected
    assert len(rest) == len(expected)


def test_what_is_given_back_comes_first_in_order_of_its_return() -> None:
    store = MemoryStore()
    queue = queue_of(store, 1, 2, 3)
    first, second = queue.pop(store), queue.pop(store)
    assert first is not None
    assert second is not None
    queue.give_back(second)
    queue.give_back(first)
    queue.push(fp(7))
    assert drain(queue, store) == [7, 2, 1, 3]


def test_what_was_read_ahead_does_not_starve() -> None:
    """read-ahead-starves: what comes after an entry of low priority was read belongs before that, not before all."""
    store = MemoryStore()
    queue = queue_of(store, 1, 2, 3)
    put(store, 4, priority=0)
    popped = [queue.pop(store)]
    for number in range(10, 18):  # each brings another URL
        queue.note(queue_place(put(store, number)), fp(number))
        popped.append(queue.pop(store))
    assert popped == [fp(number) for number in (1, 2, 3, *range(10, 16))]
    assert drain(queue, store) == [16, 17, 4]


def test_a_url_that_waits_again_is_not_taken_for_the_one_that_went() -> None:
    """Popped from what was read ahead, and queued again before that is read anew."""
    store = MemoryStore()
    queue = queue_of(store, 1, 2, 3)
    put(store, 4, priority=0)
    assert queue.pop(store) == fp(1)
    queue.note(queue_place(put(store, 10)), fp(10))
    queue.note(queue_place(put(store, 1, seq=11)), fp(1))
    assert drain(queue, store) == [2, 3, 10, 1, 4]


@pytest.mark.parametrize("seed", range(30))
def test_urls_go_in_the_order_of_their_places_whenever_they_come(seed: int) -> None:
    """What belongs before all that went already, else the most urgent of all; each once; also while rows leave."""
    rng, store = Random(seed), MemoryStore()
    queue, waiting = queue_of(store), dict[int, bytes]()
    low = b""
    for number in range(1, 400):
        if rng.random() < 0.55:
            key = number if rng.random() < 0.7 else rng.randrange(1, number + 1)  # perhaps one that went before
            if key not in waiting:
                waiting[key] = queue_place(put(store, key, priority=rng.choice((0, 5, 9)), seq=number))
                queue.note(waiting[key], fp(key))
        elif waiting:
            found = 0
            while found not in waiting:  # a hint may lead to what went already
                found = int.from_bytes(queue.pop(store) or b"", "big")
            place = waiting.pop(found)
            overtaking = [other for other in waiting.values() if other < low]
            assert place < low if overtaking else all(place < other for other in waiting.values())
            low = max(low, place)
            if rng.random() < 0.7:
                store.apply([(url_key(fp(found)), None)])
    assert {*waiting} <= {*drain(queue, store)}


def test_peeking_shows_what_is_next_and_takes_nothing() -> None:
    store = MemoryStore()
    queue = queue_of(store, 1, 2, 3)
    assert queue.peek(store, 2) == [fp(1), fp(2)]
    queue.give_back(fp(8))
    queue.give_back(fp(9))
    assert queue.peek(store, 1) == [fp(8)]
    assert queue.peek(store, 9) == [fp(8), fp(9)]
    assert drain(queue, store) == [8, 9, 1, 2, 3]
    assert queue.peek(store, 9) == []


def test_pushing_back_what_was_popped_changes_nothing() -> None:
    store = MemoryStore()
    queue = queue_of(store, 1, 2)
    queue.push(queue.pop(store) or b"")
    assert drain(queue, store) == [1, 2]


def lanes(new: int, kept: int) -> tuple[MemoryStore, CrawlQueue]:
    """A queue of new URLs 1, 2, … and of pages 101, 102, … that are visited again."""
    store = MemoryStore()
    queue = queue_of(store, *range(1, new + 1))
    for number in range(101, 101 + kept):
        queue.lane(revisit=True).note(queue_place(put(store, number, kept=True)), fp(number))
    return store, queue


@pytest.mark.parametrize(
    ("new", "kept", "order"),
    [(0, 0, []), (3, 0, [1, 2, 3]), (0, 3, [101, 102, 103]), (1, 3, [101, 1, 102, 103]), (3, 1, [101, 1, 2, 3]),
     (2, 2, [101, 1, 102, 2])],
)  # fmt: skip
def test_new_urls_and_pages_that_are_visited_again_take_turns(new: int, kept: int, order: list[int]) -> None:
    store, queue = lanes(new, kept)
    taken = iter(lambda: queue.take(store, new=True), None)
    assert [int.from_bytes(found, "big") for found in taken] == order


def test_pages_that_are_visited_again_pass_new_urls_that_must_wait() -> None:
    store, queue = lanes(3 * HEADS, 2)
    assert queue.ahead(store, 9, new=False) == [fp(101), fp(102)]
    assert queue.ahead(store, 1, new=True) == [fp(1), fp(101)]
    assert [queue.take(store, new=False) for _ in range(3)] == [fp(101), fp(102), None]
    assert queue.take(store, new=True) == fp(1)


OPEN = Breaker(since=NOW, until=NOW + 60_000)
HALF_OPEN = Breaker(since=1, until=NOW)
GIVEN_UP = Breaker(since=NOW, until=NOW + 3_600_000, probes=8)


def host(*, crawls: int = 1, row: HostRow | None = None, **fields: Any) -> HostQueue:
    queue = HostQueue("h", row or HostRow(), **fields)
    queue.crawls = {str(i): CrawlQueue(b"") for i in range(crawls)}
    return queue


@pytest.mark.parametrize(
    ("queue", "at"),
    [
        (host(), 0),
        (host(next_at=NOW + 5000), NOW + 5000 - LOOKAHEAD),
        (host(row=HostRow(not_before=NOW + 5000)), NOW + 5000),  # no lookahead: the site said so
        (host(row=HostRow(breaker=OPEN)), NOW + 60_000),
        (host(row=HostRow(breaker=HALF_OPEN)), NOW),
        (host(row=HostRow(breaker=HALF_OPEN), out={"0": 1}), NEVER),  # one probe at a time
        (host(row=HostRow(breaker=OPEN), out={"0": 1}), NEVER),
        (host(row=HostRow(breaker=GIVEN_UP), next_at=NOW + 9000), NOW),  # its URLs end at once
        (host(robots_out=True), NEVER),
        (host(out={"0": 3}), 0),
        (host(out={"0": 4}), NEVER),  # four times one connection
        (host(out={"0": 1, "1": 3}), NEVER),
        (host(out={"0": 7}, limits=Limits(0.0, 2)), 0),
        (host(out={"0": 8}, limits=Limits(0.0, 2)), NEVER),
        (host(out={"0": 4}, limits=Limits(0.5, 2)), 0),
        (host(out={"0": 5}, limits=Limits(0.5, 2)), NEVER),  # what is under way, and one second ahead
        (host(out={"0": 3}, limits=Limits(10.0, 2)), NEVER),
        (host(parked=[WAITS] * (PARKED - 1), parked_until=NOW + 7), 0),
        (host(parked=[WAITS] * PARKED, parked_until=NOW + 7), NOW + 7),
        (host(crawls=0, next_at=NOW + 500), NOW + 500),  # then it is forgotten
        (host(crawls=0, next_at=NOW + 500, out={"0": 1}), NEVER),
        (host(crawls=0, held={"0": CrawlQueue(b"")}), NEVER),
        (host(crawls=0, parked=[WAITS], parked_until=NOW + 7), NOW + 7),
    ],
)
def test_when_a_host_is_looked_at(queue: HostQueue, at: float) -> None:
    assert queue.at(NOW) == at


@pytest.mark.parametrize(
    ("queue", "empty"),
    [
        (host(crawls=0), True),
        (host(crawls=1), False),
        (host(crawls=0, held={"0": CrawlQueue(b"")}), False),
        (host(crawls=0, out={"0": 1}), False),
        (host(crawls=0, parked=[WAITS]), False),
        (host(crawls=0, idle={"0": CrawlQueue(b"")}), True),
    ],
)
def test_what_keeps_a_host(queue: HostQueue, empty: bool) -> None:
    assert queue.empty == empty


def test_orders_are_spaced_from_the_later_of_now_and_the_last() -> None:
    queue = host(limits=Limits(2.0, 1))
    queue.started("0", NOW, queue.limits.pace)
    assert queue.next_at == NOW + 2000
    queue.started("0", NOW + 10, queue.limits.pace)
    assert (queue.next_at, queue.out) == (NOW + 4000, {"0": 2})
    queue.started("1", NOW + 9000, queue.limits.pace)
    assert (queue.next_at, queue.out) == (NOW + 11_000, {"0": 2, "1": 1})
    queue.started("1", NOW + 9000, queue.limits.pace, revisit=True)
    assert queue.revisits == {"1": 1}
    queue.ended("1", revisit=True)
    for crawl in ("0", "1", "0"):
        queue.ended(crawl)
    assert (queue.out, queue.revisits) == ({}, {})


def test_another_delay_counts_from_the_last_order() -> None:
    queue = host(limits=Limits(2.0, 4))
    queue.started("0", NOW, queue.limits.pace)
    queue.obey(Limits(5.0, 1))
    assert (queue.next_at, queue.limits) == (NOW + 5000, Limits(5.0, 1))
    queue.obey(Limits(1.0, 1))
    assert (queue.next_at, queue.limits) == (NOW + 1000, Limits(1.0, 1))


def test_an_order_with_a_pace_of_its_own_is_not_followed_before_it_left() -> None:
    queue = host(limits=Limits(5.0, 1))
    queue.started("0", NOW, 0.5)  # a URL whose own rule is not the strictest of its host
    queue.obey(Limits(1.0, 1))
    assert queue.next_at == NOW


def test_a_random_delay_counts_by_half() -> None:
    queue = host(limits=Limits(1.0, 1, 2.0))
    queue.started("0", NOW, queue.limits.pace)
    assert queue.next_at == NOW + 2000


def test_a_host_whose_window_is_shut_waits_for_it() -> None:
    queue = host()
    assert queue.at(NOW) <= NOW
    queue.shut_until = NOW + 9000
    assert queue.at(NOW) == NOW + 9000


def test_parked_urls_wait_for_the_earliest_of_their_times() -> None:
    queue = host()
    queue.parked_until = 3
    for until in (NOW + 9, NOW + 5, NOW + 7):
        queue.park(("0", b"", False), until)
    assert (queue.parked_until, len(queue.parked)) == (NOW + 5, 3)


def test_crawls_take_turns() -> None:
    queue = host(crawls=3)
    queue.rotate("0")
    queue.rotate("2")
    assert list(queue.crawls) == ["1", "0", "2"]


def test_a_clock_that_is_set_back_takes_a_host_along() -> None:
    queue = host(next_at=NOW + 50.0, parked_until=NOW, when=5.0)
    queue.clock_went_back(40)
    assert (queue.next_at, queue.parked_until, queue.when) == (NOW + 10, NOW - 40, NEVER)


def test_the_agenda_gives_hosts_by_their_earliest_time() -> None:
    agenda, a, b, c = Agenda(), host(), host(), host()
    assert agenda.pop(NOW) is None
    agenda.put(a, 30)
    agenda.put(b, 20)
    agenda.put(a, 10)  # earlier: counts
    agenda.put(b, 25)  # later: does not
    agenda.put(c, NEVER)
    assert (agenda.next_at(), agenda.due(25), agenda.due(9)) == (10, 2, 0)
    assert agenda.pop(9) is None
    assert agenda.pop(30) is a
    assert agenda.pop(30) is b
    assert agenda.pop(100) is None  # the entry at 30 is outdated
    agenda.put(a, 40)
    assert agenda.pop(100) is a
    agenda.put(a, 40)
    a.when = NEVER  # its time does not count any more
    assert agenda.next_at() == NEVER


def test_waiting_hosts_are_found_in_the_index() -> None:
    store = MemoryStore()
    for number in range(40):
        put(store, number, host=f"h{number % 3}.example", crawl="ab"[number % 2], priority=number % 10)
    put(store, 99, host="h1.example", crawl="abc", priority=0)
    put(store, 100, host="h1.example", kept=True)
    found = sorted([(f"h{i}.example", c, False) for i in range(3) for c in "ab"] + [("h1.example", "abc", False)])
    assert list(waiting_hosts(store)) == [*found, ("h1.example", "c", True)]
