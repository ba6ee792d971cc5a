"""The HTTP client against hostile servers: the cases of corpora/http that one fetch decides.

What takes a frontier, robots.txt or a parser (links, redirect chains, cookies, politeness between requests) is not
asked here. A case with several accepted outcomes names the one this project takes in `TAKEN`, with the reason.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from agents.io.addresses import open_socket
from agents.io.http import Answer, Exchange, HttpClient, Request
from streams.policy.answers import judge
from streams.settings import Fetch
from tests.servers.hostile import HostileServer
from tests.servers.recipes import render
from tests.suites import corpus

if TYPE_CHECKING:
    from aiohttp import AddrInfoType

SETTINGS = {
    "connect_timeout": 3.0, "first_byte_timeout": 3.0, "stall_timeout": 3.0, "total_timeout": 10.0,
    "max_header": 256 * 1024,
}  # fmt: skip
"""The assumptions of the data."""

QUICK = {"connect_timeout": 1.0, "first_byte_timeout": 1.0, "stall_timeout": 1.0, "total_timeout": 2.0}
"""For cases that only end by a deadline: nothing depends on its length."""


def cases(*categories: str) -> list[Any]:
    data = json.loads(corpus("http/hostile.json").read_text())
    return [pytest.param(case, id=case["id"]) for case in data["cases"] if case["category"] in categories]


@dataclass
class Names:
    """The harness owns resolution and dialling: it notes every dial and refuses those that leave loopback."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    dialled: list[str] = field(default_factory=list)

    async def lookup(self, host: str, port: int) -> Sequence[str]:
        answer = self.answers.get(host, ["server"])
        turn = self.asked[host] = self.asked.get(host, -1) + 1
        if isinstance(answer, dict):
            answer = answer["sequence"][min(turn, len(answer["sequence"]) - 1)]
        if answer == "NXDOMAIN":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if answer == "TIMEOUT":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return ["127.0.0.1" if address == "server" else address for address in answer]

    def dial(self, info: AddrInfoType) -> socket.socket:
        address = str(info[4][0])
        self.dialled.append(address)
        if not address.startswith("127.0.0."):
            raise OSError(101, f"the harness does not dial {address}")
        return open_socket(info)


def allowed() -> Exchange:
    return Exchange(permit=lambda: True, on_sent=lambda _: None)


@dataclass
class Bench:
    """A client, its server, and what was fetched."""

    client: HttpClient
    server: HostileServer
    names: Names

    async def get(
        self,
        url: str,
        *,
        max_body: int = 10 << 20,
        headers: dict[str, str] | None = None,
        exchange: Exchange | None = None,
    ) -> Answer:
        exchange = exchange or allowed()
        try:
            answer = await self.client.fetch(Request(url, max_body, headers or {}), exchange)
        finally:
            self.client.release(exchange)
        assert answer is not None
        return answer


@asynccontextmanager
async def bench(
    routes: Sequence[dict[str, Any]],
    *,
    tls: ssl.SSLContext | None = None,
    trust: ssl.SSLContext | None = None,
    names: Names | None = None,
    connect_to: Sequence[str] = (),
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[Bench]:
    names = names or Names()
    async with HostileServer(routes, tls=tls) as server:
        entries = tuple(entry.format(http=server.http) for entry in connect_to) or server.connect_to()
        fetch = Fetch(**{"allow_private": True, **SETTINGS, **settings, "connect_to": entries})
        client = HttpClient(fetch, lookup=names.lookup, dial=names.dial, tls=trust)
        await client.start()
        try:
            yield Bench(client, server, names)
        finally:
            await client.close()
        assert client.budget.used == 0
        assert server.intruders == 0


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
}
"""Judgement cases whose only listed outcome is not taken: the failure that comes instead."""

ELSEWHERE = {
    "coding/bomb-gz-file": "files unpacked by their type are the sitemap reader's",
}

SLOW = {"framing/slow-body", "framing/underrun-open", "framing/never-answers", "framing/chunked-size-endless",
        "tls/handshake-stall"}  # fmt: skip


