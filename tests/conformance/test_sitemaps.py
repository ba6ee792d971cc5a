"""Sitemaps and feeds with expected contents: corpora `sitemaps`, and the packed bomb of corpora `http`."""

from __future__ import annotations

import base64
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from streams.page import sitemap
from streams.page.sitemap import Entry, Listing
from streams.policy import urls
from tests.conformance import cases
from tests.servers.recipes import render

CASES = cases.data("sitemaps/expected.json")["cases"]
KNOWN = cases.by_reason({"JSON Feed is no XML and hardly used: not read": ["json-feed"]})
KINDS = {"invalid": "", "json-feed": "json-feed"}


def body_of(case: dict[str, Any]) -> bytes:
    if "file" in case:
        return cases.file(f"sitemaps/{case['file']}").read_bytes()
    if "body_base64" in case:
        return base64.b64decode(case["body_base64"])
    secret = cases.file("sitemaps/crawler-commons/sitemaps/do-not-visit.txt").as_uri()
    return case["body"].replace("{FILE_URL}", secret).encode()


def read(case: dict[str, Any]) -> Listing:
    return sitemap.read(body_of(case), "", partial(urls.parse, base=case["sitemap_url"]))


def ms(date: str | None) -> int:
    """Dates are compared as instants; a day is its first moment."""
    if date is None:
        return 0
    at = datetime.fromisoformat(date)
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def wire(url: str) -> str:
    return urls.parse(url) or url


@pytest.mark.parametrize("case", [cases.case(case["id"], case, known=KNOWN) for case in CASES])
def test_list(case: dict[str, Any]) -> None:
    """Where it is a matter of judgement the tolerant reading is ours: `lenient` if there is one, else `urls`."""
    found = read(case)
    assert found.kind == KINDS.get(case["kind"], case["kind"])
    if case["kind"] == "index":
        assert [entry.url for entry in found.sitemaps] == [wire(url) for url in case["sitemaps"]]
        assert not found.urls
    else:
        expected = case.get("lenient", case["urls"])
        assert [entry.url for entry in found.urls] == [wire(entry["loc"]) for entry in expected]
        assert [entry.lastmod for entry in found.urls] == [ms(entry.get("lastmod")) for entry in expected]
        assert len(found.urls) == case.get("count", len(found.urls))
    everything = {entry.url: entry for entry in (*found.urls, *found.sitemaps)}
    assert everything.keys().isdisjoint(case.get("must_not_contain", ()))
    assert all(not everything[url].lastmod for url in case.get("no_lastmod", ()))


@pytest.mark.parametrize("case", [case for case in CASES if case["kind"] not in ("invalid", "text", "json-feed")],
                         ids=lambda case: case["id"])  # fmt: skip
def test_a_list_is_known_by_its_first_bytes(case: dict[str, Any]) -> None:
    """Whatever Content-Type it has. A DOCTYPE may hide the root: such a document is a list only where one is due."""
    body = body_of(case)
    assert sitemap.is_list(body) is (b"<!DOCTYPE" not in body)


@pytest.mark.parametrize("case", [case for case in CASES if case["kind"] in ("invalid", "json-feed")],
                         ids=lambda case: case["id"])  # fmt: skip
def test_anything_else_is_none(case: dict[str, Any]) -> None:
    assert not sitemap.is_list(body_of(case))


def test_html_is_none() -> None:
    page = cases.file("sitemaps/lychee/home.html").read_bytes()
    assert not sitemap.is_list(page)
    assert sitemap.read(page, "", urls.parse) == Listing()


def test_a_packed_bomb_costs_little() -> None:
    """coding/bomb-gz-file: 194 KB that unpack to 200 MB."""
    (case,) = [case for case in cases.data("http/hostile.json")["cases"] if case["id"] == "coding/bomb-gz-file"]
    (bomb,) = [route["response"]["body"] for route in case["server"] if route["path"].endswith(".gz")]
    body = b"".join(render(bomb, {}))
    began = time.process_time()
    assert sitemap.read(body, "", urls.parse) == Listing(cut="length")
    assert time.process_time() - began < 5


def test_dates_of_an_index() -> None:
    (case,) = [case for case in CASES if case["id"] == "index-4"]
    assert read(case).sitemaps[:3] == [
        Entry("http://www.example.com/sitemap1.xml.gz", ms("2004-10-01T18:23:17Z")),
        Entry("http://www.example.com/sitemap2.xml.gz", ms("2005-01-01")),
        Entry("http://www.example.com/dynsitemap?date=now&all=true", ms("2004-10-01T18:23:17Z")),
    ]


def test_no_case_is_listed_in_vain() -> None:
    assert not cases.stale(KNOWN, (case["id"] for case in CASES))
