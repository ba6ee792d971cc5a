"""Endless spaces of which every page says the same."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from itertools import count

import pytest

from streams import messages as m
from streams.definitions import Traps
from streams.frontier.novelty import CONTENTS, NO_TEXT, PATTERNS, WRITTEN
from streams.frontier.rows import State
from tests.unit.frontier.rig import Rig, answer, crawl, given, links, parsed, seed, seeds

H = "http://h.example"
RULE = "trap:novelty"
MANY = 110


def says(text: object) -> bytes:
    """The content fingerprint of a page."""
    return blake2b(str(text).encode(), digest_size=16).digest()


def visit(rig: Rig, url: str, content: bytes) -> bool:
    """Let a link be met and its page be parsed; whether it was fetched."""
    orders = given(rig, links(url))
    for order in orders:
        given(rig, answer(order), parsed(order, content=content))
    return bool(orders)


def rig_with(**traps: int) -> Rig:
    return Rig(crawl(traps=Traps(**{"novelty": 60, **traps})))


def fetched(rig: Rig, url_of: Callable[[int], str], content_of: Callable[[int], bytes], most: int = MANY) -> int:
    """Pages that are fetched before one is excluded."""
    return next((n for n in range(most) if not visit(rig, url_of(n), content_of(n))), most)


@pytest.mark.parametrize(
    ("url_of", "content_of", "number"),
    [
        (lambda n: f"{H}/list?page={n}", lambda _: says("no results"), 61),
        (lambda n: f"{H}/list?page={n}", lambda n: says(min(n, 40)), 101),
        (lambda n: f"{H}/{n % 20}/page;jsessionid={n:016x}", lambda n: says(n % 20), 80),
        (lambda n: f"{H}/x/{n}/", lambda n: says(n // 50), MANY),  # something new now and then
        (lambda n: f"{H}/list?page={n}", says, MANY),
        (lambda n: f"{H}/{'x' * n}y", lambda _: says("a copy"), MANY),  # words in the path: somebody wrote them
        (lambda n: f"{H}/list?page={n}", lambda _: NO_TEXT, MANY),
        (lambda n: f"{H}/list?page={n}", lambda _: b"", MANY),
    ],
)
def test_how_many_pages_of_a_pattern_are_fetched(url_of, content_of, number: int) -> None:
    rig = rig_with()
    assert fetched(rig, url_of, content_of) == number
    if number < MANY:
        assert (rig.row(url_of(number)).state, rig.row(url_of(number)).outcome) == (State.EXCLUDED, RULE)
        assert visit(rig, f"{H}/other", says("x"))


def test_it_can_be_switched_off() -> None:
    rig = rig_with(novelty=0)
    assert fetched(rig, lambda n: f"{H}/list?page={n}", lambda _: says("no results"), 70) == 70
    assert rig.host("h.example").patterns == {}


def test_what_waits_already_is_excluded_too_but_no_seed() -> None:
    rig = rig_with(novelty=3)
    orders = given(
        rig, links(*(f"{H}/?p={n}" for n in range(40))), seeds(seed(f"{H}/?p=99", origin=m.Origin("u", 0, 1)))
    )
    while orders:
        orders = given(rig, *(answer(order) for order in orders), *(parsed(o, content=says(1)) for o in orders))
    counts = rig.shard.progress(0).crawls["c"]
    assert counts.exclusions == {RULE: 41 - counts.done}
    assert counts.done < 20
    assert rig.state(f"{H}/?p=99") is State.DONE


def test_a_site_without_traps_costs_no_writes() -> None:
    rig = rig_with()
    for n in range(70):
        visit(rig, f"{H}/list?page={n}", says(n // 3))
    assert rig.host("h.example").patterns == {}


def test_a_new_owner_goes_on_counting() -> None:
    rig = rig_with()
    for n in range(50):
        assert visit(rig, f"{H}/list?page={n}", says("no results"))
    rig.load()
    assert 55 <= 50 + fetched(rig, lambda n: f"{H}/list?page={50 + n}", lambda _: says("no results")) <= 61 + 25


def test_something_new_ends_the_suspicion() -> None:
    rig = rig_with()
    for n in range(50):
        visit(rig, f"{H}/list?page={n}", says("no results"))
    assert [known.stale for known in rig.host("h.example").patterns.values()] == [25]
    visit(rig, f"{H}/list?page=new", says("news"))
    assert rig.host("h.example").patterns == {}


def test_a_page_that_is_read_again_or_visited_again_does_not_count() -> None:
    rig = rig_with(novelty=5)
    (order,) = given(rig, links(f"{H}/?p=1"))
    given(rig, answer(order), *[parsed(order, content=says(1))] * 9)
    for n in count(2):
        again = given(rig, seeds(seed(order.url, refetch=True)))
        if n == 9:
            break
        given(rig, answer(again[0]), parsed(again[0], content=says(1)))
    assert rig.host("h.example").patterns == {}


def test_pages_that_were_fetched_before_and_sitemaps_are_not_taken_for_a_trap() -> None:
    rig = rig_with(novelty=3)
    known = [f"{H}/?p={n}" for n in range(30)]
    assert fetched(rig, known.__getitem__, lambda _: says(1), 30) < 30
    assert visit(rig, known[0], says(1)) is False  # no new visit by itself
    (again,) = given(rig, seeds(seed(known[0], refetch=True)))
    assert (again.url, again.visit) == (known[0], 2)
    (sitemap,) = given(rig, seeds(seed(f"{H}/?p=map", source="sitemap")))
    assert sitemap.source == "sitemap"


def test_memory_is_bounded() -> None:
    rig = rig_with(novelty=30)
    novelties = rig.shard._novelties
    for n in range(WRITTEN + 3):
        for page in range(30):
            visit(rig, f"{H}/{'x' * n}?p={page}", says(1))
    assert len(rig.host("h.example").patterns) == WRITTEN
    for n in range(CONTENTS + 9):
        visit(rig, f"{H}/y?p={n}", says(n))
    assert {len(known.contents) for known in novelties._known.values()} == {1, CONTENTS}
    for n in range(PATTERNS):
        novelties._known["h", str(n)] = novelties._known.get(("h", "0")) or next(iter(novelties._known.values()))
    visit(rig, f"{H}/z?p=1", says(1))
    assert len(novelties._known) <= PATTERNS + WRITTEN + 4
