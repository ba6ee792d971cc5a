"""Redrives, and what resolves a failure."""

from __future__ import annotations

import pytest

from streams import messages as m
from streams.frontier.rows import State, Unresolved
from tests.unit.frontier.rig import Rig, answer, crawl, failed, given, key, links, parsed, seed, seeds

A = "http://h.example/a"


def redrive(visit: int = 2, url: str = A, name: str = "c") -> m.Command:
    return m.Command(action="redrive", crawl=name, url=url, fingerprint=key(url, name), visit=visit)


def told(rig: Rig) -> list[tuple[str, int, int, str]]:
    """Action, visit, attempt and class of the failures."""
    return [(f.next.action, f.visit, f.attempt, f.failure) for f in rig.failures]


def failed_rig() -> Rig:
    """One URL that has failed for good, at its second attempt."""
    rig = Rig(crawl(attempts=2))
    (order,) = given(rig, links(A))
    rig.turn(failed(order))
    (again,) = rig.next_orders()
    given(rig, failed(again))
    assert told(rig) == [("retry", 1, 0, "timeout"), ("none", 1, 1, "timeout")]
    rig.failures.clear()
    rig.turn(wait=2000)  # the host has had its rest
    return rig


def test_a_redrive_opens_the_visit_it_names_and_says_that_the_failure_is_not_final() -> None:
    rig = failed_rig()
    (order,) = given(rig, redrive())
    assert (order.visit, order.attempt) == (2, 0)
    assert told(rig) == [("retry", 1, 1, "timeout")]
    assert rig.failures[0].reason == "redriven as visit 2"


@pytest.mark.parametrize("visit", [0, 1, 3])
def test_another_visit_than_the_next_is_not_opened(visit: int) -> None:
    rig = failed_rig()
    assert given(rig, redrive(visit)) == []
    assert (told(rig), rig.state(A)) == ([], State.FAILED)


def test_a_replayed_redrive_changes_nothing() -> None:
    rig = failed_rig()
    (order,) = given(rig, redrive(), redrive())
    assert given(rig, redrive()) == []
    given(rig, answer(order), parsed(order), redrive())
    assert (rig.row(A).visit, rig.state(A)) == (2, State.DONE)
    assert told(rig) == [("retry", 1, 1, "timeout"), ("resolved", 1, 1, "timeout")]


def test_what_did_not_fail_is_visited_again_without_a_word() -> None:
    rig = Rig()
    (order,) = given(rig, links(A))
    given(rig, answer(order), parsed(order))
    assert len(given(rig, redrive())) == 1
    assert rig.failures == []


def test_an_unknown_url_and_an_ended_crawl_take_no_redrive() -> None:
    rig = failed_rig()
    assert given(rig, redrive(url="http://h.example/unknown")) == []
    rig.change(state="ended")
    assert given(rig, redrive()) == []
    assert told(rig) == []


@pytest.mark.parametrize("how", ["parsed", "parsed first", "unchanged", "redirected"])
def test_a_later_success_resolves_the_failure_of_an_earlier_visit(how: str) -> None:
    rig = failed_rig()
    (order,) = given(rig, redrive())
    rig.failures.clear()
    success = {
        "parsed": (answer(order), parsed(order)),
        "parsed first": (parsed(order), answer(order)),
        "unchanged": (answer(order, "unchanged"),),
        "redirected": (answer(order, "redirected", location="http://h.example/b"),),
    }[how]
    given(rig, *success, *success)
    assert told(rig) == [("resolved", 1, 1, "timeout")]
    assert rig.failures[0].reason == "visit 2 was a success"
    assert rig.row(A).unresolved is None


def test_another_failure_takes_the_place_of_the_first() -> None:
    rig = failed_rig()
    (order,) = given(rig, redrive())
    given(rig, failed(order, "tls"))
    assert rig.row(A).unresolved == Unresolved(2, 0, "tls")
    (order,) = given(rig, redrive(3))
    given(rig, answer(order), parsed(order))
    assert told(rig)[1:] == [("none", 2, 0, "tls"), ("retry", 2, 0, "tls"), ("resolved", 2, 0, "tls")]


def test_a_page_that_cannot_be_parsed_resolves_nothing() -> None:
    rig = failed_rig()
    (order,) = given(rig, redrive())
    given(rig, answer(order), parsed(order, failure="parser"))
    assert told(rig)[1:] == [("none", 2, 0, "parser")]


def test_a_new_seed_resolves_it_as_well() -> None:
    rig = failed_rig()
    (order,) = given(rig, seeds(seed(A, origin=m.Origin("urls", 0, 5), refetch=True)))
    given(rig, answer(order), parsed(order))
    assert told(rig) == [("resolved", 1, 1, "timeout")]


def test_a_respelling_of_a_redriven_url_resolves_nothing_yet() -> None:
    rig = failed_rig()
    (order,) = given(rig, redrive())
    (again,) = given(rig, answer(order, "redirected", location="http://h.example/%61"))
    assert told(rig)[1:] == []
    given(rig, answer(again), parsed(again))
    assert told(rig)[1:] == [("resolved", 1, 1, "timeout")]
