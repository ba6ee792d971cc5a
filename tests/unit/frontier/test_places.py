"""Page limits and visits: a page holds one place for as long as it is a page of the crawl, however often it is visited.

The table of cases, then the promises on random crawls: with one owner the limit is exact, a page is never kept out by
it, a visit never waits for a place, and what is counted is what the rows say, whatever is read again.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from streams import messages as m
from streams.definitions import LimitRule, Recrawl
from streams.frontier.rows import State, UrlRow, decode_url_row, keeps_place
from tests.unit.frontier.rig import HOUR, Rig, answer, crawl, done, failed, given, links, pages, parsed, rules
from tests.unit.frontier.test_budgets import A, B, books

DAY = 24 * HOUR
DAILY = Recrawl(interval=24 * 3600.0)
ROW = UrlRow(1, State.WAITING, 0, 5, "c", "http://h/", "h", 2, 0, 1)


def row(state: State, visit: int = 2, **fields: Any) -> UrlRow:
    return msgspec.structs.replace(ROW, state=state, visit=visit, **fields)


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        # a visit opens
        (row(State.DONE, 1), row(State.WAITING), True),
        (row(State.FETCHED, 1), row(State.WAITING), True),  # parsed, and its links are wanted at a smaller depth
        (row(State.FAILED, 1, kept=True), row(State.WAITING), True),
        (row(State.FAILED, 1), row(State.WAITING), False),
        (row(State.REDIRECTED, 1), row(State.WAITING), False),
        (row(State.EXCLUDED, 1), row(State.WAITING), False),
        (row(State.WAITING, 1, kept=True), row(State.WAITING), True),  # another spelling is what the site wants
        (row(State.DONE, 1, source="sitemap"), row(State.WAITING, source="sitemap"), True),
        # it goes on
        (row(State.WAITING, kept=True), row(State.WAITING, attempt=1, kept=True), True),
        (row(State.WAITING), row(State.FETCHED), False),
        (row(State.WAITING, kept=True), row(State.FETCHED, kept=True), True),
        (row(State.FETCHED), row(State.WAITING), False),  # nobody parsed its page in time: it brought none
        (row(State.FETCHED, kept=True), row(State.WAITING, kept=True), True),
        # it ends
        (row(State.WAITING, kept=True), row(State.DONE, kept=True), True),
        (row(State.WAITING, kept=True), row(State.FAILED, outcome="timeout", kept=True), True),
        (row(State.WAITING, kept=True), row(State.FAILED, status=503, kept=True), True),
        (row(State.WAITING, kept=True), row(State.FAILED, status=403, kept=True), True),
        (row(State.FETCHED, kept=True), row(State.FAILED, outcome="parser", kept=True), True),
        (row(State.FETCHED), row(State.FAILED, outcome="parser"), False),
        (row(State.WAITING, kept=True), row(State.FAILED, status=404, kept=True), False),
        (row(State.WAITING, kept=True), row(State.FAILED, status=410, kept=True), False),
        (row(State.WAITING, kept=True), row(State.REDIRECTED, status=301, kept=True), False),
        (row(State.WAITING, kept=True), row(State.EXCLUDED, outcome="robots", kept=True), False),
        (row(State.WAITING, kept=True), row(State.EXCLUDED, outcome="deadline", kept=True), False),
        (row(State.FAILED), row(State.DONE), False),  # a late success: it counts by its state
    ],
)
def test_which_rows_hold_the_place_of_an_earlier_visit(old: UrlRow, new: UrlRow, kept: bool) -> None:
    assert keeps_place(old, new) is kept


@pytest.mark.parametrize(
    ("state", "fields", "counted"),
    [
        (State.WAITING, {}, False), (State.WAITING, {"kept": True}, True), (State.FETCHED, {}, True),
        (State.DONE, {}, True), (State.DONE, {"kept": True}, True), (State.FAILED, {"kept": True}, True),
        (State.FAILED, {}, False), (State.EXCLUDED, {}, False), (State.DONE, {"source": "sitemap"}, False),
        (State.WAITING, {"source": "sitemap", "kept": True}, False),
    ],
)  # fmt: skip
def test_which_rows_count_as_pages(state: State, fields: dict[str, Any], counted: bool) -> None:
    assert row(state, **fields).counted is counted


# --- what a user sees


def full(limits: dict[str, Any], number: int = 2, **fields: Any) -> Rig:
    """A crawl whose `number` pages take all places; one more URL was kept out."""
    rig = Rig(crawl(**{"recrawl": DAILY, "parallelism": 1, **limits, **fields}))
    orders = given(rig, links(*pages(number + 1, A)))
    while orders:
        orders += done(rig, orders.pop(0))
    assert kept_out(rig) == [f"{A}/{number}"]
    return rig


def kept_out(rig: Rig) -> list[str]:
    return sorted(each.url for each in rows(rig) if each.outcome in ("limit", "limit:host"))


def rows(rig: Rig) -> list[UrlRow]:
    return [decode_url_row(value) for key, value in rig.store.rows.items() if key[:1] == b"u"]


LIMITS = pytest.mark.parametrize("limits", [{"limit": 2}, {"host_limit": 2}], ids=["crawl", "host"])


@LIMITS
@pytest.mark.parametrize("outcome", ["fetched", "unchanged", "timeout", "deferred", "unreadable"])
def test_a_page_keeps_its_place_whatever_its_visit_comes_to(limits, outcome: Any) -> None:
    rig = full(limits, attempts=1)
    first, second = [*rig.turn(wait=DAY), *rig.settle()]
    assert given(rig, links(f"{A}/met-meanwhile")) == []
    assert rig.row(f"{A}/met-meanwhile").outcome in ("limit", "limit:host"), "at once, not when the visit is over"
    if outcome == "timeout":
        orders = given(rig, failed(first))
    elif outcome == "unreadable":
        orders = given(rig, answer(first), parsed(first, failure="parser"))
    elif outcome == "fetched":
        orders = done(rig, first)
    else:
        orders = given(rig, answer(first, outcome))
    orders.append(second)
    while orders:
        orders += done(rig, orders.pop(0))
    assert {url: rig.row(url).visit for url in pages(2, A)} == dict.fromkeys(pages(2, A), 2)
    assert kept_out(rig) == [f"{A}/2", f"{A}/met-meanwhile"]
    if "host_limit" in limits:
        books(rig, "a.example")


@pytest.mark.parametrize("status", [404, 410])
def test_the_place_of_a_page_that_is_gone_goes_to_the_next_url_that_was_kept_out(status: int) -> None:
    rig = full({"limit": 2}, attempts=1)
    first, second = [*rig.turn(wait=DAY), *rig.settle()]
    orders = [second, *given(rig, failed(first, "http_status", status=status))]
    asked = []
    while orders:
        asked.append((orders[0].url, orders[0].visit))
        orders += done(rig, orders.pop(0))
    assert asked == [(f"{A}/1", 2), (f"{A}/2", 2)]
    assert (rig.state(first.url), kept_out(rig)) == (State.FAILED, [])
    again = [*rig.turn(wait=DAY), *rig.settle()]
    assert rig.row(first.url).outcome == "limit", "it comes back, and finds no place"
    assert sorted(order.url for order in again) == [f"{A}/1", f"{A}/2"]


def test_a_url_that_gets_a_place_and_fails_leaves_it_to_the_next_one() -> None:
    rig = full({"limit": 2}, attempts=1)
    given(rig, links(*pages(3, B)))
    first, second = [*rig.turn(wait=DAY), *rig.settle()]
    orders = [second, *given(rig, failed(first, "http_status", status=404))]
    while orders:
        order = orders.pop(0)
        gone = order.url in (f"{A}/2", f"{B}/0")
        orders += given(rig, failed(order, "http_status", status=404)) if gone else done(rig, order)
    assert rig.state(f"{B}/1") is State.DONE
    assert kept_out(rig) == [f"{B}/2"]


def test_a_page_nobody_could_parse_leaves_its_place() -> None:
    rig = Rig(crawl(limit=2, parallelism=1))
    first, second = given(rig, links(*pages(4, A)))
    assert given(rig, answer(first), answer(second)) == []
    assert kept_out(rig) == [f"{A}/2", f"{A}/3"]
    (third,) = given(rig, parsed(second, failure="parser"), parsed(first))
    assert done(rig, third) == []
    assert (rig.shard.tallies["c"].pages, kept_out(rig)) == (2, [f"{A}/3"])


@LIMITS
def test_a_visit_does_not_wait_for_new_urls_that_wait_for_a_place(limits) -> None:
    """One place is left, and out; behind it new URLs wait; the visits of pages that are there pass them."""
    rig = Rig(crawl(recrawl=DAILY, parallelism=9, host_limit=4, limit=4) if "host_limit" in limits
              else crawl(recrawl=DAILY, parallelism=9, limit=4))  # fmt: skip
    done(rig, *given(rig, links(*pages(3, A))))
    rig.now += DAY - 1000
    (last,) = given(rig, links(*pages(40, A, first=3)))
    back = [*rig.turn(wait=1000), *rig.settle()]
    assert sorted((order.url, order.visit) for order in back) == [(url, 2) for url in pages(3, A)]
    done(rig, *back)
    assert rig.state(f"{A}/20") is State.WAITING
    assert done(rig, last) == []
    assert len(kept_out(rig)) == 39


@LIMITS
def test_a_lowered_limit_takes_no_page_away(limits: dict[str, Any]) -> None:
    rig = full(limits)
    lowered: dict[str, Any] = dict.fromkeys(limits, 1)
    rig.change(**lowered)
    rig.turn()
    orders = [*rig.turn(wait=DAY), *rig.settle()]
    while orders:
        orders += done(rig, orders.pop(0))
    assert [rig.row(url).visit for url in pages(2, A)] == [2, 2]


def test_other_budgets_end_visits_beside_a_page_limit() -> None:
    rig = full({"limit": 2}, max_size=100)
    rig.change(max_size=0)
    assert [*rig.turn(wait=DAY), *rig.settle()] == []
    assert [rig.row(url).due for url in pages(2, A)] == [0, 0]


def test_concurrency_holds_for_visits_too() -> None:
    rig = full({"limit": 2}, concurrency=1)
    rig.change(parallelism=9)
    (first,) = [*rig.turn(wait=DAY), *rig.settle()]
    (second,) = done(rig, first)
    assert done(rig, second) == []


def test_a_page_that_robots_txt_forbids_now_leaves_its_place() -> None:
    rig = Rig(crawl(limit=1, recrawl=DAILY, robots=True, parallelism=1))
    (robots,) = given(rig, links(*pages(2, A)))
    (page,) = given(rig, rules(robots, (True, "/")))
    done(rig, page)
    (robots,) = [*rig.turn(wait=DAY), *rig.settle()]
    said = rules(robots, (False, "/0"), (True, "/"), version="v2", fetched=rig.now, expires=rig.now + HOUR)
    (other,) = given(rig, said)
    assert (rig.row(page.url).outcome, other.url) == ("robots", f"{A}/1")


def test_a_sitemap_is_visited_again_at_the_limit() -> None:
    """It takes no place, and what it says may bring pages back sooner."""
    rig = Rig(crawl(limit=1, recrawl=DAILY, parallelism=1))
    site = m.Candidate(url=f"{A}/s.xml", fingerprint=links(f"{A}/s.xml").fingerprints, crawl="c", source="sitemap")
    orders = given(rig, m.Candidates(items=(site,)), links(f"{A}/0"))
    while orders:
        orders += done(rig, orders.pop(0))
    orders = [*rig.turn(wait=DAY), *rig.settle()]
    asked = {(order.url, order.visit) for order in [*orders, *done(rig, *orders)]}
    assert asked == {(f"{A}/s.xml", 2), (f"{A}/0", 2)}


def test_rows_of_a_former_release_are_read() -> None:
    """They do not say `kept`: a page that is done counts all the same."""
    fields = list(msgspec.msgpack.decode(msgspec.msgpack.encode(row(State.DONE))))
    old = decode_url_row(msgspec.msgpack.encode(fields[:-1]))
    assert (old.kept, old.counted) == (False, True)


# --- promises on random crawls


class Crawl:
    """Everything that may happen to a crawl with a page limit, at random; `surplus`: orders that died with an owner."""

    def __init__(self, random: Random, **limits: Any) -> None:
        self.random = random
        self.limits = limits
        self.rig = Rig(crawl(attempts=2, parallelism=3, recrawl=Recrawl(interval=3600.0, rounds=5), **limits,
                             limits=(LimitRule(id="often", path="/1", recrawl=600.0),)),
                       answer_timeout=1e9)  # fmt: skip # what is out is answered once
        self.orders: list[m.FetchOrder] = []
        self.told: list[m.Outcomes] = []
        self.surplus = 0
        self.met = 0

    def step(self) -> None:
        rig, random = self.rig, self.random
        if random.random() < 0.3 and self.met < 30:
            host = random.choice((A, B))
            self.orders += given(rig, links(*pages(random.randint(1, 6), host, first=self.met)))
            self.met += 4
        if self.orders:
            self._answer(self.orders.pop(random.randrange(len(self.orders))))
        if self.told and random.random() < 0.2:
            self.orders += given(rig, random.choice(self.told[-6:]))  # read again
        if random.random() < 0.03:
            self.surplus += rig.shard.unanswered()
            self.orders.clear()
            rig.load()
        wait = random.choice((0, 0, 1000, 600_000, 2 * HOUR))
        self.orders += [*rig.turn(wait=wait), *rig.settle(60)]
        self.check()

    def _answer(self, order: m.FetchOrder) -> None:
        page = answer(order, size=self.random.randrange(100))
        said = self.random.choice(
            [[page, parsed(order, content=b"x")], [parsed(order, content=b"x"), page], [failed(order)],
             [failed(order, "http_status", status=404)], [page, parsed(order, failure="parser")],
             [answer(order, "redirected", status=301, location=f"{A}/target")], [answer(order, "deferred")],
             *([[answer(order, "unchanged")]] * 3 if order.visit > 1 else [])]
        )  # fmt: skip
        self.told += said
        for each in said:
            self.orders += given(self.rig, each)

    def check(self) -> None:
        rig, found = self.rig, rows(self.rig)
        counted = [each for each in found if each.counted]
        assert rig.shard.tallies["c"].pages == len(counted)
        if "limit" in self.limits:
            assert len(counted) <= self.limits["limit"] + self.surplus
        else:
            for host in ("a.example", "b.example"):
                number = sum(each.host == host for each in counted)
                size = sum(each.size for each in found if each.host == host)
                assert rig.host(host).spent.get("c", (0, 0)) == (number, size)
                assert number <= self.limits["host_limit"] + self.surplus
        out = rig.shard._release.released
        for key, value in rig.store.rows.items():
            if key[:1] == b"u" and (each := decode_url_row(value)).kept and each.state is State.WAITING:
                assert each.due or key[1:] in out or not self._could_go(each), "a visit waits for a place"

    def _could_go(self, waiting: UrlRow) -> bool:
        queue = self.rig.hosts[waiting.host]
        return queue.room(self.rig.now) > 0 and queue.at(self.rig.now) <= self.rig.now

    def end(self) -> None:
        """Everything is answered well: the crawl comes to rest with all places taken, if anything was kept out."""
        for _ in range(400):
            before, self.orders = self.orders, []
            for order in before:
                self.orders += given(self.rig, answer(order), parsed(order, content=b"y"))
            self.orders += [*self.rig.turn(wait=HOUR), *self.rig.settle(60)]
            self.check()
            if not self.orders and not any(each.open or each.due for each in rows(self.rig)):
                break
        else:
            raise AssertionError("it does not end")
        if "limit" in self.limits and kept_out(self.rig):
            assert self.rig.shard.tallies["c"].pages >= self.limits["limit"]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("which", ["limit", "host_limit"])
def test_a_page_limit_is_exact_and_visits_never_wait_for_it(seed: int, which: str) -> None:
    it = Crawl(Random(seed), **{which: 1 + seed % 7})
    for _ in range(40):
        it.step()
    it.end()
