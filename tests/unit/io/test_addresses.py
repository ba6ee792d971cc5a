"""The address guard, `--connect-to`, and looking names up. What is dialled: `tests/integration/test_http_client`."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.io.addresses import NameResolver, Route, parse_route, refusal
from streams.errors import SettingsError


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("10.255.255.255", "private"),
        ("100.64.0.1", "shared (CGNAT)"),
        ("100.127.255.255", "shared (CGNAT)"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("169.254.169.254", "link-local"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.0.0.8", "reserved"),
        ("192.0.2.1", "documentation"),
        ("192.168.1.1", "private"),
        ("198.19.255.255", "benchmarking"),
        ("198.51.100.7", "documentation"),
        ("203.0.113.7", "documentation"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("::7f00:1", "reserved (IPv4-compatible)"),
        ("::ffff:127.0.0.1", "loopback (127.0.0.1 as IPv4-mapped)"),
        ("::ffff:169.254.169.254", "link-local (169.254.169.254 as IPv4-mapped)"),
        ("64:ff9b::10.0.0.1", "private (10.0.0.1 as NAT64)"),
        ("64:ff9b:1::8.8.8.8", "private (NAT64)"),
        ("64:ff9b:2::1", "reserved"),
        ("100::1", "reserved"),
        ("2001:0:4136:e378:8000:63bf:f5ff:fffe", "private (10.0.0.1 as Teredo)"),
        ("2001:0:7f00:1::f7f7:f7f7", "loopback (127.0.0.1 as Teredo)"),
        ("2001:2::1", "benchmarking"),
        ("2001:db8::1", "documentation"),
        ("2001:20::1", "reserved"),
        ("2002:c0a8:101::1", "private (192.168.1.1 as 6to4)"),
        ("3fff::1", "documentation"),
        ("4000::1", "reserved"),
        ("fc00::1", "private"),
        ("fd12:3456::1", "private"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "private"),
        ("ff02::1", "multicast"),
    ],
)
def test_what_is_not_public_is_refused_by_name(address, kind):
    assert refusal(address) == kind


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
        "172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0", "223.255.255.255",
        "2001:4860:4860::8888", "2606:4700::1", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
        "2002:808:808::1", "2001:0:4136:e378:8000:63bf:f7f7:f7f7",
    ],
)  # fmt: skip
def test_what_is_public_is_not_refused(address):
    assert refusal(address) == ""


@given(st.ip_addresses(v=4))
def test_no_form_of_an_address_says_more_than_the_address(address):
    value = int(address)
    forms = [
        ipaddress.IPv6Address((0xFFFF << 32) | value),
        ipaddress.IPv6Address((0x64FF9B << 96) | value),
        ipaddress.IPv6Address((0x2002 << 112) | (value << 80)),
    ]
    assert {bool(refusal(str(form))) for form in forms} == {bool(refusal(str(address)))}


@given(st.ip_addresses(v=4))
def test_what_the_standard_library_calls_private_is_refused(address):
    if address.is_private or address.is_multicast or address.is_reserved or address.is_link_local:
        assert refusal(str(address))


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("www.a.test:443:127.0.0.1:8443", Route("www.a.test", 443, "127.0.0.1", 8443)),
        ("A.Test.:80:b.test:81", Route("a.test", 80, "b.test", 81)),
        ("::127.0.0.1:8080", Route("", 0, "127.0.0.1", 8080)),
        (":80::8080", Route("", 80, "", 8080)),
        ("[::1]:80:[2001:db8::1]:81", Route("::1", 80, "2001:db8::1", 81)),
        (":::", Route("", 0, "", 0)),
    ],
)
def test_connect_to_is_read_as_curl_reads_it(text, route):
    assert parse_route(text) == route


@pytest.mark.parametrize(
    "text", ["", "a", "a:80:b", "a:x:b:1", "a:80:b:99999", "a:-1:b:1", "::1:80:::1:81", "a:80:b:1:2", "a:80:b:1 "]
)
def test_what_is_no_connect_to_is_a_clear_error(text):
    with pytest.raises(SettingsError, match="HOST:PORT:ADDR:PORT"):
        parse_route(text)


def test_which_requests_an_entry_speaks_for():
    exact, any_host, any_port = parse_route("a.test:80:::"[:-1]), parse_route(":80:x:1"), parse_route("a.test::x:1")
    assert exact.matches("A.TEST.", 80)
    assert not exact.matches("a.test", 443)
    assert any_host.matches("b.test", 80)
    assert not any_host.matches("b.test", 81)
    assert any_port.matches("a.test", 9)
    assert not any_port.matches("b.test", 9)


def test_only_an_address_somebody_wrote_down_is_exempt():
    assert parse_route("a.test:80:127.0.0.1:81").exempt
    assert not parse_route("a.test:80::81").exempt


async def test_names_of_this_machine_are_looked_up_by_the_system():
    resolver = NameResolver(5.0)
    try:
        found = await resolver.resolve("localhost", 80)
        assert {answer["host"] for answer in found} <= {"127.0.0.1", "::1"}
        assert {(answer["port"], answer["family"]) for answer in found} <= {(80, socket.AF_INET), (80, socket.AF_INET6)}
    finally:
        await resolver.close()


@pytest.mark.parametrize("host", ["a" * 64, "a" * 300, "..", ""])
async def test_a_name_that_cannot_be_one_is_an_error_of_the_look_up(host):
    resolver = NameResolver(5.0)
    try:
        with pytest.raises(OSError, match=r"."):
            await resolver.resolve(host, 80)
    finally:
        await resolver.close()


@pytest.mark.parametrize(("answer", "error"), [([], socket.EAI_NONAME), (None, socket.EAI_AGAIN)])
async def test_no_address_and_no_answer_are_told_apart(answer, error):
    async def lookup(host: str, port: int) -> list[str]:
        if answer is None:
            await asyncio.sleep(60)
        return answer or []

    resolver = NameResolver(0.05, lookup)
    with pytest.raises(socket.gaierror) as raised:
        await resolver.resolve("a.test", 80)
    assert raised.value.errno == error
    await resolver.close()
