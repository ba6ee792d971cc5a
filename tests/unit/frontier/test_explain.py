"""Why a URL is where it is: every state and wait as the shard's owner tells it, and as its rows alone do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streams import messages as m
from streams.definitions import LimitRule, Recrawl, Scope, ScopeRule, Traps
from streams.frontier.explain import COUNTED, Explanation, Facts, Inquiry, place_of
from streams.frontier.reasons import excluded_by
from streams.frontier.rows import HostRow, Probe, State, decode_url_row, url_key
from streams.frontier.turn import Turn
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
    pages,
    parsed,
    rules,
    seed,
    seeds,
)

H = "http://h.example"
A = f"{H}/a"
FIRST = m.FetchOrder(crawl="c", url=A, fingerprint=key(A), host="h.example", shard=3, epoch=0, visit=1, attempt=0)


def told(rig: Rig, url: str = A, name: str = "c") -> Explanation:
    return rig.shard.why(name, url, rig.now)


def from_rows(rig: Rig, url: str = A, name: str = "c") -> Explanation:
    """What somebody says who has only the store."""
    data = rig.store.rows.get(url_key(key(url, name)))
    row = decode_url_row(data) if data is not None else None
    host = Turn(rig.store, rig.shard.tallies, rig.now).hosts([row.host if row else "h.example"])[0]
    place = place_of(rig.store, row) if row is not None else None
    return Inquiry(url=url, crawl_id=name, row=row, host=host, crawl=rig.crawls.get(name), now=rig.now, place=place,
                   witness="state").answer()  # fmt: skip


def paused() -> Rig:
    rig = Rig(crawl(state="paused"))
    given(rig, links(A))
    return rig


def queued() -> Rig:
    rig = Rig(crawl(delay=60.0, parallelism=1))
    given(rig, links(*pages(3, H), A))
    return rig


def out() -> Rig:
    rig = Rig()
    given(rig, links(A))
    return rig


def retried() -> Rig:
    rig = Rig()
    (order,) = given(rig, links(A))
    given(rig, failed(order, "http_status", status=503, retry_after=600.0))
    return rig


def held_by_retry_after() -> Rig:
    rig = Rig(crawl(parallelism=1))
    order, *others = given(rig, links(f"{H}/0"))
    given(rig, failed(order, "http_status", status=429, retry_after=600.0), links(A))
    assert not others
    return rig


def broken_host() -> Rig:
    rig = Rig(crawl(parallelism=8))
    orders = given(rig, links(*pages(6, H)))
    given(rig, *(failed(order, "timeout") for order in orders), links(A))
    rig.turn(wait=60)
    return rig


def without_robots() -> Rig:
    rig = Rig(crawl(robots=True))
    given(rig, links(A))
    return rig


def robots_unreachable() -> Rig:
    rig = Rig(crawl(robots=True))
    (robots,) = given(rig, links(A))
    given(rig, failed(robots, "dns"))
    return rig


def limited() -> Rig:
    rig = Rig(crawl(limit=1, parallelism=8))
    given(rig, links(f"{H}/0", A))
    return rig


def full() -> Rig:
    rig = Rig(crawl(parallelism=8), release_floor=1)
    given(rig, links(f"{H}/0", A))
    return rig


def behind() -> Rig:
    rig = Rig(crawl(parallelism=1), unparsed_limit=1)
    (order, *_) = given(rig, links(f"{H}/0", A))
    given(rig, answer(order))
    return rig


def fetched() -> Rig:
    rig = out()
    given(
        rig, answer(m.FetchOrder(crawl="c", url=A, fingerprint=key(A), host="", shard=0, epoch=0, visit=1, attempt=0))
    )
    return rig


def finished() -> Rig:
    rig = Rig()
    done(rig, *given(rig, links(A)))
    return rig


def gave_up() -> Rig:
    rig = Rig()
    (order,) = given(rig, links(A))
    given(rig, failed(order, "tls"))
    return rig


def redirected() -> Rig:
    rig = Rig()
    (order,) = given(rig, links(A))
    given(rig, answer(order, "redirected", location=f"{H}/b", status=301))
    return rig


def forbidden() -> Rig:
    rig = Rig(crawl(robots=True))
    (robots,) = given(rig, links(A))
    given(rig, rules(robots, (False, "/")))
    return rig


def too_deep() -> Rig:
    rig = Rig(crawl(depth=1))
    given(rig, seeds(seed(A, depth=2)))
    return rig


def cancelled() -> Rig:
    rig = paused()
    rig.change(state="ended", result="cancelled", ended=rig.now)
    given(rig)
    rig.turn()
    return rig


def unmet() -> Rig:
    return Rig()


def crawl_unknown() -> Rig:
    rig = paused()
    del rig.crawls["c"]
    return rig


Case = tuple[Callable[[], Rig], str, str, str, str]
CASES: list[Case] = [
    (paused, "waiting", "paused", "paused", "Crawl c is paused."),
    (queued, "waiting", "delay", "owner_away", "2 of its crawl stand before it"),
    (out, "waiting", "out", "owner_away", "1970-01-12 13:46:40 UTC"),
    (retried, "waiting", "retry", "retry", "Attempt 1 of 5 failed with http_status (503); the next one is due at"),
    (held_by_retry_after, "waiting", "retry_after", "retry_after", "h.example is left alone until"),
    (broken_host, "waiting", "breaker", "breaker", "(0 failed probes); the next probe goes out at"),
    (without_robots, "waiting", "robots", "robots", "http://h.example/robots.txt"),
    (robots_unreachable, "waiting", "robots_unreachable", "robots_unreachable", "forbids everything until"),
    (limited, "waiting", "limit", "owner_away", "All pages that the limit of crawl c leaves"),
    (full, "waiting", "release_cap", "owner_away", "As many orders are out"),
    (behind, "waiting", "parser", "owner_away", "wait for the parsers"),
    (fetched, "fetched", "parsing", "parsing", "its page waits for the parser"),
    (finished, "done", "done", "done", "fetched (200) and parsed at"),
    (gave_up, "failed", "tls", "tls", "failed for good at 1970-01-12 13:46:40 UTC with tls after one attempt"),
    (redirected, "redirected", "redirected", "redirected", "answered 301"),
    (forbidden, "excluded", "robots", "robots", "robots.txt of its origin forbids it"),
    (too_deep, "excluded", "depth", "depth", "deeper than the crawl follows links"),
    (cancelled, "excluded", "cancelled", "cancelled", "somebody cancelled the crawl"),
    (unmet, "unknown", "not_met", "not_met", "no seed, link or redirect has named it"),
    (crawl_unknown, "waiting", "no_crawl", "no_crawl", "definition of crawl c is not known"),
]


@pytest.mark.parametrize(("make", "state", "reason", "down", "text"), CASES, ids=[case[0].__name__ for case in CASES])
def test_every_state_with_the_worker_up_and_down(
    make: Callable[[], Rig], state: str, reason: str, down: str, text: str
) -> None:
    rig = make()
    up = told(rig)
    assert (up.state, up.reason) == (state, reason)
    assert text in up.text
    assert up.advice or reason == "done"
    alone = from_rows(rig)
    assert (alone.state, alone.reason, alone.witness) == (state, down, "state")
    if state != "unknown":
        row = rig.row(A)
        assert (alone.visit, alone.attempt, alone.depth, alone.host) == (row.visit, row.attempt, row.depth, "h.example")
        assert alone.parent == row.parent


def test_what_is_told_of_a_failure_and_a_page() -> None:
    assert told(gave_up()).failure == "tls"
    assert told(retried()).failure == "http_status"
    assert told(fetched()).page == (0, 7)
    rig = gave_up()
    given(rig, m.Command(action="redrive", crawl="c", url=A, fingerprint=key(A), visit=2))
    assert (told(rig).failure, told(rig).visit, told(rig).reason) == ("tls", 2, "out")


def test_the_place_counts_those_before_it_that_are_not_out() -> None:
    rig = Rig(crawl(delay=60.0, parallelism=1))
    given(rig, links(*pages(5, H)), seeds(seed(f"{H}/first", priority=9)))
    places = {url: told(rig, url).before for url in (*pages(5, H), f"{H}/first")}
    assert sorted(n for n in places.values() if n is not None) == [0, 0, 1, 2, 3, 4]
    assert places[f"{H}/first"] == 0
    rig = retried()
    assert told(rig).before is None


def test_the_place_is_counted_up_to_a_bound() -> None:
    rig = Rig(crawl(state="paused"))
    rig.turn(links(*pages(2000, H)), *(links(*pages(2000, H, first=n)) for n in range(2000, COUNTED, 2000)))
    rig.turn(links(f"{H}/more", A))
    found = told(rig)
    assert (found.before, found.more) == (COUNTED, True)
    assert told(rig, f"{H}/7").more is False


@pytest.mark.parametrize(("change", "rule", "word"), [
    ({"scope": Scope(mode="host", values=("x.example",))}, "scope:host", "(host: x.example)"),
    ({"depth": 0}, "depth", "about to be excluded: it lies deeper"),
    ({"deadline": 5}, "deadline", "about to be excluded"),
    ({"state": "ended"}, "ended", "about to be excluded"),
    ({"state": "ended", "result": "cancelled"}, "cancelled", "about to be excluded"),
])  # fmt: skip
def test_what_will_be_excluded_says_so(change: dict[str, Any], rule: str, word: str) -> None:
    rig = queued()
    rig.change(**change)
    found = from_rows(rig)
    assert (found.reason, found.state) == (rule, "waiting")
    assert word in found.text


def by_robots(**host: Any) -> Explanation:
    """A URL that waits, on a host of which this is known."""
    row = paused().row(A)
    asked = Inquiry(url=A, crawl_id="c", row=row, host=HostRow(**host), crawl=crawl(robots=True), now=START)
    return asked.answer()


def test_what_robots_forbid_by_now_is_about_to_be_excluded() -> None:
    known = m.RobotsRules(origin=H, version="v", fetched=1, expires=START + 1, rules=((False, "/a"),))
    found = by_robots(robots={H: known})
    assert (found.reason, found.state) == ("robots", "waiting")
    assert "about to be excluded: robots.txt of its origin forbids it" in found.text


def test_what_waited_too_long_for_robots_is_about_to_fail() -> None:
    known = m.RobotsRules(origin=H, version="v", fetched=1, expires=START + 1, access="disallow_all")
    found = by_robots(robots={H: known}, probes={H: Probe(8, 1, "dns", "no such name")})
    assert (found.reason, found.until) == ("robots_unreachable", 0)
    assert "about to fail: robots.txt of its origin could not be read (no such name)" in found.text


@pytest.mark.parametrize(("definition", "reason"), [
    ({"scope": Scope(mode="host", values=("x.example",))}, "scope:host"),
    ({"state": "ended", "ended": 1}, "ended"),
    ({"robots": True}, "not_met"),
    ({"state": "paused"}, "not_met"),
    ({"traps": Traps(length=5)}, "trap:length"),
])  # fmt: skip
def test_without_a_row_the_rules_of_now_are_asked(definition: dict[str, Any], reason: str) -> None:
    rig = Rig(crawl(**definition))
    assert told(rig).reason == reason
    assert "no row" in told(rig).text


def test_without_a_row_the_last_known_robots_count_be_they_old() -> None:
    rig = forbidden()
    rig.now += 48 * HOUR
    assert told(rig, f"{H}/new").reason == "robots"
    rig = robots_unreachable()
    assert told(rig, f"{H}/new").reason == "not_met"


def test_a_crawl_that_nobody_defined() -> None:
    rig = Rig()
    assert (told(rig, name="x").reason, from_rows(rig, name="x").reason) == ("no_crawl", "no_crawl")


@pytest.mark.parametrize(("row", "facts", "reason"), [
    ({"due": START + 5}, None, "window"),
    ({}, Facts(next_at=START + 5), "queue"),
    ({}, Facts(robots_out=True), "queue"),
    ({"state": State.DONE, "due": START + 5, "status": 200}, None, "done"),
])  # fmt: skip
def test_what_only_a_row_or_its_owner_says(row: dict[str, Any], facts: Facts | None, reason: str) -> None:
    import msgspec

    rig = Rig(crawl(state="paused"))
    given(rig, links(A))
    changed = msgspec.structs.replace(rig.row(A), **row)
    found = Inquiry(url=A, crawl_id="c", row=changed, host=HostRow(), crawl=crawl(), now=START, facts=facts).answer()
    assert found.reason == reason
    assert found.until == (START + 5 if "due" in row else 0)


def test_a_probe_that_is_due() -> None:
    rig = broken_host()
    rig.turn(wait=60_000)
    assert from_rows(rig).reason == "probe"


def test_a_crawls_own_rule_is_named() -> None:
    definition = crawl(scope_rules=(ScopeRule(id="no-print", regex="print"),))
    rig = Rig(definition)
    assert "scope rule no-print keeps it out" in told(rig, f"{H}/print").text
    assert told(rig, f"{H}/print").reason == "scope:no-print"
    assert "rule other keeps it out" in excluded_by("other", definition).text
    assert excluded_by("scope:host", None).id == "scope:host"


@pytest.mark.parametrize(
    "rule", ["size", "limit:host", "size:host", *(f"trap:{trap}" for trap in ("calendar", "depth", "length", "novelty",
                                                                            "parameters", "repeats"))]
)  # fmt: skip
def test_every_budget_and_trap_has_its_words(rule: str) -> None:
    assert excluded_by(rule, None).text != f"rule {rule} keeps it out."


def test_a_url_that_is_parsed_keeps_its_answer_after_a_restart() -> None:
    rig = fetched()
    rig.load()
    rig.turn(parsed(FIRST))
    assert told(rig).reason == "done"


@pytest.mark.parametrize(("about", "until"), [({"domain": "h.example"}, START), ({"path": "/"}, START), ({}, START)])
def test_a_time_window_that_is_shut(about: dict[str, Any], until: int) -> None:
    opens = until - 46 * 60_000 - 40_000 + 3 * HOUR  # 16:00
    rule = LimitRule(id="late", windows=("16:00-17:00",), **about)
    rig = Rig(crawl(limits=(rule,)))
    given(rig, links(A))
    if "path" in about:
        rig.now = int(rig.row(A).due)  # looked at again, and still shut
    found = from_rows(rig)
    assert (found.reason, found.until) == ("window", opens)


def test_a_rule_that_ignores_robots_waits_for_none() -> None:
    rig = Rig(crawl(robots=True, limits=(LimitRule(id="r", robots=False),), state="open", delay=600.0))
    given(rig, links(A, f"{H}/2"))
    assert told(rig, f"{H}/2").reason == "delay"


def test_a_media_type_that_was_not_accepted_is_said() -> None:
    assert "limit rule html does not accept" in excluded_by("accept:html", crawl()).text


def test_a_page_that_comes_back_says_when_once() -> None:
    rig = Rig(crawl(recrawl=Recrawl(interval=3600.0)))
    (order,) = given(rig, seeds(A))
    done(rig, order)
    assert rig.shard.why("c", A, rig.now).text.count("visited again") == 1


def test_a_seed_that_waits_for_the_end_of_a_visit_is_told() -> None:
    rig = Rig()
    given(rig, seeds(A))
    assert "one more visit" not in rig.shard.why("c", A, rig.now).text
    given(rig, seeds(seed(A, refetch=True)))
    assert "one more visit" in rig.shard.why("c", A, rig.now).text
