"""The broker of a command: the embedded one of the state folder, or the one that `--kafka` names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agents.io.admin import Admin
from agents.io.broker import EmbeddedBroker
from streams.errors import EnvironmentFault
from streams.settings import Settings

_DEATHS = 3
_DEATHS_WITHIN = 60.0


class Cluster:
    """The broker as one command uses it. `start` first; `release` last, after everything that is connected to it."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._embedded = None if settings.kafka.bootstrap else EmbeddedBroker(settings, say)

    async def start(self) -> str:
        """Start or attach to the embedded broker; the address of the broker. Raises `EnvironmentFault`."""
        if self._embedded is None:
            return self._settings.kafka.bootstrap
        return await asyncio.to_thread(self._embedded.ensure)

    async def keep_running(self, away: Callable[[], None], back: Callable[[], None]) -> EnvironmentFault:
        """Start an embedded broker again whenever it dies; returns the fault when that is hopeless.

        `away` and `back` are called when it has died and when it takes connections again.
        """
        if self._embedded is None:
            await asyncio.Event().wait()  # others look after theirs
            raise AssertionError
        deaths: list[float] = []
        while True:
            fault = await self._embedded.watch()
            deaths = [at for at in deaths if time.monotonic() - at < _DEATHS_WITHIN] + [time.monotonic()]
            if len(deaths) >= _DEATHS:
                return fault
            away()
            self._say(f"{fault.problem}\nStarting it again")
            try:
                await asyncio.to_thread(self._embedded.restart)
            except EnvironmentFault as error:
                return error
            self._say("The broker is back")
            back()

    async def release(self) -> None:
        """Stop the embedded broker unless somebody else uses it."""
        if self._embedded is not None:
            await asyncio.to_thread(self._embedded.release)


def running_bootstrap(settings: Settings) -> str:
    """The address of the broker that runs now. Raises `EnvironmentFault` if the embedded one does not run."""
    if settings.kafka.bootstrap:
        return settings.kafka.bootstrap
    status = EmbeddedBroker(settings).status()
    if not status.running:
        raise EnvironmentFault(
            f"no broker runs on the state folder {settings.worker.state}",
            "Start it (fyke broker start), name its folder (--state), or name another broker (--kafka HOST:PORT).",
        )
    return status.bootstrap


@asynccontextmanager
async def admin_of(settings: Settings) -> AsyncIterator[tuple[str, Admin]]:
    """The running broker's address and a connection for questions."""
    bootstrap = running_bootstrap(settings)
    async with Admin(bootstrap, settings) as admin:
        yield bootstrap, admin
