"""What strikes a schedule, by the kinds of a plan's faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from streams.topics import FETCHES, PAGES
from tests.simulation.ring import crawls, operator
from tests.simulation.ring.plan import Fault, Kind
from tests.simulation.ring.stage import Stage

if TYPE_CHECKING:
    from tests.simulation.ring.ring import Ring

HOUR = 3_600_000
PAUSES = (1.0, 5.0, 15.0, 30.0, 90.0)
JUMPS = (600_000, -600_000, HOUR, -HOUR)
HOLDS = (0.5, 5.0, 20.0, 600.0)
"""Seconds for which a crawl is paused."""

Strike = Callable[["Ring", Fault, Stage], None]


def strike(ring: Ring, fault: Fault) -> None:
    """Let a fault happen."""
    workers = [worker for worker in ring.engine.workers if isinstance(worker, Stage) and worker is not ring.operator]
    ring.judge.trouble()
    if workers:
        STRIKES[fault.kind](ring, fault, workers[fault.who % len(workers)])
    ring.engine.stir()


def _kill(ring: Ring, fault: Fault, worker: Stage) -> None:
    worker.fuse = fault.much % 12
    worker.lost = fault.much % 5 == 0


def _pause(ring: Ring, fault: Fault, worker: Stage) -> None:
    ring.pause(worker, PAUSES[fault.much % len(PAUSES)])


def _rebalance(ring: Ring, fault: Fault, worker: Stage) -> None:
    worker.group.shuffle()


def _join(ring: Ring, fault: Fault, worker: Stage) -> None:
    ring.join(fault.who % 3)


def _jump(ring: Ring, fault: Fault, worker: Stage) -> None:
    ring.jump(JUMPS[fault.much % len(JUMPS)])


def _lose(ring: Ring, fault: Fault, worker: Stage) -> None:
    ring.broker.trim(FETCHES.name, fault.who % ring.plan.shards)


def _expire(ring: Ring, fault: Fault, worker: Stage) -> None:
    ring.broker.trim(PAGES.name, fault.who % ring.plan.shards)
    ring.hours = 0


def _twice(ring: Ring, fault: Fault, worker: Stage) -> None:
    worker.twice = True


def _seed(ring: Ring, fault: Fault, worker: Stage) -> None:
    ring.seed(_crawl(ring, fault), _url(ring, fault), refetch=fault.much % 3 == 0, late=True)


def _update(ring: Ring, fault: Fault, worker: Stage) -> None:
    ring.operator.update(_crawl(ring, fault), operator.slower if fault.much % 2 else operator.fewer)


def _hold(ring: Ring, fault: Fault, worker: Stage) -> None:
    ring.operator.hold(_crawl(ring, fault), HOLDS[fault.much % len(HOLDS)])


def _rules(ring: Ring, fault: Fault, worker: Stage) -> None:
    """Two people at a time; who is second does it again."""
    name = _crawl(ring, fault)
    for number in range(1 + fault.much % 2):
        rng = random.Random(f"rules {ring.plan.seed} {fault} {number}")
        ring.operator.update(name, operator.ruled(*crawls.rules(ring.plan, ring.web, rng)))


def _forget(ring: Ring, fault: Fault, worker: Stage) -> None:
    ring.operator.forget(_crawl(ring, fault), _url(ring, fault), host=fault.much % 4 == 0)


def _cancel(ring: Ring, fault: Fault, worker: Stage) -> None:
    ring.operator.update(_crawl(ring, fault), operator.cancelled(ring.engine.broker()))


def _crawl(ring: Ring, fault: Fault) -> str:
    return f"c{fault.who % ring.plan.crawls}"


def _url(ring: Ring, fault: Fault) -> str:
    return ring.web.names[fault.much % len(ring.web.names)]


STRIKES: dict[Kind, Strike] = {
    "kill": _kill, "pause": _pause, "rebalance": _rebalance, "join": _join, "jump": _jump, "lose": _lose,
    "expire": _expire, "twice": _twice, "seed": _seed, "update": _update, "hold": _hold, "rules": _rules,
    "forget": _forget, "cancel": _cancel,
}  # fmt: skip
