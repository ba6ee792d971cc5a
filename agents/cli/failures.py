"""`fyke failures`: what failed, and trying it again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from agents.cli.options import cluster_options, settings_of
from streams.errors import MessageError, UsageError
from streams.messages import FailureClass

if TYPE_CHECKING:
    from agents.cli.desk import Desk
    from streams.frontier.standing import LastWords
    from streams.messages import Command, Failure
    from streams.settings import Settings

LAST = 100
_REASON = 60  # characters of a reason in the table


@dataclass(frozen=True, slots=True)
class Asked:
    """Which failures. Empty: any."""

    crawl: str
    host: str
    failure: str
    final: bool
    resolved: bool

    def wants(self, failure: Failure) -> bool:
        """Whether a last word on a URL is one of them."""
        from streams.frontier.standing import standing
        from streams.policy.urls import hostname

        how = standing(failure)
        if (self.crawl and failure.crawl != self.crawl) or (self.failure and failure.failure != self.failure):
            return False
        if (how == "resolved" and not self.resolved) or (how == "retry" and self.final):
            return False
        return not self.host or ("://" in failure.url and hostname(failure.url) == self.host)


@click.command()
@click.option("--crawl", default="", metavar="NAME", help="Of this crawl.")
@click.option("--host", default="", metavar="HOST", help="Of this host.")
@click.option("--class", "failure", default="", type=click.Choice(["", *get_args(FailureClass)]), metavar="CLASS",
              help="Of this class, such as timeout.")  # fmt: skip
@click.option("--final", is_flag=True, help="Only those that are not tried again.")
@click.option("--resolved", is_flag=True, help="Also those after which a later answer was a success.")
@click.option("--last", type=click.IntRange(1), metavar="N", help=f"The newest N.  [default: {LAST}; redrive: all]")
@click.option("--redrive", is_flag=True, help="Try the final ones again: each gets a new visit.")
@click.option("--reopen", is_flag=True, help="With --redrive: open crawls that have ended again.")
@click.option("--yes", is_flag=True, help="With --redrive: do not ask.")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an array of failures.")
def failures(
    crawl: str, host: str, failure: str, final: bool, resolved: bool, last: int | None, redrive: bool, reopen: bool,
    yes: bool, state: Path | None, kafka: str | None, as_json: bool,
) -> None:  # fmt: skip
    """List what failed, newest first: the last word on each URL. With --redrive, try the final failures again.

    Failures are kept for 30 days. A failure that was redriven is not final any more; when its new visit succeeds it is
    `resolved`.
    """
    if (reopen or yes) and not redrive:
        raise UsageError("--reopen and --yes go with --redrive", "fyke failures --redrive --yes")
    settings = settings_of(state=state, kafka=kafka)
    asked = Asked(crawl, host.lower(), failure, final or redrive, resolved and not redrive)
    if redrive:
        asyncio.run(_redrive(settings, asked, last, reopen=reopen, confirmed=yes))
        return
    found = asyncio.run(_list(settings, asked, last or LAST))
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        _print(found)


# --- reading


async def _list(settings: Settings, asked: Asked, last: int) -> list[Failure]:
    from agents.cli.desk import desk

    async with desk(settings) as at:
        return _newest(await _read(at, asked, last), last)


async def _read(at: Desk, asked: Asked, most: int | None, keep: Callable[[Failure], Failure] | None = None) -> (
    list[LastWords]
):  # fmt: skip
    """The last words of each partition of `failures`, up to its end now. `keep`: what is kept of a message."""
    from streams import codecs
    from streams.frontier.standing import LastWords
    from streams.messages import Failure
    from streams.state.changelog import ChangelogReader
    from streams.topics import FAILURES

    reader = ChangelogReader(at.settings.kafka.prefix + FAILURES.name, {"bootstrap_servers": at.bootstrap})
    ends = await at.admin.end_offsets(FAILURES.name)
    words = {partition: LastWords(asked.wants, most) for partition in ends}
    async with aclosing(reader.read(await at.admin.begin_offsets(FAILURES.name), ends)) as stretches:
        async for partition, records, _ in stretches:
            for record in records:
                if record.value is None:
                    if word := codecs.decode_forgotten(record.key, record.headers):
                        words[partition].forget(word)
                    continue
                try:
                    failure = codecs.decode(Failure, record.value)
                except MessageError:
                    continue  # no failure of ours
                words[partition].take(keep(failure) if keep is not None else failure)
    return list(words.values())


def _newest(words: Iterable[Iterable[Failure]], last: int | None) -> list[Failure]:
    return sorted(chain.from_iterable(words), key=lambda failure: failure.at, reverse=True)[:last]


# --- trying again


async def _redrive(settings: Settings, asked: Asked, last: int | None, *, reopen: bool, confirmed: bool) -> None:
    from agents.cli.desk import desk

    async with desk(settings) as at:
        found = _newest(await _read(at, asked, last, _slim), last)
        chosen = sorted((one for one in found if one.failure != "unreadable"), key=lambda one: one.crawl)
        numbers = Counter(failure.crawl for failure in chosen)
        if not chosen:
            click.echo("nothing to redrive: no final failure is unresolved", err=True)
            return
        ended = _check_crawls(at, numbers, reopen=reopen)
        for name, number in numbers.items():
            click.echo(f"crawl {name}: {number:,} final failure{'' if number == 1 else 's'}", err=True)
        if not confirmed:
            await asyncio.to_thread(click.confirm, f"Redrive {len(chosen):,} URLs?", abort=True)
        for name, group in groupby(chosen, key=lambda one: one.crawl):
            await _redrive_crawl(at, name, group, again=name in ended)
        click.echo(f"redriven: {len(chosen):,}. Frontier workers take them up as soon as they run", err=True)
        for name in ended:
            click.echo(f"crawl {name} is open again. If `fyke crawl` made it: fyke resume {name}", err=True)


def _check_crawls(at: Desk, numbers: Iterable[str], *, reopen: bool) -> set[str]:
    """The crawls among these that have ended; `UsageError` where that is in the way."""
    ended = {name for name in numbers if at.crawl(name).state == "ended"}
    if ended and not reopen:
        raise UsageError(
            f"ended: {', '.join(sorted(ended))}. An ended crawl takes no URLs",
            "Pass --reopen to open it again (it ends again when its redriven URLs have), or name another --crawl.",
        )
    expire_after = at.settings.frontier.expire_after * 1000
    for name in sorted(ended):
        if time.time_ns() // 1_000_000 >= at.crawl(name).ended + expire_after:
            raise UsageError(f"the rows of crawl {name} have expired: nothing of it can be redriven", "Crawl again.")
    return ended


async def _redrive_crawl(at: Desk, name: str, group: Iterable[Failure], *, again: bool) -> None:
    """Send the commands of one crawl. One that had ended is open meanwhile, and sealed behind them as it was before."""
    from msgspec.structs import replace

    if again:
        await at.update(name, lambda crawl: replace(crawl, state="open", result="", ended=0))
    await at.command(_commands(at, name, group))
    if again and at.crawl(name).seal is not None:
        await at.update(name, lambda crawl: replace(crawl, state="sealed"))


def _commands(at: Desk, name: str, group: Iterable[Failure]) -> Iterator[tuple[int, Command]]:
    from streams.frontier.explain import fingerprint_of
    from streams.messages import Command

    crawl = at.crawl(name)
    for failure in group:
        key = fingerprint_of(failure.url, name, crawl)
        command = Command(
            action="redrive", crawl=name, url=failure.url, fingerprint=key, visit=failure.visit + 1, rules=crawl.version
        )  # fmt: skip
        yield at.shard(failure.url), command


def _slim(failure: Failure) -> Failure:
    """What a redrive needs of a failure: all of a month's may be kept at once."""
    from msgspec.structs import replace

    return (
        replace(failure, reason="", evidence={}, meta=None, history=None)
        if failure.failure != "unreadable"
        else failure
    )


# --- for people


def _print(found: list[Failure]) -> None:
    from rich.console import Console
    from rich.table import Table

    if not found:
        click.echo("no failures", err=True)
        return
    table = Table("when (UTC)", "crawl", "class", "next", "visit", "URL", "reason", box=None, pad_edge=False,
                  header_style="dim")  # fmt: skip
    for failure in found:
        where = failure.url or "{topic}-{partition}@{offset}".format_map(failure.evidence)
        table.add_row(_at(failure.at), failure.crawl, failure.failure, _next(failure),
                      f"{failure.visit}.{failure.attempt}", where, failure.reason[:_REASON])  # fmt: skip
    console = Console()
    console.width = max(console.width, 160)
    console.print(table, highlight=False, markup=False)


def _next(failure: Failure) -> str:
    from streams.frontier.standing import standing

    how = standing(failure)
    return f"retry {_at(failure.next.at)[11:]}" if how == "retry" else how


def _at(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
