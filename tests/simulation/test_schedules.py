"""Named crash schedules of the frontier: each was found by a review, and each test bears its schedule's name."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from streams import messages as m
from streams.definitions import CrawlDefinition
from streams.frontier import hops
from streams.frontier.hops import SEND_AGAIN
from streams.frontier.rows import HostRow, State, encode_row, host_key
from streams.frontier.shard import PAGE_LIFE
from streams.topics import shard_of
from tests.simulation.test_crawls import sealed
from tests.simulation.world import CRAWL, DEFINITION, Answer, World, key_of

HOUR = 3_600_000
A, B = "http://a.example", "http://b.example"
SITE = {
    f"{A}/": Answer(links=(f"{A}/moved", f"{A}/gone", f"{B}/flaky", f"{B}/1")),
    f"{A}/moved": Answer(location=f"{B}/target"),
    f"{B}/target": Answer(links=(f"{A}/last",)),
    f"{A}/gone": Answer(status=404),
    f"{B}/flaky": Answer(links=(f"{B}/2",)),
    f"{B}/1": Answer(), f"{B}/2": Answer(), f"{A}/last": Answer(),
}  # fmt: skip


def web(url: str, asked: int) -> Answer:
    return Answer(failure="timeout", status=0) if url == f"{B}/flaky" and not asked else SITE[url]


def steps(world: World, number: int) -> None:
    for _ in range(number):
        world.step()


def until(world: World, state: State, *found: str) -> None:
    """Go on until these URLs are in a state."""
    for _ in range(20_000):
        rows = world.rows()
        if all(url in rows and rows[url].state is state for url in found):
            return
        world.step()
    raise AssertionError(f"not all of {found} became {state}")


def whole(world: World) -> None:
    """The crawl of SITE ended as it must."""
    states = {url: row.state for url, row in world.rows().items()}
    assert states == {
        url: State.REDIRECTED if answer.location else State.FAILED if answer.status == 404 else State.DONE
        for url, answer in SITE.items()
    }
    assert {f.url for f in world.failures if f.next.action == "none"} == {f"{A}/gone"}
    assert {url for url, _ in world.records} == {url for url, state in states.items() if state is State.DONE}
    assert [result for _, result in world.ended_with] == ["exhausted"]


@pytest.mark.parametrize("place", range(0, 120, 2))
def test_effects_after_close(place: int) -> None:
    """One kill, at every place where a process may die: candidates and failures leave before the rows that close."""
    world = World(web, seed=place, crash=0.0)
    world.die_at = place
    world.seed_urls(f"{A}/")
    sealed(world).run()
    assert world.crashes <= 1
    whole(world)


def test_fetched_in_memory() -> None:
    """Parsers lag and the frontier is killed: no page that is fetched is fetched again."""
    found = [f"{A}/{i}" for i in range(40)]
    world = World(lambda url, _: Answer(links=tuple(found) if url == found[0] else ()), seed=1, crash=0.0)
    world.seed_urls(*found)
    world.parsers_run = False
    until(world, State.FETCHED, *found)
    for _ in range(5):
        world.loaded.clear()
        steps(world, 100)
    world.parsers_run = True
    sealed(world).run()
    assert Counter(url for _, url in world.requests) == Counter(dict.fromkeys(found, 1))


@pytest.mark.parametrize("seed", range(20))
def test_memory_ahead_of_log(seed: int) -> None:
    """Rows do not become durable, or only some of them (counter-drift): the shard begins anew from what there is."""
    world = World(web, seed, crash=0.3)
    world.seed_urls(f"{A}/")
    sealed(world).run()
    assert world.crashes
    whole(world)
    for number, store in enumerate(world.stores):
        counted = sum(n for name, n in store.counters().items() if b":" not in name)
        assert counted == sum(1 for key in store.rows if key[:1] == b"u"), number


@pytest.mark.parametrize("seed", range(10))
def test_redrive_swallowed(seed: int) -> None:
    """A redrive of a failed URL opens the visit it names, once however often it is read."""
    down = True

    def site(_url: str, _asked: int) -> Answer:
        return Answer(status=404) if down else Answer()

    world = World(site, seed, crash=0.1)
    world.seed_urls(f"{A}/")
    until(world, State.FAILED, f"{A}/")
    down = False
    command = m.Command(action="redrive", crawl=CRAWL, url=f"{A}/", fingerprint=key_of(f"{A}/"), visit=2)
    for _ in range(3):
        world.deliver(f"{A}/", command)
    sealed(world).run()
    assert (world.rows()[f"{A}/"].visit, world.rows()[f"{A}/"].state) == (2, State.DONE)


@pytest.mark.parametrize("seed", range(10))
def test_seed_again(seed: int) -> None:
    """The same seed next month, and its replay after a crash: one new visit, not two, not none."""
    world = World(lambda *_: Answer(), seed, crash=0.1)
    for month, origin in enumerate((5, 6)):
        for _ in range(3):
            world.seed_urls(f"{A}/", origin=m.Origin("urls", 0, origin))
        steps(world, 50)
        until(world, State.DONE, f"{A}/")
        assert world.rows()[f"{A}/"].visit == month + 1
        world.now += 30 * 24 * HOUR
    sealed(world).run()
    assert set(world.records) == {(f"{A}/", 1), (f"{A}/", 2)}


@pytest.mark.parametrize("seed", range(10))
def test_double_failure(seed: int) -> None:
    """A page that always fails, each outcome read again and again: it gets all its attempts."""
    definition = msgspec.structs.replace(DEFINITION, attempts=4)
    world = World(lambda *_: Answer(failure="timeout", status=0), seed, crash=0.15, definition=definition)
    world.seed_urls(f"{A}/")
    sealed(world).run()
    told = {(f.attempt, f.next.action) for f in world.failures}
    assert told == {(0, "retry"), (1, "retry"), (2, "retry"), (3, "none")}
    assert world.asked[f"{A}/"] >= 4


def test_success_after_failure() -> None:
    """A slow fetcher's page arrives after the URL has failed for good."""
    definition = msgspec.structs.replace(DEFINITION, attempts=1)
    world = World(lambda *_: Answer(failure="timeout", status=0), 1, crash=0.0, definition=definition)
    world.seed_urls(f"{A}/")
    until(world, State.FAILED, f"{A}/")
    (_, order), *_ = world.released
    world.web = lambda *_: Answer()
    world._fetch(order)
    sealed(world).run()
    assert world.rows()[f"{A}/"].state is State.DONE
    assert [f.next.action for f in world.failures] == ["none", "resolved"]
    assert world.records == [(f"{A}/", 1)]


