from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.page.links import is_followed, refresh_target, rels, resolve
from streams.policy.urls import Joiner


@pytest.mark.parametrize(
    ("content", "target"),
    [
        ("0; url=/t", "/t"),
        ("0;URL='/t?a=1&b=2'", "/t?a=1&b=2"),
        ('5 , url = "/a b" ignored', "/a b"),
        ("0; URL=\n/t.html", "/t.html"),
        ("0 /t", "/t"),
        ("1.5.2;/t", "/t"),
        (".5; url=/t", "/t"),
        ("0;url", "url"),
        ("0; '/t", "/t"),
        ("600", None),
        ("600;", None),
        ("0;url=", None),
        ("0; url=''", None),
        ("0url=/t", None),
        ("x; url=/t", None),
        ("", None),
    ],
)
def test_refresh(content: str, target: str | None) -> None:
    assert refresh_target(content) == target


@given(st.text(max_size=60))
def test_any_refresh(content: str) -> None:
    refresh_target("0;" + content)


@pytest.mark.parametrize(
    ("rel", "followed"),
    [
        ("next", True),
        ("PREV x", True),
        ("alternate", True),
        ("alternate\nstylesheet", False),
        ("stylesheet", False),
        ("canonical", False),
        ("", False),
        (None, False),
    ],
)
def test_link_rels(rel: str | None, followed: bool) -> None:
    assert is_followed(rels(rel)) is followed


def test_distinct_in_order_and_bounded() -> None:
    join = Joiner("http://a.test/d/p", None)
    hrefs = ["b", "a", "b#x", "mailto:x@a.test", "/d/a", "b"]
    assert resolve(hrefs, join, 100) == (["http://a.test/d/b", "http://a.test/d/a"], 0)
    assert resolve(hrefs, join, 1) == (["http://a.test/d/b"], 4)
