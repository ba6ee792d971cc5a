"""A queue's front is deleted entries: they must not make looking at it slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from streams.frontier.hosts import CrawlQueue, waiting_hosts
from streams.frontier.index import FrontierIndexer, queue_prefix
from streams.frontier.rows import State, UrlRow, encode_row, url_key
from streams.settings import Frontier
from streams.state.shelf import Shelf
from streams.state.store import Store

NUMBER = 100_000
PACK = 2_000
LONGEST = 0.05
"""Seconds that walking over 100,000 deleted entries takes. Of several looks the shortest counts."""


def put(store: Store, numbers: range, state: State) -> None:
    rows = [(url_key(n.to_bytes(16, "big")), encode_row(UrlRow(1, state, 0, 5, "c", f"http://h/{n}", "h", 1, 0, n)))
            for n in numbers]  # fmt: skip
    store.apply(rows, store.offset + len(rows))


def shortest(look: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        look()
        times.append(time.perf_counter() - began)
    return min(times)


@pytest.mark.alone
@pytest.mark.slow
async def test_looking_at_a_queue_stays_fast_when_its_front_was_consumed(tmp_path):
    store = await Shelf(tmp_path, "rows", FrontierIndexer(), Frontier(), 1 << 60, lambda: 0).open("c", "t", 0)
    assert list(store.derive()) == []
    for first in range(0, NUMBER + PACK, PACK):
        put(store, range(first, first + PACK), State.WAITING)
    queue = CrawlQueue(queue_prefix("h", "c"))
    for first in range(0, NUMBER, PACK):
        popped = [queue.pop(store) for _ in range(PACK)]
        assert popped == [n.to_bytes(16, "big") for n in range(first, first + PACK)]
        put(store, range(first, first + PACK), State.DONE)
    after = queue.prefix + queue.cursor
    assert shortest(lambda: store.scan(queue.prefix, after=after, limit=16)) < LONGEST / 10  # compacted or not
    deadline = time.monotonic() + 10
    while shortest(lambda: list(waiting_hosts(store))) > LONGEST / 10:
        assert time.monotonic() < deadline, "deleted entries are not compacted"
        await asyncio.sleep(0.1)
    assert store.scan(queue.prefix, limit=1)[0][1] == NUMBER.to_bytes(16, "big")
    store.close()
