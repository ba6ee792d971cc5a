"""Where requests may go: names to addresses, the address guard, and `--connect-to`.

The guard judges the address that is dialled, at the moment of dialling: whatever a message, a link, a redirect or a
name server says, a worker opens no connection into its own network unless its own settings allow it. What counts as
public follows the IANA special-purpose address registries (RFC 6890) and the IPv6 global unicast space.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final

from aiohttp import AddrInfoType, TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult

from streams.errors import SettingsError

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""A name and a port to addresses as text. Raises OSError (`socket.gaierror`) where there are none."""

Dial = Callable[[AddrInfoType], socket.socket]
"""Makes the socket for one address; an OSError refuses it."""

LOOKUP_THREADS: Final = 32
"""Names that are looked up at the same time; a dead name server must not hold up the other hosts."""

DNS_LIFE: Final = 60
"""Seconds an answer is used again."""


class AddressRefused(OSError):
    """The guard's no: nothing was dialled."""

    def __init__(self, host: str, refused: Iterable[tuple[str, str]]) -> None:
        self.refused = list(refused)
        text = ", ".join(f"{address} is {kind}" for address, kind in self.refused)
        super().__init__(errno.EACCES, f"{host}: {text}")


_NOT_PUBLIC_V4: Final = [
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared (CGNAT)"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
]
_NOT_PUBLIC_V6: Final = [
    (IPv6Network(network), kind)
    for network, kind in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::/96", "reserved (IPv4-compatible)"),
        ("64:ff9b:1::/48", "private (NAT64)"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
        ("2001:2::/48", "benchmarking"),
        ("2001:db8::/32", "documentation"),
        ("2001:10::/28", "reserved"),
        ("2001:20::/28", "reserved"),
        ("3fff::/20", "documentation"),
    )
]
_GLOBAL_V6: Final = IPv6Network("2000::/3")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_6TO4: Final = IPv6Network("2002::/16")
_TEREDO: Final = IPv6Network("2001::/32")


@lru_cache(4096)
def refusal(address: str) -> str:
    """Why nobody should be crawled at `address` (a literal), "" where it is public."""
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv4Address):
        return _first(parsed, _NOT_PUBLIC_V4)
    kind = _first(parsed, _NOT_PUBLIC_V6)
    if kind:
        return kind
    embedded, form = _embedded(parsed)
    for inner in embedded:
        kind = _first(inner, _NOT_PUBLIC_V4)
        if kind:
            return f"{kind} ({inner} as {form})"
    return "" if embedded or parsed in _GLOBAL_V6 else "reserved"


def _first(address: IPv4Address | IPv6Address, networks: Sequence[tuple[IPv4Network | IPv6Network, str]]) -> str:
    return next((kind for network, kind in networks if address in network), "")


def _embedded(address: IPv6Address) -> tuple[list[IPv4Address], str]:
    """The IPv4 addresses a packet to this IPv6 address may end at, and the name of the form that carries them."""
    bits = int(address)
    last = IPv4Address(bits & 0xFFFFFFFF)
    if address in _MAPPED:
        return [last], "IPv4-mapped"
    if address in _NAT64:  # RFC 6052
        return [last], "NAT64"
    if address in _6TO4:  # RFC 3056 §2
        return [IPv4Address(bits >> 80 & 0xFFFFFFFF)], "6to4"
    if address in _TEREDO:  # RFC 4380 §4: the server, and the client's address inverted
        return [IPv4Address(bits >> 64 & 0xFFFFFFFF), IPv4Address(int(last) ^ 0xFFFFFFFF)], "Teredo"
    return [], ""


@dataclass(frozen=True, slots=True)
class Route:
    """One `--connect-to HOST:PORT:ADDR:PORT`: requests for the first pair go to the second.

    Empty `host` or 0 as `port` stand for any; empty `to_host` or 0 as `to_port` for what was asked. An address that the
    operator wrote down is exempt from the guard.
    """

    host: str
    port: int
    to_host: str
    to_port: int

    def matches(self, host: str, port: int) -> bool:
        """Whether this entry speaks for a request to `host`:`port`."""
        return self.host in ("", host.rstrip(".").lower()) and self.port in (0, port)

    @property
    def exempt(self) -> bool:
        """Whether the guard lets its target pass."""
        return bool(self.to_host)


_ROUTE: Final = re.compile(r"(\[[^\]]*\]|[^:\[]*):(\d{0,5}):(\[[^\]]*\]|[^:\[]*):(\d{0,5})\Z")


