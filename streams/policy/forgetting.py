"""The rule that keeps out what `fyke forget` removes, so that no link brings it back."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from msgspec.structs import replace

from streams.definitions import CrawlDefinition, ScopeRule
from streams.policy.patterns import UrlTest, check_pattern, compile_pattern
from streams.policy.urls import hostname, path_query

FORGET: Final = "forget-"
"""How the ids of these rules begin."""


def deny_url(wire: str) -> ScopeRule:
    """Keeps out one URL: its host, and its path and query in any spelling; by any scheme and on any port."""
    path = path_query(wire).replace("*", "%2A").replace("$", "%24")
    return _rule(wire, domain=hostname(wire), path=path + "$")


def deny_host(host: str) -> ScopeRule:
    """Keeps out all URLs of a host (as in a wire URL)."""
    return _rule(host, domain=host)


def deny_prefix(wire: str) -> ScopeRule:
    """Keeps out all URLs whose wire form begins so. Raises `UsageError` for a prefix that is too long for a rule."""
    return _rule(wire, regex="^" + re.escape(wire))


def denied_by(crawl: CrawlDefinition, rule: ScopeRule) -> CrawlDefinition:
    """The crawl with the rule before all others; as it was if it has the rule already."""
    if rule in crawl.scope_rules:
        return crawl
    others = tuple(other for other in crawl.scope_rules if other.id != rule.id)
    return replace(crawl, scope_rules=(rule, *others))


def is_forgotten(crawl: CrawlDefinition, wire: str) -> bool:
    """Whether a URL was forgotten: what comes of it late, such as the page of a second fetch, is dropped."""
    return bool(crawl.scope_rules) and any(matches(wire) for matches in _forgotten(crawl.scope_rules))


@lru_cache(maxsize=256)
def _forgotten(rules: tuple[ScopeRule, ...]) -> tuple[UrlTest, ...]:
    return tuple(compile_pattern(rule) for rule in rules if rule.id.startswith(FORGET) and not rule.allow)


def _rule(what: str, domain: str = "", path: str = "", regex: str = "") -> ScopeRule:
    name = blake2b(what.encode(), digest_size=4).hexdigest()
    rule = ScopeRule(id=FORGET + name, domain=domain, path=path, regex=regex)
    check_pattern(rule)
    return rule
