"""No two requests to a host closer than its delay, in the server's own log, also across kill -9 of the fetcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import sites
from tests.faults.fleet import arguments, fleet, host_names
from tests.sites import asserts, nginx
from tests.sites.walk import Expected

pytestmark = [pytest.mark.alone, pytest.mark.site, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

PAGES = 40
DELAY = 0.5
PATIENT = "patient.test"
LONG_DELAY = 5.0
"""Longer than a killed fetcher needs to come back: its successor must know that there was somebody before it."""
FEW_PAGES = 6


def test_fetcher_kill_keeps_politeness(tmp_path: Path) -> None:
    names = host_names(3)
    roots = dict.fromkeys(names, sites.numbered(tmp_path / "site", PAGES))
    roots[PATIENT] = sites.numbered(tmp_path / "patient", FEW_PAGES)
    robots = {PATIENT: f"User-agent: *\nCrawl-delay: {LONG_DELAY:g}\n"}
    with nginx.serve(roots, tmp_path / "nginx", robots=robots) as web, fleet(tmp_path / "crawl") as ours:
        options = ("--delay", f"{DELAY:g}", "--parallelism", "1")
        urls = [f"http://{name}/index.html" for name in roots]
        ours.start(*arguments(urls, ours, web.connect_to(), *options))
        for count in (2, 4):
            ours.until(sites.reached(web, count, PATIENT), f"{count} pages of {PATIENT} are fetched")
            victim = ours.busy("fetcher")
            ours.kill(victim)
            print(f"killed {victim} after {sites.pages(web)} pages")
        output = ours.end()
        requests = web.requests()

    assert "restarts   2 of worker processes" in output
    shortest = asserts.gaps(requests)
    print("shortest gaps:", shortest)
    assert shortest.keys() == roots.keys()
    assert {name: gap for name, gap in shortest.items() if gap < (LONG_DELAY if name == PATIENT else DELAY)} == {}
    expected = {f"http://{name}": expectation(FEW_PAGES if name == PATIENT else PAGES) for name in roots}
    asserts.exact_sets(asserts.read(ours.crawl.out), expected)


def expectation(pages: int) -> Expected:
    """What a crawl of `sites.numbered` finds."""
    return Expected(frozenset({"/index.html", *(f"/{number}.html" for number in range(1, pages))}), frozenset())
