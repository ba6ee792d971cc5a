from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.definitions import Scope, ScopeMode, ScopeRule
from streams.errors import UsageError
from streams.policy import urls
from streams.policy.scope import compile_scope, scope_for

RULES = (
    ScopeRule(id="no-print", regex="[?&]print="),
    ScopeRule(id="shop", domain="shop.h.example", path="/list"),
    ScopeRule(id="partner", domain="*.partner.example", allow=True),
    ScopeRule(id="broken", regex="("),
    ScopeRule(id="docs", path="/docs/", allow=True),
    ScopeRule(id="later", path="/docs/private/"),
)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("http://h.example/", ""),
        ("http://x.example/", "scope:host"),
        ("http://h.example/a?print=1", "scope:no-print"),
        ("http://a.partner.example/", ""),
        ("http://a.partner.example/?print=1", "scope:no-print"),  # the first rule decides
        ("http://partner.example/", "scope:host"),
        ("http://x.example/docs/a", ""),
        ("http://x.example/docs/private/", ""),
        ("http://shop.h.example/list?page=2", "scope:shop"),
        ("http://shop.h.example/", "scope:host"),
    ],
)
def test_rules_come_before_the_mode(url: str, rule: str) -> None:
    assert compile_scope(Scope(mode="host", values=("h.example",)), RULES)(url) == rule


@pytest.mark.parametrize(
    ("mode", "values", "url", "included"),
    [
        ("any", (), "http://anywhere/", True),
        ("host", ("example.org",), "http://example.org/", True),
        ("host", ("example.org",), "https://example.org:8443/x", True),
        ("host", ("example.org",), "http://user:pw@example.org/", True),
        ("host", ("example.org",), "http://example.org./", True),
        ("host", ("Example.ORG.",), "http://example.org/", True),
        ("host", ("bücher.de",), "http://xn--bcher-kva.de/", True),
        ("host", ("example.org",), "http://www.example.org/", False),
        ("host", ("example.org",), "http://example.org.evil.net/", False),
        ("host", ("example.org",), "http://example.org@evil.net/", False),
        ("host", ("example.org", "b.net"), "http://b.net/", True),
        ("host", ("127.0.0.1:8080",), "http://127.0.0.1:8080/x", True),
        ("host", ("127.0.0.1:8080",), "http://127.0.0.1:8081/x", False),
        ("host", ("127.0.0.1:8080",), "http://127.0.0.1/x", False),
        ("host", ("example.org:443",), "https://example.org/", True),
        ("host", ("example.org:443",), "http://example.org/", False),
        ("host", ("example.org:0080",), "http://example.org/", True),
        ("host", ("[::1]",), "http://[::1]:8080/", True),
        ("host", ("[::1]:8080",), "http://[::1]:8080/", True),
        ("host", ("[::1]:8080",), "http://[::1]:81/", False),
        ("host", ("a:b:c", "a/b", "", "u@example.org", "x y"), "http://example.org/", False),
        ("host", (), "http://example.org/", False),
        ("domain", ("example.org",), "http://www.example.org:81/", True),
        ("domain", ("docs.example.org",), "http://www.example.org/", True),
        ("domain", ("example.org",), "http://example.org./", True),
        ("domain", ("example.org",), "http://myexample.org/", False),
        ("domain", ("a.co.uk",), "http://b.co.uk/", False),
        ("domain", ("co.uk",), "http://b.co.uk/", False),
        ("domain", ("127.0.0.1",), "http://127.0.0.1:8080/", True),
        ("domain", ("1.0.0.127",), "http://2.0.0.127/", False),
        ("domain", ("localhost",), "http://localhost:8080/", True),
        ("domain", ("not a host",), "http://not/", False),
        ("prefix", ("http://example.org/docs/",), "http://example.org/docs/a?b", True),
        ("prefix", ("http://example.org/docs/",), "http://example.org/docs", False),
        ("prefix", ("http://example.org/docs",), "http://example.org/docs-old", True),
        ("prefix", ("HTTP://Example.org:80/a/../docs/",), "http://example.org/docs/", True),
        ("prefix", ("http://example.org",), "http://example.org.evil.net/", False),
        ("prefix", ("http://example.org/",), "https://example.org/", False),
        ("prefix", ("example.org/docs", "mailto:x"), "http://example.org/docs", False),
        ("prefix", (), "http://example.org/", False),
    ],
)
def test_scope(mode: ScopeMode, values: tuple[str, ...], url: str, included: bool) -> None:
    judge = compile_scope(Scope(mode=mode, values=values))
    assert judge(url) == ("" if included else f"scope:{mode}")
    assert judge(url) == ("" if included else f"scope:{mode}")  # remembered


@pytest.mark.parametrize(
    ("mode", "seeds", "values"),
    [
        ("any", ["http://a/"], ()),
        ("host", ["https://a.org/x", "http://u@b.org:80/", "http://a.org/"], ("a.org", "b.org")),
        ("host", ["http://127.0.0.1:8080/"], ("127.0.0.1:8080",)),
        ("domain", ["https://www.a.org/", "https://docs.a.org/", "http://[::1]:81/"], ("a.org", "[::1]")),
        ("prefix", ["http://a.org/docs/x.html?q=/z", "http://b.org"], ("http://a.org/docs/", "http://b.org/")),
    ],
)
def test_scope_for(mode: ScopeMode, seeds: list[str], values: tuple[str, ...]) -> None:
    assert scope_for(mode, seeds) == Scope(mode=mode, values=values)


@pytest.mark.parametrize("mode", ["any", "host", "domain", "prefix"])
def test_a_seed_that_is_no_url_is_refused(mode: ScopeMode) -> None:
    with pytest.raises(UsageError, match=r"example\.org/x"):
        scope_for(mode, ["http://a/", "example.org/x"])


@settings(deadline=None)
@given(st.text(st.characters(codec=None, exclude_categories=())), st.sampled_from(["host", "domain", "prefix", "any"]))
def test_no_value_breaks_a_scope(value: str, mode: ScopeMode) -> None:
    assert compile_scope(Scope(mode=mode, values=(value,)))("http://example.org/") in ("", f"scope:{mode}")


@given(
    st.sampled_from(
        ["http://a.org/x/y", "https://b.a.org:81/?q", "http://[::1]/", "http://1.2.3.4:8/", "http://co.uk./"]
    ),
    st.sampled_from(["host", "domain", "prefix", "any"]),
)
def test_a_seed_lies_in_its_own_scope(seed: str, mode: ScopeMode) -> None:
    wire = urls.parse(seed)
    assert wire is not None
    assert compile_scope(scope_for(mode, [seed]))(wire) == ""
