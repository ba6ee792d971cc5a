"""Lists of URLs, beyond what the conformance suite has: faults, limits and hostile documents."""

from __future__ import annotations

import gzip
import time
import zlib
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.page import sitemap, xml
from streams.page.sitemap import Entry, Listing
from streams.policy import urls

BASE = "http://h.test/dir/map.xml"
join = partial(urls.parse, base=BASE)
JANUARY = 1_767_225_600_000  # 2026-01-01


def read(body: str | bytes, declared: str = "") -> Listing:
    return sitemap.read(body.encode() if isinstance(body, str) else body, declared, join)


def urlset(content: str) -> str:
    return f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{content}</urlset>'


def locs(*paths: str) -> str:
    return urlset("".join(f"<url><loc>http://h.test/{path}</loc></url>" for path in paths))


def found(body: str | bytes) -> list[str]:
    return [entry.url.removeprefix("http://h.test/") for entry in read(body).urls]


@pytest.mark.parametrize(
    ("content", "paths"),
    [
        ("<url><loc>http://h.test/a</loc></url><url></url><url><loc></loc></url><url><loc> </loc></url>", ["a"]),
        ("<URL><LOC>http://h.test/a</LOC></URL>", ["a"]),
        ("<url><loc>\ufeffhttp://h.test/a\u200b</loc></url>", ["a"]),
        ("<url><loc>\n\u00a0http://h.test/a\u3000\n</loc></url>", ["a"]),
        ("<url><loc>http://h.test/a?b=1&c=2&amp;d=3&#38;e=4&#x26;f=5</loc></url>", ["a?b=1&c=2&d=3&e=4&f=5"]),
        ("<url><loc>http://h.test/caf&eacute;</loc></url>", ["caf%C3%A9"]),
        ("<url><loc>http://h.test/<![CDATA[a&amp;b]]>c</loc></url>", ["a&amp;bc"]),
        ("<url><loc>http://h.test/&unknown;</loc></url><url><loc>http://h.test/b</loc></url>", ["b"]),
        ("<url><loc>http://h.test/&#0;&#xD800;&#x110000;</loc></url><url><loc>http://h.test/b</loc></url>", ["b"]),
        ("<url><loc>ftp://h.test/a</loc></url><url><loc>mailto:a@b</loc></url>", []),
        ("<url><loc>../b</loc></url>", ["b"]),
        # faults, and what stands behind them
        ("<url><loc>http://h.test/a</url><url><loc>http://h.test/b</loc></url>", ["a", "b"]),
        ("<url><loc>http://h.test/a<lastmod>2026</lastmod></url><url><loc>http://h.test/b</loc></url>", ["a", "b"]),
        ("<url><loc>http://h.test/a</loc><url><loc>http://h.test/b</loc>", ["a", "b"]),
        ("</x></url><url><loc>http://h.test/a</loc></b></url></url>", ["a"]),
        ("<url><loc>http://h.test/a</loc></url>< & <<url><loc>http://h.test/b</loc></url>", ["a", "b"]),
        ("<url><loc>http://h.test/a</loc></url><!-- <url> --><?pi <url>?><url><loc>http://h.test/b</loc></url>",
         ["a", "b"]),
        ("<url><x a='>' b=\">\"/><loc>http://h.test/a</loc></url>", ["a"]),
        ("<url><x a=' ><loc>http://h.test/a</loc></url><url><loc>http://h.test/b</loc></url>", ["b"]),
        ("<url><loc>http://h.test/a<url><loc>http://h.test/b</loc><priority>1<url><loc>http://h.test/c</loc>",
         ["a", "b", "c"]),
        # only what stands directly in an entry is its own
        ("<url><loc>http://h.test/a</loc><image:image><image:loc>http://h.test/b</image:loc></image:image></url>",
         ["a"]),
        ("<loc>http://h.test/a</loc>", []),
        ("<url><news:news><loc>http://h.test/a</loc></news:news></url>", []),
    ],
)  # fmt: skip
def test_entries(content: str, paths: list[str]) -> None:
    assert found(urlset(content)) == paths


