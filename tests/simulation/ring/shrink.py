"""A failing schedule made smaller while it still fails in the same way: by bisection over its faults and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.ring.plan import Plan

TRIES = 400
"""Schedules that are run at most."""


def shrink(plan: Plan, fails: Callable[[Plan], bool], tries: int = TRIES) -> Plan:
    """The smallest form that was found. Deterministic: from the largest steps to the smallest, until none helps."""
    while True:
        for smaller in _smaller(plan):
            tries -= 1
            if tries < 0:
                return plan
            if fails(smaller):
                plan = smaller
                break
        else:
            return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    size = len(plan.faults)
    while size:
        for at in range(0, len(plan.faults), size):
            yield replace(plan, faults=plan.faults[:at] + plan.faults[at + size :])
        size //= 2
    for name in ("crawls", "workers", "urls", "hosts", "shards"):
        number = getattr(plan, name)
        for fewer in dict.fromkeys((1, number // 2, number - 1)):
            if 0 < fewer < number:
                yield replace(plan, **{name: fewer})
    for quirk in plan.quirks:
        yield replace(plan, quirks=tuple(kept for kept in plan.quirks if kept != quirk))
