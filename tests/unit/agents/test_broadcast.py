"""Folding definitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agents.broadcast import Crawls
from streams.codecs import encode
from streams.definitions import CrawlDefinition, LimitRule, ScopeRule


def record(definition: CrawlDefinition | None, key: str = "c") -> Any:
    return SimpleNamespace(key=key.encode(), value=encode(definition) if definition else None)


def test_rules_that_match_nothing_are_told_once_for_the_definition_that_holds() -> None:
    crawls = Crawls()
    broken = CrawlDefinition(
        id="c", version=2, limits=(LimitRule(id="l", regex="("), LimitRule(id="fine")),
        scope_rules=(ScopeRule(id="s", domain="a/b"),),
    )  # fmt: skip
    told = crawls.fold(record(broken))
    assert told.startswith("rule s matches nothing: the domain 'a/b' is no host name; rule l matches nothing: the reg")
    assert crawls["c"] == broken
    assert crawls.fold(record(broken)) == "", "a replay is no news"
    assert crawls.fold(record(CrawlDefinition(id="c", version=3))) == ""
    assert crawls.fold(record(None)) == ""
    assert "c" not in crawls
