"""Builds with one mistake each, made at the seams of the real code. The ring must find every one of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streams.definitions import CrawlDefinition
from streams.frontier import candidates, release
from streams.frontier.end import EndWatch
from streams.frontier.gates import Gates
from streams.frontier.hosts import HostQueue
from streams.frontier.rows import HOST_KEY, UrlRow
from streams.frontier.tally import Tally
from streams.messages import Progress
from streams.policy.in_force import HostAsks, InForce
from streams.policy.limits import ALWAYS, Effective, HostLimits, slowed
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


def counted_twice(tally: Tally) -> int:
    """Each page counts as two against a limit."""
    return 2 * sum(tally.states[state] - number for state, number in tally.lists.items())


def held(gates: Gates, crawl_id: str) -> bool:
    """Whether a crawl's limits hold it; that it is paused does not."""
    return gates._crawls.get(crawl_id) is None or gates.room(crawl_id) <= 0


def own_limits(
    rules: InForce, crawl: CrawlDefinition, values: Effective, host: str, others: object, asks: HostAsks
) -> Limits:
    """The limits of the crawl whose turn it is."""
    return slowed(values.limits, asks.delay(robots=values.robots, adaptive=crawl.adaptive_delay))


def next_visit(row: UrlRow, seq: int, now: int, depth: int, priority: int) -> UrlRow:
    """The next visit, with the validators of the last one whatever it is for."""
    again = VISIT(row, seq, now, depth, priority)
    return candidates.replace(again, etag=row.etag, last_modified=row.last_modified)


VISIT = candidates.next_visit


def whatever(*_: object) -> str:
    """Nothing keeps a URL out."""
    return ""


def always(*_: object) -> Any:
    """No window is shut."""
    return ALWAYS


def not_turned(queue: HostQueue, crawl: str) -> None:
    """The crawl that was first stays first."""


def nobody(_epoch: int) -> int:
    """No owner can be told from another."""
    return 0


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
    crawls: int = 1

    def plan(self, seed: int) -> Plan:
        """A schedule for it."""
        plan = Plan(seed, self.hosts, self.urls, min(self.hosts, 2), self.crawls, 2, self.quirks)
        if not self.kinds:
            return plan
        events = range(EVENTS * self.urls)
        faults = draw_faults(random.Random(f"mutant {seed}"), self.faults, events, self.kinds)
        return replace(plan, faults=faults)


def patched(target: object, name: str, value: object) -> Build:
    """The build as it is but for one attribute."""
    return Build(patches=((target, name, value),))


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
    "orders of a former owner": Mutant(Build(confirms=False), ("busy",), ("pause",), 60),
    "limit counted twice": Mutant(patched(Tally, "pages", property(counted_twice)), ("limit",), (), 20),
    "orders of a paused crawl": Mutant(patched(Gates, "holds", held), (), ("hold",), 20),
    "window ignored": Mutant(
        Build(patches=((Effective, "opening", always), (HostLimits, "opening", always))), ("windows",), (), 20
    ),
    "forgotten URL let in by a late link": Mutant(patched(release, "ruled_out", whatever), (), ("forget",), 60),
    "validators at a smaller depth": Mutant(
        patched(candidates, "next_visit", next_visit), ("depth", "recrawl"), ("pause", "kill"), 100
    ),
    "delay of one crawl": Mutant(patched(InForce, "for_url", own_limits), ("delays",), (), 20, crawls=2),
    "crawls do not take turns": Mutant(patched(HostQueue, "rotate", not_turned), (), (), 20, crawls=2, hosts=1),
}


def caught(name: str) -> Plan | None:
    """The first schedule that shows a mutant's mistake; None: none of those it is given."""
    mutant = MUTANTS[name]
    plans = (mutant.plan(seed) for seed in range(mutant.seeds))
    return next((plan for plan in plans if run(plan, mutant.build).invariant), None)
