"""Workers that run as a service: seeds come from plain Kafka clients, records and failures are read by plain ones."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from agents.io.admin import Admin
from streams.settings import Settings
from streams.topics import FAILURES, PAGES, URLS
from tests.integration.service import (
    Client,
    Site,
    crawls_of,
    ends,
    processes,
    running,
    until,
)

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def page_headers(client: Client, url: str) -> dict[str, bytes]:
    (page,) = [record for record in client.log[PAGES.name] if record.key == url.encode()]
    return dict(page.headers)


async def test_bare_urls_become_records(web: Site, service: Settings, client: Client, tmp_path) -> None:
    """Each stage a process of its own; nothing is defined, so the seeds belong to the crawl `default` of depth 0."""
    web.links["/a"] = ["/child"]
    with processes(service, tmp_path) as workers:
        workers.start("frontier", "fetcher", "parser")
        await client.produce("urls", f"{web.url}/a".encode())
        await client.produce("urls", f"  {web.url}/b#part\n".encode())
        await until(lambda: len(client.records()) == 2)
        workers.check()
    assert client.urls() == [f"{web.url}/a", f"{web.url}/b"]
    first = next(record for record in client.records() if record["url"].endswith("/a"))
    assert first["links"] == [f"{web.url}/child"]
    assert (first["crawl"], first["visit"], first["status"], first["depth"], first["title"]) == (
        "default", 1, 200, 0, "/a",
    )  # fmt: skip
    assert web.asked == {"/a": 1, "/b": 1}
    assert not client.log[FAILURES.name]


async def test_what_a_seed_says_reaches_site_page_record_and_failure(
    web: Site, service: Settings, client: Client
) -> None:
    meta = {"job": 7, "tags": ["ä", None]}
    web.status["/gone"] = 404
    web.links["/full"] = ["/linked"]
    async with crawls_of(service) as define, running(service):
        await define("c", depth=1)
        await client.seed(url=f"{web.url}/full", crawl="c", meta=meta, headers={"X-Job": "7"}, traceparent=TRACE)
        await client.seed(url=f"{web.url}/gone", crawl="c", meta=meta, traceparent=TRACE, unknown_field=1)
        await client.produce("urls", f"{web.url}/traced".encode(), headers=[("traceparent", TRACE.encode())])
        await until(lambda: len(client.records("c")) == 2 and client.failures("http_status") and client.records())
    record = next(record for record in client.records("c") if record["url"].endswith("/full"))
    linked = next(record for record in client.records("c") if record["url"].endswith("/linked"))
    assert (record["meta"], linked["meta"]) == (meta, None)
    assert msgspec.json.decode(page_headers(client, f"{web.url}/full")["meta"]) == meta
    assert "meta" not in page_headers(client, f"{web.url}/linked")
    (failure,) = client.failures("http_status")
    assert (failure["url"], failure["meta"], failure["evidence"]["status"]) == (f"{web.url}/gone", meta, 404)
    assert web.headers("/full")["x-job"] == "7"
    assert "x-job" not in web.headers("/linked")
    assert "traceparent" not in web.headers("/full")
    traced = client.records()[0]
    for found in (record["traceparent"], traced["traceparent"], failure["traceparent"]):
        assert found[:36] == TRACE[:36]
        assert found[-3:] == TRACE[-3:]
    assert page_headers(client, f"{web.url}/full")["traceparent"].decode() == record["traceparent"]
    assert linked["traceparent"][:36] != TRACE[:36]
    assert len(linked["traceparent"]) == len(TRACE)


async def test_a_refetch_is_a_visit_of_its_own(web: Site, service: Settings, client: Client) -> None:
    again = TRACE.replace("0af7", "1bf8")
    async with crawls_of(service) as define, running(service):
        await define("default", delay=0.0)
        await client.seed(url=f"{web.url}/a", meta=1, traceparent=TRACE, headers={"X-Job": "1"})
        await until(client.records)
        await client.seed(url=f"{web.url}/a", meta=2)  # visited a moment ago
        await client.seed(url=f"{web.url}/a", meta=3, traceparent=again, refetch=True)
        await until(lambda: len(client.records()) == 2)
    records = sorted(client.records(), key=lambda record: record["visit"])
    assert [(record["visit"], record["meta"], record["traceparent"][:36]) for record in records] == [
        (1, 1, TRACE[:36]), (2, 3, again[:36]),
    ]  # fmt: skip
    assert "x-job" not in web.headers("/a")


async def test_priority_decides_who_is_first(web: Site, service: Settings, client: Client) -> None:
    async with crawls_of(service) as define:
        await define("c", delay=0.05, parallelism=1, state="paused")
        for priority in (0, 9, 5):
            await client.seed(url=f"{web.url}/{priority}", crawl="c", priority=priority)
        async with running(service):
            await until(lambda: _open(client, "c") == 3)
            await define("c", state="open")
            await until(lambda: len(client.records("c")) == 3)
    assert [path for path, _ in web.requests if path != "/robots.txt"] == ["/9", "/5", "/0"]


def _open(client: Client, crawl: str) -> int:
    shards = {progress["shard"]: progress for progress in client.json("progress")}
    return sum(progress.get("crawls", {}).get(crawl, {}).get("open", 0) for progress in shards.values())


async def test_of_an_array_only_the_bad_elements_fail(web: Site, service: Settings, client: Client) -> None:
    seeds: list[Any] = [{"url": f"{web.url}/1"}, {"url": f"{web.url}/x", "priority": "high"}, f"{web.url}/2",
                        {"url": "ftp://h/", "crawl": "c", "meta": [1]}, 7]  # fmt: skip
    async with crawls_of(service) as define, running(service, "frontier", "fetcher", "parser", "exporter"):
        await define("default", delay=0.0)
        await define("c")
        at = await client.produce("urls", msgspec.json.encode(seeds))
        await until(lambda: len(client.records()) == 2 and len(client.failures()) == 3)
        out = service.export.out
        assert out is not None
        await until(lambda: (out / "failures.jsonl").read_bytes().count(b"\n") == 3, "not all are exported")
    assert client.urls() == [f"{web.url}/1", f"{web.url}/2"]
    evidence = [failure["evidence"] for failure in client.failures()]
    assert [(e["topic"], e["partition"], e["offset"], e["index"]) for e in evidence] == [
        ("urls", *at, 1), ("urls", *at, 3), ("urls", *at, 4),
    ]  # fmt: skip
    assert [msgspec.json.decode(msgspec.json.decode(f'"{e["bytes"]}"', type=bytes)) for e in evidence] == [
        seeds[1], seeds[3], seeds[4],
    ]  # fmt: skip
    other = client.failures()[1]
    assert (other["url"], other["crawl"], other["meta"]) == ("ftp://h/", "c", [1])
    assert "not an http or https URL" in other["reason"]


async def test_a_seed_of_an_unknown_crawl_says_what_to_do(web: Site, service: Settings, client: Client) -> None:
    async with crawls_of(service) as define, running(service):
        await client.seed(url=f"{web.url}/a", crawl="later", meta={"job": 1}, traceparent=TRACE)
        await until(client.failures)
        await define("later")
        await client.seed(url=f"{web.url}/a", crawl="later")
        await until(lambda: client.records("later"), "a crawl defined a moment ago is not known")
    (failure,) = client.failures()
    assert failure["reason"] == "no crawl is called later: publish its definition first"
    assert (failure["url"], failure["crawl"], failure["meta"]) == (f"{web.url}/a", "later", {"job": 1})
    assert failure["traceparent"] == TRACE
    assert web.asked == {"/a": 1}


async def test_two_sealed_crawls_end_separately_and_exactly(web: Site, service: Settings, client: Client) -> None:
    """The same site, twice at once: each crawl has its own rows, and each end its own time."""
    tree = {f"/{n}": [f"/{2 * n}", f"/{2 * n + 1}"] for n in range(1, 32)}
    web.links = {path: links if int(path[1:]) < 16 else [] for path, links in tree.items()}
    web.status["/31"] = 404
    async with crawls_of(service) as define, Admin(service.kafka.bootstrap, service) as admin, running(service):
        await define("small", depth=2)
        await define("whole")
        for crawl in ("small", "whole"):
            await client.seed(url=f"{web.url}/1", crawl=crawl)
        seal = await admin.end_offsets(URLS.name)
        await asyncio.gather(*(define(crawl, state="sealed", seal=seal) for crawl in ("small", "whole")))
        await until(lambda: ends(client, "small") and ends(client, "whole"), "the crawls do not end")
        at_the_end = {crawl: client.urls(crawl) for crawl in ("small", "whole")}
        await client.seed(url=f"{web.url}/late", crawl="small")
        await client.seed(url=f"{web.url}/late", crawl="default")
        await until(client.records)
    assert {crawl: ends(client, crawl) for crawl in ("small", "whole")} == {
        "small": ["exhausted"],
        "whole": ["exhausted"],
    }
    assert at_the_end == {crawl: client.urls(crawl) for crawl in ("small", "whole")}
    assert client.urls("small") == sorted(f"{web.url}/{n}" for n in range(1, 8))
    assert client.urls("whole") == sorted(f"{web.url}/{n}" for n in range(1, 31))
    assert [(f["crawl"], f["url"]) for f in client.json(FAILURES.name)] == [("whole", f"{web.url}/31")]
    assert web.asked["/late"] == 1
