"""Builds with one mistake each, made at the seams of the real code. The ring must find every one of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from streams.frontier.end import EndWatch
from streams.frontier.rows import HOST_KEY
from streams.messages import Progress
from streams.policy.politeness import START, Decision, Limits, WireClock
from tests.simulation.owners import no_fence
from tests.simulation.ring.plan import EVENTS, Kind, Plan, Quirk, draw_faults
from tests.simulation.ring.ring import run
from tests.simulation.ring.stage import Build


class OneRound(EndWatch):
    """Takes the first round over all shards for the end."""

    def step(self, progress: Mapping[int, Progress], ends: Sequence[int]) -> bool:
        return super().step(progress, ends) or self._first is not None


class ReleasedIsEnough(WireClock):
    """Trusts that orders come at the pace at which they may be asked."""

    def decide(self, key: str, limits: Limits, now: float) -> Decision:
        return START


@dataclass(frozen=True)
class Mutant:
    """A build, the kind of schedules in which its mistake matters, and how many of them may pass unharmed."""

    build: Build
    quirks: tuple[Quirk, ...]
    kinds: tuple[Kind, ...]
    seeds: int
    faults: int = 12
    hosts: int = 3
    urls: int = 16

    def plan(self, seed: int) -> Plan:
        """A schedule for it."""
        plan = Plan(seed, self.hosts, self.urls, min(self.hosts, 2), 1, 2, self.quirks)
        if not self.kinds:
            return plan
        events = range(EVENTS * self.urls)
        faults = draw_faults(random.Random(f"mutant {seed}"), self.faults, events, self.kinds)
        return replace(plan, faults=faults)


MUTANTS: dict[str, Mutant] = {
    "commit before persist": Mutant(Build(frontier=("effects", "ack", "rows", "orders")), (), ("kill",), 20),
    "effects after the closing row": Mutant(
        Build(frontier=("rows", "effects", "orders", "ack")), ("redirects",), ("kill",), 100
    ),
    "gap counted from release": Mutant(Build(clock=ReleasedIsEnough), ("delays", "slow"), (), 20),
    "host state not persisted": Mutant(Build(forgets=HOST_KEY), ("busy",), ("kill", "rebalance"), 60),
    "end after one round": Mutant(Build(watch=OneRound), ("narrow",), (), 60),
    "no fencing": Mutant(Build(accept=no_fence), (), ("pause", "rebalance"), 100),
    "LRU filled before delivery": Mutant(
        Build(parser=("delivered", "packs", "records", "outcomes", "ack")), (), ("rebalance",), 60
    ),
}


def caught(name: str) -> Plan | None:
    """The first schedule that shows a mutant's mistake; None: none of those it is given."""
    mutant = MUTANTS[name]
    plans = (mutant.plan(seed) for seed in range(mutant.seeds))
    return next((plan for plan in plans if run(plan, mutant.build).invariant), None)
