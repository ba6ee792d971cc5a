from __future__ import annotations

import codecs
import re
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.messages import RobotsRules
from streams.policy import robots
from streams.policy.robots import Matcher

ORIGIN = "http://example.org"
NOW = 1_700_000_000_000
DAY = 24 * 3600 * 1000
FORBIDDEN = "User-agent: *\nDisallow: /no\n"


def rules(text: str | bytes, agent: str = robots.AGENT, *, complete: bool = True) -> RobotsRules:
    body = text.encode() if isinstance(text, str) else text
    return robots.read(ORIGIN, 200, body, NOW, agent, complete=complete)


def allowed(text: str | bytes, path: str, agent: str = robots.AGENT) -> bool:
    return Matcher(rules(text, agent)).allowed(ORIGIN + path)


@pytest.mark.parametrize("status", [200, 204, 299])
def test_an_answer_is_read_and_holds_for_a_day(status: int) -> None:
    found = robots.read(ORIGIN, status, FORBIDDEN.encode(), NOW)
    assert found.origin == ORIGIN
    assert (found.fetched, found.expires) == (NOW, NOW + DAY)
    assert (found.access, found.rules, found.crawl_delay) == ("rules", ((False, "/no"),), None)


@pytest.mark.parametrize("status", [300, 302, 308, 400, 401, 403, 404, 410, 418, 451, 499])
def test_no_file_allows_everything_for_a_day(status: int) -> None:
    found = robots.read(ORIGIN, status, FORBIDDEN.encode(), NOW)
    assert (found.access, found.rules, found.expires) == ("allow_all", (), NOW + DAY)
    assert Matcher(found).allowed(ORIGIN + "/no")


@pytest.mark.parametrize("status", [0, 101, 304, 429, 500, 503, 599, 600])
def test_a_server_error_forbids_everything_for_a_while(status: int) -> None:
    found = robots.read(ORIGIN, status, b"User-agent: *\nAllow: /\n", NOW)
    assert (found.access, found.rules, found.expires) == ("disallow_all", (), NOW + 60_000)
    assert not Matcher(found).allowed(ORIGIN + "/")
    assert Matcher(found).allowed(ORIGIN + "/robots.txt")
    assert robots.read(ORIGIN, status, b"", NOW, retry_after=2.5, max_age=9.0).expires == NOW + 2_500


def test_no_answer_forbids_everything_for_a_while() -> None:
    assert robots.unreachable(ORIGIN, NOW) == robots.read(ORIGIN, 500, b"", NOW)
    assert robots.unreachable(ORIGIN, NOW, 0.0).expires == NOW
    assert robots.unreachable(ORIGIN, NOW, 300.0).expires == NOW + 300_000


