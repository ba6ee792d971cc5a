"""A web of many hosts in one process: files under host names, answers that ask to wait, a log by the kernel's clock.

    python -m tests.servers.hosts FOLDER

FOLDER holds `hosts.json` (see `Host`), and gets `port` and `access.jsonl`. The start of a request is when its bytes
arrived at the socket (SO_TIMESTAMPNS), however long this process was kept from running: a log that proves gaps must not
depend on the machine's load.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

SO_TIMESTAMPNS: Final = 35  # Linux; not in `socket`
MOST: Final = 64 * 1024  # bytes of a request's head


@dataclass(frozen=True, slots=True)
class Wait:
    """Answers that refuse: the page requests number `first` to `last` of a host get `status`.

    `retry_after`: seconds; `as_date`: said as an HTTP date, which is a second coarse; 0: not said at all.
    """

    first: int
    last: int
    status: int
    retry_after: int = 0
    as_date: bool = False


@dataclass(frozen=True, slots=True)
class Host:
    """What a host serves: files by path with query. Every `slow`-th page request takes `slow_for` seconds."""

    files: dict[str, str]
    robots: str = ""
    waits: tuple[Wait, ...] = ()
    slow: int = 0
    slow_for: float = 0.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the log. Times in seconds since the epoch.

    `answered`: before the answer left; `end`: it was handed over, or could not be. A process that is kept from running
    between the two notes the end late: the other side may have read the answer long before.
    """

    start: float
    answered: float
    end: float
    host: str
    uri: str
    status: int
    retry_after: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """The server's process."""

    port: int
    log: Path

    def entries(self) -> list[Entry]:
        """All requests so far; a line that is being written is left for the next time."""
        lines = self.log.read_text(encoding="utf-8").splitlines(keepends=True)
        return [Entry(**json.loads(line)) for line in lines if line.endswith("\n")]

    def count(self) -> int:
        """How many there are."""
        return self.log.read_bytes().count(b"\n")


@contextmanager
def serve(hosts: dict[str, Host], folder: Path) -> Iterator[Running]:
    """Serve until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts.json").write_text(json.dumps({name: asdict(host) for name, host in hosts.items()}))
    with running(__name__, folder) as server:
        yield server


@contextmanager
def running(module: str, folder: Path) -> Iterator[Running]:
    """`python -m MODULE FOLDER`, a module that calls `listen` below, until the block ends."""
    log, port = folder / "access.jsonl", folder / "port"
    log.touch()
    with (folder / "errors.txt").open("ab") as errors:
        process = subprocess.Popen([sys.executable, "-m", module, str(folder)], stderr=errors)
    try:
        deadline = time.monotonic() + 30
        while not port.exists() or not port.read_text():
            assert time.monotonic() < deadline, (folder / "errors.txt").read_text()
            assert process.poll() is None, (folder / "errors.txt").read_text()
            time.sleep(0.02)
        yield Running(int(port.read_text()), log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)


# --- in the process


@dataclass
class Server:
    """Answers requests of all hosts and logs them."""

    hosts: dict[str, Host]
    log: Any
    counts: dict[str, int] = field(default_factory=dict)

    async def connection(self, client: socket.socket) -> None:
        """Answer requests until the other side has enough or says what is no request."""
        client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with suppress(OSError, UnicodeDecodeError, ValueError):
                while await self._one(client):
                    pass
        finally:
            client.close()

    async def _one(self, client: socket.socket) -> bool:
        head, start = b"", 0.0
        while b"\r\n\r\n" not in head:
            data, at = await receive(client)
            if not data or len(head) > MOST:
                return False
            head, start = head + data, start or at
        lines = head.decode("ascii").split("\r\n")
        method, uri, _ = lines[0].split(" ")
        host = next(line[5:].strip() for line in lines if line.lower().startswith("host:"))
        status, fields, body, pause, wait = self.answer(host.lower(), uri)
        await asyncio.sleep(pause)
        reply = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
        answered = time.time()
        try:
            await asyncio.get_running_loop().sock_sendall(client, reply.encode() + (body if method == "GET" else b""))
        finally:
            entry = Entry(round(start, 6), round(answered, 6), round(time.time(), 6), host, uri, status, wait)
            self.note(entry)
        return True

    def note(self, entry: Entry) -> None:
        """Write a line of the log."""
        self.log.write(json.dumps(asdict(entry)) + "\n")

    def answer(self, name: str, uri: str) -> tuple[int, str, bytes, float, int]:
        """Status, header lines, body, seconds to take, and the wait it asks for (seconds)."""
        host = self.hosts.get(name)
        if host is None:
            return 404, "", b"", 0.0, 0
        if uri == "/robots.txt":
            return (200, "Content-Type: text/plain\r\n", host.robots.encode(), 0.0, 0) if host.robots else (
                404, "", b"", 0.0, 0)  # fmt: skip
        number = self.counts[name] = self.counts.get(name, 0) + 1
        pause = host.slow_for if host.slow and number % host.slow == 0 else 0.0
        for wait in host.waits:
            if wait.first <= number <= wait.last:
                return wait.status, asked_to_wait(wait), b"", pause, wait.retry_after
        file = host.files.get(uri)
        if file is None:
            return 404, "Content-Type: text/html\r\n", b"<title>none</title>", pause, 0
        return 200, "Content-Type: text/html\r\n", Path(file).read_bytes(), pause, 0


def asked_to_wait(wait: Wait) -> str:
    """The header line. A date is rounded up, so that it never asks for less than `retry_after`."""
    if not wait.retry_after:
        return ""
    at = formatdate(int(time.time()) + 1 + wait.retry_after, usegmt=True)
    return f"Retry-After: {at if wait.as_date else wait.retry_after}\r\n"


async def receive(client: socket.socket) -> tuple[bytes, float]:
    """The next bytes, and when the kernel got the last of them."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            data, notes, _, _ = client.recvmsg(MOST, 64)
        except BlockingIOError:
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_reader(client, _set, ready)
            try:
                await ready
            finally:
                loop.remove_reader(client)
        else:
            for level, kind, value in notes:
                if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                    seconds, nanoseconds = struct.unpack("qq", value)
                    return data, seconds + nanoseconds / 1e9
            return data, time.time()


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def main(folder: Path) -> None:
    """Serve until SIGTERM."""
    data = json.loads((folder / "hosts.json").read_text())
    hosts = {
        name: Host(**host | {"waits": tuple(Wait(**wait) for wait in host["waits"])}) for name, host in data.items()
    }
    await listen(folder, lambda log: Server(hosts, log))


async def listen(folder: Path, make: Callable[[Any], Server]) -> None:
    """Serve what `make` answers, given the open log, until SIGTERM."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    with (folder / "access.jsonl").open("a", buffering=1, encoding="utf-8") as log:
        server, open_ = make(log), set[asyncio.Task[None]]()

        async def accept() -> None:
            for _ in itertools.count():
                client, _address = await loop.sock_accept(listener)
                client.setblocking(False)
                task = asyncio.create_task(server.connection(client))
                open_.add(task)
                task.add_done_callback(open_.discard)

        accepting = asyncio.create_task(accept())
        (folder / "port.new").write_text(str(listener.getsockname()[1]))
        os.replace(folder / "port.new", folder / "port")  # noqa: PTH105 - atomic
        await ended.wait()
        for task in (accepting, *open_):
            task.cancel()
        await asyncio.gather(accepting, *open_, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
