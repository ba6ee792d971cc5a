"""Worker processes of a crawl: started together, restarted when they die, stopped before the broker.

A worker is `fyke worker STAGE --managed`. Its standard input is a pipe from here: the first line tells it the broker's
address (so that it can load its code while the broker starts), and the end of the pipe tells it to stop, also when this
process is killed. It runs in a session of its own, so that Ctrl-C in a terminal reaches this process only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agents.cli.places import Slot
from streams.errors import EnvironmentFault, Exit
from streams.settings import Settings, to_environment

Say = Callable[[str], None]

QUICK = 30.0  # seconds: a worker that lives shorter crashed at its start
GIVE_UP = 5  # quick crashes in a row
HINDSIGHT = 2.0  # seconds until the death of a broker is surely known
_BACKOFF = 0.5
_LONGEST_BACKOFF = 10.0
_TAIL = 15


def worker_command(stage: str) -> Sequence[str]:
    """The command of a managed worker, in this very installation."""
    return sys.executable, "-m", "agents.cli.main", "worker", stage, "--managed"


@dataclass(slots=True)
class Child:
    """One worker: its place, its settings, and the process that is it now."""

    slot: Slot
    settings: Settings
    process: asyncio.subprocess.Process | None = None
    log_start: int = 0
    told: bool = False
    restarts: int = 0
    quick: int = 0
    watcher: asyncio.Task[None] | None = field(default=None, repr=False)


class Supervisor:
    """Starts workers and keeps them running. `failed` resolves with the fault when that is hopeless."""

    def __init__(self, say: Say, command: Callable[[str], Sequence[str]] = worker_command) -> None:
        """`command`: what runs a worker of a stage."""
        self._say = say
        self._command = command
        self._children: list[Child] = []
        self._bootstrap = ""
        self._away = False
        self._stopping = False
        self.failed: asyncio.Future[EnvironmentFault] = asyncio.get_running_loop().create_future()

    @property
    def restarts(self) -> int:
        """How often a worker had to be started again."""
        return sum(child.restarts for child in self._children)

    async def start(self, slot: Slot, settings: Settings) -> None:
        """Start the worker of `slot`; it waits for `connect` before it joins. Returns when the process exists."""
        child = Child(slot, settings)
        self._children.append(child)
        await self._spawn(child)
        child.watcher = asyncio.create_task(self._watch(child), name=f"watch {slot.name}")

    def connect(self, bootstrap: str) -> None:
        """Tell all workers, also those that are started later, where the broker is."""
        self._bootstrap = bootstrap
        self._tell_all()

    def broker_away(self) -> None:
        """The broker has died: who starts now waits until it is back, and who ends meanwhile is not to blame."""
        self._away = True

    def broker_back(self) -> None:
        """It takes connections again, at the same address."""
        self._away = False
        self._tell_all()

    def _tell_all(self) -> None:
        for child in self._children:
            self._tell(child)

    def _tell(self, child: Child) -> None:
        if not self._bootstrap or self._away or child.told or child.process is None or child.process.stdin is None:
            return
        child.told = True
        with contextlib.suppress(ConnectionError, RuntimeError):  # it died: its watcher sees that
            child.process.stdin.write(self._bootstrap.encode() + b"\n")

    async def _spawn(self, child: Child) -> None:
        child.told = False
        with child.slot.log.open("ab") as log:
            child.log_start = log.tell()
            child.process = await asyncio.create_subprocess_exec(
                *self._command(child.slot.stage),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | to_environment(child.settings),
                start_new_session=True,
            )
        self._tell(child)

    async def _watch(self, child: Child) -> None:
        """Restart the worker whenever it ends, until told to stop or it is hopeless."""
        while True:
            assert child.process is not None  # noqa: S101 - `start` spawned it
            began = time.monotonic()
            code = await child.process.wait()
            if self._stopping:
                return
            child.quick = child.quick + 1 if time.monotonic() - began < QUICK and not self._away else 1
            if (code == Exit.ENVIRONMENT or child.quick >= GIVE_UP) and not await self._excused():
                self._fail(child, code)
                return
            pause = min(_BACKOFF * 2 ** (child.quick - 1), _LONGEST_BACKOFF)
            self._say(f"{child.slot.name} {_ending(code)}; starting it again in {pause:g} s (log: {child.slot.log})")
            await asyncio.sleep(pause)
            child.restarts += 1
            await self._spawn(child)

    async def _excused(self) -> bool:
        """Whether the broker is away. Those who need it may notice its death a moment before whoever looks after it."""
        if not self._away:
            await asyncio.sleep(HINDSIGHT)
        return self._away or self._stopping

    def _fail(self, child: Child, code: int) -> None:
        if not self.failed.done():
            tail = "".join(f"\n    {line}" for line in log_tail(child.slot.log, child.log_start))
            times = f" {child.quick} times in a row" if child.quick >= GIVE_UP else ""
            self.failed.set_result(
                EnvironmentFault(f"{child.slot.name} {_ending(code)}{times}:{tail}", f"Its log is {child.slot.log}.")
            )

    def pids(self) -> dict[str, int]:
        """The process ids of the workers that run now, by name."""
        running = ((child.slot.name, child.process) for child in self._children)
        return {name: process.pid for name, process in running if process is not None and process.returncode is None}

    async def stop(self, grace: float) -> list[str]:
        """SIGTERM to all; SIGKILL to those that are there after `grace` seconds. Names of the killed."""
        self._stopping = True
        waits = []
        for child in self._children:
            if child.watcher is not None and (child.process is None or child.process.returncode is not None):
                child.watcher.cancel()  # it waits for the end of a pause, not of a process
            if child.process is not None:
                _signal(child.process, signal.SIGTERM)
                waits.append(asyncio.ensure_future(child.process.wait()))
        if waits:
            await asyncio.wait(waits, timeout=grace)
        killed = list(self.pids())
        self.kill()
        await asyncio.gather(*waits)
        await asyncio.gather(*(c.watcher for c in self._children if c.watcher is not None), return_exceptions=True)
        return killed

    def kill(self) -> None:
        """SIGKILL to all workers, at once."""
        self._stopping = True
        for child in self._children:
            if child.process is not None:
                _signal(child.process, signal.SIGKILL)


def _signal(process: asyncio.subprocess.Process, sign: signal.Signals) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(sign)


def _ending(code: int) -> str:
    """What an exit status means, in words."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return "cannot run" if code == Exit.ENVIRONMENT else f"ended with status {code}"


def log_tail(log: Path, start: int, lines: int = _TAIL) -> list[str]:
    """The last lines that a worker printed since byte `start` of its log."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - 16 * 1024))
        text = file.read().decode(errors="replace")
    return [line for line in text.splitlines() if line.strip()][-lines:]