@pytest.mark.parametrize(
    ("text", "path", "answer"),
    [
        ("", "/x", True),
        ("User-agent: *\nDisallow:\n", "/x", True),
        ("User-agent: *\nDisallow: /\n", "/x", False),
        ("User-agent: *\nDisallow: *\n", "/x", False),
        ("User-agent: *\nDisallow: /\n", "/robots.txt", True),
        ("User-agent: *\nDisallow: /robots.txt$\n", "/robots.txt", True),
        ("User-agent: *\nDisallow: /\n", "/robots.txt?x", False),
        ("User-agent: *\nDisallow: no-slash\n", "/no-slash", True),
        ("Disallow: /\n", "/x", True),  # no user agent above it
        # the longest rule decides, allow wins ties
        ("User-agent: *\nDisallow: /a\nAllow: /a/b\n", "/a/b/c", True),
        ("User-agent: *\nAllow: /a\nDisallow: /a/b\n", "/a/b/c", False),
        ("User-agent: *\nDisallow: /a\nAllow: /a\n", "/a", True),
        ("User-agent: *\nAllow: /\nDisallow: /*\n", "/x", False),
        ("User-agent: *\nAllow: /p\nDisallow: /*.htm\n", "/p.htm", False),
        # wildcards
        ("User-agent: *\nDisallow: /*.gif$\n", "/a/b.gif", False),
        ("User-agent: *\nDisallow: /*.gif$\n", "/a/b.gif?x", True),
        ("User-agent: *\nDisallow: /*.gif$\n", "/a.gif.gif", False),
        ("User-agent: *\nDisallow: /x$\n", "/x", False),
        ("User-agent: *\nDisallow: /x$\n", "/xy", True),
        ("User-agent: *\nDisallow: /a*b*c\n", "/axxbxxc/", False),
        ("User-agent: *\nDisallow: /a*b*c\n", "/acb", True),
        ("User-agent: *\nDisallow: /a**b\n", "/ab", False),
        ("User-agent: *\nDisallow: /a*$\n", "/a/b", False),
        ("User-agent: *\nDisallow: /ab*ba$\n", "/aba", True),
        ("User-agent: *\nDisallow: */x\n", "/a/x", False),
        ("User-agent: *\nDisallow: /a*x\nAllow: /a*y\n", "/a-y", True),
        # `$` within, `*` and `$` of the URL, encoded ones of the rule
        ("User-agent: *\nDisallow: /a$b\n", "/a$b", False),
        ("User-agent: *\nDisallow: /a%24\n", "/a$b", False),
        ("User-agent: *\nDisallow: /a%2a\n", "/a*b", False),
        ("User-agent: *\nDisallow: /a%2a\n", "/axb", True),
        # percent-encoding
        ("User-agent: *\nDisallow: /%7Ejoe\n", "/~joe", False),
        ("User-agent: *\nDisallow: /~joe\n", "/%7ejoe", False),
        ("User-agent: *\nDisallow: /a%2fb\n", "/a%2Fb", False),
        ("User-agent: *\nDisallow: /a%2fb\n", "/a/b", True),
        ("User-agent: *\nDisallow: /ツ\n", "/%E3%83%84", False),
        ("User-agent: *\nDisallow: /%e3%83%84\n", "/%E3%83%84", False),
        (b"User-agent: *\nDisallow: /\xfcber\nDisallow: /page\n", "/%FCber", False),
        (b"User-agent: *\nDisallow: /\xfcber\nDisallow: /page\n", "/page", False),
        (b"User-agent: *\nDisallow: /caf\xc3\xa0\n", "/caf%C3%A0", False),  # the last octet is a blank in Latin-1
        ("User-agent: *\nDisallow: /a b\n", "/a%20b", False),
        ("User-agent: *\nDisallow: /?x='a'\n", "/?x=%27a%27", False),
        ("User-agent: *\nDisallow: /a|b^\n", "/a|b^", False),
        # groups
        ("User-agent: fyke\nDisallow:\n\nUser-agent: *\nDisallow: /\n", "/x", True),
        ("User-agent: *\nDisallow: /\n\nUser-agent: fyke\n", "/x", True),
        ("User-agent: other\nDisallow: /\n", "/x", True),
        ("User-agent: FYKE/1.0\nDisallow: /a\n", "/a", False),
        ("User-agent: fyke bot\nDisallow: /a\n", "/a", False),
        ("User-agent: fyke2\nDisallow: /a\n", "/a", False),
        ("User-agent: fykebot\nDisallow: /a\n", "/a", True),
        ("User-agent: fyke-bot\nDisallow: /a\n", "/a", True),
        ("User-agent: fyk\nDisallow: /a\n", "/a", True),
        ("User-agent: * fyke\nDisallow: /a\n", "/a", False),
        ("User-agent: *bot\nDisallow: /a\n", "/a", True),
        ("User-agent: a\nUser-agent: fyke\nUser-agent: b\nDisallow: /a\n", "/a", False),
        ("User-agent: fyke\nDisallow: /a\nUser-agent: b\nDisallow: /c\n", "/c", True),
        ("User-agent: fyke\nDisallow: /a\nUser-agent: b\nDisallow:\nUser-agent: fyke\nDisallow: /c\n", "/c", False),
        ("User-agent: fyke\nSitemap: /s\nCrawl-delay: 1\nNonsense: x\nUser-agent: b\nDisallow: /a\n", "/a", False),
        ("User-agent: fyke\nUser-agent: *\nDisallow: /a\n", "/a", False),
        # lines
        ("user-AGENT : *\r\n\r\n  dIsAllow\t:\t/a # why\r\n", "/a", False),
        ("User-agent: *\rDisallow: /a\r", "/a", False),
        ("User-agent: *\nDisallow: /a#b\n", "/a", False),
        ("#User-agent: *\n#Disallow: /a\n", "/a", True),
        ("User-agent *\nDisallow /a\n", "/a", False),
        ("User-agent: *\nDisallow all of it\n", "/a", True),
        ("Useragent: *\nDissallow: /a\n", "/a", False),
        ("User agent: *\nDisalow: /a\n", "/a", False),
        ("User-agent: *\nDisallowed: /a\n", "/a", True),
        ("<html><body>User-agent: *<br>Disallow: /</body></html>", "/a", True),
        (codecs.BOM_UTF8 + b"User-agent: *\nDisallow: /a\n", "/a", False),
        (codecs.BOM_UTF8[:2] + b"User-agent: *\nDisallow: /a\n", "/a", False),
        (codecs.BOM_UTF8 + codecs.BOM_UTF8 + b"User-agent: *\nDisallow: /a\n", "/a", True),
        ("\ufeffUser-agent: *\nDisallow: /ä\n".encode("utf-16-le"), "/%C3%A4", False),
        ("\ufeffUser-agent: *\nDisallow: /a\n".encode("utf-16-be") + b"\0", "/a", False),
    ],
)
def test_allowed(text: str | bytes, path: str, answer: bool) -> None:
    assert allowed(text, path) == answer


