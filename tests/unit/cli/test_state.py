"""`fyke state size`, and `fyke state check` where no broker is asked."""

from __future__ import annotations

import json
import time
from pathlib import Path

from click.testing import CliRunner

from agents.cli.main import cli
from streams.frontier.index import FrontierIndexer
from streams.frontier.rows import State, UrlRow, encode_row, url_key
from streams.settings import Frontier
from streams.state.shelf import Shelf
from streams.state.store import Store
from streams.topics import ROWS


def now() -> int:
    return time.time_ns() // 1_000_000


async def filled(state: Path, shard: int, states: list[State]) -> Store:
    folder = state / "workers" / "frontier-1" / "frontier" / "v1" / "tables"
    store = await Shelf(folder, ROWS, FrontierIndexer(), Frontier(), 1 << 60, now).open("c", "t", shard)
    assert list(store.derive()) == []
    rows = [UrlRow(1, each, 0, 5, "c", f"http://h/{i}", "h", 1, 0, i) for i, each in enumerate(states)]
    store.apply([(url_key(i.to_bytes(16, "big")), encode_row(row)) for i, row in enumerate(rows)], len(rows) - 1)
    store._db.flush()
    return store


def run(*args: str, command: str = "size", code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["state", command, *args])
    assert result.exit_code == code, result.output
    return result.output


async def test_the_stores_of_running_and_of_stopped_workers_are_shown(tmp_path):
    running = await filled(tmp_path, 0, [State.WAITING, State.WAITING, State.DONE])
    (await filled(tmp_path, 10, [State.FETCHED])).close()
    rows = json.loads(run("--state", str(tmp_path), "--json"))
    assert [(row["worker"], row["shard"], row["urls"], row["open"]) for row in rows] == [
        ("frontier-1", 0, 3, 2), ("frontier-1", 10, 1, 1),
    ]  # fmt: skip
    assert all(row["disk"] > 0 and row["rows"] > 0 for row in rows)
    lines = run("--state", str(tmp_path)).splitlines()
    assert lines[-1].split()[:3] == ["all", "4", "3"]
    running.apply([(url_key(bytes(16)), None)], 3)  # nobody disturbed it
    running.close()


def test_without_stores_it_says_where_it_looked(tmp_path):
    assert f"no worker has a store in {tmp_path}" in run("--state", str(tmp_path))


async def test_sound_stores_are_said_to_be_sound(tmp_path):
    (await filled(tmp_path, 0, [State.WAITING, State.DONE])).close()
    (await filled(tmp_path, 7, [State.FETCHED])).close()
    lines = run("--offline", "--state", str(tmp_path), command="check").splitlines()
    assert [line.partition("rows-")[2].partition(" rows,")[0] for line in lines if ".db:" in line] == [
        "0.db: sound; shard 0, 2", "7.db: sound; shard 7, 1",
    ]  # fmt: skip


async def test_what_is_wrong_is_named_with_its_remedy_and_an_exit_code(tmp_path):
    store = await filled(tmp_path, 0, [State.WAITING, State.DONE])
    store._db.put(b"cc\0waiting", (5).to_bytes(8, "big"))
    store.close()
    (await filled(tmp_path, 1, [State.DONE])).close()
    output = run("--offline", "--state", str(tmp_path), command="check", code=5)
    assert "WRONG: 1 counters do not follow from the rows: c waiting is 5, rows say 1" in output
    assert "What to do: Rebuild it: `fyke state rebuild`." in output
    found = json.loads(run("--offline", "--json", str(store.path), command="check", code=5))
    assert [(one["shard"], one["sound"], one["findings"][0]["effect"]) for one in found] == [(0, False, "wrong")]
    assert "sound" in run("--offline", "--shard", "1", "--state", str(tmp_path), command="check")


def test_no_store_to_check(tmp_path):
    assert "no store of the frontier" in run("--offline", "--state", str(tmp_path), command="check", code=2)
