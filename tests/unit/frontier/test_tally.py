"""The numbers of crawls in memory, and the same from the store's counters."""

from __future__ import annotations

from typing import Any

from streams.frontier.rows import State, UrlRow
from streams.frontier.tally import Tallies, counted
from streams.messages import CrawlCounts, Progress


def row(state: State, outcome: str = "", crawl: str = "c", **fields: Any) -> UrlRow:
    return UrlRow(1, state, 0, 5, crawl, "http://h/", "h", 1, 0, 1, outcome=outcome, **fields)


ALL = [row(State.WAITING), row(State.FETCHED), row(State.FETCHED, size=30), row(State.DONE, size=4),
       row(State.FAILED, "dns"), row(State.EXCLUDED, "scope:host"), row(State.REDIRECTED)]  # fmt: skip
COUNTS = CrawlCounts(open=3, fetched=2, done=1, failed=1, excluded=1, redirected=1, hosts=4, size=34,
                     failures={"dns": 1}, exclusions={"scope:host": 1})  # fmt: skip


def test_new_rows_are_counted() -> None:
    tallies = Tallies()
    for new in ALL:
        tallies.move(None, new)
    assert tallies["c"].counts(4) == COUNTS
    assert (tallies["c"].open, tallies["c"].pages) == (3, 3)


def test_a_crawl_whose_rows_are_looked_through_counts_as_open() -> None:
    tallies = Tallies()
    tallies["c"].reopening = True
    assert tallies["c"].counts(0) == CrawlCounts(open=1)


def test_what_shards_count_together() -> None:
    one = CrawlCounts(done=1, fetched=2, released=3, size=4, open=9, failures={"dns": 1})
    reports = [Progress(shard=n, epoch=1, position=0, at=0, crawls=crawls)
               for n, crawls in enumerate(({"a": one}, {"a": one, "b": one}, {}))]  # fmt: skip
    assert counted(reports) == {
        "a": CrawlCounts(done=2, fetched=4, released=6, size=8, open=18),
        "b": CrawlCounts(done=1, fetched=2, released=3, size=4, open=9),
    }


def test_a_changed_row_moves() -> None:
    tallies = Tallies()
    tallies.move(None, row(State.FAILED, "dns"))
    tallies.move(row(State.FAILED, "dns"), row(State.EXCLUDED, "robots"))
    tallies.move(row(State.EXCLUDED, "robots"), row(State.WAITING))
    assert tallies["c"].counts(0) == CrawlCounts(open=1)


def test_sitemaps_are_no_pages() -> None:
    tallies = Tallies()
    for state in State:
        tallies.move(None, row(state, source="sitemap"))
    assert tallies["c"].pages == 0
    assert tallies["c"].open == 2
    counts = tallies["c"].counts(0)
    assert (counts.done, counts.fetched, counts.sitemaps, tallies.unparsed) == (0, 0, 1, 1)
    tallies.move(row(State.DONE, source="sitemap"), row(State.WAITING, source="sitemap"))
    assert tallies["c"].counts(0).sitemaps == 0


def test_what_comes_back_is_counted_while_it_waits_for_that() -> None:
    tallies = Tallies()
    tallies.move(None, row(State.DONE, due=9))
    tallies.move(None, row(State.WAITING, due=9))  # a retry
    assert tallies["c"].counts(0).due == 1
    tallies.move(row(State.DONE, due=9), row(State.WAITING))
    assert tallies["c"].counts(0).due == 0


def test_crawls_are_counted_apart() -> None:
    tallies = Tallies()
    tallies.move(None, row(State.DONE, crawl="a"))
    tallies.move(None, row(State.WAITING, crawl="b"))
    assert {name: tally.counts(0) for name, tally in tallies.items()} == {
        "a": CrawlCounts(done=1), "b": CrawlCounts(open=1)}  # fmt: skip


def test_counters_of_the_store_give_the_same() -> None:
    counters = {b"c\0waiting": 1, b"c\0fetched": 2, b"c\0done": 1, b"c\0failed": 1, b"c\0failed:dns": 1,
                b"c\0excluded": 1, b"c\0excluded:scope:host": 1, b"c\0redirected": 1, b"d\0done": 2,
                b"e\0done": 7, b"e\0done:sitemap": 3, b"e\0fetched": 2, b"e\0fetched:sitemap": 1, b"e\0due": 5,
                b"due\0done": 1, b"c\0size": 34}  # fmt: skip
    tallies = Tallies.from_counters(counters)
    assert tallies["c"].counts(4) == COUNTS
    assert tallies["d"].counts(0) == CrawlCounts(done=2)
    assert tallies["e"].counts(0) == CrawlCounts(done=4, fetched=1, sitemaps=3, due=5, open=2)
    assert tallies["due"].counts(0) == CrawlCounts(done=1)


def test_what_lives_in_memory_is_told_too() -> None:
    tally = Tallies()["c"]
    tally.activity, tally.duplicates, tally.released = 1, 2, 3
    assert tally.counts(0) == CrawlCounts(activity=1, duplicates=2, released=3)
