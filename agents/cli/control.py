"""Commands that change what a crawl may do: `fyke pause`, `fyke unpause`, `fyke cancel`, `fyke forget`.

Each changes the crawl's definition by compare-and-set; workers obey within two seconds of reading it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from agents.cli.options import cluster_options, settings_of
from streams.errors import UsageError

if TYPE_CHECKING:
    from streams.definitions import CrawlDefinition, ScopeRule
    from streams.messages import Command
    from streams.settings import Settings

    Change = Callable[[CrawlDefinition], CrawlDefinition]

_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command()
@click.argument("crawl")
@cluster_options
def pause(crawl: str, state: Path | None, kafka: str | None) -> None:
    """Hold a crawl: nothing of it goes out until `fyke unpause`. What is in flight is finished or given back."""
    asyncio.run(_change(settings_of(state=state, kafka=kafka), crawl, _paused))
    click.echo(f"Crawl {crawl} is paused. Let it go on: fyke unpause {crawl}", err=True)


@click.command()
@click.argument("crawl")
@cluster_options
def unpause(crawl: str, state: Path | None, kafka: str | None) -> None:
    """Let a paused crawl go on. `fyke resume` goes on with an interrupted `fyke crawl`: it also starts workers."""
    asyncio.run(_change(settings_of(state=state, kafka=kafka), crawl, _unpaused))
    click.echo(f"Crawl {crawl} goes on.", err=True)


@click.command()
@click.argument("crawl")
@_yes
@cluster_options
def cancel(crawl: str, state: Path | None, kafka: str | None, yes: bool) -> None:
    """End a crawl now. Waiting URLs are excluded with the rule `cancelled`; what is in flight is still accepted."""
    if not yes:
        click.confirm(f"End crawl {crawl} for good?", abort=True)
    asyncio.run(_change(settings_of(state=state, kafka=kafka), crawl, _cancelled))
    click.echo(f"Crawl {crawl} is cancelled.", err=True)


def _paused(crawl: CrawlDefinition) -> CrawlDefinition:
    _check_not_ended(crawl)
    return replace(crawl, state="paused")


def _unpaused(crawl: CrawlDefinition) -> CrawlDefinition:
    _check_not_ended(crawl)
    return crawl if crawl.state != "paused" else replace(crawl, state="open" if crawl.seal is None else "sealed")


def _cancelled(crawl: CrawlDefinition) -> CrawlDefinition:
    from streams.messages import DEFAULT_CRAWL

    _check_not_ended(crawl)
    if crawl.id == DEFAULT_CRAWL:
        raise UsageError(
            f"the crawl {crawl.id} takes the seeds that name no crawl: cancelled, it would drop them",
            f"Hold it instead: fyke pause {crawl.id}",
        )
    return replace(crawl, state="ended", result="cancelled", ended=time.time_ns() // 1_000_000)


def _check_not_ended(crawl: CrawlDefinition) -> None:
    if crawl.state == "ended":
        raise UsageError(f"the crawl {crawl.id} has ended: {crawl.result or 'ended'}", "Crawl again: fyke crawl URL…")


async def _change(settings: Settings, crawl: str, change: Change) -> None:
    from agents.cli.desk import desk

    async with desk(settings) as at:
        await at.update(crawl, change)


@click.command()
@click.argument("url", required=False)
@click.option("--host", metavar="HOST", help="All URLs of this host.")
@click.option("--prefix", metavar="URL", help="All URLs that begin so.")
@click.option("--crawl", metavar="NAME", help="In this crawl.")
@click.option("--all", "everywhere", is_flag=True, help="In all crawls, also those that have ended.")
@_yes
@cluster_options
def forget(
    url: str | None, host: str | None, prefix: str | None, crawl: str | None, everywhere: bool, yes: bool,
    state: Path | None, kafka: str | None,
) -> None:  # fmt: skip
    """Forget a URL, a host or all URLs with a prefix, and let them not come back.

    A deny rule goes into the crawl's definition, the frontier deletes its rows, and whoever keeps pages, records or
    failures is told to delete them (the exporter writes deletions.jsonl; files that were written are not changed).
    """
    if sum(what is not None for what in (url, host, prefix)) != 1:
        raise UsageError("say what to forget: a URL, --host or --prefix", "fyke forget --host example.org --crawl NAME")
    if (crawl is None) != everywhere:
        raise UsageError("say where: --crawl NAME or --all", "`fyke status` lists the crawls.")
    target = _target(url, host, prefix)
    if not yes:
        click.confirm(f"Forget {target.label} in {crawl or 'all crawls'}? It cannot be undone.", abort=True)
    changed = asyncio.run(_forget(settings_of(state=state, kafka=kafka), target, crawl))
    for definition in changed:
        click.echo(f"crawl {definition.id}: {target.label} is kept out from version {definition.version} on", err=True)
    click.echo("Frontier workers delete the rows as soon as they run; deletions are told in topic records.", err=True)


@dataclass(frozen=True, slots=True)
class _Target:
    """What is to be forgotten: `fields` of the command; `sample` is a URL of the shard it goes to."""

    label: str
    rule: ScopeRule
    sample: str
    fields: dict[str, Any]


def _target(url: str | None, host: str | None, prefix: str | None) -> _Target:
    from agents.cli.desk import wire_form
    from streams.policy.forgetting import deny_host, deny_prefix, deny_url
    from streams.policy.urls import hostname

    if url is not None:
        wire = wire_form(url)
        return _Target(wire, deny_url(wire), wire, {"url": wire})
    if prefix is not None:
        wire = wire_form(prefix)
        return _Target(f"{wire}*", deny_prefix(wire), wire, {"prefix": wire})
    root = wire_form(f"http://{host}/")
    if root != f"http://{hostname(root)}/":
        raise UsageError(f"not a host name: {host}", "Write it without scheme, port and path: --host example.org")
    name = hostname(root).removesuffix(".")
    return _Target(f"host {name}", deny_host(name), root, {"host": name})


async def _forget(settings: Settings, target: _Target, crawl: str | None) -> list[CrawlDefinition]:
    from agents.cli.desk import desk
    from streams.policy.forgetting import denied_by

    async with desk(settings) as at:
        names = [at.crawl(crawl).id] if crawl is not None else sorted(at.broadcast.crawls)
        changed = [await at.update(name, lambda known: denied_by(known, target.rule)) for name in names]
        await at.command((at.shard(target.sample), _command(target, definition)) for definition in changed)
        return changed


def _command(target: _Target, crawl: CrawlDefinition) -> Command:
    from streams.frontier.explain import fingerprint_of
    from streams.messages import Command

    key = fingerprint_of(target.sample, crawl.id, crawl) if "url" in target.fields else bytes(16)
    return Command(action="forget", crawl=crawl.id, fingerprint=key, rules=crawl.version, **target.fields)
