"""Seeds, links, redirect targets and redrives against the rows they meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from streams import messages as m
from streams.definitions import Scope, ScopeRule, Traps
from streams.frontier.rows import State, UrlRow, encode_row, url_key
from streams.policy.forgetting import deny_host
from tests.unit.frontier.rig import (
    HOUR,
    START,
    Rig,
    answer,
    crawl,
    failed,
    given,
    key,
    links,
    parsed,
    seed,
    seeds,
)

URL = "http://h.example/page"
TTL = 72 * HOUR
ORIGIN = m.Origin("urls", 1, 10, 0)
LATER = m.Origin("urls", 1, 11, 0)


def rig_with(row: dict[str, Any] | None, **definition: Any) -> Rig:
    """A shard whose crawl has one row for URL (paused: nothing is released)."""
    rig = Rig(crawl(**{"state": "paused", "depth": 4, **definition}))
    if row is not None:
        base = UrlRow(1, State.DONE, 3, 5, "c", URL, "h.example", 1, 2, 1, visited=START - HOUR, via=("http://old/",),
                      outcome="", status=200, page=(1, 2), etag="e", content=b"c")  # fmt: skip
        rig.store.apply([(url_key(key(URL)), encode_row(msgspec.structs.replace(base, **row)))])
        rig.load()
    return rig


def test_a_seed_becomes_a_waiting_row() -> None:
    rig = rig_with(None)
    rig.turn(seeds(seed("http://h.example/"), seed(URL, depth=2, priority=8, parent="p", via=("v",), headers={"a": "b"},
                                                   meta=[1], origin=ORIGIN, traceparent="t")))  # fmt: skip
    assert rig.row(URL) == UrlRow(
        1, State.WAITING, 2, 8, "c", URL, "h.example", 1, 0, 1, parent="p", via=("v",), headers={"a": "b"}, meta=[1],
        origins=(ORIGIN,), traceparent="t", arrived=START,
    )  # fmt: skip
    assert rig.shard.progress(0).crawls["c"] == m.CrawlCounts(open=2, activity=2, hosts=1)


def test_a_link_becomes_a_waiting_row() -> None:
    rig = rig_with(None)
    rig.turn(seeds("http://h.example/"))
    rig.turn(links("http://x.example/", URL, depth=3, parent="http://p/"))
    assert rig.row(URL) == UrlRow(1, State.WAITING, 3, 5, "c", URL, "h.example", 1, 0, (1 << 12) + 1,
                                  parent="http://p/", arrived=START)  # fmt: skip


def test_links_of_several_pages_keep_their_parents() -> None:
    rig = rig_with(None)
    found = [f"http://h.example/{i}" for i in range(5)]
    parents = [m.LinkParent(url="http://a/", depth=1, count=2), m.LinkParent(url="http://b/", depth=2, count=3)]
    rig.turn(m.Links(crawl="c", urls=found, fingerprints=b"".join(map(key, found)), parents=parents))
    assert [(rig.row(u).parent, rig.row(u).depth, rig.row(u).seq) for u in found] == [
        ("http://a/", 1, 0), ("http://a/", 1, 1),
        ("http://b/", 2, 2), ("http://b/", 2, 3), ("http://b/", 2, 4),
    ]  # fmt: skip


def test_a_link_twice_in_a_pack_is_one_row() -> None:
    rig = rig_with(None)
    rig.turn(links(URL, URL))
    assert rig.shard.progress(0).crawls["c"] == m.CrawlCounts(open=1, activity=1, duplicates=1, hosts=1)


@pytest.mark.parametrize(
    ("item", "definition", "rule"),
    [
        ({"depth": 5}, {}, "depth"),
        ({"depth": 4}, {}, ""),
        ({"depth": 99}, {"depth": None}, ""),
        ({}, {"scope": Scope(mode="host", values=("other.example",))}, "scope:host"),
        ({}, {"scope": Scope(mode="host", values=("h.example",))}, ""),
        ({}, {"scope_rules": (ScopeRule(id="pages", path="/p"),)}, "scope:pages"),
        ({}, {"traps": Traps(length=5)}, "trap:length"),
        ({"origin": ORIGIN}, {"traps": Traps(length=5)}, ""),  # somebody wants it
    ],
)
def test_a_candidate_may_be_kept_out(item, definition, rule: str) -> None:
    rig = rig_with(None, **definition)
    rig.turn(seeds(seed(URL, **item)))
    row = rig.row(URL)
    assert (row.state, row.outcome) == (State.EXCLUDED if rule else State.WAITING, rule)
    assert row.visited == (START if rule else 0)


OLD = {"visited": START - TTL}
FRESH = {"visited": START - TTL + 1}


@pytest.mark.parametrize(
    ("row", "item", "definition", "visit"),
    [
        # within the window
        ({}, {}, {}, 1),
        ({}, {"refetch": True}, {}, 2),
        ({"state": State.FAILED, "outcome": "dns"}, {}, {}, 1),
        ({"state": State.FAILED, "outcome": "dns"}, {"refetch": True}, {}, 2),
        ({"state": State.WAITING}, {"refetch": True}, {}, 1),
        # after it: a seed opens a visit, a redirect target only in an endless crawl
        (OLD, {"origin": ORIGIN}, {}, 2),
        (FRESH, {"origin": ORIGIN}, {}, 1),
        (OLD, {}, {}, 1),
        (OLD, {}, {"endless": True}, 2),
        (FRESH, {}, {"endless": True}, 1),
        ({**OLD, "state": State.WAITING}, {"origin": ORIGIN}, {"endless": True}, 1),
        ({"visited": START - 5000}, {"origin": ORIGIN}, {"seen_ttl": 5.0}, 2),
        # a shorter way
        ({}, {"depth": 2}, {}, 2),
        ({}, {"depth": 2}, {"depth": None}, 1),
        ({"state": State.REDIRECTED}, {"depth": 2}, {}, 2),
        ({"state": State.FAILED, "outcome": "dns"}, {"depth": 2}, {}, 1),
        # what was kept out
        ({"state": State.EXCLUDED, "outcome": "depth"}, {"depth": 4}, {}, 2),
        ({"state": State.EXCLUDED, "outcome": "depth"}, {"depth": 5}, {}, 1),
        ({"state": State.EXCLUDED, "outcome": "scope:host"}, {"depth": 3}, {}, 2),
        ({"state": State.EXCLUDED, "outcome": "robots"}, {"depth": 3}, {}, 1),
        ({"state": State.EXCLUDED, "outcome": "robots"}, {"depth": 3, "origin": ORIGIN}, {}, 2),
        ({"state": State.EXCLUDED, "outcome": "limit"}, {"depth": 9, "refetch": True}, {}, 1),
    ],
)
def test_when_a_candidate_opens_a_visit(row, item, definition, visit: int) -> None:
    rig = rig_with(row, **definition)
    before = rig.row(URL)
    rig.turn(seeds(seed(URL, **{"depth": 3, **item})))
    after = rig.row(URL)
    assert after.visit == visit
    if visit == 2:
        assert (after.state, after.attempt, after.due, after.outcome, after.page, after.via) == (
            State.WAITING, 0, 0, "", None, ())  # fmt: skip
        assert (after.depth, after.content) == (min(before.depth, item.get("depth", 3)), b"c")
        assert after.etag == ("" if after.depth < before.depth else "e"), "304 would not bring the page's links"
    else:
        assert after.state == before.state
        assert rig.shard.progress(0).crawls["c"].duplicates == 1


@pytest.mark.parametrize(
    ("row", "depth", "definition", "after"),
    [
        ({}, 3, {}, (1, 3)),
        ({}, 4, {}, (1, 3)),
        ({}, 2, {}, (2, 2)),  # its links come into reach
        ({}, 2, {"depth": None}, (1, 2)),
        ({"state": State.REDIRECTED}, 2, {}, (2, 2)),  # its target does
        ({"state": State.REDIRECTED}, 2, {"depth": None}, (1, 2)),
        ({"state": State.WAITING}, 2, {}, (1, 2)),
        ({"state": State.WAITING, "due": START + 9}, 2, {}, (1, 2)),
        ({"state": State.FETCHED}, 2, {}, (1, 2)),  # noticed when it has been parsed
        ({"state": State.FAILED, "outcome": "dns"}, 2, {}, (1, 2)),
        ({"state": State.EXCLUDED, "outcome": "robots"}, 2, {}, (1, 2)),
        ({"state": State.EXCLUDED, "outcome": "depth", "depth": 6}, 4, {}, (2, 4)),
        ({"state": State.EXCLUDED, "outcome": "scope:any"}, 4, {}, (2, 3)),
        ({**OLD}, 3, {"endless": True}, (2, 3)),
        ({**OLD}, 2, {"endless": True}, (2, 2)),
        ({**OLD}, 4, {"endless": False}, (1, 3)),
        ({**FRESH}, 4, {"endless": True}, (1, 3)),
        ({**OLD, "state": State.FETCHED}, 4, {"endless": True}, (1, 3)),
    ],
)
def test_a_link_to_a_known_url(row, depth: int, definition, after) -> None:
    rig = rig_with(row, **definition)
    rig.turn(links(URL, depth=depth, parent="http://new/"))
    found = rig.row(URL)
    assert (found.visit, found.depth) == after
    opened = found.visit == 2
    assert rig.shard.progress(0).crawls["c"].duplicates == (not opened)
    if opened:
        assert (found.state, found.parent, found.via, found.priority) == (State.WAITING, "http://new/", (), 5)


@pytest.mark.parametrize(
    ("row", "priority", "after"),
    [
        ({"state": State.WAITING}, 5, 5),
        ({"state": State.WAITING}, 3, 5),
        ({"state": State.WAITING}, 8, 8),
        ({"state": State.WAITING, "due": START + 9}, 8, 8),
        ({"state": State.FETCHED}, 8, 5),  # too late
        ({"state": State.DONE}, 8, 5),
    ],
)
@pytest.mark.parametrize("how", ["link", "candidate"])
def test_a_url_waits_with_the_highest_priority_it_was_met_with(row, priority: int, after: int, how: str) -> None:
    rig = rig_with(row)
    parents = [m.LinkParent(url="http://new/", depth=3, count=1, priority=priority)]
    link = m.Links(crawl="c", urls=[URL], fingerprints=key(URL), parents=parents)
    rig.turn(link if how == "link" else seeds(seed(URL, depth=3, priority=priority)))
    found = rig.row(URL)
    assert (found.priority, found.visit, found.depth) == (after, 1, 3)
    assert rig.shard.progress(0).crawls["c"].duplicates == 1


def test_a_link_inherits_the_priority_of_its_page() -> None:
    rig = rig_with({"state": State.EXCLUDED, "outcome": "depth", "depth": 9})
    found = [URL, "http://h.example/new"]
    parents = [m.LinkParent(url="http://p/", depth=1, count=2, priority=8)]
    rig.turn(m.Links(crawl="c", urls=found, fingerprints=b"".join(map(key, found)), parents=parents))
    assert [(rig.row(url).state, rig.row(url).priority) for url in found] == [(State.WAITING, 8)] * 2


def test_depth_is_lowered_by_a_candidate_while_the_visit_is_open() -> None:
    rig = rig_with({"state": State.WAITING})
    rig.turn(seeds(seed(URL, depth=1)))
    assert (rig.row(URL).visit, rig.row(URL).depth) == (1, 1)


def test_a_seed_that_is_read_again_does_nothing() -> None:
    rig = rig_with(None)
    rig.turn(seeds(seed(URL, origin=LATER)))
    row, counts = rig.row(URL), rig.shard.progress(0).crawls["c"]
    for origin in (LATER, ORIGIN, m.Origin("urls", 1, 10, 99)):
        rig.turn(seeds(seed(URL, origin=origin, refetch=True, depth=0)))
    assert rig.row(URL) == row
    assert rig.shard.progress(0).crawls["c"] == counts


@pytest.mark.parametrize("origin", [m.Origin("urls", 1, 11, 1), m.Origin("urls", 0, 3), m.Origin("others", 1, 3)])
def test_a_seed_from_elsewhere_is_another_seed(origin: m.Origin) -> None:
    rig = rig_with({"origins": (LATER,)})
    rig.turn(seeds(seed(URL, origin=origin, refetch=True)))
    assert rig.row(URL).visit == 2
    kept = {(o.topic, o.partition): o for o in rig.row(URL).origins}
    assert kept == {("urls", 1): LATER, (origin.topic, origin.partition): origin}


AGAIN = m.Origin("urls", 1, 20)
WANTED: dict[str, Any] = {"refetch": True, "origin": AGAIN, "meta": 3, "headers": {"X": "1"}, "depth": 1, "priority": 9}
ENDS: dict[str, Callable[[m.FetchOrder], list[m.Inbox]]] = {
    "done": lambda order: [answer(order), parsed(order)],
    "the parser was faster": lambda order: [parsed(order), answer(order)],
    "unchanged": lambda order: [answer(order, "unchanged", status=304)],
    "failed": lambda order: [failed(order, "http_status", status=404)],
    "not parsed": lambda order: [answer(order), parsed(order, failure="parser")],
    "not accepted": lambda order: [answer(order, "excluded", status=200, reason="accept:html")],
    "redirected": lambda order: [answer(order, "redirected", status=301, location="http://h.example/other")],
}


@pytest.mark.parametrize("end", ENDS)
def test_a_refetch_that_comes_while_an_order_is_out_is_a_visit_of_its_own(end: str) -> None:
    """The answer may be older than the seed; nobody could tell them apart."""
    rig = Rig(crawl(depth=5))
    (order,) = given(rig, seeds(seed(URL, origin=ORIGIN, depth=3)))
    again = seeds(seed(URL, **WANTED))
    assert given(rig, again, again) == []  # read twice: one visit all the same
    assert (rig.row(URL).visit, rig.row(URL).open) == (1, True)
    rig.load()  # a new owner knows of it
    orders = [order for order in given(rig, *ENDS[end](order)) if order.url == URL]
    assert [(o.visit, o.meta, o.headers, o.depth, o.priority) for o in orders] == [(2, 3, {"X": "1"}, 1, 9)]
    given(rig, again)
    assert (rig.row(URL).then, rig.row(URL).visit) == (None, 2)


def test_a_refetch_that_comes_while_a_page_waits_for_the_parser_is_a_visit_of_its_own() -> None:
    rig = Rig()
    (order,) = given(rig, seeds(URL))
    given(rig, answer(order), seeds(seed(URL, **WANTED)))
    assert rig.state(URL) is State.FETCHED
    (again,) = given(rig, parsed(order))
    assert (again.visit, again.meta) == (2, 3)


def test_a_refetch_asks_nothing_more_of_a_url_that_still_waits() -> None:
    rig = Rig(crawl(delay=60.0))
    given(rig, seeds(f"{URL}first"), seeds(URL))
    given(rig, seeds(seed(URL, **WANTED)))
    assert (rig.state(URL), rig.row(URL).then) == (State.WAITING, None)


def test_the_visit_that_a_smaller_depth_needs_serves_a_refetch_too() -> None:
    rig = Rig(crawl(depth=5))
    (order,) = given(rig, links(URL, depth=3))
    given(rig, seeds(seed(URL, **{**WANTED, "depth": 3})), links(URL, depth=2))
    (again,) = given(rig, answer(order), parsed(order))
    assert (again.visit, again.meta, again.depth) == (2, 3, 2)
    given(rig, answer(again), parsed(again))
    assert (rig.state(URL), rig.row(URL).visit) == (State.DONE, 2)


@pytest.mark.parametrize(
    "change", [{"state": "ended", "result": "cancelled"}, {"scope_rules": (deny_host("h.example"),)}]
)
def test_a_refetch_opens_no_visit_that_the_crawl_does_not_want_any_more(change: dict[str, Any]) -> None:
    rig = Rig()
    (order,) = given(rig, seeds(URL))
    given(rig, seeds(seed(URL, **WANTED)))
    rig.change(**change)
    assert given(rig, answer(order), parsed(order)) == []
    assert not rig.row(URL).open


def test_a_refetch_opens_no_visit_in_a_crawl_that_is_not_defined_any_more() -> None:
    """Nobody would release it, and nobody exclude it."""
    rig = Rig()
    (order,) = given(rig, seeds(URL))
    given(rig, seeds(seed(URL, **WANTED)))
    del rig.crawls["c"]
    given(rig, answer(order), parsed(order))
    assert rig.state(URL) is State.DONE


def test_a_seed_that_changes_nothing_is_remembered() -> None:
    rig = rig_with({"origins": (ORIGIN,)})
    rig.turn(seeds(seed(URL, origin=LATER, depth=3)))
    assert (rig.row(URL).visit, rig.row(URL).origins) == (1, (LATER,))


def test_a_duplicate_that_changes_nothing_writes_nothing() -> None:
    rig = rig_with({})
    turn = rig.shard.turn([(0, seeds(seed(URL, depth=3))), (1, links(URL, depth=3))], START, {})
    assert (turn.rows(), turn.written) == ([], 0)


def test_a_turn_counts_what_it_does() -> None:
    rig = rig_with({})
    turn = rig.shard.turn(
        [(0, links(URL, "http://h.example/2", depth=3)), (1, seeds(seed(URL + "x", depth=9)))], START, {}
    )
    assert (turn.links_new, turn.links_known, turn.written, turn.finished) == (1, 1, 2, {State.EXCLUDED: 1})
    turn = rig.shard.turn([(2, links(URL, depth=2))], START, {})  # a shorter way opens a visit
    assert (turn.links_new, turn.links_known, turn.finished) == (1, 0, {})


@pytest.mark.parametrize(
    ("row", "visit", "opens"),
    [
        ({"state": State.FAILED, "outcome": "dns"}, 2, True),
        ({"state": State.DONE}, 2, True),
        ({"state": State.FAILED, "outcome": "dns"}, 1, False),  # a replay
        ({"state": State.FAILED, "outcome": "dns"}, 3, False),
        ({"state": State.WAITING}, 2, False),
        (None, 1, False),
    ],
)
def test_redrive_opens_the_visit_it_names(row, visit: int, opens: bool) -> None:
    rig = rig_with(row)
    rig.turn(m.Command(action="redrive", crawl="c", url=URL, fingerprint=key(URL), visit=visit))
    if row is not None:
        found = rig.row(URL)
        assert (found.visit, found.state) == ((2, State.WAITING) if opens else (1, row["state"]))
        assert found.via == ("http://old/",)
    counts = rig.shard.progress(0).crawls.get("c", m.CrawlCounts())
    assert counts.activity == opens


@pytest.mark.parametrize("definition", [{"state": "ended"}, {"id": "another"}])
def test_an_ended_or_unknown_crawl_takes_nothing(definition) -> None:
    rig = Rig(crawl(**definition))
    rig.turn(seeds(URL), links(URL, "http://h.example/2"),
             m.Command(action="redrive", crawl="c", url=URL, fingerprint=key(URL), visit=1))  # fmt: skip
    assert rig.store.rows == {}
    assert rig.shard.progress(0).crawls["c"] == m.CrawlCounts(duplicates=4)


def test_politeness_may_be_shared_by_a_domain() -> None:
    rig = Rig(politeness="domain")
    rig.turn(seeds("http://a.example.org/"), links("http://b.example.org/"))
    assert {rig.row(f"http://{x}.example.org/").host for x in "ab"} == {"example.org"}
