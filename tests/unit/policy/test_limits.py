from __future__ import annotations

from typing import Any

import pytest

from streams.definitions import CrawlDefinition, LimitRule, Recrawl, ScopeRule
from streams.errors import UsageError
from streams.policy.limits import LimitRules, RuleBook, check_rule, faults_of, strictest
from streams.policy.politeness import Limits
from streams.policy.urls import PolitenessMode

NIGHT = "22:00-06:00"
EVENING = 72_000_000  # 20:00 on 1970-01-01


def crawl(*rules: LimitRule, **fields: Any) -> CrawlDefinition:
    return CrawlDefinition(**{"id": "c", "delay": 0.5, "parallelism": 4, "limits": rules, **fields})


RULES = crawl(
    LimitRule(id="api", domain="a.org", path="/api/", delay=5.0),
    LimitRule(id="pdf", path="*.pdf$", delay=2.0, parallelism=1),
    LimitRule(id="a", domain="a.org", delay=1.0, robots=False),
    LimitRule(id="never", domain="a.org", delay=99.0),
    LimitRule(id="broken", regex="(", delay=77.0),
    LimitRule(id="b", domain="*.b.org", parallelism=2),
    LimitRule(id="calendar", regex=r"[?&]year=\d+", delay=3.0),
)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("http://a.org/api/x.pdf", "api"),
        ("http://a.org/x.pdf", "pdf"),
        ("http://a.org./x", "a"),
        ("https://a.org:8443/x?year=3", "a"),
        ("http://c.org/x.pdf", "pdf"),
        ("http://c.org/x?year=3", "calendar"),
        ("http://c.org/x", ""),
        ("http://x.b.org/?year=3", "b"),
        ("http://b.org/", ""),
    ],
)
def test_the_first_rule_that_matches_decides(url: str, rule: str) -> None:
    rules = LimitRules(RULES)
    for _ in range(2):  # the second time from memory
        assert rules.for_url(url).rule == rule
    tried = rules.tried(url)
    assert [found.written.id for found, reason in tried if not reason] == ([rule] if rule else [])
    assert len(tried) == (1 + [found.id for found in RULES.limits].index(rule) if rule else len(RULES.limits))


def test_says_why_rules_do_not_apply() -> None:
    reasons = {found.written.id: reason for found, reason in LimitRules(RULES).tried("http://c.org/x")}
    assert "a `)` is missing" in reasons.pop("broken")
    assert reasons == {
        "api": "domain", "pdf": "path", "a": "domain", "never": "domain", "b": "domain", "calendar": "regex"
    }  # fmt: skip


def test_what_a_rule_leaves_open_stays_as_the_crawl_says() -> None:
    definition = crawl(
        LimitRule(
            id="all", domain="all.org", delay=0.0, random_delay=1.0, parallelism=1, robots=False, user_agent="x/1",
            headers={"A": "b"}, timeout=3.0, max_body=9, accept=("text/html",), recrawl=60.0, windows=(NIGHT,),
        ),
        LimitRule(id="none", domain="none.org"),
        user_agent="own/1", max_body=100, recrawl=Recrawl(interval=3600.0),
    )  # fmt: skip
    rules = LimitRules(definition)
    own = rules.for_url("http://other.org/")
    assert (own.limits, own.robots, own.user_agent, own.headers) == (
        Limits(0.5, 4), True, "own/1", {}
    )  # fmt: skip
    assert (own.timeout, own.max_body, own.accept, own.recrawl, own.windows) == (0.0, 100, (), 3600.0, None)
    empty = rules.for_url("http://none.org/")
    assert {name: getattr(empty, name) for name in own.__slots__} == {
        **{name: getattr(own, name) for name in own.__slots__}, "rule": "none"
    }  # fmt: skip
    full = rules.for_url("http://all.org/")
    assert (full.limits, full.robots, full.user_agent, full.headers) == (
        Limits(0.0, 1, 1.0), False, "x/1", {"A": "b"}
    )  # fmt: skip
    assert (full.timeout, full.max_body, full.accept, full.recrawl) == (3.0, 9, ("text/html",), 60.0)
    assert (own.opening(EVENING).open, full.opening(EVENING).open) == (True, False)


@pytest.mark.parametrize(
    ("mode", "key", "delay", "parallelism", "robots"),
    [
        ("host", "a.org", 5.0, 1, True),  # of all that can apply to its URLs; what comes behind `a` cannot
        ("host", "c.org", 3.0, 1, True),
        ("host", "x.b.org", 2.0, 1, True),
        ("domain", "a.org", 99.0, 1, True),  # also of hosts below it, which `a` is not about
        ("domain", "b.org", 3.0, 1, True),
    ],
)
def test_a_host_as_a_whole_gets_the_strictest(
    mode: PolitenessMode, key: str, delay: float, parallelism: int, robots: bool
) -> None:
    rules = LimitRules(RULES, mode)
    for _ in range(2):
        found = rules.for_host(key)
        assert (found.limits, found.robots) == (Limits(delay, parallelism), robots)


