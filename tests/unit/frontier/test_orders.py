"""Fetch orders and their trace."""

from __future__ import annotations

import re

import msgspec
import pytest

from streams.frontier.orders import robots_key, traceparent
from streams.frontier.rows import State, UrlRow
from streams.messages import Basis
from tests.unit.frontier.rig import START, Rig, crawl, key, seed, seeds

ROW = UrlRow(1, State.WAITING, 0, 5, "c", "http://h.example/", "h.example", 3, 1, 1)
KEY = bytes(range(16))
SEEDS = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def with_(**fields) -> UrlRow:
    return msgspec.structs.replace(ROW, **fields)


def test_an_order_says_all_the_fetcher_needs() -> None:
    rig = Rig(crawl(delay=1.5, parallelism=7, version=4, user_agent="ua", max_body=99))
    item = seed("http://h.example/", depth=2, priority=8, parent="p", via=("http://v/",), headers={"a": "b"}, meta=[1])
    (order,) = [*rig.turn(seeds(item)), *rig.settle()]
    facts = {name: value for name, value in msgspec.structs.asdict(order).items() if name != "traceparent"}
    assert facts == {
        "schema": 1, "kind": "page", "crawl": "c", "url": "http://h.example/", "fingerprint": key("http://h.example/"),
        "host": "h.example", "shard": 3, "epoch": 0, "visit": 1, "attempt": 0, "depth": 2, "priority": 8, "parent": "p",
        "via": ("http://v/",), "headers": {"a": "b"}, "meta": [1], "delay": 1.5, "parallelism": 7, "not_before": 0,
        "rules": 4, "robots": "", "user_agent": "ua", "max_body": 99, "etag": "", "last_modified": "",
        "released": START, "random_delay": 0.0, "timeout": 0.0, "accept": (), "rule": "", "source": "page",
        "basis": Basis(),
    }  # fmt: skip


@pytest.mark.parametrize("given", ["", SEEDS, "nonsense"])
def test_traceparent_has_the_form_of_the_standard(given: str) -> None:
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", traceparent(with_(traceparent=given), KEY))


def test_a_trace_is_a_url_and_visit_a_span_an_attempt() -> None:
    def ids(row: UrlRow, key: bytes = KEY) -> tuple[str, str]:
        _, trace, span, _ = traceparent(row, key).split("-")
        return trace, span

    base = ids(ROW)
    assert ids(with_(attempt=2))[0] == base[0]
    assert ids(with_(attempt=2))[1] != base[1]
    assert ids(with_(visit=4))[0] != base[0]
    assert ids(with_(visit=4))[1] != base[1]
    assert ids(ROW, bytes(16))[0] != base[0]
    assert ids(with_(visit=13, attempt=1)) != ids(with_(visit=1, attempt=31))
    assert ids(ROW, b"\xff" * 16)[0]  # no overflow


def test_the_seeds_own_trace_goes_on() -> None:
    given = traceparent(with_(traceparent=SEEDS), KEY)
    assert given.startswith("00-0123456789abcdef0123456789abcdef-")
    assert given.endswith("-01")
    assert given != SEEDS


def test_robots_orders_have_keys_of_their_own() -> None:
    assert len({robots_key("http://h"), robots_key("https://h"), key("http://h/robots.txt")}) == 3
    assert len(robots_key("http://h")) == 16
