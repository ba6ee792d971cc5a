"""What a definition means, worked out without the crawler's code: plans use few kinds of rules, so this is short.

Hosts in rules of plans are names without a glob, paths are beginnings, windows are times of each day in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable

from streams.definitions import CrawlDefinition, LimitRule, ScopeRule

DAY_MINUTES = 24 * 60
NEVER = float("inf")


def rule_of(crawl: CrawlDefinition, url: str) -> LimitRule | None:
    """The limit rule that applies to a URL: the first that matches."""
    _, _, host, path = url.split("/", 3)
    return next((r for r in crawl.limits if r.domain in ("", host) and f"/{path}".startswith(r.path)), None)


def delay_of(crawl: CrawlDefinition, url: str) -> float:
    """Seconds between two requests."""
    rule = rule_of(crawl, url)
    return crawl.delay if rule is None or rule.delay is None else rule.delay


def parallelism_of(crawl: CrawlDefinition, url: str) -> int:
    """Requests at a time."""
    rule = rule_of(crawl, url)
    return crawl.parallelism if rule is None or rule.parallelism is None else rule.parallelism


def of_url(crawl: CrawlDefinition, url: str) -> tuple[float, int]:
    """Delay and parallelism of a URL."""
    return delay_of(crawl, url), parallelism_of(crawl, url)


def on_host(crawl: CrawlDefinition, host: str) -> tuple[float, int]:
    """The longest delay and the least parallelism of the rules that can apply to a host, or the kindest of a domain's.

    Which URLs of another crawl wait there a fetcher cannot know, so all of its rules count.
    """
    found: list[tuple[float, int]] = []
    for rule in crawl.limits:
        if rule.domain in ("", host):
            delay = crawl.delay if rule.delay is None else rule.delay
            found.append((delay, rule.parallelism or crawl.parallelism))
            if not rule.path:
                break
    else:
        found.append((crawl.delay, crawl.parallelism))
    return max(delay for delay, _ in found), min(most for _, most in found)


def shut(crawl: CrawlDefinition, url: str, ms: int) -> bool:
    """Whether the time windows of a URL are all shut."""
    rule = rule_of(crawl, url)
    if rule is None or not rule.windows:
        return False
    minute = ms // 60_000 % DAY_MINUTES
    return not any(_within(minute, window) for window in rule.windows)


def forgets(rule: ScopeRule, url: str) -> bool:
    """Whether a rule that `fyke forget` made keeps a URL out."""
    _, _, host, path = url.split("/", 3)
    return host == rule.domain and rule.path in ("", f"/{path}$")


def forgotten(crawl: CrawlDefinition, url: str) -> bool:
    """Whether a URL is to be forgotten."""
    return any(forgets(rule, url) for rule in crawl.scope_rules)


def deadline(crawl: CrawlDefinition) -> float:
    """When nothing more may go out (ms)."""
    return NEVER if crawl.duration is None else crawl.created + crawl.duration * 1000


def bounded(crawl: CrawlDefinition) -> bool:
    """Whether a crawl may end before it has met everything: by a budget, or because somebody cancelled it."""
    budgets = (crawl.limit, crawl.max_size, crawl.host_limit, crawl.host_size, crawl.duration)
    return crawl.result == "cancelled" or any(budget is not None for budget in budgets)


def strictest(crawl: CrawlDefinition, urls: Iterable[str]) -> tuple[float, float]:
    """The longest delay and the least parallelism of some URLs."""
    if not crawl.limits:
        return crawl.delay, crawl.parallelism
    found = list(urls)
    return (
        max((delay_of(crawl, url) for url in found), default=0.0),
        min((parallelism_of(crawl, url) for url in found), default=NEVER),
    )


def _within(minute: int, window: str) -> bool:
    begin, end = (int(time[:2]) * 60 + int(time[3:]) for time in window.split("-"))
    return begin <= minute < end if begin < end else minute >= begin or minute < end
