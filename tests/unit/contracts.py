"""One full and one minimal message of every public kind, whose bytes are kept in `golden/`.

`python -m tests.unit.contracts` writes the files anew, after a deliberate change of contract: the diff is the change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from streams import codecs
from streams import messages as m
from streams.deaths import Death
from streams.definitions import CrawlDefinition, Keys, LimitRule, Recrawl, Scope, ScopeRule, Traps
from streams.history import HostHistory, PastFailure

GOLDEN = Path(__file__).parent / "golden"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
KEY = bytes(range(16))
META: Any = {"job": 7, "tags": ["ä", None, 1.5]}
HEADERS = {"Accept-Language": "de"}
WHERE: dict[str, Any] = {"url": "https://example.org/a?b=%7e", "crawl": "news"}
FETCHED: dict[str, Any] = {"fingerprint": KEY, "visit": 2, "traceparent": TRACE}

ROBOTS = m.RobotsRules(
    origin="https://example.org", version="v1", fetched=1, expires=2, access="allow_all", crawl_delay=1.5,
    rules=((False, "/private/"), (True, "/")), sitemaps=("https://example.org/sitemap.xml",),
)  # fmt: skip
REQUEST = m.WireRequest(
    kind="retry", host="example.org", url=WHERE["url"], start=1, end=2, status=200, fetcher="f-1", address="192.0.2.1",
    delay=0.5, parallelism=2,
)  # fmt: skip

PATTERN = {"domain": "*.example.org", "path": "/*?print", "regex": "print"}

FULL: dict[str, Any] = {
    "seed": m.Seed(**WHERE, priority=9, depth=1, refetch=True, headers=HEADERS, meta=META, traceparent=TRACE),
    "page": m.PageHeaders(
        **WHERE, **FETCHED, attempt=1, shard=3, status=200, headers=[("Content-Type", "text/html"), ("ETag", '"x"')],
        start=1, first_byte=2, end=3, address="192.0.2.1", robots="v1", rules=4, truncated="length", depth=1,
        priority=9, parent="https://example.org/", source="sitemap", meta=META,
    ),
    "record": m.Record(
        **WHERE, visit=2, status=200, content_type="text/html", title="Ä", text="words", depth=1,
        links=["https://example.org/c"], link_count=2, parent="https://example.org/", fetched_at=3, meta=META,
        truncated="time", noindex=True, traceparent=TRACE,
    ),
    "failure": m.Failure(
        **WHERE, visit=2, attempt=1, failure="http_status", reason="503", evidence={"status": 503, "server": "x"},
        next=m.Next(action="retry", at=9), at=3, meta=META, traceparent=TRACE,
        history=HostHistory(
            host="example.org", breaker="half_open", failures=1, probes=2, since=3, until=4,
            recent=(PastFailure(2, "http_status", 500), PastFailure(3, "http_status", 503)),
        ),
    ),
    "crawl": CrawlDefinition(
        id="news", version=3, state="ended", endless=True, scope=Scope(mode="host", values=("example.org",)), depth=2,
        scope_rules=(ScopeRule(id="no-print", allow=True, **PATTERN),), limit=100, max_size=10, host_limit=11,
        host_size=12, deadline=9, duration=13.0, seen_ttl=60.0, delay=1.5, parallelism=4, concurrency=14,
        limits=(LimitRule(
            id="slow", **PATTERN, delay=3.0, random_delay=0.5, parallelism=1, robots=False, user_agent="y/1",
            headers=HEADERS, timeout=9.0, max_body=99, accept=("text/*",), recrawl=60.0,
            windows=("Mon-Fri 22:00-06:00 Europe/Berlin",),
        ),),
        adaptive_delay=True, robots=False, sitemaps=False, user_agent="x/1", max_body=1000, attempts=3, max_redirects=5,
        keys=Keys(
            tracking=True, sessions=True, drop=("x",), sort_query=True, strip_www=True, strip_user=True,
            merge_slashes=True, unescape=True,
        ),
        recrawl=Recrawl(interval=60.0, adaptive=True, shortest=30.0, longest=90.0, rounds=2),
        traps=Traps(repeats=5, depth=6, length=7, parameters=8, years=9, novelty=10), seal={0: 7}, created=1, ended=2,
        result="limit", by="somebody@example",
    ),
    "progress": m.Progress(
        shard=3, epoch=1, position=2, at=3, owner="http://192.0.2.1:9090",
        crawls={"news": m.CrawlCounts(
            open=1, activity=2, released=3, fetched=4, done=5, failed=6, excluded=7, duplicates=8, redirected=9,
            hosts=10, due=11, size=12, sitemaps=13, kept=14, failures={"timeout": 6}, exclusions={"robots": 7},
        )},
    ),
    "order": m.FetchOrder(
        **WHERE, **FETCHED, kind="robots", host="example.org", shard=3, epoch=1, attempt=1, depth=1, priority=9,
        parent="https://example.org/", via=("http://example.org/a",), headers=HEADERS, meta=META, delay=0.5,
        parallelism=2, not_before=5, rules=4, robots="v1", user_agent="x/1", max_body=1000, etag='"x"',
        last_modified="Thu, 01 Jan 1970 00:00:00 GMT", released=6,
        random_delay=0.5, timeout=9.0, accept=("text/*",), rule="slow", source="sitemap",
        basis=m.Basis(others={"olds": 3}, crawl_delay=1.5, learned=2.5),
    ),
    "candidates": m.Candidates(items=(
        m.Candidate(
            **WHERE, fingerprint=KEY, depth=1, priority=9, parent="https://example.org/", via=("http://example.org/a",),
            refetch=True, headers=HEADERS, meta=META, origin=m.Origin("urls", 1, 2, 3), traceparent=TRACE,
            source="sitemap", lastmod=5,
        ),
    )),
    "links": m.Links(
        crawl="news", urls=[WHERE["url"]], fingerprints=KEY,
        parents=[m.LinkParent(url="https://example.org/", depth=1, count=1, priority=9, traceparent=TRACE)],
        lastmods=[5],
    ),
    "outcomes": m.Outcomes(items=(
        m.FetchOutcome(
            **WHERE, **FETCHED, kind="robots", attempt=1, epoch=1, result="failed", status=503, failure="http_status",
            reason="503", evidence={"server": "x"}, location="https://example.org/c", retry_after=1.5, gap=2.5,
            page=(1, 2), etag='"x"', last_modified="Thu, 01 Jan 1970 00:00:00 GMT", elapsed=0.25, size=9, rules=4,
            robots="v1", robots_rules=ROBOTS, requests=(REQUEST,),
        ),
        m.ParseOutcome(
            crawl="news", **FETCHED, depth=1, page=(1, 2), failure="parser", reason="x", content=KEY, links=3,
            dropped={"scope:host": 2}, url=WHERE["url"],
        ),
    )),
    "command": m.Command(
        **WHERE, action="redrive", fingerprint=KEY, visit=2, host="example.org", prefix="https://example.org/a/",
        rules=4,
    ),
    "robots_hop": m.RobotsHop(**WHERE, origin="http://example.org", hop=1, attempt=2),
    "death": Death(stage="fetcher", at=3, url=WHERE["url"], partition=1, end=5, tries=2),
}  # fmt: skip
"""Every field differs from its default, so that a new field has to be added here."""

MINIMAL: dict[str, Any] = {
    "seed": m.Seed(url=WHERE["url"]),
    "page": m.PageHeaders(**WHERE, fingerprint=KEY, visit=1, shard=0, status=200, headers=[], start=1, first_byte=2,
                          end=3),
    "record": m.Record(**WHERE, visit=1, status=200, content_type="", title="", text="", links=[], link_count=0,
                       depth=0, parent="", fetched_at=3),
    "failure": m.Failure(url="", crawl="", visit=0, attempt=0, failure="unreadable", reason="empty message",
                         evidence={"topic": "urls", "partition": 0, "offset": 1, "bytes": ""},
                         next=m.Next(action="none"), at=3),
    "crawl": CrawlDefinition(id="news"),
    "progress": m.Progress(shard=0, epoch=1, position=0, at=3),
    "order": m.FetchOrder(**WHERE, fingerprint=KEY, host="example.org", shard=0, epoch=1, visit=1, attempt=0),
    "candidates": m.Candidates(items=(m.Candidate(**WHERE, fingerprint=KEY),)),
    "links": m.Links(crawl="news", urls=[], fingerprints=b"", parents=[]),
    "outcomes": m.Outcomes(items=()),
    "command": m.Command(**WHERE, action="redrive", fingerprint=KEY, visit=2),
    "robots_hop": m.RobotsHop(**WHERE, origin="http://example.org", hop=1, attempt=0),
    "death": Death(stage="parser", at=3),
}  # fmt: skip


def write(name: str, message: Any) -> bytes:
    """A message as this release writes it; of a page its Kafka headers, as JSON."""
    if name == "page":
        headers = codecs.encode_page_headers(message)
        return json.dumps([[key, value.decode()] for key, value in headers], indent=1, ensure_ascii=False).encode()
    return codecs.encode(message)


def read(name: str, data: bytes) -> Any:
    """A message as this release reads it."""
    if name == "page":
        return codecs.decode_page_headers([(key, value.encode()) for key, value in json.loads(data)])
    if name == "seed":
        (seed,) = codecs.decode_seeds(data)
        return seed
    if name in ("candidates", "links", "outcomes", "command", "robots_hop"):
        return codecs.decode_inbox(data)
    return codecs.decode(codecs.PUBLIC[name], data)


def plain(message: Any) -> Any:
    """A message as JSON values, for its JSON Schema."""
    return msgspec.json.decode(codecs.encode(message))


def files() -> dict[Path, bytes]:
    """Every golden file with what this release would write into it."""
    out = {}
    for kind, messages in (("full", FULL), ("minimal", MINIMAL)):
        for name, message in messages.items():
            out[GOLDEN / f"{name}.{kind}.json"] = write(name, message) + b"\n"
    for name in codecs.PUBLIC:
        out[GOLDEN / "schemas" / f"{name}.json"] = json.dumps(codecs.json_schema(name), indent=1).encode() + b"\n"
    return out


if __name__ == "__main__":
    for path, data in files().items():
        path.write_bytes(data)
