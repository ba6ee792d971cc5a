"""Expired crawls and forgotten URLs: what goes, what is told to the sinks, what stays."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streams import messages as m
from streams.definitions import Scope
from streams.frontier.rows import SWEEP_KEY, HostRow, Novelty, State, encode_row, host_key, url_key
from streams.frontier.sweeping import HOSTS_EVERY, STEP
from streams.policy.retry import Breaker
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
    seeds,
)
from tests.unit.frontier.sinks import Sinks, forget

A, B = "http://a.example", "http://b.example"
DENIED = Scope(mode="host", values=("other.example",))
"""What is forgotten is kept out by the crawl's definition."""


# ---- expiry


def ended(number: int = 3, **config: Any) -> Sinks:
    """A crawl that has ended now, beside one that goes on; all its pages are done but one failure and one exclusion."""
    rig = Sinks(crawl(depth=1), crawl("other"), **config)
    first, *rest = given(rig, links(*pages(number, A)))
    given(rig, failed(first, "tls"))
    while rest:
        rest = done(rig, *rest)
    given(rig, seeds(m.Candidate(url=f"{A}/deep", fingerprint=key(f"{A}/deep"), crawl="c", depth=9)))
    for order in given(rig, links(f"{A}/1", f"{B}/1", name="other")):
        done(rig, order)
    rig.change(state="ended", ended=rig.now)
    return rig


@pytest.mark.parametrize(("result", "rule"), [("exhausted", "ended"), ("cancelled", "cancelled")])
def test_a_seed_that_comes_too_late_is_told_so_and_expires_with_its_crawl(result: str, rule: str) -> None:
    rig = ended(expire_after=60.0)
    rig.change(result=result)
    late = m.Candidate(url=f"{A}/late", fingerprint=key(f"{A}/late"), crawl="c", origin=m.Origin("urls", 0, 7, 0))
    for _ in range(2):  # and again after a crash
        given(rig, seeds(late))
        row = rig.row(late.url)
        assert (row.state, row.outcome, row.visited) == (State.EXCLUDED, rule, rig.now)
    given(rig, seeds(msgspec.structs.replace(late, url=f"{A}/moved", fingerprint=key(f"{A}/moved"), origin=None)))
    assert url_key(key(f"{A}/moved")) not in rig.store.rows  # a redirect target: whoever led to it has its row
    rig.now += 61_000
    given(rig)
    assert url_key(late.fingerprint) not in rig.store.rows
    told = len(rig.failures)
    given(rig, seeds(late))
    assert url_key(late.fingerprint) not in rig.store.rows
    (failure,) = rig.failures[told:]
    assert (failure.url, failure.failure, failure.next.action) == (late.url, "unreadable", "none")
    assert failure.evidence == {"topic": "urls", "partition": 0, "offset": 7, "index": 0}
    assert failure.reason.startswith("crawl c has ended and its rows have expired")


def test_a_seed_whose_crawl_was_removed_on_its_way_is_told_in_failures() -> None:
    rig = ended()
    lone = m.Candidate(
        url=f"{A}/lone", fingerprint=key(f"{A}/lone", "gone"), crawl="gone", origin=m.Origin("urls", 0, 9)
    )
    given(rig, seeds(lone, msgspec.structs.replace(lone, origin=None)))
    assert [failure.url for failure in rig.failures if failure.crawl == "gone"] == [lone.url]


def test_rows_of_a_crawl_go_when_its_time_is_over_and_the_others_stay() -> None:
    rig = ended()
    rig.turn(wait=72 * HOUR - 1)
    assert rig.known() == 6
    rig.turn(wait=1)
    rig.settle()
    assert rig.known() == 2
    assert rig.state(f"{A}/1", "other") is State.DONE
    assert set(rig.shard.progress(rig.now).crawls) == {"other"}
    assert rig.told == []  # nothing is wrong with what was found


