"""The places of worker processes below a state folder: who runs there, with which settings, in which folders.

    <state>/runs/ID           locked by a running `fyke crawl`; says with which settings its workers run
    <state>/workers/STAGE-N/  a worker's own folder (tables); `slot` is locked by the process that runs the worker
    <state>/logs/STAGE-N.log  what that worker prints

A lock ends with its process, so nothing has to be cleaned up after a kill. The workers of two crawls on one state
folder are in the same consumer groups: any of them may serve either crawl. That is why their settings must agree.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from agents.io.locks import Hold, exclusive
from streams.errors import EnvironmentFault, UsageError
from streams.settings import Settings, variable

_PATIENCE = 30.0
_BROKER = variable("kafka", "bootstrap")
_SHARED = (("fetch", "allow_private"), ("fetch", "connect_to"), ("frontier", "politeness"), ("kafka", "prefix"))
"""Settings in which all workers on one broker must agree."""


@dataclass(slots=True)
class Slot:
    """The place of one worker. `number` counts from 1 for each stage."""

    stage: str
    number: int
    folder: Path
    log: Path
    _hold: Hold

    @property
    def name(self) -> str:
        """E.g. `fetcher-1`."""
        return f"{self.stage}-{self.number}"

    def member_name(self, bootstrap: str) -> str:
        """The worker's name as a static member of its group: unique among all that use the broker.

        `bootstrap`: of a broker that other machines and state folders may share; "" for the folder's own.
        """
        if not bootstrap:
            return self.name
        return f"{socket.gethostname()}-{crc32(str(self.folder).encode()):08x}-{self.name}"

    def free(self) -> None:
        """Let another process have the place."""
        self._hold.drop()


class Places:
    """The state folder as one `fyke crawl` uses it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._state = settings.worker.state
        self._run: Hold | None = None
        self._slots: list[Slot] = []

    def enter(self) -> None:
        """Register this process. Raises `UsageError` where workers with other settings are running here."""
        mine = {variable(*name): _plain(self._settings, *name) for name in _SHARED}
        bootstrap = self._settings.kafka.bootstrap
        runs = self._folder("runs")
        with exclusive(runs / ".lock", _PATIENCE, lambda: None):
            for other in _running(runs):
                if other.get(_BROKER) == bootstrap:
                    _check_agreement(mine, other)
            path = runs / str(os.getpid())
            self._run = Hold.take(path)
            path.write_text(json.dumps(mine | {_BROKER: bootstrap}))

    def check_nobody(self) -> None:
        """Raise `EnvironmentFault` if a crawl or worker runs on this state folder."""
        runs = self._folder("runs")
        with exclusive(runs / ".lock", _PATIENCE, lambda: None):
            if _running(runs):
                raise EnvironmentFault(f"a crawl or worker runs on {self._state}", "Let it end first.")

    def slot(self, stage: str) -> Slot:
        """The first free place for a worker of `stage`. It stays this process's until `leave`."""
        number = 1
        while True:
            folder = self._folder(f"workers/{stage}-{number}")
            hold = Hold.take(folder / "slot")
            if hold is not None and _unused(folder):
                slot = Slot(stage, number, folder, self._folder("logs") / f"{stage}-{number}.log", hold)
                self._slots.append(slot)
                return slot
            if hold is not None:
                hold.drop()
            number += 1

    def leave(self) -> None:
        """Give all places back."""
        for slot in self._slots:
            slot.free()
        self._slots.clear()
        if self._run is not None:
            self._run.drop(remove=True)
            self._run = None

    def _folder(self, name: str) -> Path:
        path = self._state / name
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFault(
                f"the state folder {self._state} cannot be used: {error.strerror}",
                "Make it readable and writable, or name another folder with --state.",
            ) from None
        return path


@contextmanager
def occupied(folder: Path) -> Iterator[None]:
    """Lock a worker's folder for the worker itself, which may outlive the `fyke crawl` that holds the slot.

    Raises `EnvironmentFault` if another worker is in it.
    """
    hold = Hold.take(folder / "worker")
    if hold is None:
        raise EnvironmentFault(f"another worker uses {folder}", "Wait until it has ended.")
    hold.path.write_text(f"{os.getpid()}\n")
    try:
        yield
    finally:
        hold.drop()


@contextmanager
def vacant(folder: Path) -> Iterator[None]:
    """Keep workers out of a worker's folder for the block.

    Raises `EnvironmentFault` if one is in it, or its place is held by a `fyke crawl` that would start one.
    """
    holds = [Hold.take(folder / name) for name in ("slot", "worker")]
    try:
        if None in holds:
            raise EnvironmentFault(f"a worker uses {folder}", "Stop it first: its crawl, or the worker itself.")
        yield
    finally:
        for hold in holds:
            if hold is not None:
                hold.drop()


def _unused(folder: Path) -> bool:
    """Whether no worker is in the folder: one whose `fyke crawl` was killed may still be finishing its work."""
    hold = Hold.take(folder / "worker")
    if hold is None:
        return False
    hold.drop()
    return True


def _running(runs: Path) -> list[dict[str, object]]:
    """What the live runs say of themselves; what dead ones left is removed."""
    found = []
    for path in runs.glob("[0-9]*"):
        hold = Hold.take(path)
        if hold is None:
            found.append(json.loads(path.read_text()))
        else:
            hold.drop(remove=True)
    return found


def _check_agreement(mine: dict[str, object], other: dict[str, object]) -> None:
    for name, value in mine.items():
        if other.get(name) != value:
            raise UsageError(
                f"a crawl that runs on this state folder has {name}={other.get(name)!r}, this one {value!r}",
                "Their workers share the work, so they must agree: use another state folder (--state DIR), "
                "or wait for the other crawl to end.",
            )


def _plain(settings: Settings, group: str, name: str) -> object:
    """The value as it is after a round through JSON."""
    value = getattr(getattr(settings, group), name)
    return list(value) if isinstance(value, tuple) else value
