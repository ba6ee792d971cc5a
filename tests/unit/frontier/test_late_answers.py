"""Answers that come when their URLs were forgotten already."""

from __future__ import annotations

import pytest

from streams import messages as m
from streams.frontier.rows import State
from streams.policy.forgetting import deny_host
from tests.unit.frontier.rig import answer, crawl, given, links, parsed, seeds
from tests.unit.frontier.sinks import Sinks, forget

A = "http://a.example"


def forgotten_while_out() -> tuple[Sinks, m.FetchOrder]:
    """A shard whose URL was forgotten while an order of the former owner was out, which nobody knows of."""
    rig = Sinks(crawl())
    (order,) = given(rig, seeds(f"{A}/1"))
    rig.load()
    rig.change(scope_rules=(deny_host("a.example"),))
    given(rig, forget(host="a.example"))
    return rig, order


@pytest.mark.parametrize("kind", ["fetched", "failed", "parsed"])
def test_an_answer_that_a_former_owner_had_ordered_brings_nothing_back(kind: str) -> None:
    """Nobody knows of its order when its URL is forgotten; a link that was on its way names it before the answer."""
    rig, order = forgotten_while_out()
    assert (rig.known(), rig.told) == (0, [])
    answers = {
        "fetched": answer(order), "failed": answer(order, "failed", failure="http_status", status=404),
        "parsed": parsed(order),
    }  # fmt: skip
    given(rig, links(f"{A}/1"), answers[kind])
    row = rig.row(f"{A}/1")
    assert (row.state, row.outcome) == (State.EXCLUDED, f"scope:{deny_host('a.example').id}")
    given(rig, answers[kind])
    assert (rig.row(f"{A}/1"), rig.failures) == (row, [])


@pytest.mark.parametrize("row", ["gone", "kept out"])
def test_a_page_that_comes_when_its_url_was_forgotten_is_told_behind_its_record(row: str) -> None:
    """A former owner had ordered it, or it is read again after a crash; its parser did not know the rule yet."""
    rig, order = forgotten_while_out()
    if row == "kept out":
        given(rig, links(f"{A}/1"))
    given(rig, answer(order), parsed(order))
    given(rig, parsed(order))  # read again: told again, in the same words
    assert [(word.url, word.crawl, word.id) for word in rig.forgotten] == [(f"{A}/1", "c", "page:0:7")] * 2


def test_a_page_that_nobody_forgot_is_none_of_the_sinks_business() -> None:
    rig = Sinks(crawl(scope_rules=(deny_host("b.example"),)))
    (order,) = given(rig, seeds(f"{A}/1"))
    given(rig, answer(order), parsed(order))
    given(rig, parsed(order))
    assert rig.told == []
