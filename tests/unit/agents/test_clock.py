"""Broker time: a wall clock that is wrong or jumps moves no persisted time, and late answers do not make it waver."""

from __future__ import annotations

import time

import pytest

from agents.clock import BrokerClock

HOUR = 3600.0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The machine's clocks: `boot` in seconds, `wall` seconds ahead of the broker, whose time is 1e9 s + boot."""
    clocks = {"boot": 1000.0, "wall": 0.0}
    monkeypatch.setattr(time, "clock_gettime", lambda _: clocks["boot"])
    monkeypatch.setattr(time, "time", lambda: 1e9 + clocks["boot"] + clocks["wall"])
    return clocks


def ask(clock: BrokerClock, machine: dict[str, float], there: float, back: float) -> None:
    """A record takes `there` seconds to the broker, its acknowledgement `back`."""
    sent = machine["boot"]
    machine["boot"] += there
    stamp = int((1e9 + machine["boot"]) * 1000)
    machine["boot"] += back
    clock.observe(sent, stamp)


@pytest.mark.parametrize("wrong", [0.0, 2 * HOUR, -2 * HOUR, 0.5, -0.5])
def test_one_answer_puts_a_wrong_clock_right_within_its_own_length(wrong: float, machine: dict[str, float]) -> None:
    machine["wall"] = wrong
    clock = BrokerClock()
    assert not clock.heard
    ask(clock, machine, 0.02, 0.01)
    assert clock.heard
    assert clock.now() / 1000 == pytest.approx(1e9 + machine["boot"], abs=0.031)
    assert clock.skew() == pytest.approx(wrong, abs=0.031)


def test_late_answers_move_nothing(machine: dict[str, float]) -> None:
    """The acknowledgement came 30 s late, in either half: our time lies between, and stays."""
    clock = BrokerClock()
    ask(clock, machine, 0.001, 0.001)
    before = clock.ms(0.0)
    for there, back in ((30.0, 0.0), (0.0, 30.0), (15.0, 15.0)):
        ask(clock, machine, there, back)
        assert clock.ms(0.0) == before


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 24 * HOUR])
def test_a_wall_clock_that_jumps_moves_no_time_and_shows_as_skew(jump: float, machine: dict[str, float]) -> None:
    clock = BrokerClock()
    ask(clock, machine, 0.001, 0.001)
    at = clock.now()
    machine["wall"] += jump
    machine["boot"] += 10
    assert clock.now() - at == pytest.approx(10_000, abs=1)
    assert clock.skew() == pytest.approx(jump, abs=0.01)
    ask(clock, machine, 0.001, 0.001)
    assert clock.skew() == pytest.approx(jump, abs=0.01)


def test_a_mark_and_its_time_belong_together(machine: dict[str, float]) -> None:
    machine["wall"] = -HOUR
    clock = BrokerClock()
    ask(clock, machine, 0.001, 0.001)
    assert clock.mark_at(clock.ms(1234.5)) == pytest.approx(1234.5, abs=0.001)


def test_no_stamp_is_no_answer(machine: dict[str, float]) -> None:
    clock = BrokerClock()
    clock.observe(machine["boot"], -1)
    assert not clock.heard
