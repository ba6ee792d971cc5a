"""Sitemaps that robots.txt names become candidates, once for each crawl and each time the file was fetched.

A sitemap is a URL with a row like any other, so none is read twice, loops end, and the crawl does not end before the
last one is read. But it is no page: it makes no record and does not count against limits of pages. Its depth is the
number of indexes that led to it. robots.txt speaks for its site, so it may name sitemaps on any host; whether the URLs
they list belong to the crawl is decided by its scope as for all links.
"""

from __future__ import annotations

from streams.definitions import CrawlDefinition
from streams.frontier.rows import HostRow
from streams.messages import Candidate
from streams.policy.keys import canonical_by
from streams.policy.urls import fingerprint

NAMED = 100
"""Sitemaps of one robots.txt that are read: a large site has an index."""


def wants(crawl: CrawlDefinition) -> bool:
    """Whether a crawl reads sitemaps: what they list is one link away from a seed."""
    return crawl.sitemaps and crawl.depth != 0


def named(row: HostRow, crawl: CrawlDefinition, origin: str) -> tuple[list[Candidate], dict[str, int]]:
    """The sitemaps of an origin that this crawl was not told of yet, and what the host row then remembers of that.

    Only of origins that the crawl has URLs of: others of the host, or of its domain, may be none of its business.
    """
    rules, told = row.robots.get(origin), row.sitemaps
    key = f"{crawl.id}\0{origin}"
    if rules is None or not rules.sitemaps or told.get(key) == rules.fetched:
        return [], told
    found = [_candidate(url, origin, crawl) for url in rules.sitemaps[:NAMED]]
    return found, {**told, key: rules.fetched}


def _candidate(url: str, origin: str, crawl: CrawlDefinition) -> Candidate:
    return Candidate(
        url=url, fingerprint=fingerprint(crawl.id, canonical_by(crawl.keys)(url)), crawl=crawl.id,
        parent=f"{origin}/robots.txt", source="sitemap",
    )  # fmt: skip
