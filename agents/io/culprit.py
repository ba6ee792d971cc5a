"""The body that killed its process: a coding is undone by native code, which may crash, and no `except` sees that.

While a piece of a body is decoded its URL stands in a file mapped into memory, which costs no system call and survives
any death of the process. The event loop decodes one piece at a time, so what stands there when a process died is the
culprit and nothing else. Its successor in the same folder counts that on disk, and at a limit asks for it no more.

The file is `run/fetcher-<n>.decoding` of the worker's state folder, locked by its living owner.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from pathlib import Path
from typing import Final, Self

import msgspec

from agents.io.isolation import own_mark

_SIZE: Final = mmap.PAGESIZE
_LENGTH: Final = struct.Struct("<I")
_LONGEST: Final = _SIZE - _LENGTH.size
_KEPT: Final = 1000


class Culprit:
    """Names the body being decoded, and counts the deaths of those that were named at a death.

    `found`: what a predecessor died of; empty if it did not die so.
    """

    def __init__(self, folder: Path, stage: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._hold, path = own_mark(folder, stage, ".decoding")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self._deaths_path = path.with_suffix(".deaths")
        self._deaths = _read(self._deaths_path)
        self.found = self._named()
        if self.found:
            self._deaths[self.found] = self._deaths.pop(self.found, 0) + 1
            _write(self._deaths_path, dict(list(self._deaths.items())[-_KEPT:]))
            self._name(b"")

    def deaths(self, url: str) -> int:
        """How many processes died while they decoded the body of a URL."""
        return self._deaths.get(url, 0) if self._deaths else 0

    def decoding(self, url: str) -> Decoding:
        """What a piece of the body of `url` is decoded in; may be entered again."""
        return Decoding(self, url.encode()[:_LONGEST])

    def clear(self) -> None:
        """Stop in order: what was counted is over."""
        self._deaths_path.unlink(missing_ok=True)
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


def _read(path: Path) -> dict[str, int]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.MsgspecError):
        return {}


def _write(path: Path, deaths: dict[str, int]) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(deaths))
    beside.replace(path)
