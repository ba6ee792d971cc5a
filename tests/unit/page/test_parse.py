from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.page.parse import TITLE_LIMIT, Limits, ParsedPage, parse_page
from streams.page.text import cut
from streams.policy.urls import Joiner
from tests.unit.page.pages import page

LIMITS = Limits(text=1000, links=100)


def parse(body: bytes | str, *headers: tuple[str, str], kind: str = "text/html", limits: Limits = LIMITS) -> ParsedPage:
    data = body.encode() if isinstance(body, str) else body
    return parse_page(page("http://a.test/dir/p?q=1", *headers, kind=kind), data, Joiner, limits)


def links(body: str, *headers: tuple[str, str]) -> list[str]:
    return [link.removeprefix("http://a.test") for link in parse(body, *headers).links]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<a href=x>", ["/dir/x"]),
        ("<a rel=external href=x>", ["/dir/x"]),
        ("<A HREF=' /x\n'>", ["/x"]),
        ("<a>", []),
        ("<a href>", ["/dir/p?q=1"]),
        ("<a rel=x href>", ["/dir/p?q=1"]),
        ("<map><area href=x><area rel=nofollow href=y></map>", ["/dir/x"]),
        ("<iframe src=x></iframe>", ["/dir/x"]),
        ("<frameset><frame src=x><frame src></frameset>", ["/dir/x", "/dir/p?q=1"]),
        ("<svg><a xlink:href=x>y</a><a href=z>z</a></svg>", ["/dir/x", "/dir/z"]),
        ("<svg><a rel=x xlink:href=x></a></svg>", ["/dir/x"]),
        ("<svg><a xlink:href>y</a></svg>", ["/dir/p?q=1"]),
        ("<link rel=next href=x><link rel=stylesheet href=y><link href=z>", ["/dir/x"]),
        ("<p>body<link rel='prev nofollow' href=x><link rel=prev href=y>", ["/dir/y"]),
        ("<meta http-equiv=Refresh content='0;url=x'><meta http-equiv=refresh content=5>", ["/dir/x"]),
        ("<p>body<meta http-equiv=refresh content='0;url=x'>", ["/dir/x"]),
        ("<noscript><a href=x></a></noscript>", ["/dir/x"]),
        ("<template><a href=x></a></template>", []),
        ("<!-- <a href=x> --><script>'<a href=y>'</script>", []),
        ("<base href=/b/><a href=x>", ["/b/x"]),
        ("<base target=_top><a href=x><p><base href=/b/><base href=/c/>", ["/b/x"]),
        ("<base href><a href=x>", ["/dir/x"]),
        ("<base href=data:x><a href=x>", ["/dir/x"]),
        ("<img src=x><script src=y></script><form action=z></form><embed src=w>", []),
        ("<a href=javascript:x><a href=mailto:x@y.z><a href=http://[>", []),
        ("<a href=x#1><a href=x#2><a rel=x href=x>", ["/dir/x"]),
    ],
)
def test_links(body: str, expected: list[str]) -> None:
    assert links(body) == expected


def test_a_refresh_header_is_a_link() -> None:
    assert links("<p>", ("Refresh", "0; url=/t"), ("refresh", "9")) == ["/t"]


def test_nofollow_of_links_is_counted() -> None:
    parsed = parse('<a rel="NOFOLLOW x" href=1><a rel="x\tnofollow" href=2><a rel=nofollowed href=3>')
    assert parsed.links == ["http://a.test/dir/3"]
    assert parsed.dropped == {"nofollow:link": 2}


@pytest.mark.parametrize("name", ["robots", "ROBOTS", "fyke"])
def test_nofollow_of_the_page(name: str) -> None:
    parsed = parse(f"<meta name={name} content=nofollow><a href=1><a href=2><a href=2#>")
    assert parsed.links == []
    assert parsed.dropped == {"nofollow:page": 2}
    assert not parsed.noindex


def test_directives_for_others_and_in_headers() -> None:
    assert parse("<meta name=otherbot content=none><a href=1>").links
    parsed = parse("<a href=1>", ("X-Robots-Tag", "noindex"), ("x-robots-tag", "fyke: nofollow"))
    assert (parsed.links, parsed.noindex) == ([], True)


