"""The way between workers and brokers, or to the name server, fails for a while, and a broker stands still."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agents.cli.configuration import override
from tests.faults.bench import Bench
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.proxy import State, proxy
from tests.faults.service import SESSION, WORKING, Service
from tests.faults.workers import Process

FAILING: tuple[State, ...] = ("cut", "hole", "deaf")
BACK = 60.0
"""Seconds within which workers have their partitions again."""

DNS_FAILING = ("fail", "silent")


def network_cut(bench: Bench, dose: Dose) -> Verdict:
    """One worker of each kind reaches Kafka by a way that fails for longer than the session time-out."""
    slowest = 0.0
    nodes = bench.cluster.nodes.values()
    with bench.own_service() as service, proxy({node.detour: node.behind for node in nodes}) as way:
        ours = [detour(service, process) for process in service.workers.all.values() if process.name.endswith("-2")]
        service.workers.until(service.workers.serve, "all workers own partitions, some by the detour")
        assert way.taken
        with bench.crawl(service, size=dose.size, hosts=16, delay=0.3) as crawl:
            crawl.reach(0.02)
            for _ in range(dose.times):
                for state in FAILING:
                    for stage in WORKING:
                        crawl.workers.busy(stage)
                    with crawl.fault(f"network {state}"):
                        way.turn(state)
                        crawl.workers.rest(2 * SESSION)
                        way.turn("open")
                    back = crawl.workers.until(lambda: all(each.serves() for each in ours), "the cut ones are back")
                    slowest = max(slowest, back)
            crawl.finish(patience=300 + 2 * dose.size * 0.3)
            verdict = crawl.verdict()
    verdict.figures |= {"slowest return after the network, s": round(slowest, 1)}
    verdict.require(slowest <= BACK, f"a worker was back after {slowest:.0f} s, not {BACK:.0f}")
    return verdict


def detour(service: Service, process: Process) -> Process:
    """Let a worker reach Kafka by the proxy only: the brokers tell who asks there that they are to be found there."""
    addresses = ",".join(f"127.0.0.1:{node.detour}" for node in service.cluster.nodes.values())
    process.kill()
    process.settings = override(process.settings, {"kafka.bootstrap": addresses})
    process.start()
    return process


def broker_pause(bench: Bench, dose: Dose) -> Verdict:
    """SIGSTOP of the node that leads a partition of `inbox`, then SIGCONT; one node after the other."""
    slowest = 0.0
    cluster = bench.cluster
    with bench.crawl(bench.service, size=dose.size, hosts=16, delay=0.3) as crawl:
        crawl.reach(0.02)
        for number in range(dose.times):
            node = cluster.leader_of(f"{crawl.service.prefix}inbox", number % 4)
            with crawl.fault("broker pause"):
                cluster.freeze(node)
                try:
                    crawl.workers.rest(dose.seconds)
                finally:
                    cluster.thaw(node)
            slowest = max(slowest, crawl.workers.until(crawl.workers.serve, "all workers own partitions"))
            cluster.wait_in_sync()
        crawl.finish(patience=300 + 2 * dose.size * 0.3)
        verdict = crawl.verdict()
    verdict.figures |= {"slowest return after the pause, s": round(slowest, 1)}
    verdict.require(slowest <= BACK, f"back to normal after {slowest:.0f} s, not {BACK:.0f}")
    return verdict


def dns_failures(bench: Bench, dose: Dose) -> Verdict:
    """The name server fails, then is silent: no URL pays for it, hosts are asked again when it is back."""
    control = bench.folder / f"{bench.line}.names"
    control.write_text("ok")

    def named(stage: str) -> Sequence[str]:
        return sys.executable, "-m", "tests.faults.names", str(control), "worker", stage

    settings = {"fetch.connect_to": (f":::{bench.web.port}",)}  # the port is changed, the name is looked up
    with (
        bench.own_service(settings, command=named) as service,
        bench.crawl(service, size=dose.size, hosts=dose.size // 20, delay=0.5) as crawl,
    ):
        crawl.reach(0.1)
        for state in DNS_FAILING:
            control.write_text(state)
            asked = crawl.fetched()
            crawl.workers.rest(dose.seconds)
            control.write_text("ok")
            print(f"names {state}: {crawl.fetched() - asked} pages in {dose.seconds:.0f} s")
        began = time.monotonic()
        crawl.finish(patience=900)
        verdict = crawl.verdict()
    verdict.figures |= {
        "look-ups that failed": _failed(control),
        "seconds until the end once names were back": round(time.monotonic() - began),
    }
    verdict.require(_failed(control) > 0, "no look-up failed")
    return verdict


def _failed(control: Path) -> int:
    try:
        return control.with_suffix(".failed").stat().st_size
    except FileNotFoundError:
        return 0


LINES = (
    Line(
        "network-cut", "network cut between worker and broker", f"lost 0; politeness; partitions again ≤ {BACK:.0f} s",
        network_cut,
        Dose("cut, black hole, half open; 12 s each, twice; a worker of each kind; 9,000 URLs", times=2, size=9_000),
        Dose("cut, black hole, half open; 12 s each; a worker of each kind; 4,000 URLs", times=1, size=4_000),
    ),
    Line(
        "broker-pause", "broker pause", f"lost 0; back to normal ≤ {BACK:.0f} s",
        broker_pause,
        Dose("SIGSTOP of a leader for 30 s, 3 times, 9,000 URLs", times=3, seconds=30, size=9_000),
        Dose("SIGSTOP of a leader for 12 s, 1,600 URLs", times=1, seconds=12, size=1_600),
    ),
    Line(
        "dns-failures", "DNS failures", "lost 0; no URL fails for it",
        dns_failures,
        Dose("look-ups fail for 30 s, then none is answered for 30 s, 2,000 URLs on 100 hosts", seconds=30, size=2_000),
        None,
    ),
)  # fmt: skip