@pytest.mark.parametrize("seed", range(10))
def test_unknown_crawl_race(seed: int) -> None:
    """A seed arrives before its crawl's definition was read: it waits for the reading, it is not dropped."""
    world = World(web, seed, crash=0.1)
    assert not any(world.known)
    world.seed_urls(f"{A}/")
    sealed(world).run()
    whole(world)


def test_retention() -> None:
    """Orders vanish before anybody reads them: they go out again, and no host stays blocked."""
    world = World(web, seed=3, crash=0.0)
    world.seed_urls(f"{A}/")
    for _ in range(3):
        while not any(world.log.end("fetches", n) > world.position["fetches", n] for n in range(world.shards)):
            world._frontier(0)
            world._frontier(1)
            world.now += 1000
        for number in range(world.shards):
            world.position["fetches", number] = world.log.end("fetches", number)
    assert not world.requests
    sealed(world).run()
    whole(world)


def test_restart_after_429() -> None:
    """429 with Retry-After 3600, then the frontier restarts: no request for an hour."""

    def site(_url: str, asked: int) -> Answer:
        return Answer() if asked else Answer(status=429, retry_after=3600.0)

    world = World(site, seed=5, crash=0.0)
    world.seed_urls(f"{A}/1")
    while not world.rows() or world.rows()[f"{A}/1"].attempt == 0:
        world.step()
    world.seed_urls(f"{A}/2")
    world.loaded.clear()
    (first, _), *_ = world.requests
    sealed(world).run()
    assert min(at for at, _ in world.requests[1:]) >= first + HOUR
    assert {row.state for row in world.rows().values()} == {State.DONE}


