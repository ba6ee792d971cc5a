"""`fyke state size`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from agents.cli.main import cli
from streams.frontier.index import FrontierIndexer
from streams.frontier.rows import State, UrlRow, encode_row, url_key
from streams.settings import Frontier
from streams.state.shelf import Shelf
from streams.state.store import Store
from streams.topics import ROWS


async def filled(state: Path, shard: int, states: list[State]) -> Store:
    folder = state / "workers" / "frontier-1" / "frontier" / "v1" / "tables"
    store = await Shelf(folder, ROWS, FrontierIndexer(), Frontier(), 1 << 60, lambda: 0).open("c", "t", shard)
    assert list(store.derive()) == []
    rows = [UrlRow(1, each, "c", f"http://h/{i}", "h", 1, 0, 0, 5, i) for i, each in enumerate(states)]
    store.apply([(url_key(i.to_bytes(16, "big")), encode_row(row)) for i, row in enumerate(rows)], len(rows) - 1)
    store._db.flush()
    return store


def run(*args: str) -> str:
    result = CliRunner().invoke(cli, ["state", "size", *args])
    assert result.exit_code == 0, result.output
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
