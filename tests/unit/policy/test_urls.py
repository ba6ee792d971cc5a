from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streams.policy import urls

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)  # lone surrogates and NULs too
PIECES = st.sampled_from([
    "http:", "HTTPS:", "ht\ttp:", "ftp:", "//", "/", "\\", "?", "#", ".", "..", "a", "b.html", "%2e", "%41", "%zz", "%",
    "@", ":", ":80", ":8443", "[::1]", "1.2.3.4", "example.org", "bücher", " ", "\t", "\n", "\r", "\0", "\x1f", ";x",
    "'", "\ud800", "\udc00", "q=1&r=2", "javascript:", "mailto:x", "data:,",
])  # fmt: skip
HREFS = st.lists(PIECES, max_size=6).map("".join) | ANY_TEXT
PAGES = st.sampled_from([
    "http://example.org/", "http://example.org/a/b.html", "http://example.org/a/c", "http://example.org/a/b/?x=/y/z", "https://u:p@h:8443/d/e?q",
    "https://[::1]/a/", "http://h/a//b", "http://1.2.3.4:81/x?",
])  # fmt: skip
WIRES = st.builds(urls.parse, HREFS, PAGES).filter(bool)
WHOLE_BASE = ["", "?", "http:", "http:?x", "hT\ttp:?x", "http:#x", "\x1f?x", " #x", "x #y", "x\t#y", "../x", "#"]
CALM = settings(deadline=None)


@pytest.mark.parametrize(
    ("url", "base", "wire"),
    [
        ("HTTP://Example.ORG:80/A/../b#frag", None, "http://example.org/b"),
        ("https://example.org", None, "https://example.org/"),
        ("https://example.org:443/?", None, "https://example.org/?"),
        ("../c?d", "http://h/a/b/x", "http://h/a/c?d"),
        ("", "http://h/a?b#c", "http://h/a?b"),
        ("#top", "http://h/a?b", "http://h/a?b"),
        ("//other/x", "https://h/", "https://other/x"),
        (" \n/x\ty ", "http://h/", "http://h/xy"),
        ("http://bücher.de/ä?ö", None, "http://xn--bcher-kva.de/%C3%A4?%C3%B6"),
        ("http://0x7f.1/", None, "http://127.0.0.1/"),
        ("http://h/\ud800", None, "http://h/%EF%BF%BD"),
        ("http://h/\ud83d\ude00", None, "http://h/%F0%9F%98%80"),
        ("x", "http://h/\udfff/", "http://h/%EF%BF%BD/x"),
        ("http://h/a\0b", None, "http://h/a%00b"),
        ("http://h\0/", None, None),
        ("\ud800", None, None),
        ("http://\ud800:x/", None, None),
        ("x", None, None),
        ("x", "mailto:a@b", None),
        ("mailto:a@b", "http://h/", None),
        ("javascript:void(0)", "http://h/", None),
        ("ftp://h/x", None, None),
        ("ws://h/", None, None),
        ("http://", None, None),
        ("http://h:99999/", None, None),
        ("", None, None),
    ],
)
def test_parse(url: str, base: str | None, wire: str | None) -> None:
    assert urls.parse(url, base) == wire


@CALM
@given(ANY_TEXT, ANY_TEXT | PAGES)
def test_parse_takes_anything(url: str, base: str) -> None:
    for wire in (urls.parse(url), urls.parse(url, base)):
        if wire is not None:
            assert wire.isascii()
            assert "#" not in wire
            assert urls.parse(wire) == wire


@pytest.mark.parametrize(
    ("wire", "key"),
    [
        ("http://h/%7euser/%41%2d%5F%2E", "http://h/~user/A-_."),
        ("http://h/a%2fb%c3%a9?x=%2b%20%30", "http://h/a%2Fb%C3%A9?x=%2B%200"),
        ("http://%75:%3a@h/", "http://u:%3A@h/"),
        ("http://h/?", "http://h/?"),
        ("http://h/index.html", "http://h/index.html"),
        ("http://h/?b=1&a=2&b=1", "http://h/?b=1&a=2&b=1"),
        ("http://h./", "http://h./"),
        ("http://h//a/", "http://h//a/"),
        ("http://h/100%", "http://h/100%"),
        ("http://h/%%34%31", "http://h/%%34%31"),  # decoding would make up %41
        ("http://h/%4%41", "http://h/%4%41"),
        ("http://h/%2541", "http://h/%2541"),
    ],
)
def test_canonical(wire: str, key: str) -> None:
    assert urls.canonical(wire) == key


