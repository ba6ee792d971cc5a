"""`fyke seed`: hand URLs to running workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agents.cli.options import cluster_options, settings_of
from streams.errors import UsageError

if TYPE_CHECKING:
    from streams.messages import Seed
    from streams.settings import Settings


@click.command()
@click.argument("urls", nargs=-1)
@cluster_options
@click.option("--crawl", default="default", show_default=True, help="The crawl the URLs belong to.")
@click.option("--priority", type=click.IntRange(0, 9), default=5, show_default=True, help="9 first, 0 last.")
@click.option("--depth", type=click.IntRange(0), default=0, show_default=True, help="Depth at which they enter.")
@click.option("--refetch", is_flag=True, help="Visit them even if they were visited a short time ago.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="Sent with the request; repeatable.")
@click.option("--meta", metavar="JSON", help="Given back in page, record and failure; at most 4 KiB.")
@click.option("--file", type=click.File("r", encoding="utf-8"), metavar="FILE",
              help="Read URLs, or seeds as JSON, one a line; - for standard input.")  # fmt: skip
def seed(
    urls: tuple[str, ...], state: Path | None, kafka: str | None, crawl: str, priority: int, depth: int, refetch: bool,
    headers: tuple[str, ...], meta: str | None, file: Any,
) -> None:  # fmt: skip
    """Hand URLs to running workers. Returns when Kafka has accepted all of them."""
    from streams.messages import Seed

    if not urls and file is None:
        raise UsageError("no URL given", "fyke seed URL…, or fyke seed --file FILE (- for standard input)")
    template = Seed(
        url="",
        crawl=crawl,
        priority=priority,
        depth=depth,
        refetch=refetch,
        headers=_headers(headers),
        meta=_meta(meta),
    )
    count = asyncio.run(_produce(settings_of(state=state, kafka=kafka), _seeds(urls, file, template)))
    click.echo(f"{count:,} seed{'' if count == 1 else 's'} accepted for crawl {crawl}", err=True)


async def _produce(settings: Settings, seeds: Iterator[Seed]) -> int:
    from agents.cli.cluster import admin_of
    from agents.io.seeds import Writer

    async with admin_of(settings) as (bootstrap, admin):
        await admin.check_topics()
        async with Writer(bootstrap, settings) as writer:
            return await writer.seeds(seeds)


def _seeds(urls: tuple[str, ...], file: Any, template: Seed) -> Iterator[Seed]:
    """Checked seeds: a bare URL takes everything else from the options, a JSON line says it itself."""
    from msgspec.structs import replace

    for url in urls:
        yield _checked(replace(template, url=url), url)
    for number, raw in enumerate(file or (), 1):
        line = raw.strip()
        if line.startswith("{"):
            yield _from_json(line, number)
        elif line and not line.startswith("#"):
            yield _checked(replace(template, url=line), f"line {number}: {line}")


def _checked(seed: Seed, place: str) -> Seed:
    """A seed that the intake will accept, or `UsageError`."""
    from streams.codecs import check_seed
    from streams.errors import MessageError
    from streams.policy.urls import parse

    try:
        check_seed(seed)
    except MessageError as error:
        raise UsageError(f"{place}: {error.reason}", "Nothing after it was sent.") from None
    if parse(seed.url) is None:
        raise UsageError(f"{place}: not an http or https URL", "Write it in full: https://example.org/")
    return seed


def _from_json(line: str, number: int) -> Seed:
    from streams.codecs import decode_seeds
    from streams.errors import MessageError

    try:
        (seed,) = decode_seeds(line.encode())
    except MessageError as error:
        raise UsageError(f"line {number}: {error.reason}", "`fyke schema seed` says what a seed is.") from None
    if isinstance(seed, MessageError):
        raise UsageError(f"line {number}: {seed.reason}", "`fyke schema seed` says what a seed is.")
    return _checked(seed, f"line {number}")


def _headers(values: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for text in values:
        name, colon, value = text.partition(":")
        if not colon:
            raise UsageError(f"--header {text!r} is not NAME:VALUE", 'E.g. --header "Accept-Language: de"')
        headers[name.strip()] = value.strip()
    return headers


def _meta(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise UsageError(f"--meta is not JSON: {error}", "E.g. --meta '{\"job\": 7}'") from None
