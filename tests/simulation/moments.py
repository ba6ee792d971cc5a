"""Named schedules are small plans and the moment at which something strikes."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.ring.frontier import FrontierWorker
from tests.simulation.ring.plan import Plan
from tests.simulation.ring.ring import BUILD, Ring


def play(plan: Plan, moment: Callable[[Ring], bool], strike: Callable[[Ring], None], times: int = 1) -> Ring:
    """Run a plan; at the moment, and at the next ones, something strikes."""
    ring = Ring(plan, BUILD)
    with ring.time():
        for _ in range(times):
            while not moment(ring):
                assert ring.advance(), "the moment never came"
            strike(ring)
            ring.judge.trouble()
        ring.run()
    ring.close()
    return ring


def told_to_wait(ring: Ring) -> bool:
    """A host has asked to be left alone, and the frontier was told."""
    return any(host.hold > ring.engine.time for host in ring.judge.wire.hosts.values())


def on_the_wire(ring: Ring) -> bool:
    return any(ring.judge.wire.running.values())


def orders_wait(ring: Ring) -> bool:
    committed = ring.groups[1].committed
    return any(ring.broker.end(*place) > committed.get(place, 0) + 1 for place in ring.groups[1].places)


def orders_out(ring: Ring) -> bool:
    """Orders were released that nobody has answered."""
    owners = (worker for worker in ring.workers(FrontierWorker) if isinstance(worker, FrontierWorker))
    shards = [shard for worker in owners for shard in worker.shards.values()]
    return sum(shard.unanswered() for shard in shards) > 1