def test_the_time_is_a_setting_and_a_crawl_without_an_end_has_none() -> None:
    rig = ended(expire_after=60.0)
    rig.change(ended=0)
    rig.turn(wait=HOUR)
    assert rig.known() == 6
    rig.change(ended=rig.now)
    rig.turn(wait=60_000)
    rig.settle()
    assert rig.known() == 2


def test_many_rows_go_in_bounded_steps() -> None:
    rig = ended(2 * STEP + 20)
    rig.turn(wait=72 * HOUR)
    gone = 2 * STEP + 23 - rig.known()
    assert STEP - 2 <= gone <= STEP
    rig.load()  # a new owner goes on
    rig.settle()
    assert rig.known() == 2


def test_nothing_brings_an_expired_row_back() -> None:
    rig = Sinks(crawl(), expire_after=60.0)
    late, other = given(rig, links(f"{A}/late", f"{A}/other"))
    done(rig, other)
    rig.change(state="ended", ended=rig.now)
    rig.turn(wait=60_000)
    rig.settle()
    assert rig.known() == 0
    given(rig, answer(late), parsed(late), failed(other), links(f"{A}/new"), seeds(f"{A}/new"),
          m.Command(action="redrive", crawl="c", url=other.url, fingerprint=other.fingerprint, visit=2))  # fmt: skip
    rig.turn(wait=601_000)
    rig.settle()
    assert rig.known() == 0
    assert rig.failures == []
    assert rig.shard.progress(rig.now).crawls == {}


def test_a_crawl_that_is_opened_again_keeps_its_rows() -> None:
    rig = ended(2 * STEP)
    rig.turn(wait=72 * HOUR)
    rig.change(state="open", ended=0)
    known = rig.known()
    rig.settle()
    assert rig.known() == known > STEP


# ---- forgetting


def kept(rig: Rig, name: str = "c") -> set[str]:
    """Paths of the URLs that are known."""
    return {url for url in (f"{h}/{i}" for h in (A, B) for i in range(9)) if b"u" + key(url, name) in rig.store.rows}


def crawled() -> Sinks:
    rig = Sinks(crawl(parallelism=9), crawl("other", parallelism=9))
    done(rig, *given(rig, links(*pages(3, A), *pages(2, B)), links(*pages(3, A), name="other")))
    return rig


@pytest.mark.parametrize(("what", "left"), [
    ({"url": f"{A}/1"}, {f"{A}/0", f"{A}/2", f"{B}/0", f"{B}/1"}),
    ({"host": "a.example"}, {f"{B}/0", f"{B}/1"}),
    ({"prefix": f"{A}/"}, {f"{B}/0", f"{B}/1"}),
    ({"prefix": "http://"}, set()),
    ({"host": "example"}, {*pages(3, A), *pages(2, B)}),
])  # fmt: skip
def test_what_is_forgotten_goes_and_sinks_are_told(what: dict[str, str], left: set[str]) -> None:
    rig = crawled()
    rig.change(scope=DENIED)
    given(rig, forget(**what))
    assert kept(rig) == left
    assert rig.told == sorted({*pages(3, A), *pages(2, B)} - left)
    assert kept(rig, "other") == set(pages(3, A))
    assert not rig.store.rows(SWEEP_KEY)
    assert {(word.id, word.crawl) for word in rig.forgotten} <= {("3:" + str(rig.offset - 1), "c")}


def test_what_never_brought_anything_is_forgotten_without_a_word() -> None:
    rig = Sinks(crawl(parallelism=1, delay=10.0))
    given(rig, links(*pages(20, A)))
    rig.change(scope=DENIED)
    given(rig, forget(prefix=f"{A}/1"))
    assert rig.told == []
    assert rig.known() == 20 - 11


def test_a_url_whose_row_has_expired_is_told_to_the_sinks_all_the_same() -> None:
    rig = Sinks()
    given(rig, forget(url=f"{A}/1"))
    assert rig.told == [f"{A}/1"]
    assert not rig.store.rows(SWEEP_KEY)


