"""The checker is put to the test: builds that break a promise must be caught, the product under the same faults not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from streams.topics import RECORDS
from tests.faults import tables
from tests.faults.bench import Bench
from tests.faults.fleet import PATIENCE
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.sabotage import build
from tests.faults.service import Crawling, Service
from tests.faults.workers import Process
from tests.faults.zombie_frontier import haunt, mended

LONGEST = 45.0
"""Seconds that a wrong build may take longer than its delays; what hangs is judged as it is."""

REFUSED = 10.0
"""Seconds for which the brokers refuse what workers send."""

LOST = ("lost", "the end was not announced")
ACKED = ("acked before it was done",)
SPARSE = 6.0
"""Delay of a host (seconds), longer than a take-over needs: a request right after one is too early."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is done to a crawl by a build, and what its verdict must name: each of `signs`.

    `delay`, `size`: of the crawl; None: as the dose says.
    """

    name: str
    fault: Callable[[Crawling], None]
    signs: tuple[tuple[str, ...], ...]
    delay: float = 0.04
    size: int | None = None


def kills(*stages: str) -> Callable[[Crawling], None]:
    """SIGKILL to a worker of each stage, one after the other."""

    def fault(crawl: Crawling) -> None:
        for stage in stages:
            crawl.kill(in_use(crawl, stage))
            crawl.workers.rest(3.0)

    return fault


def leaves(*stages: str) -> Callable[[Crawling], None]:
    """SIGTERM to the dynamic member of each stage, so that the other one takes over at once; then its return."""

    def fault(crawl: Crawling) -> None:
        for stage in stages:
            process = crawl.workers.all[f"{stage}-2"]
            crawl.workers.until(process.serves, f"{process.name} owns partitions")
            with crawl.fault("leave", stage):
                process.end(30.0)
                crawl.workers.rest(4.0)
                process.start()
            crawl.workers.until(process.serves, f"{process.name} owns partitions again")

    return fault


def in_use(crawl: Crawling, stage: str) -> Process:
    """A worker of a stage that owns partitions: a build that acks early has nothing in flight."""
    return crawl.workers.busy(stage, least=0)


def refusals(crawl: Crawling) -> None:
    """For a while the brokers take no record that is longer than a few bytes: what sends one must say so, and end."""
    with crawl.fault("refused", "parser"):
        asyncio.run(limit(crawl.service, 64))
        crawl.workers.rest(REFUSED)
        asyncio.run(limit(crawl.service, crawl.service.settings.kafka.max_message))


async def limit(service: Service, size: int) -> None:
    """The largest batch of `records`, in bytes."""
    own = RECORDS.configs(size) | {"max.message.bytes": str(size)}
    await service.configure(RECORDS, own)


def haunted(crawl: Crawling) -> None:
    """A frontier's rows land after another one has taken over."""
    assert haunt(crawl), "nothing landed"


TRIALS = (
    Trial("commit-early", kills("fetcher", "parser", "frontier"), (LOST, ACKED)),
    Trial("swallow-errors", refusals, (LOST,)),
    Trial("drop-last-batch", leaves("fetcher", "parser", "frontier"), (LOST, ACKED)),
    Trial("ack-out-of-order", kills("fetcher", "fetcher"), (ACKED,)),
    Trial("forget-delay", leaves("fetcher"), (("politeness",),), SPARSE, 80),
    Trial("write-unfenced", haunted, (("not what the changelog says",),), 0.15),
)


def sabotaged(bench: Bench, dose: Dose) -> Verdict:
    """Each build runs a crawl under faults that a right one stands; then so does the right one, under the same."""
    verdict = Verdict()
    for trial in TRIALS[: dose.times]:
        found = tried(bench, dose, trial, trial.name)
        missing = [signs for signs in trial.signs if not any(s in p for p in found.problems for s in signs)]
        verdict.figures[trial.name] = "not caught" if missing else "caught"
        verdict.require(not missing, f"{trial.name}: nothing of {missing} in {found.figures} {found.problems[:5]}")
        control = tried(bench, dose, trial, "")
        verdict.problems += [f"the product in the place of {trial.name}: {problem}" for problem in control.problems]
    return verdict


def tried(bench: Bench, dose: Dose, trial: Trial, name: str) -> Verdict:
    """A crawl by a build (the product without a name), and its verdict; that it did not end is a problem, too."""
    verdict = Verdict()
    with (
        bench.own_service(command=build("trap", *filter(None, [name]))) as service,
        bench.crawl(service, size=trial.size or dose.size, delay=trial.delay, pause=0.05) as crawl,
    ):
        try:
            crawl.reach(0.1)
            trial.fault(crawl)
            crawl.finish((LONGEST if name else PATIENCE) + 1.5 * crawl.site.pages * trial.delay)
        except AssertionError as error:
            verdict.problems.append(str(error).splitlines()[0])
        if trial.fault is haunted:
            if not name:
                mended(service)
            verdict.add(tables.agree(service))
        verdict.add(crawl.verdict())
    print(f"    {name or 'the product'} ({trial.name}): {verdict.figures} {verdict.problems[:3]}", flush=True)
    return verdict


LINES = (
    Line(
        "sabotage",
        "builds that commit early, swallow producer errors, drop the last batch, ack out of order, forget the host's "
        "delay on hand-over, write without fencing",
        "each is caught by the checker, the product under the same faults is not",
        sabotaged,
        Dose("6 builds, a crawl of 1,600 URLs each, and the product beside each", times=6, size=1_600),
        None,  # its fast form are the tables in tests/unit/faults/test_sabotage.py
    ),
)  # fmt: skip
