"""What messages in the inbox name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streams import messages as m


class Arrival(NamedTuple):
    """Where a URL was named first: a place in a shard's inbox, and on which page; "" for a seed."""

    shard: int
    offset: int
    cause: str


def named_in(message: m.Inbox) -> Iterator[tuple[bytes, str, str, str]]:
    """Key, crawl and URL of whatever a message names, and the page on which it was found."""
    if isinstance(message, m.Candidates):
        for item in message.items:
            yield item.fingerprint, item.crawl, item.url, item.via[-1] if item.via else item.parent
    elif isinstance(message, m.Links):
        keys, parents = message.fingerprints, [each.url for each in message.parents for _ in range(each.count)]
        for i, url in enumerate(message.urls):
            yield keys[16 * i : 16 * i + 16], message.crawl, url, parents[i]
