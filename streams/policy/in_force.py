"""Which limits are in force for a host's requests: those of all crawls with URLs there, and what the host asks for.

Frontier and fetcher work them out by the same rules, each from the definitions it has read: the frontier to pace its
orders, the fetcher once more at the moment of connecting. An order says what its limits were made of (`Basis`), so that
the fetcher can also obey a rule that has become kinder since, without forgetting what others ask for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from streams.definitions import CrawlDefinition
from streams.messages import Basis, FetchOrder
from streams.policy.limits import Effective, HostLimits, RuleBook, slowed, strictest
from streams.policy.politeness import Limits
from streams.policy.urls import PolitenessMode

NO_BASIS = Basis()


class HostAsks(NamedTuple):
    """The delays (seconds) that a host itself asks for: in its robots.txt, and by the way it answers."""

    crawl_delay: float = 0.0
    learned: float = 0.0

    def delay(self, *, robots: bool, adaptive: bool) -> float:
        """The delay for a crawl that obeys robots.txt, or that lets answers teach it, or both."""
        return max(self.crawl_delay if robots else 0.0, self.learned if adaptive else 0.0)


@dataclass(slots=True)
class Terms:
    """What the limits of a request follow from, kept for as long as they matter to its host.

    `ordered`: as the frontier saw them, under version `rules` of its crawl. `jitter`: the request's share of a random
    delay. `limits` are those of the definitions `seen` last.
    """

    crawl: str
    url: str
    host: str
    rules: int
    ordered: Limits
    basis: Basis | None
    jitter: float = 0.0
    limits: Limits = field(default_factory=Limits)
    seen: tuple[CrawlDefinition | None, ...] = ()


def terms_of(order: FetchOrder, url: str, jitter: float) -> Terms:
    """The terms of a request for an order. `url`: its own, or one it was redirected to within its host."""
    ordered = Limits(order.delay, max(1, order.parallelism), order.random_delay)
    return Terms(order.crawl, url, order.host, order.rules, ordered, order.basis, jitter)


class InForce:
    """Limits by the definitions as they are now."""

    def __init__(self, crawls: Mapping[str, CrawlDefinition], politeness: PolitenessMode = "host") -> None:
        self.rules = RuleBook(politeness)
        self._crawls = crawls

    def on_host(self, host: str, crawl_ids: Collection[str], asks: HostAsks) -> Limits:
        """Limits on a host with URLs of these crawls: the strictest of their rules, and what the host asks for."""
        found = self._rules_of(host, crawl_ids)
        robots = any(each.robots for each in found)
        delay = asks.delay(robots=robots, adaptive=any(map(self._adaptive, crawl_ids)))
        return slowed(strictest(each.limits for each in found), delay)

    def for_any_url(self, host: str, crawl_ids: Collection[str], asks: HostAsks) -> tuple[Limits, Basis]:
        """Limits for what is asked on behalf of all crawls on a host, such as its robots.txt, and their basis."""
        return self.on_host(host, crawl_ids, asks), self.basis(crawl_ids, asks)

    def for_url(
        self, crawl: CrawlDefinition, values: Effective, host: str, others: Collection[str], asks: HostAsks
    ) -> Limits:
        """Limits for a URL: those of its own rule, and the strictest of other crawls with URLs on its host."""
        own = slowed(values.limits, asks.delay(robots=values.robots, adaptive=crawl.adaptive_delay))
        return strictest([own, self.on_host(host, others, asks)]) if others else own

    def basis(self, others: Iterable[str], asks: HostAsks) -> Basis:
        """What limits are made of beside the rule of their URL."""
        versions = {name: crawl.version for name in others if (crawl := self._crawls.get(name)) is not None}
        if not versions and not any(asks):
            return NO_BASIS
        return Basis(others=versions, crawl_delay=asks.crawl_delay, learned=asks.learned)

    def limits(self, terms: Terms) -> Limits:
        """Limits for a request by the newest definitions that are known.

        Where the frontier has read a newer one, or an order of an earlier release says no basis, what was ordered
        holds, too: nothing becomes kinder by what one does not know.
        """
        names = (terms.crawl, *terms.basis.others) if terms.basis is not None else (terms.crawl,)
        seen = tuple(map(self._crawls.get, names))
        if seen != terms.seen:
            terms.seen = seen
            terms.limits = replace(self._newest(terms), jitter=terms.jitter)
        return terms.limits

    def _newest(self, terms: Terms) -> Limits:
        crawl, basis = self._crawls.get(terms.crawl), terms.basis
        if crawl is None:
            return terms.ordered
        values = self.rules.of(crawl).for_url(terms.url)
        if basis is None:
            return strictest([terms.ordered, values.limits])
        asks = HostAsks(basis.crawl_delay, basis.learned)
        newest = self.for_url(crawl, values, terms.host, basis.others, asks)
        known = crawl.version >= terms.rules and all(self._knows(*other) for other in basis.others.items())
        return newest if known else strictest([terms.ordered, newest])

    def _knows(self, crawl_id: str, version: int) -> bool:
        crawl = self._crawls.get(crawl_id)
        return crawl is not None and crawl.version >= version

    def _adaptive(self, crawl_id: str) -> bool:
        crawl = self._crawls.get(crawl_id)
        return crawl is not None and crawl.adaptive_delay

    def _rules_of(self, host: str, crawl_ids: Iterable[str]) -> list[HostLimits]:
        crawls = [crawl for crawl_id in crawl_ids if (crawl := self._crawls.get(crawl_id)) is not None]
        return [self.rules.of(crawl).for_host(host) for crawl in crawls]
