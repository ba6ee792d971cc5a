"""`fyke audit`: proves from the log that hosts were treated as promised and that no accepted URL got lost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agents.cli.options import cluster_options, settings_of
from streams.errors import Exit, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from agents.audit import CrawlReport, Report
    from streams.frontier.accounts import Account
    from streams.policy.audit import Offence, Sent
    from streams.settings import Settings

SHOWN = 20
"""Offenders of a kind that are printed; `--json` has up to 1,000."""

WIDTH = 110
"""Columns of the tables: where the output goes to a file, Rich would squeeze them into 80."""

_ACCOUNTS: tuple[Account, ...] = ("done", "failed", "excluded", "redirected", "open", "removed", "late")


@click.command()
@cluster_options
@click.option("--crawl", default="", metavar="ID", help="This crawl, and the hosts it asked.  [default: all]")
@click.option("--clocks", type=click.FloatRange(0), default=0.05, show_default=True, metavar="S",
              help="Seconds by which the clocks of two fetchers may differ.")  # fmt: skip
@click.option("--hosts", type=click.IntRange(0), default=10, show_default=True, metavar="N",
              help="Show the N hosts whose requests came nearest to their limit.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def audit(crawl: str, clocks: float, hosts: int, as_json: bool, state: Path | None, kafka: str | None) -> None:
    """Prove from the log that promises were kept: each host's gap and parallelism, a row for every accepted URL.

    May run beside workers. Exit codes: 0 clean, 5 something is broken, 2 usage, 3 environment.
    """
    settings = settings_of(state=state, kafka=kafka)
    report = asyncio.run(_examine(settings, crawl, clocks, hosts))
    if as_json:
        click.echo(json.dumps(_plain(report), indent=2))
    else:
        _print(report, settings.kafka.keep_applied)
    raise click.exceptions.Exit(Exit.ENDED if report.clean else Exit.BROKEN)


async def _examine(settings: Settings, crawl: str, clocks: float, hosts: int) -> Report:
    from agents.audit import Auditor
    from agents.cli.cluster import Cluster
    from agents.io.admin import Admin

    cluster = Cluster(settings, lambda line: click.echo(line, err=True))
    bootstrap = await cluster.start()
    try:
        async with Admin(bootstrap, settings) as admin:
            await admin.check_topics()
            auditor = Auditor(bootstrap, settings.kafka.prefix, admin, crawl=crawl, clocks=clocks, hosts=hosts)
            report = await auditor.run()
    finally:
        await cluster.release()
    if not auditor.known:
        raise UsageError(f"the broker knows no crawl {crawl}", "`fyke status` lists the crawls.")
    return report


# --- for people


def _print(report: Report, keep: float) -> None:
    click.echo(_since(report, keep))
    click.echo(
        f"{report.requests:,} requests to {report.hosts:,} hosts by {len(report.fetchers):,} fetchers; at most "
        f"{report.parallel:,} at a time on one host; {report.holds:,} answers asked to wait (Retry-After)"
    )
    if report.unreadable:
        click.echo(f"{report.unreadable:,} messages could not be read; topic failures says which")
    _print_tables(report)
    for offence in report.offences[:SHOWN]:
        click.echo("\n" + "\n  ".join(describe(offence)))
    for crawl in report.crawls.values():
        for offender in crawl.offenders[:SHOWN]:
            click.echo(f"\n{_WHY[offender.why]}: {offender.url or '(unreadable)'}\n  crawl {crawl.crawl}")
    click.echo("\n" + _verdict(report))


_WHY = {
    "lost": "a URL has no row",
    "left open": "a URL was left without an end by a crawl that has ended",
    "seed": "a seed left urls and came out nowhere",
}


def _since(report: Report, keep: float) -> str:
    if not report.since:
        return "The log is complete: nothing of it was trimmed."
    return (
        f"The log is complete since {_time(report.since)}; what was applied before that is trimmed "
        f"(FYKE_KAFKA_KEEP_APPLIED keeps {keep:g} s)."
    )


def _print_tables(report: Report) -> None:
    from rich.console import Console

    console = Console()
    console.width = max(console.width, WIDTH)
    if report.tightest:
        hosts = _table("host", "requests", "gap s", "allowed s", "at a time", "allowed")
        for host in report.tightest:
            gap, limit = "" if host.gap is None else f"{host.gap:.3f}", str(host.parallelism or "")
            hosts.add_row(host.host, f"{host.requests:,}", gap, f"{host.delay:g}", str(host.parallel), limit)
        console.print(hosts, highlight=False)
    if report.crawls:
        crawls = _table("crawl", "state", *_ACCOUNTS, "lost", "left open")
        for crawl in report.crawls.values():
            numbers = [f"{crawl.accounts[name]:,}" for name in _ACCOUNTS]
            lost = crawl.accounts["lost"] + crawl.lost_seeds
            state = f"{crawl.state} {crawl.result}".strip()
            crawls.add_row(crawl.crawl, state, *numbers, f"{lost:,}", f"{crawl.accounts['left open']:,}")
        console.print(crawls, highlight=False)
    if report.inbox or report.urls:
        click.echo(f"on their way: {report.inbox:,} messages in inbox, {report.urls:,} in urls")


def _table(*columns: str) -> Table:
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False, header_style="dim")


def describe(offence: Offence) -> list[str]:
    """An offence in words, with the requests that show it."""
    found, allowed = f"{offence.found:g}", f"{offence.allowed:g}"
    what = {
        "gap": f"{found} s between two starts, {allowed} s is the least",
        "parallelism": f"{found} requests at a time, {allowed} are allowed",
        "hold": f"asked {found} s after an answer that asked to wait {allowed} s",
        "rules": f"sent under {found} where crawl or robots.txt allow {allowed}",
    }[offence.rule]
    requests = [offence.earlier, offence.later] if offence.rule != "rules" else [offence.later]
    return [f"{offence.host}: {what}", *map(_request, requests)]


def _request(sent: Sent) -> str:
    return (
        f"{_time(sent.start)} to {_time(sent.end)[11:]}  {sent.status or 'no answer'}  {sent.url}  "
        f"by {sent.fetcher}, crawl {sent.crawl}, delay {sent.delay:g} s"
    )


def _verdict(report: Report) -> str:
    if report.clean:
        return "Clean." if report.requests or report.crawls else "Clean: there was nothing to look at."
    parts = [f"{rule} {number:,} times" for rule, number in sorted(report.broken.items())]
    parts += [f"{crawl.broken:,} URLs of crawl {crawl.crawl}" for crawl in report.crawls.values() if crawl.broken]
    return f"Broken: {', '.join(parts)}."


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


# --- for programs


def _plain(report: Report) -> dict[str, Any]:
    return {
        "clean": report.clean,
        "complete_since": report.since,
        "on_their_way": {"inbox": report.inbox, "urls": report.urls},
        "unreadable": report.unreadable,
        "hosts": report.hosts,
        "requests": report.requests,
        "fetchers": sorted(report.fetchers),
        "most_at_a_time": report.parallel,
        "holds": report.holds,
        "broken": dict(report.broken),
        "offences": [asdict(offence) for offence in report.offences],
        "tightest": [
            {"host": host.host, "requests": host.requests, "gap": host.gap, "allowed_gap": host.delay,
             "most_at_a_time": host.parallel, "allowed_at_a_time": host.parallelism}
            for host in report.tightest
        ],
        "crawls": [_plain_crawl(crawl) for crawl in report.crawls.values()],
    }  # fmt: skip


def _plain_crawl(crawl: CrawlReport) -> dict[str, Any]:
    from streams.frontier.accounts import OFFENDERS

    accounts = {name: crawl.accounts[name] for name in (*_ACCOUNTS, *OFFENDERS)}
    offenders = [{"url": offender.url, "why": offender.why} for offender in crawl.offenders]
    return {
        "crawl": crawl.crawl, "state": crawl.state, "result": crawl.result, "urls": accounts,
        "lost_seeds": crawl.lost_seeds, "offenders": offenders,
    }  # fmt: skip
