"""`fyke crawl` and `fyke resume`: from arguments to a plan, from a report to an exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from agents.cli.options import address_options, cluster_options, settings_of
from agents.cli.quantities import Duration, Size
from streams.errors import EnvironmentFault, Exit, FykeError, UsageError

if TYPE_CHECKING:
    from agents.cli.conduct import Report
    from agents.cli.outputs import Plan
    from agents.cli.view import View
    from streams.settings import Settings

_out = click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
                    help="The output folder.  [default: ./fyke-out/NAME]")  # fmt: skip
_in_process = click.option(
    "--in-process", is_flag=True, default=None, help="Run all stages in this process (tests, debugging)."
)


@click.command()
@click.argument("seeds", metavar="URL...", nargs=-1)
@_out
@click.option(
    "--scope",
    type=click.Choice(["host", "domain", "prefix", "any"]),
    help="Follow links on the same host, in the same registrable domain, below the same folder, or all.  "
    "[default: host]",
)
@click.option("--depth", type=click.IntRange(0), metavar="N", help="Follow links N clicks deep.  [default: no limit]")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after N pages.  [default: no limit]")
@click.option("--host-limit", type=click.IntRange(1), metavar="N", help="Fetch N pages of each host at most.")
@click.option("--max-size", type=Size(), metavar="SIZE", help="Stop after so many bytes of pages: 500k, 20MB, 2GiB.")
@click.option("--duration", type=Duration(), metavar="TIME", help="Stop after so long: 90s, 30m, 2h, 1d.")
@click.option(
    "--delay",
    type=click.FloatRange(0),
    metavar="S",
    help="Seconds between two requests to a host.  [default: 0.5; loopback: 0]",
)
@click.option(
    "--parallelism",
    type=click.IntRange(1),
    metavar="N",
    help="Requests to a host at the same time.  [default: 2; loopback: 32]",
)
@click.option("--no-sitemaps", is_flag=True, help="Leave out what only the sitemaps named by robots.txt list.")
@click.option(
    "--recrawl",
    type=click.FloatRange(1),
    metavar="S",
    help="Visit each page again after S seconds, by a conditional request, until Ctrl-C or --rounds.",
)
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="With --recrawl: visit each page N times in all.")
@click.option("--rules", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Rules, budgets and all else a definition says (docs/rules.md); options win.")  # fmt: skip
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes of each stage but the exporter.",
)
@address_options
@_in_process
@click.option("--name", metavar="ID", help="The crawl's name.  [default: the first URL's host]")
@cluster_options
@click.option("--demo", is_flag=True, help="Crawl a small site that this command serves on loopback.")  # fmt: skip
def crawl(
    seeds: tuple[str, ...], out: Path | None, state: Path | None, kafka: str | None, allow_private: bool | None,
    connect_to: tuple[str, ...], rules: Path | None, **asked: Any,
) -> None:  # fmt: skip
    """Crawl from the given URLs. robots.txt is obeyed. Ctrl-C stops it; `fyke resume` goes on.

    Exit codes: 0 the crawl ended, 1 no page was fetched, 2 usage, 3 environment, 4 a limit of pages, bytes or time was
    reached, 7 somebody cancelled it, 130 interrupted.
    """
    if asked["demo"] == bool(seeds):
        raise UsageError("--demo brings its own URL" if seeds else "no URL given", "fyke crawl URL…, or --demo")
    settings = settings_of(state=state, kafka=kafka, allow_private=allow_private, connect_to=connect_to)
    asked["in_process"] = bool(asked["in_process"])
    if rules is not None:
        from agents.cli.rulefile import load_rules

        asked["rules"] = load_rules(rules, new=True)
    _exit(_loop(_begin(asked, seeds, settings, out)), out)


@click.command()
@click.argument("name", required=False)
@_out
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Other than before.")
@_in_process
@cluster_options
def resume(
    name: str | None, out: Path | None, state: Path | None, kafka: str | None, workers: int | None,
    in_process: bool | None,
) -> None:  # fmt: skip
    """Go on with a crawl that was interrupted; without NAME, the newest unfinished one in ./fyke-out.

    What was fetched is not fetched again. Exit codes as of `fyke crawl`.
    """
    from msgspec.structs import replace

    from agents.cli.outputs import read_plan, unfinished

    folder = unfinished(name, out)
    plan = read_plan(folder)
    if plan.result:
        if not asyncio.run(_open_again(plan, _settings_of_plan(plan, state=state, kafka=kafka))):
            raise UsageError(f"the crawl {plan.name} has ended: {plan.result}", "Crawl again: fyke crawl URL…")
        plan = replace(plan, result="")
    if workers is not None:
        plan = replace(plan, workers=workers)
    if in_process is not None:
        plan = replace(plan, in_process=in_process)
    settings = _settings_of_plan(plan, state=state, kafka=kafka)
    _exit(_loop(_go_on(plan, folder, settings)), out)


async def _open_again(plan: Plan, settings: Settings) -> bool:
    """Whether a crawl that had ended was opened again (`fyke failures --redrive --reopen`)."""
    from agents.cli.desk import desk

    try:
        async with desk(settings) as at:
            return plan.name in at.broadcast.crawls and at.crawl(plan.name).state != "ended"
    except EnvironmentFault:  # its broker is gone
        return False


def _settings_of_plan(plan: Plan, **options: Any) -> Settings:
    """The settings now, except those that the plan keeps and no option changes."""
    from agents.cli.configuration import load
    from agents.cli.options import given

    kept = {dotted: ("the crawl's plan", value) for dotted, value in plan.settings.items()}
    return load(kept | given(**options))


async def _begin(asked: dict[str, Any], seeds: tuple[str, ...], settings: Settings, out: Path | None) -> Report:
    from agents.cli.planning import Asked, plan_crawl

    async with AsyncExitStack() as stack:
        if asked["demo"]:
            from agents.io.demo import DemoSite

            site = await stack.enter_async_context(DemoSite())
            seeds = (site.url,)
        plan, settings, notes = plan_crawl(Asked(**asked), seeds, settings)
        return await _conduct(plan, settings, notes, folder=None, out=out)


async def _go_on(plan: Plan, folder: Path, settings: Settings) -> Report:
    async with AsyncExitStack() as stack:
        if plan.demo:
            from agents.io.demo import DemoSite

            await stack.enter_async_context(DemoSite(port=_port(plan.seeds[0])))
        return await _conduct(plan, settings, [], folder=folder, out=None)


def _port(url: str) -> int:
    from yarl import URL

    return URL(url).port or 80


async def _conduct(
    plan: Plan, settings: Settings, notes: list[str], *, folder: Path | None, out: Path | None
) -> Report:
    from rich.console import Console

    from agents.cli.conduct import Conductor
    from agents.cli.view import LiveView, PlainView

    console = Console(stderr=True)
    view: View = LiveView(console) if console.is_terminal else PlainView(console)
    conductor = Conductor(plan, settings, view, folder=folder, out=out)
    try:
        for line in (*notes, f"State folder: {settings.worker.state}"):
            view.say(line)
        if plan.in_process:
            from agents.cli.inprocess import InProcess

            return await conductor.run(InProcess())
        from agents.cli.supervisor import Supervisor

        return await conductor.run(Supervisor(view.say))
    except FykeError as error:
        if conductor.folder is not None:
            error.add_note(f"When that is mended, go on: {_command(conductor.folder, out)}")
        raise
    finally:
        view.close()


def _command(folder: Path, out: Path | None) -> str:
    """The command that goes on with the crawl in `folder`."""
    return f"fyke resume --out {folder}" if out is not None else f"fyke resume {folder.name}"


def _loop(work: Coroutine[Any, Any, Report]) -> Report:
    import uvloop

    return uvloop.run(work)


def _exit(report: Report, out: Path | None) -> NoReturn:
    """Print how it went and leave with the exit code that says it."""
    from agents.cli.view import summary

    if report.killed:
        click.echo(f"Did not stop in time and were killed, without loss: {', '.join(report.killed)}", err=True)
    if report.folder is None or not report.result:
        if report.folder is not None:
            click.echo(f"Interrupted. Go on: {_command(report.folder, out)}", err=True)
        raise click.exceptions.Exit(Exit.INTERRUPTED)
    lines = _lines(report.folder)
    click.echo(
        summary(report.snapshot, report.result, report.folder, lines, before=report.before, restarts=report.restarts)
    )
    raise click.exceptions.Exit(exit_code(report.result, report.snapshot.counts.done))


def exit_code(result: str, pages: int) -> Exit:
    """The exit code of a crawl that ended."""
    if result == "cancelled":
        return Exit.CANCELLED
    if result in ("limit", "size", "deadline") and pages:
        return Exit.LIMIT
    return Exit.ENDED if pages else Exit.NO_PAGE


def _lines(folder: Path) -> dict[str, int]:
    """How many lines each output file has."""
    counts = {}
    for path in sorted(folder.glob("*.jsonl"), reverse=True):
        with path.open("rb") as file:
            counts[path.name] = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    return counts
