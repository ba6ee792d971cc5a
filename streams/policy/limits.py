"""Limit rules: how the URLs of a crawl are fetched, compiled once for each version of its definition.

Rules are asked in order and the first that matches decides; what it leaves open stays as the crawl says. A rule that
cannot be used matches nothing, and `faults_of` says why.

Most rules are about hosts alone, and most hosts are met by no rule: which rules can matter is worked out once for each
host, so that a URL of a host without rules about paths costs a look-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from streams.definitions import CrawlDefinition, LimitRule
from streams.errors import UsageError
from streams.policy import urls
from streams.policy.patterns import UrlTest, check_pattern, compile_pattern
from streams.policy.politeness import Limits
from streams.policy.urls import PolitenessMode
from streams.policy.windows import Opening, Windows

ALWAYS: Final = Opening(open=True, until=2**62)
LONGEST_DELAY: Final = 24 * 3600.0
SHORTEST_RECRAWL: Final = 1.0
LONGEST_TIMEOUT: Final = 300.0
"""Seconds. Half of the time after which the frontier takes an order for lost and gives it out again."""

_HOSTS_REMEMBERED: Final = 16_384
_FIELD_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 §5.6.2 token
_NOT_IN_FIELD: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/(?:[A-Za-z0-9!#$&^_.+-]+|\*)|\*/\*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The values that hold for a URL.

    `version`: of the definition. `rule`: id of the rule that set them, "" for the crawl's own.
    `timeout` 0 and `max_body` 0: the fetcher's own; `accept` empty: all media types; `recrawl` None: not visited again.
    """

    version: int
    rule: str = ""
    limits: Limits
    robots: bool
    user_agent: str
    headers: dict[str, str]
    timeout: float = 0.0
    max_body: int
    accept: tuple[str, ...] = ()
    recrawl: float | None
    windows: Windows | None = None

    def opening(self, now: int) -> Opening:
        """Whether the URL may be asked for at `now` (ms)."""
        return ALWAYS if self.windows is None else self.windows.at(now)


@dataclass(frozen=True, slots=True)
class HostLimits:
    """What holds for a host before one knows which of its URLs is next: the strictest of what can apply.

    `windows`: of rules about the whole host. Those of rules about paths hold their own URLs only.
    """

    limits: Limits
    robots: bool
    windows: tuple[Windows, ...]

    def opening(self, now: int) -> Opening:
        """Whether the host may be asked at `now` (ms): only while all of its windows are open."""
        if not self.windows:
            return ALWAYS
        openings = [windows.at(now) for windows in self.windows]
        shut = [opening.until for opening in openings if not opening.open]
        if shut:
            return Opening(open=False, until=max(shut))
        return Opening(open=True, until=min(opening.until for opening in openings))


@dataclass(frozen=True, slots=True)
class Rule:
    """A compiled rule. `fault`: why it matches nothing."""

    written: LimitRule
    test: UrlTest
    values: Effective
    fault: str

    def mismatch(self, url: str) -> str:
        """Why the rule does not apply to a wire URL: `domain`, `path`, `regex`, its fault; "": it does."""
        return self.fault or self.test.mismatch(url)


class LimitRules:
    """The rules of one version of a definition."""

    def __init__(self, definition: CrawlDefinition, politeness: PolitenessMode = "host") -> None:
        self.definition = definition
        self._politeness = politeness
        self.default = _own_values(definition)
        self.rules = tuple(_compiled(rule, self.default) for rule in definition.limits)
        self._usable = tuple(rule for rule in self.rules if not rule.fault)
        self._by_host: dict[str, tuple[Rule, ...]] = {}
        self._limits: dict[str, HostLimits] = {}

    def for_url(self, url: str) -> Effective:
        """The values that hold for a wire URL."""
        if not self._usable:
            return self.default
        host = urls.hostname(url).removesuffix(".")
        for rule in self._about(host):
            if rule.test.whole_hosts or not rule.test.beyond_host(url):
                return rule.values
        return self.default

    def for_host(self, key: str) -> HostLimits:
        """The strictest of what can apply to a politeness key: a host, or a registrable domain with all its hosts."""
        known = self._limits.get(key)
        if known is None:
            if len(self._limits) >= _HOSTS_REMEMBERED:
                self._limits.clear()
            known = self._limits[key] = self._strictest(key)
        return known

    def tried(self, url: str) -> list[tuple[Rule, str]]:
        """Every rule up to the one that applies, and why it does not; "" for the one that does."""
        tried = []
        for rule in self.rules:
            reason = rule.mismatch(url)
            tried.append((rule, reason))
            if not reason:
                break
        return tried

    def _about(self, host: str) -> tuple[Rule, ...]:
        """The rules that can apply to URLs of a host, up to the one that surely does."""
        known = self._by_host.get(host)
        if known is None:
            if len(self._by_host) >= _HOSTS_REMEMBERED:
                self._by_host.clear()
            known = self._by_host[host] = tuple(_until_certain(self._usable, host))
        return known

    def _possible(self, key: str) -> tuple[Rule, ...]:
        """The rules that can apply to URLs of a politeness key, up to the one that surely does."""
        if self._politeness == "host":
            return self._about(key)
        found = [rule for rule in self._usable if rule.test.meets_site(key)]
        certain = (number for number, rule in enumerate(found, 1) if rule.test.whole_hosts and not rule.test.domain)
        return tuple(found[: next(certain, len(found))])

    def _strictest(self, key: str) -> HostLimits:
        rules = self._possible(key)
        values = [rule.values for rule in rules]
        if not rules or not rules[-1].test.whole_hosts or (self._politeness == "domain" and rules[-1].test.domain):
            values.append(self.default)
        windows = (rule.values.windows for rule in rules if rule.test.whole_hosts)
        return HostLimits(
            limits=strictest(each.limits for each in values),
            robots=any(each.robots for each in values),
            windows=tuple(each for each in windows if each is not None),
        )


