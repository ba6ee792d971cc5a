"""A deployment is rolled: every worker, one after the other, is stopped in order and started again under its name."""

from __future__ import annotations

from collections import Counter

from tests.faults.bench import Bench
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.service import Crawling
from tests.faults.workers import Process

ABSENT = 60.0
"""Seconds: the session time-out, within which a worker must have ended and started again; a loaded machine is slow."""


def rolling_restart(bench: Bench, dose: Dose) -> Verdict:
    """`times` rounds. A generation change is seen by the members that stay: each of them counts its rebalances."""
    changes: Counter[str] = Counter()
    slowest: Counter[str] = Counter()
    with (
        bench.own_service({"kafka.session_timeout": ABSENT}, static=lambda _stage, _number: True) as service,
        bench.crawl(service, size=dose.size, hosts=16, delay=0.3) as crawl,
    ):
        crawl.reach(0.02)
        for _ in range(dose.times):
            for process in crawl.workers.of():
                changes[process.stage] += roll(crawl, process, slowest)
        crawl.finish(patience=300 + 2 * dose.size * 0.3)
        verdict = crawl.verdict()
    verdict.figures |= {f"generation changes of {stage}": count for stage, count in changes.items()}
    verdict.figures |= {f"slowest restart of a {stage}, s": seconds for stage, seconds in slowest.items()}
    verdict.require(changes["frontier"] == 0, f"{changes['frontier']} generation changes of the frontier group")
    for stage, count in changes.items():
        verdict.require(count <= dose.times, f"{count} generation changes of {stage} in {dose.times} rounds")
    return verdict


def roll(crawl: Crawling, process: Process, slowest: Counter[str]) -> int:
    """Stop one worker and start it again; the rebalances that others of its stage saw meanwhile."""
    others = [other for other in crawl.workers.of(process.stage) if other is not process]
    before = {other.name: _rebalances(other) for other in others}
    with crawl.fault("restart", process.stage):
        seconds, code = process.end(ABSENT)
        assert code == 0, f"{process.name} ended with {code}:\n{process.said()[-2000:]}"
        process.start()
        seconds += crawl.workers.until(process.serves, f"{process.name} owns partitions again")
    slowest[process.stage] = max(slowest[process.stage], round(seconds))
    return max((round(_rebalances(other) - before[other.name]) for other in others), default=0)


def _rebalances(process: Process) -> float:
    return process.numbers().get("fyke_rebalances_total", 0.0)


LINES = (
    Line(
        "rolling-restart", "rolling restart with static membership",
        "lost 0; 0 generation changes of the frontier group, at most 1 a round elsewhere",
        rolling_restart,
        Dose("3 rounds of SIGTERM and start, 7 workers, 6,000 URLs", times=3, size=6_000),
        Dose("1 round of SIGTERM and start, 7 workers, 1,200 URLs", times=1, size=1_200),
    ),
)  # fmt: skip
