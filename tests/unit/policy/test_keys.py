"""Keys under the options of a crawl."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streams.definitions import Keys
from streams.policy import urls
from streams.policy.keys import TRACKING, canonical_by, unescaped
from tests.suites import ROOT
from tests.unit.policy.test_urls import WIRES

ALL = Keys(tracking=True, sessions=True, drop=("x*", "id"), sort_query=True, strip_www=True, strip_user=True,
           merge_slashes=True, unescape=True)  # fmt: skip
OPTIONS = [Keys(**{name: value}) for name, value in msgspec.structs.asdict(ALL).items()]
ANY_KEYS = st.sampled_from([Keys(), ALL, *OPTIONS]) | st.builds(
    Keys, tracking=st.booleans(), sessions=st.booleans(), drop=st.sampled_from([(), ("a",), ("*",), ("[?]*", "b*")]),
    sort_query=st.booleans(), strip_www=st.booleans(), strip_user=st.booleans(), merge_slashes=st.booleans(),
    unescape=st.booleans(),
)  # fmt: skip
PIECES = st.sampled_from([
    "/", "//", "%", "%25", "%2", "5", "41", "%2F", "%3f", "&", "=", "?", ";jsessionid=1", ";", "utm_source=a", "b=",
    "(a(abcdefghijklmnopqrstu)S(abcdefghijklmnopqrstu))", "(S(abcdefghijklmnopqrstu))", "sid=abcdefghijklmnopqrstuvwx",
    "a", "..", "+", "é", "\x7f", "www.", "jsessionid=", "x", "[", "|",
])  # fmt: skip
HOSTS = st.sampled_from(
    ["h", "www.h", "www.example.org", "www.www.org", "u:%7e@www.www.a.b:81", "@h", "[::1]:80", "www.1.2.3.4.x"]
)
LONG_WAYS = st.builds(
    lambda host, pieces: urls.parse(f"http://{host}/{''.join(pieces)}"), HOSTS, st.lists(PIECES, max_size=9)
).filter(bool)
SESSION = "9682993c8daa2c5497996114facdc805"


@pytest.mark.parametrize(
    ("options", "wire", "key"),
    [
        ({"tracking": True}, "http://h/?utm_source=a&b=1&UTM_x=&fbclid", "http://h/?b=1"),
        ({"tracking": True}, "http://h/?b=&&a&gclid=1", "http://h/?b=&&a"),
        ({"tracking": True}, "http://h/p?gclid=1", "http://h/p"),
        ({"tracking": True}, "http://h/p?utm%5fsource=1", "http://h/p"),
        ({"tracking": True}, "http://h/?", "http://h/?"),
        ({"tracking": True}, "http://h/?xutm_a=1&id=gclid", "http://h/?xutm_a=1&id=gclid"),
        ({"drop": ("a", "b*c")}, "http://h/?a=1&A=2&bc=3&bxxc&bxd&ab", "http://h/?A=2&bxd&ab"),
        ({"drop": ("a[?]",)}, "http://h/?a[?]=1&a1=2", "http://h/?a1=2"),
        ({"drop": ("*",)}, "http://h/?a=1&b=2", "http://h/"),
        ({"sessions": True}, f"http://h/?a=1&PHPSESSID={SESSION}&jsessionid=x", "http://h/?a=1"),
        ({"sessions": True}, f"http://h/?sid={SESSION}&sessionid={SESSION}&session_id={SESSION}", "http://h/"),
        (
            {"sessions": True},
            "http://h/?sid=17&session=2",
            "http://h/?sid=17&session=2",
        ),  # those may be about something
        ({"sessions": True}, "http://h/a;jsessionid=1.n2;v=1/b;JSESSIONID=2?c", "http://h/a;v=1/b?c"),
        ({"sessions": True}, "http://h/(S(4hqa0555fwsecu455xqckv45))/m.aspx", "http://h/m.aspx"),
        ({"sessions": True}, "http://h/(S(4hqa0555fwsecu455xqckv45))", "http://h/"),
        ({"sessions": True}, "http://h/(S(short))/m.aspx", "http://h/(S(short))/m.aspx"),
        ({"sort_query": True}, "http://h/?b=2&a=&&=9&b=1&c", "http://h/?a&b=1&b=2&c"),
        ({"sort_query": True}, "http://h/x?&", "http://h/x"),
        ({"sort_query": True}, "http://h/?", "http://h/"),
        ({"strip_www": True}, "https://www.example.org:81/www.x", "https://example.org:81/www.x"),
        ({"strip_www": True}, "https://www.www.example.org/", "https://example.org/"),
        ({"strip_www": True}, "https://www.org/", "https://www.org/"),
        ({"strip_www": True}, "https://u@www.example.org/", "https://u@example.org/"),
        ({"strip_www": True}, "https://www2.example.org/", "https://www2.example.org/"),
        ({"strip_user": True}, "https://u:p%40@h:81/@", "https://h:81/@"),
        ({"merge_slashes": True}, "http://h//a///b//?c//d", "http://h/a/b/?c//d"),
        ({"unescape": True}, "http://h/%2541%2525%7e%", "http://h/A%25~%25"),
        ({"unescape": True}, "http://h/%252F%3f%3B?a%26b=%3d%2B+%2F", "http://h/%2F%3F%3B?a%26b=%3D%2B+/"),
        ({"unescape": True}, "http://h/[{|}]%0a%e4?\\", "http://h/[{|}]%0A%E4?\\"),
        ({}, "http://www.h/%7e%2f//?b&a", "http://www.h/~%2F//?b&a"),
        (msgspec.structs.asdict(ALL), "http://u@www.h.x//a;jsessionid=1?b=&a=1&utm_id=3&xy", "http://h.x/a?a=1&b"),
    ],
)
def test_an_option_merges_spellings(options: dict[str, Any], wire: str, key: str) -> None:
    assert canonical_by(Keys(**options))(wire) == key


def test_without_options_nothing_is_added_to_what_is_safe() -> None:
    assert canonical_by(Keys()) is urls.canonical
    assert canonical_by(msgspec.json.decode(b"{}", type=Keys)) is urls.canonical


@settings(deadline=None, max_examples=300)
@given(ANY_KEYS, WIRES | LONG_WAYS)
@example(ALL, "http://h/%%32%3541")
@example(Keys(unescape=True), "http://h/" + "%25" * 300 + "41")
def test_the_key_of_a_key_is_itself(keys: Keys, wire: str) -> None:
    of = canonical_by(keys)
    assert of(of(wire)) == of(wire)
    assert of(urls.canonical(wire)) == of(wire) or keys.unescape  # what is one page by default stays one


@settings(deadline=None)
@given(ANY_KEYS, st.text(st.characters(codec=None, exclude_categories=()), max_size=40))
def test_any_text_has_a_key(keys: Keys, text: str) -> None:
    assert isinstance(canonical_by(keys)(text), str)


@given(st.text("%02345AaFf/&", max_size=30))
def test_escapes_are_decoded_as_often_as_it_takes(text: str) -> None:
    """As decoding the whole text again and again would do, where nothing is kept."""
    whole = text.encode()
    while (decoded := unquote_to_bytes(whole)) != whole:
        whole = decoded
    assert unquote_to_bytes(unescaped(text, frozenset())) == whole


def test_the_tracking_parameters_are_written_as_they_are_compared() -> None:
    assert [name for name in TRACKING if name != name.lower()] == []
    assert len(set(TRACKING)) == len(TRACKING)


@pytest.mark.parametrize(
    ("keys", "wire", "fingerprint"),
    [
        (Keys(), "http://example.org/", "0cfbfb199f3312d414fc718e247345e8"),
        (Keys(), "https://www.example.org/a%2fb/%7Euser//?b=2&a=&utm_source=x", "80fa075b164846f7544a05f394dcb6c4"),
        (Keys(), "http://u:p@h:81/%2541%", "80693d3142e1848bab204cd76343fb4b"),
        (Keys(), f"http://h/a;jsessionid=7?sid={SESSION}&id=1", "5b46df0052bfb1522cf8c8896fe72fdd"),
        (Keys(), "http://xn--bcher-kva.de/%C3%A4?%e4", "fa32426c674510df595b302b61234647"),
        (ALL, "http://example.org/", "0cfbfb199f3312d414fc718e247345e8"),
        (ALL, "https://www.example.org/a%2fb/%7Euser//?b=2&a=&utm_source=x", "8871470b846280e80cb799bb166fa490"),
        (ALL, "http://u:p@h:81/%2541%", "6ff008299bd2a69f58f9662ab058a2cb"),
        (ALL, f"http://h/a;jsessionid=7?sid={SESSION}&id=1", "5b46df00da2b7e1137ccbe6fc6bb9cc7"),
        (ALL, "http://xn--bcher-kva.de/%C3%A4?%e4", "fa32426c674510df595b302b61234647"),
    ],
)
def test_keys_never_change_between_releases(keys: Keys, wire: str, fingerprint: str) -> None:
    """A changed hash means that every crawl under way would fetch its pages again: never adapt this table."""
    assert urls.fingerprint("default", canonical_by(keys)(wire)).hex() == fingerprint


def test_the_tracking_parameters_never_change_between_releases() -> None:
    """They are part of the key; more of them would have to be another option."""
    assert blake2b(" ".join(TRACKING).encode(), digest_size=8).hexdigest() == "09d1b65c3403d15c"


def test_the_tracking_parameters_are_documented() -> None:
    page = (ROOT / "docs" / "scope.md").read_text(encoding="utf-8")
    assert [name for name in TRACKING if f"`{name}`" not in page] == []
