"""Commands about the broker: `fyke broker …`, `fyke topics …`, `fyke clean`."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agents.cli.options import cluster_options, settings_of

if TYPE_CHECKING:
    from streams.settings import Settings

_state = click.option(
    "--state", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Folder of the embedded broker."
)


@click.group()
def broker() -> None:
    """Start, stop and look at the embedded broker."""


@broker.command()
@_state
def start(state: Path | None) -> None:
    """Start the embedded broker and make its topics; it runs until `fyke broker stop`."""
    from agents.io.broker import EmbeddedBroker

    settings = settings_of(state=state, kafka="")
    bootstrap = EmbeddedBroker(settings, _say).ensure(persistent=True)
    asyncio.run(_apply(bootstrap, settings))
    click.echo(bootstrap)


@broker.command()
@_state
@click.option("--force", is_flag=True, help="Even if crawls are using it.")
def stop(state: Path | None, force: bool) -> None:
    """Stop the embedded broker; its data stays."""
    from agents.io.broker import EmbeddedBroker

    stopped = EmbeddedBroker(settings_of(state=state, kafka=""), _say).stop(force=force)
    click.echo("stopped" if stopped else "no broker was running", err=True)


@broker.command("status")
@_state
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def broker_status(state: Path | None, as_json: bool) -> None:
    """Show whether the embedded broker runs, where it listens, how big it is. Exit code 1 if it does not run."""
    from agents.io.broker import EmbeddedBroker

    settings = settings_of(state=state, kafka="")
    found = EmbeddedBroker(settings).status()
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    elif found.running:
        click.echo(
            f"running at {found.bootstrap}, process {found.pid}, for {found.uptime:,.0f} s\n"
            f"memory {_mib(found.rss)}, data {_mib(found.data)} in {settings.worker.state}, used by {found.users}"
        )
    else:
        click.echo(f"not running, data {_mib(found.data)} in {settings.worker.state}")
    raise click.exceptions.Exit(0 if found.running else 1)


@click.group()
def topics() -> None:
    """Provision the topics of a deployment."""


@topics.command()
@cluster_options
def apply(state: Path | None, kafka: str | None) -> None:
    """Make missing topics and correct settings that differ; partition counts are never changed."""
    from agents.cli.cluster import running_bootstrap

    settings = settings_of(state=state, kafka=kafka)
    changes = asyncio.run(_apply(running_bootstrap(settings), settings))
    click.echo("\n".join(changes) or "nothing to do")


@topics.command()
@cluster_options
def check(state: Path | None, kafka: str | None) -> None:
    """Check that all topics are there as the settings want them; changes nothing."""

    async def look(settings: Settings) -> None:
        from agents.cli.cluster import admin_of

        async with admin_of(settings) as (_, admin):
            await admin.check_topics()

    asyncio.run(look(settings_of(state=state, kafka=kafka)))
    click.echo("all topics are as they should be")


@topics.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(as_json: bool) -> None:
    """List every topic with its partitions and settings, and every consumer group, without asking a broker."""
    from agents.io.provision import plan_groups, plan_topics

    plans, groups = plan_topics(settings_of()), plan_groups(settings_of())
    if as_json:
        click.echo(json.dumps({"topics": [asdict(topic) for topic in plans], "groups": groups}, indent=2))
        return
    for topic in plans:
        configs = " ".join(f"{key}={value}" for key, value in sorted(topic.configs.items()))
        click.echo(f"{topic.name}  partitions={topic.partitions} replication={topic.replication} {configs}")
    for group, read in groups.items():
        click.echo(f"group {group}  reads {' '.join(read)}")


@click.command()
@_state
@click.option("--yes", is_flag=True, help="Do not ask.")
def clean(state: Path | None, yes: bool) -> None:
    """Remove the embedded broker's data, the workers' tables and the logs. Output folders stay."""
    from agents.cli.places import Places
    from agents.io.broker import EmbeddedBroker

    settings = settings_of(state=state, kafka="")
    folder = settings.worker.state
    if not folder.exists():
        click.echo(f"nothing to remove: there is no {folder}", err=True)
        return
    if not yes:
        click.confirm(f"Remove all of Fyke's data in {folder}? Crawls that are not finished are lost.", abort=True)
    Places(settings).check_nobody()
    freed = EmbeddedBroker(settings, _say).clean()
    for name in ("workers", "logs", "runs"):
        shutil.rmtree(folder / name, ignore_errors=True)
    click.echo(f"removed {_mib(freed)} of broker data, tables and logs in {folder}", err=True)


async def _apply(bootstrap: str, settings: Settings) -> list[str]:
    from agents.io.admin import Admin

    async with Admin(bootstrap, settings) as admin:
        return await admin.apply_topics()


def _say(line: str) -> None:
    click.echo(line, err=True)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
