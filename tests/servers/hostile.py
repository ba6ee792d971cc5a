"""A loopback server whose routes and bytes come from data (corpora/http/hostile.json; see SOURCE.md beside it).

It answers every name: the Host field and the port say which route is meant. Names are led here by the test's own
resolver or `connect_to`; nothing listens anywhere but on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self

from tests.servers.recipes import Variables, fill, is_endless, render

DEFAULT_PORTS = {"http": "80", "https": "443"}
_UNLISTED = {"status": 404, "headers": [["Content-Type", "text/plain"]], "body": ""}


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the server saw it; `at` in seconds of the monotonic clock."""

    url: str
    method: str
    headers: list[tuple[str, str]]
    at: float
    connection: int

    def header(self, name: str) -> str | None:
        """The first field line of that name."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass(slots=True)
class Route:
    """One route of a case; its n-th request gets the n-th of its responses, the last one repeats."""

    data: dict[str, Any]
    variables: Variables
    path: re.Pattern[str]
    served: int = 0

    def match(self, scheme: str, host: str, target: str, headers: list[tuple[str, str]]) -> Variables | None:
        """The variables of a request that is this route's."""
        if self.data.get("scheme", "http") != scheme or self.data.get("host", host) != host:
            return None
        found = self.path.fullmatch(target)
        if found is None or not self._conditions(headers):
            return None
        return {**self.variables, **{name: value for name, value in found.groupdict().items() if value is not None}}

    def _conditions(self, headers: list[tuple[str, str]]) -> bool:
        fields = {name.lower(): value for name, value in headers}
        wanted, unwanted, cookie = (self.data.get(f"when_{name}") for name in ("header", "not_header", "cookie"))
        if wanted and not _has(fields, wanted):
            return False
        if unwanted and _has(fields, unwanted):
            return False
        if cookie:
            pairs = [pair.strip() for pair in fields.get("cookie", "").split(";")]
            return f"{cookie['name']}={cookie['value']}" in pairs
        return True

    def next(self) -> dict[str, Any]:
        """The response that is due."""
        responses = self.data.get("responses") or [self.data["response"]]
        response: dict[str, Any] = responses[min(self.served, len(responses) - 1)]
        self.served += 1
        return response


def _has(fields: dict[str, str], condition: dict[str, str]) -> bool:
    value = fields.get(condition["name"].lower())
    if value is None:
        return False
    if "equals" in condition:
        return value == condition["equals"]
    return condition.get("contains", "") in value


def routes(data: Iterable[dict[str, Any]], agent: str) -> list[Route]:
    """The routes of a case, `generate` written out."""
    out = []
    for row in data:
        for number in _generated(row):
            variables = {"agent": agent, "AGENT": agent.upper()}
            if number is not None:
                variables["i"] = str(number)
            out.append(Route(row, variables, _pattern(fill(row["path"], variables))))
    return out


def _generated(row: dict[str, Any]) -> Iterator[int | None]:
    span = row.get("generate")
    if span is None:
        yield None
    else:
        yield from range(span["from"], span["to"] + 1)


def _pattern(path: str) -> re.Pattern[str]:
    text = re.escape(path).replace(r"\{any\}", ".*").replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{random\}", r"\w+")
    return re.compile(text, re.DOTALL)


class HostileServer:
    """Serves the routes of a case while the context is open.

    `http` and `https` are its ports; nobody should ever come to `other`.
    """

    def __init__(
        self, data: Iterable[dict[str, Any]], *, agent: str = "fyke", tls: ssl.SSLContext | None = None
    ) -> None:
        self.seen: list[Seen] = []
        self.connections = 0
        self.intruders = 0
        self._rows = list(data)
        self._routes = routes(self._rows, agent)
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._handlers: set[asyncio.Task[None]] = set()
        self.http = self.https = self.other = 0

    async def __aenter__(self) -> Self:
        self.http = await self._listen("http", None)
        plain = any(row.get("plain") for row in self._rows)
        self.https = await self._listen("https", None if plain else self._tls) if plain or self._tls else 0
        self.other = await self._listen("other", None)
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for handler in list(self._handlers):
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    @property
    def urls(self) -> list[str]:
        """What was requested, in order; robots.txt does not count."""
        return [seen.url for seen in self.seen if not seen.url.endswith("/robots.txt")]

    def connect_to(self, *hosts: str) -> tuple[str, ...]:
        """`--connect-to` entries that lead the default ports of `hosts` (none: of all) here, and 8081 too."""
        ports = {80: self.http, 8081: self.http} | ({443: self.https} if self.https else {})
        return tuple(f"{host}:{port}:127.0.0.1:{real}" for host in hosts or ("",) for port, real in ports.items())

    async def _listen(self, scheme: str, tls: ssl.SSLContext | None) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            self.intruders += scheme == "other"
            connection = Connection(self, scheme, reader, writer, self.connections)
            handler = asyncio.ensure_future(connection.run())
            self._handlers.add(handler)
            handler.add_done_callback(self._handlers.discard)
            with contextlib.suppress(asyncio.CancelledError):
                await handler

        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def find(
        self, scheme: str, host: str, target: str, headers: list[tuple[str, str]]
    ) -> tuple[dict[str, Any], Variables]:
        """The response that is due for a request, and what its placeholders stand for."""
        common = {"port": str(self.http), "other_port": str(self.other), "path": target.partition("?")[0]}
        for route in self._routes:
            variables = route.match(scheme, host, target, headers)
            if variables is not None:
                return route.next(), {**common, **variables}
        return _UNLISTED, common