@pytest.mark.parametrize("seed", range(10))
def test_robots_redirect(seed: int) -> None:
    """robots.txt of A leads to B, which asked to be left alone for an hour; all restart: B's clock applies."""

    def site(url: str, asked: int) -> Answer:
        return Answer(status=429, retry_after=3600.0) if url == f"{B}/1" and not asked else Answer()

    def robots(url: str, _asked: int) -> Answer:
        return Answer(location=f"{B}/robots.txt") if url.startswith(A) else Answer(status=404)

    definition = msgspec.structs.replace(DEFINITION, robots=True)
    world = World(site, seed, crash=0.0, definition=definition, robots=robots, answer_timeout=600.0)
    world.seed_urls(f"{B}/1")
    while not world.rows() or world.rows()[f"{B}/1"].attempt == 0:
        world.step()
    world.seed_urls(f"{A}/1")
    world.loaded.clear()
    world.crash = 0.05
    first = next(at for at, url in world.requests if url == f"{B}/1")
    sealed(world).run()
    assert {row.state for row in world.rows().values()} == {State.DONE}
    assert min(at for at, url in world.requests if url.startswith(B) and at > first) >= first + HOUR


@pytest.mark.parametrize("seed", range(10))
def test_hosts_whose_robots_lead_to_each_other(seed: int) -> None:
    """Neither waits for the other, whatever gets lost on the way; the chain ends and all is allowed."""

    def robots(url: str, _asked: int) -> Answer:
        return Answer(location=f"{B if url.startswith(A) else A}/robots.txt")

    definition = msgspec.structs.replace(DEFINITION, robots=True, parallelism=1)
    world = World(lambda *_: Answer(), seed, crash=(0.0, 0.01)[seed % 2], definition=definition, robots=robots)
    world.seed_urls(f"{A}/1", f"{B}/1")
    sealed(world).run()
    assert {row.state for row in world.rows().values()} == {State.DONE}


def leads_to_b(url: str, _asked: int) -> Answer:
    """robots.txt of A lies on B."""
    return Answer(location=f"{B}/r.txt") if url.startswith(A) else Answer(status=404)


def site_with_robots(seed: int, crash: float) -> World:
    """Any page is there; A's robots.txt is B's to ask for, whose shard is another one."""
    assert shard_of("a.example", 2) != shard_of("b.example", 2)
    definition = msgspec.structs.replace(DEFINITION, robots=True)
    return World(lambda *_: Answer(), seed, crash=crash, definition=definition, robots=leads_to_b, answer_timeout=600.0)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_lost_hop(seed: int, held: bool) -> None:
    """B's owner dies with the hop: it waits for B (held), or its order is out. A is asked for in 90 s, not in 600."""
    world, there = site_with_robots(seed, crash=0.0), shard_of("b.example", 2)
    if held:
        row = HostRow(not_before=world.now + 30_000)
        world.stores[there].apply([(host_key("b.example"), encode_row(row))])
    world.seed_urls(f"{A}/1")
    sealed(world)
    for _ in range(20_000):
        shard = world.loaded.get(there)
        queue = shard._release.queues.hosts.get("b.example") if shard is not None else None
        if queue is not None and (queue.guests if held else queue.out):
            break
        world.step()
    died = world.now
    del world.loaded[there]
    world.run()
    assert world.rows()[f"{A}/1"].state is State.DONE
    assert died + SEND_AGAIN - 1000 < world.ended_with[0][0] < died + SEND_AGAIN + 10_000
    assert sum(url == f"{B}/r.txt" for _, url in world.requests) == (1 if held else 2)


