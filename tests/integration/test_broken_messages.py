"""A message that cannot be read costs itself: one `failures` record, on every topic, and the crawl around it goes on.

A newer internal schema is no broken message: it stops the worker, with its name, and nothing is skipped.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka.errors import MessageSizeTooLargeError

from agents.io.admin import Admin
from streams import codecs
from streams import messages as m
from streams.definitions import CrawlDefinition
from streams.policy import urls
from streams.settings import Settings
from streams.topics import CRAWLS, FAILURES, FETCHES, INBOX, PAGES, PROGRESS, RECORDS, URLS, Topic
from tests.integration.service import Client, Site, connected, crawls_of, ends, processes, running, until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

NOT_JSON = b"{nonsense"
NOT_UTF8 = b"\xff\xfe\xfd"
EVERYWHERE = (NOT_JSON, NOT_UTF8, b"{}", b"5", b"")

ORDER = {"crawl": "c", "url": "http://127.0.0.1:1/", "fingerprint": bytes(16), "host": "127.0.0.1", "shard": 0,
         "epoch": 0, "visit": 1, "attempt": 0}  # fmt: skip
PAGE = {"crawl": "c", "url": "http://127.0.0.1:1/", "fingerprint": bytes(16), "visit": 1, "shard": 0, "status": 200,
        "headers": [], "start": 1, "first_byte": 2, "end": 3}  # fmt: skip
RECORD = {"url": "http://127.0.0.1:1/", "crawl": "c", "visit": 1, "status": 200, "content_type": "text/html",
          "title": "", "text": "", "links": [], "link_count": 0, "depth": 0, "parent": "", "fetched_at": 1}  # fmt: skip


def order(**changes: Any) -> bytes:
    return codecs.encode(m.FetchOrder(**{**ORDER, **changes}))


def page(**changes: Any) -> list[tuple[str, bytes]]:
    return codecs.encode_page_headers(m.PageHeaders(**{**PAGE, **changes}))


def candidate(url: str, crawl: str = "c") -> m.Candidate:
    return m.Candidate(url=url, crawl=crawl, fingerprint=urls.fingerprint(crawl, urls.canonical(url)))


BROKEN: dict[Topic, Sequence[bytes | None]] = {
    URLS: (*EVERYWHERE, None, b'{"url": 5}', b'{"url": "http://h/", "schema": 2}', b'{"url": "mailto:a@b"}', b"text",
           b'{"url": "http://h/", "meta": "%s"}' % (b"x" * 4095), b'{"url": "http://h/", "crawl": "no such name"}',
           b'{"url": "http://h/", "headers": {"X": "a\\r\\nY: b"}}', b"http://h/" + b"x" * 70_000, b"[" * 900_000,
           b'{"url": "http://h/", "meta": %s}' % (b"[" * 40 + b"]" * 40)),
    INBOX: (*EVERYWHERE, None, b'{"type": "nobody"}', b'{"type": "links", "crawl": 5}', b'{"type": "candidates"}',
            codecs.encode(m.Links(crawl="c", urls=["http://h/"], fingerprints=b"short", parents=[])),
            codecs.encode(m.Candidates(items=(m.Candidate(url="http://h/", crawl="c", fingerprint=b"short"),)))),
    FETCHES: (*EVERYWHERE, None, b'{"crawl": 5}', order(shard=99), order(url="http://[")),
    RECORDS: (*EVERYWHERE, None, json.dumps(RECORD | {"crawl": "x", "links": "no list"}).encode()),
    CRAWLS: (*EVERYWHERE, b'{"id": 5}', codecs.encode(CrawlDefinition(id="somebody-else")),
             b'{"id": "broken", "parallelism": 0}'),
    PROGRESS: (*EVERYWHERE, b'{"shard": "0"}'),
}  # fmt: skip
BROKEN_PAGES: Sequence[list[tuple[str, bytes]]] = (
    [],
    [("schema", b"x")],
    [header for header in page() if header[0] != "end"],
    [*page(), ("visit", NOT_UTF8)],
    [*page(), ("headers", NOT_JSON)],
    [*page(), ("headers", b"5")],
    [*page(), ("fingerprint", b"zz")],
    [*page(), ("truncated", b"perhaps")],
    page(shard=99),
    page(fingerprint=b"short"),
)


async def break_everything(client: Client) -> dict[tuple[str, int, int], bytes]:
    """One message of every kind of broken into every topic but `failures`: their places and bytes."""
    places = {}
    for found, values in BROKEN.items():
        for n, value in enumerate(values):
            partition = 0 if found.single else n % 4
            place = await client.produce(found.name, value, key=b"broken", partition=partition)
            places[found.name, *place] = value or b""
    for n, headers in enumerate(BROKEN_PAGES):
        place = await client.produce(PAGES.name, b"a body", key=b"u", partition=n % 4, headers=headers)
        places[PAGES.name, *place] = b"a body"
    return places


async def test_every_broken_message_is_one_failure_and_the_crawl_goes_on(
    web: Site, service: Settings, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    web.links = {f"/{n}": [f"/{2 * n}", f"/{2 * n + 1}"] for n in range(1, 32)}
    stages = ("frontier", "fetcher", "parser", "exporter")
    async with (
        crawls_of(service) as define,
        Admin(service.kafka.bootstrap, service) as admin,
        running(service, *stages) as workers,
    ):
        await define("c")
        before = await break_everything(client)
        await client.seed(url=f"{web.url}/1", crawl="c")
        await until(lambda: len(client.records("c")) > 10 or workers.done())
        places = before | await break_everything(client)
        for n in range(20):
            await client.produce(FAILURES.name, NOT_JSON, partition=n % 4)
        await client.seed(url=f"{web.url}/last", crawl="c")
        await define("c", state="sealed", seal=await admin.end_offsets(URLS.name))
        await until(lambda: ends(client, "c") or workers.done(), "the crawl does not end")
        await until(
            lambda: set(_reported(client)) >= set(places) or workers.done(),
            lambda: f"missing {sorted(set(places) - set(_reported(client)))}",
        )
        await _caught_up(admin)
        await _exported(service, len(places))
    assert ends(client, "c") == ["exhausted"]
    assert client.urls("c") == sorted([f"{web.url}/{n}" for n in range(1, 64)] + [f"{web.url}/last"])
    assert sorted(_reported(client)) == sorted(places)
    for evidence in (failure["evidence"] for failure in client.failures()):
        sent = places[evidence["topic"], evidence["partition"], evidence["offset"]]
        assert base64.b64decode(evidence["bytes"]) == sent[: 64 * 1024]
    assert all(failure["reason"] and failure["next"] == {"action": "none"} for failure in client.failures())
    assert "failures-0@" in caplog.text


def _reported(client: Client) -> list[tuple[str, int, int]]:
    """The places that failures name."""
    found = [failure["evidence"] for failure in client.failures()]
    return [(evidence["topic"], evidence["partition"], evidence["offset"]) for evidence in found]


async def _caught_up(admin: Admin) -> None:
    """Every group has committed everything: nothing is stuck behind a broken message."""
    groups = {"frontier": (URLS, INBOX), "fetcher": (FETCHES,), "parser": (PAGES,), "exporter": (RECORDS, FAILURES)}
    for _ in range(200):
        lags = [sum((await admin.lag(group, t.name)).values()) for group, read in groups.items() for t in read]
        if not any(lags):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"a group does not catch up: {lags}")


async def _exported(service: Settings, count: int) -> None:
    out = service.export.out
    assert out is not None
    await until(lambda: (out / "failures.jsonl").read_bytes().count(b"\n") == count, "not all are exported")


async def test_a_broken_definition_is_reported_once_also_by_a_successor(
    web: Site, service: Settings, client: Client
) -> None:
    for n in range(3):
        await client.produce(CRAWLS.name, NOT_JSON, key=b"broken-%d" % n, partition=0)
        async with running(service, "frontier"):
            await until(partial(_count_is, client, n + 1))
            await asyncio.sleep(0.3)
    assert [failure["evidence"]["offset"] for failure in client.failures()] == [0, 1, 2]


def _count_is(client: Client, count: int) -> bool:
    return len(client.failures()) == count


async def test_large_messages(web: Site, service: Settings, client: Client) -> None:
    """What a topic does not take is refused to its producer; what it takes is read."""
    for topic in (URLS, FETCHES, FAILURES, PAGES):
        size = service.kafka.max_message if topic.large else 1 << 20
        with pytest.raises(MessageSizeTooLargeError):
            await client.produce(topic.name, bytes(size))
    seeds = [{"url": f"{web.url}/{n}", "meta": "x" * 4000} for n in range(240)]
    almost_all = b"<title>large</title>" + b"<p>word" * 1_700_000
    async with crawls_of(service) as define, running(service):
        await define("default", delay=0.0, parallelism=32)
        await define("c")
        await client.produce(URLS.name, msgspec.json.encode(seeds))
        await client.produce(PAGES.name, almost_all, key=b"k", headers=page(headers=[("Content-Type", "text/html")]))
        await until(lambda: len(client.records()) == 240 and client.records("c"))
    assert client.records("c")[0]["title"] == "large"
    assert not client.log[FAILURES.name]


async def test_a_newer_schema_stops_the_worker_and_loses_nothing(
    web: Site, service: Settings, client: Client, tmp_path: Path
) -> None:
    """A newer release wrote into each internal topic; its workers go on where those of this release stopped."""
    at = {name: f"{web.url}/{name}" for name in ("inbox", "pages", "records")} | {"fetches": f"{web.url}/before"}
    facts = {name: {"url": url, "fingerprint": candidate(url).fingerprint} for name, url in at.items()}
    newer: dict[str, tuple[bytes, list[tuple[str, bytes]]]] = {
        "inbox": (codecs.encode(m.Candidates(schema=2, items=(candidate(at["inbox"]),))), []),
        "fetches": (order(schema=2, **facts["fetches"]), []),
        "pages": (b"<title>x</title>", [*page(schema=2, **facts["pages"]), ("visit_of_tomorrow", b"1")]),
        "records": (json.dumps(RECORD | {"url": at["records"], "schema": 2}).encode(), []),
    }
    stages = {"frontier": "inbox", "fetcher": "fetches", "parser": "page", "exporter": "Record"}
    async with crawls_of(service) as define:
        await define("c", depth=0)
    await client.seed(url=f"{web.url}/before", crawl="c")
    for name, (value, headers) in newer.items():
        await client.produce(name, value, key=at[name].encode(), partition=0, headers=headers)
    await client.seed(url=f"{web.url}/after", crawl="c")
    with processes(service, tmp_path) as workers:
        workers.start(*stages)
        for stage in stages:
            assert await workers.ended(stage) not in (0, None)
            log = workers.log(stage).read_text()
            assert "has schema 2, this release reads up to 1" in log
            assert "upgrade this worker. Nothing was skipped." in log
        assert not client.log[FAILURES.name]
        workers.start(*stages, program="tests.integration.upgraded")
        expected = sorted([f"{web.url}/after", *at.values()])
        await until(lambda: len(_exported_urls(service)) == 5, lambda: f"exported are only {_exported_urls(service)}")
        assert sorted(_exported_urls(service)) == expected
        workers.check()
    assert not client.log[FAILURES.name]
    assert web.asked == {"/before": 1, "/after": 1, "/inbox": 1}


def _exported_urls(service: Settings) -> list[str]:
    path = (service.export.out or Path()) / "records.jsonl"
    return [json.loads(line)["url"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    ("topic", "value", "stages"),
    [
        (CRAWLS, codecs.encode(CrawlDefinition(id="new", schema=2)), ("frontier", "fetcher", "parser")),
        (PROGRESS, b'{"schema": 2, "shard": 0, "epoch": 0, "position": 0, "at": 0}', ("frontier",)),
    ],
    ids=["crawls", "progress"],
)
async def test_a_newer_broadcast_stops_running_workers(
    topic: Topic, value: bytes, stages: Sequence[str], web: Site, service: Settings, tmp_path: Path
) -> None:
    async with connected(service) as client:
        with processes(service, tmp_path) as workers:
            workers.start("frontier", "fetcher", "parser")
            await client.seed(url=f"{web.url}/before")
            await until(client.records)
            await client.produce(topic.name, value, key=b"new", partition=0)
            for stage in stages:
                assert await workers.ended(stage) not in (0, None)
                assert "has schema 2, this release reads up to 1" in workers.log(stage).read_text()
            await client.seed(url=f"{web.url}/after")
            workers.start(*stages, program="tests.integration.upgraded")
            # A worker that lost its partitions before its last commit sends a record again; the exporter drops it.
            expected = {f"{web.url}/before", f"{web.url}/after"}
            await until(lambda: {*client.urls()} == expected, lambda: f"there are only {client.urls()}")
            workers.check()
        assert not client.log[FAILURES.name]
