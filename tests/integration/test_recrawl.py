"""Sitemaps and recrawls on a running service, as the server sees them."""

from __future__ import annotations

import gzip
from collections import Counter

import pytest

from agents.io.admin import Admin
from streams.definitions import LimitRule, Recrawl, Scope
from streams.settings import Settings
from streams.topics import CRAWLS, FAILURES, PROGRESS, URLS
from tests.integration.service import Client, Site, crawls_of, ends, running, until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


def total(client: Client, crawl: str, name: str) -> int:
    """One of a crawl's numbers, as all shards published it last."""
    shards = {progress["shard"]: progress.get("crawls", {}).get(crawl, {}) for progress in client.json(PROGRESS.name)}
    return sum(counts.get(name, 0) for counts in shards.values())


async def crawl(service: Settings, client: Client, *seeds: str, **fields: object) -> None:
    """Crawl from the seeds to the end."""
    async with crawls_of(service) as define, Admin(service.kafka.bootstrap, service) as admin, running(service):
        await define("c", **fields)
        for url in seeds:
            await client.seed(url=url, crawl="c")
        await define("c", state="sealed", seal=await admin.end_offsets(URLS.name))
        await until(lambda: ends(client, "c"), "the crawl does not end")


def urlset(*urls: str) -> str:
    return f"<urlset>{''.join(f'<url><loc>{url}</loc></url>' for url in urls)}</urlset>"


def index(*urls: str) -> str:
    return f"<sitemapindex>{''.join(f'<sitemap><loc>{url}</loc></sitemap>' for url in urls)}</sitemapindex>"


async def test_what_only_sitemaps_name_is_crawled(web: Site, service: Settings, client: Client) -> None:
    """An index that names itself, a packed list, a list as text on another host name, an error page, and a feed."""
    other = web.url.replace("127.0.0.1", "localhost")
    web.robots = f"User-agent: *\nDisallow: /private/\nSitemap: {web.url}/index.xml\nSitemap: {other}/map.txt\n"
    web.files = {
        "/index.xml": index(f"{web.url}/index.xml", f"{web.url}/map.xml.gz", f"{web.url}/error"),
        "/map.xml.gz": gzip.compress(urlset(f"{web.url}/a", "/b", f"{web.url}/private/c", f"{other}/out").encode()),
        "/map.txt": f"{web.url}/c\n{other}/out\n",
        "/feed.rss": f"<rss><item><link>{web.url}/d</link></item></rss>",
    }
    web.links = {"/": ["/feed.rss"], "/error": ["/never"]}
    scope = Scope(mode="host", values=(web.url.removeprefix("http://"),))
    await crawl(service, client, f"{web.url}/", scope=scope, limit=6)
    pages = ["/", "/a", "/b", "/c", "/d", "/feed.rss"]
    assert client.urls("c") == sorted(web.url + path for path in pages)
    lists = ["/index.xml", "/map.xml.gz", "/map.txt", "/error"]
    assert web.asked == dict.fromkeys([*pages, *lists], 1)
    assert (total(client, "c", "done"), total(client, "c", "sitemaps")) == (6, 4)
    assert {record["url"]: (record["depth"], record["parent"]) for record in client.records("c")} == {
        f"{web.url}/": (0, ""), f"{web.url}/feed.rss": (1, f"{web.url}/"), f"{web.url}/d": (2, f"{web.url}/feed.rss"),
        f"{web.url}/a": (1, f"{web.url}/map.xml.gz"), f"{web.url}/b": (1, f"{web.url}/map.xml.gz"),
        f"{web.url}/c": (1, f"{other}/map.txt"),
    }  # fmt: skip
    assert not client.log[FAILURES.name]


async def test_without_sitemaps_none_is_asked_for(web: Site, service: Settings, client: Client) -> None:
    """That they were above is the doing of the definition."""
    web.robots = f"Sitemap: {web.url}/map.xml\n"
    web.files = {"/map.xml": urlset(f"{web.url}/a")}
    await crawl(service, client, f"{web.url}/", sitemaps=False)
    assert web.asked == {"/": 1}


async def test_pages_come_back_by_conditional_requests_and_changes_make_records(
    web: Site, service: Settings, client: Client
) -> None:
    """Three rounds: one page stays as it is, one changes once, one is gone in the second round."""
    web.links = {"/": ["/same", "/new", "/gone"]}
    web.etags = {"/": '"0"', "/same": '"1"', "/new": '"1"', "/gone": '"1"'}
    answer = web.answer

    def changing(path: str) -> tuple[int, str, bytes]:
        visit = web.asked[path]
        if path == "/new":
            web.etags[path] = '"1"' if visit == 1 else '"2"'
        if path == "/gone":
            return (503 if visit == 2 else 200), "text/html", b"<title>gone</title>"
        status, kind, body = answer(path)
        return status, kind, body + web.etags[path].encode()

    web.answer = changing  # type: ignore[method-assign]  # the site of this test alone
    recrawl = Recrawl(interval=2.0, rounds=3)
    await crawl(service, client, f"{web.url}/", recrawl=recrawl, robots=False, attempts=1)
    assert web.asked == dict.fromkeys(["/", "/same", "/new", "/gone"], 3)
    sent = {path: [headers.get("if-none-match") for asked, headers in web.requests if asked == path]
            for path in ("/same", "/new", "/gone")}  # fmt: skip
    assert sent == {"/same": [None, '"1"', '"1"'], "/new": [None, '"1"', '"2"'], "/gone": [None, '"1"', '"1"']}
    visits = Counter((record["url"].removeprefix(web.url), record["visit"]) for record in client.records("c"))
    assert visits == Counter([("/", 1), ("/same", 1), ("/new", 1), ("/new", 2), ("/gone", 1)])
    assert [(failure["url"], failure["visit"]) for failure in client.failures("http_status")
            if failure["next"]["action"] == "none"] == [(f"{web.url}/gone", 2)]  # fmt: skip
    assert (total(client, "c", "due"), total(client, "c", "done")) == (0, 4)
    assert len(ends(client, "c")) == 1
    assert client.json(CRAWLS.name)[-1]["result"] == "exhausted"


async def test_a_sitemap_brings_back_what_it_says_was_changed(web: Site, service: Settings, client: Client) -> None:
    """Pages come back once a day; the sitemap by its own rule each second."""
    web.robots = f"Sitemap: {web.url}/map.xml\n"
    entry = "<url><loc>{}</loc><lastmod>{}</lastmod></url>"
    web.files = {"/map.xml": f"<urlset>{entry.format('/a', '2026-01-01')}{entry.format('/b', '2026-01-01')}</urlset>"}
    async with crawls_of(service) as define, running(service):
        await define(
            "c",
            recrawl=Recrawl(interval=86_400.0, shortest=1.0),
            limits=(LimitRule(id="maps", path="/map.xml", recrawl=1.0),),
        )
        await client.seed(url=f"{web.url}/", crawl="c")
        await until(lambda: web.asked["/a"] and web.asked["/b"] and web.asked["/map.xml"] >= 2)
        web.files["/map.xml"] = str(web.files["/map.xml"]).replace("2026-01-01", "2026-02-02", 1)
        await until(lambda: web.asked["/a"] == 2, "the changed page does not come back")
        again = web.asked["/map.xml"]
        await until(lambda: web.asked["/map.xml"] >= again + 2)
    assert (web.asked["/"], web.asked["/a"], web.asked["/b"]) == (1, 2, 1)
    assert Counter(record["url"] for record in client.records("c"))[f"{web.url}/a"] == 2
