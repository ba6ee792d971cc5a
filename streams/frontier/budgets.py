"""Budgets of crawls: what their pages and bytes may come to, in all and on each host.

What was spent is derived from rows: in all from the store's counters, on a host from each change of a URL's row,
written into the host's row in the same batch. So nothing is counted twice, whatever is read again. A host's row counts
for those crawls alone that have a budget for each host, and from when they have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streams.definitions import CrawlDefinition
from streams.frontier.hosts import HostQueue
from streams.frontier.rows import HostRow
from streams.messages import CrawlCounts

NEVER = float("inf")
PAGES = "limit"
HOST_PAGES = "limit:host"
HOST_BYTES = "size:host"
ABOUT_PAGES = (PAGES, HOST_PAGES)
"""Budgets that keep out new pages only: what holds a place already is visited all the same."""
NOTHING = CrawlCounts()


def budgeted(crawls: Iterable[CrawlDefinition]) -> frozenset[str]:
    """The crawls with a budget for each host."""
    return frozenset(c.id for c in crawls if c.host_limit is not None or c.host_size is not None)


def deadline(crawl: CrawlDefinition) -> float:
    """Until when a crawl's URLs may be released (ms). A duration counts from when the crawl was made, if known."""
    at = NEVER if crawl.deadline is None else crawl.deadline
    if crawl.duration is None or not crawl.created:
        return at
    return min(at, crawl.created + crawl.duration * 1000)


def over(crawl: CrawlDefinition, pages: int, size: int, now: int) -> str:
    """The budget of a crawl that is used up, "" for none; of several the one that keeps out most."""
    if now >= deadline(crawl):
        return "deadline"
    if crawl.max_size is not None and size >= crawl.max_size:
        return "size"
    return PAGES if crawl.limit is not None and pages >= crawl.limit else ""


def over_on_host(crawl: CrawlDefinition, row: HostRow) -> str:
    """The budget of a crawl for a host that is used up, "" for none; of several the one that keeps out most."""
    pages, size = row.spent.get(crawl.id, (0, 0))
    if crawl.host_size is not None and size >= crawl.host_size:
        return HOST_BYTES
    return HOST_PAGES if crawl.host_limit is not None and pages >= crawl.host_limit else ""


def all_out(crawl: CrawlDefinition, queue: HostQueue) -> bool:
    """Whether all places that a host's budget leaves are out already, should these orders succeed."""
    if crawl.host_limit is None:
        return False
    out = queue.out.get(crawl.id, 0) - queue.revisits.get(crawl.id, 0)
    return queue.row.spent.get(crawl.id, (0, 0))[0] + out >= crawl.host_limit


def pages_of(counts: Mapping[str, CrawlCounts], crawl_id: str) -> int:
    """Pages in a report that count against a crawl's limit."""
    known = counts.get(crawl_id, NOTHING)
    return known.done + known.fetched + known.kept


def part(concurrency: int, mine: int, others: int) -> int:
    """Orders of a crawl that a shard may have out, of `concurrency` in all shards: as its share of the open URLs.

    Without coordination: shards know each other's numbers by their `progress`, which is up to a second old. At least
    one, or a shard with few URLs would never begin; so in all at most one more for each other shard. While a crawl
    begins, and nothing is known of the others, each may have out as many as all together later.
    """
    return max(1, concurrency * mine // max(1, mine + others))