@CALM
@given(WIRES)
@example("http://h/%%34%31")
def test_canonical_is_idempotent_and_a_wire_form(wire: str) -> None:
    key = urls.canonical(wire)
    assert urls.canonical(key) == key
    assert urls.parse(key) == key


@pytest.mark.parametrize(
    ("crawl", "key", "fingerprint"),
    [
        ("default", "https://example.org/", "8871470b4947d65c85bb0e4228536f01"),
        ("default", "http://example.org/", "0cfbfb199f3312d414fc718e247345e8"),
        ("news-2024", "https://example.org/", "1554c4fc1830cd42893b805ee1898d8d"),
        ("default", "https://example.org/a?b=%C3%A9", "8871470bb19b65b4737dfe41acd8348a"),
        ("", "", "0ad83173fff0e5a0cb8587292c8f32d9"),
        ("default", "\ud800", "f53b00ef8138aab1f5f3892771ba004a"),
    ],
)
def test_fingerprints_never_change(crawl: str, key: str, fingerprint: str) -> None:
    assert urls.fingerprint(crawl, key).hex() == fingerprint


@pytest.mark.parametrize(
    ("key", "alike"),
    [
        ("https://h/a?b=/c", True),
        ("https://h/", True),
        ("https://h:81/a", False),
        ("http://h/a", False),
        ("https://u@h/a", False),
        ("https://h.i/a", False),
        ("https://h", True),
    ],
)
def test_fingerprints_of_one_site_begin_alike(key: str, alike: bool) -> None:
    one, other = urls.fingerprint("c", "https://h/a"), urls.fingerprint("c", key)
    assert (one[:4] == other[:4]) is alike
    assert one[4:] != other[4:]
    assert urls.fingerprint("d", key)[:4] != other[:4]


def test_the_crawl_is_set_apart_from_the_key() -> None:
    assert urls.fingerprint("a", "b/c") != urls.fingerprint("a\0b", "/c") != urls.fingerprint("ab", "/c")


@pytest.mark.parametrize(
    ("url", "authority", "hostname", "origin", "path_query"),
    [
        ("http://example.org/", "example.org", "example.org", "http://example.org", "/"),
        ("https://h:8443/a?b/c?d", "h:8443", "h", "https://h:8443", "/a?b/c?d"),
        ("http://u:p%40@h:81//x", "h:81", "h", "http://h:81", "//x"),
        ("http://[::1]/", "[::1]", "[::1]", "http://[::1]", "/"),
        ("http://u@[::1]:8080/?q=@:/", "[::1]:8080", "[::1]", "http://[::1]:8080", "/?q=@:/"),
        ("http://h/?", "h", "h", "http://h", "/?"),
    ],
)
def test_parts(url: str, authority: str, hostname: str, origin: str, path_query: str) -> None:
    assert urls.authority(url) == authority
    assert urls.hostname(url) == hostname
    assert urls.origin(url) == origin
    assert urls.path_query(url) == path_query


@CALM
@given(ANY_TEXT)
def test_parts_take_anything(text: str) -> None:
    for part in (urls.authority, urls.hostname, urls.origin, urls.path_query, urls.canonical, urls.site):
        assert isinstance(part(text), str)


@CALM
@given(WIRES)
def test_parts_make_up_the_url(wire: str) -> None:
    assert urls.parse(urls.origin(wire) + urls.path_query(wire)) == urls.origin(wire) + urls.path_query(wire)
    assert urls.authority(wire).startswith(urls.hostname(wire))


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("www.example.org", "example.org"), ("a.b.example.co.uk", "example.co.uk"), ("example.co.uk", "example.co.uk"),
        ("WWW.Example.ORG.", "example.org"), ("co.uk", None), ("localhost", None), ("user.github.io", "user.github.io"),
        ("www.user.github.io", "user.github.io"), ("a.unlisted-tld", "a.unlisted-tld"), ("127.0.0.1", None),
        ("[::1]", None), ("", None), ("xn--85x722f.xn--55qx5d.cn", "xn--85x722f.xn--55qx5d.cn"),
    ],
)  # fmt: skip
def test_registrable_domain(host: str, domain: str | None) -> None:
    assert urls.registrable_domain(host) == domain
    assert urls.site(host) == (domain or host)


