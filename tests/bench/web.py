"""A web that is made up while it is crawled: links in packs as parsers send them, and no URL is kept in memory.

Hosts are met as on the real web: few of them often, most of them seldom (Zipf). Four of five links of a page lead to
its own host. The same seed gives the same links.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from itertools import accumulate

from streams import messages as m
from streams.codecs import encode
from streams.policy import urls

CRAWL = "bench"
EXPONENT = 0.9
LINKS_OF_A_PAGE = 50
OWN_LINKS = 40


class Web:
    """The hosts of one shard, and how many pages of each are known."""

    def __init__(self, hosts: int, seed: int, name: str = "host") -> None:
        self._name = name
        self._random = random.Random(seed)
        self._weights = list(accumulate(1 / (rank + 1) ** EXPONENT for rank in range(hosts)))
        self._hosts = range(hosts)
        self._known = array("l", [0]) * hosts

    def url(self, host: int, page: int) -> str:
        """The wire URL of a page of a host."""
        return f"https://{self._name}{host}.example.org/folder/{page % 97}/page-{page}.html"

    def front_pages(self, pack: int) -> Iterator[bytes]:
        """One link to each host that was not met yet."""
        for first in range(0, len(self._hosts), pack):
            hosts = self._hosts[first : first + pack]
            yield self._pack([(self.url(0, 0), [self._new(host) for host in hosts])])

    def new(self, number: int, pack: int) -> Iterator[bytes]:
        """Links to pages that were not met yet."""
        return self._packs(number, pack, self._new)

    def known(self, number: int, pack: int, *, popular: bool) -> Iterator[bytes]:
        """Links to pages that were met: each as likely as the other, or (`popular`) the first ones of a host more."""
        return self._packs(number, pack, self._popular if popular else self._any)

    def scattered(self, number: int, pack: int) -> Iterator[bytes]:
        """Links to pages that were met, each of a host drawn anew: no two of a page have to do with each other."""
        for first in range(0, number, pack):
            hosts = self._random.choices(self._hosts, cum_weights=self._weights, k=min(pack, number - first))
            yield self._pack([(self.url(0, 0), [self._any(host) for host in hosts])])

    def _packs(self, number: int, pack: int, target: Callable[[int], str]) -> Iterator[bytes]:
        for first in range(0, number, pack):
            pages = range(first, min(first + pack, number), LINKS_OF_A_PAGE)
            yield self._pack([self._page(target) for _ in pages])

    def _page(self, target: Callable[[int], str]) -> tuple[str, list[str]]:
        own, *others = self._random.choices(self._hosts, cum_weights=self._weights, k=1 + LINKS_OF_A_PAGE - OWN_LINKS)
        return self.url(own, 0), [target(host) for host in (*(own,) * OWN_LINKS, *others)]

    def _new(self, host: int) -> str:
        self._known[host] += 1
        return self.url(host, self._known[host] - 1)

    def _any(self, host: int) -> str:
        return self.url(host, self._random.randrange(self._known[host]))

    def _popular(self, host: int) -> str:
        return self.url(host, int(self._known[host] * self._random.random() ** 4))

    @staticmethod
    def _pack(pages: list[tuple[str, list[str]]]) -> bytes:
        found = [url for _, links in pages for url in links]
        return encode(
            m.Links(
                crawl=CRAWL,
                urls=found,
                fingerprints=b"".join(urls.fingerprint(CRAWL, url) for url in found),
                parents=[m.LinkParent(url=url, depth=1, count=len(links)) for url, links in pages],
            )
        )
