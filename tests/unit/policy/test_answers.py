"""What statuses and Location lines lead to."""

from __future__ import annotations

import pytest

from streams.policy.answers import FETCHED, UNCHANGED, judge, not_accepted

URL = "http://a.test/dir/page?q"


@pytest.mark.parametrize("status", [200, 201, 203, 204, 206, 299])
def test_every_2xx_is_a_page(status):
    assert judge(URL, status, [b"/elsewhere"], conditional=False) == FETCHED


def test_304_is_no_change_only_where_it_was_asked_for():
    assert judge(URL, 304, [], conditional=True) == UNCHANGED
    assert judge(URL, 304, [], conditional=False).failure == "http_status"


@pytest.mark.parametrize("status", [101, 300, 305, 306, 400, 404, 410, 429, 451, 500, 503, 999])
def test_every_other_status_is_a_failure(status):
    verdict = judge(URL, status, [], conditional=True)
    assert (verdict.result, verdict.failure, verdict.reason) == ("failed", "http_status", f"status {status}")


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    ("location", "target"),
    [
        (b"x", "http://a.test/dir/x"),
        (b"?r", "http://a.test/dir/page?r"),
        (b"//b.test/", "http://b.test/"),
        (b"\\\\b.test\\x", "http://b.test/x"),
        (b"  /some page \t", "http://a.test/some%20page"),
        (b"https://a.test/y#fragment", "https://a.test/y"),
        ("/café".encode(), "http://a.test/caf%C3%A9"),
        (b"/synspr\xf8ve", "http://a.test/synspr%F8ve"),
    ],
)
def test_a_location_is_resolved_against_the_url(status, location, target):
    verdict = judge(URL, status, [location], conditional=False)
    assert (verdict.result, verdict.location) == ("redirected", target)


@pytest.mark.parametrize(
    ("locations", "failure"),
    [
        ([], "redirect_no_location"),
        ([b""], "redirect_bad_url"),
        ([b" \t"], "redirect_bad_url"),
        ([b"/one", b"/two"], "redirect_bad_url"),
        ([b"http://]/"], "redirect_bad_url"),
        ([b"http://not a host/"], "redirect_bad_url"),
        ([b"mailto:user@example.test"], "redirect_scheme"),
        ([b"file:///etc/passwd"], "redirect_scheme"),
        ([b"JavaScript:void(0)"], "redirect_scheme"),
    ],
)
def test_a_redirect_that_leads_nowhere_is_a_failure_of_its_kind(locations, failure):
    verdict = judge(URL, 302, locations, conditional=False)
    assert (verdict.result, verdict.failure) == ("failed", failure)


def test_the_same_location_twice_is_one_location():
    assert judge(URL, 302, [b"/x", b"/x"], conditional=False).location == "http://a.test/x"


@pytest.mark.parametrize(
    ("accept", "lines", "found"),
    [
        ((), ["image/png"], ""),
        (("text/html",), ["text/html; charset=utf-8"], ""),
        (("Text/HTML",), ["TEXT/html"], ""),
        (("text/*", "image/png"), ["text/csv"], ""),
        (("text/*", "image/png"), ["image/png"], ""),
        (("text/*", "image/png"), ["Image/GIF;q=1"], "image/gif"),
        (("*/*",), ["image/gif"], ""),
        (("text/html",), [], ""),  # nothing is said: the body decides what it is
        (("text/html",), [" "], ""),
        (("text/html",), ["text/html", "application/pdf"], "application/pdf"),
    ],
)
def test_media_types_that_are_not_taken(accept: tuple[str, ...], lines: list[str], found: str) -> None:
    assert not_accepted(accept, lines) == found
