"""The wire clock: tables for each rule, and random interleavings in which gap and parallelism must always hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.policy.politeness import (
    MEMORY,
    NEVER,
    START,
    TRAVEL,
    WAIT_FOR_RUNNING,
    Limits,
    Start,
    WaitUntil,
    WireClock,
)

HALF = Limits(delay=0.5, parallelism=2)
FREE = Limits(delay=0.0, parallelism=32)


def at(decision: object) -> float:
    assert isinstance(decision, WaitUntil)
    return decision.at


def test_a_first_owner_starts_at_once():
    assert WireClock().decide("a", Limits(60.0, 1), now=0.0) == START


def test_the_gap_is_counted_from_start_to_start_not_from_the_end():
    clock = WireClock()
    ticket = clock.start("a", HALF, 10.0)
    clock.sent(ticket, 10.0)
    assert at(clock.decide("a", HALF, 10.2)) == pytest.approx(10.552)
    clock.end(ticket, 10.3)
    assert at(clock.decide("a", HALF, 10.4)) == pytest.approx(10.552)
    assert clock.decide("a", HALF, 10.56) == START
    assert clock.decide("b", HALF, 10.0) == START


def test_the_gap_counts_from_what_the_site_sees_when_connecting_takes_long():
    clock = WireClock()
    ticket = clock.start("a", HALF, 10.0)
    assert clock.decide("a", HALF, 10.9) == WAIT_FOR_RUNNING
    clock.sent(ticket, 11.0)
    assert at(clock.decide("a", HALF, 11.1)) == pytest.approx(11.552)


def test_the_gap_counts_from_the_latest_moment_at_which_the_request_can_have_arrived():
    clock = WireClock()
    ticket = clock.start("a", HALF, 10.0)
    clock.sent(ticket, 10.0)
    clock.end(ticket, 10.004)
    assert at(clock.decide("a", HALF, 10.1)) == pytest.approx(10.506)


def test_the_gap_after_a_request_that_did_not_get_through_counts_from_its_end():
    clock = WireClock()
    ticket = clock.start("a", HALF, 10.0)
    clock.end(ticket, 13.0)
    assert at(clock.decide("a", HALF, 13.1)) == pytest.approx(13.502)


def test_how_long_a_host_asked_to_be_left_alone():
    clock = WireClock()
    assert clock.held_until("a") == NEVER
    clock.start("a", HALF, 10.0)
    assert clock.held_until("a") == NEVER
    clock.hold("a", 70.0)
    clock.hold("a", 20.0)
    assert clock.held_until("a") == 70.0


def test_without_a_delay_connecting_stops_nobody():
    clock = WireClock()
    clock.start("a", FREE, 10.0)
    assert clock.decide("a", FREE, 10.0) == START


def test_parallelism_holds_until_a_request_ends():
    clock = WireClock()
    two = Limits(0.0, 2)
    first, _ = clock.start("a", two, 0.0), clock.start("a", two, 0.0)
    assert clock.decide("a", two, 100.0) == WAIT_FOR_RUNNING
    clock.end(first, 100.0)
    assert clock.decide("a", two, 100.0) == START


@pytest.mark.parametrize("rules", [(FREE, Limits(5.0, 32)), (Limits(5.0, 32), FREE)], ids=["then-strict", "then-free"])
def test_of_two_crawls_on_a_host_the_strictest_delay_holds(rules):
    clock = WireClock()
    ticket = clock.start("a", rules[0], 0.0)
    clock.sent(ticket, 0.0)
    assert at(clock.decide("a", rules[1], 1.0)) == pytest.approx(5.052)


def test_of_two_crawls_on_a_host_the_strictest_parallelism_holds():
    clock = WireClock()
    clock.start("a", Limits(0.0, 1), 0.0)
    assert clock.decide("a", FREE, 9.0) == WAIT_FOR_RUNNING
    clock = WireClock()
    clock.start("a", FREE, 0.0)
    assert clock.decide("a", Limits(0.0, 1), 9.0) == WAIT_FOR_RUNNING


def test_a_hold_is_kept_and_never_shortened():
    clock = WireClock()
    clock.hold("a", 100.0)
    clock.hold("a", 50.0)
    assert at(clock.decide("a", FREE, 60.0)) == 100.0
    assert clock.decide("a", FREE, 100.0) == START


def test_a_new_owner_waits_for_the_quarantine_or_the_delay_whichever_is_longer():
    clock = WireClock(taken=1000.0, quarantine=4.0)
    assert at(clock.decide("a", FREE, 1000.0)) == 1004.0
    assert at(clock.decide("a", Limits(10.0, 1), 1000.0)) == pytest.approx(1010.002)
    assert clock.decide("a", FREE, 1004.0) == START


def test_hosts_left_alone_are_forgotten_and_busy_or_held_ones_are_not():
    clock = WireClock()
    slow = Limits(MEMORY / 2, 1)
    for number in range(1022):
        clock.end(clock.start(f"old{number}", slow, 0.0), 0.0)
    running = clock.start("running", Limits(0.0, 1), 0.0)
    later = MEMORY + 1.0
    clock.hold("held", later + 60.0)
    clock.start("new", slow, later)
    assert clock.decide("running", FREE, later) == WAIT_FOR_RUNNING
    assert at(clock.decide("held", FREE, later)) == later + 60.0
    assert len(clock._hosts) == 3
    clock.end(running, later)


@dataclass
class Site:
    """What the server would see: starts, ends, and the rule each request was made under."""

    clock: WireClock
    now: float = 0.0
    starts: list[tuple[float, Limits]] = field(default_factory=list)
    running: dict[int, Limits] = field(default_factory=dict)
    unsent: set[int] = field(default_factory=set)

    def check_parallelism(self) -> None:
        assert len(self.running) <= min((limits.parallelism for limits in self.running.values()), default=1)


limits = st.builds(Limits, st.sampled_from([0.0, 0.1, 0.5, 2.0]), st.integers(1, 4))
actions = st.lists(
    st.tuples(st.sampled_from(["try", "sent", "end", "wait"]), limits, st.floats(0.0, 1.5), st.integers(0, 9)),
    max_size=60,
)


@given(actions)
def test_gap_and_parallelism_hold_under_any_interleaving(steps):
    site = Site(WireClock())
    for action, rule, pause, pick in steps:
        match action:
            case "try" if isinstance(site.clock.decide("a", rule, site.now), Start):
                ticket = site.clock.start("a", rule, site.now)
                site.running[ticket] = rule
                site.unsent.add(ticket)
                site.check_parallelism()
            case "sent" if site.unsent:
                ticket = sorted(site.unsent)[pick % len(site.unsent)]
                site.unsent.discard(ticket)
                site.clock.sent(ticket, site.now)
                site.starts.append((site.now, site.running[ticket]))
            case "end" if site.running:
                ticket = sorted(site.running)[pick % len(site.running)]
                site.unsent.discard(ticket)
                del site.running[ticket]
                site.clock.end(ticket, site.now)
            case "wait":
                site.now += pause
            case _:
                pass
    for (before, first), (after, second) in pairwise(site.starts):
        assert after - before >= max(first.delay, second.delay)


@given(limits, st.floats(0.0, 10.0), st.floats(0.0, 30.0))
def test_what_wait_until_names_is_the_first_moment_that_is_allowed(rule, taken, now):
    clock = WireClock(taken, quarantine=4.0)
    decision = clock.decide("a", rule, now)
    if isinstance(decision, WaitUntil):
        assert clock.decide("a", rule, decision.at) == START
        assert clock.decide("a", rule, math.nextafter(decision.at, 0.0)) != START


def test_a_random_delay_is_added_to_the_gap_after_a_request_as_its_jitter_says() -> None:
    clock = WireClock()
    limits = Limits(1.0, 4, random_delay=2.0, jitter=0.25)
    ticket = clock.start("h", limits, 10.0)
    assert clock.decide("h", limits, 11.6) == WAIT_FOR_RUNNING
    clock.sent(ticket, 10.5)
    clock.end(ticket, 10.5)
    for other in (limits, Limits(0.0, 4), Limits(0.5, 4, random_delay=9.0, jitter=0.9)):
        assert at(clock.decide("h", other, 10.6)) == pytest.approx(10.5 + 1.0 + 0.002 + 0.5)
    longer = Limits(3.0, 4, random_delay=9.0, jitter=0.9)  # its own jitter counts after it
    assert at(clock.decide("h", longer, 10.6)) == pytest.approx(10.5 + 3.0 + 0.002)


def test_a_random_delay_alone_spaces_requests() -> None:
    clock = WireClock()
    limits = Limits(0.0, 4, random_delay=2.0, jitter=0.5)
    clock.sent(clock.start("h", limits, 10.0), 10.0)
    assert clock.decide("h", limits, 10.1) == WaitUntil(10.0 + TRAVEL + 1.0, spaced=True)
    assert (limits.pace, Limits(1.0, 1, random_delay=1.0).pace) == (1.0, 1.5)


def test_a_host_with_a_long_delay_is_remembered_for_it() -> None:
    clock = WireClock()
    slow = Limits(2 * MEMORY, 1)
    ticket = clock.start("slow", slow, 0.0)
    clock.end(ticket, 0.0)
    for number in range(2000):  # the others are pruned on the way
        clock.end(clock.start(f"h{number}", FREE, 1.5 * MEMORY + number / 1000), 1.5 * MEMORY + number / 1000)
    assert at(clock.decide("slow", FREE, 1.6 * MEMORY)) == pytest.approx(2 * MEMORY + 0.002)


# --- rules that change while requests run and gaps last


@dataclass
class Rule:
    """A rule that can be changed; `limits` are those of now."""

    limits: Limits

    def __call__(self) -> Limits:
        return self.limits


def sent_under(clock: WireClock, rule: Rule, now: float = 10.0) -> int:
    ticket = clock.start("a", rule.limits, now, rule)
    clock.sent(ticket, now)
    return ticket


@pytest.mark.parametrize("over", [False, True], ids=["running", "over"])
@pytest.mark.parametrize(("delay", "until"), [(0.5, 10.502), (0.0, NEVER), (90.0, 100.002)])
def test_the_gap_that_has_begun_goes_by_the_newest_rule(over: bool, delay: float, until: float) -> None:
    clock, rule = WireClock(), Rule(Limits(60.0, 2))
    ticket = sent_under(clock, rule)
    if over:
        clock.end(ticket, 10.0)
    rule.limits = Limits(delay, 2)
    clock.review(10.1)
    decision = clock.decide("a", FREE, 10.2)
    assert at(decision) == pytest.approx(until, abs=TRAVEL + 0.001) if until > 0 else decision == START


def test_a_request_without_a_rule_keeps_its_limits() -> None:
    clock = WireClock()
    clock.end(clock.start("a", Limits(60.0, 1), 10.0), 10.0)
    clock.review(10.1)
    assert at(clock.decide("a", FREE, 10.2)) == pytest.approx(70.002)


def test_a_gap_that_has_passed_is_over() -> None:
    clock, rule = WireClock(), Rule(HALF)
    clock.end(sent_under(clock, rule), 10.0)
    rule.limits = Limits(60.0, 2)
    clock.review(11.0)
    assert clock.decide("a", FREE, 11.0) == START


def test_what_a_host_asked_for_is_not_shortened_by_a_rule() -> None:
    clock, rule = WireClock(), Rule(Limits(60.0, 2))
    clock.end(sent_under(clock, rule), 10.0)
    clock.hold("a", 40.0)
    rule.limits = Limits(0.1, 2)
    clock.review(10.1)
    assert clock.decide("a", rule.limits, 11.0) == WaitUntil(40.0)


@pytest.mark.parametrize(("before", "after", "may"), [(1, 2, True), (2, 1, False), (1, 1, False)])
def test_requests_that_run_count_by_the_newest_parallelism(before: int, after: int, may: bool) -> None:
    clock, rule = WireClock(), Rule(Limits(0.0, before))
    ticket = sent_under(clock, rule)
    rule.limits = Limits(0.0, after)
    clock.review(10.1)
    assert (clock.decide("a", FREE, 10.2) == START) is may
    clock.end(ticket, 10.3)
    assert clock.decide("a", Limits(0.0, 1), 10.3) == START


def test_a_request_that_connects_is_waited_for_by_the_newest_rule() -> None:
    clock, rule = WireClock(), Rule(HALF)
    ticket = clock.start("a", rule.limits, 10.0, rule)
    rule.limits = FREE
    clock.review(10.1)
    assert clock.decide("a", FREE, 10.2) == START
    rule.limits = HALF
    clock.review(10.2)
    assert clock.decide("a", FREE, 10.9) == WAIT_FOR_RUNNING
    clock.sent(ticket, 11.0)
    clock.end(ticket, 11.1)
    assert at(clock.decide("a", FREE, 11.2)) == pytest.approx(11.552)


def test_only_the_gap_after_a_request_can_become_shorter() -> None:
    clock = WireClock(taken=9.0, quarantine=4.0)
    assert clock.decide("a", HALF, 10.0) == WaitUntil(13.0)
    clock.end(clock.start("a", Limits(60.0, 1), 10.0), 10.0)
    assert clock.decide("a", HALF, 10.1) == WaitUntil(10.0 + 60.002, spaced=True)
    clock.hold("a", 99.0)
    assert clock.decide("a", HALF, 10.1) == WaitUntil(99.0)


@given(actions, limits, limits)
def test_gap_and_parallelism_hold_by_the_newest_rule_under_any_interleaving(steps, first, other) -> None:
    """One rule for all requests, that `wait` exchanges for the other one now and then."""
    site, rule = Site(WireClock()), Rule(first)
    since = 0.0  # when the rule of now began to hold
    for action, _, pause, pick in steps:
        match action:
            case "try" if isinstance(site.clock.decide("a", rule.limits, site.now), Start):
                ticket = site.clock.start("a", rule.limits, site.now, rule)
                site.running[ticket] = rule.limits
                site.unsent.add(ticket)
                assert len(site.running) <= rule.limits.parallelism
            case "sent" if site.unsent:
                ticket = sorted(site.unsent)[pick % len(site.unsent)]
                site.unsent.discard(ticket)
                site.clock.sent(ticket, site.now)
                site.starts.append((site.now, rule.limits))
            case "end" if site.running:
                ticket = sorted(site.running)[pick % len(site.running)]
                site.unsent.discard(ticket)
                del site.running[ticket]
                site.clock.end(ticket, site.now)
            case "wait" if pick == 0:
                rule.limits = other if rule.limits == first else first
                site.clock.review(site.now)
                since = site.now
            case "wait":
                site.now += pause
            case _:
                pass
    for (before, _), (after, under) in pairwise(site.starts):
        if before >= since:
            assert after - before >= under.delay
