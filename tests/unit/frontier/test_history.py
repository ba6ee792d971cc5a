"""What failures tell of their host, and what its row remembers for that."""

from __future__ import annotations

from typing import Any

import pytest

from streams import messages as m
from streams.frontier.history import history_of
from streams.frontier.rows import HostRow, encode_row, host_key
from streams.history import REMEMBERED, HostHistory, PastFailure
from streams.policy.retry import NO_SUCH_NAME, Breaker
from tests.unit.frontier.rig import START, Rig, answer, crawl, done, failed, given, links, pages, parsed

HOST = "h.example"
PAST = (PastFailure(START - 9, "timeout"), PastFailure(START - 2, "http_status", 503))


def started(number: int = 8, **definition: Any) -> tuple[Rig, list[m.FetchOrder]]:
    """A shard with many URLs of a host, some of them out."""
    rig = Rig(crawl(**{"attempts": 9, "parallelism": number, **definition}))
    return rig, given(rig, links(*pages(60)))


def told(rig: Rig) -> list[HostHistory]:
    return [failure.history for failure in rig.failures if failure.history is not None]


@pytest.mark.parametrize(
    ("row", "facts"),
    [
        (HostRow(), {"breaker": "closed"}),
        (HostRow(not_before=START + 5), {"breaker": "closed", "until": START + 5}),
        (HostRow(not_before=START), {"breaker": "closed"}),
        (
            HostRow(breaker=Breaker(failures=(START - 10_000, START - 9999, START))),
            {"breaker": "closed", "failures": 2},
        ),
        (
            HostRow(breaker=Breaker(since=START - 7, until=START + 1, probes=3)),
            {"breaker": "open", "since": START - 7, "until": START + 1, "probes": 3},
        ),
        (
            HostRow(breaker=Breaker(since=START - 7, until=START + 1), not_before=START + 2),
            {"breaker": "open", "since": START - 7, "until": START + 2},
        ),
        (
            HostRow(breaker=Breaker(since=START - 7, until=START, probes=1)),
            {"breaker": "half_open", "since": START - 7, "probes": 1},
        ),
        (HostRow(recent=PAST), {"breaker": "closed", "recent": PAST}),
    ],
)
def test_what_a_row_tells(row: HostRow, facts: dict[str, Any]) -> None:
    assert history_of(HOST, row, START) == HostHistory(host=HOST, **facts)


def test_each_failure_tells_what_came_before_it() -> None:
    rig, orders = started()
    given(rig, *(failed(order, "http_status", status=500) for order in orders[:5]), failed(orders[5], "connection"))
    assert [(told.breaker, told.failures, len(told.recent)) for told in told(rig)] == [
        ("closed", 0, 0), ("closed", 1, 1), ("closed", 2, 2), ("closed", 3, 3), ("closed", 4, 4), ("open", 0, 5)
    ]  # fmt: skip
    last = told(rig)[-1]
    assert (last.since, last.until) == (START, START + 60_000)
    assert last.recent == (PastFailure(START, "http_status", 500),) * 5


@pytest.mark.parametrize("reload", [False, True])
def test_a_new_owner_tells_the_same_and_a_success_does_not_clear_it(reload: bool) -> None:
    rig, orders = started()
    given(rig, failed(orders[0], "timeout"), answer(orders[1]))
    if reload:
        rig.load()
    (order, *_) = rig.next_orders()
    given(rig, failed(order, "connection"))
    assert told(rig)[-1] == HostHistory(host=HOST, breaker="closed", recent=(PastFailure(START, "timeout"),))


@pytest.mark.parametrize(
    ("failure", "fields", "says"),
    [
        ("timeout", {}, True), ("connection", {}, True), ("http_status", {"status": 503}, True),
        ("http_status", {"status": 404}, False), ("http_status", {"status": 425}, False), ("tls", {}, False),
        ("too_large", {}, False),
    ],
)  # fmt: skip
def test_what_says_nothing_about_the_host_is_not_remembered(
    failure: m.FailureClass, fields: dict[str, Any], says: bool
) -> None:
    rig, orders = started()
    given(rig, failed(orders[0], failure, **fields))
    wanted = (PastFailure(START, failure, fields.get("status", 0)),) if says else ()
    assert rig.host(HOST).recent == wanted


def test_a_replay_is_remembered_once() -> None:
    rig, orders = started()
    outcome = failed(orders[0], "timeout")
    given(rig, outcome, outcome)
    rig.load()
    given(rig, outcome)
    assert rig.host(HOST).recent == (PastFailure(START, "timeout"),)
    assert len(rig.failures) == 1


def test_what_was_under_way_when_the_breaker_opened_changes_no_row() -> None:
    rig, orders = started()
    given(rig, *(failed(order, "connection") for order in orders[:5]))
    before = rig.host(HOST)
    given(rig, failed(orders[5], "connection"), failed(orders[6], "connection"))
    assert rig.host(HOST) == before


def test_success_writes_no_host_row() -> None:
    """The pages of a host that is well cost what they cost before."""
    rig, orders = started()
    done(rig, *orders)
    assert host_key(HOST) not in rig.store.rows


def test_a_dead_host_is_remembered_within_bounds_and_each_of_its_urls_tells_it() -> None:
    rig = Rig(crawl(robots=True))
    given(rig, links(*pages(30)))
    rig.load()
    while rig.shard.tallies["c"].open:
        orders = rig.sleep()
        given(rig, *(failed(order, "dns", evidence={"dns": NO_SUCH_NAME}) for order in orders))
    recent = rig.host(HOST).recent
    assert [past.failure for past in recent] == ["dns"] * REMEMBERED
    assert {past.at for past in recent} != {START}
    assert [failure.failure for failure in rig.failures] == ["host_unreachable"] * 30
    assert {history.recent for history in told(rig)} == {recent}
    longest = tuple(PastFailure(past.at, "http_status", 503) for past in recent)
    assert len(encode_row(HostRow(recent=longest))) < 256


def test_failures_of_the_parser_tell_it_too() -> None:
    rig, orders = started()
    given(rig, failed(orders[0], "timeout"), answer(orders[1]), parsed(orders[1], failure="parser", reason="no"))
    assert [(failure.failure, failure.history) for failure in rig.failures][1] == (
        "parser", HostHistory(host=HOST, breaker="closed", until=START + 1000, recent=(PastFailure(START, "timeout"),))
    )  # fmt: skip


def test_a_word_on_a_failure_that_was_told_before_tells_none() -> None:
    rig = Rig(crawl(attempts=1))
    (order,) = given(rig, links(*pages(1)))
    given(rig, failed(order, "connection"))
    again = m.Command(action="redrive", crawl="c", url=order.url, fingerprint=order.fingerprint, visit=2)
    (order,) = given(rig, again)
    given(rig, answer(order), parsed(order))
    histories = [(failure.next.action, failure.history is None) for failure in rig.failures]
    assert histories == [("none", False), ("retry", True), ("resolved", True)]
