from __future__ import annotations

import pytest

from agents.cli.planning import Asked, is_loopback, plan_crawl
from streams.definitions import Recrawl, Scope
from streams.errors import UsageError
from streams.settings import Settings


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:80/", True),
        ("http://127.9.9.9/", True),
        ("http://[::1]/", True),
        ("http://localhost:8000/x", True),
        ("http://shop.localhost/", True),
        ("http://localhost./", True),
        ("http://localhost.example.org/", False),
        ("http://10.0.0.1/", False),
        ("http://example.org/127.0.0.1", False),
    ],
)
def test_loopback_is_known_by_its_literal_name(url, expected):
    assert is_loopback(url) is expected


def test_public_seeds_are_crawled_politely():
    plan, settings, notes = plan_crawl(Asked(), ("https://example.org/a#b", "https://example.org/a"), Settings())
    assert plan.name == "example.org"
    assert plan.seeds == ("https://example.org/a",)
    assert (plan.definition.delay, plan.definition.parallelism, plan.definition.robots) == (0.5, 2, True)
    assert plan.definition.scope == Scope(mode="host", values=("example.org",))
    assert not settings.fetch.allow_private
    assert not notes


def test_seeds_on_loopback_allow_private_addresses_and_say_so():
    plan, settings, notes = plan_crawl(Asked(), ("http://127.0.0.1:8080/", "http://localhost/"), Settings())
    assert (plan.definition.delay, plan.definition.parallelism) == (0.0, 32)
    assert settings.fetch.allow_private
    assert plan.settings["fetch.allow_private"] is True
    assert "private addresses are allowed" in notes[0]


def test_loopback_beside_public_seeds_needs_the_flag():
    seeds = ("https://example.org/", "http://127.0.0.1/")
    with pytest.raises(UsageError, match="is on this machine"):
        plan_crawl(Asked(), seeds, Settings())
    plan, _, notes = plan_crawl(Asked(), seeds, Settings.model_validate({"fetch": {"allow_private": True}}))
    assert plan.definition.delay == 0.5
    assert not notes


def test_what_is_asked_for_wins_over_the_defaults():
    asked = Asked(scope="any", depth=0, limit=3, delay=1.5, parallelism=1, workers=2, name="mine")
    plan, _, _ = plan_crawl(asked, ("http://localhost/",), Settings())
    assert (plan.definition.delay, plan.definition.parallelism) == (1.5, 1)
    assert (plan.definition.depth, plan.definition.limit, plan.definition.id) == (0, 3, "mine")
    assert (plan.named, plan.workers) == (True, 2)


@pytest.mark.parametrize(
    ("asked", "sitemaps", "recrawl"),
    [
        (Asked(), True, None),
        (Asked(no_sitemaps=True), False, None),
        (Asked(recrawl=60.0), True, Recrawl(interval=60.0)),
        (Asked(recrawl=60.0, rounds=2), True, Recrawl(interval=60.0, rounds=2)),
    ],
)
def test_sitemaps_and_recrawls(asked, sitemaps, recrawl):
    plan, _, _ = plan_crawl(asked, ("http://localhost/",), Settings())
    assert (plan.definition.sitemaps, plan.definition.recrawl) == (sitemaps, recrawl)


def test_rounds_without_an_interval_are_refused():
    with pytest.raises(UsageError) as caught:
        plan_crawl(Asked(rounds=2), ("http://localhost/",), Settings())
    assert caught.value.remedy == "Add --recrawl SECONDS."


@pytest.mark.parametrize(
    ("seed", "hint"), [("example.org", "https://example.org"), ("ftp://x/", "https://example.org/")]
)
def test_what_is_no_web_address_is_refused_with_a_hint(seed, hint):
    with pytest.raises(UsageError) as caught:
        plan_crawl(Asked(), (seed,), Settings())
    assert caught.value.remedy.endswith(hint)


def test_budgets() -> None:
    asked = Asked(limit=9, host_limit=3, max_size=1000, duration=60.0)
    definition = plan_crawl(asked, ("https://a.org/",), Settings())[0].definition
    assert (definition.limit, definition.host_limit, definition.max_size, definition.duration) == (9, 3, 1000, 60.0)


def test_a_rule_file_is_the_beginning_and_options_win() -> None:
    said = {"delay": 3.0, "depth": 4, "limit": 9, "user_agent": "x/1", "scope": Scope(mode="any")}
    plan, _, _ = plan_crawl(Asked(rules=said, depth=1), ("https://a.org/",), Settings())
    found = plan.definition
    assert (found.delay, found.depth, found.limit, found.user_agent) == (3.0, 1, 9, "x/1")
    assert (found.parallelism, found.scope) == (2, Scope(mode="any"))
    plan, _, _ = plan_crawl(Asked(rules=said, scope="host"), ("https://a.org/",), Settings())
    assert plan.definition.scope == Scope(mode="host", values=("a.org",))
