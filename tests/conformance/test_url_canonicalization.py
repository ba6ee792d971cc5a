"""Keys of URLs: what web archives and another crawler take for the same page (corpora/urls).

Their canonical forms are wider than ours: they merge what only mostly is the same page. So the urlcanon and
crawler-commons forms are a baseline: a case passes, or stands below with the reason why the key differs.
"""

from __future__ import annotations

import csv
from typing import Any

import pytest

from streams.policy import urls
from tests.conformance import cases

KNOWN = cases.by_reason(
    {
        "a host with such a character is no URL (WHATWG URL §3.3)": (
            "supplemental_whatwg: 'http://%/'",
            "supplemental_whatwg: 'http:/%/'",
            "supplemental_whatwg: 'http:%/'",
            "supplemental_whatwg: 'http://info@merseburger.de%20/'",
            "semantic_precise: 'http:%/'",
            "semantic_precise: 'http:/%/'",
            "semantic_precise: 'http:// leadingspace.com/'",
            "semantic_precise: 'http://%/'",
            "semantic_precise: 'http://%20leadingspace.com/'",
            "semantic_precise: 'http://\\x01\\x80.com/'",
            (
                "semantic_precise: 'http://host%23.com/%257Ea%2521b%2540c%2523d%2524e%25f%255E00%252611%252A22%2528"
                "33%252944_55%252B'"
            ),
        ),
        "dots alone are no IPv4 address (WHATWG URL §3.5)": (
            "supplemental_whatwg: 'http:%2e/a/b'",
            "supplemental_whatwg: 'http:%2e%2e%2e/a/b'",
            "supplemental_whatwg: 'http:/%2e/a/b'",
            "supplemental_whatwg: 'http:/%2e%2e/a/b'",
            "supplemental_whatwg: 'http:/%2e%2e%2e/a/b'",
            "supplemental_whatwg: 'http://%2e/a/b'",
            "supplemental_whatwg: 'http://%2e%2e/a/b'",
            "supplemental_whatwg: 'http://%2e%2e%2e/a/b'",
            "supplemental_whatwg: 'http:///%2e%2e/a/b'",
            "supplemental_whatwg: 'http:///%2e%2e%2e/a/b'",
            "semantic_precise: 'http:%2e%2e%2e/a/b'",
            "semantic_precise: 'http:%2e/a/b'",
            "semantic_precise: 'http:/%2e%2e%2e/a/b'",
            "semantic_precise: 'http:/%2e%2e/a/b'",
            "semantic_precise: 'http:/%2e/a/b'",
            "semantic_precise: 'http://%2e%2e%2e/a/b'",
            "semantic_precise: 'http://%2e%2e/a/b'",
            "semantic_precise: 'http://%2e/a/b'",
            "semantic_precise: 'http:///%2e%2e%2e/a/b'",
            "semantic_precise: 'http:///%2e%2e/a/b'",
        ),
        "`09` is a broken octal number, so no IPv4 address (WHATWG URL §3.5)": ("semantic_precise: 'http://09/'",),
        "user information is kept: another user may be shown another page": (
            "supplemental_whatwg: 'http://09/'",
            "semantic_precise: 'http://:b@www.example.com'",
            "semantic_precise: 'http://@:@@host/a/b'",
            "semantic_precise: 'http://@@host/a/b'",
            "semantic_precise: 'http://@ho@st/a/b'",
            "semantic_precise: 'http://a:@www.example.com'",
            "semantic_precise: 'http://a:b@www.example.com'",
            "semantic_precise: 'http://www.@pple.com'",
            "semantic_precise: 'http:/:b@www.example.com'",
            "semantic_precise: 'http:/a:b@www.example.com'",
            "semantic_precise: 'http::b@www.example.com'",
            "semantic_precise: 'http:a:@www.example.com'",
        ),
        "the suite writes UTF-8 octets as characters; a URL is text here": (
            "supplemental_whatwg: 'http://\\xe2\\x98\\x83.net/'",
            "semantic_precise: 'http://\\xe2\\x98\\x83.net/'",
            "semantic_precise: 'http://example.com/\\xe4\\xbd\\xa0\\xe5\\xa5\\xbd\\xe4\\xbd\\xa0\\xe5\\xa5\\xbd'",
            "semantic_precise: 'http://example.com/\\xef\\xbb\\xbf/foo'",
            "semantic_precise: 'http://example.com/\\xe2\\x80\\xa5/foo'",
            "semantic_precise: 'http://example.com/\\xe2\\x80\\xae/foo/\\xe2\\x80\\xad/bar'",
            "semantic_precise: 'http://example.com/foo%2\\xc2\\xa9zbar'",
            "semantic_precise: 'https://fa\\xc3\\x9f.ExAmPlE/'",
            "semantic_precise: 'https://x/\\xef\\xbf\\xbd?\\xef\\xbf\\xbd#\\xef\\xbf\\xbd'",
        ),
        "escapes of reserved characters are kept (RFC 3986 §2.2)": (
            "semantic_precise: 'http://example.com/%3A%3a%3C%3c'",
            "semantic_precise: 'http://example.com/%7Ffp3%3Eju%3Dduvgw%3Dd'",
            "semantic_precise: 'http://facebook.com/?foo=%7B%22abc%22'",
        ),
        "empty path segments are kept: servers may tell them apart": (
            "semantic_precise: 'http://example.com////../..'",
            "semantic_precise: 'http://host.com//twoslashes?more//slashes'",
            "weird: 'http://foo.com//aa/bb/foo.html'",
            "weird: 'http://foo.com/aa//bb/foo.html'",
            "weird: 'http://foo.com/aa/bb//foo.html'",
            "weird: 'http://foo.com//aa//bb//foo.html'",
            "weird: 'http://foo.com////aa////bb//foo.html'",
            "weird: 'http://foo.com////aa////bb////foo.html'",
        ),
        "the query is left as it is: order, empty names and values may matter": (
            "semantic_precise: 'http://example.com/?%26=%26&%26'",
            "semantic_precise: 'http://example.com/?%3d=%3d&%3d'",
            "semantic_precise: 'http://example.com/?c=d&a=b'",
            "weird: 'http://example.com/?b=1&a=1'",
            "weird: 'http://foo.com/foo.html?b=1&a=1'",
            "weird: 'http://foo.com/index?b=2&a=1'",
            "weird: 'http://foo.com/index?b=2&a=1#c'",
            "weird: 'http://foo.com/index?a=1&b='",
            "weird: 'http://foo.com/index?b&a=1'",
            "weird: 'http://foo.com/index?b=&a=1'",
            "weird: 'http://foo.com/index?b=1&a=1&'",
            "weird: 'http://foo.com/index?&b=1&a=1'",
            "weird: 'http://foo.com/index?&=1&a=1'",
            "weird: 'http://foo.com/index?=1&b=1&a=1'",
        ),
        "a `%` that begins no escape is kept as it is; such a URL is its own key": (
            "semantic_precise: 'http://example.com/foo%'",
            "semantic_precise: 'http://example.com/foo%2'",
            "semantic_precise: 'http://example.com/foo%2zbar'",
            "semantic_precise: 'http://example.com/foo/%2e%2'",
            "semantic_precise: 'http://host/%%%25%32%35asd%%'",
            "semantic_precise: 'http://host/%%300'",
            "semantic_precise: 'http://host/%%36%31'",
            "semantic_precise: 'http://host/?%%300'",
            "semantic_precise: 'http://host/?%%36%31'",
            "weird: 'https://www.last.fm/music/Prefuse+73/_/90%+of+My+Mind+Is+With+You'",
            "weird: 'http://www.example.com/a/c/../b/search?q=foobar%'",
            "weird: 'http://www.example.com/p%zz%77%v'",
            "weird: 'http://www.example.com/search?q=foobar%'",
            "weird: 'http://www.example.com/search?q=foobar%2'",
        ),
        "escapes are decoded once, so that a key leads to the page of its URL": (
            "semantic_precise: 'http://host/%25%2536%2531'",
            "semantic_precise: 'http://host/%25%25361'",
            "semantic_precise: 'http://host/%25%32%35'",
            "semantic_precise: 'http://host/%25%32%35%25%32%35'",
            "semantic_precise: 'http://host/%2525252525252525'",
            "semantic_precise: 'http://host/%2561'",
            "semantic_precise: 'http://host/?%25%2536%2531'",
            "semantic_precise: 'http://host/?%25%25361'",
            "semantic_precise: 'http://host/?%2561'",
        ),
        "without a scheme it is a relative reference, not a URL": (
            "semantic_precise: 'www.google.com'",
            "semantic_precise: 'www.google.com/'",
            "weird: 'foo.com/index.html'",
        ),
        "without a host it is no URL": (
            "weird: 'http:////'",
            "weird: 'http:///////'",
        ),
        "an empty query is kept (RFC 3986 §6.2.3)": (
            "weird: 'http://example.com?'",
            "weird: 'http://example.com/?'",
        ),
        "what the wire form leaves unencoded stays so: it is fetched that way": (
            "weird: 'http://x.com/?x[y]=1'",
            "weird: 'http://www.example.com/a/c/../b/search?q=foobar^'",
            "weird: 'http://www.example.com/a/c/../b/search?q=foobar`'",
            "weird: 'http://www.example.com/a/c/../b/search?q=foobar|'",
        ),
        "the dot of a fully qualified name is kept: servers may tell it from the name without": (
            "weird: 'https://www.example.org./'",
        ),
    }
)


