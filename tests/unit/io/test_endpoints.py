"""What Prometheus and an orchestrator see of a worker."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
import pytest

from agents.io.endpoints import advertised, ask_why, endpoints, skew_check
from streams.errors import EnvironmentFault, MessageError
from streams.metrics import Metrics


async def get(url: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text(), response.headers["Content-Type"]


async def test_metrics_are_prometheus_text() -> None:
    metrics = Metrics()
    metrics.streams.messages_in.labels("fetcher", "fetches").inc(3)
    async with endpoints("127.0.0.1", 0, metrics=metrics.text, live=(), ready=()) as url:
        status, text, kind = await get(f"{url}/metrics")
    assert status == 200
    assert 'fyke_messages_in_total{stage="fetcher",topic="fetches"} 3.0' in text
    assert kind.startswith("text/plain; version=")


async def test_health_and_readiness_name_their_reasons() -> None:
    state = {"ready": "rebalancing", "live": ""}
    checks: list[Callable[[], str]] = [lambda: state["ready"], lambda: ""]
    async with endpoints("127.0.0.1", 0, metrics=bytes, live=[lambda: state["live"]], ready=checks) as url:
        assert (await get(f"{url}/readyz"))[:2] == (503, "rebalancing\n")
        assert (await get(f"{url}/healthz"))[:2] == (200, "ok\n")
        state.update(ready="", live="no progress for 120 s")
        assert (await get(f"{url}/readyz"))[:2] == (200, "ok\n")
        assert (await get(f"{url}/healthz"))[:2] == (503, "no progress for 120 s\n")


@pytest.mark.parametrize(("skew", "off"), [(None, False), (1.9, False), (-1.9, False), (2.0, True), (-3.5, True)])
def test_a_skewed_clock_is_not_ready(skew: float | None, off: bool) -> None:
    assert bool(skew_check(lambda: skew)()) is off


async def test_a_taken_port_is_an_environment_fault() -> None:
    async with endpoints("127.0.0.1", 0, metrics=bytes, live=(), ready=()) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(EnvironmentFault, match="port taken"):
            async with endpoints("127.0.0.1", port, metrics=bytes, live=(), ready=()):
                pass


def why(crawl: str, url: str, epoch: int) -> bytes | None:
    if "://" not in url:
        raise MessageError("not an http or https URL")
    return f'{{"crawl": "{crawl}", "url": "{url}"}}'.encode() if epoch == 7 else None


async def test_why_is_answered_by_the_owner_of_the_shard() -> None:
    async with endpoints("127.0.0.1", 0, metrics=bytes, live=(), ready=(), why=why) as url:
        assert await ask_why(url, "c", "http://h/?a=1&b=%7e#x", 7) == b'{"crawl": "c", "url": "http://h/?a=1&b=%7e#x"}'
        assert await ask_why(url, "c", "http://h/", 6) is None
        assert await ask_why(url, "c", "h", 7) is None
        assert (await get(f"{url}/why?crawl=c&url=h&epoch=7"))[:2] == (400, "not an http or https URL\n")
        assert (await get(f"{url}/why?crawl=c&url=http://h/&epoch=x"))[:2] == (400, "give crawl, url and epoch\n")
        assert (await get(f"{url}/why?crawl=c&url=http://h/&epoch=6"))[0] == 404


async def test_a_worker_that_is_no_frontier_or_gone_says_nothing() -> None:
    async with endpoints("127.0.0.1", 0, metrics=bytes, live=(), ready=()) as url:
        assert await ask_why(url, "c", "http://h/", 7) is None
    assert await ask_why(url, "c", "http://h/", 7) is None
    assert await ask_why("", "c", "http://h/", 7) is None


async def test_who_listens_everywhere_names_an_address_that_others_reach() -> None:
    async with endpoints("0.0.0.0", 0, metrics=bytes, live=(), ready=()) as url:
        assert "0.0.0.0" not in url
        assert (await get(f"{url}/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", "http://0.0.0.0:9090"),
        ("10.1.2.3", "http://10.1.2.3:9090"),
        ("10.1.2.3:80", "http://10.1.2.3:80"),
        ("fyke-frontier-0.fyke", "http://fyke-frontier-0.fyke:9090"),
        ("2001:db8::9", "http://[2001:db8::9]:9090"),
        ("[2001:db8::9]", "http://[2001:db8::9]:9090"),
        ("[2001:db8::9]:80", "http://[2001:db8::9]:80"),
    ],
)
def test_where_others_reach_a_worker(name: str, expected: str) -> None:
    assert advertised("http://0.0.0.0:9090", name) == expected
