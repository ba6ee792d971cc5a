"""Whole crawls under random crashes, replays and reorderings: the promises of docs/reliability hold in each."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from streams import messages as m
from streams.codecs import decode
from streams.definitions import CrawlDefinition
from streams.frontier.rows import State
from streams.policy import urls
from tests.simulation.world import CRAWL, Answer, World, key_of

HOSTS = [f"http://h{i}.example" for i in range(5)]


def random_site(seed: int, size: int = 40) -> tuple[dict[str, Answer], set[str]]:
    """A web over several hosts with redirects, dead and flaky pages; and the URLs that a crawl must reach."""
    rng = random.Random(seed)
    pages = [f"{rng.choice(HOSTS)}/p{i}" for i in range(size)]
    site: dict[str, Answer] = {}
    for url in pages:
        kind = rng.random()
        if kind < 0.12:
            site[url] = Answer(location=rng.choice(pages))
        elif kind < 0.2:
            site[url] = Answer(status=404)
        else:
            site[url] = Answer(links=tuple(rng.sample(pages, rng.randint(0, 6))))
    site[pages[0]] = Answer(links=tuple(rng.sample(pages, 6)))
    reached: set[str] = set()
    todo = [pages[0]]
    while todo:
        url = todo.pop()
        if url not in reached:
            reached.add(url)
            todo += [*site[url].links, *([site[url].location] if site[url].location else [])]
    return site, reached


def sealed(world: World) -> World:
    """Seal the crawl: its seeds are in the inbox."""
    crawl = world.crawls[CRAWL]
    world.crawls[CRAWL] = msgspec.structs.replace(crawl, state="sealed", version=crawl.version + 1)
    return world


def first_page(site: dict[str, Answer]) -> str:
    return next(iter(site))


@pytest.mark.parametrize("seed", range(60))
def test_every_reachable_url_ends_exactly_once(seed: int) -> None:
    site, reached = random_site(seed)
    world = World(lambda url, _: site[url], seed, crash=(0.0, 0.02, 0.1)[seed % 3])
    world.seed_urls(first_page(site))
    sealed(world).run()
    rows = world.rows()
    assert set(rows) == reached
    assert not world.rows_open()
    assert len(world.ended_with) == 1
    assert world.ended_with[0][1] == "exhausted"
    for url, row in rows.items():
        if site[url].status == 404:
            assert row.state is State.FAILED
        elif not site[url].location:
            assert row.state is State.DONE
            assert (url, row.visit) in world.records
    dead = {f.url for f in world.failures if f.next.action == "none" and f.failure == "http_status"}
    assert dead == {url for url in reached if site[url].status == 404}


@pytest.mark.parametrize("seed", range(10))
def test_without_faults_each_url_is_fetched_once(seed: int) -> None:
    site, reached = random_site(seed)
    world = World(lambda url, _: site[url], seed, crash=0.0)
    world.seed_urls(first_page(site))
    sealed(world).run()
    assert Counter(url for _, url in world.requests) == Counter(dict.fromkeys(reached, 1))


@pytest.mark.parametrize("seed", range(10))
def test_a_new_owner_asks_again_only_for_what_was_not_answered(seed: int) -> None:
    site, _ = random_site(seed)
    world = World(lambda url, _: site[url], seed, crash=0.0)
    world.seed_urls(first_page(site))
    sealed(world)
    unanswered: Counter[str] = Counter()
    while not world.ended_with:
        if world.random.random() < 0.05:
            world.loaded.clear()
            for shard in range(world.shards):
                waiting = world.log.partitions["fetches", shard][world.position["fetches", shard] :]
                unanswered.update(decode(m.FetchOrder, value).url for value in waiting)
        world.step()
    repeated = Counter(url for _, url in world.requests) - Counter(url for url, _ in world.rows().items())
    assert repeated <= unanswered


@pytest.mark.parametrize("seed", range(10))
def test_flaky_pages_are_tried_again_and_succeed(seed: int) -> None:
    site, reached = random_site(seed)
    flaky = {url for url in sorted(reached)[::4] if site[url].status == 200 and not site[url].location}

    def web(url: str, asked: int) -> Answer:
        return Answer(failure="timeout", status=0) if url in flaky and asked < 2 else site[url]

    world = World(web, seed, crash=0.0)
    world.seed_urls(first_page(site))
    sealed(world).run()
    assert {url for url in flaky if world.rows()[url].state is not State.DONE} == set()
    retried = Counter(f.url for f in world.failures if f.next.action == "retry")
    assert retried == Counter(dict.fromkeys(flaky, 2))


@pytest.mark.parametrize("seed", range(10))
def test_a_page_that_always_fails_ends_after_its_attempts(seed: int) -> None:
    definition = CrawlDefinition(id=CRAWL, delay=0.0, parallelism=2, robots=False, attempts=3)
    world = World(lambda *_: Answer(failure="connection", status=0), seed, crash=0.0, definition=definition)
    world.seed_urls("http://h.example/")
    sealed(world).run()
    assert len(world.requests) == 3
    assert [f.next.action for f in world.failures] == ["retry", "retry", "none"]


@pytest.mark.parametrize("seed", range(20))
def test_redirects_end_in_their_target_or_in_a_failure(seed: int) -> None:
    site = {
        "http://a.example/": Answer(links=("http://a.example/loop1", "http://b.example/0")),
        "http://a.example/loop1": Answer(location="http://b.example/loop2"),
        "http://b.example/loop2": Answer(location="http://a.example/loop1"),
        **{f"http://b.example/{i}": Answer(location=f"http://a.example/{i + 1}") for i in range(0, 30, 2)},
        **{f"http://a.example/{i}": Answer(location=f"http://b.example/{i + 1}") for i in range(1, 30, 2)},
    }
    definition = CrawlDefinition(id=CRAWL, delay=0.0, parallelism=2, robots=False, max_redirects=10)
    world = World(lambda url, _: site[url], seed, crash=(0.0, 0.1)[seed % 2], definition=definition)
    world.seed_urls("http://a.example/")
    sealed(world).run()
    final = {f.url: f.failure for f in world.failures if f.next.action == "none"}
    assert final["http://b.example/loop2"] == "redirect_loop"
    assert final["http://b.example/10"] == "redirect_limit"
    assert "http://a.example/11" not in world.rows()


@pytest.mark.parametrize("seed", range(20))
def test_depth_is_the_shortest_way(seed: int) -> None:
    """A page first met at the limit and later on a shorter way brings its links after all (depth-lowered)."""
    site = {
        "http://a.example/": Answer(links=("http://a.example/1", "http://b.example/short")),
        "http://a.example/1": Answer(links=("http://a.example/2",)),
        "http://a.example/2": Answer(links=("http://b.example/short",)),
        "http://b.example/short": Answer(links=("http://b.example/child",)),
        "http://b.example/child": Answer(links=("http://b.example/grandchild",)),
        "http://b.example/grandchild": Answer(links=("http://b.example/beyond",)),
    }
    definition = CrawlDefinition(id=CRAWL, delay=0.0, parallelism=1, robots=False, depth=3)
    world = World(lambda url, _: site[url], seed, crash=(0.0, 0.1)[seed % 2], definition=definition)
    world.seed_urls("http://a.example/")
    sealed(world).run()
    depths = {url: row.depth for url, row in world.rows().items()}
    assert depths == {
        "http://a.example/": 0, "http://a.example/1": 1, "http://b.example/short": 1, "http://a.example/2": 2,
        "http://b.example/child": 2, "http://b.example/grandchild": 3,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_a_page_limit_excludes_the_rest(seed: int) -> None:
    site = {f"http://a.example/{i}": Answer(links=tuple(f"http://a.example/{j}" for j in range(60))) for i in range(60)}
    definition = CrawlDefinition(id=CRAWL, delay=0.0, parallelism=4, robots=False, limit=20)
    world = World(lambda url, _: site[url], seed, crash=0.0, definition=definition)
    world.seed_urls("http://a.example/0")
    sealed(world).run()
    states = Counter(row.state for row in world.rows().values())
    assert states == Counter({State.DONE: 20, State.EXCLUDED: 40})
    assert world.ended_with[0][1] == "limit"


@pytest.mark.parametrize("seed", range(20))
def test_a_page_limit_holds_over_shards_and_crashes(seed: int) -> None:
    """It may be exceeded by what was released; what is left is excluded, and the crawl ends."""
    site = {url: Answer(links=tuple(f"{host}/{i}" for host in HOSTS for i in range(12)))
            for url in [f"{host}/{i}" for host in HOSTS for i in range(12)]}  # fmt: skip
    definition = CrawlDefinition(id=CRAWL, delay=0.0, parallelism=4, robots=False, limit=20)
    world = World(lambda url, _: site[url], seed, crash=(0.02, 0.1)[seed % 2], definition=definition)
    world.seed_urls(first_page(site))
    sealed(world).run()
    states = Counter(row.state for row in world.rows().values())
    assert set(states) <= {State.DONE, State.EXCLUDED}
    assert 20 <= states[State.DONE] <= 60
    assert states[State.DONE] + states[State.EXCLUDED] == 60
    assert world.ended_with[0][1] == ("limit" if states[State.EXCLUDED] else "exhausted")


@pytest.mark.parametrize("seed", range(20))
def test_hosts_whose_robots_cannot_be_had_for_a_while(seed: int) -> None:
    """Their URLs are held, at no cost to their attempts; a host that never answers ends as unreachable."""
    site, reached = random_site(seed)
    dead = urls.origin(max(reached))

    def robots(url: str, asked: int) -> Answer:
        gone = url.startswith(dead) or (urls.origin(url) == HOSTS[seed % 5] and asked < 3)
        return Answer(failure="timeout", status=0) if gone else Answer(status=404)

    definition = CrawlDefinition(id=CRAWL, delay=0.0, parallelism=4, robots=True)
    world = World(lambda url, _: site[url], seed, crash=(0.0, 0.05)[seed % 2], definition=definition, robots=robots,
                  answer_timeout=600.0)  # fmt: skip
    world.seed_urls(first_page(site))
    sealed(world).run()
    rows = world.rows()
    for url, row in rows.items():
        if url.startswith(dead):
            assert (row.state, row.outcome, row.attempt) == (State.FAILED, "host_unreachable", 0)
        else:
            assert row.attempt == 0
            assert row.outcome in {"", "redirect_loop"} or site[url].status == 404
    assert not any(url.startswith(dead + "/p") for _, url in world.requests)


@pytest.mark.parametrize("seed", range(10))
def test_two_crawls_on_one_host_keep_the_stricter_delay(seed: int) -> None:
    """two-crawls: orders leave at most a second ahead of the delay of five."""
    found = [f"http://h.example/{i}" for i in range(8)]
    site = {found[0]: Answer(links=tuple(found)), **{url: Answer() for url in found[1:]}}
    world = World(lambda url, _: site[url], seed, crash=0.0)
    world.crawls["slow"] = CrawlDefinition(id="slow", delay=5.0, parallelism=1, robots=False)
    world.seed_urls(found[0])
    world.seed_urls(*found, crawl="slow")
    sealed(world).run()
    orders = [(at, order) for at, order in world.released if order.crawl in {CRAWL, "slow"}]
    waits = max(at for at, order in orders if order.crawl == "slow")
    times = [at for at, _ in orders if at <= waits]
    assert len(times) > 8
    for i, at in enumerate(times):
        assert at >= times[0] + i * 5000 - 1000
    assert {order.delay for at, order in orders if at <= waits} == {5.0}


@pytest.mark.parametrize("seed", range(10))
def test_a_seed_read_twice_is_one_visit(seed: int) -> None:
    world = World(lambda *_: Answer(), seed, crash=0.2)
    for _ in range(3):
        origin = m.Origin("urls", 0, 7)
        item = m.Candidate(url="http://a.example/", fingerprint=key_of("http://a.example/"), crawl=CRAWL, refetch=True,
                           origin=origin)  # fmt: skip
        world._candidate(item)
    sealed(world).run()
    assert world.rows()["http://a.example/"].visit == 1


def test_a_refetch_seed_opens_the_next_visit() -> None:
    world = World(lambda *_: Answer(), 1, crash=0.0)
    world.seed_urls("http://a.example/")
    for _ in range(300):
        world.step()
    world.now += 1000
    world.seed_urls("http://a.example/", refetch=True)
    sealed(world).run()
    assert world.rows()["http://a.example/"].visit == 2
    assert sorted(world.records) == [("http://a.example/", 1), ("http://a.example/", 2)]


def test_late_candidates_of_an_ended_crawl_stay_out() -> None:
    site, _ = random_site(3)
    world = World(lambda url, _: site[url], 3, crash=0.0)
    world.seed_urls(first_page(site))
    sealed(world).run()
    known = set(world.rows())
    while any(known.get(CRAWL) != world.crawls[CRAWL] for known in world.known):
        world.step()
    world._candidate(m.Candidate(url="http://late.example/", fingerprint=key_of("http://late.example/"), crawl=CRAWL))
    for _ in range(300):
        world.step()
    assert set(world.rows()) == known
    assert len(world.ended_with) == 1


def test_robots_is_asked_once_for_an_origin() -> None:
    site, reached = random_site(4)
    definition = CrawlDefinition(id=CRAWL, delay=0.0, parallelism=4, robots=True)
    world = World(lambda url, _: site[url], 4, crash=0.0, definition=definition)
    world.seed_urls(first_page(site))
    sealed(world).run()
    asked = Counter(url for _, url in world.requests if url.endswith("/robots.txt"))
    assert asked == Counter({urls.origin(url) + "/robots.txt": 1 for url in reached})