@pytest.mark.parametrize(
    ("mode", "rules", "delay", "robots"),
    [
        ("host", [LimitRule(id="r", domain="a.org", delay=0.1, robots=False)], 0.1, False),
        ("host", [LimitRule(id="r", delay=0.1, robots=False)], 0.1, False),
        ("host", [LimitRule(id="r", path="/x", delay=0.1, robots=False)], 0.5, True),
        ("host", [LimitRule(id="r", domain="b.org", delay=9.0)], 0.5, True),
        ("domain", [LimitRule(id="r", domain="a.org", delay=0.1, robots=False)], 0.5, True),
        ("domain", [LimitRule(id="r", domain="*.a.org", delay=0.1, robots=False)], 0.5, True),
        ("domain", [LimitRule(id="r", domain="www.*", delay=9.0)], 9.0, True),
        ("domain", [LimitRule(id="r", domain="*.x.a.org", delay=9.0)], 9.0, True),
        ("domain", [LimitRule(id="r", domain="x.a.org", delay=9.0)], 9.0, True),
        ("domain", [LimitRule(id="r", domain="ba.org", delay=9.0)], 0.5, True),
        ("domain", [LimitRule(id="r", domain="*.b.org", delay=9.0)], 0.5, True),
        ("domain", [LimitRule(id="r", delay=0.1, robots=False)], 0.1, False),
    ],
)
def test_the_crawls_own_values_count_where_a_rule_need_not_apply(
    mode: PolitenessMode, rules: list[LimitRule], delay: float, robots: bool
) -> None:
    found = LimitRules(crawl(*rules), mode).for_host("a.org")
    assert (found.limits.delay, found.robots) == (delay, robots)


def test_only_rules_about_whole_hosts_shut_a_host() -> None:
    rules = LimitRules(crawl(
        LimitRule(id="path", domain="a.org", path="/x", windows=("Mon 00:00-00:01",)),
        LimitRule(id="host", domain="a.org", windows=(NIGHT,)),
        LimitRule(id="late", domain="a.org", windows=("Tue 00:00-00:01",)),
    ))  # fmt: skip
    evening = rules.for_host("a.org").opening(EVENING)
    assert (evening.open, evening.until) == (False, EVENING + 2 * 3_600_000)
    night = rules.for_host("a.org").opening(evening.until)
    assert (night.open, night.until) == (True, EVENING + 10 * 3_600_000)
    assert rules.for_host("b.org").opening(EVENING).open
    assert not rules.for_url("http://a.org/x").opening(evening.until).open


def test_a_site_is_open_while_all_of_its_windows_are() -> None:
    rules = LimitRules(crawl(
        LimitRule(id="1", domain="x.a.org", windows=("18:00-23:00",)),
        LimitRule(id="2", domain="y.a.org", windows=("21:00-24:00",)),
    ), "domain")  # fmt: skip
    found = rules.for_host("a.org")
    hour = 3_600_000
    assert (found.opening(EVENING).open, found.opening(EVENING).until) == (False, EVENING + hour)
    assert (found.opening(EVENING + hour).open, found.opening(EVENING + hour).until) == (True, EVENING + 3 * hour)


def test_a_rule_that_cannot_be_read_is_told_and_matches_nothing() -> None:
    rules = (LimitRule(id="window", windows=("25:00-26:00",)), LimitRule(id="regex", regex="["), LimitRule(id="ok"))
    found = LimitRules(crawl(*rules))
    assert faults_of(crawl(*rules, scope_rules=(ScopeRule(id="scope", regex="("), ScopeRule(id="fine")))).keys() == {
        "window", "regex", "scope",
    }  # fmt: skip
    assert found.for_url("http://a.org/").rule == "ok"
    for rule in rules[:2]:
        with pytest.raises(UsageError):
            check_rule(rule)
    check_rule(rules[2])


def test_rules_are_compiled_once_for_each_version() -> None:
    book, first, second = RuleBook(), crawl(version=1), crawl(version=2)
    assert book.of(first) is book.of(first)
    assert book.of(second) is not book.of(first)


def test_hosts_are_forgotten_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.policy.limits._HOSTS_REMEMBERED", 2)
    rules = LimitRules(RULES)
    for number in (1, 2, 3, 1):
        assert rules.for_url(f"http://h{number}.org/x.pdf").rule == "pdf"
        assert rules.for_host(f"h{number}.org").limits.delay == 3.0
    assert len(rules._by_host) <= 2


def test_the_strictest_of_several_limits() -> None:
    assert strictest([Limits(1.0, 4, 0.5), Limits(2.0, 8)]) == Limits(2.0, 4, 0.5)
    assert strictest([]) == Limits(0.0, 1)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (LimitRule(id="r", delay=1e5), "delay is 100000 s"),
        (LimitRule(id="r", random_delay=1e5), "random_delay is 100000 s"),
        (LimitRule(id="r", timeout=301.0), "timeout is 301 s"),
        (LimitRule(id="r", recrawl=0.5), "recrawl is 0.5 s"),
        (LimitRule(id="r", headers={"A b": "c"}), "the header 'A b' is not valid"),
        (LimitRule(id="r", headers={"A": "b\nc"}), "the header 'A' is not valid"),
        (LimitRule(id="r", user_agent="b\0"), "the header 'User-Agent' is not valid"),
        (LimitRule(id="r", accept=("text",)), "'text' is no media type"),
        (LimitRule(id="r", accept=("*/html",)), "'\\*/html' is no media type"),
    ],
)
def test_what_no_rule_may_say(rule: LimitRule, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        check_rule(rule)
    assert faults_of(crawl(rule)).keys() == {"r"}


def test_what_a_rule_may_say() -> None:
    headers = {"X-A": "b\tc ü"}
    check_rule(LimitRule(id="r", delay=0.0, timeout=300.0, recrawl=1.0, headers=headers, accept=("*/*", "a/b+c")))