def test_a_token_with_digits_is_read_whole() -> None:
    text = "User-agent: bot12\nDisallow: /\n\nUser-agent: Bot1/3\nDisallow: /a\n"
    assert allowed(text, "/b", "bot1")
    assert not allowed(text, "/a", "bot1")


def test_the_rule_that_decides_can_be_named() -> None:
    matcher = Matcher(rules("User-agent: *\nDisallow: /a*\nAllow: /a%62c\nDisallow: /z*y$\n"))
    assert matcher.rule(ORIGIN + "/abc") == (True, "/abc")
    assert matcher.rule(ORIGIN + "/ad") == (False, "/a*")
    assert matcher.rule(ORIGIN + "/z/y") == (False, "/z*y$")
    assert matcher.rule(ORIGIN + "/") is None


def test_rules_are_few_and_in_the_order_in_which_they_decide() -> None:
    text = "User-agent: *\nDisallow: /a\nDisallow: /a*\nAllow: /ab\nDisallow: /ab\nDisallow:\nDisallow: x\nAllow: /\n"
    assert rules(text).rules == ((True, "/ab"), (False, "/a*"), (False, "/a"), (True, "/"))


def test_500_kib_are_read_and_a_cut_line_is_not() -> None:
    head = "User-agent: *\n" + "# padding\n" * 39_000 + "Disallow: /page\n"
    for read in (0, 4, 13, 14):  # octets of the next line that are within the limit
        padding = "#" * (robots.SIZE_LIMIT - len(head) - read - 1) + "\n"
        assert rules(head + padding + "Disallow: /late\n").rules == ((False, "/page"),)
    assert rules(head + "Disallow: /late\n").rules == ((False, "/page"), (False, "/late"))
    assert rules("#" * robots.SIZE_LIMIT + "\nUser-agent: *\nDisallow: /\n").rules == ()


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_an_incomplete_body_loses_its_last_line_if_that_was_cut(end: str) -> None:
    text = f"User-agent: *{end}Disallow: /page{end}"
    assert rules(text + "Disallow: /", complete=False).rules == ((False, "/page"),)
    assert rules(text, complete=False).rules == ((False, "/page"),)
    assert rules("User-agent: *", complete=False).rules == ()


@pytest.mark.parametrize(
    ("value", "delay"),
    [
        ("10", 10.0), ("0.5", 0.5), (".5", 0.5), ("2.", 2.0), ("0", 0.0), ("86400", 86400.0), ("86401", None),
        ("-1", None), ("", None), ("soon", None), ("nan", None), ("1e3", None), ("10 s", None), ("9" * 400, None),
    ],
)  # fmt: skip
def test_crawl_delay(value: str, delay: float | None) -> None:
    assert rules(f"User-agent: *\nCrawl-delay: {value}\n").crawl_delay == delay


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ("Crawl-delay: 5\n", None),
        ("User-agent: *\nCrawl-delay: 5\nUser-agent: fyke\nDisallow: /\n", None),
        ("User-agent: fyke\nCrawl-delay: 5\nUser-agent: b\nCrawl-delay: 7\n", 5.0),
        ("User-agent: b\nCrawl-delay: 5\nUser-agent: fyke\nCrawl-delay: 7\n", 7.0),
        ("User-agent: fyke\nDisallow: /\nCrawl-delay: 5\n", 5.0),
        ("User-agent: fyke\nCrawl-delay: 5\n\nUser-agent: fyke\nCrawl-delay: 3\n", 5.0),
        ("User-agent: fyke\nCrawl-delay: 0\nCrawl-delay: 3\n", 3.0),
        ("User-agent: fyke\nUser-agent: *\nCrawl-delay: 5\n", 5.0),
    ],
)
def test_whose_crawl_delay(text: str, delay: float | None) -> None:
    assert rules(text).crawl_delay == delay


