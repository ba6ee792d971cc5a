from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agents.packs import MAX_NESTING, MAX_URL, Emitted, Packer
from streams.codecs import decode_inbox
from streams.definitions import CrawlDefinition, Keys, Recrawl, Scope, ScopeRule, Traps
from streams.messages import PACK_BYTES, PACK_ITEMS, Candidate, Candidates, Links, PageHeaders, Source
from streams.policy import urls
from streams.topics import shard_of

ANY = CrawlDefinition(id="c", traps=Traps(length=0))
NOW = 1_795_000_000_000  # 2026


def page(
    url: str = "http://a.test/p", depth: int = 0, crawl: str = "c", priority: int = 5, source: Source = "page"
) -> PageHeaders:
    return PageHeaders(
        crawl=crawl, url=url, fingerprint=bytes(16), visit=1, shard=0, status=200, headers=[], start=0, first_byte=0,
        end=NOW, depth=depth, priority=priority, source=source, traceparent="00-1-2-01",
    )  # fmt: skip


def packer(shards: int = 4) -> Packer:
    return Packer(shards, lambda url: urls.politeness_key(url, "host"))


def packs(turn: Any) -> list[tuple[int, Links]]:
    found = []
    for shard, data in turn.messages():
        message = decode_inbox(data)
        assert isinstance(message, Links)
        assert len(data) <= PACK_BYTES
        assert len(message.urls) <= PACK_ITEMS
        assert sum(parent.count for parent in message.parents) == len(message.urls)
        found.append((shard, message))
    return found


def sent(turn: Any) -> list[str]:
    return [url for _, pack in packs(turn) for url in pack.urls]


def test_each_link_goes_to_its_shard_with_its_fingerprint_and_parent() -> None:
    found = [f"http://h{n}.test/%7Ex" for n in range(20)]
    turn = packer().turn(0.0)
    assert turn.add(page(depth=2), found, ANY) == (20, {})
    assert turn.sent == 20
    for shard, pack in packs(turn):
        assert pack.crawl == "c"
        assert [(parent.url, parent.depth, parent.traceparent) for parent in pack.parents] == [
            ("http://a.test/p", 3, "00-1-2-01")
        ]
        for n, url in enumerate(pack.urls):
            assert shard == shard_of(urls.hostname(url), 4)
            fingerprint = urls.fingerprint("c", urls.canonical(url))
            assert pack.fingerprints[16 * n : 16 * n + 16] == fingerprint
    assert sorted(sent(turn)) == sorted(found)


def test_fingerprints_are_those_of_the_crawls_keys() -> None:
    found = ["http://www.a.test/x?utm_source=1", "http://a.test/x"]
    turn = packer().turn(0.0)
    keys = Keys(strip_www=True, tracking=True)
    assert turn.add(page(), found, CrawlDefinition(id="c", keys=keys)) == (2, {})
    ((_, pack),) = packs(turn)  # one shard has both hosts, and knows them as one
    assert pack.urls == found
    assert pack.fingerprints == urls.fingerprint("c", "http://a.test/x") * 2


def test_scope_rules_and_traps_keep_links_back() -> None:
    rules = (ScopeRule(id="no-print", path="/*?print"), ScopeRule(id="partner", domain="b.test", allow=True))
    scope = Scope(mode="host", values=("a.test",))
    crawl = CrawlDefinition(id="c", scope=scope, scope_rules=rules)
    found = ["http://a.test/x", "http://b.test/x", "http://c.test/", "http://b.test/?print", "http://a.test/?date=2099-01",
             "http://a.test/" + "a/b/" * 4, "http://b.test/" + "y" * 2048]  # fmt: skip
    turn = packer().turn(0.0)
    dropped = {"scope:host": 1, "scope:no-print": 1, "trap:calendar": 1, "trap:repeats": 1, "trap:length": 1}
    assert turn.add(page(), found, crawl) == (2, dropped)
    assert sorted(sent(turn)) == ["http://a.test/x", "http://b.test/x"]


def test_links_inherit_the_priority_of_their_page() -> None:
    sender, found = packer(), ["http://a.test/x"]
    turn = sender.turn(0.0)
    turn.add(page(priority=2), found, ANY)
    turn.add(page(priority=9), found, ANY)  # it is to be raised
    turn.add(page(priority=9), found, ANY)
    ((_, pack),) = packs(turn)
    assert [(parent.priority, parent.count) for parent in pack.parents] == [(2, 1), (9, 1)]
    turn.delivered(0.0)
    turn = sender.turn(1.0)
    for priority in (2, 9):
        turn.add(page(priority=priority), found, ANY)
    assert turn.sent == 0


