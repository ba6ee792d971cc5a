"""The fault ring's checker, as tables: what it is told, and what it must find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streams.frontier.rows import State
from tests.faults import checker
from tests.faults.checker import Fault, Limits
from tests.faults.facts import Commit, Facts, Row
from tests.faults.site import Fate
from tests.servers.hosts import Entry

A, B, GONE = "http://a.test/p/0.html", "http://a.test/p/1.html", "http://a.test/p/2.html"
EXPECTED: dict[str, Fate] = {A: "done", B: "done", GONE: "failed"}
LIMITS = Limits(delay=1.0, parallelism=1)
FINGERPRINTS = {A: b"a", B: b"b", GONE: b"c"}


def request(url: str, start: float, took: float = 0.1) -> Entry:
    host, _, path = url.removeprefix("http://").partition("/")
    return Entry(start, start + took, start + took, host, f"/{path}", 200)


def good() -> Facts:
    """A crawl in which nothing is wrong: an order, a request and an answer each second."""
    times = dict(zip(EXPECTED, (10.0, 11.0, 12.0), strict=True))
    return Facts(
        seeds=[A, B],
        rows=[Row(A, State.DONE), Row(B, State.DONE), Row(GONE, State.FAILED)],
        urls={FINGERPRINTS[url]: url for url in EXPECTED},
        orders={(FINGERPRINTS[url], 1): [at - 0.5] for url, at in times.items()},
        answers={(FINGERPRINTS[url], 1): [at + 0.5] for url, at in times.items()},
        order_places={(0, at): ((FINGERPRINTS[url], 1), times[url] - 0.5) for at, url in enumerate(EXPECTED)},
        page_places={(0, 0), (0, 1)},
        parsed={(0, 0): 10.7, (0, 1): 11.7},
        records=[(A, 1), (B, 1)],
        failures=[(GONE, 1, "none")],
        exported_records=[(A, 1), (B, 1)],
        exported_failures=[(GONE, 1, "none")],
        ends=[20.0],
        requests=[request(url, at) for url, at in times.items()],
        commits=[
            *(Commit("fetcher", "fetches", 0, number + 1, at + 0.6) for number, at in enumerate(times.values())),
            Commit("parser", "pages", 0, 2, 12.0),
        ],
    )


def findings(facts: Facts, *faults: Fault) -> dict[str, str]:
    return {url: found for url, found in checker.of_urls(EXPECTED, facts, faults).urls.items() if found != "right"}


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    verdict = checker.judge(EXPECTED, good(), [], LIMITS)
    assert verdict.problems == []
    assert verdict.figures["right"] == 3


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param({"rows": [Row(A, State.DONE), Row(GONE, State.FAILED)]}, {B: "lost"}, id="no row"),
        pytest.param(
            {"rows": [Row(A, State.DONE), Row(B, State.WAITING), Row(GONE, State.FAILED)]}, {B: "lost"}, id="waits"
        ),
        pytest.param(
            {"rows": [Row(A, State.DONE), Row(B, State.FETCHED), Row(GONE, State.FAILED)]}, {B: "lost"}, id="unparsed"
        ),
        pytest.param(
            {"rows": [Row(A, State.DONE), Row(B, State.FAILED), Row(GONE, State.FAILED)]}, {B: "lost"}, id="other end"
        ),
        pytest.param({"rows": [*good().rows, Row(B, State.DONE)]}, {B: "duplicated"}, id="two rows"),
        pytest.param({"rows": [*good().rows, Row("http://a.test/x", State.DONE)]},
                     {"http://a.test/x": "unexpected"}, id="a row of no page"),
        pytest.param({"exported_records": [(A, 1)]}, {B: "lost"}, id="no line"),
        pytest.param({"exported_failures": []}, {GONE: "lost"}, id="no line of a failure"),
        pytest.param({"exported_records": [(A, 1), (B, 1), (B, 1)]}, {B: "duplicated"}, id="two lines"),
        pytest.param({"exported_records": [(A, 1), (B, 1), (B, 2)]}, {B: "duplicated"}, id="two visits"),
        pytest.param({"exported_records": [(A, 1), (B, 1), (GONE, 1)]}, {GONE: "unexpected"}, id="line of a failure"),
        pytest.param({"requests": [request(A, 10.0), request(B, 11.0)]}, {GONE: "lost"}, id="never asked for"),
        pytest.param({"requests": [*good().requests, request("http://a.test/x", 13.0)]},
                     {"http://a.test/x": "unexpected"}, id="a request for no page"),
        pytest.param({"requests": [*good().requests, request(B, 13.0)]}, {B: "fetched too often"}, id="asked twice"),
    ],
)  # fmt: skip
def test_finding_of_a_url(change: dict[str, Any], found: dict[str, str]) -> None:
    assert findings(replace(good(), **change)) == found


@pytest.mark.parametrize(
    ("fault", "allowed"),
    [
        pytest.param(Fault("kill", 11.2, 13.0), True, id="while it was out"),
        pytest.param(Fault("kill", 5.0, 10.4), False, id="before it was ordered"),
        pytest.param(Fault("kill", 11.6, 13.0), False, id="after it was answered"),
        pytest.param(Fault("freeze", 10.0, 10.6), True, id="ordered during the fault"),
        pytest.param(Fault("kill fetcher", 11.2, 13.0, stage="fetcher"), True, id="of a fetcher"),
        pytest.param(Fault("kill parser", 11.2, 13.0, stage="parser"), False, id="of one who fetches nothing"),
    ],
)
def test_repeat_is_allowed_where_the_order_was_out_at_a_fault(fault: Fault, allowed: bool) -> None:
    facts = replace(good(), requests=[*good().requests, request(B, 13.0)])
    assert (findings(facts, fault) == {}) is allowed


def test_faults_at_one_moment_allow_one_repeat_and_a_frozen_fetcher_that_comes_back_two() -> None:
    twice = replace(good(), requests=[*good().requests, request(B, 13.0), request(B, 14.0)])
    kills = [Fault(f"kill {stage}", 11.2, 13.0, stage=stage) for stage in ("frontier", "fetcher")]
    assert findings(twice, *kills) == {B: "fetched too often"}
    out = replace(twice, answers={})  # its order is out to this day
    assert findings(out, Fault("freeze fetcher", 11.2, 20.0, 19.0, "fetcher")) == {}


def test_repeats_are_bounded_by_what_was_out_at_the_moments_of_the_faults() -> None:
    again = replace(good(), requests=[*good().requests, request(B, 13.0)])
    (problem,) = checker.judge(EXPECTED, again, [Fault("kill", 10.0, 11.2)], Limits(1.0, 2)).problems[-1:] or [""]
    assert problem == ""
    assert any("1 fetches repeated, 0 were out" in problem
               for problem in checker.judge(EXPECTED, again, [Fault("kill", 9.0, 11.2)], LIMITS).problems)  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "rebalances", "found"),
    [
        pytest.param(Fault("kill", 10.0, 30.0, stage="fetcher"), [9.0, 12.0, 31.0], {10.0, 12.0}, id="those it led to"),
        pytest.param(Fault("kill", 10.0, 30.0, stage="parser"), [12.0], set(), id="of others, by chance"),
        pytest.param(Fault("broker kill", 10.0, 30.0), [], {10.0}, id="none"),
    ],
)
def test_moments_at_which_orders_may_change_hands(fault: Fault, rebalances: list[float], found: set[float]) -> None:
    assert checker.moments([fault, fault], rebalances) == found


@pytest.mark.parametrize(
    ("stage", "rebalances", "until"),
    [
        pytest.param("fetcher", [29.0], 30.0, id="in time"),
        pytest.param("fetcher", [31.0, 33.0], 33.0, id="late"),
        pytest.param("fetcher", [30.0 + checker.LATE + 1], 30.0, id="not for it"),
        pytest.param("parser", [31.0], 30.0, id="of others"),
    ],
)
def test_a_fault_lasts_until_the_worker_is_back(stage: str, rebalances: list[float], until: float) -> None:
    assert checker.lasting(Fault("kill", 10.0, 30.0, stage=stage), rebalances).until == until


@pytest.mark.parametrize(
    ("orders", "answers", "spans"),
    [
        ([1.0], [2.0], [(1.0, 2.0)]),
        ([1.0, 1.5], [2.0], [(1.0, 2.0)]),
        ([1.0, 3.0], [2.0, 4.0], [(1.0, 2.0), (3.0, 4.0)]),
        ([1.0], [2.0, 2.5], [(1.0, 2.0)]),
        ([1.0], [], [(1.0, float("inf"))]),
    ],
)
def test_out_spans(orders: list[float], answers: list[float], spans: list[tuple[float, float]]) -> None:
    assert checker.out_spans({(b"a", 1): orders}, {(b"a", 1): answers}) == {(b"a", 1): spans}


@pytest.mark.parametrize(
    ("ends", "problem"),
    [([], "not announced"), ([20.0, 21.0], "announced 2 times"), ([11.5], "1 requests after the end")],
)
def test_end(ends: list[float], problem: str) -> None:
    (found,) = checker.end_problems(replace(good(), ends=ends))
    assert problem in found


@pytest.mark.parametrize(
    ("starts", "took", "thaws", "problems"),
    [
        pytest.param([10.0, 11.0, 12.0], 0.1, [], 0, id="in time"),
        pytest.param([10.0, 10.9995], 0.1, [], 0, id="rounding"),
        pytest.param([10.0, 10.99], 0.1, [], 1, id="early"),
        pytest.param([10.0, 11.0], 1.5, [], 1, id="two at a time"),
        pytest.param([10.0, 10.5], 0.1, [10.45], 0, id="past its last check when frozen"),
        pytest.param([10.0, 10.5, 11.0], 0.1, [10.45], 0, id="others keep their gap to each other"),
        pytest.param([10.0, 10.5, 11.4], 0.1, [9.95], 1, id="the first of two came late"),
        pytest.param([10.0, 10.5, 10.52], 0.1, [10.45], 1, id="one request for each thaw"),
        pytest.param([10.0, 10.5, 10.52], 0.1, [10.45, 10.46], 0, id="two thaws"),
        pytest.param([10.0, 10.5], 0.1, [10.3], 1, id="long after the thaw"),
        pytest.param([10.0, 10.5], 0.1, [10.6], 1, id="before the thaw"),
        pytest.param([10.0, 11.05], 1.2, [11.0], 0, id="at a time with one that came late"),
    ],
)
def test_politeness(starts: list[float], took: float, thaws: list[float], problems: int) -> None:
    requests = [request(A, start, took) for start in reversed(starts)]
    windows = [(thaw, thaw + checker.LAST_CHECK) for thaw in thaws]
    assert len(checker.politeness_problems(requests, LIMITS, windows)) == problems


@pytest.mark.parametrize(("looked", "holds"), [(0.0, False), (10.4, False), (10.6, True)])
def test_a_process_that_may_not_run_sends_its_request_late(looked: float, holds: bool) -> None:
    early = replace(good(), requests=[request(A, 10.0), request(B, 10.5), request(GONE, 12.0)])
    verdict = checker.judge(EXPECTED, early, [Fault("freeze", 9.0, 30.0, 10.3, "fetcher", looked)], LIMITS)
    assert verdict.holds is holds


@pytest.mark.parametrize(("stage", "holds"), [("fetcher", True), ("frontier", False)])
def test_only_the_thaw_of_a_fetcher_excuses_a_request(stage: str, holds: bool) -> None:
    early = replace(good(), requests=[request(A, 10.0), request(B, 10.5), request(GONE, 12.0)])
    verdict = checker.judge(EXPECTED, early, [Fault(f"freeze {stage}", 9.0, 30.0, 10.45, stage)], LIMITS)
    assert verdict.holds is holds


def test_commits_that_move_backwards() -> None:
    commits = [Commit("g", "t", 0, 5), Commit("g", "t", 1, 3), Commit("g", "t", 0, 5), Commit("g", "u", 0, 1)]
    assert checker.commit_problems(commits) == []
    (problem,) = checker.commit_problems([*commits, Commit("g", "t", 0, 4), Commit("g", "t", 0, 6)])
    assert "moved backwards" in problem


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"unread": {"parser pages": 2}}, "left unread"),
        ({"unreadable": 1}, "could not be read"),
        ({"seeds": []}, "journal"),
        ({"seeds": ["http://b.test/"]}, "journal"),
    ],
)
def test_problem_of_the_whole(change: dict[str, Any], problem: str) -> None:
    (found,) = checker.judge(EXPECTED, replace(good(), **change), [], LIMITS).problems
    assert problem in found
