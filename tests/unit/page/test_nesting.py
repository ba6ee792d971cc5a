from __future__ import annotations

import time

import pytest

from streams.page.nesting import HARMLESS, MAX_ATTRIBUTES, MAX_DEPTH, within_bounds
from streams.page.parse import Limits, parse_page
from streams.policy.urls import Joiner
from tests.unit.page.pages import page

PAD = b" " * HARMLESS


@pytest.mark.parametrize(
    "markup",
    [
        b"<div>" * 100_000,
        b"<ul><li>" * 50_000,
        b"<b><p>" * 50_000,
        b"<x " + b" ".join(b"a%d" % n for n in range(100_000)) + b">",
        b"<p>text</p>" + b"<x " + b"/".join(b"a%d='1'" % n for n in range(50_000)),
    ],
)
def test_excess_is_cut_and_what_comes_before_it_is_kept(markup: bytes) -> None:
    began = time.process_time()
    parsed = parse_page(page("http://a.test/"), b'<a href="/x">x</a>' + markup, Joiner, Limits(text=1000, links=10))
    assert parsed.links == ["http://a.test/x"]
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "markup",
    [
        b"<div>" * MAX_DEPTH + PAD,
        b"<div><p>x</div>" * 20_000,
        b"<br><img src=x><li><p>" * 20_000,
        b"<a href='data:," + b"x y=/" * 40_000 + b"'>z</a>",
        b"<x " + b" a" * (MAX_ATTRIBUTES - 2) + PAD + b">",
        b"<p>" + b"words and words, 1 < 2 " * 20_000,
        b"words without any tag " * 10_000,
        b"<script>" + b"if (a < b) c = 'd'; " * 20_000 + b"</script>",
        b"<div>" * 10_000,
    ],
)
def test_honest_pages_are_untouched(markup: bytes) -> None:
    assert within_bounds(markup) is markup


def test_what_is_cut_begins_with_the_tag_too_many() -> None:
    assert within_bounds(b"<DIV>" * (MAX_DEPTH + 1) + PAD) == b"<DIV>" * MAX_DEPTH
    assert within_bounds(b"<div>" * 3 + PAD + b"<p" + b" a" * 100_000) == b"<div>" * 3 + PAD
