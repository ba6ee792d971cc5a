from __future__ import annotations

from dataclasses import dataclass

import pytest

from streams.errors import NewerSchemaError
from streams.state.fencing import MARKER, MARKER_VALUE, NO_EPOCH, Headers, epoch_headers, epoch_of, fence
from streams.state.fold import fold


@dataclass(frozen=True)
class Record:
    offset: int
    key: bytes
    value: bytes | None
    headers: Headers = ()


def row(offset: int, epoch: int, key: bytes, value: bytes | None) -> Record:
    return Record(offset, key, value, epoch_headers(epoch))


def mark(offset: int) -> Record:
    return Record(offset, MARKER, MARKER_VALUE)


def test_an_epoch_survives_the_wire_and_a_strange_header_is_none():
    assert epoch_of(epoch_headers(1 << 40)) == 1 << 40
    assert epoch_of([("other", b"1"), ("e", b"short")]) == NO_EPOCH
    assert epoch_of(()) == NO_EPOCH


@pytest.mark.parametrize(("epoch", "highest", "counts"), [(5, 5, True), (6, 5, True), (4, 5, False), (-1, -1, True)])
def test_a_record_counts_unless_a_later_epoch_began(epoch, highest, counts):
    assert fence(epoch, highest) is counts


def test_the_newest_accepted_value_of_each_key_stands():
    folded = fold([mark(0), row(1, 0, b"a", b"1"), row(2, 0, b"b", b"2"), row(3, 0, b"a", None)], NO_EPOCH)
    assert folded.rows == {b"a": None, b"b": b"2"}
    assert folded.epoch == 0
    assert folded.stale == set()


def test_a_record_of_a_former_owner_after_the_new_marker_is_stale_and_so_is_its_delete():
    records = [mark(0), row(1, 0, b"k", b"old"), mark(2), row(3, 0, b"k", b"late"), row(4, 0, b"l", None)]
    folded = fold(records, NO_EPOCH)
    assert folded.rows == {b"k": b"old"}
    assert folded.stale == {b"k", b"l"}
    assert folded.epoch == 2


def test_a_key_that_its_owner_wrote_again_is_no_longer_stale():
    folded = fold([row(3, 0, b"k", b"late"), row(4, 2, b"k", b"mine")], 2)
    assert folded.rows == {b"k": b"mine"}
    assert folded.stale == set()


def test_the_epoch_carries_over_from_the_stretch_before():
    assert fold([row(9, 3, b"k", b"late")], 5).stale == {b"k"}


@pytest.mark.parametrize("value", [b"2", b"v3", b"", None])
def test_a_marker_of_a_newer_format_stops_the_worker(value):
    with pytest.raises(NewerSchemaError, match="changelog"):
        fold([Record(0, MARKER, value)], NO_EPOCH)


def test_without_the_rule_a_late_record_would_count():
    folded = fold([mark(2), row(3, 0, b"k", b"late")], 0, accept=lambda _epoch, _highest: True)
    assert folded.rows == {b"k": b"late"}
