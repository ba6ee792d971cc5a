"""What keeps URLs out, compiled once for each version of a definition."""

from __future__ import annotations

import pytest

from streams.definitions import CrawlDefinition, Scope, ScopeRule, Traps
from streams.policy import bounds
from streams.policy.bounds import bounds_of

SITE = Scope(mode="host", values=("h.example",))


@pytest.mark.parametrize(
    ("url", "depth", "rule"),
    [
        ("http://h.example/", 2, ""),
        ("http://h.example/", 3, "depth"),
        ("http://x.example/", 2, "scope:host"),
        ("http://x.example/", 3, "depth"),
    ],
)
def test_depth_and_scope(url: str, depth: int, rule: str) -> None:
    assert bounds_of(CrawlDefinition(id="c", scope=SITE, depth=2)).kept_out(url, depth) == rule


def test_without_bounds_nothing_is_kept_out() -> None:
    free = bounds_of(CrawlDefinition(id="c", traps=Traps(length=0)))
    assert (free.kept_out("http://x.example/", 10**6), free.trap("http://x/" + "y" * 9000, 0)) == ("", "")


def test_a_definition_is_compiled_once() -> None:
    first, second = CrawlDefinition(id="c"), CrawlDefinition(id="c", version=2, scope=SITE)
    assert bounds_of(first) is bounds_of(first)
    assert bounds_of(second).scope("http://x.example/") == "scope:host"
    assert bounds_of(first).scope("http://x.example/") == ""


def test_what_is_compiled_is_bounded() -> None:
    for number in range(600):
        bounds_of(CrawlDefinition(id=f"c{number}", scope_rules=(ScopeRule(id="r"),)))
    assert len(bounds._compiled) <= 256
