"""Page by page, the parser finds the links that the independent reader finds."""

from __future__ import annotations

import pytest

from streams.messages import PageHeaders
from streams.page.parse import Limits, parse_page
from streams.policy.urls import Joiner, canonical
from tests.sites import debian, walk

pytestmark = [pytest.mark.site, pytest.mark.slow, pytest.mark.timeout(200)]

LIMITS = Limits(text=1 << 20, links=1 << 20)


@pytest.mark.parametrize("site", [debian.POSTGRESQL, debian.BOOST, debian.APACHE], ids=lambda site: site.package)
def test_every_page_gives_the_same_links(site: debian.Documentation) -> None:
    root = debian.root_of(site)
    bodies: dict[bytes, list[tuple[str, str]]] = {}
    differences = {}
    for path in sorted(walk.expected(site).html):
        answer = walk.respond(root, path)
        assert answer.file is not None
        body = answer.file.read_bytes()
        theirs = {f"{walk.ORIGIN}{target}" for target in walk._targets(path, body, walk.by_lxml, bodies)}
        ours = {link for link in _parsed(path, answer.content_type, body) if link.startswith(f"{walk.ORIGIN}/")}
        if ours != theirs:
            differences[path] = (sorted(ours - theirs)[:5], sorted(theirs - ours)[:5])
    assert not differences


@pytest.mark.parametrize("site", [debian.POSTGRESQL, debian.BOOST, debian.APACHE], ids=lambda site: site.package)
def test_no_two_urls_of_a_site_have_one_key(site: debian.Documentation) -> None:
    expected = walk.expected(site)
    urls = [f"{walk.ORIGIN}{path}" for path in (*expected.records, *expected.dead, *expected.redirects)]
    assert len({canonical(url) for url in urls}) == len(urls)


def _parsed(path: str, content_type: str, body: bytes) -> list[str]:
    page = PageHeaders(
        crawl="c", url=f"{walk.ORIGIN}{path}", fingerprint=b"", visit=1, shard=0, status=200,
        headers=[("Content-Type", content_type)], start=0, first_byte=0, end=0,
    )  # fmt: skip
    return parse_page(page, body, Joiner, LIMITS).links
