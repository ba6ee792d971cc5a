"""A fetcher on a stand: a real server on loopback, a delivery that keeps what is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from agents.fetcher import FetcherStage
from agents.io.http import HttpClient
from streams.deaths import Death, Deaths
from streams.definitions import CrawlDefinition
from streams.messages import FetchOrder
from streams.policy.urls import fingerprint, hostname
from streams.settings import Fetch, Kafka, Settings, Worker
from tests.servers.hostile import HostileServer
from tests.unit.agents.recording import Recorder

QUICK = {"connect_timeout": 2.0, "first_byte_timeout": 5.0, "stall_timeout": 2.0, "total_timeout": 10.0}


@dataclass
class Crawls:
    crawls: dict[str, CrawlDefinition] = field(default_factory=dict)
    listeners: list[Callable[[], None]] = field(default_factory=list)
    deaths: Deaths = field(default_factory=Deaths)

    async def catch_up(self) -> None:
        """All is known here at once."""

    def died(self, url: str, delivery: Recorder) -> None:
        """A worker died while it decoded the body of `url`."""
        self.deaths.add(Death(stage="fetcher", at=delivery.clock.now(), url=url))

    def listen(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    def define(self, **facts: Any) -> None:
        facts = {"id": "c", "delay": 0.0, "parallelism": 32, "robots": False, **facts}
        self.crawls[facts["id"]] = CrawlDefinition(**facts)
        for listener in self.listeners:
            listener()


@dataclass
class Stand:
    stage: FetcherStage
    delivery: Recorder
    server: HostileServer
    crawls: Crawls

    async def give(self, *orders: FetchOrder | bytes, first: int | None = None) -> None:
        await self.delivery.give(self.stage, 0, *orders, first=first)

    async def fetch(self, *orders: FetchOrder | bytes) -> Any:
        await self.give(*orders)
        return await self.delivery.until(len(orders))


@asynccontextmanager
async def stand(
    routes: Sequence[dict[str, Any]],
    *,
    kafka: Mapping[str, Any] = MappingProxyType({}),
    assign: bool = True,
    client: Callable[[Fetch], HttpClient] = HttpClient,
    state: Path | None = None,
    **fetch: Any,
) -> AsyncIterator[Stand]:
    async with HostileServer(routes) as server, AsyncExitStack() as stack:
        folder = state or Path(stack.enter_context(TemporaryDirectory()))
        settings = Settings(
            kafka=Kafka(**{"heartbeat": 0.1, "session_timeout": 5.0, **kafka}),
            fetch=Fetch(**{"allow_private": True, "connect_to": server.connect_to(), **QUICK, **fetch}),
            worker=Worker(name="fetcher-1", grace=2.0, state=folder),
        )
        delivery, crawls = Recorder(settings), Crawls()
        crawls.define()
        stage = FetcherStage(settings, crawls, client(settings.fetch))
        await stage.start(delivery)  # type: ignore[arg-type]  # the recorder is what a stage uses of a delivery
        try:
            if assign:
                await delivery.assign(stage, 0)
            yield Stand(stage, delivery, server, crawls)
        finally:
            await stage.stop()


def page(path: str, host: str = "a.test", **response: Any) -> dict[str, Any]:
    defaults = {"status": 200, "headers": [["Content-Type", "text/plain"]], "body": f"body of {path}"}
    return {"host": host, "path": path, "response": {**defaults, **response}}


def order(url: str, **facts: Any) -> FetchOrder:
    defaults: dict[str, Any] = {
        "crawl": "c", "url": url, "fingerprint": fingerprint("c", url), "host": hostname(url), "shard": 3, "epoch": 7,
        "visit": 1, "attempt": 0, "parallelism": 32, "rules": 1,
    }  # fmt: skip
    return FetchOrder(**{**defaults, **facts})


A, B = "http://a.test/a", "http://a.test/b"


def many(count: int, **response: Any) -> list[dict[str, Any]]:
    return [{**page("/p{i}", **response), "generate": {"from": 0, "to": count - 1}}]