def rows(name: str) -> list[list[str]]:
    """The rows of a CSV file: `#` begins a comment line, blanks round a field do not count."""
    text = cases.file(f"urls/crawler-commons/{name}.csv").read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
    return [[field.rstrip(" ") for field in row] for row in csv.reader(lines, skipinitialspace=True)]


def key_of(url: str) -> str | None:
    wire = urls.parse(url)
    return wire and urls.canonical(wire)


def baseline() -> list[Any]:
    found = {}
    for url, form in cases.data("urls/urlcanon/semantic_precise.json").items():
        if form.startswith(("http:", "https:")):
            found[f"semantic_precise: {url!a}"] = url, form.partition("#")[0]
    for url, form in rows("weirdToNormalizedUrls"):
        if form.startswith(("http:", "https:")):
            found[f"weird: {url!a}"] = url, form
    return [cases.case(case_id, *values, known=KNOWN) for case_id, values in found.items()]


def web_forms() -> list[Any]:
    forms = cases.data("urls/urlcanon/supplemental_whatwg.json").items()
    return [
        cases.case(f"supplemental_whatwg: {url!a}", url, form.partition("#")[0], known=KNOWN)
        for url, form in forms
        if form.startswith(("http:", "https:"))
    ]


@pytest.mark.parametrize(("url", "form"), baseline())
def test_key(url: str, form: str) -> None:
    assert key_of(url) == form


