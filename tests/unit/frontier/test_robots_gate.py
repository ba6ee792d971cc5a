"""robots.txt as the frontier sees it (RFC 9309 §2.3.1, §2.4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streams import messages as m
from streams.frontier.hosts import PARKED
from streams.frontier.robots import CACHED, DEAD_FOR, DELAY_CAP, HOPS, ORIGINS, RobotsGate
from streams.frontier.rows import HostRow, Probe, State
from streams.policy.retry import NO_SUCH_NAME
from streams.policy.urls import PolitenessMode
from tests.unit.frontier.rig import HOUR, START, Rig, answer, crawl, failed, links, rules, seeds

PAGE = "http://h.example/page"
ROBOTS = "http://h.example/robots.txt"


def rig(**definition: Any) -> Rig:
    return Rig(crawl(**{"robots": True, "parallelism": 4, **definition}))


def asked(rig: Rig, *urls: str) -> m.FetchOrder:
    """The robots order that the first URLs of a host cause."""
    (order,) = [*rig.turn(seeds(*urls)), *rig.settle()]
    assert order.kind == "robots"
    return order


def urls(orders: list[m.FetchOrder]) -> list[str]:
    return [order.url for order in orders]


def test_one_order_for_an_origin_however_many_urls_wait() -> None:
    shard = rig(delay=0.5, user_agent="ua")
    order = asked(shard, PAGE, "http://h.example/2", "http://h.example/3")
    assert (order.url, order.host, order.parent, order.visit, order.attempt) == (
        ROBOTS, "h.example", "http://h.example", 0, 0)  # fmt: skip
    assert (order.delay, order.parallelism, order.user_agent, order.shard) == (0.5, 4, "ua", 3)
    assert shard.turn(wait=2000) == []
    released = [*shard.turn(rules(order)), *shard.settle()]
    assert urls(released) == [PAGE, "http://h.example/2", "http://h.example/3"]
    assert {order.robots for order in released} == {"v1"}


def test_what_the_rules_forbid_is_excluded() -> None:
    shard = rig()
    order = asked(shard, PAGE, "http://h.example/private/x")
    released = [*shard.turn(rules(order, (False, "/private/"))), *shard.settle()]
    assert urls(released) == [PAGE]
    row = shard.row("http://h.example/private/x")
    assert (row.state, row.outcome, row.visited) == (State.EXCLUDED, "robots", START)


def test_origins_of_a_host_are_asked_one_after_the_other() -> None:
    shard = rig()
    first = asked(shard, PAGE, "https://h.example/", "http://h.example:8080/")
    assert first.url == ROBOTS
    second = [*shard.turn(rules(first)), *shard.settle()]
    assert urls(second) == [PAGE, "https://h.example/robots.txt"]
    third = [*shard.turn(rules(second[1])), *shard.settle()]
    assert urls(third) == ["https://h.example/", "http://h.example:8080/robots.txt"]


def test_rules_are_fetched_anew_after_their_time() -> None:
    """While URLs wait, too: the old rules do not let them through."""
    shard = rig(delay=10.0)
    order = asked(shard, PAGE, "http://h.example/2")
    shard.turn(rules(order, expires=START + 15_000))
    assert urls(shard.sleep()) == [PAGE]
    assert urls(shard.sleep()) == [ROBOTS]
    assert shard.now >= START + 15_000


def test_an_error_keeps_what_is_known() -> None:
    """Stale while error: the old rules stay in force, the file is asked for again soon."""
    shard = rig()
    order = asked(shard, PAGE)
    shard.turn(rules(order, (False, "/private/"), expires=START + 1000))
    shard.settle()
    again = asked(shard, "http://h.example/2") if shard.turn(wait=2000) == [] else None
    assert again is not None
    found = seeds("http://h.example/3", "http://h.example/private/")
    released = [*shard.turn(failed(again), found), *shard.settle()]
    assert urls(released) == ["http://h.example/2", "http://h.example/3"]
    assert shard.state("http://h.example/private/") is State.EXCLUDED
    assert shard.host("h.example").robots["http://h.example"].expires == shard.now + 2000
    assert shard.host("h.example").probes["http://h.example"].count == 1


def test_urls_of_an_origin_without_robots_are_held_without_writing_rows() -> None:
    shard = rig()
    order = asked(shard, PAGE, "http://h.example/2")
    before = shard.row(PAGE)
    assert [*shard.turn(failed(order, "connection")), *shard.settle()] == []
    assert shard.row(PAGE) == before
    (again,) = shard.sleep()
    assert (again.url, again.attempt, shard.now) == (ROBOTS, 1, START + 500)
    assert urls([*shard.turn(rules(again)), *shard.settle()]) == [PAGE, "http://h.example/2"]
    assert shard.host("h.example").probes == {}


@pytest.mark.parametrize(
    ("failure", "facts", "seconds"),
    [
        ("dns", {"evidence": {"dns": NO_SUCH_NAME}}, [0, 0.25, 0.75, 1.75, 3.75, 7.75, 15.75, 31.75]),
        ("connection", {}, [0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5]),
        ("dns", {"evidence": {"dns": "no answer"}}, [0, 2, 6, 14, 30, 62, 126, 254]),
        ("timeout", {}, [0, 2, 6, 14, 30, 62, 126, 254]),
        ("http_status", {"status": 503}, [0, 2, 6, 14, 30, 62, 126, 254]),
    ],
)
def test_eight_failed_probes_end_the_waiting_urls(
    failure: m.FailureClass, facts: dict[str, Any], seconds: list[float]
) -> None:
    """Sooner where nobody is there than where somebody may be coming back."""
    shard = rig()
    order = asked(shard, PAGE, "http://h.example/2")
    times = []
    for number in range(8):
        assert (order.url, order.attempt) == (ROBOTS, number)
        assert shard.state(PAGE) is State.WAITING
        shard.turn(failed(order, failure, reason="why", **facts))
        shard.settle()
        times.append(shard.now - START)
        if number < 7:
            (order,) = shard.sleep()
    assert times == [1000 * second for second in seconds]
    assert (shard.state(PAGE), shard.row(PAGE).outcome, shard.row(PAGE).attempt) == (
        State.FAILED,
        "host_unreachable",
        0,
    )
    assert shard.state("http://h.example/2") is State.FAILED
    assert {(f.failure, f.reason, f.next.action) for f in shard.failures} == {
        ("host_unreachable", "why", "none")}  # fmt: skip
    assert shard.failures[0].evidence == {"robots": ROBOTS, "class": failure, "probes": 8, "since": START}
    shard.turn(seeds("http://h.example/3"))  # later ones end at once
    shard.settle()
    assert shard.state("http://h.example/3") is State.FAILED
    shard.now += DEAD_FOR
    assert asked(shard, "http://h.example/4").attempt == 8


@pytest.mark.parametrize("failure", ["tls", "ssrf"])
def test_what_another_probe_would_not_mend_ends_them_at_once(failure: m.FailureClass) -> None:
    shard = rig()
    order = asked(shard, PAGE)
    shard.turn(failed(order, failure, reason="why"))
    shard.settle()
    assert (shard.state(PAGE), shard.row(PAGE).outcome) == (State.FAILED, failure)
    assert [(f.failure, f.reason, f.next.action) for f in shard.failures] == [(failure, "why", "none")]


def test_the_budget_is_kept_over_a_restart() -> None:
    shard = rig()
    order = asked(shard, PAGE)
    for number in range(7):
        shard.turn(failed(order, "connection"))
        shard.load()
        (order,) = shard.sleep()
        assert order.attempt == number + 1
    shard.turn(failed(order, "connection"))
    shard.settle()
    assert shard.row(PAGE).outcome == "host_unreachable"


def test_six_hours_end_them_too() -> None:
    gate = RobotsGate("host")
    origin, expires = "http://h.example", START + 9 * HOUR
    closed = m.RobotsRules(origin=origin, version="v", fetched=0, expires=expires, access="disallow_all")
    row = HostRow(probes={origin: Probe(2, START, "timeout", "slow")}, robots={origin: closed})
    assert gate.ask(row, PAGE, START + 6 * HOUR - 1).hold_until == START + 9 * HOUR
    assert gate.ask(row, PAGE, START + 6 * HOUR).unreachable


def test_what_stays_away_with_a_retry_after_is_left_alone_for_so_long() -> None:
    shard = rig()
    order = asked(shard, PAGE)
    shard.turn(failed(order, "http_status", status=503, retry_after=600.0))
    shard.sleep()
    assert shard.now == START + 600_000


def test_another_origin_of_the_host_goes_on_meanwhile() -> None:
    shard = rig()
    order = asked(shard, PAGE, "https://h.example/")
    (other,) = [*shard.turn(failed(order)), *shard.settle()]
    assert other.url == "https://h.example/robots.txt"
    assert urls([*shard.turn(rules(other)), *shard.settle()]) == ["https://h.example/"]


def test_many_held_urls_hold_the_host() -> None:
    """They are kept in memory: not more than a few."""
    shard = rig()
    many = [f"http://h.example/{i}" for i in range(3 * PARKED)]
    order = asked(shard, *many)
    shard.turn(failed(order))
    shard.settle()
    queue = shard.hosts["h.example"]
    assert len(queue.parked) == PARKED
    (order,) = shard.sleep()
    released = [*shard.turn(rules(order)), *shard.settle()]
    while len(released) < len(many):
        released += shard.turn(*(answer(order) for order in released[-16:]))
        released += shard.settle()
    assert sorted(urls(released)) == sorted(many)


@pytest.mark.parametrize(("status", "access"), [(404, "allow_all"), (301, "allow_all"), (500, "disallow_all")])
def test_answers_without_rules(status: int, access: str) -> None:
    """A redirect that was not followed to an end counts as unavailable (RFC 9309 §2.3.1.2)."""
    found = m.RobotsRules(origin="", version="", fetched=0, expires=9, access="allow_all") if status == 404 else None
    order = m.FetchOutcome(
        kind="robots", crawl="c", fingerprint=b"", url=ROBOTS, visit=HOPS, attempt=0, status=status,
        result="redirected" if status < 400 else "failed", robots_rules=found,
    )  # fmt: skip
    changes = RobotsGate("host").answered(HostRow(), order, "http://h.example", START)
    assert changes["robots"]["http://h.example"].access == access
    assert changes["robots"]["http://h.example"].origin == "http://h.example"
    if access == "disallow_all":
        assert changes["probes"]["http://h.example"] == Probe(1, START, "http_status", "robots.txt answered 500")


def test_a_deferred_robots_order_goes_out_again() -> None:
    shard = rig()
    order = asked(shard, PAGE)
    (again,) = [*shard.turn(answer(order, "deferred")), *shard.settle()]
    assert (again.url, again.attempt, again.visit) == (ROBOTS, 0, 0)
    assert [*shard.turn(answer(again, "deferred", retry_after=5.0)), *shard.settle()] == []
    shard.load()
    assert urls(shard.sleep()) == [ROBOTS]
    assert shard.now == START + 5000


def test_a_robots_order_that_nobody_answers_goes_out_again() -> None:
    shard = rig()
    asked(shard, PAGE)
    (again,) = shard.sleep()
    assert (again.url, shard.now) == (ROBOTS, START + 600_001)
    assert urls([*shard.turn(rules(again)), *shard.settle()]) == [PAGE]


def test_a_robots_answer_nobody_waits_for_is_ignored() -> None:
    shard = rig()
    order = asked(shard, PAGE)
    shard.turn(rules(order))
    shard.turn(rules(order, (False, "/"), version="v2"))
    assert shard.host("h.example").robots["http://h.example"].version == "v1"


def test_a_crawl_that_ignores_robots_asks_for_none() -> None:
    shard = Rig(crawl(robots=False))
    assert urls([*shard.turn(seeds(PAGE)), *shard.settle()]) == [PAGE]


def test_crawl_delay_raises_the_delay() -> None:
    shard = rig(delay=0.5)
    order = asked(shard, PAGE, "http://h.example/2", "http://h.example/3")
    orders = [*shard.turn(rules(order, crawl_delay=7.0)), *shard.settle()]
    while len(orders) < 3:
        orders += shard.sleep()
    assert {order.delay for order in orders} == {7.0}
    # Counted from the request for robots.txt itself, each a second ahead of its turn.
    assert [page.released - order.released for page in orders] == [6000, 13_000, 20_000]


@pytest.mark.parametrize(
    ("delays", "expected"), [([], 0.0), ([None], 0.0), ([3.0], 3.0), ([3.0, 5.0, None], 5.0), ([900.0], DELAY_CAP)]
)
def test_the_longest_crawl_delay_of_a_hosts_origins_counts_up_to_a_cap(delays, expected: float) -> None:
    robots = {str(i): m.RobotsRules(origin=str(i), version="", fetched=0, expires=0, crawl_delay=delay)
              for i, delay in enumerate(delays)}  # fmt: skip
    assert RobotsGate("host").crawl_delay(HostRow(robots=robots)) == expected


def failing(gate: RobotsGate, row: HostRow, origin: str, now: int) -> HostRow:
    outcome = m.FetchOutcome(kind="robots", crawl="c", fingerprint=b"", url="", visit=0, attempt=0, result="failed",
                             failure="dns")  # fmt: skip
    return HostRow(**gate.answered(row, outcome, origin, now))


@pytest.mark.parametrize("mode", ["host", "domain"])
def test_a_row_keeps_few_origins(mode: PolitenessMode) -> None:
    """The rules that end soonest go first."""
    gate, row = RobotsGate(mode), HostRow()
    for port in range(ORIGINS[mode] + 2):
        row = failing(gate, row, f"http://h.example:{port}", START + port)
    assert len(row.robots) == ORIGINS[mode]
    assert row.robots.keys() == row.probes.keys()
    assert not {"http://h.example:0", "http://h.example:1"} & row.robots.keys()


def test_an_origin_that_fails_keeps_its_count_when_others_come() -> None:
    gate, row = RobotsGate("host"), failing(RobotsGate("host"), HostRow(), "http://h.example", START)
    for port in range(1, ORIGINS["host"] + 5):
        origin = f"http://h.example:{port}"
        found = m.RobotsRules(origin=origin, version="v", fetched=START, expires=START + 24 * HOUR)
        outcome = m.FetchOutcome(kind="robots", crawl="c", fingerprint=b"", url="", visit=0, attempt=0,
                                 result="fetched", robots_rules=found)  # fmt: skip
        row = msgspec.structs.replace(row, **gate.answered(row, outcome, origin, START))
    assert row.probes["http://h.example"].count == 1


def test_compiled_rules_are_kept_by_version_and_bounded() -> None:
    gate = RobotsGate("host")

    def row(number: int) -> HostRow:
        rules = m.RobotsRules(origin="http://h.example", version=str(number), fetched=0, expires=START * 2,
                              rules=((False, f"/{number}"),))  # fmt: skip
        return HostRow(robots={"http://h.example": rules})

    for number in range(CACHED + 10):
        gate._matchers[("filled", str(number))] = gate._matcher(row(0).robots["http://h.example"])
        if len(gate._matchers) >= CACHED:
            break
    assert not gate.ask(row(7), "http://h.example/7", START).allowed
    assert gate.ask(row(8), "http://h.example/7", START).allowed
    assert len(gate._matchers) == CACHED


def test_robots_survive_a_restart() -> None:
    shard = rig()
    order = asked(shard, PAGE)
    assert urls([*shard.turn(rules(order)), *shard.settle()]) == [PAGE]
    shard.load()
    assert urls([*shard.turn(links("http://h.example/2")), *shard.settle()]) == [PAGE, "http://h.example/2"]
