"""Rows and their bytes."""

from __future__ import annotations

import msgspec
import pytest

from streams.errors import NewerSchemaError
from streams.frontier.rows import (
    ROW_SCHEMA,
    HostRow,
    Probe,
    State,
    UrlRow,
    decode_host_row,
    decode_url_row,
    encode_row,
    host_key,
    unmoved_by,
    url_key,
)
from streams.messages import Origin, RobotsRules
from streams.policy.retry import Breaker

ROW = UrlRow(
    ROW_SCHEMA, State.FETCHED, 3, 5, "c", "http://h/", "h", 2, 1, 77, due=9, parent="p", via=("v",), visited=8,
    outcome="timeout", status=200, page=(1, 2), etag="e", last_modified="l", content=b"c" * 16, headers={"a": "b"},
    meta={"k": [1]}, origins=(Origin("urls", 0, 7, 1),), traceparent="t",
)  # fmt: skip
HOST = HostRow(
    not_before=5, breaker=Breaker(since=1, until=2, probes=3), probes={"http://h": Probe(1, 2, "dns", "why")},
    robots={"http://h": RobotsRules(origin="http://h", version="v", fetched=1, expires=2, rules=((True, "/a"),))},
)  # fmt: skip


def test_rows_come_back_as_they_were() -> None:
    assert decode_url_row(encode_row(ROW)) == ROW
    assert decode_host_row(encode_row(HOST)) == HOST


def test_a_field_added_by_a_newer_release_is_ignored() -> None:
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(encode_row(ROW)), "new"])
    assert decode_url_row(longer) == ROW


@pytest.mark.parametrize(
    ("row", "decode"),
    [(msgspec.structs.replace(ROW, schema=2), decode_url_row), (HostRow(schema=2), decode_host_row)],
)
def test_a_row_of_a_newer_schema_stops_the_worker(row, decode) -> None:
    with pytest.raises(NewerSchemaError, match="schema 2"):
        decode(encode_row(row))


def test_keys_of_urls_and_hosts_differ() -> None:
    assert url_key(b"x" * 16) == b"u" + b"x" * 16
    assert host_key("x") == b"hx"


@pytest.mark.parametrize("state", list(State))
def test_waiting_and_fetched_are_open(state: State) -> None:
    assert msgspec.structs.replace(ROW, state=state).open == (state in {State.WAITING, State.FETCHED})


WAITING = msgspec.structs.replace(ROW, state=State.WAITING)
DONE = msgspec.structs.replace(ROW, state=State.DONE)


@pytest.mark.parametrize(
    ("row", "depth", "priority", "endless", "unmoved"),
    [
        (WAITING, 3, 5, False, True),
        (WAITING, 4, 0, True, True),
        (WAITING, 2, 5, False, False),
        (WAITING, 3, 6, False, False),
        (ROW, 3, 9, True, True),  # its priority matters only while it waits
        (DONE, 3, 9, False, True),
        (DONE, 9, 0, True, False),
        (DONE, 2, 5, False, False),
        (msgspec.structs.replace(ROW, state=State.FAILED), 3, 9, False, True),
        (msgspec.structs.replace(ROW, state=State.REDIRECTED), 3, 9, False, True),
        (msgspec.structs.replace(ROW, state=State.EXCLUDED), 9, 0, False, False),
        (msgspec.structs.replace(WAITING, depth=128), 300, 0, False, False),  # two bytes: look at the row itself
        (msgspec.structs.replace(WAITING, depth=127), 300, 0, False, True),
        (msgspec.structs.replace(WAITING, schema=ROW_SCHEMA + 1), 9, 0, False, False),
    ],
)
def test_first_bytes_tell_that_a_link_changes_nothing(
    row: UrlRow, depth: int, priority: int, endless: bool, unmoved: bool
) -> None:
    assert unmoved_by(encode_row(row), depth, priority, endless=endless) is unmoved


def test_a_longer_row_is_read_as_a_whole() -> None:
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(encode_row(WAITING)), "new"])
    assert not unmoved_by(longer, 9, 0, endless=False)
