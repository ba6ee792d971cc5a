"""Workers are stopped for longer than the session time-out and go on: others have had their work since."""

from __future__ import annotations

from tests.faults.bench import Bench
from tests.faults.fleet import STAGES
from tests.faults.kills import seconds_of
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.service import HEARTBEAT, SESSION, Crawling
from tests.faults.workers import Process

FROZEN = SESSION + 2 * HEARTBEAT
"""Seconds: until the group has surely given the partitions away."""

ROUND = FROZEN + 20.0
"""Seconds that a round takes at most as a rule: freeze, take-over, return."""


def zombies(bench: Bench, dose: Dose) -> Verdict:
    """In each round one worker of every kind that has work in flight is stopped, all at the same time."""
    in_flight = dict.fromkeys(STAGES, 0)
    with bench.crawl(bench.service, size=dose.size, delay=rate(dose), pause=0.03) as crawl:
        crawl.reach(0.02)
        for _ in range(dose.times):
            frozen = [chosen(crawl, stage, in_flight) for stage in STAGES]
            crawl.frozen(frozen, FROZEN)
            crawl.workers.until(crawl.workers.serve, "all workers own partitions again")
            if crawl.fetched() >= 0.97 * crawl.site.size:
                break
        crawl.finish(seconds_of(crawl))
        verdict = crawl.verdict()
    rounds = len(crawl.faults) // len(STAGES)
    verdict.figures |= {"rounds": rounds} | {f"in flight in frozen {k}s": n for k, n in in_flight.items()}
    verdict.require(rounds == dose.times, f"the crawl was over after {rounds} of {dose.times} rounds")
    return verdict


def rate(dose: Dose) -> float:
    """The delay with which eight hosts last for all rounds."""
    return max(0.02, dose.times * ROUND * 8 / dose.size)


def chosen(crawl: Crawling, stage: str, in_flight: dict[str, int]) -> Process:
    """A worker of a stage with work in flight; the exporter's is done in a moment, so it need not have any."""
    process = crawl.workers.busy(stage, least=0 if stage == "exporter" else 1)
    in_flight[stage] += int(process.numbers().get("fyke_in_flight", 0))
    return process


LINES = (
    Line(
        "zombies", "zombie worker of each kind",
        "lost 0; no commit moves backwards, no politeness break, late results ignored or idempotent",
        zombies,
        Dose("SIGSTOP longer than the session time-out under load, then SIGCONT: 20 times each; 12,000 URLs",
             times=20, size=12_000),
        Dose("SIGSTOP longer than the session time-out under load, then SIGCONT: 2 times each; 2,400 URLs",
             times=2, size=2_400),
    ),
)  # fmt: skip
