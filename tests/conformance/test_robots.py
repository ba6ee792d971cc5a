"""robots.txt: Google's two suites, crawler-commons' cases, and 4,231 real files beside Google's parser."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from jwm.robotstxt.googlebot import RobotsMatcher

from streams.policy import robots, urls
from tests.conformance import cases, robots_files

CTC = cases.data("robots/ctc.json")
GOOGLE = cases.data("robots/google_robots_test.json")
CRAWLER_COMMONS = cases.data("robots/crawler_commons.json")
NOW = 1_700_000_000_000

KNOWN = cases.by_reason({
    "no URL, nothing to fetch": (
        "ctc/correctness/empty-string/0/0",
        "ctc/correctness/empty-string/0/1",
        "ctc/correctness/empty-string/1/0",
        "ctc/correctness/empty-string/1/1",
        "google/GoogleOnly_SystemTest/0/0",
        "google/GoogleOnly_SystemTest/0/1",
        "google/GoogleOnly_SystemTest/1/0",
        "google/GoogleOnly_SystemTest/1/1",
    ),
    "allowing /x/index.html does not allow /x/: not in RFC 9309, and it fetches more": (
        "ctc/correctness/index-page/0/0",
        "google/GoogleOnly_IndexHTMLisDirectory/0/0",
        "crawler-commons/file/precedence-of-rules.txt/0",
    ),
    "a URL is on the wire as it is percent-encoded, whatever its first form": (
        "ctc/correctness/non-ascii-paths/1/1",
        "ctc/correctness/non-ascii-paths/2/1",
        "google/ID_Encoding/1/1",
        "google/ID_Encoding/2/1",
    ),
    "escapes of unreserved characters are decoded before the comparison (RFC 9309 §2.2.2)": (
        "ctc/correctness/non-ascii-paths/3/0",
        "google/ID_Encoding/3/0",
    ),
    "/robots.txt itself is always allowed (RFC 9309 §2.2.2)": (
        "ctc/stress/327748/0/5",
        "ctc/stress/860237/0/9",
    ),
    "a product token has no blank (RFC 9309 §2.2.1)": (
        "ctc/correctness/user-agent-name/0/1",
        "google/GoogleOnly_AcceptUserAgentUpToFirstSpace/0/1",
    ),
    "a long line is not cut: 500 KiB are the only limit": (
        "google/GoogleOnly_LineTooLong/0/1",
        "google/GoogleOnly_LineTooLong/1/2",
    ),
    "one product token a line (RFC 9309 §2.2): the others on it are not read": (
        "crawler-commons/testNutchCases2/0/34",
        "crawler-commons/testNutchCases2/0/37",
        "crawler-commons/testNutchCases2/0/46",
        "crawler-commons/testNutchCases2/0/55",
        "crawler-commons/testSpacesInMultipleUserAgentNames/0/1",
        "crawler-commons/testSpacesInMultipleUserAgentNames/0/2",
    ),
    "HTML is not read: what stands between tags is no line of its own": (
        "crawler-commons/testHtmlMarkupInRobotsTxt/0/1",
        "crawler-commons/testHtmlMarkupInRobotsTxt/0 bogusbot",
        "crawler-commons/testHtmlMarkupInRobotsTxt/0 mybot",
    ),
    "a long crawl-delay is obeyed or capped, it forbids nothing": ("crawler-commons/testBigCrawlDelay/0/0",),
})  # fmt: skip


def octets(body: dict[str, str]) -> bytes:
    return base64.b64decode(body["base64"]) if "base64" in body else body["text"].encode()


def decisions() -> list[Any]:
    return [
        cases.case(case["id"], octets(suite["bodies"][case["body"]]), case, known=KNOWN)
        for suite in (CTC, GOOGLE, CRAWLER_COMMONS)
        for case in suite["cases"]
    ]


def delays() -> list[Any]:
    return [
        cases.case(f"{case['body']} {case['user_agents'][0]}", case, known=KNOWN)
        for case in CRAWLER_COMMONS["crawl_delays"]
    ]


def commons(body: str, agent: str = robots.AGENT) -> Any:
    return robots.read("http://domain.com", 200, octets(CRAWLER_COMMONS["bodies"][body]), NOW, agent)


@pytest.mark.parametrize(("body", "case"), decisions())
def test_allowed(body: bytes, case: dict[str, Any]) -> None:
    url = urls.parse(case["url"])
    assert url is not None
    rules = robots.read(urls.origin(url), 200, body, NOW, case["user_agents"][0])
    assert robots.Matcher(rules).allowed(url) == case["allow"]


@pytest.mark.parametrize("case", delays())
def test_crawl_delay(case: dict[str, Any]) -> None:
    assert commons(case["body"], case["user_agents"][0]).crawl_delay == case["crawl_delay_s"]


@pytest.mark.parametrize("case", CRAWLER_COMMONS["sitemap_lines"], ids=lambda case: case["body"])
def test_sitemaps(case: dict[str, Any]) -> None:
    assert list(commons(case["body"]).sitemaps) == case["sitemaps"]


def test_every_listed_divergence_is_a_case() -> None:
    assert cases.stale(KNOWN, (parameter.id for parameter in decisions() + delays())) == []


@pytest.mark.parametrize("suite", [CTC, GOOGLE], ids=["ctc", "robots_test"])
def test_of_googles_suites_all_that_the_rfc_decides_agrees(suite: dict[str, Any]) -> None:
    """What differs is an extension of Google's, against the RFC, or about a URL that never goes on the wire."""
    beyond = ("google_specific", "rfc_conflict", "url_not_encoded")
    decided = [case for case in suite["cases"] if not any(case.get(reason) for reason in beyond)]
    agreed = sum(case["id"] not in KNOWN for case in suite["cases"])
    print(f"{len(decided)} of {len(decided)} cases that RFC 9309 decides, {agreed} of all {len(suite['cases'])}")
    assert [case["id"] for case in decided if case["id"] in KNOWN] == []
    assert len(decided) > 100


