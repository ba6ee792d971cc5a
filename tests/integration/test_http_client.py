"""The HTTP client: names, addresses, TLS, what goes out, limits. Some cases of corpora/http take their own set-up."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from collections.abc import Sequence
from typing import Any

import pytest
import trustme

from agents.io.http import Exchange, Request
from streams.policy.retry import rule_for
from tests.servers.bench import QUICK, Names, allowed, bench, cases

# --- names and addresses


async def test_a_name_that_does_not_exist():
    async with bench([], names=Names({"nowhere.test": "NXDOMAIN"}), connect_to=[":80::{http}"]) as site:
        answer = await site.get("http://nowhere.test/")
        assert (answer.failure, answer.evidence) == ("dns", {"dns": "name not known", "phase": "connect"})
        assert site.server.connections == 0


async def test_a_name_server_that_fails_once():
    names = Names({"flaky.test": {"sequence": ["TIMEOUT", ["server"]]}})
    (case,) = [case.values[0] for case in cases("dns") if case.id == "dns/timeout-then-fine"]
    async with bench(case["server"], names=names, connect_to=[":80::{http}"]) as site:
        first, second = [await site.get("http://flaky.test/p") for _ in range(2)]
        assert (first.failure, first.evidence) == ("dns", {"dns": "no answer", "phase": "connect"})
        assert (second.status, second.body) == (200, b"fine")


async def test_a_look_up_that_takes_too_long_is_a_failure_of_the_name_server():
    class Slow(Names):
        async def lookup(self, host: str, port: int) -> Sequence[str]:
            await asyncio.sleep(60)
            return []

    async with bench([], names=Slow(), connect_to=[":80::{http}"], settings={"connect_timeout": 0.2}) as site:
        answer = await site.get("http://slow.test/")
        assert (answer.failure, answer.evidence) == ("dns", {"dns": "no answer", "phase": "connect"})
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
        assert list(answer.evidence) == [host.strip("[]"), "phase"]
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
        (url,) = case["seeds"]
        answer = await site.get(url)
        assert answer.failure is not None
        assert answer.failure == case["expect"]["failure"]
        assert rule_for(answer.failure).retryable == case["expect"]["retry"]
        assert answer.evidence or answer.failure == "timeout"
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