def test_more_links_than_are_looked_at_are_counted() -> None:
    parsed = parse("".join(f"<a href={n}>" for n in range(120)))
    assert len(parsed.links) == 100
    assert parsed.dropped == {"limit:links": 20}


@pytest.mark.parametrize(
    ("body", "title"),
    [
        ("<title> a\n\t b </title><title>c</title>", "a b"),
        ("<title>a&amp;b <i>x</i></title>", "a&b <i>x</i>"),
        ("<title>a\u00a0 b</title>", "a\u00a0 b"),
        ("<p><svg><g><title>drawing</title></g></svg><title>late</title>", "late"),
        ("<svg><title>drawing</title></svg>", ""),
        ("<title></title><title>b</title>", ""),
        ("<p>none", ""),
        (f"<title>{'x' * 5000}</title>", "x" * TITLE_LIMIT),
    ],
)
def test_title(body: str, title: str) -> None:
    assert parse(body).title == title


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<p>a</p><p>b\n  c</p>", "a b c"),
        ("<td>a</td>\n\n<td>b&nbsp; c</td>", "a b c"),
        ("<title>t</title><style>s</style>a<script>x</script>b<noscript>n</noscript><template>m</template>", "a b"),
        ("a<iframe>no frames</iframe>", "a"),
        ("<frameset><frame src=x></frameset>", ""),
        ("", ""),
        ("a\0b&#xD800;&#0;", "ab\ufffd\ufffd"),
    ],
)
def test_text(body: str, text: str) -> None:
    assert parse(body).text == text


def test_text_is_cut() -> None:
    assert parse("<p>" + "ab " * 1000).text == ("ab " * 334)[:1000].rstrip()
    assert cut("abc", 3) == "abc"


def test_invalid_utf_8_becomes_replacement_characters() -> None:
    parsed = parse(b"<title>\xe9\xff</title><a href='/\xe9'>caf\xe9", kind="text/html; charset=utf-8")
    assert parsed.title == "\ufffd\ufffd"
    assert parsed.text == "caf\ufffd"
    assert parsed.links == ["http://a.test/%EF%BF%BD"]
    assert parse(b"caf\xed\xa0\x80", kind="text/html; charset=utf-8").text == "caf\ufffd\ufffd\ufffd"


def test_other_encodings_are_transcoded() -> None:
    parsed = parse("<title>Привет</title><a href='/я?я'>мир".encode("cp1251"), kind="text/html;charset=cp1251")
    assert (parsed.title, parsed.text, parsed.charset) == ("Привет", "мир", "windows-1251")
    assert parsed.links == ["http://a.test/%D1%8F?%D1%8F"]


def test_xhtml_is_read_as_html() -> None:
    parsed = parse("<?xml version='1.0'?><html><body><a href='x'/></body></html>", kind="application/xhtml+xml")
    assert parsed.links == ["http://a.test/dir/x"]


def test_plain_text() -> None:
    parsed = parse(b"<a href=x> caf\xc3\xa9\n", kind="text/plain")
    assert (parsed.text, parsed.links, parsed.charset) == ("<a href=x> café\n", [], "utf-8")
    assert len(parse(b"x" * 5000, kind="text/plain").text) == 1000


def test_anything_else_has_no_text() -> None:
    parsed = parse(b"%PDF-1.4", kind="application/pdf")
    assert parsed == ParsedPage(content_type="application/pdf", content=parsed.content)
    assert parsed.content != parse(b"%PDF-1.5", kind="application/pdf").content


def test_content_is_equal_for_pages_that_read_the_same() -> None:
    first = parse("<title>t</title><p>some <b>words</b>")
    assert first.content == parse("<title> t</title><div class=x>some words<script>1</script></div>").content
    assert first.content != parse("<title>t</title><p>some other words").content
    assert first.content != parse("<title>t some</title><p>words").content
    assert len(first.content) == 16


@given(st.binary(max_size=300), st.sampled_from(["text/html", "text/html; charset=utf-16", "text/plain", ""]))
def test_any_bytes(body: bytes, kind: str) -> None:
    parsed = parse(body, kind=kind)
    (parsed.title + parsed.text).encode()
    assert all(link.startswith(("http://", "https://")) and "#" not in link and link.isascii() for link in parsed.links)