def test_what_is_under_way_is_forgotten_when_nothing_can_follow_any_more() -> None:
    rig = Sinks(crawl(parallelism=1))
    out, *_ = given(rig, links(f"{A}/1"))
    rig.change(scope=DENIED)
    given(rig, forget(host="a.example"))
    assert (rig.known(), rig.told) == (1, [])
    given(rig, answer(out))
    rig.turn(wait=1000)
    assert (rig.state(f"{A}/1"), rig.told) == (State.FETCHED, [])
    given(rig, parsed(out))
    assert rig.sleep() == []
    assert (rig.known(), rig.told) == (0, [f"{A}/1"])
    assert not rig.store.rows(SWEEP_KEY)
    given(rig, answer(out), parsed(out), links(f"{A}/1"))
    assert rig.known() == 1
    assert rig.state(f"{A}/1") in (State.EXCLUDED, State.WAITING)


def test_rows_that_are_to_be_forgotten_do_not_expire_before_the_sinks_are_told() -> None:
    rig = Sinks(crawl(), expire_after=60.0)
    (out,) = given(rig, links(f"{A}/1"))
    done(rig, *given(rig, links(f"{B}/1")))
    rig.turn(answer(out))
    rig.turn(forget(host="a.example"))
    rig.change(state="ended", ended=rig.now)
    rig.turn(wait=60_000)
    rig.settle()
    assert (rig.known(), rig.told) == (2, [])
    given(rig, parsed(out))
    rig.turn(wait=1000)
    rig.turn(wait=1000)
    rig.settle()
    assert (rig.known(), rig.told) == (0, [f"{A}/1"])


def test_of_two_commands_about_one_url_the_first_that_can_deletes_it() -> None:
    rig = Sinks()
    (out,) = given(rig, links(f"{A}/1"))
    rig.turn(answer(out))
    rig.turn(forget(host="a.example"))
    rig.turn(parsed(out), forget(prefix=A))
    assert (rig.known(), rig.told) == (0, [f"{A}/1"])
    rig.turn(wait=1000)
    assert rig.told == [f"{A}/1"]
    assert not rig.store.rows(SWEEP_KEY)


@pytest.mark.parametrize("what", [{"url": f"{A}/1"}, {"host": "a.example"}])
def test_a_new_owner_goes_on_with_what_was_not_finished(what: dict[str, str]) -> None:
    rig = Sinks()
    (out,) = given(rig, links(f"{A}/1"))
    rig.turn(answer(out))
    rig.turn(forget(**what))
    rig.load()
    rig.settle()
    assert rig.known() == 1
    given(rig, parsed(out))
    rig.sleep()
    assert (rig.known(), rig.told) == (0, [f"{A}/1"])
    (word,) = rig.forgotten
    assert word.id == "3:2"


def test_a_replayed_command_names_itself_as_before() -> None:
    rig = crawled()
    rig.change(scope=DENIED)
    before = rig.offset
    turn = rig.shard.turn([(before, forget(host="a.example"))], rig.now, {})  # nothing of it becomes durable
    rig.load()
    given(rig, forget(host="a.example"))
    assert {word.id for word in (*turn.forgotten, *rig.forgotten)} == {f"3:{before}"}


def test_commands_that_come_during_a_walk_wait_for_the_next() -> None:
    rig = Sinks(crawl(state="paused"))
    given(rig, *(links(*pages(STEP, f"http://h{i}.example")) for i in range(3)))
    rig.turn(forget(host="h0.example"))
    given(rig, forget(host="h1.example"), forget(prefix="http://h1.example/1"), forget(host="h0.example"))
    assert rig.known() == STEP
    assert not rig.store.rows(SWEEP_KEY)


# ---- host rows


FULL = m.RobotsRules(origin=A, version="v", fetched=START, expires=START + 24 * HOUR)
LATER = START + 48 * HOUR