def parse_route(text: str) -> Route:
    """Read HOST:PORT:ADDR:PORT as curl does, IPv6 in brackets. Raises `SettingsError`."""
    match = _ROUTE.match(text)
    ports = [int(match[group] or 0) for group in (2, 4)] if match else [65536]
    if match is None or max(ports) > 65535:
        raise SettingsError(
            f"connect_to {text!r} is not HOST:PORT:ADDR:PORT",
            "For example www.example.org:443:127.0.0.1:8443; any part may be empty.",
        )
    return Route(match[1].strip("[]").rstrip(".").lower(), ports[0], match[3].strip("[]"), ports[1])


class NameResolver(AbstractResolver):
    """Looks names up within `timeout` seconds, in threads of its own."""

    def __init__(self, timeout: float, lookup: Lookup | None = None) -> None:
        self._timeout = timeout
        self._lookup = lookup or self._system
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="dns")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """All addresses of a name. Raises `socket.gaierror`, also for no answer in time (EAI_AGAIN)."""
        try:
            async with asyncio.timeout(self._timeout):
                addresses = await self._lookup(host, port)
        except TimeoutError:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer from the name server in time") from None
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "the name has no address")
        return [_resolved(host, address, port) for address in addresses]

    async def close(self) -> None:
        """Drop what was not looked up yet."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _system(self, host: str, port: int) -> Sequence[str]:
        """The system's resolver: hosts file, search rules and name servers as configured on the machine."""
        # Bytes, because for text Python applies IDNA 2003 again, which the wire form does not need and may fail.
        name = host.encode("ascii", "replace")
        loop = asyncio.get_running_loop()
        infos = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        )
        return [str(info[4][0]) for info in infos]


def _resolved(name: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return {"hostname": name, "host": address, "port": port, "family": family, "proto": 0, "flags": 0}


class GuardedConnector(TCPConnector):
    """aiohttp's connector with the guard in two places.

    `_resolve_host` is where aiohttp turns every host, also a literal, into the addresses it will dial: routes apply and
    refused addresses are taken out there, for the addresses that are then dialled, so that a second answer of the name
    server cannot slip in between. `dial`, aiohttp's public hook for each socket, judges once more: if a later aiohttp
    went another way to its addresses, routes would fail and private addresses still be refused.
    """

    def __init__(
        self, resolver: AbstractResolver, routes: Sequence[Route], *, allow_private: bool, dial: Dial, **options: Any
    ) -> None:
        super().__init__(
            resolver=resolver, ttl_dns_cache=DNS_LIFE, socket_factory=self._dial, limit=0, **options
        )  # fmt: skip
        self._routes = tuple(routes)
        self._allow_private = allow_private
        self._open = dial
        self._exempt: set[tuple[str, int]] = set()

    async def _resolve_host(self, host: str, port: int, traces: Any = None) -> list[ResolveResult]:
        route = next((route for route in self._routes if route.matches(host.strip("[]"), port)), None)
        if route is None:
            return self._judged(host, await super()._resolve_host(host, port, traces))
        found = await super()._resolve_host(route.to_host or host, route.to_port or port, traces)
        if not route.exempt:
            return self._judged(host, found)
        self._exempt.update((target["host"], target["port"]) for target in found)
        return found

    async def locate(self, host: str, port: int) -> str:
        """The address that stands for all of a host's (the first by name); "" where it has none that may be dialled."""
        try:
            found = await self._resolve_host(host, port)
        except OSError:
            return ""
        return min((target["host"] for target in found), default="")

    def _judged(self, host: str, found: Sequence[ResolveResult]) -> list[ResolveResult]:
        """Those of the addresses that may be dialled: of a mixed answer only the public ones."""
        if self._allow_private:
            return list(found)
        kinds = [refusal(target["host"]) for target in found]
        allowed = [target for target, kind in zip(found, kinds, strict=True) if not kind]
        if not allowed:
            raise AddressRefused(host, ((target["host"], kind) for target, kind in zip(found, kinds, strict=True)))
        return allowed

    def _dial(self, info: AddrInfoType) -> socket.socket:
        address, port = info[4][:2]
        if not self._allow_private and (address, port) not in self._exempt:
            kind = refusal(address)
            if kind:
                raise AddressRefused(address, [(address, kind)])
        return self._open(info)


def open_socket(info: AddrInfoType) -> socket.socket:
    """A non-blocking socket for one address."""
    family, kind, protocol, _, _ = info
    return socket.socket(family, kind, protocol)
