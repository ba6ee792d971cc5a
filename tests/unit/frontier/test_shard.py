"""A shard as its agent sees it: turns, progress, when to wake."""

from __future__ import annotations

import msgspec
import pytest

from streams import messages as m
from streams.definitions import CrawlState
from streams.frontier.index import DUE, UNPARSED, queue_prefix, timed_entry
from streams.frontier.rows import State, encode_row, url_key
from streams.frontier.shard import CHECK_EVERY, PAGE_LIFE
from tests.unit.frontier.rig import START, Rig, answer, crawl, failed, key, links, parsed, rules, seed, seeds

URL = "http://h.example/page"


def one(rig: Rig, *messages: m.Inbox) -> m.FetchOrder:
    (order,) = [*rig.turn(*messages), *rig.settle()]
    return order


def test_an_idle_shard_sleeps() -> None:
    rig = Rig()
    rig.turn()
    assert rig.shard.wake_at() == float("inf")
    order = one(rig, seeds(URL))
    rig.turn(answer(order), parsed(order))
    rig.settle()
    assert rig.shard.wake_at() == float("inf")


def test_effects_and_rows_come_in_one_turn() -> None:
    """effects-after-close: what a row closes for is told in the turn that closes it, so that it can be sent first."""
    rig = Rig()
    order = one(rig, seeds(URL))
    turn = rig.shard.turn([(5, answer(order, "redirected", location="http://x.example/", status=301))], START, {})
    assert [item.url for item in turn.candidates] == ["http://x.example/"]
    assert len(turn.rows()) == 1
    rig.load()  # it was never made durable
    turn = rig.shard.turn([(5, answer(order, "redirected", location="http://x.example/", status=301))], START, {})
    assert [item.url for item in turn.candidates] == ["http://x.example/"]


def test_a_pages_row_survives_the_frontier() -> None:
    """fetched-in-memory: parsers lag, the frontier dies: nothing is fetched again."""
    rig = Rig(crawl(parallelism=100), release_floor=1000)
    orders = [*rig.turn(links(*[f"http://h.example/{i}" for i in range(300)])), *rig.settle()]
    rig.turn(*(answer(order) for order in orders))
    rig.load()
    assert [*rig.turn(), *rig.settle()] == []
    assert rig.shard.progress(0).crawls["c"].fetched == 300


def test_a_page_nobody_parsed_in_time_is_fetched_again() -> None:
    rig = Rig()
    order = one(rig, seeds(URL))
    rig.turn(answer(order))
    other = one(rig, seeds("http://h.example/2"))
    rig.turn(answer(other), wait=1000)
    assert rig.turn(wait=PAGE_LIFE - 1001) == []
    assert rig.turn(wait=1) == []  # looked for once a minute
    again = one(rig, *[]) if rig.turn(wait=CHECK_EVERY - 1) else None
    assert again is None
    orders = [*rig.turn(), *rig.settle()]
    assert {(o.url, o.visit, o.attempt) for o in orders} == {(URL, 1, 0), ("http://h.example/2", 1, 0)}
    assert rig.row(URL).page is None


def test_only_old_pages_are_fetched_again() -> None:
    rig = Rig()
    order = one(rig, seeds(URL))
    rig.turn(answer(order))
    rig.turn(wait=PAGE_LIFE - CHECK_EVERY)
    other = one(rig, seeds("http://h.example/2"))
    rig.turn(answer(other))
    rig.turn(wait=CHECK_EVERY)
    orders = [*rig.turn(), *rig.settle()]
    assert [order.url for order in orders] == [URL]


def test_a_page_parsed_in_the_turn_that_looks_is_left_alone() -> None:
    rig = Rig()
    order = one(rig, seeds(URL))
    rig.turn(answer(order))
    rig.turn(parsed(order), wait=PAGE_LIFE)
    assert rig.state(URL) is State.DONE


def test_the_look_for_pages_survives_a_clock_that_is_set_back() -> None:
    rig = Rig()
    order = one(rig, seeds(URL))
    rig.turn(answer(order))
    rig.turn(wait=2 * PAGE_LIFE)
    (again,) = rig.settle()
    rig.turn(answer(again), wait=-PAGE_LIFE)
    rig.turn(wait=PAGE_LIFE)
    assert len(rig.settle()) == 1


def test_nothing_is_released_before_the_backlog_is_read() -> None:
    """What former orders were answered with is read first."""
    rig = Rig()
    order = one(rig, seeds(URL))
    rig.load()
    rig.shard.backlog = rig.offset + 2
    assert rig.turn() == []
    assert rig.shard.wake_at() == float("inf")
    assert rig.turn(links("http://h.example/2")) == []
    orders = [*rig.turn(answer(order)), *rig.settle()]
    assert [order.url for order in orders] == ["http://h.example/2"]


