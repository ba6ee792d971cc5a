"""Fetch orders: what a row, its host and its crawl say, put together for the fetcher."""

from __future__ import annotations

from hashlib import blake2b

from streams.frontier.released import Out
from streams.frontier.rows import UrlRow
from streams.messages import Basis, FetchOrder
from streams.policy.limits import Effective, with_own
from streams.policy.politeness import Limits

Pace = tuple[Limits, Basis]
"""The limits in force for an order, of all crawls on its host, and what they are made of."""

TRACEPARENT_LENGTH = len("00-") + 32 + len("-") + 16 + len("-01")


def page_order(
    row: UrlRow, key: bytes, pace: Pace, values: Effective, *, shard: int, epoch: int, robots: str, now: int
) -> FetchOrder:
    """The order for a waiting URL, by the `values` of its rule."""
    limits, basis = pace
    conditional = row.visit > 1
    return FetchOrder(
        crawl=row.crawl, url=row.url, fingerprint=key, host=row.host, shard=shard, epoch=epoch, visit=row.visit,
        attempt=row.attempt, depth=row.depth, priority=row.priority, parent=row.parent, via=row.via,
        headers=with_own(values.headers, row.headers), meta=row.meta, delay=limits.delay,
        parallelism=limits.parallelism, random_delay=limits.random_delay, basis=basis, rules=values.version,
        rule=values.rule, robots=robots, user_agent=values.user_agent, max_body=values.max_body, timeout=values.timeout,
        accept=values.accept if row.source == "page" else (), source=row.source,
        etag=row.etag if conditional else "", last_modified=row.last_modified if conditional else "", released=now,
        traceparent=traceparent(row, key),
    )  # fmt: skip


def robots_order(
    url: str, key: bytes, out: Out, pace: Pace, values: Effective, *, shard: int, epoch: int, now: int
) -> FetchOrder:
    """The order for an origin's robots.txt, or for where on another host it was redirected to; `key` stands for it.

    `out.visit` counts the redirects, `out.attempt` the probes: so each order has an identity of its own.
    """
    limits, basis = pace
    return FetchOrder(
        kind="robots", crawl=out.crawl, url=url, fingerprint=key, host=out.host, shard=shard,
        epoch=epoch, visit=out.visit, attempt=out.attempt, parent=out.origin, delay=limits.delay,
        parallelism=limits.parallelism, random_delay=limits.random_delay, basis=basis, rules=values.version,
        rule=values.rule, user_agent=values.user_agent, timeout=values.timeout, released=now,
    )  # fmt: skip


def robots_key(origin: str) -> bytes:
    """What stands for an origin's robots.txt among the orders that are out."""
    return blake2b(b"robots\0" + origin.encode(), digest_size=16).digest()


def guest_key(origin: str) -> bytes:
    """The same on the host that an origin's robots.txt was redirected to: both may belong to one shard."""
    return blake2b(b"guest\0" + origin.encode(), digest_size=16).digest()


def traceparent(row: UrlRow, key: bytes) -> str:
    """W3C Trace Context (level 1, §3.2) of an order: one trace per URL and visit, unless the seed brought one."""
    span = blake2b(b"%b%d.%d" % (key, row.visit, row.attempt), digest_size=8).hexdigest()
    if len(row.traceparent) == TRACEPARENT_LENGTH:
        return f"{row.traceparent[:36]}{span}{row.traceparent[-3:]}"
    # The fingerprint is a hash already; the visit is stirred into its last four bytes.
    trace = key[:12] + ((int.from_bytes(key[12:], "big") + row.visit) & 0xFFFFFFFF).to_bytes(4, "big")
    return f"00-{trace.hex()}-{span}-00"
