"""Keys of URLs: what web archives and another crawler take for the same page (corpora/urls).

Their canonical forms are wider than what is always safe, so each suite is run under the options of a crawl (`Keys`)
that it presumes. A case passes, or stands below with the reason why the key differs.
"""

from __future__ import annotations

import csv
from typing import Any

import msgspec
import pytest

from streams.definitions import Keys
from streams.policy import urls
from streams.policy.keys import SAFE, canonical_by
from tests.conformance import cases

OPEN = Keys(strip_user=True, merge_slashes=True, sort_query=True, unescape=True)
"""What `semantic_precise` and crawler-commons' normaliser merge."""
WIDE = msgspec.structs.replace(OPEN, strip_www=True, sessions=True)
"""What `aggressive` merges."""

NO_URL = "a host with such a character is no URL (WHATWG URL §3.3)"
DOTS = "dots alone are no IPv4 address (WHATWG URL §3.5)"
OCTAL = "`09` is a broken octal number, so no IPv4 address (WHATWG URL §3.5)"
SETTLED = (NO_URL, DOTS, OCTAL)
"""Reasons that the WHATWG's own cases (`test_wpt_urls`) leave no choice about: nobody can agree with both suites."""

KNOWN = cases.by_reason(
    {
        NO_URL: (
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
            "supplemental_whatwg: 'http://%/'",
            "supplemental_whatwg: 'http:/%/'",
            "supplemental_whatwg: 'http:%/'",
            "supplemental_whatwg: 'http://info@merseburger.de%20/'",
        ),
        DOTS: (
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
        ),
        OCTAL: ("semantic_precise: 'http://09/'", "supplemental_whatwg: 'http://09/'"),
        "an option that puts the query in order leaves out what is empty": (
            "semantic_precise: 'http://www.google.com/q?'",
        ),
        "without a scheme it is a relative reference, not a URL": (
            "semantic_precise: 'www.google.com'",
            "semantic_precise: 'www.google.com/'",
            "aggressive: 'www12.foo.com/'",
            "aggressive: 'foo.com/'",
            "aggressive: 'foo.com'",
            "aggressive: 'www12.foo.com'",
            "aggressive: 'foo.com/boo'",
            "aggressive: 'foo.com//goo'",
            "aggressive: 'foo.com///goo'",
            "aggressive: 'foo.com/b?jar=//goo'",
            "aggressive: 'foo.com///goo/'",
            "aggressive: 'foo.com/pa!th'",
            "aggressive: 'foo.com/pa+th'",
            "aggressive: 'foo.com/pa%21th'",
            "aggressive: 'foo.com/pa%th'",
            "weird: 'foo.com/index.html'",
        ),
        "https is not http: another port may serve another site": (
            "aggressive: '  https://www.google.com/  '",
            "aggressive: 'https://foo.com/'",
            "aggressive: 'https://www.chub.org:443/foo'",
        ),
        "only `www.` stands for the name without it; `www2.` may be another server": (
            "aggressive: 'http://www12.foo.com/'",
            "aggressive: 'https://www12.foo.com/'",
            "aggressive: 'http://www232.chub.org:8080/foo'",
        ),
        "upper and lower case are two paths, and two parameters, on most servers": (
            "aggressive: 'http://www.flickr.com/photos/36050182@N05/'",
            "aggressive: 'http://example.com/foo?c=5&&a=1&B=3&A=2&b=4&C=6&'",
        ),
        "whoever asks for escapes to be decoded gets all of them decoded, up to what delimits": (
            "weird: 'https://www.example.com/search/%2a/'",
            "weird: 'http://x.com/show?http%3A%2F%2Fx.com%2Fb'",
            "weird: 'http://x.com/?x[y]=1'",
            "weird: 'http://foo.com/{{stuff}}'",
            "weird: 'http://www.example.com/a/c/../b/search?q=foobar\"'",
            "weird: 'http://www.example.com/a/c/../b/search?q=foobar<'",
            "weird: 'http://www.example.com/a/c/../b/search?q=foobar>'",
            "weird: 'http://www.example.com/a/c/../b/search?q=foobar^'",
            "weird: 'http://www.example.com/a/c/../b/search?q=foobar`'",
            "weird: 'http://www.example.com/a/c/../b/search?q=foobar|'",
            "weird: 'https://foo.com/?one/valid_query/without_%2F_params'",
            "weird: 'http://foo.com/asdf/page.php?article%2F1234'",
        ),
        "without a host it is no URL": (
            "weird: 'http:////'",
            "weird: 'http:///////'",
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


def text(octets: str) -> str:
    """A URL of urlcanon's maps, which write the octets of UTF-8 as characters."""
    try:
        return octets.encode("latin-1").decode()
    except UnicodeError:
        return octets


def key_of(url: str, keys: Keys = SAFE) -> str | None:
    wire = urls.parse(url)
    return wire and canonical_by(keys)(wire)


def web(name: str) -> list[tuple[str, str, str]]:
    """Id, URL and expected form (without fragment) of the http and https entries of one of urlcanon's maps."""
    return [
        (f"{name}: {url!a}", text(url), text(form).partition("#")[0])
        for url, form in cases.data(f"urls/urlcanon/{name}.json").items()
        if form.startswith(("http:", "https:"))
    ]


def normalised() -> list[tuple[str, str, str]]:
    """The same of crawler-commons' table."""
    found = {f"weird: {url!a}": (url, form) for url, form in rows("weirdToNormalizedUrls")}
    return [(case_id, *values) for case_id, values in found.items() if values[1].startswith(("http:", "https:"))]


SUITES = [("semantic_precise", OPEN, web("semantic_precise")), ("aggressive", WIDE, web("aggressive")),
          ("crawler-commons", OPEN, normalised())]  # fmt: skip


def forms() -> list[Any]:
    return [
        cases.case(case_id, url, keys, form, known=KNOWN) for _, keys, suite in SUITES for case_id, url, form in suite
    ]


def web_forms() -> list[Any]:
    return [cases.case(*values, known=KNOWN) for values in web("supplemental_whatwg")]


@pytest.mark.parametrize(("url", "keys", "form"), forms())
def test_key(url: str, keys: Keys, form: str) -> None:
    assert key_of(url, keys) == form


def test_every_listed_divergence_is_a_case() -> None:
    assert cases.stale(KNOWN, (parameter.id for parameter in forms() + web_forms())) == []


@pytest.mark.parametrize(
    ("name", "right", "of"),
    [
        ("semantic_precise", 263, 280),  # urlcanon 0.3.1 itself, on all schemes
        ("crawler-commons", 76, 108),  # w3lib 2.5.0
    ],
)
def test_the_figures_to_beat(name: str, right: int, of: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the cases that the WHATWG's suite does not settle otherwise."""
    keys, suite = next((keys, suite) for known, keys, suite in SUITES if known == name)
    open_cases = [(url, form) for case_id, url, form in suite if KNOWN.get(case_id) not in SETTLED]
    same = sum(key_of(url, keys) == form for url, form in open_cases)
    with capsys.disabled():
        print(
            f"\n{name}: {same} of {len(open_cases)} ({same / len(open_cases):.1%}), without the "
            f"{len(suite) - len(open_cases)} that WHATWG settles; to beat: {right} of {of} ({right / of:.1%})"
        )
    assert same / len(open_cases) > right / of


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
