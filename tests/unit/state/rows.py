"""A small table for tests: the first byte of a value is a row's state, the second its priority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from rocksdict import Rdict

from streams.settings import Frontier
from streams.state.shelf import Shelf
from streams.state.store import Store

HOUR = 3_600_000


class ByState:
    """Index: state and priority, then the row's key. Counters: rows in each state, and the sum of the priorities."""

    def __init__(self, version: int = 1) -> None:
        self.version = version

    def entries(self, key: bytes, value: bytes) -> Iterable[tuple[bytes, bytes]]:
        if value[:1] != b"d":
            yield value[:2] + key, value[2:]

    def counters(self, key: bytes, value: bytes) -> Iterable[tuple[bytes, int]]:
        yield b"state:" + value[:1], 1
        yield b"priority", sum(value[1:2])


class Clock:
    """ms since 1970, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now


def shelf(folder: Path, *, version: int = 1, clock: Clock | None = None, max_age: int = HOUR) -> Shelf:
    return Shelf(folder, "rows", ByState(version), Frontier(write_buffer=1 << 20), max_age, clock or Clock())


def bare_store(path: Path) -> Store:
    """An open store without an identity."""
    return derived(Store(Rdict(str(path), shelf(path.parent)._options()), path, ByState(), Clock()))


def derived(store: Store) -> Store:
    for _ in store.derive():
        pass
    return store


def index_of(rows: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """The index that `rows` should have, derived from nothing."""
    return sorted(entry for key, value in rows.items() for entry in ByState().entries(key, value))


def counters_of(rows: Mapping[bytes, bytes]) -> dict[bytes, int]:
    """The counters that `rows` should have, derived from nothing."""
    total: Counter[bytes] = Counter()
    for key, value in rows.items():
        for name, number in ByState().counters(key, value):
            total[name] += number
    return {name: number for name, number in total.items() if number}
