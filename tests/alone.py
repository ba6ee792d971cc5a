"""Tests marked `alone` run alone, also where tests run side by side in several processes (pytest-xdist).

They measure times that others would disturb. Two lock files make it so: every test holds `room`, shared, or exclusively
if it is to be alone; `door` is held while one enters, so that whoever waits to be alone is not passed by. A test waits
before its time-out begins to count. Files of such tests only come last, when nobody has other work: while one waits for
the other to finish a test, its processor is idle. In one process there is nothing to lock.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest


class Room:
    """One worker process's access to the lock files that all of a run share."""

    def __init__(self, run: str) -> None:
        folder = Path(tempfile.gettempdir())
        self._door, self._room = (folder / f"fyke-tests-{run}.{name}" for name in ("door", "room"))
        self._files = [path.open("w") for path in (self._door, self._room)]

    def enter(self, *, alone: bool) -> None:
        """Wait until no test runs that is to be alone; if `alone`, until none runs at all."""
        door, room = self._files
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)

    def leave(self) -> None:
        """Let others enter."""
        fcntl.flock(self._files[1], fcntl.LOCK_UN)

    def close(self) -> None:
        """Remove the files; a process that still has them open goes on with those."""
        for path, file in zip((self._door, self._room), self._files, strict=True):
            file.close()
            path.unlink(missing_ok=True)


class Alone:
    """The hooks of a worker process."""

    def __init__(self, room: Room) -> None:
        self._room = room

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Hold the room round a whole test, its fixtures and time-out included."""
        self._room.enter(alone=_is_alone(item))
        try:
            return (yield)
        finally:
            self._room.leave()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the files last of which every test is to be alone."""
        mixed = {item.path for item in items if not _is_alone(item)}
        items.sort(key=lambda item: item.path not in mixed)

    def pytest_unconfigure(self) -> None:
        """Tidy up."""
        self._room.close()


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def pytest_configure(config: pytest.Config) -> None:
    """In a worker process of xdist, wait for others."""
    worker: dict[str, str] | None = getattr(config, "workerinput", None)
    if worker is not None:
        config.pluginmanager.register(Alone(Room(worker["testrunuid"])))
