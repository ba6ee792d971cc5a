"""The corpus `pages` (trafilatura's set) as a web of its real hosts, and what a crawl of it must find.

Each page stands under its own URL, with `https:` made `http:` (nobody has these hosts' certificates) and without its
meta robots; behind `<body>` it leads to 30 generated pages of its host. Everything else is 404.
"""

from __future__ import annotations

import json
import re
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from streams.definitions import CrawlDefinition, Scope
from streams.messages import PageHeaders
from streams.page.parse import Limits, parse_page
from streams.policy import urls
from streams.policy.bounds import Bounds
from tests.suites import corpus

GENERATED = 30
BODY = re.compile(rb"<body[^>]*>", re.IGNORECASE)
META_ROBOTS = re.compile(rb"<meta[^>]*\bname\s*=\s*[\"']?(?:robots|fyke)\b[^>]*>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PageWeb:
    """`files`: by host and path with query, where on disk; `links`: URLs its pages lead to, in scope and no traps."""

    files: dict[str, dict[str, str]]
    seeds: list[str]
    links: set[str]

    @property
    def pages(self) -> set[str]:
        """URLs that answer with a page."""
        return {f"http://{host}{path}" for host, paths in self.files.items() for path in paths}


def page_web(folder: Path, hosts: int, most: int = 1 << 20) -> PageWeb:
    """The first `hosts` hosts of the corpus with at most `most` links to themselves; their pages go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    common = _write_generated(folder)
    files: dict[str, dict[str, str]] = {}
    links: dict[str, set[str]] = {}
    for url, content in _corpus():
        host, path = urls.hostname(url), urls.path_query(url)
        if host not in files and len(files) == hosts:
            break
        body = _with_links(META_ROBOTS.sub(b"", content.replace(b"https://", b"http://")), host)
        found = set(_links(url, body))
        if sum(urls.hostname(link) == host for link in found) > most:
            continue
        file = folder / f"{len(links)}-{host}.html"
        file.write_bytes(body)
        files.setdefault(host, dict(common))[path] = str(file)
        links[url] = found
    bounds = Bounds(CrawlDefinition(id="c", scope=Scope(mode="host", values=tuple(files))))
    now = int(time.time() * 1000)
    met = {link for found in links.values() for link in found}
    return PageWeb(files, list(links), {url for url in met if not bounds.scope(url) and not bounds.trap(url, now)})


def generated(number: int) -> str:
    """Path of a generated page."""
    return f"/generated/{number}.html"


def _corpus() -> Iterator[tuple[str, bytes]]:
    """Every page with its URL, in the order of the archive."""
    manifest = json.loads(corpus("pages/trafilatura.manifest.json").read_text(encoding="utf-8"))
    places: dict[str, list[str]] = {}
    for page in manifest["pages"]:
        url = urls.parse(re.sub(r"^https?:", "http:", page["url"] or ""))
        if url is not None:
            places.setdefault(page["file"], []).append(url)
    with tarfile.open(corpus("pages/trafilatura.tar.xz")) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.name in places else None
            if content is not None:
                body = content.read()
                yield from ((url, body) for url in places[member.name])


def _with_links(body: bytes, host: str) -> bytes:
    links = "".join(f'<a href="http://{host}{generated(n)}">{n}</a>' for n in range(GENERATED)).encode()
    # Behind each of them: the first may stand in a script or a comment.
    return BODY.sub(lambda found: found[0] + links, body) if BODY.search(body) else links + body


def _write_generated(folder: Path) -> dict[str, str]:
    files = {}
    for number in range(GENERATED):
        file = folder / f"generated-{number}.html"
        file.write_text(f"<!doctype html><title>{number}</title><a href='{generated(number)}'>itself</a>")
        files[generated(number)] = str(file)
    return files


def _links(url: str, body: bytes) -> list[str]:
    """What a page leads to, read by the product's parser in this process: nothing crashes here."""
    page = PageHeaders(
        crawl="c", url=url, fingerprint=b"", visit=1, shard=0, status=200, headers=[("Content-Type", "text/html")],
        start=0, first_byte=0, end=0,
    )  # fmt: skip
    return parse_page(page, body, urls.Joiner, Limits(text=1, links=1 << 20)).links
