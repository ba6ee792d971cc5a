"""What outcomes do to rows: guards, retries, redirects, late answers."""

from __future__ import annotations

from typing import Any

import pytest

from streams import messages as m
from streams.definitions import Keys
from streams.frontier.outcomes import jitter
from streams.frontier.rows import State
from streams.history import HostHistory
from streams.policy.retry import SPREAD
from tests.unit.frontier.rig import START, Rig, answer, crawl, failed, given, key, links, parsed, seed, seeds

URL = "http://h.example/page"
PARSER: m.FailureClass = "parser"


def started(**definition: Any) -> tuple[Rig, m.FetchOrder]:
    """A shard with one order out."""
    rig = Rig(crawl(**definition))
    (order,) = [*rig.turn(seeds(seed(URL, meta={"k": 1}, traceparent="t"))), *rig.settle()]
    return rig, order


def told(rig: Rig) -> list[tuple[str, str]]:
    return [(failure.failure, failure.next.action) for failure in rig.failures]


def test_a_page_is_fetched_then_done() -> None:
    rig, order = started()
    rig.turn(answer(order, etag="e", last_modified="l"), wait=5)
    row = rig.row(URL)
    assert (row.state, row.page, row.visited, row.status) == (State.FETCHED, (0, 7), START + 5, 200)
    rig.turn(parsed(order, content=b"f" * 16), wait=5)
    row = rig.row(URL)
    assert (row.state, row.page, row.visited, row.status) == (State.DONE, None, START + 10, 200)
    assert (row.etag, row.last_modified, row.content) == ("e", "l", b"f" * 16)
    assert not rig.failures


def test_the_parser_may_be_faster() -> None:
    rig, order = started()
    rig.turn(parsed(order, content=b"f" * 16))
    assert rig.state(URL) is State.DONE
    assert rig.shard.unanswered() == 0
    rig.turn(answer(order, etag="e", last_modified="l"))
    row = rig.row(URL)
    assert (row.state, row.page, row.content, row.status, row.etag, row.last_modified) == (
        State.DONE, None, b"f" * 16, 200, "e", "l")  # fmt: skip


def test_an_unchanged_page_is_done() -> None:
    rig, order = started()
    rig.turn(answer(order, "unchanged", page=None, status=304))
    assert (rig.state(URL), rig.row(URL).status) == (State.DONE, 304)


def again(**definition: Any) -> tuple[Rig, m.FetchOrder]:
    """A page that was parsed at depth 2, and the conditional order of its second visit."""
    rig = Rig(crawl(**definition))
    (order,) = given(rig, links(URL, depth=2))
    rig.turn(answer(order, etag="e"), parsed(order))
    (order,) = given(rig, seeds(seed(URL, depth=2, refetch=True)))
    assert (order.visit, order.etag) == (2, "e")
    return rig, order


def test_a_page_found_on_a_shorter_way_while_it_is_asked_for_is_fetched_in_full() -> None:
    """Its links count from the smaller depth: what is unchanged does not bring them."""
    rig, order = again(depth=3)
    rig.turn(links(URL, depth=1))
    (full,) = given(rig, answer(order, "unchanged", page=None, status=304, etag="e"))
    assert (full.visit, full.etag, full.depth) == (3, "", 1)
    rig.turn(answer(full, etag="e"), parsed(full))
    assert (rig.state(URL), rig.row(URL).etag) == (State.DONE, "e")


def test_a_page_found_on_a_shorter_way_while_it_waits_is_ordered_in_full() -> None:
    rig, order = again(depth=3)
    rig.turn(links(URL, depth=1))
    (full,) = given(rig, answer(order, "deferred"))
    assert (full.visit, full.etag, full.depth) == (2, "", 1)


@pytest.mark.parametrize("definition", [{"depth": 3}, {}])
def test_an_unchanged_page_is_done_where_no_shorter_way_matters(definition: dict[str, int]) -> None:
    rig, order = again(**definition)
    rig.turn(links(URL, depth=3 if definition else 1))
    rig.turn(answer(order, "unchanged", page=None, status=304, etag="e"))
    assert (rig.state(URL), rig.row(URL).visit, rig.row(URL).etag) == (State.DONE, 2, "e")


