"""The ring itself: hundreds of schedules without a broken promise, and mutants of which each one breaks some."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.simulation import run as command
from tests.simulation.ring.mutants import MUTANTS, caught
from tests.simulation.ring.plan import Fault, Plan, draw, draw_large, parse
from tests.simulation.ring.ring import run
from tests.simulation.ring.shrink import shrink

QUICK = 20
SEEDS = 500


def check(seeds: range) -> None:
    bad = [verdict for seed in seeds if (verdict := run(draw(seed))).invariant]
    assert not bad, "\n".join(f"seed {verdict.plan.seed}: {verdict.detail}" for verdict in bad)


@pytest.mark.parametrize("first", range(0, QUICK, 10))
def test_the_first_schedules_break_no_promise(first: int) -> None:
    check(range(first, first + 10))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, SEEDS, 20))
def test_no_schedule_breaks_a_promise(first: int) -> None:
    check(range(first, first + 20))


def test_a_fresh_schedule_breaks_no_promise() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"python -m tests.simulation.run -n 1 --seed {seed}")
    verdict = run(draw(seed))
    assert not verdict.invariant, f"seed {seed}: {verdict.detail}"


@pytest.mark.slow
def test_many_hosts() -> None:
    assert run(draw_large(0, 2000)).invariant == ""


def test_a_schedule_is_the_same_every_time() -> None:
    plan = draw(5)
    assert run(plan) == run(plan)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(name: str) -> None:
    """And by its mistake: the same schedule is fine with the build as it should be."""
    plan = caught(name)
    assert plan is not None
    assert run(plan).invariant == ""


def test_a_plan_can_be_written_down_and_read_again() -> None:
    for seed in range(20):
        assert parse(str(draw(seed))) == draw(seed)


def test_shrinking_keeps_what_it_takes_to_fail() -> None:
    needed = Fault(60, "kill", 3, 4)
    plan = replace(draw(7), hosts=6, urls=40, quirks=("slow", "dead"))
    plan = replace(plan, faults=(Fault(5, "jump", 0, 0), needed, Fault(70, "lose", 1, 1), Fault(80, "twice", 1, 1)))
    smallest = shrink(plan, lambda plan: needed in plan.faults and plan.hosts > 2 and "dead" in plan.quirks)
    assert smallest == Plan(plan.seed, 3, 1, 1, 1, 1, ("dead",), (needed,))


def test_shrinking_is_bounded() -> None:
    tried: list[Plan] = []

    def never(plan: Plan) -> bool:
        tried.append(plan)
        return False

    shrink(draw(7), never, tries=5)
    assert len(tried) == 5


def test_the_command_counts_and_says_how_to_see_a_failure_again(capsys, monkeypatch) -> None:
    assert command.main(["-n", "3", "--seed", "40"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "schedules 3, violations 0"
    mutant = MUTANTS["gap counted from release"]
    monkeypatch.setattr(command, "run", lambda plan: run(plan, mutant.build))
    assert command.main(["--plan", str(mutant.plan(0))]) == 1
    *_, replay, _, last = capsys.readouterr().out.splitlines()
    assert last == "schedules 1, violations 1"
    smallest = parse(replay.split("'")[1])
    assert (smallest.workers, smallest.shards, smallest.crawls) == (1, 1, 1)
    assert run(smallest, mutant.build).invariant == "gap"


def test_two_processes_share_the_work() -> None:
    arguments = [sys.executable, "-m", "tests.simulation.run", "-n", "4", "--jobs", "2"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "schedules 4, violations 0"
