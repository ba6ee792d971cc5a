"""What a commit promises: that all before it is done. Pure.

A fetcher commits over an order once its answer is in `inbox`, a parser over a page once its outcome is. Both times are
the brokers': records of `inbox` have the time of the append, offsets that of the commit. So a commit that came before
the answer is found even if nothing went wrong afterwards: no process need have died just then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from tests.faults.facts import Commit, Facts, Place

SLACK: Final = 0.002
"""Seconds: times are whole milliseconds."""

AHEAD: Final = 0.05
"""Seconds that the time of an order, which is its writer's notion of the brokers' time, may be ahead."""

SHOWN: Final = 8


def ack_problems(facts: Facts) -> list[str]:
    """Orders and pages that were committed before their answers and outcomes were there."""
    answered = {
        place: min((at for at in facts.answers.get(visit, ()) if at >= ordered - AHEAD), default=float("inf"))
        for place, (visit, ordered) in facts.order_places.items()
    }
    parsed = {place: facts.parsed.get(place, float("inf")) for place in facts.page_places}
    by_topic: dict[str, list[Commit]] = defaultdict(list)
    for commit in facts.commits:
        by_topic[commit.topic].append(commit)
    orders = list(_early(answered, by_topic["fetches"]))
    pages = list(_early(parsed, by_topic["pages"]))
    problems = []
    if orders:
        problems.append(f"acked before it was done: {len(orders)} orders: {orders[:SHOWN]}")
    if pages:
        problems.append(f"acked before it was done: {len(pages)} pages: {pages[:SHOWN]}")
    return problems


def _early(done: Mapping[Place, float], commits: list[Commit]) -> Iterator[str]:
    """Places that were committed over before they were done, and by how long."""
    by_partition: dict[int, list[Commit]] = defaultdict(list)
    for commit in sorted(commits, key=lambda commit: commit.at):
        log = by_partition[commit.partition]
        if not log or commit.offset > log[-1].offset:
            log.append(commit)
    waiting: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (partition, offset), at in sorted(done.items()):
        waiting[partition].append((offset, at))
    for partition, places in waiting.items():
        log, number = by_partition[partition], 0
        for offset, at in places:
            while number < len(log) and log[number].offset <= offset:
                number += 1
            if number == len(log):
                break
            if at > log[number].at + SLACK:
                late = "never answered" if at == float("inf") else f"answered {at - log[number].at:.3f} s later"
                yield f"{partition}@{offset} {late}"
