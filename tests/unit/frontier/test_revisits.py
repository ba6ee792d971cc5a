"""URLs that come back by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from streams import messages as m
from streams.definitions import CrawlDefinition, LimitRule, Recrawl
from streams.frontier.revisits import LOOK_AGAIN
from streams.frontier.rows import State
from tests.unit.frontier.rig import (
    HOUR,
    START,
    Rig,
    answer,
    crawl,
    done,
    failed,
    given,
    key,
    links,
    parsed,
    rules,
    seed,
    seeds,
    urls_of,
)

URL = "http://h.example/"
MINUTE = 60_000
DAILY = Recrawl(interval=24 * 3600.0)
DAY = 24 * HOUR
SEED = m.Origin("urls", 0, 1)


def back(recrawl: Recrawl | None = DAILY, **fields: Any) -> CrawlDefinition:
    return crawl(recrawl=recrawl, **fields)


def rig_with(recrawl: Recrawl = DAILY, **fields: Any) -> Rig:
    return Rig(back(recrawl, **fields))


def first_visit(rig: Rig, content: bytes = b"one", url: str = URL, **facts: Any) -> m.FetchOrder:
    (order,) = given(rig, seeds(seed(url, origin=SEED)))
    given(rig, answer(order, **facts), parsed(order, content=content))
    return order


def next_visit(rig: Rig, wait: int = DAY) -> m.FetchOrder:
    """The only order that leaves after `wait` ms, and none does a moment earlier."""
    assert [*rig.turn(wait=wait - 1), *rig.settle()] == []
    (order,) = [*rig.turn(wait=1), *rig.settle()]
    return order


def counts(rig: Rig) -> m.CrawlCounts:
    return rig.shard.progress(rig.now).crawls["c"]


def test_a_done_url_opens_its_next_visit_when_it_is_due() -> None:
    rig = rig_with()
    given(rig, seeds(seed(URL, priority=8, depth=0, meta=[1], headers={"a": "b"}, traceparent="00-t")))
    before = rig.row(URL)
    given(rig, *(m.Outcomes(items=(outcome,)) for outcome in _both(rig)))
    row = rig.row(URL)
    assert (row.state, row.due, row.changed) == (State.DONE, START + DAY, START)
    assert (counts(rig).due, counts(rig).open) == (1, 0)
    again = next_visit(rig)
    assert (again.visit, again.attempt, again.priority, again.meta, again.headers) == (2, 0, 8, [1], {"a": "b"})
    assert not again.traceparent.startswith("00-t"), "a seed's trace is about its own visit"
    row = rig.row(URL)
    assert (row.state, row.arrived, row.due, counts(rig).due) == (State.WAITING, START + DAY, 0, 0)
    assert before.seq == row.seq, "what tells its entry from all others"


def _both(rig: Rig) -> tuple[m.FetchOutcome, m.ParseOutcome]:
    facts: dict[str, Any] = {"crawl": "c", "fingerprint": key(URL), "visit": 1}
    fetch = m.FetchOutcome(url=URL, attempt=0, result="fetched", status=200, page=(0, 7), **facts)
    return fetch, m.ParseOutcome(depth=0, page=(0, 7), **facts)


def test_without_a_recrawl_nothing_comes_back() -> None:
    rig = Rig()
    done(rig, *given(rig, seeds(URL, "http://h.example/other")))
    assert rig.row(URL).due == 0
    assert rig.shard.wake_at() == float("inf")


def test_a_visit_is_conditional_and_304_keeps_what_was_found() -> None:
    rig = rig_with()
    first_visit(rig, etag='"1"', last_modified="Mon")
    order = next_visit(rig)
    assert (order.etag, order.last_modified) == ('"1"', "Mon")
    given(rig, answer(order, "unchanged", etag='"1b"'))
    row = rig.row(URL)
    assert (row.state, row.status, row.etag, row.last_modified, row.content) == (State.DONE, 304, '"1b"', "Mon", b"one")
    assert (row.changed, row.visited, row.due) == (START, START + DAY, START + 2 * DAY)
    assert next_visit(rig).etag == '"1b"'


def test_changed_content_is_noticed() -> None:
    rig = rig_with()
    first_visit(rig)
    for content, changed in [(b"one", START), (b"two", START + 2 * DAY), (b"two", START + 2 * DAY)]:
        order = next_visit(rig)
        given(rig, answer(order), parsed(order, content=content))
        assert (rig.row(URL).content, rig.row(URL).changed) == (content, changed)


def test_an_adaptive_interval_follows_the_page() -> None:
    rig = rig_with(Recrawl(interval=4 * 3600.0, adaptive=True, shortest=3600.0, longest=9 * 3600.0))
    first_visit(rig)
    for hours, content, result in [(4, b"one", "fetched"), (6, b"one", "unchanged"), (9, b"two", "fetched"),
                                   (4.5, b"three", "fetched"), (2.25, b"", "failed")]:  # fmt: skip
        order = next_visit(rig, round(hours * HOUR))
        if result == "fetched":
            given(rig, answer(order), parsed(order, content=content))
        elif result == "unchanged":
            given(rig, answer(order, "unchanged"))
        else:
            given(rig, failed(order, "http_status", status=404))
    assert rig.row(URL).interval == 2.25 * 1.5 * 3600


@pytest.mark.parametrize(
    ("outcome", "facts", "state"),
    [
        ("failed", {"failure": "http_status", "status": 404}, State.FAILED),
        ("redirected", {"status": 301, "location": "http://h.example/new"}, State.REDIRECTED),
    ],
)
def test_however_a_visit_ends_the_url_comes_back_with_what_was_good(outcome, facts, state: State) -> None:
    rig = rig_with()
    first_visit(rig, etag='"1"')
    given(rig, answer(next_visit(rig), outcome, **facts))
    row = rig.row(URL)
    assert (row.state, row.etag, row.content, row.due) == (state, '"1"', b"one", START + 2 * DAY)
    order = next_visit(rig)
    assert (order.visit, order.etag) == (3, '"1"')
    given(rig, answer(order, "unchanged"))
    assert rig.state(URL) is State.DONE


def test_a_host_that_cannot_be_reached_comes_back() -> None:
    rig = rig_with(attempts=1)
    (order,) = given(rig, seeds(URL))
    given(rig, failed(order, "dns"))
    assert (rig.state(URL), rig.row(URL).due) == (State.FAILED, START + DAY)


def test_what_robots_txt_forbids_may_be_allowed_later_and_what_the_crawl_keeps_out_may_not() -> None:
    rig = rig_with(robots=True, depth=2)
    (order,) = given(rig, seeds(URL))
    given(rig, rules(order, (False, "/")), seeds(seed("http://h.example/deep", depth=3)))
    assert (rig.row(URL).outcome, rig.row(URL).due) == ("robots", START + DAY)
    assert (rig.row("http://h.example/deep").outcome, rig.row("http://h.example/deep").due) == ("depth", 0)
    (again,) = [*rig.turn(wait=DAY), *rig.settle()]
    assert again.kind == "robots", "its rules have expired"
    (page,) = given(rig, rules(again, (True, "/"), version="v2", fetched=rig.now, expires=rig.now + HOUR))
    assert (page.url, page.visit) == (URL, 2)


def test_a_page_that_nobody_could_parse_is_fetched_in_full() -> None:
    rig = rig_with()
    first_visit(rig, etag='"1"')
    order = next_visit(rig)
    given(rig, answer(order, etag='"2"'), parsed(order, failure="parser", reason="x"))
    assert (rig.state(URL), rig.row(URL).content) == (State.FAILED, b"one")
    assert next_visit(rig).etag == ""


def test_rounds_are_all_visits_of_a_url() -> None:
    rig = rig_with(Recrawl(interval=24 * 3600.0, rounds=2))
    first_visit(rig)
    assert counts(rig).due == 1
    order = next_visit(rig)
    given(rig, answer(order, "unchanged"))
    assert (rig.row(URL).due, counts(rig).due, counts(rig).open) == (0, 0, 0)
    assert rig.shard.wake_at() == float("inf")


def test_a_success_after_the_failure_of_its_visit_plans_anew() -> None:
    rig = rig_with(Recrawl(interval=4 * 3600.0, adaptive=True), attempts=1)
    (order,) = given(rig, seeds(URL))
    given(rig, failed(order))
    assert rig.row(URL).interval == 6 * 3600
    rig.turn(parsed(order, content=b"one"), wait=HOUR)
    row = rig.row(URL)
    assert (row.state, row.due, row.changed) == (State.DONE, rig.now + round(row.interval * 1000), rig.now)


def test_a_seed_may_come_before_the_url_is_due() -> None:
    rig = rig_with()
    first_visit(rig)
    rig.now += HOUR
    (order,) = given(rig, seeds(seed(URL, refetch=True, origin=m.Origin("urls", 0, 2))))
    assert (order.visit, rig.row(URL).due, counts(rig).due) == (2, 0, 0)
    given(rig, answer(order, "unchanged"))
    assert rig.row(URL).due == START + HOUR + DAY
    next_visit(rig)


# --- restarts, replays, clocks


def test_a_restart_changes_nothing() -> None:
    rig = rig_with()
    first_visit(rig)
    rig.now += HOUR
    rig.load()
    assert next_visit(rig, DAY - HOUR).visit == 2
    rig.load()  # the order is lost
    (again,) = [*rig.turn(), *rig.settle()]
    assert again.visit == 2


def test_what_became_due_while_nobody_was_there_comes_back_at_once() -> None:
    rig = rig_with()
    first_visit(rig)
    rig.now += 9 * DAY
    rig.load()
    assert [order.visit for order in [*rig.turn(), *rig.settle()]] == [2]


def test_replayed_outcomes_plan_nothing_anew() -> None:
    rig = rig_with()
    order = first_visit(rig)
    rig.now += HOUR
    given(rig, answer(order), parsed(order, content=b"other"))
    assert (rig.row(URL).due, rig.row(URL).content) == (START + DAY, b"one")
    next_visit(rig, DAY - HOUR)
    given(rig, answer(order), parsed(order, content=b"other"))
    assert (rig.row(URL).visit, rig.state(URL)) == (2, State.WAITING)


def test_a_clock_that_jumps_opens_one_visit() -> None:
    rig = rig_with()
    first_visit(rig)
    rig.now += 2 * DAY
    (order,) = [*rig.turn(), *rig.settle()]
    rig.now -= 2 * DAY
    given(rig, answer(order, "unchanged"))
    assert (rig.row(URL).visit, rig.row(URL).due) == (2, rig.now + DAY)
    assert next_visit(rig).visit == 3


def test_a_clock_that_was_set_back_before_the_row_was_looked_at() -> None:
    rig = rig_with()
    first_visit(rig)
    revisits = rig.shard._release.revisits
    assert revisits._due.take(START + DAY) == [key(URL)]
    revisits._later.append((START, key(URL)))
    assert [*rig.turn(wait=1), *rig.settle()] == []
    assert next_visit(rig, DAY - 1).visit == 2


def test_many_urls_come_back_in_the_order_of_their_times() -> None:
    rig = rig_with(delay=0.0, parallelism=99)
    found = [f"http://h.example/{n}" for n in range(200)]
    for url in found:
        done(rig, *given(rig, seeds(url)))
        rig.now += 1
    rig.now += DAY
    orders = [*rig.turn(), *rig.settle()]
    for _ in range(40):
        orders += done(rig, *[order for order in orders if rig.state(order.url) is State.WAITING])
    assert urls_of(orders) == found
    assert {rig.row(url).visit for url in found} == {2}


# --- crawls that end, pause, change


@pytest.mark.parametrize(
    "change", [{"state": "ended"}, {"recrawl": None}, {"deadline": START + 1}, {"recrawl": Recrawl(rounds=1)}]
)
def test_a_crawl_that_is_over_opens_no_visit(change) -> None:
    rig = rig_with()
    first_visit(rig)
    rig.change(**change)
    assert [*rig.turn(wait=DAY), *rig.settle()] == []
    assert (rig.state(URL), rig.row(URL).due, counts(rig).due) == (State.DONE, 0, 0)


@pytest.mark.parametrize("change", [{"state": "ended"}, {"recrawl": None}, {"deadline": START + HOUR}])
def test_the_end_does_not_wait_for_what_will_not_come_back(change) -> None:
    rig = rig_with()
    first_visit(rig)
    rig.change(**change)
    before = rig.shard.changes
    rig.turn()
    if "deadline" in change:
        assert counts(rig).due == 1
        rig.sleep()
        assert rig.now == START + HOUR
    assert counts(rig).due == 0
    assert rig.shard.changes > before
    assert rig.row(URL).due == START + DAY, "its row is not written for that"


def test_a_paused_crawl_waits() -> None:
    rig = rig_with()
    first_visit(rig)
    rig.change(state="paused")
    assert [*rig.turn(wait=DAY), *rig.settle()] == []
    assert counts(rig).open == 1
    rig.change(state="open")
    assert [order.visit for order in rig.next_orders()] == [2]


def test_a_crawl_that_is_not_known_yet_waits() -> None:
    rig = rig_with()
    first_visit(rig)
    definition = rig.crawls.pop("c")
    rig.load()
    assert [*rig.turn(wait=DAY), *rig.settle()] == []
    rig.crawls["c"] = definition
    assert [order.visit for order in [*rig.turn(wait=LOOK_AGAIN), *rig.settle()]] == [2]


def test_a_page_limit_is_about_pages_not_about_visits() -> None:
    rig = rig_with(limit=1)
    first_visit(rig)
    given(rig, links("http://h.example/more"))
    assert rig.row("http://h.example/more").outcome == "limit"
    order = next_visit(rig)
    given(rig, answer(order, "unchanged"))
    assert (rig.state(URL), rig.row(URL).visit) == (State.DONE, 2)


def test_limit_rules_may_ask_for_recrawls_of_some_urls() -> None:
    """Also where the crawl asks for none."""
    rig = Rig(back(None, limits=(LimitRule(id="news", path="/news", recrawl=60.0),)))
    news, other = "http://h.example/news", "http://h.example/other"
    done(rig, *given(rig, seeds(news, other)))
    assert (rig.row(news).due, rig.row(other).due) == (START + MINUTE, 0)
    assert next_visit(rig, MINUTE).url == news


def test_a_rule_says_where_an_adaptive_interval_begins() -> None:
    recrawl = Recrawl(interval=24 * 3600.0, adaptive=True, shortest=1.0)
    rig = rig_with(recrawl, limits=(LimitRule(id="all", recrawl=60.0),))
    first_visit(rig)
    given(rig, answer(next_visit(rig, MINUTE), "unchanged"))
    assert rig.row(URL).interval == 90.0


def test_sitemaps_are_read_again() -> None:
    rig = rig_with()
    (order,) = given(rig, seeds(seed(URL, source="sitemap")))
    given(rig, answer(order), parsed(order, content=b"one"))
    assert (next_visit(rig).source, counts(rig).sitemaps) == ("sitemap", 0)
