"""What an examination finds in a store, and what it says will come of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from streams.errors import NewerSchemaError
from streams.state.bulk import Bounds
from streams.state.checkup import Checkup, Effect, Known, examine
from streams.state.identity import Identity
from streams.state.store import DAMAGED, Store
from tests.unit.state.rows import HOUR, ByState, Clock, derived, shelf

NOW = Clock().now
ROWS = [(b"%05d" % number, b"w" + bytes([number % 7]) + b"row") for number in range(300)]
LAST = len(ROWS) - 1
BROKER = Known({3: Identity("c", "t", 3, topic_id="id")}, {3: Bounds(0, len(ROWS))})


async def filled(folder: Path) -> Store:
    store = derived(await shelf(folder).open("c", "t", 3, "id"))
    store.apply(ROWS, LAST)
    store._db.flush()
    return store


def read(key: bytes, value: bytes) -> None:
    if value.startswith(b"?"):
        raise ValueError("no row")
    if value.startswith(b"!"):
        raise NewerSchemaError("schema 9", "Upgrade.")


def look(path: Path, known: Known | None = BROKER, now: int = NOW) -> Checkup:
    return examine(path, ByState(), read, known, max_age=HOUR, now=now)


def said(checkup: Checkup) -> list[tuple[Effect, str]]:
    return [(finding.effect, finding.text) for finding in checkup.findings]


async def test_a_sound_store_and_one_in_use(tmp_path: Path) -> None:
    store = await filled(tmp_path)
    for known in (BROKER, None):
        checkup = look(store.path, known)
        assert checkup.sound
        assert checkup.findings == []
        assert (checkup.partition, checkup.rows, checkup.offset) == (3, 300, LAST)
    store.apply([(b"x", b"w\0")], LAST + 1)  # its worker was not disturbed
    store.close()


def flip(store: Store) -> None:
    store.close()
    (file,) = store.path.glob("*.sst")
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)


def lose(store: Store) -> None:
    store.close()
    (store.path / "CURRENT").unlink()


def mark(store: Store) -> None:
    (store.path / DAMAGED).write_text("Corruption: block 7")


def identity(raw: bytes) -> Callable[[Store], None]:
    return lambda store: store._db.put(b"midentity", raw)


def delete(key: bytes) -> Callable[[Store], None]:
    return lambda store: store._db.delete(key)


def put(key: bytes, value: bytes) -> Callable[[Store], None]:
    return lambda store: store._db.put(key, value)


def entry(number: int) -> bytes:
    ((key, _),) = ByState().entries(*ROWS[number])
    return b"i" + key


@pytest.mark.parametrize(
    ("spoil", "effect", "text"),
    [
        (flip, "rebuilt", "Corruption"),
        (lose, "rebuilt", "cannot be opened"),
        (mark, "rebuilt", "a worker found it damaged: Corruption: block 7"),
        (identity(b"[]"), "rebuilt", "does not say what it belongs to"),
        (identity(json.dumps({"schema": 2, "new": 1}).encode()), "stop", "schema 2"),
        (delete(entry(7)), "wrong", "299 entries, 300 expected"),
        (put(b"i" + b"w\x01more", b""), "wrong", "301 entries, 300 expected"),
        (put(entry(7), b"another"), "wrong", "300 entries, 300 expected"),
        (put(b"cstate:w", (299).to_bytes(8, "big")), "wrong", "state:w is 299, rows say 300"),
        (put(b"cmore", (1).to_bytes(8, "big")), "wrong", "more is 1, rows say 0"),
        (put(b"r00007", b"?"), "wrong", "1 rows cannot be read: 3030303037: no row"),
        (put(b"r00007", b"!"), "stop", "schema 9"),
        (delete(b"mderived"), "none", "the next start makes them"),
    ],
)
async def test_what_is_wrong_inside(tmp_path: Path, spoil: Callable[[Store], None], effect: Effect, text: str) -> None:
    store = await filled(tmp_path)
    spoil(store)
    checkup = look(store.path)
    ((found, words),) = said(checkup)
    assert found == effect
    assert text in words
    assert checkup.sound == (effect == "none")
    assert checkup.findings[0].remedy or effect == "none"


async def test_a_block_that_is_found_damaged_is_marked_for_the_next_start(tmp_path: Path) -> None:
    store = await filled(tmp_path)
    flip(store)
    look(store.path)
    assert (store.path / DAMAGED).exists()


@pytest.mark.parametrize(
    ("owner", "bounds", "found"),
    [
        (Identity("c", "t", 3, topic_id="id"), Bounds(0, 310), [("none", "reads 10 records")]),
        (Identity("c", "t", 3, topic_id="id"), Bounds(0, 290), [("rebuilt", "ends before 290")]),
        (Identity("c", "t", 3, topic_id="id"), Bounds(300, 300), [("none", "rows would be missing")]),
        (Identity("c", "t", 3, topic_id="id"), Bounds(301, 310), [("stop", "begins at 301")]),
        (Identity("c", "t", 3, topic_id="new"), Bounds(0, 300), [("stop", "deleted and made again")]),
        (Identity("x", "t", 3, topic_id="new"), Bounds(0, 300), [("rebuilt", "belongs to cluster c, this one is x")]),
        (Identity("c", "x", 3, topic_id="new"), Bounds(0, 300), [("rebuilt", "belongs to t, not to x")]),
    ],
)
async def test_what_the_broker_says(
    tmp_path: Path, owner: Identity, bounds: Bounds, found: list[tuple[Effect, str]]
) -> None:
    (await filled(tmp_path)).close()
    checkup = look(tmp_path / "rows-3.db", Known({3: owner}, {3: bounds}))
    assert [effect for effect, _ in said(checkup)] == [effect for effect, _ in found]
    assert all(text in words for (_, text), (_, words) in zip(found, said(checkup), strict=True))


async def test_a_store_in_another_place(tmp_path: Path) -> None:
    (await filled(tmp_path)).close()
    (tmp_path / "rows-3.db").rename(tmp_path / "rows-4.db")
    ((effect, text),) = said(look(tmp_path / "rows-4.db"))
    assert effect == "rebuilt"
    assert "the store of shard 3" in text


async def test_a_shard_that_is_no_more(tmp_path: Path) -> None:
    (await filled(tmp_path)).close()
    ((effect, text),) = said(look(tmp_path / "rows-3.db", Known({}, {})))
    assert effect == "none"
    assert "has no partition 3" in text


@pytest.mark.parametrize(("age", "sound"), [(HOUR, True), (HOUR + 1, False)])
async def test_age(tmp_path: Path, age: int, sound: bool) -> None:
    (await filled(tmp_path)).close()
    checkup = look(tmp_path / "rows-3.db", now=NOW + age)
    assert checkup.sound == sound
    assert sound or "last up to date 1 h ago" in checkup.findings[0].text


async def test_what_was_set_aside_is_told(tmp_path: Path) -> None:
    (await filled(tmp_path)).close()
    shelf(tmp_path).set_aside(3, "for a test")
    (await filled(tmp_path)).close()
    ((effect, text),) = said(look(tmp_path / "rows-3.db"))
    assert effect == "none"
    assert "rows-3.db.aside" in text
