"""`fyke state`: what the frontier's stores on this machine hold and take (`size`), and whether they are sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agents.cli import upkeep
from agents.cli.options import settings_of

if TYPE_CHECKING:
    from streams.state.store import Store

_COLUMNS = ("worker", "shard", "urls", "open", "rows", "disk")


@click.group()
def state() -> None:
    """Look at what workers remember on this machine, and make it anew."""


state.add_command(upkeep.check)
state.add_command(upkeep.rebuild)


@state.command()
@click.option("--state", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Folder of the workers' tables.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def size(folder: Path | None, as_json: bool) -> None:
    """Show URLs, rows and bytes on disk of each store of the frontier, whether its worker runs or not.

    What a running worker holds in memory only is not in it: the newest rows (its /metrics have them).
    """
    from streams.frontier.index import FrontierIndexer
    from streams.state.glimpse import stores
    from streams.topics import ROWS

    home = settings_of(state=folder).worker.state
    found = [_row(store) for store in stores(home, ROWS, FrontierIndexer())]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    if not found:
        click.echo(f"no worker has a store in {home}; --state names another folder", err=True)
        return
    _print(found)


def _row(store: Store) -> dict[str, Any]:
    """`disk` in bytes; `rows`: keys as RocksDB estimates them, of URLs, hosts and the index."""
    from streams.frontier.tally import Tallies

    tallies = Tallies.from_counters(store.counters()).values()
    sizes = store.sizes()
    return {
        "worker": store.path.parents[3].name,
        "shard": int(store.path.stem.rpartition("-")[2]),
        "urls": sum(sum(tally.states) for tally in tallies),
        "open": sum(tally.open for tally in tallies),
        "rows": sizes.rows,
        "disk": sizes.disk,
    }


def _print(found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*_COLUMNS, box=None, pad_edge=False, header_style="dim")
    for row in [
        *found,
        {"worker": "all", "shard": ""} | {name: sum(row[name] for row in found) for name in _COLUMNS[2:]},
    ]:
        numbers = (f"{row[name]:,}" for name in ("urls", "open", "rows"))
        table.add_row(row["worker"], str(row["shard"]), *numbers, f"{row['disk'] / (1 << 20):,.1f} MiB")
    Console().print(table)
