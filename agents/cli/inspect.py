"""Commands that only look: `fyke status`, `fyke schema`, `fyke config`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agents.cli.options import address_options, cluster_options, given, settings_of
from streams.errors import UsageError

if TYPE_CHECKING:
    from agents.broadcast import Broadcast
    from agents.io.admin import Admin
    from streams.settings import Settings

_STAGES = (("frontier", "urls"), ("frontier", "inbox"), ("fetcher", "fetches"), ("parser", "pages"))


@click.command()
@click.argument("name", required=False)
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(name: str | None, state: Path | None, kafka: str | None, as_json: bool) -> None:
    """Show crawls and how far the stages are behind; with NAME, one crawl in full."""
    found = asyncio.run(_look(settings_of(state=state, kafka=kafka)))
    if name is not None:
        crawls = [crawl for crawl in found["crawls"] if crawl["id"] == name]
        if not crawls:
            raise UsageError(f"the broker knows no crawl {name}", "`fyke status` lists the crawls.")
        found = {"broker": found["broker"], "crawls": crawls}
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif name is not None:
        _print_crawl(found["crawls"][0])
    else:
        _print_status(found)


async def _look(settings: Settings) -> dict[str, Any]:
    from agents.broadcast import Broadcast
    from agents.cli.cluster import admin_of

    async with admin_of(settings) as (bootstrap, admin):
        await admin.check_topics()
        broadcast = Broadcast(bootstrap, settings, progress=True)
        try:
            await broadcast.start()
            lags = [
                {"group": group, "topic": topic, "lag": sum((await admin.lag(group, topic)).values())}
                for group, topic in _STAGES
            ]
            crawls = [await _crawl(name, broadcast, admin) for name in sorted(broadcast.crawls)]
        finally:
            await broadcast.stop()
    return {"broker": bootstrap, "stages": lags, "crawls": crawls}


async def _crawl(name: str, broadcast: Broadcast, admin: Admin) -> dict[str, Any]:
    import msgspec

    from agents.cli.conduct import exporter_group

    definition, counts = broadcast.crawls[name], broadcast.board.totals(name)
    exported = await admin.committed(exporter_group(name), "records")
    lag = sum((await admin.lag(exporter_group(name), "records")).values()) if exported else None
    numbers = {field: getattr(counts, field) for field in counts.__struct_fields__}
    known: dict[str, Any] = msgspec.to_builtins(definition)
    return {
        "id": name, "state": definition.state, "result": definition.result, "definition": known, "counts": numbers,
        "export_lag": lag,
    }  # fmt: skip


def _print_status(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"broker {found['broker']}", highlight=False)
    stages = Table("stage", "topic", "behind", box=None, pad_edge=False, header_style="dim")
    for row in found["stages"]:
        stages.add_row(row["group"], row["topic"], f"{row['lag']:,}")
    crawls = Table(
        "crawl", "state", "pages", "open", "failed", "excluded", box=None, pad_edge=False, header_style="dim"
    )
    for row in found["crawls"]:
        counts, state = row["counts"], " ".join(filter(None, (row["state"], row["result"])))
        columns = (f"{counts[name]:,}" for name in ("done", "open", "failed", "excluded"))
        crawls.add_row(row["id"], state, *columns)
    console.print(stages)
    console.print(crawls)


def _print_crawl(row: dict[str, Any]) -> None:
    from agents.cli.view import tallied

    click.echo(f"{row['id']}  {row['state']}  {row['result']}".rstrip())
    for name, value in row["counts"].items():
        click.echo(f"  {name:<12} {tallied(value) if isinstance(value, dict) else format(value, ',')}")
    if row["export_lag"] is not None:
        click.echo(f"  {'to export':<12} {row['export_lag']:,}")
    for name, value in row["definition"].items():
        if name not in {"id", "state", "result"}:
            click.echo(f"  {name:<12} {value if isinstance(value, str) else json.dumps(value)}")


@click.command()
@click.argument("name", required=False)
def schema(name: str | None) -> None:
    """Print the JSON Schema of a message, or without NAME the names there are."""
    from streams.codecs import PUBLIC, json_schema

    if name is None:
        click.echo("\n".join(PUBLIC))
        return
    if name not in PUBLIC:
        raise UsageError(f"there is no message {name}", f"Known are: {', '.join(PUBLIC)}.")
    click.echo(json.dumps(json_schema(name), indent=2))


@click.command()
@cluster_options
@address_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def config(as_json: bool, **options: Any) -> None:
    """Show every setting, its value, and where the value comes from."""
    from agents.cli.configuration import all_names, load, origins
    from streams.settings import variable

    flags = given(**options)
    values, sources = load(flags).model_dump(mode="json"), origins(flags)
    rows = []
    for dotted in all_names():
        group, name = dotted.split(".")
        rows.append((dotted, values[group][name], sources[dotted], variable(group, name)))
    if as_json:
        found = {dotted: {"value": value, "from": source, "variable": var} for dotted, value, source, var in rows}
        click.echo(json.dumps(found, indent=2))
        return
    for dotted, value, source, var in rows:
        text = value if isinstance(value, str) else json.dumps(value)
        click.echo(f"{dotted:<28} {text:<28} {source if source != 'default' else f'default ({var})'}")
    click.echo("\n" + _repeats(values["frontier"], values["kafka"]["partitions"]))


def _repeats(frontier: dict[str, Any], shards: int) -> str:
    """What the cap on orders means after a crash."""
    most, seconds = frontier["unparsed_limit"], f"{frontier['release_seconds']:g} s"
    floor = min(frontier["release_floor"], most)
    return (
        f"A crash repeats at most the fetches that were out: of each shard {floor:,} (frontier.release_floor) or, if\n"
        f"that is more, what it gets answered in {seconds} (frontier.release_seconds), never more than {most:,}\n"
        f"(frontier.unparsed_limit). In all {shards} shards: {floor * shards:,} or what is fetched in {seconds}, "
        f"never more\nthan {most * shards:,}."
    )
