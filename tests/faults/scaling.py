"""Workers come and go: in storms, by SIGTERM under load, and all fetchers at once for a long time."""

from __future__ import annotations

import statistics
import time

from tests.faults.bench import Bench
from tests.faults.kills import seconds_of
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.service import WORKING, Crawling
from tests.faults.workers import Process

WINDOWS = 3
KEPT = 0.95
"""Of the pages per CPU-second before a storm; see `Dose.seconds` for the windows."""

KEPT_SHORT = 0.7
"""In windows of a few seconds on a machine that others use."""

GRACE_SLACK = 3.0
"""Seconds from the end of a worker's grace until its process is gone."""


def storm(bench: Bench, dose: Dose) -> Verdict:
    """A worker joins or leaves every few seconds; before and after, what a CPU-second yields."""
    window = 30.0 if dose.seconds >= 120 else 6.0
    with bench.crawl(bench.service, size=dose.size, hosts=16, delay=0.1, pause=0.03) as crawl:
        crawl.reach(0.03)
        before = yields(crawl, window)
        for _ in range(dose.times):
            crawl.workers.rest(dose.seconds / dose.times)
            come_or_go(bench, crawl)
        for process in crawl.workers.of(*WORKING):
            if not process.pid:
                process.start()
        crawl.workers.until(crawl.workers.serve, "all workers own partitions again")
        crawl.workers.rest(5.0)
        after = yields(crawl, window)
        crawl.finish(seconds_of(crawl))
        verdict = crawl.verdict()
    kept = after / before
    verdict.figures |= {"pages per CPU-second before": before, "afterwards": after, "kept": kept}
    wanted = KEPT if dose.seconds >= 120 else KEPT_SHORT
    verdict.require(kept >= wanted, f"{kept:.0%} of the pages per CPU-second are left, not {wanted:.0%}")
    return verdict


def yields(crawl: Crawling, window: float) -> float:
    """Pages per CPU-second of all workers, the median of some windows."""
    found = []
    for _ in range(WINDOWS):
        pages, cpu = crawl.fetched(), crawl.workers.cpu()
        crawl.workers.rest(window)
        found.append((crawl.fetched() - pages) / max(crawl.workers.cpu() - cpu, 1e-3))
    return statistics.median(found)


def come_or_go(bench: Bench, crawl: Crawling) -> None:
    """The second worker of a stage leaves, by SIGTERM, or comes back."""
    process = crawl.workers.all[f"{bench.random.choice(WORKING)}-2"]
    if not process.pid:
        process.start()
        return
    with crawl.fault("leave", process.stage):
        process.end(crawl.service.settings.worker.grace + GRACE_SLACK)


def scale_down(bench: Bench, dose: Dose) -> Verdict:
    """SIGTERM to a worker with work in flight; it is started again once all its partitions have moved."""
    exits: list[tuple[str, float, int]] = []
    with bench.crawl(bench.service, size=dose.size, delay=0.06, pause=0.03) as crawl:
        grace = crawl.service.settings.worker.grace
        crawl.reach(0.02)
        for number in range(dose.times):
            if crawl.fetched() >= 0.95 * crawl.site.size:
                break
            process = crawl.workers.busy(WORKING[number % len(WORKING)])
            exits.append(left(crawl, process, grace))
            process.start()
        crawl.finish(seconds_of(crawl))
        verdict = crawl.verdict()
    longest = max(took for _, took, _ in exits)
    verdict.figures |= {"exits": len(exits), "longest exit, s": longest, "grace, s": grace}
    verdict.require(len(exits) == dose.times, f"the crawl was over after {len(exits)} of {dose.times} exits")
    verdict.require(longest <= grace, f"exits took {exits}")
    verdict.require(all(code == 0 for _, _, code in exits), f"exit codes: {exits}")
    return verdict


def left(crawl: Crawling, process: Process, grace: float) -> tuple[str, float, int]:
    """One exit: whose, how long, with which code."""
    with crawl.fault("term", process.stage):
        took, code = process.end(grace + GRACE_SLACK)
    return process.name, round(took, 2), code


def no_fetchers(bench: Bench, dose: Dose) -> Verdict:
    """No fetcher is there for as long as the frontier orders everything six times over, then they come back.

    An hour cannot be made to pass for running processes. What an hour does here is that an order stays unanswered for
    six times `frontier.answer_timeout` (600 s by default); so that time-out is shortened, and six of it are waited.
    """
    timeout = dose.seconds / 6
    with (
        bench.own_service({"frontier.answer_timeout": timeout}) as service,
        bench.crawl(service, size=dose.size, delay=0.04, pause=0.03) as crawl,
    ):
        crawl.reach(0.1)
        grace = service.settings.worker.grace
        for process in crawl.workers.of("fetcher"):
            left(crawl, process, grace)
        gone, before = time.monotonic(), crawl.fetched()
        crawl.workers.rest(dose.seconds)
        meanwhile = crawl.fetched() - before
        for process in crawl.workers.of("fetcher"):
            process.start()
        gone = time.monotonic() - gone
        crawl.finish(seconds_of(crawl))
        facts = crawl.collect()
        verdict = crawl.verdict()
    times = max((len(found) for found in facts.orders.values()), default=0)
    verdict.figures |= {"seconds without": gone, "answer time-out, s": timeout, "most orders of one URL": times}
    verdict.require(meanwhile == 0, f"{meanwhile} requests while no fetcher was there")
    verdict.require(times >= 4, f"a URL was ordered {times} times at most: the time-out was not met")
    return verdict


LINES = (
    Line(
        "rebalance-storm", "rebalance storm",
        "lost 0; pages per CPU-second afterwards ≥ 95 % of before (medians of three 30 s windows; short: ≥ 70 % in "
        "windows of 6 s); no early request",
        storm,
        Dose("20 joins or leaves in 120 s, 60,000 URLs", times=20, seconds=120, size=60_000),
        Dose("5 joins or leaves in 15 s, 8,000 URLs", times=5, seconds=15, size=8_000),
    ),
    Line(
        "scale-down", "scale down", "lost 0; repeats within bound; each exit ≤ grace, with exit code 0",
        scale_down,
        Dose("20 times SIGTERM under load, 16,000 URLs", times=20, size=16_000),
        Dose("3 times SIGTERM under load, 2,400 URLs", times=3, size=2_400),
    ),
    Line(
        "no-fetchers", "fetchers at zero for an hour (time-out of answers shortened instead of the clock moved)",
        "all URLs fetched once more at most",
        no_fetchers,
        Dose("an hour at 1:60: six answer time-outs of 10 s; 4,000 URLs", seconds=60, size=4_000),
        Dose("an hour at 1:300: six answer time-outs of 2 s; 1,600 URLs", seconds=12, size=1_600),
    ),
)  # fmt: skip
