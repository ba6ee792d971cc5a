"""Brokers are killed: leaders of the three nodes one after the other, and the only one of a `fyke crawl`."""

from __future__ import annotations

import os
import signal
import time

from tests.faults import checker
from tests.faults.bench import Bench
from tests.faults.checker import Limits
from tests.faults.fleet import STAGES, Fleet, arguments, fleet
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.service import Crawling
from tests.faults.site import Site
from tests.sites import asserts

LED = ("inbox", "fetches", "pages", "frontier-rows-changelog", "urls")
DOWN = 2.0
"""Seconds between a broker's death and its restart."""

BACK = 60.0
"""Seconds within which work goes on by itself."""

APART = 25.0
"""Seconds between two kills of an embedded broker: three in a minute are taken for hopeless."""

PAGES_ON = 20


def broker_bounce(bench: Bench, dose: Dose) -> Verdict:
    """SIGKILL to the node that leads a partition in use, or the one that leads the groups' offsets; then its restart.

    The next bounce waits for the replicas: with two nodes away, nothing would be promised.
    """
    recoveries: list[float] = []
    with bench.crawl(bench.service, size=dose.size, hosts=16, delay=0.1, pause=0.03) as crawl:
        crawl.reach(0.03)
        cluster = crawl.service.cluster
        for number in range(dose.times):
            cluster.wait_in_sync()
            topic, partition = "__consumer_offsets", 0
            if number % 3:
                topic, partition = crawl.service.prefix + bench.random.choice(LED), bench.random.randrange(4)
            leader = cluster.leader_of(topic, partition)
            before, killed = crawl.fetched(), time.monotonic()
            with crawl.fault("broker kill"):
                cluster.kill(leader)
                crawl.workers.rest(DOWN)
                cluster.restart(leader)
            recoveries.append(recovery(crawl, before, killed))
            print(f"    killed node {leader}, leader of {topic}-{partition}; back after {recoveries[-1]:.1f} s")
        cluster.wait_in_sync()
        crawl.finish(600)
        verdict = crawl.verdict()
    verdict.figures |= {"bounces": len(recoveries), "longest recovery, s": max(recoveries)}
    verdict.require(max(recoveries) <= BACK, f"recovered after {recoveries} s")
    return verdict


def recovery(crawl: Crawling, before: int, killed: float) -> float:
    """Seconds from the kill until pages are fetched again and all workers own partitions."""
    crawl.workers.until(lambda: crawl.fetched() >= before + PAGES_ON, "pages are fetched again")
    crawl.workers.until(crawl.workers.serve, "all workers own partitions again")
    return time.monotonic() - killed


def embedded(bench: Bench, dose: Dose) -> Verdict:
    """A person's `fyke crawl`: its broker is killed, and one worker of each kind, which its supervisor starts again."""
    site = Site(f"{bench.line}.test", bench.random.randrange(1 << 32), 8, dose.size // 8, pause=0.03)
    limits = Limits(0.1, 2)
    bench.web.add(site)
    with fleet(bench.new_folder("crawl"), 2) as ours:
        began = time.time()
        options = ("--name", "embedded", "--delay", f"{limits.delay:g}", "--parallelism", str(limits.parallelism))
        everywhere = ("--connect-to", f"::127.0.0.1:{bench.web.port}", "--scope", "domain")
        ours.start(*arguments(site.seeds(), ours, everywhere, *options))
        ours.until(lambda: bench.web.count(site) >= site.size // 50, "the crawl is under way")
        kill_brokers(ours, dose.times)
        for stage in STAGES:
            ours.kill(ours.busy(stage, least=0))
        output = ours.end(seconds=600)
        found = asserts.read(ours.crawl.out)
    requests = bench.web.entries(site)
    verdict = sets(site, [record["url"] for record in found.records],
                   [failure["url"] for failure in found.failures if failure["next"]["action"] == "none"])  # fmt: skip
    repeated = checker.repeats(requests)
    verdict.figures |= {"fetches repeated": repeated, "pages": len(found.records), "seconds": time.time() - began}
    verdict.problems += checker.politeness_problems(requests, limits)
    verdict.require("The broker is back" in output, "the command does not say that the broker was back")
    verdict.require(f"restarts   {len(STAGES)} of worker processes" in output, f"restarts: {output[-600:]}")
    return verdict


def kill_brokers(ours: Fleet, times: int) -> None:
    """SIGKILL to the crawl's own broker, which the command starts again; pages are fetched between two of them."""
    for number in range(times):
        began = time.monotonic()
        pid = ours.broker().status().pid
        os.kill(pid, signal.SIGKILL)
        ours.until(lambda pid=pid: ours.broker().status().pid not in (0, pid), "the broker runs again")  # type: ignore[misc]  # bound now
        if number < times - 1:
            ours.until(lambda began=began: time.monotonic() - began >= APART, "some time passes")  # type: ignore[misc]  # bound now


def sets(site: Site, records: list[str], failures: list[str]) -> Verdict:
    """Every page is exported once, every missing one as a failure, and nothing else."""
    expected = site.expected()
    verdict = Verdict()
    for fate, written in (("done", records), ("failed", failures)):
        wanted = {url for url, found in expected.items() if found == fate}
        lost, unexpected = wanted - set(written), set(written) - wanted
        verdict.figures |= {f"{fate} lost": len(lost), f"{fate} twice": len(written) - len(set(written))}
        verdict.require(not lost, f"{fate}: lost: {sorted(lost)[:8]}")
        verdict.require(not unexpected, f"{fate}: unexpected: {sorted(unexpected)[:8]}")
        verdict.require(len(written) == len(set(written)), f"{fate}: lines twice")
    return verdict


LINES = (
    Line(
        "broker-bounce", "broker bounce", "lost 0; recovers by itself ≤ 60 s",
        broker_bounce,
        Dose("5 hard bounces chasing leaders, 3 nodes, RF 3, min ISR 2; 12,000 URLs", times=5, size=12_000),
        None,  # what it needs of two cores varies too much for every change
    ),
    Line(
        "embedded-kill", "single embedded broker kill -9", "lost 0; workers killed beside it are started again",
        embedded,
        Dose("3 times, 12,000 URLs; then one worker of each kind", times=3, size=12_000),
        Dose("once, 2,400 URLs; then one worker of each kind", times=1, size=2_400),
    ),
)  # fmt: skip
