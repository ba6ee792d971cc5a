"""All stages in the loop of the command itself (`--in-process`): for tests and debugging, on one core."""

from __future__ import annotations

import asyncio
import contextlib

from agents.cli.places import Slot
from agents.worker import run
from streams.errors import EnvironmentFault, FykeError
from streams.settings import Settings


class InProcess:
    """The workers as one task. There is no process that could be started again: what ends a stage ends the crawl."""

    restarts = 0

    def __init__(self) -> None:
        self._stages: list[str] = []
        self._settings: Settings | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[EnvironmentFault] = asyncio.get_running_loop().create_future()

    async def start(self, slot: Slot, settings: Settings) -> None:
        """Remember the stage. The first one's folder and name serve all; the exporter adds its own settings."""
        if self._settings is None:
            self._settings = settings
        if slot.stage == "exporter":
            self._settings = self._settings.model_copy(update={"export": settings.export})
        if slot.stage not in self._stages:
            self._stages.append(slot.stage)

    def connect(self, bootstrap: str) -> None:
        """Run all stages that were started."""
        assert self._settings is not None  # noqa: S101 - `start` comes first
        running = run(self._stages, self._settings, bootstrap, self._stop)
        self._task = asyncio.create_task(running, name="workers")
        self._task.add_done_callback(self._ended)

    def broker_away(self) -> None:
        """The stages wait for it by themselves."""

    def broker_back(self) -> None:
        """The stages notice that by themselves."""

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self._stop.is_set() and not task.cancelled() and not self.failed.done():
            error = task.exception()
            if not isinstance(error, EnvironmentFault):
                error = EnvironmentFault(
                    f"the workers ended: {error!r}", "Run again without --in-process for their logs."
                )
            self.failed.set_result(error)

    async def stop(self, grace: float) -> list[str]:
        """Let all finish what is in flight."""
        self._stop.set()
        if self._task is None:
            return []
        _, late = await asyncio.wait({self._task}, timeout=grace)
        self.kill()
        with contextlib.suppress(asyncio.CancelledError, FykeError):
            await self._task
        return ["workers"] if late else []

    def kill(self) -> None:
        """Cancel what still runs."""
        if self._task is not None:
            self._task.cancel()