def test_the_second_visit_is_conditional() -> None:
    rig, order = started()
    assert (order.etag, order.last_modified) == ("", "")
    rig.turn(answer(order, etag="e", last_modified="l"), parsed(order))
    rig.turn(seeds(seed(URL, refetch=True)))
    (again,) = rig.settle()
    assert (again.visit, again.attempt, again.etag, again.last_modified) == (2, 0, "e", "l")


def test_a_failure_is_tried_again_when_its_time_has_come() -> None:
    rig, order = started(attempts=3)
    rig.turn(failed(order, "timeout", reason="slow", evidence={"phase": "connect"}))
    row = rig.row(URL)
    assert (row.state, row.attempt, row.outcome) == (State.WAITING, 1, "timeout")
    assert row.due == START + round(1000 * (0.5 + SPREAD * jitter(key(URL), 0)))
    (failure,) = rig.failures
    assert failure == m.Failure(
        url=URL, crawl="c", visit=1, attempt=0, failure="timeout", reason="slow", evidence={"phase": "connect"},
        next=m.Next(action="retry", at=row.due), at=START, meta={"k": 1}, traceparent="t",
        history=HostHistory(host="h.example", breaker="closed"),
    )  # fmt: skip
    assert rig.settle() == []
    (again,) = rig.next_orders()
    assert again.attempt == 1
    assert rig.now == START + 1000 >= row.due  # the host has a moment's rest, too


def test_the_last_attempt_ends_the_visit() -> None:
    rig, order = started(attempts=2)
    rig.turn(failed(order))
    (again,) = rig.next_orders()
    rig.turn(failed(again))
    row = rig.row(URL)
    assert (row.state, row.outcome, row.visited, row.due) == (State.FAILED, "timeout", rig.now, 0)
    assert told(rig) == [("timeout", "retry"), ("timeout", "none")]


@pytest.mark.parametrize(
    ("failure", "status", "action"),
    [("http_status", 404, "none"), ("http_status", 503, "retry"), ("tls", 0, "none"), ("dns", 0, "retry")],
)
def test_some_failures_are_final(failure: m.FailureClass, status: int, action: str) -> None:
    rig, order = started()
    rig.turn(failed(order, failure, status=status))
    assert told(rig) == [(failure, action)]
    assert rig.row(URL).status == status
    assert rig.failures[0].evidence == ({"status": status} if status else {})


def test_a_failure_without_class_is_the_protocols() -> None:
    rig, order = started()
    rig.turn(answer(order, "failed"))
    assert told(rig) == [("protocol", "none")]


def test_retry_after_moves_the_next_attempt() -> None:
    rig, order = started()
    rig.turn(failed(order, "http_status", status=429, retry_after=3600.0))
    assert rig.row(URL).due == START + 3_600_000


def test_jitter_differs_by_url_and_attempt_and_stays_the_same() -> None:
    values = {jitter(k, a) for k in (b"a" * 16, b"b" * 16) for a in range(50)}
    assert len(values) == 100
    assert all(0 <= value < 1 for value in values)
    assert jitter(b"a" * 16, 3) == jitter(b"a" * 16, 3)


def test_a_failure_counts_once() -> None:
    """double-failure: the same attempt reported twice."""
    rig, order = started()
    rig.turn(failed(order), failed(order))
    rig.turn(failed(order))
    assert rig.row(URL).attempt == 1
    assert len(rig.failures) == 1


def test_an_outcome_of_another_visit_does_not_count() -> None:
    rig, order = started()
    rig.turn(answer(order), parsed(order))
    rig.turn(seeds(seed(URL, refetch=True)))
    rig.turn(failed(order), answer(order), parsed(order), answer(order, "redirected", location="http://x/", status=301))
    assert (rig.row(URL).visit, rig.state(URL), rig.row(URL).attempt) == (2, State.WAITING, 0)
    assert not rig.candidates


def test_a_success_of_an_older_attempt_wins() -> None:
    rig, order = started()
    rig.turn(failed(order))
    rig.turn(answer(order))
    assert rig.state(URL) is State.FETCHED
    assert rig.settle() == []
    assert rig.row(URL).due == 0


