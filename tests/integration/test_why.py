"""`fyke why` on a running service: URLs in many states, asked of the worker, of its state, and of the changelog."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from agents.cli.why import _ask, in_words
from streams.definitions import Scope
from streams.frontier.explain import Explanation
from streams.settings import Settings
from tests.integration.service import Client, Processes, Site, connected, crawls_of, processes, service_settings, until
from tests.kafka import TestBroker

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

HOSTS = ("a", "b", "e", "f", "g")

EXPECTED = {
    "http://a.test/ok": ("c", "done", "done"),
    "http://a.test/gone": ("c", "failed", "http_status"),
    "http://a.test/private": ("c", "excluded", "robots"),
    "http://a.test/deep": ("c", "excluded", "depth"),
    "http://out.test/": ("c", "excluded", "scope:host"),
    "http://a.test/moved": ("c", "redirected", "redirected"),
    "http://b.test/busy": ("c", "waiting", "retry"),
    "http://b.test/next": ("c", "waiting", "retry_after"),
    "http://f.test/": ("c", "waiting", "robots_unreachable"),
    "http://a.test/never": ("c", "unknown", "not_met"),
    "http://a.test/held": ("p", "waiting", "paused"),
    "http://a.test/off": ("x", "excluded", "cancelled"),
    "http://e.test/3": ("slow", "waiting", "delay"),
    "http://g.test/page": ("c", "fetched", "parsing"),
}
"""Crawl, state and reason of each URL with the worker up."""

DOWN = {**EXPECTED, "http://e.test/3": ("slow", "waiting", "owner_away")}


@pytest.fixture
def settings(broker: TestBroker, web: Site) -> Settings:
    """Workers that reach the site under several names; nobody answers as f.test."""
    port = web.url.rpartition(":")[2]
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    ways = [f"{name}.test:80:127.0.0.1:{closed if name == 'f' else port}" for name in HOSTS]
    plain = service_settings(broker.settings.worker.state, broker.bootstrap, broker.prefix)
    fetch = plain.fetch.model_copy(update={"connect_to": tuple(ways)})
    return plain.model_copy(update={"fetch": fetch})


async def ask(settings: Settings) -> dict[str, Explanation]:
    found = {}
    for url, (crawl, *_) in EXPECTED.items():
        (found[url],) = await _ask(settings, url, crawl)
    return found


def seen(found: dict[str, Explanation]) -> dict[str, tuple[str, str, str]]:
    """As `EXPECTED`. While robots.txt of f.test is asked for again, that is what is waited for."""
    seen = {url: (answer.crawl, answer.state, answer.reason) for url, answer in found.items()}
    if seen["http://f.test/"] == ("c", "waiting", "robots"):
        seen["http://f.test/"] = ("c", "waiting", "robots_unreachable")
    return seen


async def fill(web: Site, settings: Settings, client: Client, workers: Processes) -> None:
    """Bring every URL into its state."""
    web.robots = "User-agent: *\nDisallow: /private\n"
    web.status |= {"/gone": 404, "/busy": 429, "/moved": 301}
    web.extra |= {"/busy": {"Retry-After": "600"}, "/moved": {"Location": "/ok"}}
    scope = Scope(mode="host", values=tuple(f"{name}.test" for name in HOSTS))
    async with crawls_of(settings) as define:
        await define("c", depth=1, scope=scope)
        await define("p", state="paused")
        await define("slow", delay=2.0, parallelism=1, robots=False)
        await define("x", state="paused")
        workers.start("frontier", "fetcher", "parser")
        await client.seed(url="http://b.test/busy", crawl="c")
        for url, (crawl, *_) in EXPECTED.items():
            if url not in ("http://a.test/never", "http://b.test/next", "http://g.test/page", "http://e.test/3"):
                await client.seed(url=url, crawl=crawl, depth=9 if url.endswith("deep") else 0)
        await client.seed(url="http://e.test/0", crawl="slow")
        await until(
            lambda: {"/ok", "/gone", "/moved", "/busy", "/0"} <= web.asked.keys(),
            lambda: f"{web.asked} {client.json('failures')}",
        )
        await define("x", state="ended", result="cancelled", ended=time.time_ns() // 1_000_000)
        await define("slow", delay=3600.0)
        await asyncio.sleep(1.5)  # workers read definitions within half a second
        for number in (1, 2, 3):
            await client.seed(url=f"http://e.test/{number}", crawl="slow", priority=9 - number)
        await until(lambda: client.records("c") and client.records("slow"))
        workers.running["parser"].terminate()
        await until(lambda: workers.running.pop("parser").wait(20) is not None)
        await client.seed(url="http://b.test/next", crawl="c")
        await client.seed(url="http://g.test/page", crawl="c")
        await until(lambda: "/page" in web.asked)


async def test_many_urls_in_many_states_with_the_worker_up_and_down(
    web: Site, settings: Settings, tmp_path: Path
) -> None:
    async with connected(settings) as client:
        with processes(settings, tmp_path) as workers:
            await fill(web, settings, client, workers)
            up = await ask(settings)
            for _ in range(40):  # what is on its way arrives
                if seen(up) == EXPECTED:
                    break
                up = await ask(settings)
            workers.check()
        assert seen(up) == EXPECTED
        assert {answer.witness for answer in up.values()} == {"worker"}
        down = await ask(settings)
        assert seen(down) == DOWN
        assert {answer.witness for answer in down.values()} == {"state"}
        elsewhere = settings.worker.model_copy(update={"state": tmp_path / "elsewhere"})
        log = await ask(settings.model_copy(update={"worker": elsewhere}))
        assert seen(log) == DOWN
        assert {answer.witness for answer in log.values()} == {"changelog"}
    slow = "http://e.test/3"
    assert (up[slow].before, down[slow].before, log[slow].before) == (2, 2, None)
    for answers in (up, down, log):
        assert answers["http://b.test/busy"].attempt == 1
        assert answers["http://a.test/gone"].status == 404
        assert answers["http://g.test/page"].page is not None
        print("\n\n".join(map(in_words, answers.values())))