MARKUP = st.sampled_from(
    ["<a href=", "<base href=", "'", '"', ">", "</a>", "<svg>", "xlink:href=", "rel=nofollow ", "<meta ", "charset=gbk",
     "http-equiv=refresh ", "content=", "0;url=/x", "<title>", "<noscript>", "<template>", "<frameset>", " ", "é", "#",
     "?"]
)  # fmt: skip


@given(st.lists(MARKUP, max_size=30).map("".join))
def test_any_markup(body: str) -> None:
    parse(body)


# --- lists of URLs

MAP = "<urlset><url><loc>/x</loc><lastmod>1970-01-02</lastmod></url><url><loc>/y</loc></url><url/></urlset>"
INDEX = "<sitemapindex><sitemap><loc>/a.xml</loc><lastmod>1970-01-02</lastmod></sitemap></sitemapindex>"
FEED = "<rss><item><link>/x</link></item><item><link>/y</link></item><item><link>/x</link></item></rss>"
DAY = 24 * 3600 * 1000


def as_sitemap(body: str, *headers: tuple[str, str], kind: str = "text/html") -> ParsedPage:
    facts = msgspec.structs.replace(page("http://a.test/map.xml", *headers, kind=kind), source="sitemap")
    return parse_page(facts, body.encode(), Joiner, LIMITS)


def test_what_was_asked_for_as_a_sitemap_is_read_as_one() -> None:
    """Whatever its type, and whatever it asks for as a page: sites keep their sitemaps out of search engines so."""
    found = as_sitemap(MAP, ("X-Robots-Tag", "noindex, nofollow"))
    assert (found.links, found.sitemaps) == (["http://a.test/x", "http://a.test/y"], [])
    assert (found.lastmods, found.dropped) == ({"http://a.test/x": DAY}, {"sitemap:entry": 1})
    index = as_sitemap(INDEX, kind="text/plain")
    assert (index.links, index.sitemaps, index.lastmods) == ([], ["http://a.test/a.xml"], {"http://a.test/a.xml": DAY})
    assert as_sitemap("http://a.test/x", kind="text/plain").links == ["http://a.test/x"]
    assert len({found.content, index.content, b""}) == 3


@pytest.mark.parametrize("body", ["<a href=/x>", "{}", "", "<svg/>"])
def test_what_is_none_has_no_links(body: str) -> None:
    assert (as_sitemap(body).links, as_sitemap(body).dropped) == ([], {"sitemap:none": 1})


@pytest.mark.parametrize("kind", ["application/rss+xml", "application/xml", "text/html", "text/plain", ""])
def test_a_page_that_begins_like_a_list_is_read_as_one(kind: str) -> None:
    assert parse(FEED, kind=kind).links == ["http://a.test/x", "http://a.test/y"]
    assert parse(INDEX, kind=kind).links == ["http://a.test/a.xml"]
    assert not parse(INDEX, kind=kind).sitemaps


def test_a_page_of_urls_in_plain_text_is_none() -> None:
    assert not parse("http://a.test/x", kind="text/plain").links


def test_such_a_page_is_a_page_in_all_other_ways() -> None:
    kept_back = parse(FEED, ("X-Robots-Tag", "nofollow"))
    assert (kept_back.links, kept_back.dropped) == ([], {"nofollow:page": 2})
    assert parse(FEED, ("X-Robots-Tag", "noindex")).noindex
    assert not parse("<rss/>", ("X-Robots-Tag", "nofollow")).dropped
    few = parse(FEED, limits=Limits(text=1, links=1))
    assert (few.links, few.dropped) == (["http://a.test/x"], {"limit:links": 1})


@pytest.mark.parametrize("kind", ["text/html", "text/plain", "application/pdf"])
@pytest.mark.parametrize(
    ("header", "noindex"),
    [("noindex", True), ("none", True), ("nofollow", False), ("unavailable_after: 1969-12-31", True),
     ("unavailable_after: 2999-12-31", False), ("otherbot: noindex", False), ("fyke: noindex", True)],
)  # fmt: skip
def test_a_page_of_any_kind_may_ask_not_to_be_found(kind: str, header: str, noindex: bool) -> None:
    assert parse("x", ("X-Robots-Tag", header), kind=kind).noindex is noindex
