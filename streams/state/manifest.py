"""Whether RocksDB's MANIFEST is as long as it was: what it forgot cannot be missed otherwise.

The MANIFEST lists the table files. Cut between two of its records it is a valid, older one, and the write-ahead log
then adds the newest rows to a store that lacks those in between. So each write notes how long the MANIFEST is; at the
next start it may be longer, or another one with a higher number, but not less.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import NamedTuple

_LENGTH = Struct(">qq")
_PREFIX = "MANIFEST-"


class Length(NamedTuple):
    """Number of a MANIFEST and its bytes. They compare as they grow: `Length()` before all."""

    number: int = 0
    size: int = 0

    def pack(self) -> bytes:
        """As it is kept in the store."""
        return _LENGTH.pack(*self)


def unpack(data: bytes | None) -> Length:
    """What `Length.pack` made; of nothing, `Length()`."""
    return Length(*_LENGTH.unpack(data)) if data else Length()


class Manifest:
    """The MANIFEST of an open store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._path = folder

    def length(self) -> Length:
        """How long it is now; `Length()` if there is none."""
        try:
            if self._number:
                return Length(self._number, self._path.stat().st_size)
        except OSError:
            pass  # RocksDB has begun another one, or the folder is gone
        return self._found()

    def _found(self) -> Length:
        try:
            name = (self._folder / "CURRENT").read_text().strip()
            self._path = self._folder / name
            size = self._path.stat().st_size
            self._number = int(name.removeprefix(_PREFIX))
        except (OSError, ValueError):
            return Length()
        return Length(self._number, size)
