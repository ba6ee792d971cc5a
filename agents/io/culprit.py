"""The body that killed its process: a coding is undone by native code, which may crash, and no `except` sees that.

While a piece of a body is decoded its URL stands in a file mapped into memory, which costs no system call and survives
any death of the process. The event loop decodes one piece at a time, so what stands there when a process died is the
culprit and nothing else. Its successor in the same folder tells that to all workers (`agents.deaths`); at a limit none
of them asks for it any more.

The file is `run/fetcher-<n>.decoding` of the worker's state folder, locked by its living owner.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Self

from agents.io.isolation import own_mark

_SIZE: Final = mmap.PAGESIZE
_LENGTH: Final = struct.Struct("<I")
_LONGEST: Final = _SIZE - _LENGTH.size


class Culprit:
    """Names the body being decoded.

    `found`: what a predecessor died of; empty if it did not die so. It stands there until it is `told`. `deaths`: how
    many processes died of the body of a URL. `died`: tells that one more did.
    """

    def __init__(
        self, folder: Path, stage: str, deaths: Callable[[str], int], died: Callable[[str], Awaitable[None]]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._hold, path = own_mark(folder, stage, ".decoding")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self.deaths = deaths
        self.died = died
        self.found = self._named()

    def told(self) -> None:
        """What was found is known to all."""
        self._unname()

    def decoding(self, url: str) -> Decoding:
        """What a piece of the body of `url` is decoded in; may be entered again."""
        return Decoding(self, url.encode()[:_LONGEST])

    def clear(self) -> None:
        """Stop in order."""
        self._map.close()
        self._hold.drop()

    def _name(self, url: bytes) -> None:
        self._map[_LENGTH.size : _LENGTH.size + len(url)] = url
        _LENGTH.pack_into(self._map, 0, len(url))

    def _unname(self) -> None:
        _LENGTH.pack_into(self._map, 0, 0)

    def _named(self) -> str:
        (length,) = _LENGTH.unpack_from(self._map, 0)
        return bytes(self._map[_LENGTH.size : _LENGTH.size + min(length, _LONGEST)]).decode(errors="replace")


class Decoding:
    """A context in which one URL is named."""

    __slots__ = ("_culprit", "_url")

    def __init__(self, culprit: Culprit, url: bytes) -> None:
        self._culprit = culprit
        self._url = url

    def __enter__(self) -> Self:
        self._culprit._name(self._url)  # noqa: SLF001 - two halves of one thing
        return self

    def __exit__(self, *_: object) -> None:
        self._culprit._unname()  # noqa: SLF001 - as above
