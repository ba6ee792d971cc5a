"""Where an accepted URL stands, and what a request owes to its crawl and host."""

from __future__ import annotations

from typing import Any

import pytest

from streams import messages as m
from streams.definitions import CrawlDefinition, LimitRule
from streams.frontier.accounts import MOST, Duties, Named, account, named_in
from streams.frontier.robots import DELAY_CAP
from streams.frontier.rows import State
from streams.policy.audit import NOTHING, Owed
from streams.policy.politeness import Limits

KEY = bytes(range(16))
OPEN, SEALED = CrawlDefinition(id="c"), CrawlDefinition(id="c", state="sealed")
ENDED = CrawlDefinition(id="c", state="ended", result="exhausted", ended=1000)
LIMIT = CrawlDefinition(id="c", state="ended", result="limit", ended=1000)
CANCELLED = CrawlDefinition(id="c", state="ended", result="cancelled", ended=1000)


@pytest.mark.parametrize(
    ("state", "named", "crawl", "expected"),
    [
        (State.DONE, 5, OPEN, "done"),
        (State.FAILED, 5, ENDED, "failed"),
        (State.EXCLUDED, 0, None, "excluded"),
        (State.REDIRECTED, 5, SEALED, "redirected"),
        (State.WAITING, 5, OPEN, "open"),
        (State.FETCHED, 5, SEALED, "open"),
        (State.WAITING, 5, None, "open"),
        (State.WAITING, 5, ENDED, "left open"),
        (State.FETCHED, 5, LIMIT, "left open"),
        (State.WAITING, 5, CANCELLED, "open"),  # its last orders may be out
        (None, 5, OPEN, "lost"),
        (None, 5, SEALED, "lost"),
        (None, 1000, ENDED, "lost"),
        (None, 1001, ENDED, "late"),
        (None, 5, LIMIT, "lost"),
        (None, 5, CANCELLED, "late"),  # what was on its way is dropped
        (None, 5, None, "late"),
    ],
)
def test_account(state: State | None, named: int, crawl: CrawlDefinition | None, expected: str) -> None:
    assert account(state, named, crawl) == expected


def test_a_row_that_was_removed_on_purpose_is_not_lost() -> None:
    assert account(None, 5, OPEN, removed=True) == "removed"
    assert account(State.DONE, 5, OPEN, removed=True) == "done", "it came back"


def test_what_messages_name() -> None:
    other = bytes(reversed(KEY))
    seed = m.Candidate(url="http://a.test/", fingerprint=KEY, crawl="c")
    assert list(named_in(m.Candidates(items=(seed,)))) == [Named(KEY, "c", "http://a.test/")]
    pack = m.Links(crawl="c", urls=["u", "v"], fingerprints=KEY + other, parents=[])
    assert list(named_in(pack)) == [Named(KEY, "c", "u"), Named(other, "c", "v")]
    assert not list(named_in(m.Outcomes(items=())))
    assert not list(named_in(m.Command(action="redrive", crawl="c", fingerprint=KEY)))


def outcome(version: int = 1, robots: str = "", url: str = "http://a.test/", **facts: Any) -> m.FetchOutcome:
    return m.FetchOutcome(
        crawl="c", fingerprint=KEY, url=url, visit=1, attempt=0, result="failed", rules=version, robots=robots, **facts,
    )  # fmt: skip


def rules(version: str, delay: float | None) -> m.RobotsRules:
    return m.RobotsRules(origin="http://a.test", version=version, fetched=1, expires=2, crawl_delay=delay)


def test_what_is_owed() -> None:
    duties = Duties()
    assert duties.owed(outcome()) == Owed(NOTHING)
    duties.defined(CrawlDefinition(id="c", delay=2.0, parallelism=3), 10)
    duties.defined(CrawlDefinition(id="c", delay=0.1, parallelism=9), 15)  # the loser of a race
    fast = LimitRule(id="fast", domain="a.test", delay=0.2)
    duties.defined(CrawlDefinition(id="c", version=2, delay=5.0, parallelism=1, limits=(fast,)), 20)
    assert duties.owed(outcome()) == Owed(Limits(2.0, 3), 20, Limits(0.2, 1))
    assert duties.owed(outcome(version=2)) == Owed(Limits(0.2, 1))
    assert duties.owed(outcome(version=2, url="http://b.test/")) == Owed(Limits(5.0, 1))
    assert duties.owed(outcome(version=2, kind="robots")) == Owed(NOTHING), "the strictest rule of its host held"
    assert duties.owed(outcome(kind="robots")) == Owed(Limits(2.0, 3), 20, Limits(0.0, MOST))
    assert duties.owed(outcome(version=3)) == Owed(NOTHING)


def test_what_is_owed_after_changes_is_the_kindest_since() -> None:
    duties = Duties()
    for version, delay, parallelism in ((1, 2.0, 3), (3, 0.5, 1), (4, 1.0, 4)):
        definition = CrawlDefinition(id="c", version=version, delay=delay, parallelism=parallelism)
        duties.defined(definition, 10 * version)
    assert duties.owed(outcome(version=3)) == Owed(Limits(0.5, 1), 40, Limits(1.0, 4))
    assert duties.owed(outcome(version=1)) == Owed(Limits(2.0, 3), 1, Limits(0.5, 4)), "nobody knows when 2 came"


def test_a_crawl_delay_is_not_owed_once_robots_is_not_obeyed() -> None:
    duties = Duties()
    duties.defined(CrawlDefinition(id="c", delay=2.0, parallelism=3), 10)
    duties.defined(CrawlDefinition(id="c", version=2, delay=2.0, parallelism=3, robots=False), 20)
    duties.learn(outcome(robots_rules=rules("v", 7.0)))
    assert duties.owed(outcome(robots="v")) == Owed(Limits(7.0, 3), 20, Limits(2.0, 3))


@pytest.mark.parametrize(("asked", "owed"), [(None, 2.0), (0.5, 2.0), (7.5, 7.5), (1e6, DELAY_CAP)])
def test_a_crawl_delay_is_owed_by_orders_that_name_its_rules(asked: float | None, owed: float) -> None:
    duties = Duties()
    duties.defined(CrawlDefinition(id="c", delay=2.0, parallelism=3), 10)
    duties.learn(outcome())
    duties.learn(outcome(robots_rules=rules("v", asked)))
    assert duties.owed(outcome(robots="v")).limits.delay == owed
    assert duties.owed(outcome(robots="other")).limits.delay == 2.0
