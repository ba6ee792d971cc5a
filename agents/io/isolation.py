"""Pages that may kill the parser: known by a mark that outlives the process, parsed in a child that may die.

A page can end a process in ways no `except` sees: a crash in native code, memory, a computation without end. So

- `Mark` keeps, in a file mapped into memory, up to which offset of each partition pages were begun. The mapping costs
  no system call and survives any death of the process. A stage that stops in order clears it.
- Whoever finds a mark that was not cleared parses the pages of these partitions up to those offsets in a `Child`, one
  at a time. A killed child is a counted try; the count is on disk before the try begins.
- `limit_computation` ends a process that computes for too long, also inside native code that holds the interpreter.

Marks lie in the worker's state folder, `run/<stage>-<n>.mark`; each is locked by its living owner, so that a worker
finds the marks of dead ones whatever its name or number is.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import mmap
import os
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from agents.io.locks import Hold
from streams.messages import PageHeaders
from streams.page.parse import Limits, ParsedPage

Parse = Callable[[PageHeaders, bytes, Limits], ParsedPage]

_OFFSET: Final = struct.Struct("<q")
_LENGTH: Final = struct.Struct("<I")
_MAX_MARKS: Final = 1024
_TRIES_KEPT: Final = 1000


class Mark:
    """Up to where pages were begun, by partition. `suspects`: what a predecessor that died had begun (next offsets)."""

    def __init__(self, folder: Path, stage: str, partitions: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._hold, self._path = own_mark(folder, stage, ".mark")
        size = max(partitions * _OFFSET.size, mmap.PAGESIZE)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._tries_path = self._path.with_suffix(".tries")
        self.suspects = {partition: end for partition in range(partitions) if (end := self._next(partition)) > 0}

    def begin(self, partition: int, offset: int) -> None:
        """A page is about to be parsed in this process."""
        _OFFSET.pack_into(self._map, partition * _OFFSET.size, max(offset + 1, self._next(partition)))

    def is_suspect(self, partition: int, offset: int) -> bool:
        """Whether a predecessor that died may have died of this page."""
        return offset < self.suspects.get(partition, 0)

    def count_try(self, partition: int, offset: int, others: int = 0) -> int:
        """Write down one more try of a page, before it begins: which one it is. `others`: tries of other workers."""
        tries = self._tries()
        page = f"{partition}:{offset}"
        tries[page] = max(tries.pop(page, 0), others) + 1
        self._write_tries(dict(list(tries.items())[-_TRIES_KEPT:]))
        return tries[page]

    def tries(self, partition: int, offset: int) -> int:
        """How often a page was tried, by any process that had this mark."""
        return self._tries().get(f"{partition}:{offset}", 0)

    def forget_tries(self, partition: int, offset: int) -> None:
        """A page was harmless."""
        tries = self._tries()
        if tries.pop(f"{partition}:{offset}", None) is not None:
            self._write_tries(tries)

    def clear(self) -> None:
        """Stop in order: nothing that was begun is unfinished."""
        self._map[:] = bytes(len(self._map))
        self._tries_path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Give the file up as it is; whoever finds it takes its pages for suspects."""
        self._map.close()
        self._hold.drop()

    def _next(self, partition: int) -> int:
        return int(_OFFSET.unpack_from(self._map, partition * _OFFSET.size)[0])

    def _tries(self) -> dict[str, int]:
        try:
            return msgspec.json.decode(self._tries_path.read_bytes(), type=dict[str, int])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _write_tries(self, tries: dict[str, int]) -> None:
        beside = self._tries_path.with_suffix(".new")
        beside.write_text(json.dumps(tries))
        beside.replace(self._tries_path)


def own_mark(folder: Path, stage: str, kind: str) -> tuple[Hold, Path]:
    """The first mark without a living owner, else a new one: so the mark of a dead worker is found first."""
    for number in range(_MAX_MARKS):
        path = folder / f"{stage}-{number}{kind}"
        hold = Hold.take(path.with_suffix(".lock"))
        if hold is not None:
            return hold, path
    raise OSError(f"{folder}: {_MAX_MARKS} marks of {stage} are in use")


