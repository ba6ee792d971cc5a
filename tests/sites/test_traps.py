"""Traps against whole sites: of none of their URLs a trap keeps any back, copies of pages and dead links included."""

from __future__ import annotations

from collections import defaultdict

import pytest

from streams.definitions import Traps
from streams.policy.traps import compile_traps, pattern_of
from tests.sites import debian, walk

pytestmark = pytest.mark.site

ORIGIN = "http://site.test"
NOW = 1_795_000_000_000  # 2026-11
SITES = [debian.POSTGRESQL, debian.BOOST, debian.APACHE, debian.OPENJDK]


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.package)
def test_no_page_of_a_real_site_is_a_trap(site: debian.Documentation) -> None:
    found = walk.expected(site)
    urls = [ORIGIN + path for path in (*found.html, *found.other, *found.dead, *found.redirects)]
    trapped = compile_traps(Traps())
    assert {url: trap for url in urls if (trap := trapped(url, NOW))} == {}


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.package)
def test_no_pattern_of_a_real_site_has_many_pages_that_are_copies(site: debian.Documentation) -> None:
    """Whatever the order in which they are met: there are fewer copies than pages in a row make a trap."""
    patterns: dict[str, list[str]] = defaultdict(list)
    for path in walk.expected(site).html:
        patterns[pattern_of(ORIGIN + path)].append(path)
    root = debian.root_of(site)
    for pattern, paths in patterns.items():
        if len(paths) > Traps().novelty:
            bodies = {file.read_bytes() for path in paths if (file := walk.respond(root, path).file) is not None}
            assert len(paths) - len(bodies) < Traps().novelty, pattern
    assert len(patterns) > len(walk.expected(site).html) / 10
