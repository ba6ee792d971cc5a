"""Cases of the hostile server that need no server: what a page says once it has arrived."""

from __future__ import annotations

import time
from typing import Any

import pytest

from streams.messages import PageHeaders
from streams.page import mime
from streams.page.parse import Limits, ParsedPage, parse_page
from streams.policy.urls import Joiner
from tests.conformance import cases
from tests.servers.recipes import render

CATEGORIES = ("links", "base", "refresh", "charset", "mime")
CASES = [case for case in cases.data("http/hostile.json")["cases"] if case["category"] in CATEGORIES]

KNOWN: dict[str, str] = {}
# "links/userinfo": links keep the credentials they were written with; whether they are used is the frontier's policy.
# "charset/header-beats-meta-wrongly": the header holds, as in browsers.

AGENT = {"agent": "fyke", "AGENT": "FYKE"}


class Site:
    """The pages of a case, parsed."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.seed: str = case["seeds"][0]
        self.pages: dict[str, ParsedPage] = {}
        limits = Limits(text=1 << 20, links=case.get("config", {}).get("max_outlinks", 100_000))
        began = time.process_time()
        for route in case["server"]:
            response = route.get("response") or route["responses"][0]
            if response["status"] == 200 and route["path"] != "/robots.txt":
                url = f"{route.get('scheme', 'http')}://{route['host']}{route['path']}"
                self.pages[url] = parse_page(*self.page(url, response), Joiner, limits)
        self.seconds = time.process_time() - began

    @staticmethod
    def page(url: str, response: dict[str, Any]) -> tuple[PageHeaders, bytes]:
        fields = [(name, value.replace("{agent}", "fyke")) for name, value in response["headers"]]
        headers = PageHeaders(
            crawl="c", url=url, fingerprint=bytes(16), visit=1, shard=0, status=200, headers=fields, start=0,
            first_byte=0, end=0,
        )  # fmt: skip
        return headers, b"".join(render(response["body"], AGENT))

    @property
    def links(self) -> set[str]:
        return {link for page in self.pages.values() for link in page.links}

    def holds(self, expected: dict[str, Any]) -> bool:
        """Whether all that is expected and can be judged from the pages alone holds."""
        return all(self._one(self.pages[self.seed], key, value) for key, value in expected.items())

    def _one(self, page: ParsedPage, key: str, value: Any) -> bool:
        links = set(page.links)
        judged = {
            "links": lambda: links == set(value),
            "links_include": lambda: links >= set(value),
            "links_exclude": lambda: links.isdisjoint(value),
            "outlinks_at_most": lambda: len(links) <= value,
            "not_requested": lambda: self.links.isdisjoint(value),
            "requests": lambda: set(value) - {self.seed} <= self.links,
            "requests_any_order": lambda: set(value) - self.pages.keys() <= self.links,
            "noindex": lambda: {url for url, page in self.pages.items() if page.noindex} == set(value),
            "text": lambda: page.text == value,
            "text_contains": lambda: all(part in page.text for part in value),
            "charset": lambda: page.charset == value,
            "parsed_as": lambda: self._kind(page) == value,
            "pages": lambda: all(self._kind(self.pages[each["url"]]) == each["parsed_as"] for each in value),
            "max_seconds": lambda: self.seconds < value,
        }
        return judged[key]() if key in judged else True

    @staticmethod
    def _kind(page: ParsedPage) -> str:
        if mime.is_html(page.content_type):
            return "html"
        return "text" if page.content_type == "text/plain" else "none"


@pytest.mark.parametrize("case", [cases.case(case["id"], case, known=KNOWN) for case in CASES])
def test_page(case: dict[str, Any]) -> None:
    site = Site(case)
    alternatives = case["expect"].get("any_of", [case["expect"]])
    assert any(site.holds(expected) for expected in alternatives), site.pages[site.seed]
    for page in site.pages.values():
        page.text.encode()


def test_no_case_is_listed_in_vain() -> None:
    assert not cases.stale(KNOWN, (case["id"] for case in CASES))
