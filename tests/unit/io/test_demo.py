"""The demonstration site: closed, without dead links, and with the things it is there to show."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import ada_url
import lxml.html
import pytest

from agents.io.demo import FORBIDDEN, HTML, DemoSite, answers
from streams.errors import EnvironmentFault


@pytest.fixture
def home() -> Iterator[str]:
    site = DemoSite()
    yield site.start()
    site.stop()


def test_every_link_leads_somewhere_and_every_page_is_linked() -> None:
    site = answers()
    seen, queue = {"/"}, ["/"]
    while queue:
        path = queue.pop()
        answer = site[path]
        targets = [answer.location] if answer.location else []
        if answer.content_type == HTML and answer.body:
            elements = lxml.html.document_fromstring(answer.body).iter("a", "link", "img")
            targets += [link for element in elements if (link := element.get("href") or element.get("src"))]
        for target in targets:
            url = ada_url.URL(target, base=f"http://site.invalid{path}")
            assert url.pathname in site, f"{path} links to {target}"
            if url.pathname not in seen:
                seen.add(url.pathname)
                queue.append(url.pathname)
    assert seen == set(site) - {"/robots.txt"}
    crawled = [path for path in seen if site[path].content_type == HTML and site[path].status == 200]
    assert DemoSite().pages == len([path for path in crawled if not path.startswith(FORBIDDEN)]) == 45


def test_it_is_the_same_every_time() -> None:
    assert answers() == answers()


def test_it_serves_pages_redirects_and_robots(home: str) -> None:
    with closing(HTTPConnection(urlsplit(home).netloc, timeout=5)) as connection:
        told = {}
        for path in ("/", "/old-glossary", "/robots.txt", "/nets/k%C3%BCste/mending.html", "/images/net.svg", "/none"):
            connection.request("GET", path)  # all over one connection
            response = connection.getresponse()
            response.read()
            told[path] = (response.status, response.getheader("Location"))
    assert told == {
        "/": (200, None),
        "/old-glossary": (301, "/glossary.html"),
        "/robots.txt": (200, None),
        "/nets/k%C3%BCste/mending.html": (200, None),
        "/images/net.svg": (200, None),
        "/none": (404, None),
    }


def test_robots_forbids_a_folder_that_exists_and_is_linked(home: str) -> None:
    with urllib.request.urlopen(f"{home}robots.txt", timeout=5) as response:
        assert f"Disallow: {FORBIDDEN}" in response.read().decode()
    assert f'href="{FORBIDDEN}"' in answers()["/"].body.decode()


def test_it_stops() -> None:
    site = DemoSite()
    url = site.start()
    site.stop()
    site.stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=5)
    assert "demo-site" not in {thread.name for thread in threading.enumerate() if thread.is_alive()}


async def test_it_comes_back_where_it_was_and_says_when_it_cannot() -> None:
    async with DemoSite() as site:
        port = urlsplit(site.url).port or 0
        with pytest.raises(EnvironmentFault, match=str(port)):
            DemoSite(port).start()
    async with DemoSite(port) as again:
        assert again.url == f"http://127.0.0.1:{port}/"
