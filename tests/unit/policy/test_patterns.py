from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.definitions import Pattern
from streams.errors import UsageError
from streams.policy import urls
from streams.policy.patterns import check_pattern, compile_pattern


@pytest.mark.parametrize(
    ("pattern", "url", "mismatch"),
    [
        (Pattern(), "http://a.org/", ""),
        (Pattern(domain="a.org"), "https://a.org:8443/x", ""),
        (Pattern(domain="A.Org."), "http://a.org/", ""),
        (Pattern(domain="a.org"), "http://a.org./", ""),
        (Pattern(domain="a.org"), "http://user:pw@a.org/", ""),
        (Pattern(domain="a.org"), "http://www.a.org/", "domain"),
        (Pattern(domain="a.org"), "http://a.org.evil.net/", "domain"),
        (Pattern(domain="a.org"), "http://a.org@evil.net/", "domain"),
        (Pattern(domain="*.a.org"), "http://www.a.org/", ""),
        (Pattern(domain="*.a.org"), "http://x.www.a.org/", ""),
        (Pattern(domain="*.a.org"), "http://a.org/", "domain"),
        (Pattern(domain="*a.org"), "http://mya.org/", ""),
        (Pattern(domain="www.*"), "http://www.b.net/", ""),
        (Pattern(domain="www*.a.*"), "http://www2.a.org/", ""),
        (Pattern(domain="www*.a.*"), "http://www2.b.org/", "domain"),
        (Pattern(domain="*"), "http://b.net/", ""),
        (Pattern(domain="Bücher.de"), "http://xn--bcher-kva.de/", ""),
        (Pattern(domain="*.bücher.de"), "http://www.xn--bcher-kva.de/", ""),
        (Pattern(domain="127.0.0.1"), "http://127.0.0.1:8080/", ""),
        (Pattern(domain="[::1]"), "http://[::1]:8080/", ""),
        (Pattern(path="/a"), "http://a.org/abc?d", ""),
        (Pattern(path="/a?d="), "http://a.org/a?d=1", ""),
        (Pattern(path="/a"), "http://a.org/b/a", "path"),
        (Pattern(path="/*/a"), "http://a.org/b/a", ""),
        (Pattern(path="*.pdf$"), "http://a.org/b.pdf", ""),
        (Pattern(path="*.pdf$"), "http://a.org/b.pdf?x", "path"),
        (Pattern(path="/ü"), "http://a.org/%c3%bc", ""),
        (Pattern(path="/%7ea"), "http://a.org/~a", ""),
        (Pattern(regex=r"\?.*page=\d+"), "http://a.org/?x&page=3", ""),
        (Pattern(regex=r"\?.*page=\d+"), "http://a.org/?x&page=b", "regex"),
        (Pattern(regex=r"^https:"), "http://a.org/", "regex"),
        (Pattern(domain="a.org", path="/x"), "http://b.org/x", "domain"),
        (Pattern(domain="a.org", path="/x"), "http://a.org/y", "path"),
        (Pattern(domain="a.org", path="/x", regex="z$"), "http://a.org/xy", "regex"),
        (Pattern(domain="a.org", path="/x", regex="z$"), "http://a.org/xyz", ""),
    ],
)
def test_pattern(pattern: Pattern, url: str, mismatch: str) -> None:
    test = compile_pattern(pattern)
    assert test.mismatch(url) == mismatch
    assert test(url) == (not mismatch)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (Pattern(domain="http://a.org"), "no host name"),
        (Pattern(domain="a.org:80"), "no host name"),
        (Pattern(domain="a.org/x"), "no host name"),
        (Pattern(domain="a org"), "no host name"),
        (Pattern(domain="*ü.org"), "no host name"),
        (Pattern(domain="."), "no host name"),
        (Pattern(path="a"), "does not begin with /"),
        (Pattern(regex="(a"), r"a `\)` is missing"),
    ],
)
def test_a_broken_pattern_is_told_and_matches_nothing(pattern: Pattern, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        check_pattern(pattern)
    test = compile_pattern(pattern)
    assert test.fault
    assert test.mismatch("http://a.org/") == test.fault
    assert not test("http://a.org/")


def test_knows_rules_about_whole_hosts() -> None:
    assert compile_pattern(Pattern(domain="*.a.org")).whole_hosts
    assert not compile_pattern(Pattern(domain="*.a.org", path="/x")).whole_hosts
    assert not compile_pattern(Pattern(regex="x")).whole_hosts


@settings(max_examples=50)
@given(st.builds(Pattern, domain=st.text(), path=st.text(), regex=st.text()), st.text())
def test_never_raises(pattern: Pattern, path: str) -> None:
    url = urls.parse(f"http://a.org/{path}")
    if url is not None:
        compile_pattern(pattern)(url)