def text_of(recipe: Any) -> bytes:
    return b"".join(render(recipe, {}))


def outcome_of(url: str, answer: Answer) -> dict[str, Any]:
    """An answer in the words of the data."""
    if answer.failure:
        return {"outcome": "failed", "failure": answer.failure, "status": answer.status}
    verdict = judge(url, answer.status, answer.values(b"location"), conditional=False)
    if verdict.failure:
        return {"outcome": "failed", "failure": verdict.failure, "status": answer.status}
    if answer.truncated:
        return {"outcome": "truncated", "reason": answer.truncated, "status": answer.status}
    return {"outcome": "fetched", "status": answer.status}


def misses(expect: dict[str, Any], url: str, answer: Answer, server: HostileServer) -> list[str]:
    """Which expectations an answer does not meet."""
    got = outcome_of(url, answer)
    wrong = [
        f"{name}: {got.get(name)!r} is not {expect[name]!r}"
        for name in ("outcome", "failure", "reason", "status")
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
        assert [answer.failure for answer in answers.values()] == [DIVERGES[case["id"]]]
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


# --- names and addresses


async def test_a_name_that_does_not_exist():
    async with bench([], names=Names({"nowhere.test": "NXDOMAIN"}), connect_to=[":80::{http}"]) as site:
        answer = await site.get("http://nowhere.test/")
        assert (answer.failure, answer.evidence) == ("dns", {"dns": "name not known"})
        assert site.server.connections == 0


async def test_a_name_server_that_fails_once():
    names = Names({"flaky.test": {"sequence": ["TIMEOUT", ["server"]]}})
    (case,) = [case.values[0] for case in cases("dns") if case.id == "dns/timeout-then-fine"]
    async with bench(case["server"], names=names, connect_to=[":80::{http}"]) as site:
        first, second = [await site.get("http://flaky.test/p") for _ in range(2)]
        assert (first.failure, first.evidence) == ("dns", {"dns": "no answer"})
        assert (second.status, second.body) == (200, b"fine")


async def test_a_look_up_that_takes_too_long_is_a_failure_of_the_name_server():
    class Slow(Names):
        async def lookup(self, host: str, port: int) -> Sequence[str]:
            await asyncio.sleep(60)
            return []

    async with bench([], names=Slow(), connect_to=[":80::{http}"], settings={"connect_timeout": 0.2}) as site:
        answer = await site.get("http://slow.test/")
        assert (answer.failure, answer.evidence) == ("dns", {"dns": "no answer"})
        assert answer.end - answer.start < 2


async def test_a_dead_address_first():
    (case,) = [case.values[0] for case in cases("dns") if case.id == "dns/dead-address-first"]
    async with bench(case["server"], names=Names(case["dns"]), connect_to=[":80::{http}"]) as site:
        answer = await site.get("http://two.test/p")
        assert (answer.status, answer.body, answer.address) == (200, b"fine", "127.0.0.1")
        assert site.names.dialled == ["127.0.0.9", "127.0.0.1"]


PRIVATE = ["10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "169.254.169.254", "0.0.0.0", "255.255.255.255",
           "224.0.0.1", "127.0.0.1", "[::1]", "[::ffff:10.0.0.1]", "[64:ff9b::a00:1]", "[2002:a00:1::]", "[fe80::1]",
           "[fd00::1]"]  # fmt: skip


@pytest.mark.parametrize("host", PRIVATE)
async def test_a_literal_of_a_private_address_is_never_dialled(host):
    async with bench([], settings={"allow_private": False}, connect_to=["a.test:80:127.0.0.1:{http}"]) as site:
        answer = await site.get(f"http://{host}:{site.server.other}/x")
        assert answer.failure == "ssrf"
        assert list(answer.evidence) == [host.strip("[]")]
        assert site.names.dialled == []
        assert (await site.get("http://a.test/unlisted")).status == 404, "what the operator wrote down is exempt"


@pytest.mark.parametrize("case", [case for case in cases("ssrf") if "dns" in case.values[0]])
async def test_a_name_that_leads_to_a_private_address_is_never_dialled(case):
    links = [link for link in ("intern", "mixed", "rebind", "blocked") if f"{link}.test" in case["dns"]]
    settings = {"allow_private": False}
    async with bench(case["server"], names=Names(case["dns"]), settings=settings, connect_to=[":80::{http}"]) as site:
        for link in links:
            for _ in range(3):
                answer = await site.get(f"http://{link}.test/x")
                assert answer.failure == "ssrf", answer
        assert site.names.dialled == []  # documentation addresses are not public either


async def test_of_a_mixed_answer_only_the_public_address_is_dialled():
    names = Names({"mixed.test": ["10.0.0.5", "192.0.43.8"]})
    async with bench([], names=names, settings={"allow_private": False}, connect_to=[":80::{http}"]) as site:
        assert (await site.get("http://mixed.test/x")).failure == "connection"
        assert set(names.dialled) == {"192.0.43.8"}


async def test_an_exempt_address_is_exempt_for_its_own_host_only():
    async with bench([], settings={"allow_private": False}, connect_to=["a.test:80:127.0.0.1:{http}"]) as site:
        assert (await site.get("http://a.test/unlisted")).status == 404
        assert (await site.get(f"http://127.0.0.1:{site.server.http}/unlisted")).failure == "ssrf"


# --- TLS

AUTHORITY = trustme.CA()
STRANGER = trustme.CA()
NOW = dt.datetime.now(dt.UTC)


def certificate(kind: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority = AUTHORITY if kind in ("good", "expired", "wrong.host") else STRANGER
    name = "elsewhere.test" if kind == "wrong.host" else "tls.test"
    after = NOW - dt.timedelta(days=1) if kind == "expired" else NOW + dt.timedelta(days=1)
    authority.issue_cert(name, not_before=NOW - dt.timedelta(days=2), not_after=after).configure_cert(context)
    return context


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


@pytest.mark.parametrize("case", cases("tls"))
async def test_nothing_is_sent_over_a_connection_that_is_not_verified(case):
    tls = certificate(case["tls"]["certificate"]) if "tls" in case else None
    async with bench(case["server"], tls=tls, trust=trusting(), settings=QUICK if tls is None else {}) as site:
        answers = {url: await site.get(url) for url in case["seeds"]}
        check(case, answers, site.server)
        assert site.names.dialled == ["127.0.0.1"]
        assert site.server.seen == []


async def test_a_verified_connection_carries_the_request():
    route = {
        "host": "tls.test",
        "path": "/",
        "scheme": "https",
        "response": {"status": 200, "headers": [], "body": "ok"},
    }
    async with bench([route], tls=certificate("good"), trust=trusting()) as site:
        assert (await site.get("https://tls.test/")).body == b"ok"


# --- what goes out


def page(path: str, **response: Any) -> dict[str, Any]:
    return {"host": "a.test", "path": path, "response": {"status": 200, "headers": [], "body": "ok", **response}}


async def test_the_request_is_byte_exact_and_carries_nothing_of_ours_but_what_it_must():
    odd = "/foo%2zbar/%41/..%2f?b=%41&c=[x]&d='"
    cookie = page(odd, headers=[["Set-Cookie", "a=1"]])
    async with bench([cookie], settings={"user_agent": "fyke/test"}) as site:
        for _ in range(2):
            assert (await site.get(f"http://a.test{odd}", headers={"X-Own": "1", "Host": "b.test"})).status == 200
        for seen in site.server.seen:
            assert sorted(seen.headers) == sorted([
                ("Host", "a.test"), ("User-Agent", "fyke/test"), ("X-Own", "1"),
                ("Accept-Encoding", "gzip, deflate, br, zstd"),
                ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
            ])  # fmt: skip
        assert site.server.connections == 1, "kept alive"


async def test_silent_resend_is_off():
    """A kept-alive connection that breaks after the request: one request on the wire, and a failure."""
    routes = [page("/first"), page("/second", raw="", then="close")]
    async with bench(routes) as site:
        assert (await site.get("http://a.test/first")).status == 200
        exchange = allowed()
        answer = await site.get("http://a.test/second", exchange=exchange)
        assert (answer.failure, exchange.reused) == ("connection", True)
        assert site.server.urls == ["http://a.test/first", "http://a.test/second"]


async def test_the_moment_of_sending_is_told_after_connecting():
    sent: list[float] = []
    async with bench([page("/")]) as site:
        exchange = Exchange(permit=lambda: True, on_sent=sent.append)
        answer = await site.get("http://a.test/", exchange=exchange)
        assert sent == [exchange.sent]
        assert exchange.start < exchange.sent == answer.start <= answer.first_byte <= answer.end


@pytest.mark.parametrize(("permits", "connections"), [([False], 0), ([True, False], 1)], ids=["before", "connected"])
async def test_without_permission_nothing_is_sent(permits, connections):
    asked = iter(permits)
    async with bench([page("/")]) as site:
        exchange = Exchange(permit=lambda: next(asked), on_sent=lambda _: None)
        assert await site.client.fetch(Request("http://a.test/", 100), exchange) is None
        await asyncio.sleep(0.02)
        assert (site.server.connections, site.server.seen, exchange.sent) == (connections, [], 0.0)


# --- limits


async def test_a_body_over_its_limit_is_cut_there_and_one_of_exactly_the_limit_is_whole():
    body = {"repeat": "a", "times": 1000}
    async with bench([page("/p", body=body)]) as site:
        cut = await site.get("http://a.test/p", max_body=999)
        assert (len(cut.body), cut.truncated) == (999, "length")
        whole = await site.get("http://a.test/p", max_body=1000)
        assert (len(whole.body), whole.truncated) == (1000, None)


async def test_the_body_of_an_error_is_not_kept_and_a_short_one_keeps_the_connection():
    routes = [page("/short", status=404), page("/long", status=404, body={"endless": "x"}), page("/p")]
    async with bench(routes) as site:
        assert (await site.get("http://a.test/short")).body == b""
        await site.get("http://a.test/short")
        assert site.server.connections == 1
        assert (await site.get("http://a.test/long")).status == 404
        assert (await site.get("http://a.test/p")).body == b"ok"
        assert site.server.connections == 2


async def test_bodies_share_one_budget_and_never_wait_for_each_other_for_ever():
    body = {"repeat": "a", "times": 1_000_000}
    async with bench(
        [page("/p{i}", body=body) | {"generate": {"from": 0, "to": 7}}], settings={"body_budget": 1_500_000}
    ) as site:
        peak = 0

        async def fetch(number: int) -> int:
            nonlocal peak
            exchange = allowed()
            answer = await site.client.fetch(Request(f"http://a.test/p{number}", 10 << 20), exchange)
            peak = max(peak, site.client.budget.used)
            await asyncio.sleep(0.01)
            site.client.release(exchange)
            assert answer is not None
            return len(answer.body)

        assert await asyncio.gather(*map(fetch, range(8))) == [1_000_000] * 8
        assert peak <= 2_500_000


async def test_cancelling_a_request_leaves_nothing_behind():
    async with bench([page("/p", body={"endless": "x"}, pace={"bytes": 100, "every_ms": 10})]) as site:
        exchange = allowed()
        task = asyncio.ensure_future(site.get("http://a.test/p", exchange=exchange))
        await asyncio.sleep(0.2)
        assert exchange.held > 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (exchange.held, exchange.address) == (0, "127.0.0.1")


async def test_odd_host_names_are_a_failure_of_their_own():
    async with bench([], connect_to=[":80::{http}"]) as site:
        for host in ("a" * 64 + ".test", "a..test", "-.test", "xn--a.test"):
            answer = await site.get(f"http://{host}/")
            assert answer.failure in ("dns", "http_status", None), (host, answer)
