"""A way to Kafka that can be cut: TCP on loopback, in a thread of its own, with a state that tests change.

    open    bytes go both ways
    cut     every connection is broken, new ones are refused
    hole    connections stay and are taken; nothing is forwarded, as when a firewall drops packets
    deaf    what the client sends arrives, what the broker answers does not (half open)

`delay`: seconds that each piece of bytes takes, in either direction.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Literal

State = Literal["open", "cut", "hole", "deaf"]

_PIECE = 64 * 1024
_CLOSED = (ConnectionError, OSError, asyncio.IncompleteReadError)


class Proxy:
    """Forwards from each port of `routes` to the port it names."""

    def __init__(self, routes: Mapping[int, int], delay: float = 0.0) -> None:
        self._routes = dict(routes)
        self.delay = delay
        self.taken = 0
        self._state: State = "open"
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    def turn(self, state: State) -> None:
        """From now on; returns when it holds."""
        asyncio.run_coroutine_threadsafe(self._set(state), self._loop).result(10)

    async def _set(self, state: State) -> None:
        self._state = state
        if state == "open":
            self._open.set()
        else:
            self._open.clear()
        if state == "cut":
            for server in self._servers:
                server.close()
            self._servers.clear()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
        elif not self._servers:
            await self._listen()

    async def _listen(self) -> None:
        for port, target in self._routes.items():
            self._servers.append(await asyncio.start_server(self._taker(target), "127.0.0.1", port))

    def _taker(self, target: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            self.taken += 1
            try:
                with suppress(*_CLOSED, asyncio.CancelledError):  # a cut; asyncio would log it as an error
                    await self._forward(reader, writer, target)
            finally:
                self._connections.discard(task)
                writer.transport.abort()

        return take

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        try:
            ways = [
                asyncio.ensure_future(self._pump(reader, back, {"open", "deaf"})),
                asyncio.ensure_future(self._pump(there, writer, {"open"})),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            back.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: set[State]) -> None:
        while piece := await reader.read(_PIECE):
            if self.delay:
                await asyncio.sleep(self.delay)
            while self._state not in passing:
                await self._open.wait()
            writer.write(piece)
            await writer.drain()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._set("open"))
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._set("cut"))
        self._loop.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


@contextmanager
def proxy(routes: Mapping[int, int]) -> Iterator[Proxy]:
    """A proxy that runs until the end of the block; it begins open."""
    made, started = Proxy(routes), threading.Event()
    thread = threading.Thread(target=made._run, args=(started,), name="proxy", daemon=True)
    thread.start()
    assert started.wait(10), "the proxy does not listen"
    try:
        yield made
    finally:
        made._stop()
        thread.join(10)
