"""Named crash schedules about what crawls ask for and what operators change meanwhile. All is judged by the ring."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from streams.definitions import CrawlDefinition, LimitRule
from streams.topics import INBOX, RECORDS
from tests.simulation.moments import on_the_wire, orders_out, play
from tests.simulation.ring import operator
from tests.simulation.ring.broker import Member
from tests.simulation.ring.fetcher import FetcherWorker
from tests.simulation.ring.frontier import FrontierWorker
from tests.simulation.ring.parser import DELETED, ParserWorker
from tests.simulation.ring.plan import Fault, Plan, Quirk
from tests.simulation.ring.ring import Ring, run
from tests.simulation.ring.stage import Stage

SEEDS = range(3)
STAGES: tuple[type[Stage], ...] = (FrontierWorker, FetcherWorker, ParserWorker)


def changed(**what: object) -> Callable[[CrawlDefinition], CrawlDefinition]:
    return lambda crawl: replace(crawl, **what)


def kill_all(ring: Ring, *stages: type[Stage]) -> None:
    for stage in stages or STAGES:
        for worker in ring.workers(stage):
            ring.kill(worker)


def begun(ring: Ring) -> bool:
    """Some pages were had; more are to come."""
    return len(ring.folder.lines) > 2


def crashing(seed: int, *quirks: Quirk, crawls: int = 1, hosts: int = 3) -> Plan:
    """A crawl whose processes of all stages are killed and whose partitions move, again and again."""
    faults = tuple(Fault(at, "kill" if at % 3 else "rebalance", at // 60, at // 20) for at in range(100, 900, 80))
    return Plan(seed, hosts, 14, 2, crawls, 2, quirks, faults)


def check(plan: Plan) -> None:
    verdict = run(plan)
    assert not verdict.invariant, verdict.detail


# ---- §3: what is promised


@pytest.mark.parametrize("seed", SEEDS)
def test_all_at_once(seed: int) -> None:
    """Every process of every stage dies at the same moment, three times: little is repeated, nothing is lost."""
    play(Plan(seed, 3, 16, 2, 1, 2, ("redirects",)), on_the_wire, kill_all, times=3)


@pytest.mark.parametrize("seed", SEEDS)
def test_orders_of_a_former_owner(seed: int) -> None:
    """An owner that was stopped for longer than its session sends nothing of what it had decided, or would decide."""
    ring = play(Plan(seed, 2, 16, 2, 1, 2, ("busy", "delays")), orders_out,
                lambda ring: ring.pause(ring.workers(FrontierWorker)[0], 60.0), times=3)  # fmt: skip
    assert not [worker for worker in ring.workers(FrontierWorker) if worker.frozen]


# ---- §4: the frontier


def test_two_updates() -> None:
    """Two people change a crawl at a time: one of them is told, and does it again on what the other has made."""

    def strike(ring: Ring) -> None:
        ring.operator.update("c0", changed(delay=1.5))
        ring.operator.update("c0", changed(parallelism=1))

    conflicts = 0
    for seed in range(8):
        ring = play(Plan(seed, 2, 12, 2, 1, 2, ()), orders_out, strike)
        conflicts += ring.operator.conflicts
        assert (ring.judge.definitions["c0"].delay, ring.judge.definitions["c0"].parallelism) == (1.5, 1)
    assert conflicts > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_paused_with_orders_out(seed: int) -> None:
    """A crawl is paused with orders out, its frontier dies meanwhile; it goes on after ten minutes."""

    def strike(ring: Ring) -> None:
        ring.operator.hold("c0", 600.0)
        kill_all(ring, FrontierWorker)

    ring = play(Plan(seed, 2, 14, 2, 1, 2, ("delays",)), orders_out, strike)
    assert ring.engine.time > 1600.0


@pytest.mark.parametrize("seed", SEEDS)
def test_cancelled_with_orders_out(seed: int) -> None:
    """And cancelled: what waits is excluded at once, what runs ends, nobody announces another end."""
    ring = play(Plan(seed, 2, 14, 2, 1, 2, ("delays",)), orders_out,
                lambda ring: ring.operator.update("c0", operator.cancelled(ring.engine.broker())))  # fmt: skip
    assert ring.judge.definitions["c0"].result == "cancelled"
    assert "cancelled" in {row.outcome for row in ring.judge.urls.values()}


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_forgotten_with_orders_out(seed: int, *, host: bool) -> None:
    """A URL, or a host, is forgotten while its pages are fetched and parsed; links to it come later."""
    ring = play(Plan(seed, 2, 16, 2, 1, 2, ("delays",)), begun,
                lambda ring: ring.operator.forget("c0", ring.web.names[1], host=host))  # fmt: skip
    assert (DELETED in {visit for _, (_, visit) in ring.broker.read(RECORDS.name, 0, 0, 10_000)}) or not host


@pytest.mark.parametrize("seed", SEEDS)
def test_forgotten_after_a_take_over(seed: int) -> None:
    """The frontier dies with orders out that nobody knows of afterwards, and just then their URLs are forgotten."""

    def strike(ring: Ring) -> None:
        kill_all(ring, FrontierWorker)
        for name in ring.web.names[1:4]:
            ring.operator.forget("c0", name, host=False)

    play(Plan(seed, 2, 16, 2, 1, 2, ("delays",)), orders_out, strike)


@pytest.mark.parametrize("seed", SEEDS)
def test_window_shuts_with_orders_out(seed: int) -> None:
    """Orders are out when a window shuts them: they come back, and go out when it opens, at the next day's."""
    shut = LimitRule(id="night", windows=("22:20-22:30",))
    ring = play(Plan(seed, 2, 10, 2, 1, 2, ("delays",)), orders_out,
                lambda ring: ring.operator.update("c0", operator.ruled(shut)))  # fmt: skip
    assert ring.engine.time > 80_000


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("quirks", [("limit",), ("budgets",), ("quota", "delays"), ("limit", "recrawl")])
def test_budgets_over_shards_and_crashes(seed: int, quirks: tuple[Quirk, ...]) -> None:
    """No shard goes beyond what it knows of the others; what is kept out is kept out for a budget that is used up."""
    check(crashing(seed, *quirks))


