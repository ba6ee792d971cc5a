"""Locks between processes: flock(2) on small files. The kernel drops them with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL = 0.05


class Hold:
    """An exclusive lock on the file `path`, held until `drop` or the end of the process.

    The file descriptor is not inherited by child processes, so a child never keeps its parent's lock.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Hold | None:
        """Lock `path` (made if absent) at once, or None when somebody else holds it. Raises OSError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def drop(self, *, remove: bool = False) -> None:
        """Give the lock back; `remove` deletes the file first. More than one call does no harm."""
        if self._descriptor < 0:
            return
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock `path` now. Makes no file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def exclusive(path: Path, patience: float, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock `path` for the block. Waits up to `patience` seconds, then raises TimeoutError.

    `waiting` is called once when somebody else holds the lock. The file stays: removing it would let two processes
    hold "the" lock on two different files of that name.
    """
    deadline = time.monotonic() + patience
    hold = Hold.take(path)
    if hold is None:
        waiting()
    while hold is None:
        if time.monotonic() > deadline:
            raise TimeoutError(str(path))
        time.sleep(_POLL)
        hold = Hold.take(path)
    try:
        yield
    finally:
        hold.drop()
