"""Index entries and counters of rows."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from streams.frontier.index import (
    FrontierIndexer,
    queue_entry,
    queue_place,
    queue_prefix,
    split_queue_entry,
    split_timed_entry,
    timed_entry,
)
from streams.frontier.rows import HostRow, State, UrlRow, encode_row, host_key, url_key

ROW = UrlRow(1, State.WAITING, 0, 5, "crawl", "http://h.example/", "h.example", 1, 0, 300)
FP = b"f" * 16


def with_(**fields) -> UrlRow:
    return msgspec.structs.replace(ROW, **fields)


@pytest.mark.parametrize(
    ("row", "entries", "counters"),
    [
        (ROW, [(queue_entry(ROW), FP)], {b"crawl\0waiting": 1}),
        (with_(due=7), [(timed_entry(b"d", 7, FP), b"")], {b"crawl\0waiting": 1}),
        (with_(state=State.FETCHED, visited=8), [(timed_entry(b"f", 8, FP), b"")], {b"crawl\0fetched": 1}),
        (with_(state=State.DONE), [], {b"crawl\0done": 1}),
        (with_(state=State.DONE, due=9), [(timed_entry(b"r", 9, FP), b"")], {b"crawl\0done": 1, b"crawl\0due": 1}),
        (
            with_(state=State.EXCLUDED, outcome="robots", due=9), [(timed_entry(b"r", 9, FP), b"")],
            {b"crawl\0excluded": 1, b"crawl\0excluded:robots": 1, b"crawl\0due": 1},
        ),
        (with_(source="sitemap"), [(queue_entry(ROW), FP)], {b"crawl\0waiting": 1}),
        (with_(state=State.DONE, source="sitemap"), [], {b"crawl\0done": 1, b"crawl\0done:sitemap": 1}),
        (
            with_(state=State.FETCHED, visited=8, source="sitemap"), [(timed_entry(b"f", 8, FP), b"")],
            {b"crawl\0fetched": 1, b"crawl\0fetched:sitemap": 1},
        ),
        (with_(state=State.REDIRECTED), [], {b"crawl\0redirected": 1}),
        (with_(state=State.FAILED, outcome="dns"), [], {b"crawl\0failed": 1, b"crawl\0failed:dns": 1}),
        (
            with_(state=State.EXCLUDED, outcome="scope:host"),
            [(b"xcrawl\0scope:host\0" + queue_place(ROW) + FP, b"")],
            {b"crawl\0excluded": 1, b"crawl\0excluded:scope:host": 1},
        ),
        (
            with_(state=State.EXCLUDED, outcome="cancelled"), [],
            {b"crawl\0excluded": 1, b"crawl\0excluded:cancelled": 1},
        ),
        (with_(state=State.DONE, size=70), [], {b"crawl\0done": 1, b"crawl\0size": 70}),
    ],
)  # fmt: skip
def test_what_is_derived_from_a_row(row: UrlRow, entries, counters) -> None:
    indexer, value = FrontierIndexer(), encode_row(row)
    assert list(indexer.entries(url_key(FP), value)) == entries
    assert dict(indexer.counters(url_key(FP), value)) == counters


def test_nothing_is_derived_from_a_host() -> None:
    indexer, value = FrontierIndexer(), encode_row(HostRow())
    assert (*indexer.entries(host_key("h"), value), *indexer.counters(host_key("h"), value)) == ()


def test_two_values_by_turns_are_not_mixed_up() -> None:
    indexer = FrontierIndexer()
    one, two = encode_row(ROW), encode_row(with_(state=State.DONE))
    for _ in range(2):
        assert dict(indexer.counters(url_key(FP), one)) == {b"crawl\0waiting": 1}
        assert dict(indexer.counters(url_key(FP), two)) == {b"crawl\0done": 1}


def test_entries_sort_by_urgency_then_arrival() -> None:
    order = [
        with_(priority=9, seq=0), with_(priority=9, seq=900), with_(priority=9, seq=(1 << 64) - 1),
        with_(priority=5, seq=255), with_(seq=256), with_(seq=1 << 40), with_(priority=0, seq=1),
    ]  # fmt: skip
    assert all(queue_entry(a) < queue_entry(b) for a, b in pairwise(order))


def test_entries_sort_by_time() -> None:
    assert timed_entry(b"d", 255, b"\xff" * 16) < timed_entry(b"d", 256, b"\0" * 16)


def test_entries_can_be_read_back() -> None:
    assert split_queue_entry(queue_entry(ROW)) == ("h.example", "crawl")
    assert split_timed_entry(timed_entry(b"d", 1_700_000_000_000, FP)) == (1_700_000_000_000, FP)


def test_a_host_is_no_prefix_of_another() -> None:
    assert not queue_entry(with_(host="h.example.org")).startswith(queue_prefix("h.example", "crawl"))
    assert not queue_entry(with_(crawl="crawl2")).startswith(queue_prefix("h.example", "crawl"))
