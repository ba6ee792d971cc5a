"""Named crash schedules that need several processes, and that every name has a test.

Each is a small plan and the moment at which something strikes. That nothing comes of it is for the judge to say
(`tests.simulation.ring.judge`): it raises at the first broken promise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from streams.codecs import decode
from streams.frontier.end import NOTHING, EndWatch
from streams.messages import Progress
from streams.topics import INBOX, URLS, shard_of
from tests.simulation.moments import on_the_wire, orders_wait, play, told_to_wait
from tests.simulation.named import NAMES
from tests.simulation.ring import operator
from tests.simulation.ring.faults import HOUR
from tests.simulation.ring.fetcher import FetcherWorker
from tests.simulation.ring.frontier import FrontierWorker
from tests.simulation.ring.judge import Broken
from tests.simulation.ring.mutants import nobody
from tests.simulation.ring.parser import ExporterWorker
from tests.simulation.ring.plan import Plan
from tests.simulation.ring.ring import BUILD, Ring
from tests.simulation.ring.stage import Build
from tests.simulation.ring.web import Answer, Page, Web

ROOT = Path(__file__).parents[2]
SEEDS = range(4)


def slower(ring: Ring) -> None:
    ring.operator.update("c0", operator.slower)


@pytest.mark.parametrize("seed", SEEDS)
def test_restart_after_429(seed: int) -> None:
    """Retry-After, then every frontier and fetcher dies: nobody comes back early."""

    def strike(ring: Ring) -> None:
        for worker in ring.workers(FrontierWorker) + ring.workers(FetcherWorker):
            ring.kill(worker)

    play(Plan(seed, 2, 20, 2, 1, 2, ("busy",)), told_to_wait, strike)


@pytest.mark.parametrize("seed", SEEDS)
def test_stale_orders(seed: int) -> None:
    """Fetchers die with orders waiting; who takes over gives these back, whatever they were released under."""

    def strike(ring: Ring) -> None:
        for worker in ring.workers(FetcherWorker):
            ring.kill(worker)

    ring = play(Plan(seed, 2, 20, 2, 1, 2, ("busy",)), orders_wait, strike)
    messages = [message for shard in range(2) for _, message in ring.broker.read(INBOX.name, shard, 0, 10_000)]
    results = {getattr(item, "result", "") for message in messages for item in getattr(message, "items", ())}
    assert "deferred" in results


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("seconds", [15.0, 60.0])
def test_frozen_owner(seed: int, seconds: float) -> None:
    """A fetcher is stopped with requests running, for less and for longer than its session."""
    play(Plan(seed, 2, 16, 2, 1, 2, ("slow", "delays")), on_the_wire,
         lambda ring: ring.pause(ring.workers(FetcherWorker)[0], seconds))  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_evicted_but_alive(seed: int) -> None:
    """Partitions move while requests run that nobody stopped."""
    play(Plan(seed, 2, 16, 2, 1, 3, ("slow", "delays")), on_the_wire, lambda ring: ring.groups[1].shuffle(), times=3)


@pytest.mark.parametrize("seed", SEEDS)
def test_rebalance_storm(seed: int) -> None:
    """Ten rebalances of every group in a row."""

    def strike(ring: Ring) -> None:
        for group in ring.groups:
            group.shuffle()
        ring.advance()

    play(Plan(seed, 3, 16, 2, 1, 3, ("delays",)), on_the_wire, strike, times=10)


@pytest.mark.parametrize("seed", SEEDS)
def test_late_rules(seed: int) -> None:
    """The delay is raised with orders out: from the moment a fetcher has read it, it holds."""
    play(Plan(seed, 1, 16, 1, 1, 1, ()), orders_wait, slower)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
@pytest.mark.parametrize("seed", SEEDS)
def test_clock_skew(seed: int, jump: int) -> None:
    """The broker's clock jumps while a host is to be left alone."""
    play(Plan(seed, 2, 20, 2, 1, 2, ("busy",)), told_to_wait, lambda ring: ring.jump(jump))


def test_robots_redirect() -> None:
    """robots.txt of one host lies on another: the clock of that one applies."""
    plans = (Plan(seed, 6, 20, 2, 1, 1, ("robots", "delays")) for seed in range(100))
    plan = next(plan for plan in plans if any(robots.moved for robots in Web(plan).robots.values()))
    play(plan, on_the_wire, lambda ring: ring.kill(ring.workers(FetcherWorker)[0]))


@pytest.mark.parametrize("seed", SEEDS)
def test_seed_in_flight(seed: int) -> None:
    """Whoever owns `urls` stops with seeds untaken while everything else goes on: no end before they are taken."""

    def strike(ring: Ring) -> None:
        owner = ring.groups[0].assignment[URLS.name, 0]
        assert isinstance(owner, FrontierWorker)
        ring.pause(owner, 15.0)

    play(Plan(seed, 2, 3, 2, 1, 2, ("narrow",)), lambda ring: bool(ring.groups[0].assignment), strike)