def test_of_crawler_commons_97_of_100_agree() -> None:
    known = [case["id"] for case in CRAWLER_COMMONS["cases"] if case["id"] in KNOWN]
    agreed = 1 - len(known) / len(CRAWLER_COMMONS["cases"])
    print(f"{agreed:.1%} of {len(CRAWLER_COMMONS['cases'])} cases; differ: {', '.join(known)}")
    assert agreed >= 0.97


# --- real files

INDEX = "allowing /x/index.html does not allow /x/: not in RFC 9309, and it fetches more"
STAR = "a star in a URL is compared as %2A (RFC 9309 §2.2.3), so `Disallow: /%` meets it: stricter, of one URL"
DIFFER = {
    "hbr.org": INDEX,
    "stockcharts.com": INDEX,
    "www.telstra.com.au": INDEX,
    "www.toyoko-inn.com": INDEX,
    "www.mcmaster.com": STAR,
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_files_mean_what_google_reads_in_them() -> None:
    google = RobotsMatcher()
    differ: dict[str, list[str]] = {}
    files = asked = escapes = 0
    for name, whole in robots_files.real_files():
        files += 1
        body = whole[: robots.SIZE_LIMIT]  # Google's library leaves the limit to its caller
        matcher = robots.Matcher(robots.read("http://example.org", 200, body, NOW))
        sampled = robots_files.sample(name, body)
        assert len(sampled) == robots_files.SAMPLED, name
        for url in sampled:
            asked += 1
            ours, theirs = matcher.allowed(url), google.OneAgentAllowedByRobots(body, robots.AGENT, url)
            if ours != theirs and "%" in url and theirs:
                escapes += 1  # Google compares escapes as they are written, so a rule with a blank never matches
            elif ours != theirs:
                differ.setdefault(name, []).append(url)
    listed = sum(map(len, differ.values()))
    print(f"{files} files, {asked} URLs, {asked - escapes - listed} answers agree; {escapes} are stricter by an escape,"
          f" {listed} listed")  # fmt: skip
    assert files > 4000
    assert set(differ) == set(DIFFER), differ
