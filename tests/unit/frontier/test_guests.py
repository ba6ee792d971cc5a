"""robots.txt files that are redirected to other hosts: the host that is asked decides when (robots-redirect)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streams import messages as m
from streams.frontier.guests import PATIENCE
from streams.frontier.hops import SEND_AGAIN
from streams.frontier.robots import HOPS
from streams.frontier.rows import HostRow, State, encode_row, host_key
from streams.policy.retry import Breaker
from tests.unit.frontier.rig import HOUR, START, Rig, answer, crawl, failed, given, links, pages, rules, urls_of

PAGE, ROBOTS = "http://x.example/page", "http://x.example/robots.txt"
THERE = "http://y.example/r.txt"


def rig(**definition: Any) -> Rig:
    return Rig(crawl(**{"robots": True, "parallelism": 4, **definition}), crawl("plain"))


def asked(rig: Rig) -> m.FetchOrder:
    """The order for X's robots.txt."""
    (order,) = given(rig, links(PAGE))
    assert order.url == ROBOTS
    return order


def redirected(rig: Rig, order: m.FetchOrder, to: str = THERE) -> m.RobotsHop:
    """X answers with a redirect to Y: the message for Y's shard."""
    given(rig, answer(order, "redirected", location=to, status=301))
    url, hop = rig.routed.pop()
    assert url == to
    assert isinstance(hop, m.RobotsHop)
    return hop


def passed_on(rig: Rig) -> m.Inbox:
    """What Y's shard tells X's."""
    url, message = rig.routed.pop()
    assert url == "http://x.example"
    return message


def known(rig: Rig, host: str, **facts: Any) -> None:
    """What is known of a host from before this owner came."""
    rig.store.apply([(host_key(host), encode_row(HostRow(**facts)))])


def test_the_other_host_is_asked_and_its_answer_is_the_origins() -> None:
    shard = rig(delay=0.5, user_agent="ua")
    hop = redirected(shard, asked(shard))
    assert (hop.url, hop.origin, hop.crawl, hop.hop, hop.attempt) == (THERE, "http://x.example", "c", 1, 0)
    (order,) = given(shard, hop)
    assert (order.kind, order.url, order.host, order.parent, order.visit) == (
        "robots", THERE, "y.example", "http://x.example", 1)  # fmt: skip
    assert (order.delay, order.parallelism, order.user_agent, order.shard) == (0.5, 4, "ua", 3)
    request = m.WireRequest(kind="robots", host="y.example", url=THERE, start=1, end=2)
    found = answer(order, robots_rules=m.RobotsRules(
        origin="http://x.example", version="v", fetched=START, expires=START + HOUR, rules=((False, "/p"),)
    ), requests=(request,))  # fmt: skip
    assert given(shard, found) == []
    message = passed_on(shard)
    assert isinstance(message, m.Outcomes)
    assert message.items[0].requests == ()  # type: ignore[union-attr]  # reported once, by its own outcome
    given(shard, message)
    assert shard.state(PAGE) is State.EXCLUDED
    assert shard.host("y.example").robots == {}


def test_nothing_of_it_is_out_on_the_origins_host_meanwhile() -> None:
    shard = rig(parallelism=1)
    redirected(shard, asked(shard))
    assert shard.hosts["x.example"].out == {}
    assert shard.settle() == []
    assert shard.turn(wait=5000) == []


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize(
    ("facts", "wait"),
    [
        ({"not_before": START + 9000}, 9000),
        ({"breaker": Breaker(since=START - 1, until=START + 7000)}, 7000),
    ],
)
def test_what_holds_the_other_host_holds_the_hop(facts: dict[str, Any], wait: int, reload: bool) -> None:
    """Also where its owner was restarted, and its own robots.txt does not matter."""
    shard = rig()
    known(shard, "y.example", **facts)
    hop = redirected(shard, asked(shard))
    if reload:
        shard.load()
    assert urls_of(given(shard, hop)) == [ROBOTS] * reload  # a new owner of X begins anew
    assert urls_of(shard.next_orders()) == [THERE]
    assert shard.now == START + wait


def test_it_counts_in_the_other_hosts_window() -> None:
    shard = rig()
    hop = redirected(shard, asked(shard))
    out = given(shard, links(*pages(20, "http://y.example"), name="plain"))
    assert shard.hosts["y.example"].room(shard.now) == 0
    assert given(shard, hop) == []
    assert urls_of(given(shard, answer(out[0]))) == [THERE]  # before the host's own URLs