def test_sitemaps_are_absolute_and_named_once() -> None:
    text = (
        "Sitemap: http://example.org/a.xml\nUser-agent: other\nsite-map: /b.xml\nDisallow: /\n"
        "Sitemap: https://cdn.example.net/C.xml\nSitemap: HTTP://example.org/a.xml\nSitemap:\nSitemap: ftp://x/\n"
    )
    assert rules(text).sitemaps == (
        "http://example.org/a.xml",
        "http://example.org/b.xml",
        "https://cdn.example.net/C.xml",
    )


def test_the_version_is_a_hash_of_what_decides() -> None:
    version = rules(FORBIDDEN).version
    assert version == "f7e198f55e1a"
    assert robots.read("https://other.net", 200, FORBIDDEN.encode(), NOW + 5).version == version
    assert rules(FORBIDDEN + "# comment\nSitemap: /s.xml\n").version == version
    others = {
        rules("User-agent: *\nAllow: /no\n").version,
        rules(FORBIDDEN + "Crawl-delay: 1\n").version,
        rules("").version,
        robots.read(ORIGIN, 404, b"", NOW).version,
        robots.unreachable(ORIGIN, NOW).version,
    }
    assert len(others | {version}) == 6


def test_matching_takes_linear_time() -> None:
    path = "/" + "a" * 20_000
    matcher = Matcher(rules("User-agent: *\nDisallow: /" + "*a" * 200 + "*b\nDisallow: /" + "*a" * 200 + "b$\n"))
    start = process_time()
    assert matcher.allowed(ORIGIN + path)
    assert matcher.rule(ORIGIN + path) is None
    assert not matcher.allowed(ORIGIN + path + "b")
    assert process_time() - start < 0.5


PATTERNS = st.lists(st.sampled_from(["/", "a", "b", "*", "**", "$", "ab"]), min_size=1, max_size=7).map("".join)
PATHS = st.text(st.sampled_from("/ab"), max_size=8).map("/".__add__)


@settings(deadline=None, max_examples=300)
@given(PATTERNS, PATHS)
def test_a_glob_matches_what_the_same_regular_expression_does(pattern: str, path: str) -> None:
    pattern = "/" + pattern
    held = "" if pattern.endswith("$") else ".*"
    expression = re.escape(pattern.removesuffix("$")).replace(r"\*", ".*") + held
    assert allowed(f"User-agent: *\nDisallow: {pattern}\n", path) == (re.fullmatch(expression, path) is None)


@settings(deadline=None)
@given(st.binary(max_size=200) | st.lists(st.sampled_from([
    b"User-agent: *", b"User-agent: fyke", b"Disallow: /", b"Allow:", b"Crawl-delay: 1", b"Sitemap: \xff", b"\xff\xfe",
    b"\n", b"\r", b"\0", b":", b"#", b"*", b"$", b"%", b"%zz",
]), max_size=20).map(b"".join))  # fmt: skip
def test_any_body_is_read(body: bytes) -> None:
    found = rules(body)
    assert found.access == "rules"
    Matcher(found).allowed(ORIGIN + "/x?y")


@pytest.mark.parametrize(
    ("fields", "max_age", "hours"),
    [
        ([], None, 24),
        ([b"public"], None, 24),
        ([b"max-age=7200"], 7200, 2),
        ([b"public, Max-Age = 7200"], 7200, 2),
        ([b'max-age="7200"'], 7200, 2),
        ([b"max-age=60"], 60, 1),  # not more often than once an hour
        ([b"max-age=31536000, immutable"], 31536000, 24),  # nor less often than once a day
        ([b"max-age=7200", b"max-age=10800"], 7200, 2),
        ([b"no-store"], 0, 1),
        ([b"max-age=7200, no-cache"], 0, 1),
        ([b"max-age=-1"], None, 24),
        ([b"max-age=soon, s-maxage=1"], None, 24),
    ],
)
@pytest.mark.parametrize("status", [200, 404])
def test_a_site_may_shorten_the_life_of_its_rules(fields, max_age, hours: int, status: int) -> None:
    assert robots.max_age_of(fields) == max_age
    assert robots.read(ORIGIN, status, b"", NOW, max_age=max_age).expires == NOW + hours * 3_600_000
