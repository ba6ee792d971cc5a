"""`fyke state check` and `fyke state rebuild`: is what workers remember sound, and make it anew from the changelog."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agents.cli.options import cluster_options, settings_of
from streams.errors import EnvironmentFault, Exit, StateError, UsageError

if TYPE_CHECKING:
    from streams.settings import Settings
    from streams.state.changelog import ChangelogReader
    from streams.state.checkup import Checkup, Known
    from streams.state.shelf import Shelf

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
_EFFECTS = {"none": "note", "rebuilt": "rebuilt at the next start", "wrong": "WRONG", "stop": "STOPS THE WORKER"}


@click.command()
@click.argument("folder", required=False, type=FOLDER)
@cluster_options
@click.option("--shard", "shards", type=click.IntRange(0), multiple=True, metavar="N", help="Only these shards.")
@click.option("--offline", is_flag=True, help="Ask no broker: compare nothing with the changelog.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(
    folder: Path | None, shards: tuple[int, ...], offline: bool, as_json: bool, state: Path | None, kafka: str | None
) -> None:
    """Examine the frontier's stores in FOLDER: whom they belong to, checksums, rows, index, counters, changelog.

    FOLDER is a store, or any folder above some.  [default: the state folder] Stores are only read, so their workers
    may run. Exit codes: 0 sound, 5 something was found, 2 usage, 3 environment.
    """
    settings = settings_of(state=state, kafka=kafka)
    paths = stores_in(folder or settings.worker.state, shards)
    known = None if offline else asyncio.run(_known(settings, paths))
    found = [_examine(path, known) for path in paths]
    if as_json:
        click.echo(json.dumps([_plain(checkup) for checkup in found], indent=2))
    else:
        for checkup in found:
            click.echo(in_words(checkup))
        if known is None and not offline:
            click.echo("No broker answered: nothing was compared with the changelog.", err=True)
    raise click.exceptions.Exit(Exit.ENDED if all(checkup.sound for checkup in found) else Exit.BROKEN)


@click.command()
@click.argument("folder", required=False, type=FOLDER)
@cluster_options
@click.option("--shard", "shards", type=click.IntRange(0), multiple=True, metavar="N", help="Only these shards.")
@click.option("--now", is_flag=True, help="Do it at once, not when the worker starts.")
@click.option("--incomplete", is_flag=True, help="Also where the changelog has no more all that the store needs.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def rebuild(
    folder: Path | None, shards: tuple[int, ...], now: bool, incomplete: bool, yes: bool, state: Path | None,
    kafka: str | None,
) -> None:  # fmt: skip
    """Make the frontier's stores in FOLDER anew from the changelog; what is there is kept as ….aside.

    FOLDER as in `fyke state check`. Workers that use the stores must be stopped; the broker must run, and says what the
    rebuild will read. Nothing is changed unless all that was named can be rebuilt.
    """
    settings = settings_of(state=state, kafka=kafka)
    paths = stores_in(folder or settings.worker.state, shards)
    with ExitStack() as vacated:
        keep_workers_out(paths, vacated)
        asyncio.run(_rebuild(settings, paths, now=now, incomplete=incomplete, confirmed=yes))


def stores_in(folder: Path, shards: Sequence[int]) -> list[Path]:
    """The stores in a folder, those of `shards` if there are any. Raises `UsageError` if there are none."""
    from streams.state.checkup import partition_of
    from streams.topics import ROWS

    folder = folder.absolute()
    pattern = f"{ROWS}-*.db"
    found = [folder] if folder.match(pattern) else sorted(path for path in folder.rglob(pattern) if path.is_dir())
    found = [path for path in found if not shards or partition_of(path) in shards]
    if not found:
        raise UsageError(
            f"there is no store of the frontier in {folder}", "Name its folder, or a state folder with --state."
        )
    return found


def keep_workers_out(paths: Iterable[Path], vacated: ExitStack) -> None:
    """Let no worker start on these stores until `vacated` ends. Raises `EnvironmentFault` if one is there."""
    from agents.cli.places import vacant

    places = {path.parents[3] for path in paths if len(path.parents) > 3}
    for worker in sorted(place for place in places if (place / "slot").exists()):
        vacated.enter_context(vacant(worker))


# --- looking


def _examine(path: Path, known: Known | None, *, contents: bool = True) -> Checkup:
    from streams.frontier.index import FrontierIndexer
    from streams.frontier.rows import readable
    from streams.state.checkup import examine
    from streams.state.table import MAX_AGE

    read = readable if contents else None
    return examine(path, FrontierIndexer(), read, known, max_age=MAX_AGE, now=time.time_ns() // 1_000_000)


async def _known(settings: Settings, paths: Sequence[Path]) -> Known | None:
    """What the broker says of the changelog; None if none answers."""
    from agents.cli.desk import broker

    try:
        async with broker(settings) as bootstrap:
            return await _ask(await _reader(settings, bootstrap), paths)
    except EnvironmentFault as fault:
        click.echo(f"{fault.problem}\n", err=True)
        return None


async def _reader(settings: Settings, bootstrap: str) -> ChangelogReader:
    """Raises `EnvironmentFault` where the broker does not answer or lacks topics."""
    from agents.io.admin import Admin
    from streams.state.changelog import ChangelogReader
    from streams.topics import CHANGELOG

    async with Admin(bootstrap, settings) as admin:
        await admin.check_topics()
    return ChangelogReader(settings.kafka.prefix + CHANGELOG.name, {"bootstrap_servers": bootstrap})


async def _ask(reader: ChangelogReader, paths: Sequence[Path]) -> Known:
    from streams.state.checkup import Known, partition_of

    partitions = sorted({partition_of(path) for path in paths} & await reader.partitions())
    return Known(await reader.identities(partitions), await reader.bounds(partitions))


def in_words(checkup: Checkup) -> str:
    """A checkup for people: a line for the store and one for each finding."""
    verdict = "sound" if checkup.sound else "NOT SOUND"
    facts = f"shard {checkup.partition}, {checkup.rows:,} rows, changelog up to offset {checkup.offset:,}"
    lines = [f"{checkup.path}: {verdict}; {facts}"]
    for finding in checkup.findings:
        lines.append(f"  {_EFFECTS[finding.effect]}: {finding.text}")
        if finding.remedy:
            lines.append(f"    What to do: {finding.remedy}")
    return "\n".join(lines)


def _plain(checkup: Checkup) -> dict[str, Any]:
    return {
        "path": str(checkup.path), "shard": checkup.partition, "sound": checkup.sound, "rows": checkup.rows,
        "offset": checkup.offset, "touched": checkup.touched, "findings": [asdict(each) for each in checkup.findings],
    }  # fmt: skip


# --- making anew


async def _rebuild(settings: Settings, paths: Sequence[Path], *, now: bool, incomplete: bool, confirmed: bool) -> None:
    from agents.cli.desk import broker

    async with broker(settings) as bootstrap:
        reader = await _reader(settings, bootstrap)
        known = await _ask(reader, paths)
        chosen = [path for path in paths if _may_be_rebuilt(path, known, incomplete=incomplete, alone=len(paths) == 1)]
        if not chosen:
            click.echo("nothing to rebuild: every store has what its changelog lacks, or needs nothing", err=True)
            return
        for path in chosen:
            click.echo(_cost(path, known), err=True)
        if not confirmed:
            number = f"{len(chosen)} store{'' if len(chosen) == 1 else 's'}"
            await asyncio.to_thread(click.confirm, f"Rebuild {number}?", abort=True)
        for path in chosen:
            await _make_anew(settings, path, reader, known, now=now)


def _may_be_rebuilt(path: Path, known: Known, *, incomplete: bool, alone: bool) -> bool:
    """Whether a store is rebuilt. Raises `StateError` where that would lose rows and was not asked for.

    A store that is whole while its changelog is not is rebuilt only if it was named alone.
    """
    from streams.state.checkup import partition_of

    partition = partition_of(path)
    if partition not in known.bounds:
        raise StateError(f"the changelog has no partition {partition}", f"Remove {path}: no worker opens it.")
    checkup = _examine(path, known, contents=False)
    stopped = any(finding.effect == "stop" for finding in checkup.findings)
    whole = known.bounds[partition].begin == 0 and not stopped
    if whole:
        return not incomplete or not checkup.sound or alone
    if not incomplete:
        raise StateError(
            f"{path} cannot be rebuilt in full: {_reason(checkup)}",
            "Nothing was changed. To go on with what Kafka has, and without the rows that it lacks: --incomplete.",
        )
    return stopped or alone


def _reason(checkup: Checkup) -> str:
    texts = [finding.text for finding in checkup.findings if finding.effect == "stop" or "begins at" in finding.text]
    return "; ".join(texts) or "its changelog has lost its beginning"


def _cost(path: Path, known: Known) -> str:
    from streams.state.checkup import partition_of

    begin, end = known.bounds[partition_of(path)]
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return (
        f"{path}: {size / (1 << 20):,.1f} MiB are set aside; up to {end - begin:,} records are read from the changelog"
    )


async def _make_anew(settings: Settings, path: Path, reader: ChangelogReader, known: Known, *, now: bool) -> None:
    from streams.state.checkup import partition_of
    from streams.state.replay import replay

    partition = partition_of(path)
    shelf, begin, began = _shelf(settings, path), known.bounds[partition].begin, time.monotonic()
    shelf.set_aside(partition, "as `fyke state rebuild` says")
    store = await shelf.create(known.identities[partition])
    try:
        if begin:
            store.begin_at(begin - 1)
        records = 0
        if now:
            async with aclosing(replay(reader, store, partition, known.bounds[partition].end)) as steps:
                async for number in steps:
                    records += number
    finally:
        store.close()
    seconds = time.monotonic() - began
    done = f"{records:,} records in {seconds:.1f} s" if now else "the worker's next start reads the changelog"
    click.echo(f"{path}: {done}")


def _shelf(settings: Settings, path: Path) -> Shelf:
    from streams.frontier.index import FrontierIndexer
    from streams.state.shelf import Shelf
    from streams.state.table import MAX_AGE
    from streams.topics import ROWS

    return Shelf(path.parent, ROWS, FrontierIndexer(), settings.frontier, MAX_AGE, lambda: time.time_ns() // 1_000_000)