def test_parents_follow_each_other_in_a_pack() -> None:
    turn = packer().turn(0.0)
    turn.add(page("http://a.test/1"), ["http://a.test/x", "http://a.test/y"], ANY)
    turn.add(page("http://a.test/2", depth=1), ["http://a.test/y", "http://a.test/z"], ANY)
    turn.add(page("http://a.test/3"), ["http://a.test/x"], ANY)
    ((_, pack),) = packs(turn)
    assert pack.urls == ["http://a.test/x", "http://a.test/y", "http://a.test/z"]
    assert [(parent.url, parent.depth, parent.count) for parent in pack.parents] == [
        ("http://a.test/1", 1, 2), ("http://a.test/2", 2, 1),
    ]  # fmt: skip


def test_crawls_do_not_mix() -> None:
    turn = packer().turn(0.0)
    turn.add(page(), ["http://a.test/x"], ANY)
    turn.add(page(crawl="d"), ["http://a.test/x"], CrawlDefinition(id="d"))
    assert Counter(pack.crawl for _, pack in packs(turn)) == {"c": 1, "d": 1}


@pytest.mark.parametrize("length", [30, 1000, MAX_URL - 20])
def test_packs_are_bounded_in_items_and_bytes(length: int) -> None:
    turn = packer(1).turn(0.0)
    found = [f"http://a.test/{n:06}" + "x" * length for n in range(4500)]
    turn.add(page("http://a.test/" + "p" * 5000), found[:2000], ANY)
    turn.add(page("http://a.test/q"), found[2000:], ANY)
    assert sent(turn) == found


def test_out_of_scope_links_are_counted_and_stay() -> None:
    definition = CrawlDefinition(id="c", scope=Scope(mode="host", values=("a.test",)))
    turn = packer().turn(0.0)
    long = "http://a.test/" + "x" * MAX_URL
    found = ["http://a.test/x", "http://b.test/x", "http://c.test/x", long]
    assert turn.add(page(), found, definition) == (1, {"scope:host": 2, "limit:url": 1})
    assert sent(turn) == ["http://a.test/x"]


@pytest.mark.parametrize(
    ("definition", "rule"),
    [
        (None, "crawl:unknown"),
        (CrawlDefinition(id="c", state="ended"), "crawl:ended"),
        (CrawlDefinition(id="c", depth=0), "depth"),
        (CrawlDefinition(id="c", depth=3), "depth"),
    ],
)
def test_pages_whose_links_stay(definition: CrawlDefinition | None, rule: str) -> None:
    turn = packer().turn(0.0)
    assert turn.add(page(depth=3), ["http://a.test/x", "http://a.test/y"], definition) == (0, {rule: 2})
    assert turn.add(page(depth=3), [], definition) == (0, {})
    assert sent(turn) == []


@pytest.mark.parametrize("state", ["open", "sealed", "paused"])
def test_links_of_living_crawls_are_followed_up_to_the_depth(state: Any) -> None:
    turn = packer().turn(0.0)
    turn.add(page(depth=2), ["http://a.test/x"], CrawlDefinition(id="c", state=state, depth=3))
    assert sent(turn) == ["http://a.test/x"]


def test_a_delivered_link_is_not_sent_again_but_counted() -> None:
    links = packer()
    first = links.turn(0.0)
    first.add(page(), ["http://a.test/x"], ANY)
    second = links.turn(0.0)  # parsed while the first is on its way
    second.add(page("http://a.test/q"), ["http://a.test/x"], ANY)
    assert sent(second) == ["http://a.test/x"]
    first.delivered(1.0)
    third = links.turn(2.0)
    assert third.add(page("http://a.test/r"), ["http://a.test/x", "http://a.test/y"], ANY) == (2, {})
    assert sent(third) == ["http://a.test/y"]


def test_a_turn_that_is_not_delivered_is_not_remembered() -> None:
    links = packer()
    links.turn(0.0).add(page(), ["http://a.test/x"], ANY)
    again = links.turn(1.0)
    again.add(page(), ["http://a.test/x"], ANY)
    assert sent(again) == ["http://a.test/x"]