_BURIAL = 2.0
"""Seconds from the end of a child's answers to the end of its process."""


class ChildDied(Exception):
    """The child ended, or was ended for taking too long, before it answered.

    `final`: it used up the computing time of a page, and would again.
    """

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


class Child:
    """A process that parses one page at a time. It is started when needed, and again after its death.

    `parse`: `module:function` with the signature of `Parse`. `seconds`: longest time for one page; `cpu`: seconds of it
    that may be spent computing.
    """

    def __init__(self, parse: str, seconds: float, cpu: float) -> None:
        self._parse = parse
        self._seconds = seconds
        self._cpu = cpu
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def parse(self, page: PageHeaders, body: bytes, limits: Limits) -> ParsedPage:
        """Parse one page, when those asked for before are done.

        Raises `ChildDied`, or `ValueError` with the text of what the function raised.
        """
        async with self._turn:
            return await self._parse_alone(page, body, limits)

    async def _parse_alone(self, page: PageHeaders, body: bytes, limits: Limits) -> ParsedPage:
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._ask(msgspec.msgpack.encode((page, body, limits)))
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            code = await self.stop(0.0 if isinstance(error, TimeoutError) else _BURIAL)
            if isinstance(error, TimeoutError):
                raise ChildDied("it took too long") from None
            if code == -signal.SIGVTALRM:
                raise ChildDied(f"it computed for more than {self._cpu:g} s", final=True) from None
            raise ChildDied(f"it ended with code {code}") from None
        except asyncio.CancelledError:
            await self.stop()  # its next answer would be that of another page
            raise
        parsed, fault = msgspec.msgpack.decode(answer, type=tuple[ParsedPage | None, str])
        if parsed is None:
            raise ValueError(fault)
        return parsed

    async def _ask(self, request: bytes) -> bytes:
        process = self._process
        if process is None:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, self._parse, f"{self._cpu:g}",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        if process.stdin is None or process.stdout is None:
            raise OSError("the child has no pipes")
        process.stdin.write(_LENGTH.pack(len(request)) + request)
        await process.stdin.drain()
        (size,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
        return await process.stdout.readexactly(size)

    async def stop(self, patience: float = 0.0) -> int | None:
        """End the child; its exit code, negative for a signal. `patience`: seconds it has to end by itself.

        A dead child must not be killed before asyncio has its exit code: `kill` would take that code and lose it.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        if patience:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    return await process.wait()
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait()


def limit_computation(seconds: float) -> None:
    """End this process (SIGVTALRM) once it has computed for so long from now; 0 takes the limit away.

    Counts the time of this process on a processor, so neither waiting nor a stopped machine uses it up. The signal's
    default action needs no interpreter, which native code may be holding.
    """
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)


def serve(parse: Parse, cpu: float, requests: BinaryIO, answers: BinaryIO) -> None:
    """The child's life: a page in, its parsed form out, until the requests end. `cpu`: seconds to compute for one."""
    decoder = msgspec.msgpack.Decoder(tuple[PageHeaders, bytes, Limits])
    while len(head := requests.read(_LENGTH.size)) == _LENGTH.size:
        (size,) = _LENGTH.unpack(head)
        page, body, limits = decoder.decode(requests.read(size))
        limit_computation(cpu)
        try:
            answer: tuple[ParsedPage | None, str] = parse(page, body, limits), ""
        except Exception as error:  # noqa: BLE001 - whatever it is: the page's fault, and told as such
            answer = None, f"{type(error).__name__}: {error}"
        limit_computation(0)
        data = msgspec.msgpack.encode(answer)
        answers.write(_LENGTH.pack(len(data)) + data)
        answers.flush()


def load(parse: str) -> Parse:
    """The function that `module:function` names."""
    module, _, name = parse.partition(":")
    function: Parse = getattr(importlib.import_module(module), name)
    return function


def main() -> None:
    """`python -m agents.io.isolation module:function SECONDS`: serve on the standard streams."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get into the answers
    serve(load(sys.argv[1]), float(sys.argv[2]), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
