"""WHATWG URL: web-platform-tests' cases for parsing, resolving, IDNA and percent-encoding (corpora/urls/wpt)."""

from __future__ import annotations

from typing import Any

import pytest

from streams.policy import urls
from tests.conformance import cases

KNOWN: dict[str, str] = {}


def entries(name: str) -> list[dict[str, Any]]:
    return [entry for entry in cases.data(f"urls/wpt/{name}.json") if isinstance(entry, dict)]


def resolving(*, pages: bool = False) -> list[Any]:
    """Input and base -> wire form: without fragment, and none for a failure or another scheme.

    `pages`: only those whose base can be the URL of a page.
    """
    found = {}
    for name in ("urltestdata", "ada_extra_urltestdata"):
        for entry in entries(name):
            base = entry.get("base")
            if pages and urls.parse(base or "") is None:
                continue
            href = entry.get("href", "")
            wire = href.partition("#")[0] if href.startswith(("http:", "https:")) else None
            found[f"{name}: {entry['input']!a} against {base!a}"] = entry["input"], base, wire
    return [cases.case(case_id, *values, known=KNOWN) for case_id, values in found.items()]


def hosts() -> list[Any]:
    """Host -> its ASCII form, none if it is invalid."""
    found = {
        f"{name}: {entry['input']!a}": (entry["input"], entry["output"])
        for name in ("toascii", "IdnaTestV2")
        for entry in entries(name)
        if entry["input"]  # a URL cannot be written around an empty host
    }
    return [cases.case(case_id, *values, known=KNOWN) for case_id, values in found.items()]


@pytest.mark.parametrize(("url", "base", "wire"), resolving())
def test_resolving(url: str, base: str | None, wire: str | None) -> None:
    assert urls.parse(url, base) == wire


@pytest.mark.parametrize(("url", "page", "wire"), resolving(pages=True))
def test_the_links_of_a_page_resolve_the_same(url: str, page: str, wire: str | None) -> None:
    cache = urls.JoinCache()
    assert urls.Joiner(page, None, cache).join(url) == wire
    assert urls.Joiner(page, None, cache).join(url) == wire


@pytest.mark.parametrize(("host", "ascii_host"), hosts())
def test_hosts(host: str, ascii_host: str | None) -> None:
    wire = urls.parse(f"https://{host}/x")
    assert (wire and urls.hostname(wire)) == ascii_host


@pytest.mark.parametrize("entry", entries("percent-encoding"), ids=lambda entry: ascii(entry["input"]))
def test_queries_are_percent_encoded_as_utf_8(entry: dict[str, Any]) -> None:
    assert urls.parse(f"https://h/?{entry['input']}#") == f"https://h/?{entry['output']['utf-8']}"
