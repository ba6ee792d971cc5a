"""A frontier stands still with a batch of rows in its send buffer; another owns its shards when the batch lands.

What landed does not count (`streams.state.fencing`): the new owner must not take it over, and must write its own rows
again, since compaction would keep what is newest. So its table is what its changelog says, compacted or not.
"""

from __future__ import annotations

import asyncio
import time

from streams.topics import CHANGELOG, INBOX, URLS
from tests.faults import facts, tables, trap
from tests.faults.bench import Bench
from tests.faults.checker import Fault
from tests.faults.kills import seconds_of
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.sabotage import build
from tests.faults.service import HEARTBEAT, REBALANCE, SESSION, Crawling, Service
from tests.faults.workers import Process

FROZEN = SESSION + 2 * HEARTBEAT
"""Seconds a frontier stands still at least."""

OWNED = 3.0
"""Seconds for which the other one owns all shards, and writes rows of its own, before the batch lands."""

MENDED = 90.0
"""Seconds within which an owner has written again what a stale batch covered: an idle one looks each minute."""

CLEANED = 120.0
"""Seconds that the broker's log cleaner may take once all may be compacted."""


def zombie_frontier(bench: Bench, dose: Dose) -> Verdict:
    """`times` rounds; then the changelog is compacted by the brokers, and all tables are compared with it."""
    verdict = Verdict()
    with (
        bench.own_service(command=build("trap")) as service,
        bench.crawl(service, size=dose.size, delay=max(0.05, dose.times * 35.0 * 8 / dose.size), pause=0.03) as crawl,
    ):
        crawl.reach(0.05)
        landed = [haunt(crawl) for _ in range(dose.times)]
        slowest = mended(service)
        crawl.finish(seconds_of(crawl))
        verdict.add(crawl.verdict())
        verdict.add(tables.agree(service))
        before, after = compacted(service)
        verdict.add(tables.agree(service, compacted=True), "compacted: ")
    verdict.figures |= {
        "rounds": dose.times, "stale records that landed": sum(landed), "seconds until all is written again": slowest,
        "changelog records": before, "after compaction": after,
    }  # fmt: skip
    verdict.require(all(landed), f"nothing landed in some rounds: {landed}")
    verdict.require(after < before, f"the brokers compacted nothing of {before} records")
    return verdict


def haunt(crawl: Crawling) -> int:
    """One round: how many records landed after others had taken over."""
    crawl.workers.until(crawl.workers.serve, "all workers own partitions")
    partitions = asyncio.run(all_partitions(crawl.service))
    process, at = held(crawl)
    (other,) = [each for each in crawl.workers.of("frontier") if each is not process]
    crawl.workers.rest(FROZEN)
    crawl.workers.until(lambda: _owned(other) == partitions, f"{other.name} owns all partitions")
    crawl.workers.rest(OWNED)
    before = written_stale(crawl.service)
    thawed = trap.release(process)
    crawl.faults.append(Fault("freeze frontier", at, thawed + SESSION + REBALANCE, thawed, "frontier"))
    crawl.workers.until(crawl.workers.serve, "all workers own partitions again")
    return written_stale(crawl.service) - before


def held(crawl: Crawling) -> tuple[Process, float]:
    """A frontier that has stopped itself with rows in its buffer, and when."""
    process = crawl.workers.busy("frontier", least=0)
    trap.lay(process)
    crawl.workers.until(lambda: trap.sprung(process), f"{process.name} writes rows")
    return process, time.time()


async def all_partitions(service: Service) -> int:
    """How many partitions the frontiers own together: a sum of what they say may count one twice, in a rebalance."""
    names = [service.prefix + topic.name for topic in (URLS, INBOX)]
    return sum(map(len, (await facts.ends(service.bootstrap, names)).values()))


def _owned(process: Process) -> int:
    return round(process.numbers().get("fyke_assigned_partitions", 0.0))


def written_stale(service: Service) -> int:
    """Records of the changelog that came after the marker of a newer owner."""
    return sum(tables.late(log) for log in tables.changelog(service).values())


def mended(service: Service) -> float:
    """Seconds until every key's newest record counts."""
    return service.workers.until(
        lambda: not tables.stale(tables.changelog(service)), "stale rows are written again", MENDED
    )


def compacted(service: Service) -> tuple[int, int]:
    """Have the brokers compact the changelog; how many records it had, and has now.

    Only closed segments are compacted: they are made short, and frontiers that start write a record to each.
    """
    before = sum(map(len, tables.changelog(service).values()))
    asyncio.run(let_compact(service))
    for process in service.workers.of("frontier"):
        process.kill()
        process.start()
        service.workers.until(service.workers.serve, "all frontiers own shards again")
    counts: list[int] = []

    def fewer() -> bool:
        counts.append(sum(map(len, tables.changelog(service).values())))
        return counts[-1] < before

    try:
        service.workers.until(fewer, "the changelog is compacted", CLEANED)
    except AssertionError:
        return before, before
    return before, counts[-1]


async def let_compact(service: Service) -> None:
    """Any record may be compacted at once, whatever it saves."""
    own = CHANGELOG.configs(service.settings.kafka.max_message) | {
        "min.compaction.lag.ms": "0", "max.compaction.lag.ms": "1000", "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "1000",
    }  # fmt: skip
    await service.configure(CHANGELOG, own)


LINES = (
    Line(
        "zombie-frontier", "zombie frontier with a batch in its send buffer",
        "lost 0; what lands after the take-over does not count: each table equals the fold of its changelog, compacted "
        "or not",
        zombie_frontier,
        Dose("stopped with a batch of rows that is not sent, take-over, SIGCONT: 10 times; 6,000 URLs",
             times=10, size=6_000),
        Dose("stopped with a batch of rows that is not sent, take-over, SIGCONT: once; 1,200 URLs",
             times=1, size=1_200),
    ),
)  # fmt: skip
