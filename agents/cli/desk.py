"""What an operator's command works with: the broker, what all workers know, a writer of definitions and commands."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import click
import msgspec

from agents.broadcast import Broadcast, publish
from agents.cli.cluster import Cluster, running_bootstrap
from agents.io.admin import Admin
from agents.io.broker import EmbeddedBroker
from agents.io.seeds import Writer
from streams.definitions import CrawlDefinition
from streams.errors import EnvironmentFault, UsageError
from streams.messages import Command
from streams.policy.urls import parse, politeness_key
from streams.settings import Settings
from streams.topics import INBOX, shard_of

TRIES: Final = 5
"""Times a change is made anew because somebody else's came first."""


@dataclass(frozen=True, slots=True)
class Desk:
    """Connections of one command."""

    bootstrap: str
    settings: Settings
    admin: Admin
    writer: Writer
    broadcast: Broadcast
    shards: int

    def crawl(self, name: str) -> CrawlDefinition:
        """A crawl's definition. Raises `UsageError` if there is none of that name."""
        known = self.broadcast.crawls.get(name)
        if known is None:
            raise UsageError(f"the broker knows no crawl {name}", "`fyke status` lists the crawls.")
        return known

    async def update(self, name: str, change: Callable[[CrawlDefinition], CrawlDefinition]) -> CrawlDefinition:
        """Make a change on the newest version of a definition; again if somebody else's comes first. The new version.

        `change` gives back its argument where there is nothing to change.
        """
        for _ in range(TRIES):
            known = self.crawl(name)
            wanted = change(known)
            if wanted == known:
                return known
            wanted = msgspec.structs.replace(wanted, version=known.version + 1, by=author())
            if await publish(self.broadcast.crawls, wanted, self.writer.send, self.broadcast.catch_up):
                return wanted
        raise EnvironmentFault(f"the crawl {name} is being changed by others", "Run the command again.")

    def shard(self, url: str) -> int:
        """The shard that a URL (wire form) belongs to."""
        return shard_of(politeness_key(url, self.settings.frontier.politeness), self.shards)

    async def command(self, commands: Iterable[tuple[int, Command]]) -> int:
        """Send commands to shards; how many."""
        return await self.writer.commands(commands)


@asynccontextmanager
async def desk(settings: Settings) -> AsyncIterator[Desk]:
    """The desk of a command. An embedded broker that does not run is started for its time."""
    async with AsyncExitStack() as stack:
        bootstrap = await stack.enter_async_context(broker(settings))
        admin = await stack.enter_async_context(Admin(bootstrap, settings))
        await admin.check_topics()
        writer = await stack.enter_async_context(Writer(bootstrap, settings))
        broadcast = Broadcast(bootstrap, settings, progress=True)
        stack.push_async_callback(broadcast.stop)
        await broadcast.start()
        shards = (await admin.partition_counts())[settings.kafka.prefix + INBOX.name]
        yield Desk(bootstrap, settings, admin, writer, broadcast, shards)


@asynccontextmanager
async def broker(settings: Settings) -> AsyncIterator[str]:
    """The address of the broker. An embedded one that does not run is started for the block if it has data.

    Raises `EnvironmentFault` where there is none.
    """
    if settings.kafka.bootstrap or not EmbeddedBroker(settings).status().data:
        yield running_bootstrap(settings)  # raises where nothing was ever crawled: no broker is made for a question
        return
    cluster = Cluster(settings, lambda line: click.echo(line, err=True))
    try:
        yield await cluster.start()
    finally:
        await cluster.release()


def author() -> str:
    """Who runs this command, for people: `anna@desk`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container users need not have names
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def wire_form(url: str) -> str:
    """A URL as it goes on the wire. Raises `UsageError`."""
    wire = parse(url)
    if wire is None:
        raise UsageError(f"not an http or https URL: {url}", "Write it in full: https://example.org/")
    return wire
