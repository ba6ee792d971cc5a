"""The peer: Scrapy as its documentation teaches it, with LinkExtractor, all else as cheap as it can be.

    python tests/bench/scrapy_peer.py SEED OUT

One line for each answer: URL, status, and of a page title and number of links. (The records of Fyke hold the text and
the links, too.)
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor


class Peer(scrapy.Spider):
    """Follows every `a` of the seed's host."""

    name = "peer"
    handle_httpstatus_list = [404]  # noqa: RUF012 (Scrapy reads it from the class)
    links = LinkExtractor(tags=("a",))

    def __init__(self, seed: str) -> None:
        super().__init__()
        self.seed = seed
        self.allowed_domains = [urlsplit(seed).hostname]

    async def start(self) -> AsyncIterator[scrapy.Request]:
        """The seed, through the duplicate filter, so that it is not fetched twice."""
        yield scrapy.Request(self.seed)

    def parse(self, response: Response, **_: Any) -> Iterator[Any]:
        """One line, and a request for every link."""
        if response.status != 200 or not isinstance(response, HtmlResponse):
            yield {"url": response.url, "status": response.status}
            return
        found = self.links.extract_links(response)
        title = response.css("title::text").get()
        yield {"url": response.url, "status": 200, "title": title, "links": len(found)}
        for link in found:
            yield scrapy.Request(link.url)


def main() -> None:
    seed, out = sys.argv[1:]
    process = CrawlerProcess(
        {
            "CONCURRENT_REQUESTS": 32,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 32,
            "COOKIES_ENABLED": False,
            "DOWNLOAD_DELAY": 0,
            "FEEDS": {out: {"format": "jsonlines"}},
            "LOG_LEVEL": "WARNING",
            "ROBOTSTXT_OBEY": False,
            "TELNETCONSOLE_ENABLED": False,
        }
    )
    process.crawl(Peer, seed=seed)  # type: ignore[unused-awaitable] # start() waits for it
    process.start()


if __name__ == "__main__":
    main()
