"""Whole crawls with recrawls and sitemaps under random crashes, replays and reorderings."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from streams.definitions import CrawlDefinition, Recrawl
from streams.frontier.rows import State
from tests.simulation.test_crawls import HOSTS, first_page, random_site, sealed
from tests.simulation.world import CRAWL, Answer, World


@pytest.mark.parametrize("seed", range(30))
def test_every_url_is_visited_as_often_as_there_are_rounds(seed: int) -> None:
    """nothing-new-but-time: the end is announced once, after the last visit of the last URL."""
    site, reached = random_site(seed, size=15)
    rounds = 2 + seed % 3
    recrawl = Recrawl(interval=3.0, adaptive=seed % 2 == 0, shortest=1.0, longest=10.0, rounds=rounds)
    definition = CrawlDefinition(id=CRAWL, delay=0.0, parallelism=4, robots=False, recrawl=recrawl)
    world = World(lambda url, _: site[url], seed, crash=(0.0, 0.02, 0.1)[seed % 3], definition=definition)
    world.seed_urls(first_page(site))
    sealed(world).run()
    rows = world.rows()
    assert set(rows) == reached
    assert {(row.visit, row.due) for row in rows.values()} == {(rounds, 0)}
    pages = {url for url in reached if site[url].status == 200 and not site[url].location}
    assert set(world.records) == {(url, visit) for url in pages for visit in range(1, rounds + 1)}


@pytest.mark.parametrize("seed", range(40))
def test_a_page_limit_takes_no_visit_from_a_page(seed: int) -> None:
    """What got a place is visited in every round, what got none is never fetched, and the end is exact.

    Pages stay as they are, so nothing frees a place; with crashes as many pages more as orders were released again.
    """
    rng = random.Random(seed)
    urls = [f"{host}/{n}" for host in HOSTS for n in range(6)]
    site = {url: Answer(links=tuple(rng.sample(urls, 8))) for url in urls}
    rounds, by_host, number = 2 + seed % 3, seed % 4 == 3, 1 + seed % 11
    definition = CrawlDefinition(id=CRAWL, delay=0.0, parallelism=4, robots=False,
                                 recrawl=Recrawl(interval=2.0, shortest=1.0, rounds=rounds),
                                 limit=None if by_host else number, host_limit=number if by_host else None)  # fmt: skip
    world = World(lambda url, _: site[url], seed, shards=1 + seed % 2, crash=(0.0, 0.0, 0.05)[seed % 3],
                  definition=definition, answer_timeout=600.0)  # fmt: skip
    world.seed_urls(*urls[:3])
    sealed(world).run()
    rows = world.rows()
    pages = {url: row for url, row in rows.items() if row.state is State.DONE}
    assert {row.visit for row in pages.values()} == {rounds}
    assert {row.outcome for row in rows.values()} <= {"", "limit:host" if by_host else "limit"}
    visits = {(url, visit) for url in pages for visit in range(1, rounds + 1)}
    assert visits <= set(world.records)
    if not world.crash:  # else a page may come from an order that a dead owner sent, after its URL was excluded
        assert visits == set(world.records)
    if world.shards == 1 and not world.crash:
        most = Counter(url.rsplit("/", 1)[0] for url in pages)
        assert max(most.values()) <= number if by_host else len(pages) == number
    limited = any(row.outcome == "limit" for row in rows.values())
    assert [result for _, result in world.ended_with] == ["limit" if limited else "exhausted"]


@pytest.mark.parametrize("seed", range(20))
def test_the_place_of_a_page_that_vanishes_is_taken(seed: int) -> None:
    """Two of the pages are gone at their second visit: two others take their places."""
    urls = [f"{HOSTS[0]}/{n}" for n in range(12)]
    gone = set(urls[1:3])

    def web(url: str, asked: int) -> Answer:
        return Answer(status=410) if url in gone and asked else Answer(links=tuple(urls))

    definition = CrawlDefinition(id=CRAWL, delay=0.0, parallelism=4, robots=False, limit=5, attempts=1,
                                 recrawl=Recrawl(interval=2.0, shortest=1.0, rounds=3))  # fmt: skip
    world = World(web, seed, shards=1, crash=0.0, definition=definition, answer_timeout=600.0)
    world.seed_urls(*urls[:5])
    sealed(world).run()
    states = {url: (row.state, row.visit) for url, row in world.rows().items()}
    assert {url for url, (state, _) in states.items() if state is State.DONE} == {urls[0], *urls[3:5], *urls[5:7]}
    assert {states[url][0] for url in gone} <= {State.FAILED, State.EXCLUDED}
    assert [result for _, result in world.ended_with] == ["limit"]


@pytest.mark.parametrize("seed", range(20))
def test_pages_that_only_sitemaps_name_are_found_and_sitemaps_are_no_pages(seed: int) -> None:
    """An index names itself, a list, an index with a list on another host, and what is none."""
    a, b = HOSTS[:2]
    lists = {
        f"{a}/index.xml": (f"{a}/index.xml", f"{a}/1.xml", f"{b}/2.xml", f"{a}/gone.xml"),
        f"{a}/1.xml": tuple(f"{a}/only{n}" for n in range(8)),
        f"{b}/2.xml": (f"{b}/3.xml", f"{a}/moved"),
        f"{b}/3.xml": tuple(f"{b}/only{n}" for n in range(8)),
    }
    site = {url: Answer(links=links) for url, links in lists.items()} | {
        f"{a}/": Answer(), f"{a}/moved": Answer(location=f"{b}/only1"), f"{a}/gone.xml": Answer(status=404),
    } | {f"{host}/only{n}": Answer() for host in (a, b) for n in range(8)}  # fmt: skip

    def robots(url: str, _asked: int) -> Answer:
        return Answer(links=(f"{a}/index.xml",)) if url.startswith(a) else Answer()

    limit = 17 if seed % 2 else None
    definition = CrawlDefinition(id=CRAWL, delay=0.0, parallelism=4, limit=limit)
    crash = (0.0, 0.02, 0.1)[seed % 3]
    world = World(lambda url, _: site[url], seed, crash=crash, definition=definition, robots=robots,
                  answer_timeout=600.0)  # fmt: skip
    world.seed_urls(f"{a}/")
    sealed(world).run()
    rows = world.rows()
    states = Counter((row.source, row.state) for row in rows.values())
    assert set(rows) == set(site)
    assert states["sitemap", State.DONE] == len(lists)
    assert states["page", State.DONE] == 17
    assert {url for url, _ in world.records} == {url for url, row in rows.items()
                                                  if (row.source, row.state) == ("page", State.DONE)}  # fmt: skip
    assert len(world.ended_with) == 1
