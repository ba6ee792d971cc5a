"""Brokers are killed: leaders of the three nodes one after the other, and the only one of a `fyke crawl`."""

from __future__ import annotations

import os
import re
import signal
import time

from tests.faults import checker
from tests.faults.bench import Bench
from tests.faults.checker import Limits
from tests.faults.fleet import STAGES, Fleet, arguments, fleet
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.service import DEATHS, Crawling
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
    """SIGKILL to the node that leads the groups' offsets, or a partition in use; then its restart.

    Each bounce meets a crawl of its own that has just begun: how long it takes until the replicas are in sync again is
    up to the machine, and of a crawl that ended meanwhile no page is to be had. The next bounce waits for the replicas:
    with two nodes away, nothing would be promised.
    """
    recoveries: list[float] = []
    whole = Verdict()
    for number in range(dose.times):
        with bench.crawl(bench.service, size=dose.size, hosts=16, delay=0.1, pause=0.03) as crawl:
            cluster = crawl.service.cluster
            cluster.wait_in_sync()
            crawl.reach(0.03)
            topic, partition = "__consumer_offsets", 0
            if number % 3:
                topic, partition = crawl.service.prefix + bench.random.choice(LED), bench.random.randrange(4)
            leader = cluster.leader_of(topic, partition)
            recoveries.append(bounce(crawl, leader))
            print(f"    killed node {leader}, leader of {topic}-{partition}; back after {recoveries[-1]:.1f} s")
            cluster.listening(leader)
            crawl.finish(600)
            take(whole, crawl.verdict())
    whole.figures |= {"bounces": len(recoveries), "longest recovery, s": max(recoveries)}
    whole.require(max(recoveries) <= BACK, f"recovered after {recoveries} s")
    return whole


def bounce(crawl: Crawling, node: int) -> float:
    """Kill a node, and start it again after a moment; seconds from the kill until all works again.

    That is: more pages are fetched than were on their way at the kill, and the coordinator confirms since then that all
    workers own partitions. The node itself may still be starting then: the other two are enough.
    """
    cluster, workers = crawl.service.cluster, crawl.workers
    with crawl.fault("broker kill"):
        wanted = crawl.fetched() + workers.unanswered() + PAGES_ON
        assert wanted < crawl.site.size, f"no {wanted} pages to be fetched: the site is too small"
        cluster.kill(node)
        killed = time.monotonic()
        workers.rest(DOWN)
        cluster.start(node)
        workers.until(lambda: crawl.fetched() >= wanted, "more pages are fetched than were on their way")
        workers.until(lambda: workers.serve(since=killed), "all workers own partitions again")
    return time.monotonic() - killed


def take(whole: Verdict, part: Verdict) -> None:
    """Add what was found in one of several crawls; deaths of workers are counted over all of them already."""
    for name, value in part.figures.items():
        adds_up = isinstance(value, int) and name != DEATHS
        whole.figures[name] = int(whole.figures.get(name, 0)) + int(value) if adds_up else value
    whole.problems += part.problems


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
    restarts = re.search(r"restarts +(\d+) of worker processes", output)
    verdict.figures |= {"restarts of workers": int(restarts[1]) if restarts else 0}
    verdict.require(restarts is not None and int(restarts[1]) >= len(STAGES), f"restarts: {output[-600:]}")
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
        Dose("5 hard bounces chasing leaders, 3 nodes, RF 3, min ISR 2; each in a crawl of 2,400 URLs",
             times=5, size=2_400),
        Dose("2 hard bounces chasing leaders, 3 nodes, RF 3, min ISR 2; each in a crawl of 2,400 URLs",
             times=2, size=2_400),
    ),
    Line(
        "embedded-kill", "single embedded broker kill -9", "lost 0; workers killed beside it are started again",
        embedded,
        Dose("3 times, 12,000 URLs; then one worker of each kind", times=3, size=12_000),
        Dose("once, 2,400 URLs; then one worker of each kind", times=1, size=2_400),
    ),
)  # fmt: skip
