"""One HTTP request: the only code that talks to crawled sites.

Every fault ends in an `Answer` with one of the failure classes (`streams.messages.FailureClass`), never in an
exception. Nothing here follows a redirect, tries again, keeps a cookie or adds a trace header: each request that goes
out is one the wire clock allowed. Times are seconds of CLOCK_BOOTTIME, sizes are bytes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import aiohttp
from aiohttp import ClientError, ClientRequest, ClientResponse, ClientSession, ClientTimeout, http_exceptions
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from agents.io.addresses import Dial, GuardedConnector, Lookup, NameResolver, open_socket, parse_route
from agents.io.bodies import WITHOUT_BODY, Body, Budget, Holder
from agents.io.faults import Unanswered, classify
from agents.io.rehearsal import given_up, rehearse
from streams.page.decoding import ACCEPT_ENCODING
from streams.policy.answers import not_accepted

if TYPE_CHECKING:
    from aiohttp.connector import Connection

    from agents.io.culprit import Culprit
    from streams.messages import FailureClass, TruncationReason
    from streams.settings import Fetch

PRODUCT: Final = "fyke"
ACCEPT: Final = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
DRAIN: Final = 64 * 1024
"""Of a body nobody wants so much is read, so that its connection can be used again; a longer one is cut off."""

HEADER_FIELDS: Final = 256
LONGEST_LINE: Final = 64 * 1024
KEEP_ALIVE: Final = 15.0
_OWN_HEADERS: Final = frozenset({
    "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
"""What a message may not set: framing, routing and coding of the request are ours."""


now: Final[Callable[[], float]] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""The clock of this process: CLOCK_BOOTTIME in seconds, which also counts while the machine sleeps."""


def default_user_agent() -> str:
    """`fyke/VERSION`, with a link to the project where the installed package names one."""
    try:
        package = metadata.metadata(PRODUCT)
    except metadata.PackageNotFoundError:
        return PRODUCT
    links = [link.partition(",")[2].strip() for link in package.get_all("Project-URL") or ()]
    return f"{PRODUCT}/{package['Version']}" + (f" (+{links[0]})" if links else "")


@dataclass(slots=True, kw_only=True)
class Exchange(Holder):
    """What is known of one request while it runs, and also of one that was cancelled.

    `permit` is asked before connecting and again right before the head is sent; once it says no, nothing goes out.
    `on_sent` is told the moment of sending. What it holds of the body budget is given back by `HttpClient.release`.
    """

    permit: Callable[[], bool]
    on_sent: Callable[[float], object]
    start: float = 0.0
    sent: float = 0.0
    address: str = ""
    reused: bool = False

    @property
    def began(self) -> float:
        """When the site saw it begin; for a request that was never sent, when connecting began."""
        return self.sent or self.start


@dataclass(frozen=True, slots=True)
class Request:
    """A GET. `max_body`: decoded bytes to keep of a 2xx body; other bodies are read past.

    `timeout`: seconds for all of it, first byte included; 0: the settings'. `accept`: media types whose bodies are
    kept; empty: all.
    """

    url: str
    max_body: int
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 0.0
    accept: tuple[str, ...] = ()


