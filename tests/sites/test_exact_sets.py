"""Whole real sites: the crawl finds exactly what an independent walk of the site's folder finds.

postgresql-doc-15 is closed and has no dead link, libboost1.81-doc has over a thousand, apache2-doc has eleven
languages, EUC-KR pages, a meta refresh and links between translations.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sites import asserts, debian, nginx, walk
from tests.sites.crawling import Crawl

pytestmark = [pytest.mark.site, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(400)]

# What each walk must at least have found, so that an empty folder cannot agree with an empty crawl.
SITES = [
    pytest.param(debian.POSTGRESQL, 1000, 0, id="postgresql-doc-15"),
    pytest.param(debian.BOOST, 3500, 1000, id="libboost1.81-doc"),
    pytest.param(debian.APACHE, 2500, 100, id="apache2-doc"),
]


@pytest.mark.parametrize(("site", "pages", "dead"), SITES)
def test_records_and_failures_are_exactly_the_walk(
    site: debian.Documentation, pages: int, dead: int, tmp_path: Path
) -> None:
    expected = walk.expected(site)
    assert len(expected.html) >= pages
    assert len(expected.dead) >= dead
    crawl = Crawl(tmp_path / "crawl")

    with nginx.serve({"site": debian.root_of(site)}, tmp_path / "nginx") as web:
        code = crawl.crawl([web.origin + site.start], timeout=300)
        requests = web.requests()

    assert code == 0, crawl.log_end()
    asserts.exact_sets(asserts.read(crawl.out), {web.origin: expected})
    asserts.requests_once(requests, {"127.0.0.1": expected})
