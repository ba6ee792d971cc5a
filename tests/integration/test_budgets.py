"""Budgets on a running service and a real site: each stops a crawl within its promise, and `fyke why` names it."""

from __future__ import annotations

import time

import pytest

from agents.cli.why import _ask
from agents.io.admin import Admin
from streams.settings import Settings
from streams.topics import URLS
from tests.integration.service import Client, Site, crawls_of, ends, running, service_settings, until
from tests.kafka import TestBroker

pytestmark = [pytest.mark.alone, pytest.mark.broker, pytest.mark.timeout(300)]

PAGES = [f"/p/{n}.html" for n in range(30)]
MISSING = PAGES[::3]
BODY = f"<title>page</title><p>{'word ' * 200}"
SIZE = len(BODY)
AT_A_TIME = 2
"""Orders of a crawl that may be out: budgets of bytes are exceeded by their pages."""
HOSTS = {
    "pages": ["a.test"], "host-pages": ["b.test", "c.test"], "bytes": ["d.test"], "host-bytes": ["e.test", "f.test"],
    "time": ["g.test"],
}  # fmt: skip
"""Crawls and their hosts: each has its own, so no crawl's delay is another one's."""
RULES = {"pages": "limit", "host-pages": "limit:host", "bytes": "size", "host-bytes": "size:host", "time": "deadline"}
RESULTS = {"pages": "limit", "host-pages": "exhausted", "bytes": "size", "host-bytes": "exhausted", "time": "deadline"}


@pytest.fixture
def service(broker: TestBroker, web: Site) -> Settings:
    """Workers that reach the site under all its names."""
    port = web.url.rpartition(":")[2]
    ways = [f"{host}:80:127.0.0.1:{port}" for hosts in HOSTS.values() for host in hosts]
    plain = service_settings(broker.settings.worker.state, broker.bootstrap, broker.prefix)
    return plain.model_copy(update={"fetch": plain.fetch.model_copy(update={"connect_to": tuple(ways)})})


def pages_of(client: Client, crawl: str, host: str) -> list[str]:
    """Paths of a host's pages that a crawl has; each is there once."""
    root = f"http://{host}"
    paths = [url.removeprefix(root) for url in client.urls(crawl) if url.startswith(f"{root}/")]
    assert len(paths) == len(set(paths))
    return paths


async def left_out(service: Settings, client: Client, crawl: str, host: str) -> set[tuple[str, str]]:
    """State and reason, by `fyke why`, of a linked page that a crawl does not have."""
    path = min({*PAGES} - {*MISSING} - {*pages_of(client, crawl, host)})
    return {(found.state, found.reason) for found in await _ask(service, f"http://{host}{path}", crawl)}


async def test_each_budget_stops_its_crawl_and_is_named(web: Site, service: Settings, client: Client) -> None:
    """Of the pages every third is missing: failures use up no place, and no bytes."""
    web.links = {"/": PAGES}
    web.files = dict.fromkeys(PAGES, BODY)
    for path in MISSING:
        del web.files[path]
        web.status[path] = 404
    size, root = 5 * SIZE, len(web.answer("/")[2])
    budgets: dict[str, dict[str, float]] = {
        "pages": {"limit": 5}, "host-pages": {"host_limit": 4}, "bytes": {"max_size": size},
        "host-bytes": {"host_size": size}, "time": {"delay": 0.5},
    }  # fmt: skip
    async with crawls_of(service) as define, Admin(service.kafka.bootstrap, service) as admin, running(service):
        for crawl, hosts in HOSTS.items():
            await define(crawl, concurrency=AT_A_TIME, **budgets[crawl])
            for host in hosts:
                await client.seed(url=f"http://{host}/", crawl=crawl)
        seal = await admin.end_offsets(URLS.name)
        await until(lambda: client.records("time"), "nothing is crawled")
        deadline = int(time.time() * 1000) + 3000
        await define("time", deadline=deadline)
        for crawl in HOSTS:
            await define(crawl, state="sealed", seal=seal)
        await until(lambda: all(ends(client, crawl) for crawl in HOSTS), "the crawls do not end")
        said = {crawl: [await left_out(service, client, crawl, host) for host in HOSTS[crawl]] for crawl in HOSTS}

    assert {crawl: ends(client, crawl) for crawl in HOSTS} == {crawl: [result] for crawl, result in RESULTS.items()}
    assert said == {crawl: [{("excluded", rule)}] * len(HOSTS[crawl]) for crawl, rule in RULES.items()}
    found = {host: pages_of(client, crawl, host) for crawl, hosts in HOSTS.items() for host in hosts}
    assert not {path for paths in found.values() for path in paths} & {*MISSING}
    assert [len(found[host]) for host in ("a.test", "b.test", "c.test")] == [5, 4, 4]
    for host in ("d.test", "e.test", "f.test"):
        spent = root + SIZE * (len(found[host]) - 1)
        assert size <= spent < size + AT_A_TIME * SIZE, host
    times = [record["fetched_at"] for record in client.records("time")]
    assert deadline - 2000 < max(times) < deadline + 2000  # busy to the end, and not for longer
    assert len(times) < len(PAGES) - len(MISSING)
