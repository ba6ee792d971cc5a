"""Forgetting and expiry under crashes, replays and late answers: nothing is left, nothing comes back."""

from __future__ import annotations

import msgspec
import pytest

from streams import messages as m
from streams.frontier.rows import SWEEP_KEY, State
from streams.policy.forgetting import denied_by, deny_prefix
from tests.simulation.world import CRAWL, DEFINITION, FORGOTTEN, Answer, World

HOSTS = [f"http://h{i}.example" for i in range(4)]
SECRET = "/secret/"


def web(url: str, asked: int) -> Answer:
    """Each host: pages that link to each other, to secret ones, and to those of the next host; some fail at first."""
    host, _, path = url.removeprefix("http://").partition("/")
    number = int(host[1])
    if path.endswith("7") and asked == 0:
        return Answer(status=503)
    here, there = HOSTS[number], HOSTS[(number + 1) % len(HOSTS)]
    links = [f"{there}/{i}" for i in range(3)] + [f"{here}/{i}" for i in range(9)]
    return Answer(links=(*links, *(f"{here}{SECRET}{i}" for i in range(9))))


def forget(world: World) -> None:
    """What `fyke forget --prefix` does, for the secret pages of every host."""
    known = world.crawls[CRAWL]
    for host in HOSTS:
        known = denied_by(known, deny_prefix(host + SECRET))
    world.crawls[CRAWL] = msgspec.structs.replace(known, version=known.version + 1)
    for number in range(world.shards):
        world.known[number].update(world.crawls)  # the command names the version that must be known
    for host in HOSTS:
        world.deliver(host, m.Command(action="forget", crawl=CRAWL, prefix=host + SECRET))


def settle(world: World) -> None:
    """Until no sweep is pending and nothing is on its way."""
    for _ in range(20_000):
        if not any(store.rows(SWEEP_KEY) for store in world.stores) and world._quiet():
            return
        world.now += 50
        world.step()
    raise AssertionError(f"seed {world.seed}: the sweeps do not end")


@pytest.mark.parametrize("seed", range(6))
def test_what_is_forgotten_during_a_crawl_is_gone_in_the_end(seed: int) -> None:
    world = World(web, seed, crash=0.1)
    world.seed_urls(*(f"{host}/0" for host in HOSTS))
    while sum(SECRET in url for url, _ in world.records) < 3 + seed:
        world.step()
    forget(world)
    world.crawls[CRAWL] = msgspec.structs.replace(world.crawls[CRAWL], state="sealed", seal={})
    world.run()
    settle(world)
    left = {url: row for url, row in world.rows().items() if SECRET in url}
    assert all(row.state is State.EXCLUDED and not row.attempt and row.page is None for row in left.values())
    last = {url: visit for url, visit in world.records if SECRET in url}
    assert set(last.values()) == {FORGOTTEN}
    assert {url for url, visit in world.records if visit == FORGOTTEN} <= last.keys()
    others = {url: row.state for url, row in world.rows().items() if SECRET not in url}
    assert set(others.values()) == {State.DONE}
    assert len(others) == 4 * 9


@pytest.mark.parametrize("seed", range(4))
def test_no_row_is_left_of_a_crawl_whose_time_is_over(seed: int) -> None:
    world = World(web, seed, crash=0.1, definition=msgspec.structs.replace(DEFINITION, state="sealed", seal={}))
    world.seed_urls(*(f"{host}/0" for host in HOSTS))
    world.run()
    ended = msgspec.structs.replace(world.crawls[CRAWL], ended=world.now, version=9)
    world.crawls[CRAWL] = ended
    world.now += 72 * 3_600_000
    late = [(place, list(log)) for place, log in world.log.partitions.items() if place[0] == "inbox"]
    for _ in range(1500):
        world.step()
    assert world.rows() == {}
    for (topic, number), values in late:  # everything is read again
        for value in values:
            world.log.append(topic, number, value)
    for _ in range(1500):
        world.step()
    assert world.rows() == {}
    assert all(report.crawls.get(CRAWL) is None for report in world.board.values())