@dataclass(slots=True)
class Connection:
    """One accepted connection."""

    server: HostileServer
    scheme: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    _ended: bool = field(default=False)

    async def run(self) -> None:
        """Answer requests until either side is done."""
        try:
            if any(row.get("plain") for row in self.server._rows) and self.scheme == "https":
                await asyncio.Event().wait()  # accepts, and never answers the ClientHello
            while not self._ended and await self._one():
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ssl.SSLError, TimeoutError):
            pass
        finally:
            self.writer.close()

    async def _one(self) -> bool:
        head = await self.reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")[:-2]
        method, target, _ = line.split(" ", 2)
        headers = [(name, value.strip()) for name, _, value in (text.partition(":") for text in fields)]
        host = next((value for name, value in headers if name.lower() == "host"), "")
        host = host.removesuffix(f":{DEFAULT_PORTS.get(self.scheme, '')}")
        url = f"{self.scheme}://{host}{target}"
        self.server.seen.append(Seen(url, method, headers, time.monotonic(), self.number))
        response, variables = self.server.find(self.scheme, host, target, headers)
        await asyncio.sleep(response.get("delay_ms", 0) / 1000)
        pieces = _bytes(response, variables)
        if "raw" not in response:
            self.writer.write(next(pieces))  # the head is never slowed
        await self._send(pieces, response.get("pace"))
        return await self._then(response)

    async def _send(self, pieces: Iterator[bytes], pace: dict[str, int] | None) -> None:
        for piece in pieces:
            if pace is None:
                self.writer.write(piece)
                await self.writer.drain()
                continue
            for at in range(0, len(piece), pace["bytes"]):
                self.writer.write(piece[at : at + pace["bytes"]])
                await self.writer.drain()
                await asyncio.sleep(pace["every_ms"] / 1000)

    async def _then(self, response: dict[str, Any]) -> bool:
        match response.get("then", "close" if response.get("version") == "1.0" else "keep_open"):
            case "stall":
                await asyncio.Event().wait()
            case "close":
                return False
            case "reset":
                connected: socket.socket = self.writer.get_extra_info("socket")
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.writer.transport.abort()
                return False
        return True


def _bytes(response: dict[str, Any], variables: Variables) -> Iterator[bytes]:
    """All bytes of an answer, its head as the first piece unless it is `raw`."""
    if "raw" in response:
        yield from render(response["raw"], variables, "latin-1")
        return
    headers = [(name, b"".join(render(value, variables, "latin-1"))) for name, value in response["headers"]]
    names = {name.lower() for name, _ in headers}
    recipe = response.get("body", "")
    chunk = response.get("chunk_size")
    version = response.get("version", "1.1")
    body = render(recipe, variables)
    if "transfer-encoding" in names:
        body = _chunked(body, None)
    elif chunk:
        headers.append(("Transfer-Encoding", b"chunked"))
        body = _chunked(body, chunk)
    elif not ("content-length" in names or version == "1.0" or is_endless(recipe) or response["status"] in (204, 304)):
        whole = b"".join(body)
        headers.append(("Content-Length", b"%d" % len(whole)))
        body = iter([whole])
    yield _head(version, response, headers)
    yield from body


def _head(version: str, response: dict[str, Any], headers: list[tuple[str, bytes]]) -> bytes:
    reason = response.get("reason")
    if reason is None:
        reason = HTTPStatus(response["status"]).phrase
    lines = [f"HTTP/{version} {response['status']} {reason}".encode("latin-1")]
    lines += [name.encode("latin-1") + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _chunked(pieces: Iterator[bytes], size: int | None) -> Iterator[bytes]:
    for piece in pieces:
        step = size or max(1, len(piece))
        for at in range(0, len(piece), step):
            part = piece[at : at + step]
            yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"
