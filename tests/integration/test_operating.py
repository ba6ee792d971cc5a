"""Operators at work on a running service: hold, go on, cancel, forget, try again; each within its two seconds."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from agents.cli import control, failures
from streams.errors import UsageError
from streams.settings import Settings
from tests.integration.service import Client, Site, crawls_of, ends, running, until

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

EVERYTHING = failures.Asked("", "", "", final=False, resolved=True)
FINAL = failures.Asked("c", "", "", final=True, resolved=False)


def counts(client: Client, crawl: str) -> dict[str, int]:
    """A crawl's newest numbers, summed over the shards."""
    shards = {progress["shard"]: progress for progress in client.json("progress")}
    found = [progress.get("crawls", {}).get(crawl, {}) for progress in shards.values()]
    return {name: sum(one.get(name, 0) for one in found) for name in ("open", "done", "excluded", "failed")}


def pages(web: Site) -> int:
    return web.asked.total()


async def quiet(web: Site, seconds: float) -> bool:
    """Whether the site is asked for nothing for a while."""
    before, until_then = pages(web), time.monotonic() + seconds
    await until(lambda: time.monotonic() > until_then)
    return pages(web) == before


@pytest.mark.alone
async def test_a_crawl_is_held_goes_on_and_is_cancelled(web: Site, service: Settings, client: Client) -> None:
    web.links = {"/0": [f"/{n}" for n in range(1, 400)]}
    async with crawls_of(service) as define, running(service):
        await define("c", delay=0.05, parallelism=2)
        await client.seed(url=f"{web.url}/0", crawl="c")
        await until(lambda: pages(web) > 10)
        await control._change(service, "c", control._paused)
        held = time.monotonic() + 2
        await until(lambda: time.monotonic() > held)
        assert await quiet(web, 1.5), "it is fetched although it was paused two seconds ago"
        await control._change(service, "c", control._unpaused)
        before, began = pages(web), time.monotonic()
        await until(lambda: pages(web) > before)
        assert time.monotonic() - began < 2.5
        await control._change(service, "c", control._cancelled)
        await until(lambda: counts(client, "c")["open"] == 0)
        assert await quiet(web, 1.0)
        await until(lambda: sum(counts(client, "c").values()) == 400)
        with pytest.raises(UsageError, match="has ended: cancelled"):
            await control._change(service, "c", control._unpaused)
    shards = [p["crawls"]["c"] for p in client.json("progress") if "c" in p.get("crawls", {})]
    assert set(shards[-1]["exclusions"]) == {"cancelled"}
    assert len(client.records("c")) == counts(client, "c")["done"]


async def test_what_failed_is_tried_again_and_resolved(web: Site, service: Settings, client: Client) -> None:
    web.status = {f"/{n}": 404 for n in range(3)}
    async with crawls_of(service) as define, running(service):
        await define("c")
        for n in range(4):
            await client.seed(url=f"{web.url}/{n}", crawl="c")
        await until(lambda: len(client.failures("http_status")) == 3)
        found = await failures._list(service, FINAL, 100)
        assert sorted(one.url for one in found) == [f"{web.url}/{n}" for n in range(3)]
        web.status = {"/2": 500}
        await failures._redrive(service, FINAL, None, reopen=False, confirmed=True)
        await until(lambda: len(client.records("c")) == 3, "they are not fetched again")
        await until(lambda: len([f for f in client.failures("http_status") if f["next"]["action"] == "resolved"]) == 2)
        found = await failures._list(service, EVERYTHING, 100)
        assert {(one.url[-1], one.visit, one.next.action) for one in found} >= {
            ("0", 1, "resolved"),
            ("1", 1, "resolved"),
        }
        asked = web.asked
        await failures._redrive(service, FINAL, None, reopen=False, confirmed=True)
        assert {path: asked[path] for path in ("/0", "/1", "/3")} == {"/0": 2, "/1": 2, "/3": 1}


async def test_an_ended_crawl_is_redriven_only_when_it_is_opened_again(
    web: Site, service: Settings, client: Client
) -> None:
    web.status["/gone"] = 404
    async with crawls_of(service) as define, running(service):
        await define("c")
        await client.seed(url=f"{web.url}/gone", crawl="c")
        await until(lambda: client.failures("http_status"))
        await define("c", state="ended", result="exhausted", ended=time.time_ns() // 1_000_000, seal={0: 0})
        with pytest.raises(UsageError, match="--reopen"):
            await failures._redrive(service, FINAL, None, reopen=False, confirmed=True)
        del web.status["/gone"]
        await failures._redrive(service, FINAL, None, reopen=True, confirmed=True)
        await until(lambda: client.records("c"))
        await until(lambda: ends(client, "c") == ["exhausted"] * 2, "it does not end again")
    history = [(d.get("version", 1), d.get("state", "open")) for d in client.json("crawls") if d.get("id") == "c"]
    assert history == [(1, "open"), (2, "ended"), (3, "open"), (4, "sealed"), (5, "ended")]


async def test_what_is_forgotten_is_deleted_everywhere_and_kept_out(
    web: Site, service: Settings, client: Client
) -> None:
    web.links = {"/": ["/a/1", "/a/2", "/b/1"]}
    out = service.export.out
    assert out is not None
    async with crawls_of(service) as define, running(service, "frontier", "fetcher", "parser", "exporter"):
        await define("c")
        await client.seed(url=f"{web.url}/", crawl="c")
        await until(lambda: len(client.records("c")) == 4)
        await until(lambda: counts(client, "c")["done"] == 4)
        await control._forget(service, control._target(None, None, f"{web.url}/a/"), "c")
        await until(lambda: counts(client, "c")["done"] == 2)
        await until(lambda: (out / "deletions.jsonl").exists() and _lines(out / "deletions.jsonl") == 2)
        asked = web.asked
        await client.seed(url=f"{web.url}/a/1", crawl="c")
        await client.seed(url=f"{web.url}/c", crawl="c")
        await until(lambda: len(client.records("c")) == 5)
        assert web.asked["/a/1"] == asked["/a/1"] == 1
    gone = {f"{web.url}/a/{n}" for n in (1, 2)}
    for topic in ("records", "pages", "failures"):
        told = [(r.key.decode(), dict(r.headers)) for r in client.log[topic] if r.value is None]
        assert {url for url, _ in told} == gone
        assert all(headers["crawl"] == b"c" and headers["action"] == b"forget" for _, headers in told)
    lines = [json.loads(line) for line in (out / "deletions.jsonl").read_text().splitlines()]
    assert {line["url"] for line in lines} == gone
    assert not client.failures()


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")