def test_the_strictest_rule_holds_there_too() -> None:
    shard = Rig(crawl(robots=True), crawl("slow", delay=5.0, parallelism=1))
    hop = redirected(shard, asked(shard))
    given(shard, links(*pages(3, "http://y.example"), name="slow"))
    given(shard, hop)
    (order, *_) = shard.next_orders()
    assert (order.url, order.delay, order.parallelism) == (THERE, 5.0, 1)
    assert shard.now == START + 4000  # its turn, a second ahead


def test_hosts_that_lead_to_each_other_do_not_wait_for_each_other() -> None:
    shard = rig(parallelism=1)
    first = asked(shard)
    (second,) = given(shard, links("http://y.example/page"))
    there = redirected(shard, first)
    back = redirected(shard, second, "http://x.example/r.txt")
    assert urls_of(given(shard, there, back)) == [THERE, "http://x.example/r.txt"]


def test_what_the_other_host_answers_is_its_own_matter_too() -> None:
    """429 with Retry-After: Y is left alone. X's robots.txt could not be had, and is asked for again then."""
    shard = rig()
    (order,) = given(shard, redirected(shard, asked(shard)))
    given(shard, failed(order, "http_status", status=429, retry_after=50.0))
    given(shard, passed_on(shard))
    assert shard.host("y.example").not_before == START + 50_000
    assert shard.host("x.example").not_before == 0
    assert shard.host("x.example").probes["http://x.example"].count == 1
    assert urls_of(shard.next_orders()) == [ROBOTS]
    assert shard.now == START + 50_000


def test_its_failures_feed_the_other_hosts_breaker() -> None:
    shard = rig()
    (order,) = given(shard, redirected(shard, asked(shard)))
    given(shard, failed(order, "connection"))
    assert shard.host("y.example").breaker.failures == (START,)
    given(shard, passed_on(shard))
    assert shard.host("x.example").breaker.failures == ()


def test_a_host_that_is_left_alone_for_long_says_so_at_once() -> None:
    shard = rig()
    known(shard, "y.example", not_before=START + PATIENCE + 1)
    hop = redirected(shard, asked(shard))
    assert given(shard, hop) == []
    assert given(shard, passed_on(shard)) == []
    probe = shard.host("x.example").probes["http://x.example"]
    assert (probe.failure, probe.reason) == ("host_unreachable", "y.example is left alone for 60 s")
    assert urls_of(shard.next_orders()) == [ROBOTS]
    assert shard.now == START + PATIENCE + 1


def test_a_host_that_was_given_up_says_so() -> None:
    shard = rig()
    known(shard, "y.example", breaker=Breaker(since=START - 7 * HOUR, until=START + 1000, probes=8))
    given(shard, redirected(shard, asked(shard)))
    given(shard, passed_on(shard))
    assert shard.host("x.example").probes["http://x.example"].reason == "y.example does not answer"


def test_the_same_hop_again_is_one_request() -> None:
    shard = rig()
    hop = redirected(shard, asked(shard))
    assert len(given(shard, hop, hop)) == 1
    assert given(shard, hop) == []


def test_a_replayed_redirect_is_ignored() -> None:
    shard = rig()
    order = asked(shard)
    redirected(shard, order)
    given(shard, answer(order, "redirected", location="http://z.example/", status=301))
    assert shard.routed == []


def test_a_hop_that_is_given_back_begins_anew() -> None:
    shard = rig()
    (order,) = given(shard, redirected(shard, asked(shard)))
    given(shard, answer(order, "deferred", retry_after=5.0))
    assert shard.host("y.example").not_before == START + 5000
    assert urls_of(given(shard, passed_on(shard))) == [ROBOTS]
    assert shard.host("x.example").not_before == 0


def test_a_hop_that_gets_lost_is_asked_for_again() -> None:
    """Y's shard dies with the hop in memory, again and again; X's begins anew when the answer is overdue."""
    shard = rig()
    hop = redirected(shard, asked(shard))
    given(shard, hop)
    given(shard, msgspec.structs.replace(hop))
    (again,) = shard.next_orders()
    assert (again.url, shard.now) == (ROBOTS, START + 600_001)
    assert shard.routed == [(THERE, hop)] * 6  # meanwhile it was sent again and again
    assert redirected(shard, again) == hop
    assert shard.hosts.get("y.example") is None or not shard.hosts["y.example"].out


def test_a_hop_is_sent_again_until_it_is_answered() -> None:
    """lost-hop: with the same identity, and not once more."""
    shard = rig()
    hop = redirected(shard, asked(shard))
    for number in (1, 2):
        assert shard.sleep() == []
        assert shard.now == START + number * SEND_AGAIN
        assert shard.routed == [(THERE, hop)]
        shard.routed.clear()
    (order,) = given(shard, hop)
    given(shard, rules(order))
    assert urls_of(given(shard, passed_on(shard))) == [PAGE]
    shard.turn(wait=2 * SEND_AGAIN)
    assert shard.routed == []


