"""Sitemaps that robots.txt names."""

from __future__ import annotations

import pytest

from streams import messages as m
from streams.definitions import Scope
from streams.frontier.rows import State
from streams.frontier.sitemaps import NAMED
from tests.unit.frontier.rig import HOUR, START, Rig, answer, crawl, done, given, key, links, parsed, rules, seed, seeds

PAGE = "http://h.example/"
ORIGIN = "http://h.example"
MAPS = ("http://h.example/a.xml", "http://other.example/b.xml")


def told(*sitemaps: str, rig: Rig | None = None, url: str = PAGE, name: str = "c") -> Rig:
    """A rig whose first URL's robots.txt names these sitemaps."""
    rig = rig or Rig(crawl(robots=True, sitemaps=True))
    (order,) = given(rig, seeds(seed(url, name)))
    given(rig, rules(order, sitemaps=sitemaps))
    return rig


def named(rig: Rig) -> list[tuple[str, str]]:
    """Crawl and URL of the candidates so far."""
    return [(item.crawl, item.url) for item in rig.candidates]


def test_they_become_candidates_once() -> None:
    rig = told(*MAPS)
    assert rig.candidates == [
        m.Candidate(url=url, fingerprint=key(url), crawl="c", parent="http://h.example/robots.txt", source="sitemap")
        for url in MAPS
    ]
    given(rig, links("http://h.example/1", "http://h.example/2"))
    rig.load()
    given(rig, links("http://h.example/3"))
    assert len(rig.candidates) == len(MAPS)


@pytest.mark.parametrize("fields", [{"sitemaps": False}, {"depth": 0}, {"robots": False}])
def test_unless_the_crawl_does_not_want_them(fields) -> None:
    rig = Rig(crawl(**{"robots": True, **fields}))
    (order,) = given(rig, seeds(PAGE))
    if order.kind == "robots":
        given(rig, rules(order, sitemaps=MAPS))
    assert not rig.candidates


def test_each_crawl_is_told_also_where_the_rules_are_known_already() -> None:
    rig = told(*MAPS, rig=Rig(crawl(robots=True), crawl("d", robots=True)))
    given(rig, seeds(seed(PAGE, "d")))
    assert named(rig) == [("c", url) for url in MAPS] + [("d", url) for url in MAPS]


def test_of_origins_that_share_a_host_each_crawl_is_told_only_of_its_own() -> None:
    rig = told(*MAPS, rig=Rig(crawl(robots=True), crawl("d", robots=True)))
    told("https://h.example/c.xml", rig=rig, url="https://h.example/", name="d")
    assert named(rig) == [*(("c", url) for url in MAPS), ("d", "https://h.example/c.xml")]


def test_they_are_told_again_when_the_file_was_fetched_again() -> None:
    """Those that are known already are duplicates."""
    rig = told(*MAPS)
    rig.now += 25 * HOUR
    (again,) = given(rig, links("http://h.example/1"))
    assert again.kind == "robots"
    given(rig, rules(again, sitemaps=MAPS[:1], fetched=rig.now, expires=rig.now + HOUR))
    assert named(rig)[2:] == [("c", MAPS[0])]


def test_no_more_than_a_site_needs() -> None:
    rig = told(*(f"http://h.example/{n}.xml" for n in range(NAMED + 1)))
    assert len(rig.candidates) == NAMED


def admitted(rig: Rig, **fields) -> m.FetchOrder:
    """The order for the first sitemap, arrived as a candidate."""
    item = seed(MAPS[0], source="sitemap", parent="http://h.example/robots.txt", **fields)
    (order,) = [order for order in given(rig, seeds(item)) if order.url == MAPS[0]]
    return order


def test_a_sitemap_is_read_wherever_it_is_and_is_no_page() -> None:
    """Neither scope nor depth nor the number of pages is about it."""
    rig = Rig(crawl(scope=Scope(mode="host", values=("elsewhere.example",)), depth=1, limit=1))
    order = admitted(rig, depth=4)
    assert (order.source, order.depth, order.parent) == ("sitemap", 4, "http://h.example/robots.txt")
    (page,) = given(rig, answer(order), parsed(order), links("http://elsewhere.example/p"))
    assert page.source == "page"
    counts = rig.shard.progress(0).crawls["c"]
    assert (counts.sitemaps, counts.done, counts.fetched) == (1, 0, 0)
    assert rig.state(MAPS[0]) is State.DONE


def test_a_redirect_of_a_sitemap_leads_to_a_sitemap() -> None:
    rig = Rig()
    given(rig, answer(admitted(rig), "redirected", status=301, location="http://cdn.example/a.xml"))
    (target,) = rig.candidates
    assert (target.url, target.source) == ("http://cdn.example/a.xml", "sitemap")


def test_a_page_stays_a_page() -> None:
    """It was or will be recorded; if it is a list, its links are followed all the same."""
    rig = Rig()
    done(rig, *given(rig, seeds(MAPS[0])))
    given(rig, seeds(seed(MAPS[0], source="sitemap")))
    assert rig.row(MAPS[0]).source == "page"
    assert rig.shard.progress(0).crawls["c"].duplicates == 1


def test_a_sitemap_that_was_out_of_scope_as_a_page_is_read() -> None:
    rig = Rig(crawl(scope=Scope(mode="host", values=("elsewhere.example",))))
    given(rig, seeds(MAPS[0]))
    assert rig.state(MAPS[0]) is State.EXCLUDED
    assert (admitted(rig).source, rig.row(MAPS[0]).visit) == ("sitemap", 2)


def test_a_seed_makes_a_sitemap_a_page_again() -> None:
    rig = Rig()
    done(rig, admitted(rig))
    origin = m.Origin("urls", 0, 1)
    (order,) = given(rig, seeds(seed(MAPS[0], refetch=True, origin=origin)))
    assert (order.source, order.visit) == ("page", 2)


def test_what_the_host_remembers_is_small() -> None:
    rig = told(*MAPS)
    assert rig.host("h.example").sitemaps == {"c\0http://h.example": START}