@dataclass(slots=True)
class Answer:
    """What came of a request: a status with headers, or a failure without. A body may be there only in part.

    `fields` finds a field by its name in any case, of several lines the first; bytes that are not UTF-8 are surrogates.
    `received`: bytes of the body that came over the wire. `refused`: its media type, if the request did not take it.
    """

    status: int = 0
    raw_headers: tuple[tuple[bytes, bytes], ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    truncated: TruncationReason | None = None
    failure: FailureClass | None = None
    reason: str = ""
    evidence: dict[str, str] = field(default_factory=dict)
    start: float = 0.0
    first_byte: float = 0.0
    end: float = 0.0
    address: str = ""
    received: int = 0
    refused: str = ""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Names and values as text: UTF-8 where it is, else one character a byte (RFC 9110 §5.5)."""
        try:  # all at once, because every page needs them; no field holds a NUL (RFC 9110 §5.5)
            flat = b"\0".join(chain.from_iterable(self.raw_headers)).decode().split("\0")
        except UnicodeDecodeError:
            flat = [_text(part) for part in chain.from_iterable(self.raw_headers)]
        return list(zip(flat[::2], flat[1::2], strict=False))

    def values(self, name: bytes) -> list[bytes]:
        """The field lines called `name` (lower case)."""
        return [value for key, value in self.raw_headers if key.lower() == name]


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


class _Withdrawn(ClientError):
    """Permission ended before anything was sent."""


_current: ContextVar[Exchange] = ContextVar("exchange")


class _Wire(ResponseHandler):
    """The protocol of aiohttp, with a bound on what it reads without a byte of the body coming of it.

    Its parser bounds the head, but not a chunk's size or extension: an endless line would be read until the deadline.
    """

    _fruitless = 0

    def data_received(self, data: bytes) -> None:
        payload = self._payload
        before = payload.total_bytes if payload is not None else -1
        super().data_received(data)
        if payload is None or payload is not self._payload or payload.total_bytes != before:
            self._fruitless = 0
            return
        self._fruitless += len(data)
        if self._fruitless > LONGEST_LINE and self.transport is not None:
            fault = aiohttp.ClientPayloadError(f"more than {LONGEST_LINE} bytes of chunk framing in a row")
            self._payload = None  # what the end of the connection has to say comes too late
            payload.set_exception(fault)
            self.set_exception(fault)
            self.transport.close()


class _Connector(GuardedConnector):
    """Asks for permission, and notes when, where and on what connection a request goes out."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        handler: type[ResponseHandler] = _Wire
        self._factory = partial(handler, loop=self._loop)
        self._used: WeakSet[asyncio.BaseProtocol] = WeakSet()

    async def connect(
        self,
        req: ClientRequest,
        traces: Any,
        timeout: ClientTimeout,  # noqa: ASYNC109 - overrides aiohttp's method
    ) -> Connection:
        exchange = _current.get()
        if not exchange.permit():
            raise _Withdrawn
        connection = await super().connect(req, traces, timeout)
        if not exchange.permit():
            connection.close()
            raise _Withdrawn
        exchange.sent = now()
        exchange.on_sent(exchange.sent)
        protocol = connection.protocol
        if protocol is not None and protocol.transport is not None:
            exchange.address = (protocol.transport.get_extra_info("peername") or ("",))[0]
            exchange.reused = protocol in self._used
            self._used.add(protocol)
        return connection


async def _never_resend(request: ClientRequest, handler: Any) -> ClientResponse:
    """Keep aiohttp from repeating a GET by itself when a kept-alive connection breaks: no wire clock knows of it."""
    try:
        response: ClientResponse = await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise Unanswered(str(error) or "the server closed the connection") from error
    return response


class HttpClient:
    """The client session of a process.

    `lookup`, `dial` and `tls` stand in for the system's name service, its sockets and its trusted roots.
    """

    def __init__(
        self,
        settings: Fetch,
        *,
        lookup: Lookup | None = None,
        dial: Dial = open_socket,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._routes = [parse_route(text) for text in settings.connect_to]
        self._lookup = lookup
        self._dial = dial
        self._tls = tls or ssl.create_default_context()
        self._session: ClientSession | None = None
        self._culprit: Culprit | None = None
        self.budget = Budget(settings.body_budget)
        self.user_agent = settings.user_agent or default_user_agent()

    async def start(self, culprit: Culprit | None = None) -> None:
        """Open the session; needs the running loop. `culprit` is told which body is being decoded."""
        settings, self._culprit = self._settings, culprit
        # Half the time to connect, so that a dead name server is told apart from a dead host.
        self._resolver = NameResolver(settings.connect_timeout / 2, self._lookup)
        connector = _Connector(
            self._resolver,
            self._routes,
            allow_private=settings.allow_private,
            dial=self._dial,
            ssl=self._tls,
            keepalive_timeout=KEEP_ALIVE,
        )
        self._connector = connector
        self._session = ClientSession(
            connector=connector,
            headers={"User-Agent": self.user_agent, "Accept": ACCEPT, "Accept-Encoding": ACCEPT_ENCODING},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            middlewares=(_never_resend,),
            max_line_size=settings.max_header,
            max_field_size=settings.max_header // 2,
            max_headers=HEADER_FIELDS,
        )

    def _limits(self, request: Request) -> ClientTimeout:
        settings, total = self._settings, request.timeout
        connect = min(settings.connect_timeout, total or settings.connect_timeout)
        return ClientTimeout(
            total=total or settings.total_timeout,
            connect=connect,
            sock_connect=connect,
            sock_read=total or settings.first_byte_timeout,
            ceil_threshold=60.0,
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            await self._resolver.close()

    async def address_of(self, url: str) -> str:
        """The address that stands for where a request for `url` would go; "" where that is nowhere."""
        target = URL(url, encoded=True)
        return await self._connector.locate(target.raw_host or "", target.port or 0)

    def release(self, exchange: Exchange) -> None:
        """The body of this exchange is no longer held."""
        self.budget.give(exchange)

    async def fetch(self, request: Request, exchange: Exchange) -> Answer | None:
        """Send one request and read its answer. None: permission ended before anything was sent.

        The answer's body counts on the budget until `release`.
        """
        if self._session is None:
            raise RuntimeError("start() comes first")
        if self._culprit is not None and (reason := given_up(self._culprit.deaths(request.url), self._settings)):
            return Answer(failure="decode", reason=reason, start=now(), end=now())
        _current.set(exchange)
        exchange.start = now()
        try:
            url, headers, limits = URL(request.url, encoded=True), _sendable(request.headers), self._limits(request)
            response = await self._session.get(url, headers=headers, allow_redirects=False, timeout=limits)
        except _Withdrawn:
            return None
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            return self._failed(exchange, error)
        first_byte = now()
        try:
            answer = await self._read(request, exchange, response)
        finally:
            if not response.closed:  # the body was not read to its end
                response.close()
        answer.start, answer.first_byte, answer.end = exchange.began, first_byte, now()
        answer.address = exchange.address
        return answer

    def _failed(self, exchange: Exchange, error: Exception) -> Answer:
        failure, evidence = classify(error)
        return Answer(
            failure=failure,
            reason=str(error) or type(error).__name__,
            evidence={**evidence, "phase": "answer" if exchange.sent else "connect"},
            start=exchange.began,
            end=now(),
            address=exchange.address,
        )

    async def _read(self, request: Request, exchange: Exchange, response: ClientResponse) -> Answer:
        """The answer with its body, as far as it came and was wanted."""
        answer = Answer(response.status, response.raw_headers, response.headers)
        size = sum(map(len, chain.from_iterable(response.raw_headers))) + 4 * len(response.raw_headers)
        if size > self._settings.max_header:
            answer.failure, answer.reason = "protocol", f"response head of {size} bytes"
            return answer
        wanted = 200 <= response.status < 300
        if wanted:
            answer.refused = not_accepted(request.accept, response.headers.getall("Content-Type", ()))
            wanted = not answer.refused
        coding = ", ".join(response.headers.getall("Content-Encoding", ())) if wanted else ""
        culprit = self._culprit if coding else None
        decoding = culprit.decoding(request.url) if culprit is not None else None
        body = Body(coding, request.max_body if wanted else DRAIN, self._settings, decoding)
        if culprit is not None and culprit.deaths(request.url):
            fault, answer.reason = await self._suspect(culprit, request.url, exchange, response, body)
        else:
            fault = await self._receive(exchange, response, body)
        answer.received = body.received
        if answer.reason:
            answer.failure = "decode"
        elif wanted:
            answer.body, (answer.truncated, answer.reason) = body.end(fault)
        if answer.truncated and not answer.body:
            answer.failure, answer.truncated = WITHOUT_BODY[answer.truncated], None
        return answer

    async def _suspect(
        self, culprit: Culprit, url: str, exchange: Exchange, response: ClientResponse, body: Body
    ) -> tuple[Exception | None, str]:
        """Feed what killed a process to `body` once another one survives it; the fault in receiving it, or why not."""
        packed = Body("", max(self._settings.max_body, self._settings.max_wire), self._settings)
        fault = await self._receive(exchange, response, packed)
        received, _ = packed.end(None)
        coding = ", ".join(response.headers.getall("Content-Encoding"))
        if not (reason := await rehearse(culprit, url, coding, received, self._settings)):
            await self.budget.take(exchange, body.feed(received))
        return fault, reason

    async def _receive(self, exchange: Exchange, response: ClientResponse, body: Body) -> Exception | None:
        """Read until the end, a limit or a fault; the fault."""
        connection = response.connection
        if connection is not None and connection.protocol is not None:
            connection.protocol.read_timeout = self._settings.stall_timeout
            connection.protocol.start_timeout()
        try:
            while not body.full:
                piece = await response.content.readany()
                if not piece:
                    break
                kept = body.feed(piece)
                if kept:
                    await self.budget.take(exchange, kept)
        except (ClientError, OSError, TimeoutError, http_exceptions.HttpProcessingError) as error:
            return error
        return None


def _sendable(headers: Mapping[str, str]) -> dict[str, str] | None:
    if not headers:
        return None
    return {name: value for name, value in headers.items() if name.lower() not in _OWN_HEADERS}