@pytest.mark.parametrize("result", ["fetched", "unchanged", "redirected", "parsed"])
def test_success_after_failure(result: str) -> None:
    """A slow answer arrives after the visit has failed for good: it counts, and `failures` is told."""
    rig, order = started(attempts=1)
    rig.turn(failed(order))
    assert rig.state(URL) is State.FAILED
    late = {
        "fetched": answer(order), "unchanged": answer(order, "unchanged", page=None), "parsed": parsed(order),
        "redirected": answer(order, "redirected", location="http://x.example/", status=301),
    }[result]  # fmt: skip
    rig.turn(late)
    assert rig.state(URL) is {"fetched": State.FETCHED, "redirected": State.REDIRECTED}.get(result, State.DONE)
    assert told(rig) == [("timeout", "none"), ("timeout", "resolved")]
    rig.turn(late)
    assert len(rig.failures) == 2


def test_a_page_the_parser_fails_on_ends() -> None:
    rig, order = started()
    rig.turn(answer(order), parsed(order, failure=PARSER, reason="it died"))
    assert (rig.state(URL), rig.row(URL).outcome) == (State.FAILED, "parser")
    assert told(rig) == [("parser", "none")]
    assert rig.failures[0].evidence == {"page": "0:7"}


@pytest.mark.parametrize("fetched_first", [True, False])
def test_the_fetch_outcome_of_such_a_page_does_not_open_it_again(fetched_first: bool) -> None:
    """Nobody would parse it a second time: it would stay open until the page expires."""
    rig, order = started()
    if fetched_first:
        rig.turn(answer(order))
    rig.turn(parsed(order, failure=PARSER))
    rig.turn(answer(order))
    assert rig.state(URL) is State.FAILED
    rig.turn(answer(order, page=(0, 8)))  # another copy is
    assert rig.state(URL) is State.FETCHED


def test_a_parser_failure_counts_only_while_the_visit_is_open() -> None:
    rig, order = started()
    rig.turn(answer(order), parsed(order))
    rig.turn(parsed(order, failure=PARSER))
    assert rig.state(URL) is State.DONE
    rig, order = started()
    rig.turn(failed(order, "tls"), parsed(order, failure=PARSER))
    assert told(rig) == [("tls", "none")]


@pytest.mark.parametrize("state", ["waiting", "fetched", "failed"])
def test_depth_lowered(state: str) -> None:
    """depth-lowered: on the way when a shorter way was found, so its links were handled too deep."""
    rig = Rig(crawl(depth=5))
    (order,) = [*rig.turn(links(URL, depth=3)), *rig.settle()]
    if state == "fetched":
        rig.turn(answer(order))
    elif state == "failed":
        rig.turn(failed(order, "tls"))
    rig.turn(links(URL, depth=1))
    assert (rig.row(URL).visit, rig.row(URL).depth) == (1, 1)
    rig.turn(parsed(order))
    assert (rig.row(URL).visit, rig.row(URL).depth, rig.state(URL)) == (2, 1, State.WAITING)
    assert told(rig) == ([("tls", "none"), ("tls", "resolved")] if state == "failed" else [])
    (again,) = rig.settle()
    rig.turn(answer(again), parsed(again))
    assert (rig.row(URL).visit, rig.state(URL)) == (2, State.DONE)


def test_depth_does_not_matter_without_a_limit() -> None:
    rig = Rig(crawl(depth=None))
    (order,) = [*rig.turn(links(URL, depth=3)), *rig.settle()]
    rig.turn(links(URL, depth=1), answer(order), parsed(order))
    assert (rig.row(URL).visit, rig.state(URL)) == (1, State.DONE)


# --- redirects


def redirect(order: m.FetchOrder, location: str) -> m.Outcomes:
    return answer(order, "redirected", location=location, status=301)


def test_a_redirect_ends_the_visit_and_names_a_candidate() -> None:
    rig = Rig(crawl())
    (order,) = [*rig.turn(seeds(seed(URL, depth=2, priority=7, parent="http://p/", via=("http://v/",), meta=[1],
                                     headers={"Cookie": "x"}, traceparent="t"))), *rig.settle()]  # fmt: skip
    rig.turn(redirect(order, "http://x.example/"))
    row = rig.row(URL)
    assert (row.state, row.status, row.visited) == (State.REDIRECTED, 301, START)
    assert rig.candidates == [m.Candidate(
        url="http://x.example/", fingerprint=key("http://x.example/"), crawl="c", depth=2, priority=7,
        parent="http://p/", via=("http://v/", URL), meta=[1], traceparent="t",
    )]  # fmt: skip
    rig.turn(redirect(order, "http://x.example/"))  # a replay
    assert len(rig.candidates) == 1


