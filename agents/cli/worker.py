"""`fyke worker STAGE`: one stage in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agents.cli.options import cluster_options, settings_of
from streams.errors import EnvironmentFault

if TYPE_CHECKING:
    from streams.settings import Settings

STAGES = ("frontier", "fetcher", "parser", "exporter")


@click.command()
@click.argument("stage", type=click.Choice(STAGES))
@cluster_options
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="The exporter's output folder (FYKE_EXPORT_OUT).")  # fmt: skip
@click.option("--crawl", "only_crawl", metavar="NAME", help="Export this crawl only (FYKE_EXPORT_CRAWL).")
@click.option("--managed", is_flag=True, hidden=True)
def worker(
    stage: str, state: Path | None, kafka: str | None, out: Path | None, only_crawl: str | None, managed: bool
) -> None:
    """Run one stage until SIGTERM. Settings come from FYKE_… variables and fyke.toml: see `fyke config`.

    `--managed` is how `fyke crawl` starts it: the first line of standard input names the broker, its end means stop.
    """
    import uvloop

    settings = settings_of(state=state, kafka=kafka, out=out, only_crawl=only_crawl)
    if stage == "exporter" and settings.export.out is None:
        raise EnvironmentFault("the exporter has no output folder", "Pass --out DIR, or set FYKE_EXPORT_OUT.")
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.worker.log.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
    logging.getLogger("aiokafka").setLevel(logging.NOTSET)  # a worker has a log, and its own limit on storms
    uvloop.run(_serve(stage, settings, managed))


async def _serve(stage: str, settings: Settings, managed: bool) -> None:
    """Run the stage until a signal or, if managed, the end of standard input."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stop.set)

    from agents.cli.configuration import override
    from agents.cli.places import Places, occupied
    from agents.worker import run  # takes a second; meanwhile `fyke crawl` starts the broker

    if managed:
        with occupied(settings.worker.state):
            bootstrap = await _told(stop)
            if bootstrap:
                await run([stage], settings, bootstrap, stop)
        return
    from agents.cli.cluster import running_bootstrap
    from agents.io.admin import Admin

    bootstrap = running_bootstrap(settings)
    async with Admin(bootstrap, settings) as admin:
        await admin.check_pinned()  # another politeness key would send everything to other shards
    places = Places(settings)
    places.enter()
    try:
        own = override(settings, {"worker.state": places.slot(stage).folder})
        await run([stage], own, bootstrap, stop)
    finally:
        places.leave()


async def _told(stop: asyncio.Event) -> str:
    """The first line of standard input, "" if it ends without one; sets `stop` when it ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    line = asyncio.ensure_future(reader.readline())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({line, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not line.done() or not line.result().endswith(b"\n"):
        line.cancel()
        return ""
    _watchers.add(asyncio.create_task(_stop_at_end(reader, stop), name="stdin"))
    return line.result().decode().strip()


_watchers: set[asyncio.Task[None]] = set()
"""The loop itself keeps only weak references to tasks."""


async def _stop_at_end(reader: asyncio.StreamReader, stop: asyncio.Event) -> None:
    await reader.read()
    stop.set()