@pytest.mark.parametrize("seed", range(20))
def test_hops_that_are_sent_again_too_soon(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hop arrives many times, and many answers come twice: the crawl ends as it must."""
    monkeypatch.setattr(hops, "SEND_AGAIN", 20)
    world = site_with_robots(seed, crash=(0.0, 0.02)[seed % 2])
    world.seed_urls(f"{A}/1", f"{A}/2", f"{B}/1")
    sealed(world).run()
    assert {row.state for row in world.rows().values()} == {State.DONE}
    assert [result for _, result in world.ended_with] == ["exhausted"]


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_clock_skew(jump: int) -> None:
    """The clock jumps by an hour: nothing stops, nothing is lost."""
    world = World(web, seed=6, crash=0.0)
    world.now += 9 * HOUR
    world.seed_urls(f"{A}/")
    sealed(world)
    for _ in range(3):
        steps(world, 40)
        world.now += jump
    world.run()
    whole(world)


def test_late_page() -> None:
    """A duplicate order yields a page with new links after the end was announced: the end stands."""
    world = World(web, seed=7, crash=0.0)
    world.seed_urls(f"{A}/")
    sealed(world).run()
    while any(known.get(CRAWL) != world.crawls[CRAWL] for known in world.known):
        world.step()
    world.web = lambda *_: Answer(links=(f"{A}/new", f"{B}/new"))
    (_, order), *_ = world.released
    world._fetch(order)
    steps(world, 400)
    whole(world)


def test_nothing_new_but_time() -> None:
    """A URL that waits for its next attempt counts as open: no end before."""

    def site(_url: str, asked: int) -> Answer:
        return Answer() if asked else Answer(status=503, retry_after=600.0)

    world = World(site, seed=8, crash=0.0)
    world.seed_urls(f"{A}/")
    began = world.now
    sealed(world).run()
    assert world.rows()[f"{A}/"].state is State.DONE
    assert world.ended_with[0][0] >= began + 600_000


@pytest.mark.parametrize("failure", ["dns", "connection"])
def test_dead_hosts(failure: m.FailureClass) -> None:
    """300 URLs of a host that is not there: each ends with its class, the crawl ends."""
    found = [f"{A}/{i}" for i in range(300)]
    world = World(lambda *_: Answer(failure=failure, status=0), seed=9, crash=0.0)
    world.seed_urls(*found, f"{B}/")
    sealed(world).run(60_000)
    outcomes = Counter(row.outcome for row in world.rows().values())
    assert set(outcomes) == {failure, "host_unreachable"}
    assert sum(outcomes.values()) == 301
    assert outcomes["host_unreachable"] > 200


def test_a_page_that_is_lost_is_fetched_again() -> None:
    """The topic's time limit passes before a parser comes: the URL still ends."""
    world = World(lambda *_: Answer(), seed=10, crash=0.0)
    world.seed_urls(f"{A}/")
    world.parsers_run = False
    until(world, State.FETCHED, f"{A}/")
    for number in range(world.shards):
        world.position["pages", number] = world.log.end("pages", number)
    world.now += PAGE_LIFE + 60_000
    world.parsers_run = True
    sealed(world).run()
    assert world.rows()[f"{A}/"].state is State.DONE
    assert world.asked[f"{A}/"] == 2


@pytest.mark.parametrize("seed", range(5))
def test_held_for_nothing(seed: int) -> None:
    """A host was held at the page limit, and what waited for it was answered: it is forgotten, nobody looks again."""
    found = [f"{A}/{i}" for i in range(3)]
    definition = msgspec.structs.replace(DEFINITION, limit=3)
    world = World(lambda *_: Answer(links=tuple(found)), seed, crash=0.0, definition=definition)
    world.seed_urls(found[0])
    sealed(world).run()
    steps(world, 200)
    for shard in world.loaded.values():
        assert shard.census(world.now).known == 0
        assert shard.wake_at() == float("inf")


def test_parked_crawls_count() -> None:
    """Two crawls on one host, one waits for robots.txt: its delay is the stricter one and holds for both."""
    world = World(lambda *_: Answer(), seed=1, crash=0.0, robots=lambda *_: Answer(status=503))
    world.crawls["slow"] = CrawlDefinition(id="slow", delay=5.0, parallelism=1, robots=True)
    world.seed_urls(f"{A}/slow", crawl="slow")
    steps(world, 100)
    world.seed_urls(*(f"{A}/{i}" for i in range(8)))
    steps(world, 300)
    orders = [order for _, order in world.released if order.crawl == CRAWL]
    assert orders
    assert {order.delay for order in orders} == {5.0}
