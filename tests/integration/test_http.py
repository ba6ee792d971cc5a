"""The HTTP client against hostile servers: the cases of corpora/http that one fetch decides.

What takes a frontier, robots.txt or a parser (links, redirect chains, cookies, politeness between requests) is not
asked here. A case with several accepted outcomes names the one this project takes in `TAKEN`, with the reason.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agents.io.http import Answer
from streams.policy.answers import judge
from streams.policy.retry import rule_for
from tests.servers.bench import QUICK, bench, cases
from tests.servers.hostile import HostileServer
from tests.servers.recipes import render

# --- the cases of the data

TAKEN = {
    "framing/length-twice-equal": ("failed", "the parser refuses repeated lengths; a server that repeats is broken"),
    "framing/length-malformed": ("failed", "RFC 9112 6.3: discard"),
    "framing/length-negative": ("failed", "RFC 9112 6.3: discard"),
    "framing/length-with-nul": ("failed", "NUL is forbidden in a field value (RFC 9110 5.5)"),
    "framing/length-huge-claim": ("failed", "the number is beyond what a length may be"),
    "framing/underrun-close": ("truncated", "kept and marked: half a page is better than none"),
    "framing/underrun-open": ("truncated", "as for underrun-close"),
    "framing/overrun-keepalive": ("pages", "the surplus is dropped with its connection"),
    "framing/chunked-lf-only": ("failed", "chunk framing asks for CRLF"),
    "framing/chunked-size-too-small": ("failed truncated", "marked; kept if the good part arrived before the bad one"),
    "framing/chunked-no-end": ("truncated", "as for underrun-close"),
    "framing/204-with-body": ("pages", "the 204 is complete"),
    "framing/slow-body": ("truncated", "as for underrun-close"),
    "coding/many-codings": ("failed", "at most five codings are undone"),
    "coding/gzip-cut": ("truncated", "what could be decoded is kept and marked"),
    "coding/gzip-bad-crc": ("truncated", "the damage is somewhere in what was decoded: kept and marked"),
    "coding/gzip-lie": ("failed", "nothing could be decoded"),
    "coding/br-unasked": ("skip", "br is always offered"),
    "coding/bomb-gzip": ("truncated", "the first part is kept and marked"),
    "coding/bomb-br": ("truncated", "the first part is kept and marked"),
    "coding/bomb-zstd": ("truncated", "the first part is kept and marked"),
}
"""Which of the accepted outcomes is taken, and why."""

DIVERGES = {
    "framing/header-without-colon": "protocol",  # not HTTP; the parser (llhttp) refuses it, as curl does
    "framing/status-999": "http_status",  # not tried again: it says that robots are not wanted
}
"""Judgement cases whose only listed outcome is not taken: the failure that comes instead."""

ELSEWHERE = {
    "coding/bomb-gz-file": "the client takes such a file as it is; what unpacks it: tests/conformance/test_sitemaps.py",
}

SLOW = {"framing/slow-body", "framing/underrun-open", "framing/never-answers", "framing/chunked-size-endless",
        "tls/handshake-stall"}  # fmt: skip


def text_of(recipe: Any) -> bytes:
    return b"".join(render(recipe, {}))


def outcome_of(url: str, answer: Answer) -> dict[str, Any]:
    """An answer in the words of the data."""
    failure = answer.failure or judge(url, answer.status, answer.values(b"location"), conditional=False).failure
    if failure:
        again = rule_for(failure, answer.status).retryable
        return {"outcome": "failed", "failure": failure, "status": answer.status, "retry": again}
    if answer.truncated:
        return {"outcome": "truncated", "reason": answer.truncated, "status": answer.status}
    return {"outcome": "fetched", "status": answer.status}


def misses(expect: dict[str, Any], url: str, answer: Answer, server: HostileServer) -> list[str]:
    """Which expectations an answer does not meet."""
    got = outcome_of(url, answer)
    wrong = [
        f"{name}: {got.get(name)!r} is not {expect[name]!r}"
        for name in ("outcome", "failure", "reason", "status", "retry")
        if name in expect and got.get(name) != expect[name]
    ]
    checks = {
        "body": lambda value: answer.body == text_of(value),
        "body_prefix": lambda value: answer.body.startswith(text_of(value)),
        "text": lambda value: answer.body.decode("windows-1252") == value,
        "max_body_bytes": lambda value: len(answer.body) <= value,
        "max_seconds": lambda value: answer.end - answer.start <= value,
        "response_headers": lambda value: all(tuple(pair) in answer.headers for pair in value),
        "not_sent": lambda value: value is not bool(server.seen),
        "max_requests": lambda value: len(server.seen) <= value,
        "not_requested": lambda value: not set(value) & set(server.urls),
    }
    wrong += [name for name, holds in checks.items() if name in expect and not holds(expect[name])]
    return wrong


def check(case: dict[str, Any], answers: dict[str, Answer], server: HostileServer) -> None:
    expect = case["expect"]
    if case["id"] in DIVERGES:
        assert case["judgement"]
        assert [outcome_of(url, got)["failure"] for url, got in answers.items()] == [DIVERGES[case["id"]]]
        return
    alternatives = expect.get("any_of", [expect])
    failures = []
    for alternative in alternatives:
        pages = alternative.get("pages") or [{**alternative, "url": case["seeds"][-1]}]
        wrong = [
            f"{page['url']} {miss}"
            for page in pages
            for miss in misses(page, page["url"], answers[page["url"]], server)
        ]
        if not wrong:
            taken = TAKEN.get(case["id"])
            kind = "pages" if "pages" in alternative else alternative["outcome"]
            assert taken is None or kind in taken[0].split(), f"{kind} instead of {taken}"
            return
        failures.append(wrong)
    pytest.fail(f"{failures} {[(a.reason, a.body[:40]) for a in answers.values()]}")


@pytest.mark.parametrize("case", cases("framing", "coding"))
async def test_framing_and_coding(case):
    name = case["id"]
    if name in ELSEWHERE or TAKEN.get(name, ("",))[0] == "skip":
        pytest.skip(ELSEWHERE.get(name) or TAKEN[name][1])
    if len(case["expect"].get("any_of", ())) > 1:
        assert name in TAKEN, "say which outcome is taken, and why"
    async with bench(case["server"], settings=QUICK if name in SLOW else {}) as site:
        answers = {url: await site.get(url) for url in case["seeds"]}
        requests = case["expect"].get("requests", case["seeds"])
        for url in requests[len(case["seeds"]) :]:  # tried again after a temporary failure
            assert answers[url].failure == "connection"
            answers[url] = await site.get(url)
        assert site.server.urls == requests
        check(case, answers, site.server)
        await asyncio.sleep(0.02)  # a server that closes without saying so gets the time to do it
        assert (await site.get("http://a.test/unlisted")).status == 404, "the same client still works"


def test_every_judgement_is_of_a_case_that_is_there():
    known = {case.id for case in cases("framing", "coding")}
    assert known >= TAKEN.keys() | DIVERGES.keys() | ELSEWHERE.keys()


# --- redirects: what one hop is worth

ONE_HOP = {
    "redirect/relative-forms", "redirect/location-raw-latin1", "redirect/location-raw-utf8", "redirect/encode-loop",
    "redirect/location-spaces", "redirect/backslashes", "redirect/to-mailto", "redirect/to-file", "redirect/to-rubbish",
    "redirect/to-bad-ipv6", "redirect/no-location", "redirect/empty-location", "redirect/two-locations",
    "redirect/300-with-location", "redirect/303-307-308", "redirect/fragment",
}  # fmt: skip


@pytest.mark.parametrize("case", [case for case in cases("redirect") if case.id in ONE_HOP])
async def test_redirects_hop_by_hop(case):
    expect = case["expect"].get("any_of", [case["expect"]])[0]
    async with bench(case["server"]) as site:
        for seed in case["seeds"]:
            answer = await site.get(seed)
            verdict = judge(seed.partition("#")[0], answer.status, answer.values(b"location"), conditional=False)
            if verdict.result == "redirected":
                await asyncio.sleep(0.02)  # as above
                answer = await site.get(verdict.location)
            else:
                assert (verdict.result, verdict.failure) == (expect["outcome"], expect["failure"])
        if "requests" in expect:
            assert site.server.urls == expect["requests"]
        if "requests_any_order" in expect:
            assert sorted(site.server.urls) == sorted(expect["requests_any_order"])
        assert {seen.method for seen in site.server.seen} == {"GET"}
