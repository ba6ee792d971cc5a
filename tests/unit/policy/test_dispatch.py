"""The queues of the fetcher: turns, room, timers, deadlines, and every order out exactly once."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.policy.dispatch import CROWDED, Begin, Defer, Dispatcher, Waiting
from streams.policy.politeness import FOREVER, Limits, WireClock

ROOM = 100
FREE = Limits(0.0, 32)


@dataclass
class Bench:
    """A dispatcher of plain strings: `host/name`."""

    limits: Limits | str = FREE
    per_address: int = 0
    clock: WireClock = field(default_factory=WireClock)
    dispatcher: Dispatcher[str] = field(init=False)

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(lambda _: self.limits, self.per_address)

    def add(self, item: str, deadline: float = 5.0, *, first: bool = False, address: str = "") -> None:
        self.dispatcher.add(Waiting(item, item.partition("/")[0], self.clock, deadline, address), first=first)

    def steps(self, now: float = 0.0, room: int = ROOM) -> list[Begin[str] | Defer[str]]:
        return list(self.dispatcher.steps(now, room))

    def begun(self, now: float = 0.0, room: int = ROOM) -> list[str]:
        return [step.item for step in self.steps(now, room) if isinstance(step, Begin)]

    def deferred(self, now: float = 0.0) -> list[str]:
        return [step.item for step in self.steps(now) if isinstance(step, Defer)]


def test_hosts_take_turns_and_orders_of_a_host_keep_their_order():
    bench = Bench()
    for item in ("a/1", "a/2", "a/3", "b/1", "c/1"):
        bench.add(item)
    assert bench.begun() == ["a/1", "b/1", "c/1", "a/2", "a/3"]
    assert len(bench.dispatcher) == 0


def test_a_full_process_starts_nothing_and_forgets_nothing():
    bench = Bench()
    bench.add("a/1")
    bench.add("a/2")
    assert bench.begun(room=0) == []
    assert bench.begun(room=1) == ["a/1"]
    assert bench.begun(now=99.0, room=1) == ["a/2"]


def test_a_waiting_host_is_looked_at_when_its_time_comes():
    bench = Bench(Limits(0.5, 2))
    bench.add("a/1")
    bench.add("a/2")
    (first,) = bench.steps()
    assert isinstance(first, Begin)
    bench.clock.sent(first.ticket, 0.0)
    bench.clock.end(first.ticket, 0.0)
    assert bench.steps(0.1) == []
    assert bench.dispatcher.wake_at() == pytest.approx(0.502)
    assert bench.begun(0.52) == ["a/2"]
    assert bench.dispatcher.wake_at() == FOREVER


def test_an_earlier_timer_replaces_a_later_one():
    bench = Bench(Limits(0.5, 2))
    bench.add("a/1")
    (first,) = bench.steps()
    assert isinstance(first, Begin)
    bench.add("a/2")
    assert bench.steps(1.0) == []  # the first is being connected: nobody knows for how long
    assert bench.dispatcher.wake_at() == 5.0
    bench.clock.sent(first.ticket, 1.0)
    bench.dispatcher.look_at("a")
    assert bench.steps(1.0) == []
    assert bench.dispatcher.wake_at() == pytest.approx(1.552)
    assert bench.begun(1.6) == ["a/2"]
    assert bench.dispatcher.wake_at() == FOREVER


def test_what_is_known_to_come_too_late_goes_back_at_once():
    bench = Bench()
    bench.clock.hold("a", 60.0)
    bench.add("a/1")
    bench.add("a/2")
    bench.add("b/1")
    assert bench.steps(0.0) == [Defer("a/1", "host", 60.0), Begin("b/1", 1), Defer("a/2", "host", 60.0)]


def test_what_comes_too_late_by_the_delay_alone_says_so():
    bench = Bench(Limits(60.0, 2))
    bench.add("a/1")
    (first,) = bench.steps()
    assert isinstance(first, Begin)
    bench.clock.end(first.ticket, 0.0)
    bench.add("a/2")
    assert bench.steps(0.0) == [Defer("a/2", "delay", 60.002)]


def test_a_shorter_delay_does_not_wait_for_the_end_of_a_longer_one():
    """The order that waits is planned anew, and the gap that has begun is the new one."""
    bench = Bench(Limits(3.0, 1))
    quick = Limits(0.6, 1)
    for name in ("a/1", "a/2", "a/3"):
        bench.dispatcher.add(Waiting(name, "a", bench.clock, 20.0, renew=lambda: quick))
    (first,) = bench.steps()
    assert isinstance(first, Begin)
    bench.clock.sent(first.ticket, 0.0)
    bench.clock.end(first.ticket, 0.0)
    assert bench.begun(0.5) == []
    assert bench.dispatcher.wake_at() == pytest.approx(3.002)
    bench.limits = quick
    bench.clock.review(0.5)
    bench.dispatcher.look_at_all()
    assert bench.begun(0.5) == []
    assert bench.dispatcher.wake_at() == pytest.approx(0.602)
    assert bench.begun(0.61) == ["a/2"]


def test_what_waits_for_a_running_request_goes_back_at_its_deadline():
    bench = Bench(Limits(0.0, 1))
    bench.add("a/1")
    bench.add("a/2", deadline=5.0)
    assert bench.begun() == ["a/1"]
    assert bench.deferred(4.9) == []
    assert bench.dispatcher.wake_at() == 5.0
    assert bench.deferred(5.0) == ["a/2"]


def test_a_next_hop_goes_before_the_other_orders_of_its_host():
    bench = Bench()
    bench.add("a/1")
    bench.add("a/hop", first=True)
    assert bench.begun() == ["a/hop", "a/1"]


def test_an_order_that_must_not_start_goes_back_with_the_reason():
    bench = Bench(limits="paused")
    bench.add("a/1")
    assert bench.steps() == [Defer("a/1", "paused")]


def test_newer_rules_hold_for_what_waits_already():
    bench = Bench(Limits(0.0, 1))
    for name in ("a/1", "a/2"):
        bench.add(name, deadline=20.0)
    (first,) = bench.steps()
    assert isinstance(first, Begin)
    bench.clock.sent(first.ticket, 0.0)
    bench.clock.end(first.ticket, 0.0)
    bench.limits = Limits(10.0, 1)
    bench.dispatcher.look_at("a")
    assert bench.begun(5.0) == []
    assert bench.begun(10.3) == ["a/2"]


def test_take_all_empties_the_queues():
    bench = Bench()
    bench.add("a/1")
    bench.add("b/1")
    assert bench.dispatcher.take_all() == ["a/1", "b/1"]
    assert (len(bench.dispatcher), bench.steps(), bench.dispatcher.wake_at()) == (0, [], FOREVER)


@given(
    orders=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 3.0), st.floats(0.0, 2.0)), max_size=40),
    rule=st.builds(Limits, st.sampled_from([0.0, 0.3, 2.0]), st.integers(1, 3)),
    room=st.integers(1, 4),
)
def test_every_order_comes_out_once_begun_in_time_or_deferred(orders, rule, room):
    """Virtual time in steps of 0.1 s: `orders` are (host, arrival, duration)."""
    bench = Bench(rule)
    arrivals = sorted((round(arrival, 1), host, duration) for host, arrival, duration in orders)
    running: dict[int, tuple[str, float]] = {}
    out: list[str] = []
    starts: dict[str, list[float]] = {"a": [], "b": [], "c": []}
    for tick in range(400):
        now = tick / 10
        for number, (arrival, host, _) in enumerate(arrivals):
            if arrival == now:
                bench.add(f"{host}/{number}", deadline=now + 5.0)
        for ticket, (host, end) in list(running.items()):
            if end <= now:
                bench.clock.end(ticket, now)
                bench.dispatcher.look_at(host)
                del running[ticket]
        for step in bench.dispatcher.steps(now, room - len(running)):
            out.append(step.item)
            if isinstance(step, Begin):
                host, _, index = step.item.partition("/")
                running[step.ticket] = (host, now + arrivals[int(index)][2])
                starts[host].append(now)
                bench.clock.sent(step.ticket, now)
                bench.dispatcher.look_at(host)
    assert sorted(out) == sorted(f"{host}/{number}" for number, (_, host, _) in enumerate(arrivals))
    for times in starts.values():
        assert all(after - before >= rule.delay for before, after in pairwise(times))


# --- the cap for an address


def test_requests_to_one_address_are_capped_whatever_their_hosts():
    bench = Bench(per_address=2)
    for item in ("a/1", "b/1", "c/1", "d/1"):
        bench.add(item, address="192.0.2.1")
    bench.add("e/1", address="192.0.2.2")
    bench.add("f/1")
    assert bench.begun() == ["a/1", "b/1", "e/1", "f/1"]
    assert bench.begun() == []
    bench.dispatcher.ended("b", "192.0.2.1")
    assert bench.begun() == ["c/1"]
    bench.dispatcher.ended("a", "192.0.2.1")
    bench.dispatcher.ended("c", "192.0.2.1")
    assert bench.begun() == ["d/1"]


def test_a_host_without_room_at_its_address_goes_back_and_is_left_alone_for_a_while():
    bench = Bench(per_address=1)
    bench.add("a/1", address="x")
    bench.add("b/1", deadline=5.0, address="x")
    assert bench.begun() == ["a/1"]
    assert bench.dispatcher.wake_at() == 5.0
    assert bench.steps(4.9) == []
    assert bench.steps(5.0) == [Defer("b/1", "address", 5.0 + CROWDED)]
    bench.dispatcher.ended("a", "x")
    assert bench.steps(5.1) == []


def test_room_that_its_host_cannot_use_goes_to_the_next():
    """The first in line was asked meanwhile: its clock holds it, and the address would stand empty."""
    bench = Bench(Limits(1.0, 4), per_address=1)
    bench.add("a/1", address="x")
    bench.add("b/1", address="x")
    bench.add("c/1", address="x")
    assert bench.begun() == ["a/1"]
    bench.clock.hold("b", 99.0)
    bench.dispatcher.ended("a", "x")
    assert bench.steps(0.5) == [Defer("b/1", "host", 99.0), Begin("c/1", 2)]


def test_hosts_that_are_gone_are_passed_over():
    bench = Bench(per_address=1)
    for item in ("a/1", "b/1", "c/1"):
        bench.add(item, address="x")
    assert bench.begun() == ["a/1"]
    assert bench.dispatcher.take_all() == ["b/1", "c/1"]
    bench.add("d/1", address="x")
    assert bench.begun() == []
    bench.dispatcher.ended("a", "x")
    assert bench.begun() == ["d/1"]


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), max_size=40), st.integers(1, 3), st.randoms())
def test_the_cap_is_kept_and_everybody_has_a_turn(orders, most, chance):
    bench = Bench(per_address=most)
    for number, (host, address) in enumerate(orders):
        bench.add(f"{host}/{number}", deadline=FOREVER, address=str(address))
    places = {f"{host}/{number}": str(address) for number, (host, address) in enumerate(orders)}
    running: list[str] = []
    done: list[str] = []
    while len(done) < len(orders):
        running += bench.begun(room=chance.randint(1, 4))
        for address in "01":
            assert sum(places[item] == address for item in running) <= most
        item = running.pop(chance.randrange(len(running)))
        done.append(item)
        bench.dispatcher.ended(item.partition("/")[0], places[item])
    assert sorted(done) == sorted(places)
