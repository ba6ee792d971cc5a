"""The oracle itself: it answers as nginx does, reads links as the standard says, and its comparison finds faults."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from pathlib import Path

import pytest

from tests.sites import asserts, nginx, walk
from tests.sites.walk import Expected

PATHS = [
    "/", "/index.html", "/a%20b.html", "/%61%20b.html", "/caf%C3%A9.html", "/folder", "/folder/",
    "/folder?x=1", "/empty", "/empty/", "/folder/.", "/folder/..", "/folder/../index.html", "//index.html",
    "/folder//page.XHTML", "/folder/page.XHTML", "/link.html", "/gone.html", "/index.html/", "/index.html/x",
    "/missing.html", "/missing/", "/noext", "/.hidden", "/.html", "/index.html?q=1", "/a%00b", "/50%",
    "/%.html", "/index.html?q=%", "/" + "x" * 300,
    "/folder%2Fpage.XHTML", "/picture.svg", "/folder/%2e%2e/picture.svg", "/..", "/folder/../../x",
]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    for name in ("index.html", "a b.html", "café.html", "folder/index.html", "folder/page.XHTML", "noext", ".hidden"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("<p>text", encoding="utf-8")
    (root / ".html").write_text("", encoding="utf-8")
    (root / "picture.svg").write_text("<svg/>", encoding="utf-8")
    (root / "empty").mkdir()
    (root / "link.html").symlink_to("folder/index.html")
    (root / "gone.html").symlink_to("nowhere")
    return root


def ask(port: int, path: str) -> tuple[int, str, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        kind = response.getheader("Content-Type", "") if response.status == 200 else ""
        return response.status, kind, response.getheader("Location") or ""


def test_it_answers_as_nginx_does(site: Path, tmp_path: Path) -> None:
    differences = {}
    with nginx.serve({"a.test": site}, tmp_path) as web:
        for path in PATHS:
            theirs = ask(web.port, path)
            answer = walk.respond(site, path)
            if theirs != (answer.status, answer.content_type, answer.location):
                differences[path] = (theirs, answer)
    assert not differences


PAGE = """<!doctype html><base href="/b/"><base href="/c/"><title>x</title>
<link rel="NEXT" href=next><link rel="alternate stylesheet" href=no1><link rel=stylesheet href=no2>
<link rel="alternate" hreflang=de href=alt><link rel=canonical href=no3><meta http-equiv=refresh content="5; URL='ref'">
<a href=" one\n">1</a><a>none</a><a rel="x NoFollow" href=no4>2</a><area href=two><iframe src=three></iframe>
<img src=no5><script src=no6></script><a href="mailto:x">m</a><a href="http://elsewhere.test/">e</a>
<a href="http://site.invalid:8080/p">port</a><a href="https://site.invalid/s">tls</a><a href="one#x">again</a>
<!-- <a href=no7> --><noscript><a href=four></a></noscript><a href="?q">query</a><a href="">self</a>"""
FOUND = {"/b/next", "/b/alt", "/b/ref", "/b/one", "/b/two", "/b/three", "/b/four", "/b/?q", "/b/"}


@pytest.mark.parametrize("links", [walk.by_lxml, walk.by_html5lib])
def test_it_follows_what_is_to_be_followed(links: walk.Links) -> None:
    assert set(walk._targets("/x/page.html", PAGE.encode(), links, {})) == FOUND


def test_a_frameset_and_a_page_that_forbids() -> None:
    frames = b"<frameset><frame src=left.html><frame src=/right.html></frameset>"
    assert walk._targets("/x/", frames, walk.by_lxml, {}) == ["/x/left.html", "/right.html"]
    forbidden = b"<meta name=Robots content='noindex, NOFOLLOW'><a href=x>"
    assert walk._targets("/x/", forbidden, walk.by_lxml, {}) == []
    assert walk._targets("/x/", b"", walk.by_lxml, {}) == []


def test_it_walks_a_site(tmp_path: Path) -> None:
    pages = {"index.html": "<a href=d><a href=gone><a href=p.svg><a href=empty/>", "d/index.html": "<a href=../>"}
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "p.svg").write_text("<svg/>", encoding="utf-8")
    (tmp_path / "empty").mkdir()

    found = walk.walk(tmp_path, "/index.html", walk.by_lxml)

    assert found.html == {"/index.html", "/", "/d/"}
    assert found.other == {"/p.svg"}
    assert found.dead == {"/gone": 404, "/empty/": 403}
    assert found.redirects == {"/d": "/d/"}


ORIGIN = "http://h.test"
EXPECTED = Expected(frozenset({"/a"}), frozenset({"/b.svg"}), {"/c": 404}, {"/d": "/d/"})


def lines(out: Path, *, pages: list[str], other: list[str], dead: list[str], status: int = 404) -> asserts.Output:
    records = [{"url": ORIGIN + url, "content_type": "text/html; charset=utf-8"} for url in pages]
    records += [{"url": ORIGIN + url, "content_type": "image/svg+xml"} for url in other]
    failures = [
        {
            "url": ORIGIN + url,
            "failure": "http_status",
            "evidence": {"status": status},
            "attempt": 1,
            "next": {"action": "none"},
        }
        for url in dead
    ]
    for name, entries in (("records.jsonl", records), ("failures.jsonl", failures)):
        (out / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return asserts.read(out)


def test_equal_sets_pass(tmp_path: Path) -> None:
    asserts.exact_sets(lines(tmp_path, pages=["/a"], other=["/b.svg"], dead=["/c"]), {ORIGIN: EXPECTED})


@pytest.mark.parametrize(
    ("pages", "other", "dead", "status", "says"),
    [
        ([], ["/b.svg"], ["/c"], 404, "HTML records: 1 of 1 missing"),
        (["/a", "/x"], ["/b.svg"], ["/c"], 404, "HTML records: 1 unexpected"),
        (["/a", "/a"], ["/b.svg"], ["/c"], 404, "HTML records: 1 twice"),
        (["/a"], [], ["/c"], 404, "other records: 1 of 1 missing"),
        (["/a"], ["/b.svg"], [], 404, "failures: 1 of 1 missing"),
        (["/a"], ["/b.svg"], ["/c", "/d"], 404, "failures: 1 unexpected"),
        (["/a"], ["/b.svg"], ["/c"], 500, "failure of http://h.test/c"),
    ],
)
def test_each_difference_is_named(
    tmp_path: Path, pages: list[str], other: list[str], dead: list[str], status: int, says: str
) -> None:
    output = lines(tmp_path, pages=pages, other=other, dead=dead, status=status)
    with pytest.raises(AssertionError, match=says):
        asserts.exact_sets(output, {ORIGIN: EXPECTED})


def request(uri: str, start: float = 0.0, host: str = "h.test") -> nginx.Request:
    return nginx.Request(start, start, host, uri, 200, "", 1)


def test_requests_are_counted() -> None:
    once = [request(uri) for uri in ("/robots.txt", "/a", "/b.svg", "/c", "/d")]
    asserts.requests_once(once, {"h.test": EXPECTED})
    asserts.requests_once([*once, request("/a")], {"h.test": EXPECTED}, repeats=1)
    with pytest.raises(AssertionError, match="1 repeated"):
        asserts.requests_once([*once, request("/a")], {"h.test": EXPECTED})
    with pytest.raises(AssertionError, match="1 unexpected"):
        asserts.requests_once([*once, request("/x")], {"h.test": EXPECTED})
    with pytest.raises(AssertionError, match="1 of 4 missing"):
        asserts.requests_once(once[:-1], {"h.test": EXPECTED})


def test_gaps_are_by_host() -> None:
    log = [request("/1", 1.0), request("/3", 2.5), request("/2", 1.75), request("/1", 1.1, "other.test")]
    assert asserts.gaps(log) == {"h.test": 0.75}