def test_every_listed_divergence_is_a_case() -> None:
    assert cases.stale(KNOWN, (parameter.id for parameter in baseline() + web_forms())) == []


@pytest.mark.parametrize(("url", "base", "wire"), rows("url-resolve"), ids=ascii)
def test_resolving(url: str, base: str, wire: str) -> None:
    expected = wire.partition("#")[0] if wire.startswith("http") else None
    assert urls.parse(url, base or None) == expected


@pytest.mark.parametrize("row", rows("invalidUrls"), ids=ascii)
def test_what_cannot_be_a_url_is_refused(row: list[str]) -> None:
    assert key_of(row[0]) is None


def suites() -> list[str]:
    """Every URL of the folder."""
    maps = ("semantic_precise", "aggressive", "supplemental_whatwg", "parsing", "surt", "ssurt")
    found = dict.fromkeys(cases.data("urls/urlcanon/idempotence.json"))
    for name in maps:
        found |= dict.fromkeys(cases.data(f"urls/urlcanon/{name}.json"))
    found |= dict.fromkeys(url for url, _ in rows("weirdToNormalizedUrls"))
    return [url for url in found if key_of(url) is not None]


@pytest.mark.parametrize("url", suites(), ids=ascii)
def test_the_key_of_a_key_is_itself(url: str) -> None:
    key = key_of(url)
    assert key is not None
    assert key_of(key) == key


@pytest.mark.parametrize(("url", "form"), web_forms())
def test_what_browsers_send(url: str, form: str) -> None:
    assert urls.parse(url) == form


@pytest.mark.parametrize(("host", "address"), cases.data("urls/urlcanon/funky_ipv4.json").items(), ids=ascii)
def test_odd_ways_to_write_an_ipv4_address(host: str, address: str | None) -> None:
    wire = urls.parse(f"http://{host}/")
    if address is None:
        assert wire is None or urls.hostname(wire) != address
    else:
        assert wire == f"http://{address}/"


@pytest.mark.parametrize(("path", "form"), cases.data("urls/urlcanon/path_dots.json")["special"].items(), ids=ascii)
def test_dot_segments(path: str, form: str) -> None:
    # The suite keeps a backslash apart from the slash that it stands for (WHATWG URL §4.4).
    assert urls.parse(f"http://h{path}") == f"http://h{form}".replace("\\", "/")