def test_a_clock_that_is_set_back_does_not_keep_a_hop_from_being_sent_again() -> None:
    shard = rig()
    hop = redirected(shard, asked(shard))
    shard.turn(wait=-HOUR)
    shard.turn(wait=SEND_AGAIN)
    assert shard.routed == [(THERE, hop)]


def test_a_hop_again_after_its_answer_is_asked_for_once_more_and_changes_nothing() -> None:
    """It was on its way again when the answer came: two answers, of which the first counts."""
    shard = rig()
    hop = redirected(shard, asked(shard))
    (order,) = given(shard, hop)
    given(shard, rules(order, (False, "/private"), version="first"))
    first = passed_on(shard)
    (second,) = given(shard, hop)
    given(shard, rules(second, (False, "/"), version="second"))
    late = passed_on(shard)
    assert urls_of(given(shard, first)) == [PAGE]
    before, stored = shard.host("x.example"), dict(shard.store.rows)
    assert given(shard, late, first, late) == []
    assert shard.host("x.example") == before
    assert before.robots["http://x.example"].version == "first"
    assert shard.store.rows == stored
    assert "y.example" not in shard.hosts  # nothing is out there any more


def test_a_hop_that_waits_is_refused_when_it_comes_again_to_a_host_that_is_left_alone_for_long() -> None:
    shard = rig()
    known(shard, "y.example", not_before=START + 9000)
    hop = redirected(shard, asked(shard))
    assert given(shard, hop) == []
    queue = shard.hosts["y.example"]
    queue.row = msgspec.structs.replace(queue.row, not_before=START + PATIENCE + 1)
    assert given(shard, hop) == []
    assert not queue.guests
    given(shard, passed_on(shard))
    assert shard.host("x.example").probes["http://x.example"].failure == "host_unreachable"


def test_a_hop_that_is_out_is_let_be_when_it_comes_again_to_a_host_that_is_left_alone_for_long() -> None:
    shard = rig()
    hop = redirected(shard, asked(shard))
    (order,) = given(shard, hop)
    queue = shard.hosts["y.example"]
    queue.row = msgspec.structs.replace(queue.row, not_before=START + PATIENCE + 1)
    assert (given(shard, hop), shard.routed) == ([], [])
    given(shard, rules(order))
    assert urls_of(given(shard, passed_on(shard))) == [PAGE]


def test_a_hop_again_gives_way_to_the_next_one_of_its_file() -> None:
    """It came again when it was answered by a redirect to a third host of its shard: nobody waits for it there."""
    shard = rig()
    hop = redirected(shard, asked(shard))
    (order,) = given(shard, hop)
    given(shard, answer(order, "redirected", location="http://z.example/r.txt", status=301))
    told = passed_on(shard)
    (second,) = given(shard, hop)
    given(shard, told)
    (_, onward) = shard.routed.pop()
    (third,) = given(shard, onward)
    assert third.url == "http://z.example/r.txt"
    assert "y.example" not in shard.hosts  # its window is free
    given(shard, rules(second))
    assert shard.routed == []
    given(shard, rules(third))
    assert urls_of(given(shard, passed_on(shard))) == [PAGE]


def test_a_hop_of_a_crawl_nobody_knows_is_dropped() -> None:
    shard = rig()
    hop = redirected(shard, asked(shard))
    assert given(shard, msgspec.structs.replace(hop, crawl="gone")) == []
    assert shard.routed == []


def test_hops_are_bounded() -> None:
    shard = rig()
    order = asked(shard)
    for number in range(HOPS):
        (order,) = given(shard, redirected(shard, order, f"http://y{number}.example/"))
        assert order.visit == number + 1
        given(shard, answer(order, "redirected", location="http://z.example/", status=301))
        order = msgspec.structs.replace(order, fingerprint=passed_on_outcome(shard))
    assert urls_of(given(shard, answer(order, "redirected", location="http://z.example/", status=301))) == [PAGE]


def passed_on_outcome(rig: Rig) -> bytes:
    """The fingerprint under which X's shard is told."""
    message = passed_on(rig)
    assert isinstance(message, m.Outcomes)
    return message.items[0].fingerprint


def test_rules_from_there_are_the_origins() -> None:
    shard = rig()
    (order,) = given(shard, redirected(shard, asked(shard)))
    given(shard, rules(order, crawl_delay=3.0))
    given(shard, passed_on(shard))
    assert shard.host("x.example").robots["http://x.example"].crawl_delay == 3.0
