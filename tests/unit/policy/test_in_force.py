"""Whose rule holds, by the newest definitions: of an order's own crawl, of others on the host, of the host itself."""

from __future__ import annotations

from typing import Any

import pytest

from streams.definitions import CrawlDefinition, LimitRule
from streams.messages import Basis, FetchOrder
from streams.policy.in_force import NO_BASIS, HostAsks, InForce, Terms, terms_of
from streams.policy.politeness import Limits
from tests.unit.frontier.rig import crawl

URL = "http://h.example/x"


@pytest.mark.parametrize(
    ("crawls", "limits"),
    [
        ([], (0.0, 1)),
        ([crawl("a", delay=1.0, parallelism=3)], (1.0, 3)),
        ([crawl("a", delay=1.0, parallelism=3), crawl("b", delay=0.5, parallelism=2)], (1.0, 2)),
        ([crawl("a", parallelism=0)], (0.0, 1)),
        ([crawl("a", robots=True)], (7.0, 2)),
        ([crawl("a", robots=True, delay=9.0)], (9.0, 2)),
        ([crawl("a"), crawl("b", robots=True)], (7.0, 2)),
        ([crawl("a", adaptive_delay=True)], (8.0, 2)),
        ([crawl("a"), crawl("b", adaptive_delay=True)], (8.0, 2)),
        ([crawl("a", adaptive_delay=True, delay=9.0)], (9.0, 2)),
    ],
)
def test_the_strictest_limits_hold(crawls, limits) -> None:
    in_force = InForce({definition.id: definition for definition in crawls})
    found = in_force.on_host("h.example", ["a", "b", "unknown"], HostAsks(crawl_delay=7.0, learned=8.0))
    assert found == Limits(*limits)


def a(**fields: Any) -> CrawlDefinition:
    """The order's own crawl, in the version that the order was released under unless it says otherwise."""
    return crawl("a", **{"version": 4, **fields})


def b(**fields: Any) -> CrawlDefinition:
    """Another crawl with URLs on the host."""
    return crawl("b", **{"version": 2, **fields})


def terms(delay: float = 1.2, parallelism: int = 1, basis: Basis | None = NO_BASIS, **facts: Any) -> Terms:
    """Terms of an order of version 4 that was released with this delay and parallelism."""
    order = FetchOrder(crawl="a", url=URL, fingerprint=bytes(16), host="h.example", shard=0, epoch=0, visit=1,
                       attempt=0, delay=delay, parallelism=parallelism, rules=4, basis=basis, **facts)  # fmt: skip
    return terms_of(order, URL, 0.0)


def beside(**facts: Any) -> Basis:
    return Basis(**facts)


B = {"b": 2}
SLOW = LimitRule(id="slow", domain="h.example", delay=3.0)