@pytest.mark.parametrize(("row", "goes"), [
    (HostRow(), True),
    (HostRow(not_before=START), True),
    (HostRow(not_before=LATER), False),
    (HostRow(breaker=Breaker(failures=(START,))), True),
    (HostRow(breaker=Breaker(since=START, until=START + 1)), False),
    (HostRow(robots={A: FULL}), False),
    (HostRow(robots={A: m.RobotsRules(origin=A, version="v", fetched=1, expires=2)}), True),
    (HostRow(delay=2.0), True),
    (HostRow(spent={"c": (1, 2)}), False),
    (HostRow(spent={"over": (1, 2)}), True),
    (HostRow(spent={"c": (0, 0)}), True),
    (HostRow(patterns={"c\0/*": Novelty(1)}), False),
    (HostRow(patterns={"over\0/*": Novelty(1)}), True),
])  # fmt: skip
def test_a_host_row_goes_when_it_says_nothing(row: HostRow, goes: bool) -> None:
    over = crawl("over", state="ended", ended=1)
    rig = Sinks(crawl(), over)
    rig.store.apply([(host_key("a.example"), encode_row(row))])
    rig.turn()
    assert host_key("a.example") in rig.store.rows
    rig.turn(wait=HOSTS_EVERY)
    assert (host_key("a.example") not in rig.store.rows) == goes


def test_a_learned_delay_is_kept_while_a_crawl_learns() -> None:
    rig = Sinks(crawl(adaptive_delay=True))
    rig.store.apply([(host_key("a.example"), encode_row(HostRow(delay=2.0)))])
    rig.turn()
    rig.turn(wait=HOSTS_EVERY)
    assert rig.host("a.example").delay == 2.0


def test_a_host_row_loses_what_it_says_of_crawls_that_are_gone() -> None:
    rig = Sinks(crawl(), crawl("over", state="ended", ended=1))
    row = HostRow(not_before=LATER, spent={"c": (1, 2), "over": (3, 4)}, sitemaps={f"c\0{A}": 1, f"over\0{A}": 2})
    rig.store.apply([(host_key("a.example"), encode_row(row))])
    rig.turn()
    rig.turn(wait=HOSTS_EVERY)
    assert rig.host("a.example") == HostRow(not_before=LATER, spent={"c": (1, 2)}, sitemaps={f"c\0{A}": 1})


def test_the_row_of_a_host_with_waiting_urls_is_let_alone() -> None:
    rig = Sinks(crawl(delay=3600.0 * 24, parallelism=1), crawl("over", state="ended", ended=1))
    rig.store.apply([(host_key("a.example"), encode_row(HostRow(spent={"over": (3, 4)})))])
    given(rig, links(*pages(9, A)))
    rig.turn(wait=HOSTS_EVERY)
    assert rig.host("a.example").spent == {"over": (3, 4)}


def test_many_host_rows_are_looked_at_in_bounded_steps() -> None:
    rig = Sinks()
    rig.store.apply([(host_key(f"{i}.example"), encode_row(HostRow(not_before=1))) for i in range(2 * STEP + 5)])
    rig.turn()
    rig.turn(wait=HOSTS_EVERY)
    assert len(rig.store.rows) == STEP + 5
    rig.settle()
    assert not rig.store.rows


@pytest.mark.parametrize(("hold", "goes"), [(None, True), (7200.0, False)])
def test_a_forgotten_host_is_forgotten_unless_it_asked_to_be_let_alone(hold: float | None, goes: bool) -> None:
    rig = Sinks(crawl(robots=True))
    (robots,) = given(rig, links(f"{A}/1"))
    (order,) = given(rig, rules(robots))
    given(rig, failed(order, "http_status", status=404, retry_after=hold))
    assert rig.host("a.example") != HostRow()
    rig.turn(wait=HOUR)
    rig.settle()
    given(rig, forget(host="a.example"))
    assert (host_key("a.example") not in rig.store.rows) == goes
    assert rig.told == [f"{A}/1"]
