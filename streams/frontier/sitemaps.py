"""Sitemaps that robots.txt names become candidates, once for each crawl and each time the file was fetched.

A sitemap is a URL with a row like any other, so none is read twice, loops end, and the crawl does not end before the
last one is read. But it is no page: it makes no record and does not count against limits of pages. Its depth is the
number of indexes that led to it. robots.txt speaks for its site, so it may name sitemaps on any host; whether the URLs
they list belong to the crawl is decided by its scope as for all links.
"""

from __future__ import annotations

from streams.definitions import CrawlDefinition
from streams.frontier.hosts import HostQueue
from streams.frontier.queues import HostQueues
from streams.frontier.turn import Turn
from streams.messages import Candidate
from streams.policy.keys import canonical_by
from streams.policy.urls import fingerprint, origin

NAMED = 100
"""Sitemaps of one robots.txt that are read: a large site has an index."""


def tell(turn: Turn, queues: HostQueues, queue: HostQueue, crawl: CrawlDefinition, url: str) -> None:
    """Make candidates of the sitemaps of a waiting URL's origin that its crawl was not told of yet.

    Only of origins that the crawl has URLs of: others of the host, or of its domain, may be none of its business. While
    that URL waits the crawl cannot end meanwhile. What sitemaps list is one link away from a seed.
    """
    if not crawl.sitemaps or crawl.depth == 0:
        return
    site = origin(url)
    rules, told = queue.row.robots.get(site), queue.row.sitemaps
    key = f"{crawl.id}\0{site}"
    if rules is None or not rules.sitemaps or told.get(key) == rules.fetched:
        return
    turn.candidates += [_candidate(each, site, crawl) for each in rules.sitemaps[:NAMED]]
    queues.keep(turn, queue, sitemaps={**told, key: rules.fetched})


def _candidate(url: str, site: str, crawl: CrawlDefinition) -> Candidate:
    return Candidate(
        url=url, fingerprint=fingerprint(crawl.id, canonical_by(crawl.keys)(url)), crawl=crawl.id,
        parent=f"{site}/robots.txt", source="sitemap",
    )  # fmt: skip
