"""`fyke rules …`: show, test and change the rules of a crawl while it runs.

A change is a new version of the crawl's definition that names the version it replaces: of two at the same time one
wins, and the other is told.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agents.cli.options import cluster_options, settings_of
from streams.errors import ConflictError, UsageError

if TYPE_CHECKING:
    from agents.cli.desk import Desk
    from streams.definitions import CrawlDefinition
    from streams.policy.comparison import Asked, Comparison
    from streams.settings import Settings

_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def rules() -> None:
    """Show, test and change the rules of a crawl while it runs."""


@rules.command()
@click.argument("crawl")
@cluster_options
@_json
def show(crawl: str, state: Path | None, kafka: str | None, as_json: bool) -> None:
    """Print a crawl's rules as a file that `fyke rules apply` takes."""
    from agents.cli.rulefile import write_rules
    from streams.policy.limits import faults_of

    definition = asyncio.run(_definition(settings_of(state=state, kafka=kafka), crawl))
    faults = faults_of(definition)
    if as_json:
        import msgspec

        plain = msgspec.to_builtins(definition)
        click.echo(json.dumps({"definition": plain, "faults": faults}, indent=2))
        return
    by = f", written by {definition.by}" if definition.by else ""
    click.echo(f"# crawl {crawl}, version {definition.version}, {definition.state}{by}")
    for name, fault in faults.items():
        click.echo(f"# rule {name} matches nothing: {fault}")
    click.echo(write_rules(definition), nl=False)


@rules.command()
@click.argument("crawl")
@_file
@click.option("--version", type=click.IntRange(1), metavar="N", help="Only if the crawl is still at this version.")
@cluster_options
def apply(crawl: str, file: Path, version: int | None, state: Path | None, kafka: str | None) -> None:
    """Replace what FILE names in a crawl's definition. Workers obey within two seconds.

    Exit code 6: somebody else changed the crawl at the same time, or it is no longer at --version; nothing was changed.
    """
    from agents.cli.rulefile import differences, load_rules

    changes = load_rules(file, new=False)
    before, after = asyncio.run(_apply(settings_of(state=state, kafka=kafka), crawl, changes, version))
    if after is before:
        click.echo(f"crawl {crawl} says all of that already (version {before.version})")
        return
    click.echo(f"crawl {crawl}: version {before.version} → {after.version}")
    for line in differences(before, after):
        click.echo(f"  {line}")


@rules.command()
@click.argument("url")
@click.option("--crawl", metavar="ID", help="By the rules of this crawl.  [default: default]")
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="By the rules in this file; no broker is asked.")  # fmt: skip
@cluster_options
@_json
def test(url: str, crawl: str | None, file: Path | None, state: Path | None, kafka: str | None, as_json: bool) -> None:
    """Say which rule applies to a URL and why, and which values follow."""
    from msgspec.structs import replace

    from agents.cli.desk import wire_form
    from agents.cli.rulefile import load_rules
    from streams.definitions import CrawlDefinition

    wire = wire_form(url)
    if file is not None and crawl is not None:
        raise UsageError("--crawl and --file exclude each other", "`fyke rules dry-run CRAWL FILE` compares them.")
    if file is not None:
        definition = replace(CrawlDefinition(id="file"), **load_rules(file, new=True))
    else:
        definition = asyncio.run(_definition(settings_of(state=state, kafka=kafka), crawl or "default"))
    found = _explained(definition, wire)
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))


@rules.command("dry-run")
@click.argument("crawl")
@_file
@click.option("--last", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="Look at N orders.")
@cluster_options
@_json
def dry_run(crawl: str, file: Path, last: int, state: Path | None, kafka: str | None, as_json: bool) -> None:
    """Say what FILE would have changed about the crawl's last orders. Changes nothing."""
    from dataclasses import asdict

    from agents.cli.rulefile import load_rules

    changes = load_rules(file, new=False)
    found = asyncio.run(_dry_run(settings_of(state=state, kafka=kafka), crawl, changes, last))
    click.echo(json.dumps(asdict(found), indent=2) if as_json else "\n".join(_summary(found)))


# --- one URL


def _explained(definition: CrawlDefinition, url: str) -> dict[str, Any]:
    """Every rule that was asked, and what holds."""
    from streams.policy.bounds import bounds_of
    from streams.policy.comparison import described
    from streams.policy.limits import LimitRules
    from streams.policy.windows import describe_time

    compiled = LimitRules(definition)
    values, now = compiled.for_url(url), time.time_ns() // 1_000_000
    opening = values.opening(now)
    shut = "" if opening.open else f"shut until {describe_time(opening.until)}"
    return {
        "url": url,
        "crawl": definition.id,
        "version": definition.version,
        "kept_out": bounds_of(definition).kept_out(url, 0),
        "tried": [{"rule": rule.written.id, "mismatch": reason} for rule, reason in compiled.tried(url)],
        "rule": values.rule,
        "values": described(values) | {"window": shut or ("open" if values.windows else "always")},
    }


