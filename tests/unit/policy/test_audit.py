"""What the audit finds in a log of wire requests: clean logs, broken logs, clocks that differ."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.messages import FetchOutcome, WireRequest
from streams.policy.audit import KEPT, HostReport, Owed, Sent, audit, requests_of
from streams.policy.politeness import Limits

HOST = "a.test"


def sent(start: int, end: int = 0, **facts: Any) -> Sent:
    defaults: dict[str, Any] = {"fetcher": "f", "url": f"http://a.test/{start}", "delay": 0.5, "parallelism": 2}
    return Sent(host=HOST, start=start, end=end or start + 10, **defaults | facts)


def later(replaced: int, delay: float, parallelism: int = 2) -> dict[str, Any]:
    return {"replaced": replaced, "later_delay": delay, "later_parallelism": parallelism}


def report(*requests: Sent, clocks: float = 0.0) -> HostReport:
    (found,) = audit(sorted(requests, key=lambda request: (request.start, request.end)), clocks)
    return found


@pytest.mark.parametrize(
    ("requests", "broken"),
    [
        ([sent(0)], {}),
        ([sent(0), sent(500), sent(1000)], {}),
        ([sent(0), sent(498)], {}),  # both ends are whole milliseconds
        ([sent(0), sent(497)], {"gap": 1}),
        ([sent(0), sent(0, fetcher="g")], {"gap": 1}),
        ([sent(0), sent(100), sent(200)], {"gap": 2}),
        ([sent(0, delay=2.0), sent(500)], {"gap": 1}),  # the longer delay holds, before
        ([sent(0), sent(500, delay=2.0)], {"gap": 1}),  # … and after
        ([sent(0, delay=2.0), sent(2000), sent(2500)], {}),
        ([sent(0, delay=0.0), sent(0, delay=0.0)], {}),
        ([sent(0), sent(0)], {}),  # one request, told twice
        ([sent(0, delay=0.0), sent(1, delay=0.0)], {}),
        ([sent(0, 900), sent(500, 1400)], {}),
        ([sent(0, 1900), sent(500, 1900), sent(1000)], {"parallelism": 1}),
        ([sent(0, 1002), sent(500, 1900), sent(1000)], {}),  # ended within the rounding
        ([sent(0, 1003), sent(500, 1900), sent(1000)], {"parallelism": 1}),
        ([sent(0, 600, parallelism=1), sent(500, 700)], {"parallelism": 1}),  # the strictest of those that run
        ([sent(0, 600), sent(500, 700, parallelism=1)], {"parallelism": 1}),
        ([sent(0, 9000, parallelism=0), sent(500, 9000, parallelism=0), sent(1000, 9000, parallelism=0)], {}),
        ([sent(0, hold=3.0), sent(3010)], {}),
        ([sent(0, hold=3.0), sent(3008)], {}),
        ([sent(0, hold=3.0), sent(3007)], {"hold": 1}),
        ([sent(0, hold=3.0), sent(500), sent(1000)], {"hold": 2}),
        ([sent(0, 700, hold=3.0), sent(500), sent(3700)], {}),  # was under way when the answer came
        ([sent(0, 400, hold=9.0), sent(500, 600, hold=1.0), sent(3700)], {"hold": 2}),  # a hold is never shortened
        ([sent(0, owed_delay=0.5, owed_parallelism=2)], {}),
        ([sent(0, owed_delay=1.5)], {"rules": 1}),
        ([sent(0, owed_parallelism=1)], {"rules": 1}),
        ([sent(0, delay=0.0, parallelism=0, owed_delay=1.5)], {}),  # an older release told nothing
        # another version of the definition came: it asks the next one for no more than the kindest since
        ([sent(0, delay=2.0, **later(600, 0.5)), sent(500)], {"gap": 1}),
        ([sent(0, delay=2.0, **later(500, 0.5)), sent(500)], {}),
        ([sent(0, delay=2.0, **later(502, 0.5)), sent(500)], {}),  # within the rounding
        ([sent(0, delay=2.0, **later(500, 1.0)), sent(500)], {"gap": 1}),
        ([sent(0, delay=0.5, **later(100, 9.0)), sent(500)], {}),
        ([sent(0, delay=2.0, **later(100, 0.1)), sent(400)], {"gap": 1}),  # the next one's own delay
        ([sent(0, 900, parallelism=1, **later(100, 0.5, 2)), sent(500, 900)], {}),
        ([sent(0, 900, parallelism=1, **later(100, 0.5, 1)), sent(500, 900)], {"parallelism": 1}),
        ([sent(0, 400, hold=9.0, **later(100, 0.1, 9)), sent(3700)], {"hold": 1}),
        ([sent(200, owed_delay=1.5, **later(200, 0.5))], {}),  # a second request of an order, by the rules of then
        ([sent(200, owed_delay=1.5, **later(300, 0.5))], {"rules": 1}),
        ([sent(200, owed_parallelism=1, **later(200, 0.5, 2))], {}),
    ],
)  # fmt: skip
def test_rules(requests: list[Sent], broken: dict[str, int]) -> None:
    assert report(*requests).broken == broken


@pytest.mark.parametrize(("start", "broken"), [(450, {}), (449, {"gap": 1})])
def test_clocks_of_two_fetchers_may_differ_and_those_of_one_may_not(start: int, broken: dict[str, int]) -> None:
    assert report(sent(0), sent(start, fetcher="g"), clocks=0.05).broken == broken
    assert report(sent(0), sent(start), clocks=0.05).broken == {"gap": 1}


def test_an_offence_names_both_requests_and_what_was_allowed() -> None:
    first, second = sent(0, delay=2.0), sent(700)
    (offence,) = report(first, second).offences
    assert (offence.rule, offence.host, offence.earlier, offence.later) == ("gap", HOST, first, second)
    assert (offence.found, offence.allowed) == (0.7, 2.0)


def test_the_report_shows_the_tightest_gap_not_the_shortest() -> None:
    found = report(sent(0, delay=0.1), sent(400, delay=0.1), sent(2500, delay=2.0), sent(4600, delay=2.0))
    assert (found.requests, found.gap, found.delay) == (4, 2.1, 2.0)
    assert found.margin == pytest.approx(0.1)
    assert report(sent(0, delay=0.0), sent(9, delay=0.0)).margin == float("inf")


def test_the_report_counts_what_ran_together_and_what_was_held() -> None:
    found = report(sent(0, 900, fetcher="g"), sent(500, 600), sent(1000, hold=1.0), sent(9000))
    assert (found.parallel, found.parallelism, found.holds, found.fetchers) == (2, 2, 1, {"f", "g"})


def test_of_many_offences_a_few_are_kept_and_all_are_counted() -> None:
    found = report(*(sent(start) for start in range(100)))
    assert found.broken["gap"] == 99
    assert len(found.offences) == KEPT


def test_hosts_are_told_apart() -> None:
    requests = [sent(0), sent(500), Sent("b.test", 1, 2, "f", "u"), Sent("b.test", 1, 3, "f", "v")]
    assert [(found.host, found.requests) for found in audit(requests)] == [("a.test", 2), ("b.test", 2)]


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 3000)), max_size=30))
def test_gaps_and_parallelism_agree_with_the_plain_definition(spans: list[tuple[int, int]]) -> None:
    requests = [sent(start, start + took, url=str(n)) for n, (start, took) in enumerate(spans)]
    if not requests:
        return
    found = report(*requests)
    starts = sorted(request.start for request in requests)
    assert found.broken.get("gap", 0) == sum(later - earlier < 498 for earlier, later in pairwise(starts))
    moments = [sum(r.start <= at and r.end > at + 2 for r in requests) for at in starts]
    crowded = any(number > 2 for number in moments)
    assert crowded <= bool(found.broken.get("parallelism"))


def wire(start: int, status: int = 200, **facts: Any) -> WireRequest:
    return WireRequest(kind="page", host=HOST, url="http://a.test/", start=start, end=start + 5, status=status, **facts)


@pytest.mark.parametrize(
    ("result", "status", "holds"),
    [
        ("failed", 429, [0.0, 7.0]),
        ("failed", 503, [0.0, 7.0]),
        ("failed", 404, [0.0, 0.0]),  # says nothing about when
        ("deferred", 503, [0.0, 0.0]),  # the fetcher's own estimate
    ],
)
def test_retry_after_belongs_to_the_last_request_of_an_outcome(result: Any, status: int, holds: list[float]) -> None:
    outcome = FetchOutcome(
        crawl="c", fingerprint=bytes(16), url="http://a.test/", visit=1, attempt=0, result=result, retry_after=7.0,
        requests=(wire(0, 503), wire(9, status, fetcher="f", delay=1.5, parallelism=3)),
    )  # fmt: skip
    found = list(requests_of(outcome, Owed(Limits(0.5, 4), 7, Limits(0.1, 5))))
    assert [request.hold for request in found] == holds
    last = found[1]
    assert (last.crawl, last.fetcher, last.start, last.end, last.status) == ("c", "f", 9, 14, status)
    assert (last.delay, last.parallelism, last.owed_delay, last.owed_parallelism) == (1.5, 3, 0.5, 4)
    assert (last.replaced, last.later_delay, last.later_parallelism) == (7, 0.1, 5)