@pytest.mark.parametrize(
    ("via", "location", "failure"),
    [
        ((), URL, "redirect_loop"),
        (("http://a/", "http://b/"), "http://a/", "redirect_loop"),
        (("http://a/%7Ex",), "http://a/~x", "redirect_loop"),
        (("http://a/", "http://b/"), "http://c/", ""),
        (("http://a/", "http://b/", "http://d/"), "http://c/", "redirect_limit"),
    ],
)
def test_redirects_that_are_not_followed(via, location: str, failure: str) -> None:
    rig = Rig(crawl(max_redirects=3))
    (order,) = [*rig.turn(seeds(seed(URL, via=via))), *rig.settle()]
    rig.turn(redirect(order, location))
    assert told(rig) == ([(failure, "none")] if failure else [])
    assert len(rig.candidates) == (not failure)
    rig.turn(redirect(order, location))
    assert len(rig.failures) == bool(failure)
    if failure:
        assert rig.failures[0].evidence == {"location": location, "status": 301}


def test_a_redirect_to_another_spelling_is_followed() -> None:
    """`/%7Ea` and `/~a` are one URL, but a server may insist on the second: only the wire form differs."""
    rig = Rig(crawl())
    (order,) = [*rig.turn(seeds("http://h.example/%7Ea")), *rig.settle()]
    rig.turn(redirect(order, "http://h.example/~a"))
    (again,) = rig.settle()
    assert (again.url, again.visit, again.via) == ("http://h.example/~a", 2, ("http://h.example/%7Ea",))
    assert again.fingerprint == order.fingerprint
    rig.turn(redirect(order, "http://h.example/~a"))  # a replay
    rig.turn(answer(again), parsed(again))
    assert rig.row("http://h.example/~a").state is State.DONE
    assert (rig.candidates, rig.failures) == ([], [])


@pytest.mark.parametrize(("politeness", "host"), [("host", "www.h.example"), ("domain", "h.example")])
def test_a_redirect_to_the_host_with_www_is_another_spelling_where_the_keys_say_so(politeness, host: str) -> None:
    rig = Rig(crawl(keys=Keys(strip_www=True)), politeness=politeness)
    (order,) = [*rig.turn(seeds("http://h.example/a")), *rig.settle()]
    rig.turn(redirect(order, "http://www.h.example/a"))
    (again,) = rig.settle()
    assert (again.url, again.host, again.visit) == ("http://www.h.example/a", host, 2)
    assert again.fingerprint == order.fingerprint


def test_spellings_that_lead_to_each_other_are_a_loop() -> None:
    rig = Rig(crawl())
    (order,) = [*rig.turn(seeds("http://h.example/%7Ea")), *rig.settle()]
    rig.turn(redirect(order, "http://h.example/~a"))
    (again,) = rig.settle()
    rig.turn(redirect(again, "http://h.example/%7Ea"))
    assert told(rig) == [("redirect_loop", "none")]


def test_outcomes_of_a_crawl_that_was_deleted_still_end_visits() -> None:
    rig, order = started()
    (other,) = [*rig.turn(seeds("http://h.example/2")), *rig.settle()]
    del rig.crawls["c"]
    rig.turn(failed(order), redirect(other, "http://x.example/"))
    assert told(rig) == [("timeout", "none"), ("redirect_limit", "none")]
    rig.turn(parsed(order))
    assert rig.state(URL) is State.DONE


def test_a_fetched_outcome_without_a_page_loses_nothing() -> None:
    rig, order = started()
    (again,) = [*rig.turn(answer(order, page=None)), *rig.settle()]
    assert rig.state(URL) is State.WAITING
    assert again.url == URL


def test_what_the_fetcher_excludes_ends_its_visit_without_a_failure_and_without_another_try() -> None:
    rig, order = started()
    excluded = answer(order, "excluded", reason="accept:html", status=200)
    assert given(rig, excluded) == []
    row = rig.row(URL)
    assert (row.state, row.outcome, row.status, row.visited) == (State.EXCLUDED, "accept:html", 200, rig.now)
    assert rig.failures == []
    given(rig, excluded)  # a replay
    assert rig.row(URL) == row
    assert rig.shard.progress(0).crawls["c"].exclusions == {"accept:html": 1}
    (again,) = given(rig, seeds(seed(URL, refetch=True)))
    assert again.visit == 2