@pytest.mark.parametrize(
    ("order", "crawls", "limits"),
    [
        # the own rule alone
        (terms(), [a(delay=1.2)], (1.2, 2)),
        (terms(), [a(version=5, delay=0.1)], (0.1, 2)),
        (terms(), [a(version=5, delay=9.0)], (9.0, 2)),
        (terms(parallelism=1), [a(version=5, parallelism=6)], (0.0, 6)),
        (terms(parallelism=6), [a(version=5, parallelism=1)], (0.0, 1)),
        (terms(), [a(version=5, delay=0.1, limits=(SLOW,))], (3.0, 2)),
        # what one has not read yet makes nothing kinder
        (terms(), [a(version=3, delay=0.1)], (1.2, 1)),
        (terms(), [a(version=3, delay=9.0)], (9.0, 1)),
        (terms(), [], (1.2, 1)),
        (terms(basis=beside(others=B)), [a(version=5)], (1.2, 1)),
        (terms(basis=beside(others=B)), [a(version=5), b(version=1)], (1.2, 1)),
        # an order of an earlier release does not say what it is made of
        (terms(basis=None), [a(version=5, delay=0.1)], (1.2, 1)),
        (terms(basis=None), [a(version=5, delay=9.0)], (9.0, 1)),
        # another crawl on the host: the strictest by the newest rules of both
        (terms(basis=beside(others=B)), [a(version=5, delay=0.1), b(delay=1.2)], (1.2, 2)),
        (terms(basis=beside(others=B)), [a(version=5, delay=0.1), b(delay=0.7, parallelism=1)], (0.7, 1)),
        (terms(basis=beside(others=B)), [a(delay=0.1), b(version=3, delay=0.2)], (0.2, 2)),
        (terms(basis=beside(others=B)), [a(delay=0.1), b(version=3, delay=5.0)], (5.0, 2)),
        (terms(basis=beside(others=B)), [a(delay=0.1), b(delay=0.2, limits=(SLOW,))], (3.0, 2)),
        (terms(basis=beside(others=B)), [a(delay=0.1), b(version=3, delay=9.0, state="paused")], (9.0, 2)),
        # Crawl-delay: of a crawl that obeys robots.txt, by the newest rules
        (terms(basis=beside(crawl_delay=7.0)), [a(version=5, delay=0.1, robots=True)], (7.0, 2)),
        (terms(basis=beside(crawl_delay=7.0)), [a(version=5, delay=9.0, robots=True)], (9.0, 2)),
        (terms(7.0, basis=beside(crawl_delay=7.0)), [a(version=5, delay=0.1)], (0.1, 2)),
        (terms(basis=beside(others=B, crawl_delay=7.0)), [a(delay=0.1), b(robots=True)], (7.0, 2)),
        # a learned delay: of a crawl that lets answers teach it
        (terms(basis=beside(learned=8.0)), [a(version=5, adaptive_delay=True)], (8.0, 2)),
        (terms(8.0, basis=beside(learned=8.0)), [a(version=5)], (0.0, 2)),
        (terms(basis=beside(others=B, learned=8.0)), [a(), b(adaptive_delay=True)], (8.0, 2)),
    ],
)  # fmt: skip
def test_limits_of_an_order_by_the_newest_rules(
    order: Terms, crawls: list[CrawlDefinition], limits: tuple[float, int]
) -> None:
    assert InForce({definition.id: definition for definition in crawls}).limits(order) == Limits(*limits)


def test_of_a_domain_any_host_may_be_meant() -> None:
    crawls = {"a": a(delay=0.1), "b": b(delay=0.1, limits=(LimitRule(id="w", domain="www.h.example", delay=4.0),))}
    order = terms(basis=beside(others=B))
    assert InForce(crawls).limits(order).delay == 0.1
    assert InForce(crawls, "domain").limits(terms(basis=beside(others=B))).delay == 4.0


def test_the_random_delay_is_the_newest_and_the_share_of_it_stays() -> None:
    crawls = {"a": a(limits=(LimitRule(id="r", delay=1.0, random_delay=4.0),))}
    order = terms()
    order.jitter = 0.25
    in_force = InForce(crawls)
    assert in_force.limits(order) == Limits(1.0, 2, 4.0, 0.25)
    crawls["a"] = a(version=5, limits=(LimitRule(id="r", delay=0.5, random_delay=2.0),))
    assert in_force.limits(order) == Limits(0.5, 2, 2.0, 0.25)
    assert in_force.limits(order) is in_force.limits(order), "worked out once for each version"


def test_a_basis_names_the_crawls_that_are_known_and_what_the_host_asks_for() -> None:
    in_force = InForce({"a": a(), "b": b()})
    assert in_force.basis([], HostAsks()) is NO_BASIS
    assert in_force.basis(["unknown"], HostAsks()) is NO_BASIS
    assert in_force.basis(["b", "unknown"], HostAsks(1.0, 2.0)) == Basis(others={"b": 2}, crawl_delay=1.0, learned=2.0)
