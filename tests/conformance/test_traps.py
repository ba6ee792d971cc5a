"""Traps against real pages (corpora/pages): none of the links of 941 pages is taken for one."""

from __future__ import annotations

import tarfile

from streams.definitions import Traps
from streams.messages import PageHeaders
from streams.page.parse import Limits, parse_page
from streams.policy.traps import compile_traps
from streams.policy.urls import Joiner
from tests.conformance import cases

NOW = 1_795_000_000_000  # 2026-11: the pages are some years old, their calendars too
HTML = [("Content-Type", "text/html")]


def test_real_links_are_no_traps() -> None:
    pages = cases.data("pages/trafilatura.manifest.json")["pages"]
    urls = {page["file"]: page["url"] for page in pages if page["url"]}
    trapped = compile_traps(Traps())
    taken: dict[str, str] = {}
    links = 0
    with tarfile.open(cases.file("pages/trafilatura.tar.xz")) as archive:
        for member in archive:
            if member.name in urls and (file := archive.extractfile(member)) is not None:
                page = PageHeaders(crawl="c", url=urls[member.name], fingerprint=bytes(16), visit=1, shard=0,
                                   status=200, headers=HTML, start=0, first_byte=0, end=NOW)  # fmt: skip
                found = parse_page(page, file.read(), Joiner, Limits(text=1000, links=100_000)).links
                taken |= {url: trap for url in found if (trap := trapped(url, NOW))}
                links += len(found)
    assert taken == {}
    assert links > 90_000
