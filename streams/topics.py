"""One row per topic: its key, who writes and reads it, how long it is kept. Provisioned by `fyke topics apply`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from zlib import crc32

HOUR = 3600 * 1000
DAY = 24 * HOUR
FOREVER = -1
SMALL_MESSAGE = 1_048_588
"""Bytes of the largest batch that a broker takes by default."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `retention` in ms (FOREVER: trimmed below the reader's commit); `single`: one partition, read by all."""

    name: str
    key: str
    carries: str
    writers: str
    readers: str
    retention: int
    cleanup: Literal["delete", "compact"] = "delete"
    single: bool = False
    large: bool = False
    stamped: bool = False  # the broker's time on every record instead of the producer's

    def configs(self, max_message: int) -> dict[str, str]:
        """Topic settings for the broker; `max_message` in bytes applies to topics that carry bodies.

        The others take what a broker takes by default, also where its own default was raised.
        """
        settings: dict[str, str] = {"cleanup.policy": self.cleanup}
        if self.cleanup == "compact":
            settings |= {"min.compaction.lag.ms": str(HOUR), "delete.retention.ms": str(7 * DAY)}
        else:
            settings["retention.ms"] = str(self.retention)
        if self.stamped:
            settings["message.timestamp.type"] = "LogAppendTime"
        settings["max.message.bytes"] = str(max_message if self.large else SMALL_MESSAGE)
        return settings


URLS = Topic("urls", "any", "seeds: JSON, a bare URL, or an array of seeds", "anyone", "intake", FOREVER)
INBOX = Topic("inbox", "shard (explicit partition)", "candidates, packs of links, outcomes, commands",
              "intake, frontier, fetcher, parser", "frontier", FOREVER, large=True, stamped=True)  # fmt: skip
FETCHES = Topic("fetches", "politeness key", "one fetch order", "frontier", "fetcher", DAY)
PAGES = Topic(
    "pages",
    "URL",
    "one page: body, facts in headers; or what is forgotten",
    "fetcher",
    "parser, anyone",
    DAY,
    large=True,
)
RECORDS = Topic(
    "records", "URL", "one parsed record, or what is forgotten", "parser", "exporter, anyone", 7 * DAY, large=True
)
FAILURES = Topic(
    "failures", "URL", "one failure, or what is forgotten", "frontier, any agent", "exporter, anyone", 30 * DAY
)
CRAWLS = Topic("crawls", "crawl id", "crawl definitions", "command line, frontier", "every worker", FOREVER,
               cleanup="compact", single=True)  # fmt: skip
PROGRESS = Topic("progress", "shard", "the frontier's counters", "frontier", "frontier, command line", FOREVER,
                 cleanup="compact", single=True, stamped=True)  # fmt: skip
ROWS = "rows"
"""The frontier's table; Faust names its changelog after it."""
DEATHS = Topic("deaths", "none", "what a worker was at when it died", "fetcher, parser", "fetcher, parser", DAY,
               single=True)  # fmt: skip
CHANGELOG = Topic("frontier-rows-changelog", "row key", "the frontier's rows", "frontier", "frontier", FOREVER,
                  cleanup="compact", large=True)  # fmt: skip
DEPLOYMENT = Topic("deployment", "fixed", "what is pinned with the topics", "topics apply", "every worker", FOREVER,
                   cleanup="compact", single=True)  # fmt: skip

ALL = (URLS, INBOX, FETCHES, PAGES, RECORDS, FAILURES, CRAWLS, PROGRESS, DEATHS, CHANGELOG, DEPLOYMENT)

BROADCAST_GROUP = "frontier.broadcast"
"""Has no members: commits what was reported of records of `crawls` and `progress` that cannot be read."""
EXPORTER_GROUPS = "exporter."
"""Begins the group of the exporter of one crawl that `fyke crawl` runs."""
GROUPS = {
    "frontier": (URLS, INBOX), "fetcher": (FETCHES,), "parser": (PAGES,), "exporter": (RECORDS, FAILURES),
    BROADCAST_GROUP: (CRAWLS, PROGRESS), EXPORTER_GROUPS + "*": (RECORDS, FAILURES),
}  # fmt: skip
"""Every consumer group, without the deployment's prefix, and the topics of which it commits offsets."""


def shard_of(key: str, shards: int) -> int:
    """The partition of a politeness key (topics `inbox`, `fetches` and the changelog): CRC-32 modulo their count.

    `www.` does not count, so that a host with and without it are in one shard: a crawl may take both for one (`Keys`).
    """
    while key.startswith("www."):
        key = key[4:]
    return crc32(key.encode()) % shards


def page_partition(url: str, partitions: int) -> int:
    """The partition of a page and its record: by URL, so that the pages of one host spread over all parsers."""
    return crc32(url.encode()) % partitions
