"""What a rule kept out comes back when a new version of the definition lifts the rule."""

from __future__ import annotations

from typing import Any

import pytest

from streams import messages as m
from streams.definitions import Scope, ScopeRule, Traps
from streams.frontier.reopening import ENOUGH, STEP
from streams.frontier.rows import State
from tests.unit.frontier.rig import HOUR, Rig, answer, crawl, done, given, links, pages, parsed, urls_of

H = "http://h.example"


def open_urls(rig: Rig) -> int:
    return rig.shard.progress(0).crawls["c"].open


def exclusions(rig: Rig) -> dict[str, int]:
    return rig.shard.progress(0).crawls["c"].exclusions


def limited(number: int = 20, **fields: Any) -> Rig:
    """A crawl whose budget of one page is used up, and that has not ended."""
    rig = Rig(crawl(**{"limit": 1, "parallelism": 1, **fields}))
    (order,) = given(rig, links(*pages(number)))
    assert done(rig, order) == []
    assert exclusions(rig) == {"limit": number - 1}
    return rig


def crawled(rig: Rig) -> list[str]:
    """What is fetched from now on, page by page."""
    rig.now += 1000
    found: list[str] = []
    orders = [*rig.turn(), *rig.settle()]
    while orders:
        found += urls_of(orders)
        orders = given(rig, *(msg for order in orders for msg in (answer(order), parsed(order))))
    return found


def test_a_raised_page_limit_brings_back_what_it_kept_out_in_its_order() -> None:
    rig = limited()
    rig.change(limit=4)
    assert crawled(rig) == pages(3, first=1)
    row = rig.row(f"{H}/1")
    assert (row.state, row.visit, row.outcome) == (State.DONE, 2, "")
    assert exclusions(rig) == {"limit": 16}
    assert open_urls(rig) == 0
    rig.change(limit=None)
    assert crawled(rig) == pages(16, first=4)
    assert (exclusions(rig), open_urls(rig)) == ({}, 0)


def test_another_version_that_lifts_nothing_brings_nothing_back() -> None:
    rig = limited()
    for changes in ({"delay": 0.1}, {"seal": {0: 1}, "state": "sealed"}, {"depth": 3}):
        rig.change(**changes)
        assert crawled(rig) == []
    assert exclusions(rig) == {"limit": 19}


def test_a_change_is_seen_by_the_next_owner() -> None:
    rig = limited()
    rig.change(limit=2)
    rig.load()
    assert crawled(rig) == pages(1, first=1)
    rig.load()
    assert (crawled(rig), exclusions(rig), open_urls(rig)) == ([], {"limit": 18}, 0)


def test_a_paused_crawl_waits() -> None:
    rig = limited()
    rig.change(limit=2, state="paused")
    assert crawled(rig) == []
    assert open_urls(rig) == 1  # it must not end
    rig.change(state="open")
    assert crawled(rig) == pages(1, first=1)


def test_the_crawl_does_not_end_while_rows_are_looked_through() -> None:
    rig = limited(2 * STEP + 50, state="sealed")
    rig.change(limit=STEP, delay=60.0)
    rig.now += 1000
    rig.turn()
    assert exclusions(rig) == {"limit": STEP + 49}
    assert open_urls(rig) == STEP + 1
    rig.turn()
    rig.settle(50)
    assert (exclusions(rig), open_urls(rig)) == ({}, 2 * STEP + 49)


def test_no_more_come_back_than_are_needed() -> None:
    rig = limited(ENOUGH + 3 * STEP)
    rig.change(limit=3, delay=3600.0)
    rig.now += 1000
    rig.turn()
    rig.settle(50)
    assert exclusions(rig)["limit"] > STEP
    assert ENOUGH <= open_urls(rig) <= ENOUGH + STEP + 1


def test_an_ended_crawl_stays_ended() -> None:
    rig = limited()
    rig.change(limit=None, state="ended")
    assert crawled(rig) == []
    assert (exclusions(rig), open_urls(rig)) == ({"limit": 19}, 0)


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ({"max_size": 1}, {"max_size": None}, "size"),
        ({"deadline": 1}, {"deadline": None}, "deadline"),
        ({"host_limit": 1}, {"host_limit": 9}, "limit:host"),
        ({"host_size": 1}, {"host_size": 900}, "size:host"),
        ({"scope": Scope(mode="host", values=("x.example",))}, {"scope": Scope()}, "scope:host"),
        ({"scope_rules": (ScopeRule(id="no", path="/1"),)}, {"scope_rules": ()}, "scope:no"),
        ({"traps": Traps(length=5)}, {"traps": Traps()}, "trap:length"),
        ({"depth": 0}, {"depth": 1}, "depth"),
    ],
)
def test_every_rule_can_be_lifted(before, after, rule: str) -> None:
    rig = Rig(crawl(parallelism=1))
    orders = given(rig, links(f"{H}/0"))
    given(rig, answer(orders[0], size=100), parsed(orders[0]))
    rig.change(**before)
    if rule in ("limit:host", "size:host"):  # such a budget counts from now on
        orders = given(rig, links(f"{H}/00"))
        given(rig, answer(orders[0], size=100), parsed(orders[0]))
    rig.turn(links(f"{H}/1"))
    rig.settle()
    assert exclusions(rig) == {rule: 1}
    rig.change(**after)
    assert crawled(rig) == [f"{H}/1"]
    assert (exclusions(rig), open_urls(rig)) == ({}, 0)


def test_what_another_rule_keeps_out_stays_out() -> None:
    rig = Rig(crawl(scope_rules=(ScopeRule(id="a", path="/1"), ScopeRule(id="b", path="/12"))))
    given(rig, links(f"{H}/1", f"{H}/12"))
    assert exclusions(rig) == {"scope:a": 2}
    rig.change(scope_rules=(ScopeRule(id="b", path="/12"),))
    assert crawled(rig) == [f"{H}/1"]
    assert (exclusions(rig), open_urls(rig)) == ({"scope:a": 1}, 0)


def test_robots_rules_are_lifted_by_a_crawl_that_does_not_ask_for_them() -> None:
    rig = Rig(crawl(robots=True))
    (order,) = given(rig, links(f"{H}/1"))
    content = m.RobotsRules(origin=H, version="v", fetched=rig.now, expires=rig.now + HOUR, rules=((False, "/"),))
    given(rig, answer(order, robots_rules=content))
    assert exclusions(rig) == {"robots": 1}
    rig.change(robots=False)
    assert crawled(rig) == [f"{H}/1"]