def test_a_date_belongs_to_its_entry() -> None:
    """It may stand before the location, and never counts for the next entry."""
    content = (
        "<url><lastmod>2026-01-01</lastmod><loc>http://h.test/a</loc></url><url><loc>http://h.test/b</loc></url>"
        "<url><loc>http://h.test/c</loc><lastmod>2026-01-02</lastmod></url><url><lastmod>2026</lastmod></url>"
        "<url><loc>http://h.test/d</loc><lastmod>soon</lastmod></url>"
    )
    listing = read(urlset(content))
    assert [entry.lastmod for entry in listing.urls] == [JANUARY, 0, JANUARY + 86_400_000, 0]
    assert listing.unusable == 1


@pytest.mark.parametrize("end", ["</loc", "</", "<"])
def test_a_url_that_was_whole_is_kept_where_the_document_is_cut(end: str) -> None:
    assert found(urlset("<url><loc>http://h.test/a</loc></url><url><loc>http://h.test/b")[: -len("</urlset>")] + end) \
        == ["a", "b"]  # fmt: skip


def test_a_url_that_may_be_cut_is_not() -> None:
    assert found("<urlset><url><loc>http://h.test/a</loc></url><url><loc>http://h.test/bcd") == ["a"]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("<rss><link>http://h.test/</link><item><link>http://h.test/a</link><guid>http://h.test/g</guid></item></rss>",
         ["a"]),
        ("<rss><channel><item><atom:link href='http://h.test/x'/><link>/a</link></item></channel></rss>", ["a"]),
        ("<rss><channel><item><guid isPermaLink='false'>tag:h.test,1</guid></item></channel></rss>", []),
        ("<rss><item><description><p><link>http://h.test/x</link></description><link>/a</link></item></rss>", ["a"]),
        ("<feed><link href='/'/><entry><link rel='self' href='/s'/><link href='a'/><link href='b'/></entry></feed>",
         ["dir/a"]),
        ("<feed><entry><link rel=alternate href=/a /></entry></feed>", ["a"]),
        ("<feed><entry><link href='/a'>b</link></entry></feed>", ["a"]),
        ("<feed><entry><content><link href='/x'/></content></entry></feed>", []),
        ("<atom:feed><atom:entry><atom:link href='/a?b&amp;c'/></atom:entry></atom:feed>", ["a?b&c"]),
    ],
)  # fmt: skip
def test_feeds(document: str, expected: list[str]) -> None:
    assert found(document) == expected


def test_the_newest_date_of_a_feeds_entry_counts() -> None:
    dates = "<published>2025-01-01T00:00:00Z</published><updated>2026</updated>"
    feed = f"<feed><entry><link href='/a'/>{dates}</entry></feed>"
    assert read(feed).urls == [Entry("http://h.test/a", JANUARY)]


@pytest.mark.parametrize(
    ("document", "kind", "number"),
    [
        ("http://h.test/a\r\nhttps://h.test/b\n\n \ufeffHTTP://h.test/c\t\n", "text", 3),
        ("\ufeffhttp://h.test/a", "text", 1),
        ("http://h.test/a and more\n/b\nc\nftp://d/", "", 0),
        ("", "", 0),
        ("{}", "", 0),
        ("<!DOCTYPE html><html><body><url><loc>http://h.test/a</loc></url></body></html>", "", 0),
        ("<html><urlset><url><loc>http://h.test/a</loc></url></urlset></html>", "", 0),
        ("<opml><body/></opml>", "", 0),
        ("<urlset/>", "urlset", 0),
        ("<sitemapindex></sitemapindex>", "index", 0),
        ("<x:sitemapindex xmlns:x='y'/>", "index", 0),
    ],
)
def test_kinds(document: str, kind: str, number: int) -> None:
    listing = read(document)
    assert (listing.kind, len(listing.urls)) == (kind, number)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1", "windows-1252"])
def test_encodings(encoding: str) -> None:
    document = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>{locs("é")}'
    assert found(document.encode(encoding)) == ["%C3%A9"]


def test_http_says_the_encoding_before_the_document_does() -> None:
    document = '<?xml version="1.0" encoding="utf-8"?>' + locs("é")
    assert [entry.url for entry in read(document.encode("iso-8859-1"), "iso-8859-1").urls] == ["http://h.test/%C3%A9"]


# --- packed


def test_packed_once_or_twice() -> None:
    packed = gzip.compress(locs("a").encode())
    assert found(packed) == found(gzip.compress(packed)) == ["a"]
    assert read(gzip.compress(gzip.compress(packed))) == Listing()