@pytest.mark.parametrize("seed", SEEDS)
def test_silent_shard(seed: int) -> None:
    """A shard that nobody owns for a minute."""
    play(Plan(seed, 2, 6, 2, 1, 2, ("narrow",)), on_the_wire,
         lambda ring: ring.pause(ring.workers(FrontierWorker)[0], 60.0))  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_export_behind(seed: int) -> None:
    """The exporter stands still until the crawl has ended: every record is written all the same."""
    ring = play(Plan(seed, 2, 10, 2, 1, 1, ()), on_the_wire,
                lambda ring: ring.pause(ring.workers(ExporterWorker)[0], 90.0))  # fmt: skip
    assert ring.folder.lines


LATE = "http://h1.example/late"
"""A page that only a seed after the seal leads to."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("moment", ["sure", "ended"])
def test_seed_after_the_last_look(seed: int, moment: str) -> None:
    """A seed that comes after the seal, when the end is sure but not announced, or just announced, has a row."""

    def strike(ring: Ring) -> None:
        ring.web.pages[LATE] = Page(Answer())
        ring.seed("c0", LATE, late=True)

    ring = play(Plan(seed, 2, 4, 2, 1, 2, ("narrow",)), lambda ring: bool(getattr(ring.judge, moment)), strike)
    assert LATE in {row.url for row in ring.judge.urls.values()}


CHAIN = ("http://h1.example/p1", "http://h0.example/then", "http://h1.example/again", "http://h0.example/last")
"""Each page links to the next one; the first is a seed."""


def closed(ring: Ring, shard: int) -> bool:
    """A shard has reported that it has fetched a page and has nothing open."""
    reports = [decode(Progress, value) for _, value in ring.broker.progress]
    last = next((report for report in reversed(reports) if report.shard == shard), None)
    counts = last.crawls.get("c0", NOTHING) if last is not None else NOTHING
    return counts.activity > 2 and not counts.open


def between_rounds(build: Build, seeds: Iterable[int]) -> int:
    """How often the owner of one shard died between the two rounds, while who announces the end was stopped.

    It had reported its first page, and was stopped before it read of its second one. Its successor reads of that and
    brings the counter to where it was: one for the seed or the link, one for the fetch, one for the parser's word.
    Meanwhile the link to the last page is on its way to the other shard.
    """
    staged = 0
    for seed in seeds:
        watches: list[EndWatch] = []

        def watch(crawl: str, shards: int, made: list[EndWatch] = watches) -> EndWatch:
            made.append(EndWatch(crawl, shards))
            return made[-1]

        def second_round(made: list[EndWatch] = watches) -> bool:
            return any(each._first and each._ends for each in made)

        ring = Ring(Plan(seed, 2, 2, 2, 1, 2, ("narrow",)), replace(build, watch=watch))
        ring.web.pages[ring.web.names[0]] = Page(Answer())
        ring.web.pages |= {url: Page(Answer(links=CHAIN[i + 1 : i + 2])) for i, url in enumerate(CHAIN)}
        with closing(ring), ring.time():
            while not closed(ring, shard_of("h1.example", 2)):
                assert ring.advance()
            owners = [ring.groups[0].assignment[INBOX.name, shard] for shard in range(2)]
            announcer, dying = owners[shard_of("c0", 2)], owners[shard_of("h1.example", 2)]
            assert isinstance(announcer, FrontierWorker)
            assert isinstance(dying, FrontierWorker)
            if announcer is not dying:
                ring.pause(dying, 15.0)
                while dying.frozen and not second_round():
                    assert ring.advance()
                staged += second_round()
                ring.pause(announcer, 15.0)
                ring.kill(dying)
                ring.judge.trouble()
            ring.run()
    return staged


def test_owner_change_between_rounds() -> None:
    assert between_rounds(BUILD, range(40)) > 10


def test_progress_without_epoch_ends_too_early() -> None:
    """And loses what seeds before the seal lead to: no other seed is there."""
    with pytest.raises(Broken, match=r"nothing is lost|end is true"):
        between_rounds(replace(BUILD, epoch=nobody), range(40))


# ---- the table

REVIEWS = range(1, 41)
"""Cases that a review of the design brought up."""
ROW = re.compile(r"\| `([a-z0-9-]+)` \| ([^|]+) \| [^|]+ \| ([^|]+) \|")
"""Name, case, what happens, where it is tested."""
PAGE = (ROOT / "docs" / "simulation.md").read_text()
TABLE = {name: (case, files) for name, case, files in ROW.findall(PAGE)}


def test_every_case_has_a_schedule() -> None:
    cases = {case for case, _ in TABLE.values()}
    assert {f"review {number}" for number in REVIEWS} <= cases
    assert {"§3", "§4", "§7"} <= {case[:2] for case in cases}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_leads_to_tests_that_exist(name: str) -> None:
    assert NAMES[name]
    for path, test in NAMES[name]:
        assert re.search(rf"def {test}\(", (ROOT / path).read_text()), f"{path} has no {test}"


def test_the_page_and_the_schedules_agree() -> None:
    paths = {name: sorted({path.removeprefix("tests/") for path, _ in tests}) for name, tests in NAMES.items()}
    assert {name: files for name, (_, files) in TABLE.items()} == {
        name: ", ".join(found) for name, found in paths.items()
    }
