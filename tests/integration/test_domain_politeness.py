"""One delay for all hosts of a registrable domain, from seed to wire; and no change of that under live state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from agents.io.admin import Admin
from streams.errors import Exit
from streams.settings import Settings
from streams.topics import INBOX, URLS
from tests.integration.service import Client, Site, connected, crawls_of, ends, processes, running, until

pytestmark = [pytest.mark.alone, pytest.mark.broker, pytest.mark.timeout(300)]

HOSTS = ("www.site.test", "shop.site.test", "site.test", "www.other.test")
DELAY = 0.3


def by_domain(service: Settings, web: Site) -> Settings:
    """Settings under which these hosts lead to the site."""
    port = web.url.rpartition(":")[2]
    routes = tuple(f"{host}:80:127.0.0.1:{port}" for host in HOSTS)
    return service.model_copy(update={
        "frontier": service.frontier.model_copy(update={"politeness": "domain"}),
        "fetch": service.fetch.model_copy(update={"connect_to": routes}),
    })  # fmt: skip


def wire(client: Client) -> Iterator[dict[str, Any]]:
    """Every request that went out."""
    for message in client.json(INBOX.name):
        for item in message.get("items", ()):
            yield from item.get("requests", ())


async def test_hosts_of_a_domain_share_a_delay_and_a_shard(web: Site, service: Settings) -> None:
    settings = by_domain(service, web)
    web.links = {f"/{host}": [f"http://{host}/{page}" for page in range(3)] for host in HOSTS}
    async with (
        connected(settings) as client,
        crawls_of(settings) as define,
        Admin(settings.kafka.bootstrap, settings) as admin,
        running(settings),
    ):
        await define("c", delay=DELAY, parallelism=4, depth=1)
        for host in HOSTS:
            await client.seed(url=f"http://www.site.test/{host}", crawl="c")
        await define("c", state="sealed", seal=await admin.end_offsets(URLS.name))
        await until(lambda: ends(client, "c"), "the crawl does not end")
        shards = {record.partition for record in client.log[INBOX.name] if b"http://shop.site.test/" in record.value}
    requests = sorted(wire(client), key=lambda request: request["start"])
    asked = {(urlsplit(request["url"]).hostname, request["kind"]) for request in requests}
    assert asked == {(host, kind) for host in HOSTS for kind in ("page", "robots")}
    assert {request["host"] for request in requests} == {"site.test", "other.test"}
    assert len(shards) == 1
    starts = [request["start"] for request in requests if request["host"] == "site.test"]
    assert len(starts) == 3 + 4 + 9
    assert min(later - earlier for earlier, later in pairwise(starts)) >= DELAY * 1000


@pytest.mark.parametrize("stage", ["frontier", "fetcher", "parser", "exporter"])
async def test_no_worker_starts_with_another_key(
    service: Settings, client: Client, web: Site, tmp_path: Path, stage: str
) -> None:
    """The topics were made for hosts."""
    with processes(by_domain(service, web), tmp_path) as workers:
        workers.start(stage)
        assert await workers.ended(stage) == Exit.ENVIRONMENT
    said = workers.log(stage).read_text()
    assert "keeps politeness by host, settings say domain" in said
    assert "Set FYKE_FRONTIER_POLITENESS=host" in said
