"""Files: the exporter's output folder, and small files replaced in one step.

An output folder holds JSON Lines files and, below `.fyke/`, what makes them exact: a RocksDB store with the identity of
every line written and the length of every file at that moment. A write is: append, fsync, then identities and lengths
in one WriteBatch. A process that dies in between leaves a tail without an identity; the next start cuts it off.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch, WriteOptions

from agents.io.locks import Hold
from streams.errors import EnvironmentFault

HIDDEN = ".fyke"
"""The folder in an output folder that is Fyke's own."""

_LENGTH = b"length:"
_MiB = 1 << 20


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file so that a reader, or a crash, sees the old content or the new one and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@dataclass(frozen=True, slots=True)
class Line:
    """One line for a file of the folder; `identity` is what must not be written twice (per file)."""

    file: str
    identity: bytes
    data: bytes  # without the line feed


class Steps(Protocol):
    """Called between the steps of a write; tests crash there."""

    def __call__(self, step: str) -> object:
        """`step` has just been done."""


def _no_step(step: str) -> None:
    del step


class OutputFolder:
    """The files of one export. One writer: a second one is refused. Not thread-safe: one call at a time."""

    def __init__(
        self, path: Path, files: Sequence[str], rare: Sequence[str] = (), *, fsync: bool = True, step: Steps = _no_step
    ) -> None:
        """`rare`: files that are made when their first line comes.

        `fsync`: force lines and identities to disk, for the loss of power; a killed process needs none of it.
        """
        self.path = path
        self._names = tuple(files)
        self._rare = tuple(rare)
        self._fsync = fsync
        self._step = step
        self._files: dict[str, int] = {}
        self._lengths: dict[str, int] = {}
        self._lock: Hold | None = None
        self._store: Rdict | None = None

    def open(self) -> None:
        """Lock the folder, cut files back to what is recorded. Raises `EnvironmentFault`."""
        try:
            self._lock = self._locked()
            self._store = _open_store(self.path / HIDDEN / "exported", self._fsync)
            for name in (*self._names, *(name for name in self._rare if (self.path / name).exists())):
                self._open_file(name)
        except OSError as error:
            self.close()
            _raise_fault(self.path, error)
        except BaseException:
            self.close()
            raise

    def _locked(self) -> Hold:
        (self.path / HIDDEN).mkdir(parents=True, exist_ok=True)
        lock = Hold.take(self.path / HIDDEN / "lock")
        if lock is None:
            raise EnvironmentFault(
                f"another process exports into {self.path}", "Wait until it ends, or choose another folder (--out)."
            )
        return lock

    def _open_file(self, name: str) -> None:
        path = self.path / name
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._files[name] = fd
        recorded = self._db.get(_LENGTH + name.encode())
        length, size = int(recorded or 0), os.fstat(fd).st_size
        if recorded is None and size:
            raise EnvironmentFault(
                f"{path} exists and was not written by this export", "Choose another folder (--out), or move the file."
            )
        if size < length:
            raise EnvironmentFault(
                f"{path} has {size:,} bytes, {length:,} were written",
                f"Put the file back, or remove the whole folder {self.path} and export again.",
            )
        if size > length:
            os.ftruncate(fd, length)
        if recorded is None:
            self._db.put(_LENGTH + name.encode(), b"0")  # from now on a tail is ours to cut off
        self._lengths[name] = length

    def append(self, lines: Iterable[Line]) -> dict[str, int]:
        """Write the lines whose identity is new; returns how many by file. All durable when it returns.

        Raises `EnvironmentFault` (disk full, folder gone); the folder must then be opened anew.
        """
        new = self._new_lines(list(lines))
        if not new:
            return {}
        try:
            return self._write(new)
        except OSError as error:
            _raise_fault(self.path, error)
        except Exception as error:  # rocksdict raises a bare Exception with RocksDB's status text
            if "space" in str(error).lower():
                _raise_fault(self.path, OSError(errno.ENOSPC, str(error)))
            raise

    def _new_lines(self, lines: list[Line]) -> dict[bytes, Line]:
        """The lines not yet written, by key, in their order; a repetition within `lines` counts once."""
        by_key: dict[Any, Line] = {}
        for line in lines:
            by_key.setdefault(line.file.encode() + b"\0" + line.identity, line)
        known: Any = self._db.get(list(by_key)) if by_key else []
        return {key: by_key[key] for key, value in zip(by_key, known, strict=True) if value is None}

    def _write(self, new: dict[bytes, Line]) -> dict[str, int]:
        written: dict[str, list[bytes]] = {}
        for line in new.values():
            written.setdefault(line.file, []).extend((line.data, b"\n"))
        identities = WriteBatch(raw_mode=True)
        for key in new:
            identities.put(key, b"")
        for name, parts in written.items():
            if name not in self._files:
                self._open_file(name)
            data = b"".join(parts)
            _write_all(self._files[name], data)
            self._step(f"wrote {name}")
            if self._fsync:
                os.fsync(self._files[name])
            self._lengths[name] += len(data)
            identities.put(_LENGTH + name.encode(), str(self._lengths[name]).encode())
        self._step("before identities")
        self._db.write(identities)
        self._step("after identities")
        return {name: len(parts) // 2 for name, parts in written.items()}

    def close(self) -> None:
        """Close everything; safe to call twice."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._lock is not None:
            self._lock.drop()
            self._lock = None

    @property
    def _db(self) -> Rdict:
        if self._store is None:
            raise RuntimeError("the output folder is not open")
        return self._store


def _open_store(path: Path, sync: bool) -> Rdict:
    """A small store: lookups that mostly miss, so a Bloom filter; a few MiB of memory in all."""
    table = BlockBasedOptions()
    table.set_block_cache(Cache(4 * _MiB))
    table.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(4 * _MiB)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(8 * _MiB)
    options.set_max_open_files(64)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    try:
        # As the family's options, too: an index that exists would otherwise be opened with those of its last time.
        store = Rdict(str(path), options, {"default": options})
    except Exception as error:  # noqa: BLE001 - a bare Exception is all that rocksdict raises
        raise EnvironmentFault(
            f"the export's index {path} cannot be opened: {error}",
            f"Is the disk full, or the folder damaged? If so remove {path.parent.parent} and export again.",
        ) from None
    durable = WriteOptions()
    durable.sync = sync
    store.set_write_options(durable)
    return store


def _write_all(fd: int, data: bytes) -> None:
    """`write` may take less than it was given, e.g. just before the disk is full."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _raise_fault(path: Path, error: OSError) -> NoReturn:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        raise EnvironmentFault(
            f"no space left for the output in {path}",
            "Make room, then continue: what was not written is still in Kafka, nothing is lost.",
        ) from error
    raise EnvironmentFault(
        f"cannot write the output in {path}: {error.strerror or error}",
        "Make the folder writable, or choose another one (--out).",
    ) from error


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as readable JSON."""
    replace_file(path, json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")


def read_json(path: Path) -> Any:
    """The JSON in `path`. Raises `FileNotFoundError`, or `EnvironmentFault` if it is damaged."""
    data = path.read_bytes()
    try:
        return json.loads(data)
    except ValueError as error:
        raise EnvironmentFault(f"{path} is not readable JSON: {error}", "Restore or remove the file.") from None