@pytest.mark.parametrize("seed", range(6))
def test_visits_through_crashes(seed: int) -> None:
    """Every URL is visited in each round, never before it is due, whatever dies between two visits."""
    check(crashing(seed, "recrawl"))


@pytest.mark.parametrize("seed", range(6))
def test_shorter_way_after_validators(seed: int) -> None:
    """A page with validators is found on a shorter way: it is fetched in full, for its links are needed again."""
    check(crashing(seed, "recrawl", "depth"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("quirks", [("sitemaps",), ("sitemaps", "recrawl"), ("sitemaps", "robots", "domain")])
def test_sitemaps_through_crashes(seed: int, quirks: tuple[Quirk, ...]) -> None:
    """What only sitemaps name is found, and sitemaps are no pages."""
    check(crashing(seed, *quirks))


@pytest.mark.parametrize("seed", range(4))
def test_one_pace_for_a_domain(seed: int) -> None:
    """Two hosts of one domain share delay, parallelism and holds, over kills and rebalances."""
    check(crashing(seed, "domain", "delays", "busy", hosts=4))


@pytest.mark.parametrize("seed", range(4))
def test_learned_delay_survives(seed: int) -> None:
    """A host that was found slow is asked as slowly by the next owner."""
    check(crashing(seed, "learned", "slow", "busy"))


@pytest.mark.parametrize("seed", range(4))
def test_crawls_share_a_host(seed: int) -> None:
    """Three crawls wait for one host: they take turns, and the strictest rules of them hold."""
    check(crashing(seed, "delays", "rules", "priorities", crawls=3, hosts=1))


@pytest.mark.parametrize("seed", SEEDS)
def test_page_expires_twice(seed: int) -> None:
    """Pages are gone before they are parsed, and a day later those that were fetched again are, too."""

    def gone(ring: Ring) -> None:
        for parser in ring.workers(ParserWorker):
            ring.pause(parser, 30.0)
        ring.hours = 0
        for shard in range(ring.plan.shards):
            ring.broker.trim("pages", shard)

    def unparsed(ring: Ring) -> bool:
        return any(row.state.name == "FETCHED" for row in ring.judge.urls.values())

    ring = play(Plan(seed, 2, 6, 2, 1, 1, ()), unparsed, gone, times=2)
    assert ring.engine.time > 80_000


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_finished_crawls_expire(seed: int) -> None:
    """They go when their time is over, though an owner dies while they do; nothing else goes."""

    def going(ring: Ring) -> bool:
        return bool(ring.judge.expired)

    ring = play(Plan(seed, 2, 10, 2, 2, 2, ("expiry",)), going, lambda ring: kill_all(ring, FrontierWorker))
    assert not ring.judge.urls
    assert len(ring.judge.expired) >= 20


# ---- §7: state


@pytest.mark.parametrize("seed", SEEDS)
def test_disks_are_lost(seed: int) -> None:
    """An owner dies with its disk while another one's rows are on their way: its store is made from the changelog."""

    def strike(ring: Ring) -> None:
        owner = ring.groups[0].assignment[INBOX.name, 0]
        assert isinstance(owner, Member)
        owner.lost = True
        owner.fuse = 1

    play(Plan(seed, 3, 16, 2, 1, 3, ("redirects", "flaky")), on_the_wire, strike, times=4)