def test_a_smaller_depth_is_news_where_depth_is_limited() -> None:
    limited = CrawlDefinition(id="c", depth=9)
    for definition, expected in ((limited, ["http://a.test/x"]), (ANY, [])):
        links = packer()
        deep = links.turn(0.0)
        deep.add(page(depth=5), ["http://a.test/x"], definition)
        deep.delivered(0.0)
        shallow = links.turn(0.0)
        shallow.add(page(depth=4), ["http://a.test/x"], definition)
        assert sent(shallow) == expected
        shallow.delivered(0.0)
        same = links.turn(0.0)
        same.add(page(depth=4), ["http://a.test/x"], definition)
        same.add(page(depth=6), ["http://a.test/x"], definition)
        assert sent(same) == []
    within = packer().turn(0.0)
    within.add(page(depth=5), ["http://a.test/x"], limited)
    within.add(page(depth=1), ["http://a.test/x"], limited)
    ((_, pack),) = packs(within)
    assert [(parent.depth, parent.count) for parent in pack.parents] == [(6, 1), (2, 1)]


def test_a_new_version_of_a_crawl_has_its_scope_at_once() -> None:
    links = packer()
    before = CrawlDefinition(id="c", scope=Scope(mode="host", values=("a.test",)))
    after = CrawlDefinition(id="c", version=2, scope=Scope(mode="host", values=("b.test",)))
    found = ["http://a.test/x", "http://b.test/x"]
    for definition, expected in ((before, found[:1]), (after, found[1:])):
        turn = links.turn(0.0)
        turn.add(page(), found, definition)
        assert sent(turn) == expected


def test_links_are_forgotten_in_time_for_their_next_visit() -> None:
    endless = CrawlDefinition(id="c", endless=True, seen_ttl=100.0)
    links = packer()
    turn = links.turn(0.0)
    turn.add(page(), ["http://a.test/x"], endless)
    turn.delivered(0.0)
    for now, expected in ((9.0, []), (19.0, []), (40.0, ["http://a.test/x"])):
        again = links.turn(now)
        again.add(page(), ["http://a.test/x"], endless)
        assert sent(again) == expected, now


def test_crawls_that_were_not_asked_for_lately_are_forgotten() -> None:
    links = packer()
    first = links.turn(0.0)
    first.add(page(), ["http://a.test/x"], ANY)
    for n in range(40):
        links.turn(0.0).add(page(), ["http://a.test/x"], CrawlDefinition(id=f"c{n}"))
    first.delivered(0.0)
    again = links.turn(0.0)
    again.add(page(), ["http://a.test/x"], ANY)
    assert sent(again) == ["http://a.test/x"]


def test_memory_is_bounded() -> None:
    emitted = Emitted(1000.0, capacity=10)
    for n in range(100):
        emitted.add([(f"u{n}", 1)], 0.0)
    known = [n for n in range(100) if emitted.depth(f"u{n}") is not None]
    assert 10 <= len(known) <= 20
    assert known[-1] == 99


def test_the_smallest_depth_is_kept() -> None:
    emitted = Emitted(1000.0)
    emitted.add([("u", 3), ("u", 1), ("u", 2)], 0.0)
    assert emitted.depth("u") == 1


# --- sitemaps

RECRAWL = CrawlDefinition(id="c", recrawl=Recrawl())


@pytest.mark.parametrize(("limit", "number"), [(None, 1), (1, 1), (0, 0)])
def test_links_of_a_sitemap_are_one_step_away_however_many_indexes_led_to_it(limit: int | None, number: int) -> None:
    turn = packer().turn(0.0)
    definition = CrawlDefinition(id="c", depth=limit)
    found, dropped = turn.add(page(depth=4, source="sitemap"), ["http://a.test/x"], definition)
    assert (found, dropped) == (number, {} if number else {"depth": 1})
    assert [parent.depth for _, pack in packs(turn) for parent in pack.parents] == [1] * number


def dates(turn: Any) -> dict[str, int]:
    return {url: date for _, pack in packs(turn) for url, date in zip(pack.urls, pack.lastmods, strict=True)}


def test_dates_travel_with_their_links() -> None:
    """Also in a pack with links of other pages, which have none."""
    turn = packer(1).turn(0.0)
    turn.add(page(), ["http://a.test/1"], RECRAWL)
    turn.add(page(source="sitemap"), ["http://a.test/2", "http://a.test/3"], RECRAWL, {"http://a.test/3": 5})
    turn.add(page(), ["http://a.test/4"], RECRAWL)
    assert dates(turn) == {"http://a.test/1": 0, "http://a.test/2": 0, "http://a.test/3": 5, "http://a.test/4": 0}


