from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import UsageError
from streams.policy.regex import LinearRegex

_TEXTS = [
    "", "a", "A", "b", "ab", "AB", "aab", "abc", "cab", "aXbYc", "a{x}", "a{}", "{a", "a{2", "-", ".pdf", ".pdfx",
    "http://h/1", "x http://", "]", "}", "a b", "0", "_", "%", "ab ab", "\b", "./-", "bcd", "abcd", "a{",
]  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [
        "", "abc", "a.c", r"\.pdf$", "^http://", r"\A", r"\Z", "^$", "a|b", "|a", "(a|)b", "a*", "a+?", "a?b", "a{2}",
        "a{2,}", "a{,2}b", "a{1,2}", "a{", "a{}", "a{x}", "{a", "a{2", "[abc]", "[^abc]", "[a-c]", "[]a]", "[^]a]",
        "[a-]", "[-a]", r"[\d-]", r"[\w.]", r"[\b]", r"\d+", r"\D", r"\w\W", r"\s\S", r"\bab\b", r"\Ba", r"a\B", r"^\b",
        r"\x61", r"\.\/\-", r"\n", "(?:ab)+", "(?P<x>a)b", "((a))", "(?i)aB", "(?i)[a-b]+C", "(?i)[^a]", r"(?i)\w",
        "(a*)*b", "(a|a)*b", "(^a)*b", "(a$)?", "a^b", "a$b", "(ab|a)(c|bcd)", "x*", "(a{0}b)", "]", "}", "a.*b.*c",
    ],
)  # fmt: skip
def test_means_what_it_means_elsewhere(pattern: str) -> None:
    regex = LinearRegex(pattern)
    assert [regex.found_in(text) for text in _TEXTS] == [re.search(pattern, text) is not None for text in _TEXTS]


_atoms = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\w", r"\d", "1", "/", "^", "$", r"\b"])
_patterns = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.builds("({})*".format, inner),
        st.builds("({})?".format, inner),
        st.builds("(?:{}){{1,2}}".format, inner),
        st.builds("({}|{})".format, inner, inner),
        st.builds("{}{}".format, inner, inner),
    ),
    max_leaves=8,
)


@given(_patterns, st.lists(st.text("abc1/", max_size=8), min_size=1, max_size=8))
def test_agrees_with_a_backtracking_engine(pattern: str, texts: list[str]) -> None:
    regex = LinearRegex(pattern)
    for text in texts:
        assert regex.found_in(text) == (re.search(pattern, text) is not None)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("*a", "nothing to repeat at character 1"),
        ("a|*", "nothing to repeat at character 3"),
        ("^*", "nothing to repeat"),
        ("a**", "a quantifier after a quantifier"),
        ("a*+", "a possessive quantifier"),
        ("a{3,2}", "a smallest number above the largest"),
        ("(a", "a `)` is missing"),
        ("a)b", "a `)` that nothing opened at character 2"),
        ("[a", "a `]` is missing"),
        ("[]", "a `]` is missing"),
        ("[b-a]", "a range that ends before it begins"),
        (r"[\d-z]", "a range"),
        (r"(a)\1", "a reference back"),
        (r"\q", "an unknown escape"),
        ("\\", "an unknown escape"),
        ("(?=a)", "looks around"),
        ("(?<!a)b", "looks around"),
        ("(?>a)", "looks around"),
        ("(?s:.)", "sets flags"),
        ("(?x)a", "sets flags"),
        ("bücher", "xn--"),
        ("[é]", "xn--"),
        ("a" * 1001, "longer than 1000 characters"),
        ("(" * 101 + ")" * 101, "more than 100 groups"),
        ("(a{100}){100}", "too large"),
        ("a{99999999999}", "too large"),
    ],
)
def test_says_what_cannot_be_used(pattern: str, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        LinearRegex(pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+$", "a" * 20_000 + "!"),
        ("(a|aa)+$", "a" * 20_000 + "!"),
        ("a.*b.*c.*d", "abc" * 7_000),
        (r"(\w*)*=(\w*)*=", "x" * 20_000),
        ("(a?){50}a{50}$", "a" * 49),
        ("1.{10}$", "".join(f"{n:012b}" for n in range(4096)) + "0" * 11),  # more sets of states than are remembered
    ],
)
def test_is_linear(pattern: str, text: str) -> None:
    regex = LinearRegex(pattern)
    began = time.process_time()
    assert not regex.found_in(text)
    assert time.process_time() - began < 2.0