@pytest.mark.parametrize("state", ["open", "ended"])
def test_an_index_entry_is_a_hint(state: CrawlState) -> None:
    """stale-index: entries without a row, and of rows in another state, are passed over."""
    rig = Rig(crawl(state="paused"))
    rig.turn(seeds(URL, "http://h.example/2"))
    gone, done = b"x" * 16, rig.row("http://h.example/2")
    rig.store.apply([(url_key(key(done.url)), encode_row(msgspec.structs.replace(done, state=State.DONE)))])
    for number, fingerprint in enumerate((gone, key(done.url))):
        rig.store.mislead(queue_prefix("h.example", "c") + bytes((0,)) + number.to_bytes(8, "big"), fingerprint)
        rig.store.mislead(timed_entry(DUE, START - 5, fingerprint), b"")
        rig.store.mislead(timed_entry(DUE, START + 50_000, fingerprint), b"")
        rig.store.mislead(timed_entry(UNPARSED, 5, fingerprint), b"")
    rig.load()
    rig.change(state=state)
    orders = [*rig.turn(), *rig.settle(), *rig.sleep(), *rig.settle()]
    assert [order.url for order in orders] == ([URL] if state == "open" else [])
    assert rig.state(URL) is (State.WAITING if state == "open" else State.EXCLUDED)
    assert rig.state(done.url) is State.DONE


def test_progress_covers_what_was_read() -> None:
    rig = Rig()
    rig.offset = 7
    assert rig.shard.progress(5) == m.Progress(shard=3, epoch=0, position=0, at=5)
    order = one(rig, seeds(URL))
    assert rig.shard.progress(6) == m.Progress(
        shard=3, epoch=0, position=8, at=6, crawls={"c": m.CrawlCounts(open=1, activity=1, released=1, hosts=0)}
    )
    rig.turn(answer(order))
    rig.turn(parsed(order))
    counts = rig.shard.progress(6).crawls["c"]
    assert (rig.shard.progress(6).position, counts) == (10, m.CrawlCounts(done=1, activity=3))


def test_changes_tell_when_progress_may_be_new() -> None:
    rig = Rig()
    seen = [rig.shard.changes]
    for messages in ([seeds(URL)], [], [], [seeds(seed(URL))], []):
        rig.turn(*messages)
        seen.append(rig.shard.changes)
    assert seen == [0, 1, 2, 2, 3, 3]  # the second turn released the order


def test_a_restart_counts_activity_anew_under_its_own_epoch() -> None:
    rig = Rig()
    one(rig, seeds(URL))
    rig.load()
    assert rig.shard.progress(0) == m.Progress(
        shard=3, epoch=1, position=0, at=0, crawls={"c": m.CrawlCounts(open=1, hosts=1)}
    )


def test_an_answer_nobody_knows_is_ignored() -> None:
    rig = Rig()
    ghost = m.FetchOrder(
        crawl="c", url=URL, fingerprint=key(URL), host="h.example", shard=3, epoch=9, visit=1, attempt=0
    )
    rig.turn(answer(ghost), parsed(ghost), failed(ghost), rules(ghost))
    assert rig.store.rows == {}


@pytest.mark.parametrize("first", ["parse", "late"])
def test_another_answer_may_be_faster_than_the_order_that_is_out(first: str) -> None:
    rig = Rig(answer_timeout=60.0)
    order = one(rig, seeds(URL))
    (again,) = rig.sleep()
    assert rig.shard.unanswered() == 1
    rig.turn(parsed(order) if first == "parse" else answer(order))
    assert rig.shard.unanswered() == 0
    rig.turn(answer(again), parsed(again))
    assert rig.state(URL) is State.DONE


def test_an_order_of_a_visit_that_is_over_is_not_waited_for() -> None:
    """Redriven while an order of the former visit is still out."""
    rig = Rig(answer_timeout=60.0)
    order = one(rig, seeds(URL))
    rig.turn(failed(order, "tls"))
    rig.turn(m.Command(action="redrive", crawl="c", url=URL, fingerprint=key(URL), visit=2))
    (again,) = rig.settle()
    assert (again.visit, rig.shard.unanswered()) == (2, 1)
    rig.turn(answer(order, "deferred"), answer(order))  # the old one, answered late
    assert rig.shard.unanswered() == 1
    assert rig.state(URL) is State.WAITING


def test_an_open_visit_is_replaced_while_its_order_is_out() -> None:
    """The parser's word on a duplicate page opens the next visit (depth lowered): the order out is settled."""
    rig = Rig(crawl(depth=5))
    order = one(rig, links(URL, depth=3))
    rig.turn(links(URL, depth=1), parsed(order))
    assert rig.row(URL).visit == 2
    (again,) = rig.settle()
    assert (again.visit, rig.shard.unanswered()) == (2, 1)


def test_messages_of_one_turn_see_each_other() -> None:
    rig = Rig()
    order = one(rig, seeds(URL))
    rig.turn(answer(order), parsed(order), seeds(seed(URL, refetch=True)), links(URL))
    assert (rig.row(URL).visit, rig.state(URL)) == (2, State.WAITING)
    assert rig.shard.progress(0).crawls["c"].duplicates == 1