def test_damage_costs_what_is_behind_it() -> None:
    deflate = zlib.compressobj(wbits=31)
    packed = deflate.compress(locs("a", "b").encode()) + deflate.flush(zlib.Z_SYNC_FLUSH)
    listing = read(packed)
    assert (len(listing.urls), listing.cut) == (2, "decode")


def test_a_list_that_unpacks_too_far_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sitemap, "MAX_BYTES", 100)
    body = locs("a", "b", "c").encode()
    assert (found(body), read(body).cut) == (["a"], "length")
    assert (found(gzip.compress(body)), read(gzip.compress(body)).cut) == (["a"], "length")


def test_more_entries_than_the_protocol_allows_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sitemap, "MAX_ENTRIES", 2)
    assert (found(locs("a", "b", "c")), read(locs("a", "b", "c")).cut) == (["a", "b"], "entries")
    text = read("http://h.test/a\nhttp://h.test/b\nhttp://h.test/c")
    assert (len(text.urls), text.cut) == (2, "entries")
    assert read(urlset("<url/>" * 9)).unusable == 2


# --- hostile documents


def test_entities_are_not_expanded() -> None:
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    document = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY l0 "http://h.test/x">{laughs}]>' + urlset(
        "<url><loc>&l9;</loc></url><url><loc>http://h.test/a</loc></url>"
    )
    assert found(document) == ["a"]


def test_a_declaration_is_no_content() -> None:
    document = '<!DOCTYPE urlset [<!ENTITY e "<url><loc>http://h.test/x</loc></url>">]>' + locs("a")
    assert found(document) == ["a"]


LONG = 1 << 17


@pytest.mark.parametrize(
    "unit", ["<", "<a", "<a>", '<a "', "<!--", "<![CDATA[", "<?", "<!DOCTYPE [", "<!DOCTYPE '", "&a", "&#", "<url>",
             "<loc>", "<url><loc>", " a='", "</b>", "<!x", "<url><loc>h</url>"],
)  # fmt: skip
@pytest.mark.parametrize("before", ["", "<urlset>", "<urlset><url><loc>", "<feed><entry><link "])
def test_a_long_run_of_anything_takes_linear_time(before: str, unit: str) -> None:
    began = time.process_time()
    read(before + unit * (LONG // len(unit)) + ">")
    assert time.process_time() - began < 5


@given(st.lists(st.sampled_from(
    ["<", ">", "</", "/>", "urlset", "<url>", "</url>", "<loc>", "</loc>", "http://h.test/a", "&amp;", "&x;", "<!--",
     "-->", "<![CDATA[", "]]>", "<?", "?>", "<!DOCTYPE", "[", "]", "'", '"', "=", " ", "lastmod", "2026", "<rss>",
     "<item>", "<feed>", "<entry>", "<link href='a'/>", "\0", "\ufeff", "é"])).map("".join))  # fmt: skip
def test_nothing_raises(document: str) -> None:
    for start in ("", "<urlset>", "<rss><item>", "<feed><entry>"):
        for entry in read(start + document).urls:
            assert entry.url.startswith(("http://", "https://"))


@given(st.binary())
def test_no_bytes_raise(body: bytes) -> None:
    read(body)
    read(b"\x1f\x8b\x08" + body)
    sitemap.is_list(body)


def test_the_number_of_faults_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml, "MAX_FAULTS", 2)
    assert found(f"<urlset><<<{locs('a')}") == []
    monkeypatch.setattr(xml, "MAX_EVENTS", 5)
    assert found(locs("a", "b", "c")) == ["a"]


# --- known by its first bytes


@pytest.mark.parametrize(
    ("head", "known"),
    [
        ("<urlset>", True), ("<sitemapindex ", True), ("<rss version='2.0'>", True), ("<feed\n", True),
        ("<rdf:RDF xmlns", True), ("\ufeff \n<?xml version='1.0'?>\n<?x?><!-- a - b --><x:urlset>", True),
        ("<html>", False), ("<urlsets>", False), ("<!DOCTYPE html><rss>", False), ("x<rss>", False), ("", False),
        ("<!-- <rss> -->", False), ("http://h.test/a", False), ("<rss", False),
    ],
)  # fmt: skip
def test_what_begins_like_a_list(head: str, known: bool) -> None:
    assert sitemap.is_list(head.encode()) is known
    assert sitemap.is_list(gzip.compress(head.encode())) is known
