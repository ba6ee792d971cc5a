from __future__ import annotations

from streams.definitions import CrawlDefinition, LimitRule, Recrawl
from streams.policy.comparison import Asked, Kept, compare, described
from streams.policy.limits import LimitRules

DAY = 24 * 3_600_000
OLD = CrawlDefinition(id="c", delay=0.5, limits=(LimitRule(id="a", domain="a.org", delay=2.0),))


def asked(*paths: str, at: int = 0) -> list[Asked]:
    return [Asked(f"http://{path}", 1, at) for path in paths]


def all_in(_url: str, _depth: int) -> str:
    return ""


def no_out(url: str, _depth: int) -> str:
    return "deny:x" if url.endswith("out") else ""


def no_depth(url: str, _depth: int) -> str:
    return "depth" if url.endswith("out") else ""


def changes(rules: CrawlDefinition, orders: list[Asked], old: Kept = all_in, new: Kept = all_in) -> dict[str, int]:
    found = compare(orders, LimitRules(OLD), LimitRules(rules), old, new)
    assert found.orders == len(orders)
    return {what: change.count for what, change in found.changes.items()}


def test_the_same_rules_change_nothing() -> None:
    orders = asked("a.org/", "b.org/")
    found = compare(orders, LimitRules(OLD), LimitRules(OLD), all_in, all_in)
    assert (found.orders, found.changed, found.changes) == (2, 0, {})
    assert found.by_rule == {"a": 1, "": 1}


def test_values_that_differ_are_counted_with_examples() -> None:
    new = CrawlDefinition(id="c", delay=1.0, limits=(LimitRule(id="a", domain="a.org", delay=2.0, timeout=3.0),))
    orders = asked("a.org/", *(f"b.org/{i}" for i in range(9)), "b.org/0")
    found = compare(orders, LimitRules(OLD), LimitRules(new), all_in, all_in)
    assert (found.changed, set(found.changes)) == (11, {"timeout: 0 → 3", "delay: 0.5 → 1"})
    change = found.changes["delay: 0.5 → 1"]
    assert (change.count, change.examples) == (10, ["http://b.org/0", "http://b.org/1", "http://b.org/2"])


def test_every_value_has_words() -> None:
    rule = LimitRule(
        id="r", delay=0.0, random_delay=1.5, parallelism=1, robots=False, user_agent="x/1", headers={"A": "b"},
        timeout=3.0, max_body=1000, accept=("text/html", "text/*"), recrawl=60.0, windows=("Mon 10:00-11:00",),
    )  # fmt: skip
    new = CrawlDefinition(id="c", limits=(rule,))
    assert described(LimitRules(new).for_url("http://b.org/")) == {
        "delay": "0", "random_delay": "1.5", "parallelism": "1", "robots": "no", "user_agent": "x/1", "headers": "A: b",
        "timeout": "3", "max_body": "1000", "accept": "text/html, text/*", "recrawl": "60",
    }  # fmt: skip
    assert described(LimitRules(OLD).for_url("http://b.org/")) == {
        "delay": "0.5", "random_delay": "0", "parallelism": "2", "robots": "yes", "headers": "none", "accept": "all",
        "user_agent": "as the workers are set", "timeout": "as the workers are set",
        "max_body": "as the workers are set", "recrawl": "no",
    }  # fmt: skip
    assert len(changes(new, asked("b.org/"))) == 11  # all of them, and the window


def test_time_windows_count_at_the_time_of_the_order() -> None:
    new = CrawlDefinition(id="c", delay=0.5, limits=(*OLD.limits, LimitRule(id="w", windows=("Sat,Sun",))))
    thursday, saturday = 0, 2 * DAY  # 1970-01-01 was a Thursday
    orders = [*asked("b.org/", at=thursday), *asked("b.org/", at=saturday)]
    assert changes(new, orders) == {"ordered outside of its time window": 1}


def test_what_another_scope_keeps_out() -> None:
    orders = asked("b.org/in", "b.org/out")
    assert changes(OLD, orders, new=no_out) == {"kept out by deny:x": 1}
    assert changes(OLD, orders, old=no_out) == {"no longer kept out by deny:x": 1}
    assert changes(OLD, orders, old=no_out, new=no_depth) == {}


def test_recrawl_intervals_count() -> None:
    new = CrawlDefinition(id="c", delay=0.5, limits=OLD.limits, recrawl=Recrawl(interval=3600.0))
    assert changes(new, asked("b.org/")) == {"recrawl: none → 3600": 1}
