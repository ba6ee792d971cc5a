"""The rules that keep out what is forgotten."""

from __future__ import annotations

import pytest

from streams.definitions import CrawlDefinition, ScopeRule
from streams.errors import UsageError
from streams.policy.forgetting import denied_by, deny_host, deny_prefix, deny_url, is_forgotten
from streams.policy.patterns import compile_pattern

URL = "http://h.example/~u/a*b$?x=(1)"


@pytest.mark.parametrize(("rule", "denied", "others"), [
    (deny_url(URL), [URL, "https://h.example:8443/%7eu/a%2ab%24?x=(1)"],
     [URL + "2", "http://h.example/~u/aXb$?x=(1)", "http://x.example/~u/a*b$?x=(1)", "http://h.example/"]),
    (deny_host("h.example"), [URL, "https://h.example:8443/"], ["http://www.h.example/", "http://xh.example/"]),
    (deny_host("[::1]"), ["http://[::1]:80/a"], ["http://h.example/"]),
    (deny_prefix("http://h.example/a?b=1&c"), ["http://h.example/a?b=1&c", "http://h.example/a?b=1&c=2"],
     ["http://h.example/a?b=1", "https://h.example/a?b=1&c", "http://x/http://h.example/a?b=1&c"]),
])  # fmt: skip
def test_a_rule_keeps_out_what_it_is_about_and_nothing_else(
    rule: ScopeRule, denied: list[str], others: list[str]
) -> None:
    test = compile_pattern(rule)
    assert not rule.allow
    assert [url for url in denied if not test(url)] == []
    assert [url for url in others if test(url)] == []


def test_a_rule_comes_first_and_once() -> None:
    other = ScopeRule(id="all", allow=True)
    crawl = denied_by(CrawlDefinition(id="c", scope_rules=(other,)), deny_host("h.example"))
    assert crawl.scope_rules == (deny_host("h.example"), other)
    assert denied_by(crawl, deny_host("h.example")) is crawl
    again = denied_by(crawl, deny_host("x.example"))
    assert [rule.domain for rule in again.scope_rules] == ["x.example", "h.example", ""]


def test_a_prefix_may_be_too_long_for_a_rule() -> None:
    with pytest.raises(UsageError):
        deny_prefix("http://h.example/" + "a" * 5000)


def test_only_these_rules_make_what_comes_late_be_dropped() -> None:
    other = ScopeRule(id="no-print", path="/print")
    crawl = CrawlDefinition(id="c", scope_rules=(other,))
    assert not is_forgotten(CrawlDefinition(id="c"), "http://h.example/print")
    assert not is_forgotten(crawl, "http://h.example/print")
    crawl = denied_by(crawl, deny_host("h.example"))
    assert is_forgotten(crawl, "http://h.example/print")
    assert not is_forgotten(crawl, "http://x.example/print")
