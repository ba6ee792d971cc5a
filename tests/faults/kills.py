"""Worker processes are killed: here and there for a minute, and in a burst."""

from __future__ import annotations

import time
from collections import Counter

from tests.faults.bench import Bench
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.service import WORKING, Crawling
from tests.faults.workers import Process

BACK = 60.0
"""Seconds within which everything must be as before."""


def victim(bench: Bench, crawl: Crawling) -> Process:
    """A random worker that runs."""
    return bench.random.choice([process for process in crawl.workers.all.values() if process.pid])


def worker_kill(bench: Bench, dose: Dose) -> Verdict:
    """A random worker every 0 to 6 seconds. The first of each kind is chosen while it has work in flight."""
    killed: Counter[str] = Counter()
    with bench.crawl(bench.service, size=dose.size, delay=0.04, pause=0.03) as crawl:
        crawl.reach(0.02)
        began = time.monotonic()
        for stage in bench.random.sample([*WORKING], len(WORKING)):
            if not dose.times or killed.total() < dose.times:
                crawl.kill(crawl.workers.busy(stage))
                killed[stage] += 1
        while time.monotonic() - began < dose.seconds:
            crawl.workers.rest(bench.random.uniform(0, 6))
            process = victim(bench, crawl)
            crawl.kill(process)
            killed[process.stage] += 1
        crawl.finish()
        verdict = crawl.verdict()
    verdict.figures |= {"kills": killed.total(), "of": ", ".join(f"{n} {stage}" for stage, n in killed.items())}
    return verdict


def burst(bench: Bench, dose: Dose) -> Verdict:
    """Kills spread over a time; then the rate must be what it was."""
    with bench.crawl(bench.service, size=dose.size, hosts=16, delay=0.2, pause=0.03) as crawl:
        crawl.reach(0.02)
        before = crawl.rate(5.0)
        for _ in range(dose.times):
            crawl.workers.rest(bench.random.uniform(0, 2 * dose.seconds / dose.times))
            crawl.kill(victim(bench, crawl))
        last = time.monotonic()
        crawl.workers.until(crawl.workers.serve, "all workers own partitions again")
        while (rate := crawl.rate(3.0)) < 0.8 * before and time.monotonic() - last < 3 * BACK:
            pass
        back = time.monotonic() - last
        crawl.finish(seconds_of(crawl))
        verdict = crawl.verdict()
    verdict.figures |= {"pages a second before": before, "afterwards": rate, "seconds until it was back": back}
    verdict.require(back <= BACK, f"back to normal after {back:.0f} s, not {BACK:.0f}")
    return verdict


def seconds_of(crawl: Crawling) -> float:
    """For the rest of a crawl, thrice what its delays need."""
    return 120 + 3 * crawl.site.pages * crawl.limits.delay


LINES = (
    Line(
        "worker-kill", "worker kill",
        "lost 0; one terminal row per URL; exported lines twice 0; fetches repeated ≤ released and unanswered at the "
        "kills",
        worker_kill,
        Dose("kill -9 a random worker every 0 to 6 s for 60 s, 12,000 URLs", times=0, seconds=60, size=12_000),
        Dose("kill -9 a random worker every 0 to 6 s for 15 s, 2,400 URLs", times=0, seconds=15, size=2_400),
    ),
    Line(
        "burst", "burst", "lost 0; back to normal ≤ 60 s after the last",
        burst,
        Dose("20 kills in 300 s, 40,000 URLs", times=20, seconds=300, size=40_000),
        Dose("5 kills in 15 s, 4,000 URLs", times=5, seconds=15, size=4_000),
    ),
)  # fmt: skip
