"""An HTTP client and a hostile server in one bench; the harness owns resolution and dialling."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from agents.io.addresses import open_socket
from agents.io.http import Answer, Exchange, HttpClient, Request
from streams.settings import Fetch
from tests.servers.hostile import HostileServer
from tests.suites import corpus

if TYPE_CHECKING:
    from aiohttp import AddrInfoType

SETTINGS = {
    "connect_timeout": 3.0, "first_byte_timeout": 3.0, "stall_timeout": 3.0, "total_timeout": 10.0,
    "max_header": 256 * 1024,
}  # fmt: skip
"""The assumptions of the data."""

QUICK = {"connect_timeout": 1.0, "first_byte_timeout": 1.0, "stall_timeout": 1.0, "total_timeout": 2.0}
"""For cases that only end by a deadline: nothing depends on its length."""


def cases(*categories: str) -> list[Any]:
    data = json.loads(corpus("http/hostile.json").read_text())
    return [pytest.param(case, id=case["id"]) for case in data["cases"] if case["category"] in categories]


@dataclass
class Names:
    """The harness owns resolution and dialling: it notes every dial and refuses those that leave loopback."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    dialled: list[str] = field(default_factory=list)

    async def lookup(self, host: str, port: int) -> Sequence[str]:
        answer = self.answers.get(host, ["server"])
        turn = self.asked[host] = self.asked.get(host, -1) + 1
        if isinstance(answer, dict):
            answer = answer["sequence"][min(turn, len(answer["sequence"]) - 1)]
        if answer == "NXDOMAIN":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if answer == "TIMEOUT":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return ["127.0.0.1" if address == "server" else address for address in answer]

    def dial(self, info: AddrInfoType) -> socket.socket:
        address = str(info[4][0])
        self.dialled.append(address)
        if not address.startswith("127.0.0."):
            raise OSError(101, f"the harness does not dial {address}")
        return open_socket(info)


def allowed() -> Exchange:
    return Exchange(permit=lambda: True, on_sent=lambda _: None)


@dataclass
class Bench:
    """A client, its server, and what was fetched."""

    client: HttpClient
    server: HostileServer
    names: Names

    async def get(
        self,
        url: str,
        *,
        max_body: int = 10 << 20,
        headers: dict[str, str] | None = None,
        exchange: Exchange | None = None,
    ) -> Answer:
        exchange = exchange or allowed()
        try:
            answer = await self.client.fetch(Request(url, max_body, headers or {}), exchange)
        finally:
            self.client.release(exchange)
        assert answer is not None
        return answer


@asynccontextmanager
async def bench(
    routes: Sequence[dict[str, Any]],
    *,
    tls: ssl.SSLContext | None = None,
    trust: ssl.SSLContext | None = None,
    names: Names | None = None,
    connect_to: Sequence[str] = (),
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[Bench]:
    names = names or Names()
    async with HostileServer(routes, tls=tls) as server:
        entries = tuple(entry.format(http=server.http) for entry in connect_to) or server.connect_to()
        fetch = Fetch(**{"allow_private": True, **SETTINGS, **settings, "connect_to": entries})
        client = HttpClient(fetch, lookup=names.lookup, dial=names.dial, tls=trust)
        await client.start()
        try:
            yield Bench(client, server, names)
        finally:
            await client.close()
        assert client.budget.used == 0
        assert server.intruders == 0
