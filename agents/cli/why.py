"""`fyke why URL`: what became of a URL, or what it waits for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agents.cli.options import cluster_options, settings_of

if TYPE_CHECKING:
    from agents.cli.desk import Desk
    from streams.frontier.explain import Explanation
    from streams.settings import Settings

_WITNESSES = {
    "worker": "the frontier worker",
    "state": "the frontier's state on this machine (its worker does not answer)",
    "changelog": "the frontier's changelog (its worker does not answer, its state is not here)",
}


@click.command()
@click.argument("url")
@click.option("--crawl", metavar="NAME", help="In this crawl.  [default: in all that know it]")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an array.")
def why(url: str, crawl: str | None, state: Path | None, kafka: str | None, as_json: bool) -> None:
    """Say what a URL waits for, what became of it, or which rule keeps it out.

    Asks the frontier worker that owns it; if none runs, the worker's state on this machine; else the changelog.
    """
    import msgspec

    found = asyncio.run(_ask(settings_of(state=state, kafka=kafka), url, crawl))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
        return
    click.echo("\n\n".join(in_words(answer) for answer in found))


async def _ask(settings: Settings, url: str, crawl: str | None) -> list[Explanation]:
    """The answers for one crawl, or for all that know the URL; for the newest if none does."""
    from agents.cli.desk import desk, wire_form

    wire = wire_form(url)
    async with desk(settings) as at:
        crawls = at.broadcast.crawls
        names = [crawl] if crawl is not None else sorted(crawls, key=lambda name: crawls[name].created, reverse=True)
        found = await _of_worker(at, wire, names) or await _from_outside(at, wire, names)
    return [answer for answer in found if answer.state != "unknown"] or found[:1]


async def _of_worker(at: Desk, wire: str, names: list[str]) -> list[Explanation]:
    """What the owner of the shard says; nothing if it does not answer."""
    import msgspec

    from agents.io.endpoints import ask_why
    from streams.frontier.explain import Explanation

    progress = at.broadcast.board.get(at.shard(wire))
    if progress is None or not progress.owner:
        return []
    found = []
    for name in names:
        answer = await ask_why(progress.owner, name, wire, progress.epoch)
        if answer is None:
            return []
        found.append(msgspec.json.decode(answer, type=Explanation))
    return found


async def _from_outside(at: Desk, wire: str, names: list[str]) -> list[Explanation]:
    """What the rows say."""
    from streams.frontier.explain import Inquiry, fingerprint_of, place_of
    from streams.frontier.index import FrontierIndexer
    from streams.frontier.rows import HostRow, decode_host_row, decode_url_row, host_key, url_key
    from streams.policy.urls import politeness_key
    from streams.state.changelog import ChangelogReader
    from streams.state.glimpse import glimpse
    from streams.topics import CHANGELOG, ROWS

    crawls, politeness = at.broadcast.crawls, at.settings.frontier.politeness
    host = host_key(politeness_key(wire, politeness))
    keys = {name: url_key(fingerprint_of(wire, name, crawls.get(name))) for name in names}
    reader = ChangelogReader(at.settings.kafka.prefix + CHANGELOG.name, {"bootstrap_servers": at.bootstrap})
    wanted, state = [host, *keys.values()], at.settings.worker.state
    found = []
    async with glimpse(reader, at.shard(wire), wanted, state, ROWS, FrontierIndexer()) as seen:
        about_host = seen.rows[host]
        for name, key in keys.items():
            data = seen.rows[key]
            row = decode_url_row(data) if data is not None else None
            found.append(Inquiry(
                url=wire, crawl_id=name, row=row, crawl=crawls.get(name), now=time.time_ns() // 1_000_000,
                host=decode_host_row(about_host) if about_host is not None else HostRow(), politeness=politeness,
                place=place_of(seen.store, row) if seen.store is not None and row is not None else None,
                witness="state" if seen.store is not None else "changelog",
            ).answer())  # fmt: skip
    return found


def in_words(answer: Explanation) -> str:
    """An answer for people."""
    lines = [f"{answer.url}  (crawl {answer.crawl})", f"  {answer.state}: {answer.text}"]
    if answer.advice:
        lines.append(f"  What to do: {answer.advice}")
    if answer.state != "unknown":
        facts = f"visit {answer.visit}, attempt {answer.attempt}, depth {answer.depth}, priority {answer.priority}"
        lines.append(f"  {facts}, host {answer.host}")
    if answer.failure and answer.failure != answer.reason:
        lines.append(f"  Last failure: {answer.failure}")
    if answer.page is not None:
        lines.append(f"  Page: partition {answer.page[0]}, offset {answer.page[1]} of topic pages")
    if answer.parent:
        lines.append(f"  Found on {answer.parent}")
    if answer.via:
        lines.append(f"  Redirected from {' and '.join(answer.via)}")
    lines.append(f"  Said by {_WITNESSES[answer.witness]}, by version {answer.rules} of the crawl's definition")
    return "\n".join(lines)