class RuleBook:
    """The compiled rules of the definitions in force: compiled when first asked for, and again after a change."""

    def __init__(self, politeness: PolitenessMode = "host") -> None:
        self._politeness = politeness
        self._compiled: dict[str, LimitRules] = {}

    def of(self, definition: CrawlDefinition) -> LimitRules:
        """The rules of a definition."""
        known = self._compiled.get(definition.id)
        if known is None or known.definition is not definition:
            known = self._compiled[definition.id] = LimitRules(definition, self._politeness)
        return known


def check_rule(rule: LimitRule) -> None:
    """Raise `UsageError` for a rule that cannot be used, for whoever writes it."""
    check_pattern(rule)
    Windows(rule.windows)
    for name, seconds, most in (
        ("delay", rule.delay, LONGEST_DELAY),
        ("random_delay", rule.random_delay, LONGEST_DELAY),
        ("timeout", rule.timeout, LONGEST_TIMEOUT),
    ):
        if seconds is not None and seconds > most:
            raise UsageError(f"{name} is {seconds:g} s", f"At most {most:g} s.")
    if rule.recrawl is not None and rule.recrawl < SHORTEST_RECRAWL:
        raise UsageError(f"recrawl is {rule.recrawl:g} s", f"At least {SHORTEST_RECRAWL:g} s: a URL needs a rest.")
    for field, value in (*rule.headers.items(), ("User-Agent", rule.user_agent)):
        if not _FIELD_NAME.fullmatch(field) or _NOT_IN_FIELD.search(value):
            raise UsageError(f"the header {field!r} is not valid", "A name is letters, digits and -; a value one line.")
    for each in rule.accept:
        if not _MEDIA_TYPE.fullmatch(each):
            raise UsageError(f"accept: {each!r} is no media type", "Write text/html, or text/* for all of a kind.")


def faults_of(definition: CrawlDefinition) -> dict[str, str]:
    """Why rules of a definition match nothing, by their ids."""
    faults = {rule.id: fault for rule in definition.scope_rules if (fault := compile_pattern(rule).fault)}
    return faults | {rule.id: fault for rule in definition.limits if (fault := _fault(rule))}


def strictest(limits: Iterable[Limits]) -> Limits:
    """Limits that keep all of these."""
    found = list(limits)
    if len(found) == 1:
        return found[0]
    return Limits(
        delay=max((each.delay for each in found), default=0.0),
        parallelism=max(1, min((each.parallelism for each in found), default=1)),
        random_delay=max((each.random_delay for each in found), default=0.0),
    )


def slowed(limits: Limits, delay: float) -> Limits:
    """The limits with at least this delay."""
    return replace(limits, delay=delay) if delay > limits.delay else limits


def with_own(headers: dict[str, str], own: dict[str, str]) -> dict[str, str]:
    """A rule's request headers, except where the seed brings its `own`. Names are the same in any case."""
    if not headers or not own:
        return headers or own
    taken = {name.lower() for name in own}
    return {name: value for name, value in headers.items() if name.lower() not in taken} | own


def _until_certain(rules: Iterable[Rule], host: str) -> Iterator[Rule]:
    for rule in rules:
        if rule.test.on_host is None or rule.test.on_host(host):
            yield rule
            if rule.test.whole_hosts:
                return


def _own_values(definition: CrawlDefinition) -> Effective:
    return Effective(
        version=definition.version,
        limits=Limits(definition.delay, max(1, definition.parallelism)),
        robots=definition.robots,
        user_agent=definition.user_agent,
        headers={},
        max_body=definition.max_body,
        recrawl=definition.recrawl.interval if definition.recrawl else None,
    )


def _fault(rule: LimitRule) -> str:
    try:
        check_rule(rule)
    except UsageError as error:
        return error.problem
    return ""


def _compiled(rule: LimitRule, default: Effective) -> Rule:
    fault = _fault(rule)
    values = Effective(
        version=default.version,
        rule=rule.id,
        limits=Limits(
            delay=default.limits.delay if rule.delay is None else rule.delay,
            parallelism=rule.parallelism or default.limits.parallelism,
            random_delay=rule.random_delay or 0.0,
        ),
        robots=default.robots if rule.robots is None else rule.robots,
        user_agent=rule.user_agent or default.user_agent,
        headers=rule.headers,
        timeout=rule.timeout or 0.0,
        max_body=rule.max_body or default.max_body,
        accept=rule.accept,
        recrawl=default.recrawl if rule.recrawl is None else rule.recrawl,
        windows=Windows(rule.windows) if rule.windows and not fault else None,
    )
    return Rule(rule, compile_pattern(rule), values, fault)