@pytest.mark.parametrize(
    ("url", "host", "domain"),
    [
        ("https://www.example.org:8443/x", "www.example.org", "example.org"),
        ("http://example.org./", "example.org", "example.org"),
        ("http://127.0.0.1:8080/", "127.0.0.1", "127.0.0.1"),
        ("http://u@[::1]:8080/", "[::1]", "[::1]"),
        ("http://co.uk/", "co.uk", "co.uk"),
        ("http://localhost./", "localhost", "localhost"),
    ],
)
def test_politeness_key(url: str, host: str, domain: str) -> None:
    assert urls.politeness_key(url, "host") == host
    assert urls.politeness_key(url, "domain") == domain


def plain(page: str, base_href: str | None, href: str) -> str | None:
    """What HTML §2.4.3 and the URL standard say, without any cache."""
    base = page
    if base_href is not None:
        resolved = urls.parse(base_href, page)
        scheme = base_href.strip("".join(map(chr, range(33)))).replace("\t", "").replace("\n", "").replace("\r", "")
        if resolved is not None:
            base = resolved
        elif urls._serialise(base_href, page) and not scheme.lower().startswith(("data:", "javascript:")):
            base = base_href
    return urls.parse(href, base)


@settings(deadline=None, max_examples=250)
@given(st.lists(st.tuples(PAGES, st.none() | HREFS, st.lists(HREFS, max_size=8)), max_size=4), st.integers(1, 30))
@example([(page, None, WHOLE_BASE) for page in ("http://h/a/1", "http://h/a/2?y")], 30)
def test_joining_with_a_cache_changes_nothing(visits: list[tuple[str, str | None, list[str]]], capacity: int) -> None:
    cache = urls.JoinCache(capacity)
    for page, base_href, hrefs in visits + visits:
        joiner = urls.Joiner(page, base_href, cache)
        for href in hrefs:
            assert joiner.join(href) == plain(page, base_href, href)


@pytest.mark.parametrize(
    ("base_href", "href", "url"),
    [
        (None, "x.html", "http://h/a/x.html"),
        ("/c/d", "x.html", "http://h/c/x.html"),
        ("", "?x", "http://h/a/b?x"),
        ("http://:80/", "x.html", "http://h/a/x.html"),
        ("data:text/html,x", "x.html", "http://h/a/x.html"),
        (" JavaScript:x", "x.html", "http://h/a/x.html"),
        ("ftp://f/", "x.html", None),
        ("ftp://f/", "http://h/x", "http://h/x"),
        ("ftp://f/", "#x", None),
        ("about:blank", "x.html", None),
        (None, "x" * 2000, "http://h/a/" + "x" * 2000),
    ],
)
def test_the_base_of_a_page(base_href: str | None, href: str, url: str | None) -> None:
    assert urls.Joiner("http://h/a/b?c", base_href).join(href) == url


def test_a_long_folder_is_not_remembered() -> None:
    cache = urls.JoinCache()
    page = "http://h/" + "d" * 2000 + "/"
    assert urls.Joiner(page, None, cache).join("x") == page + "x"
    assert cache.folder(page) == {}


def test_joins_are_remembered_between_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = urls.JoinCache()
    hrefs = ["x.html", "../y#z", "/w", "http://other/", "mailto:a@b"]
    first = [urls.Joiner("http://h/a/1?q", None, cache).join(href) for href in hrefs]
    monkeypatch.setattr(urls, "parse", lambda url, base=None: pytest.fail(f"{url} resolved again") if base else url)
    assert [urls.Joiner("http://h/a/2", None, cache).join(href) for href in hrefs] == first