def test_without_a_recrawl_nobody_wants_dates() -> None:
    turn = packer(1).turn(0.0)
    turn.add(page(source="sitemap"), ["http://a.test/1"], ANY, {"http://a.test/1": 5})
    assert [pack.lastmods for _, pack in packs(turn)] == [[]]


def test_a_date_is_news_of_a_link_that_was_sent() -> None:
    links = packer()
    first = links.turn(0.0)
    first.add(page(), ["http://a.test/x"], RECRAWL)
    first.delivered(0.0)
    again = links.turn(1.0)
    again.add(page(source="sitemap"), ["http://a.test/x"], RECRAWL, {"http://a.test/x": 5})
    assert dates(again) == {"http://a.test/x": 5}


def test_packs_with_dates_keep_to_their_size() -> None:
    turn = packer(1).turn(0.0)
    found = [f"http://a.test/{n:0200}" for n in range(3 * PACK_ITEMS)]
    turn.add(page(source="sitemap"), found, RECRAWL, dict.fromkeys(found, 1_767_225_600_000))
    assert set(dates(turn)) == set(found)


def candidates(turn: Any) -> list[tuple[int, Candidate]]:
    found = []
    for shard, data in turn.messages():
        message = decode_inbox(data)
        assert isinstance(message, Candidates)
        assert len(data) <= PACK_BYTES
        assert len(message.items) <= PACK_ITEMS
        found += [(shard, item) for item in message.items]
    return found


def test_sitemaps_of_an_index_become_candidates_of_their_shards() -> None:
    turn = packer().turn(0.0)
    index = page("http://a.test/index.xml", depth=2, source="sitemap")
    found = [f"http://h{n}.test/%7Es" for n in range(9)]
    assert turn.add_sitemaps(index, found, ANY, {found[0]: 7}) == (9, {})
    sent_ = candidates(turn)
    assert {item.url for _, item in sent_} == set(found)
    for shard, item in sent_:
        assert shard == shard_of(urls.hostname(item.url), 4)
        fingerprint = urls.fingerprint("c", urls.canonical(item.url))
        assert item == Candidate(
            url=item.url, fingerprint=fingerprint, crawl="c", depth=3, parent="http://a.test/index.xml",
            source="sitemap", lastmod=7 if item.url == found[0] else 0,
        )  # fmt: skip


def test_many_sitemaps_go_out_in_portions() -> None:
    turn = packer(1).turn(0.0)
    long = [f"http://a.test/{n:01500}" for n in range(PACK_ITEMS)]
    short = [f"http://a.test/{n}" for n in range(2 * PACK_ITEMS + 1)]
    turn.add_sitemaps(page(source="sitemap"), [*long, *short], ANY, {})
    assert len(candidates(turn)) == len(long) + len(short)


@pytest.mark.parametrize(
    ("definition", "depth", "rule"),
    [
        (None, 0, "crawl:unknown"),
        (CrawlDefinition(id="c", state="ended"), 0, "crawl:ended"),
        (CrawlDefinition(id="c", depth=0), 0, "depth"),
        (ANY, MAX_NESTING, "sitemap:nested"),
        (ANY, MAX_NESTING - 1, ""),
        (CrawlDefinition(id="c", depth=1), MAX_NESTING - 1, ""),
    ],
)
def test_sitemaps_may_be_kept_back(definition: CrawlDefinition | None, depth: int, rule: str) -> None:
    turn = packer().turn(0.0)
    found = ["http://a.test/1", "http://a.test/2"]
    expected = (0, {rule: 2}) if rule else (2, {})
    assert turn.add_sitemaps(page(depth=depth, source="sitemap"), found, definition, {}) == expected
    assert len(candidates(turn)) == (0 if rule else 2)


def test_a_sitemap_with_an_endless_url_is_kept_back() -> None:
    turn = packer().turn(0.0)
    long = "http://a.test/" + "x" * MAX_URL
    assert turn.add_sitemaps(page(source="sitemap"), [long, "http://a.test/1"], ANY, {}) == (1, {"limit:url": 1})
    assert turn.add_sitemaps(page(source="sitemap"), [], None, {}) == (0, {})