_MISMATCHES = {
    "domain": "its domain is another one", "path": "its path does not match", "regex": "its regex is not found",
}  # fmt: skip


def _lines(found: dict[str, Any]) -> Iterable[str]:
    yield f"{found['url']}  (crawl {found['crawl']}, version {found['version']})"
    if found["kept_out"]:
        yield f"  kept out of the crawl by {found['kept_out']}"
    for tried in found["tried"]:
        reason = tried["mismatch"]
        yield f"  {tried['rule']:<16} {'applies' if not reason else f'no: {_MISMATCHES.get(reason, reason)}'}"
    if not found["rule"]:
        yield "  no rule applies: the crawl's own values hold"
    for name, value in found["values"].items():
        yield f"    {name:<14} {value}"


# --- a dry run


def _summary(found: Comparison) -> Iterable[str]:
    if not found.orders:
        yield "no order of this crawl is kept: nothing to compare with"
        return
    yield f"{found.changed:,} of the last {found.orders:,} orders would have been different"
    for what, change in sorted(found.changes.items(), key=lambda item: -item[1].count):
        yield f"  {change.count:>7,}  {what}"
        yield from (f"           {url}" for url in change.examples)
    yield "rules that would have decided:"
    for rule, count in found.by_rule.most_common():
        yield f"  {count:>7,}  {rule or '(none: the crawl itself)'}"


async def _dry_run(settings: Settings, crawl: str, changes: dict[str, Any], last: int) -> Comparison:
    from msgspec.structs import replace

    from agents.cli.desk import desk
    from streams.policy.bounds import Bounds
    from streams.policy.comparison import compare
    from streams.policy.limits import LimitRules

    async with desk(settings) as at:
        before = at.crawl(crawl)
        asked = await _last_orders(at, crawl, last)
    after = replace(before, **changes)
    return compare(asked, LimitRules(before), LimitRules(after), Bounds(before).kept_out, Bounds(after).kept_out)


async def _last_orders(at: Desk, crawl: str, last: int) -> list[Asked]:
    """The crawl's pages ordered last: of each partition the last `last` orders are looked through."""
    from contextlib import aclosing

    from streams.codecs import decode
    from streams.errors import MessageError
    from streams.messages import FetchOrder
    from streams.policy.comparison import Asked
    from streams.state.changelog import ChangelogReader
    from streams.topics import FETCHES

    begins, ends = await at.admin.begin_offsets(FETCHES.name), await at.admin.end_offsets(FETCHES.name)
    starts = {partition: max(begins[partition], end - last) for partition, end in ends.items()}
    found: list[Asked] = []
    reader = ChangelogReader(at.settings.kafka.prefix + FETCHES.name, {"bootstrap_servers": at.bootstrap})
    async with aclosing(reader.read(starts, ends)) as stretches:
        async for stretch in stretches:
            for record in stretch.records:
                try:
                    order = decode(FetchOrder, record.value)
                except MessageError:
                    continue  # whoever it was for has reported it
                if order.crawl == crawl and order.kind == "page":
                    found.append(Asked(order.url, order.depth, order.released))
    return sorted(found, key=lambda order: order.at)[-last:]


# --- the broker


async def _definition(settings: Settings, crawl: str) -> CrawlDefinition:
    from agents.cli.desk import desk

    async with desk(settings) as at:
        return at.crawl(crawl)


async def _apply(
    settings: Settings, crawl: str, changes: dict[str, Any], version: int | None
) -> tuple[CrawlDefinition, CrawlDefinition]:
    """The definition before and after; the same one twice if nothing is to be changed. Raises `ConflictError`."""
    from msgspec.structs import replace

    from agents.broadcast import publish
    from agents.cli.desk import author, desk

    async with desk(settings) as at:
        before = at.crawl(crawl)
        if before.state == "ended":
            raise UsageError(f"the crawl {crawl} has ended", "Its rules change nothing any more: fyke crawl URL…")
        if version is not None and version != before.version:
            raise _conflict(before, f"is at version {before.version}, not {version}", None)
        after = replace(before, **changes)
        if after == before:
            return before, before
        after = replace(after, version=before.version + 1, by=author())
        if await publish(at.broadcast.crawls, after, at.writer.send, at.broadcast.catch_up):
            return before, after
        raise _conflict(at.broadcast.crawls[crawl], "was changed at the same moment", before)


def _conflict(winner: CrawlDefinition, what: str, before: CrawlDefinition | None) -> ConflictError:
    """Who won, and what to do."""
    from agents.cli.rulefile import differences

    by = f" by {winner.by}" if winner.by else ""
    said = "; ".join(differences(before, winner)) if before is not None else ""
    return ConflictError(
        f"conflict: the crawl {winner.id} {what}; nothing of yours was applied\n"
        f"  Version {winner.version}{by} holds" + (f": {said}" if said else ""),
        f"Look at it (fyke rules show {winner.id}), then apply yours to it: --version {winner.version}",
    )
