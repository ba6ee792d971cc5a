"""Hosts that misbehave, each in one way, and what a crawl of them must come to: exactly that, and then it ends.

Names end in `.test`; routes are those of `tests.servers.hostile`. `Host.most` bounds all requests, robots.txt included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LIMITS = """\
delay = 0
parallelism = 1
max_redirects = 5
[traps]
novelty = 10
years = 1
"""
"""The crawl's rules. Where each page leads to one more, the number of pages in an endless space is exact."""

Route = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Host:
    """What it answers, where the crawl begins, and what becomes of its URLs (by path)."""

    name: str
    routes: Sequence[Route]
    seeds: Sequence[str] = ("/",)
    pages: Sequence[str] = ("/",)
    failures: Mapping[str, str] = field(default_factory=dict)
    exclusions: Mapping[str, int] = field(default_factory=dict)
    """How many URLs each rule kept out, by its id: of those that came as far as the frontier."""
    endless: range = range(1)
    """How many pages of made-up URLs may be fetched beside `pages`."""
    most: int = 4

    def url(self, path: str) -> str:
        return f"http://{self.name}.test{path}"


def html(path: str, *links: str, **response: Any) -> Route:
    body = f"<!doctype html><title>{path}</title>{path}" + "".join(f'<a href="{link}">x</a>' for link in links)
    return answer(path, body, **response)


def answer(path: str, body: Any = "", kind: str = "text/html; charset=utf-8", status: int = 200, *headers: list[str],
           **response: Any) -> Route:  # fmt: skip
    fields = [["Content-Type", kind], *headers]
    return {"path": path, "response": {"status": status, "headers": fields, "body": body, **response}}


def redirect(path: str, *locations: str, status: int = 302, headers: Sequence[list[str]] = ()) -> Route:
    return answer(path, "", "text/html", status, *(["Location", location] for location in locations), *headers)


def robots(text: Any, **response: Any) -> Route:
    return answer("/robots.txt", text, "text/plain", **response)


def sitemap(path: str, *urls: str, index: bool = False) -> Route:
    outer, inner = ("sitemapindex", "sitemap") if index else ("urlset", "url")
    entries = "".join(f"<{inner}><loc>{url}</loc></{inner}>" for url in urls)
    text = f'<?xml version="1.0"?><{outer} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{entries}</{outer}>'
    return answer(path, text, "application/xml")


def named(*urls: str) -> Route:
    """A robots.txt that names sitemaps."""
    return robots("User-agent: *\nAllow: /\n" + "".join(f"Sitemap: {url}\n" for url in urls))


def reset(path: str) -> Route:
    return {"path": path, "response": {"raw": "", "then": "reset"}}


FORBIDS = "User-agent: *\nDisallow: /page\n"
FORBIDDEN: dict[str, Any] = {"seeds": ("/page",), "pages": (), "exclusions": {"robots": 1}, "most": 1}

REDIRECTS = (
    Host("chain", [html("/r/5"), redirect("/r/{n}", "/r/{n+1}")], ("/r/0",), ("/r/5",), most=7),
    Host("long-chain", [html("/r/6"), redirect("/r/{n}", "/r/{n+1}")], ("/r/0",), (), {"/r/5": "redirect_limit"},
         most=7),
    Host("growing", [redirect("/{any}", "{path}x")], ("/g",), (), {"/gxxxxx": "redirect_limit"}, most=12),
    Host("loop", [redirect("/a", "/b"), redirect("/b", "/c"), redirect("/c", "/a")], ("/a",), (),
         {"/c": "redirect_loop"}, most=4),
    Host("self", [redirect("/r", "/r")], ("/r",), (), {"/r": "redirect_loop"}, most=2),
    Host("mail", [redirect("/r", "mailto:user@example.test")], ("/r",), (), {"/r": "redirect_scheme"}, most=2),
    Host("file", [redirect("/r", "file:///do-not-read/secret.txt")], ("/r",), (), {"/r": "redirect_scheme"}, most=2),
    Host("rubbish", [redirect("/r", "http://Yes, some do this - no idea why")], ("/r",), (),
         {"/r": "redirect_bad_url"}, most=2),
    Host("nowhere", [redirect("/r")], ("/r",), (), {"/r": "redirect_no_location"}, most=2),
    Host("away", [redirect("/", "http://elsewhere.test/")], pages=(), exclusions={"scope:host": 1}, most=2),
    Host("to-forbidden", [robots(FORBIDS), redirect("/r", "/page")], ("/r",), (), exclusions={"robots": 1}, most=2),
)  # fmt: skip

COOKIES = (
    Host("wall", [redirect("/r", "/r", headers=[["Set-Cookie", "session=1; Path=/"]])], ("/r",), (),
         {"/r": "redirect_loop"}, most=2),
    Host("crumbs", [
        answer("/p", '<!doctype html><a href="/q">q</a>', "text/html", 200, ["Set-Cookie", "=; ;;="],
               ["Set-Cookie", "a=\x01\x7f"], ["Set-Cookie", "good=1; Domain=test"], ["Set-Cookie", "b=" + "x" * 5000]),
        html("/q"),
    ], ("/p",), ("/p", "/q"), most=3),
)  # fmt: skip

TRAPS = (
    Host("calendar", [html("/", "/events?year=2026"), html("/events?year={n}", "/events?year={n+1}")],
         ("/",), ("/", "/events?year=2026", "/events?year=2027"), most=4),
    Host("deeper", [html("/{any}", "again/")], ("/",), ("/", "/again/", "/again/again/", "/again/again/again/"),
         most=5),
    Host("sessions", [answer("/{any}", '<title>shop</title>one shop <a href="/shop?sid={random}">x</a>')],
         endless=range(11, 13), most=14),  # a page's link leaves before what tells that the page was no news
    Host("soft-404", [answer("/{any}", "not found, but see <a href='/n/{random}'>1</a><a href='/n/{random}'>2</a>")],
         endless=range(11, 40), most=41),
)  # fmt: skip

SITEMAPS = (
    Host("index-loop", [
        named("http://index-loop.test/i.xml"), html("/"), html("/good"),
        sitemap("/i.xml", "http://index-loop.test/i.xml", "http://index-loop.test/j.xml", index=True),
        sitemap("/j.xml", "http://index-loop.test/i.xml", "http://index-loop.test/s.xml", index=True),
        sitemap("/s.xml", "http://index-loop.test/good"),
    ], pages=("/", "/good"), most=6),
    Host("index-endless", [
        named("http://index-endless.test/i/0.xml"), html("/"),
        sitemap("/i/{n}.xml", "http://index-endless.test/i/{2n+1}.xml", "http://index-endless.test/i/{2n+2}.xml",
                index=True),
    ], most=2 + 63),
    Host("bomb", [
        named("http://bomb.test/s.xml.gz"), html("/"),
        answer("/s.xml.gz", {"gzip": {"repeat": " ", "times": 64 << 20}}, "application/gzip"),
    ], most=3),
    Host("not-mine", [
        named("http://not-mine.test/s.xml"), html("/"), html("/good"),
        sitemap("/s.xml", "http://evil.test/x", "http://not-mine.test/good"),
    ], pages=("/", "/good"), most=4),
    Host("no-sitemap", [named("http://no-sitemap.test/s.xml"), html("/"), html("/s.xml", "/error1", "/error2")],
         most=3),
    Host("bad-entries", [
        named("http://bad-entries.test/s.xml"), html("/"), html("/good"),
        sitemap("/s.xml", "", "http://]/", "http://bad-entries.test/good", "javascript:alert(1)"),
    ], pages=("/", "/good"), most=4),
    Host("lost", [named("http://lost.test/gone.xml", "http://lost.test/gone.xml"), html("/")],
         failures={"/gone.xml": "http_status"}, most=3),
)  # fmt: skip

ROBOTS = (
    Host("robots-html", [html("/robots.txt"), html("/page")], ("/page",), ("/page",), most=2),
    Host("robots-loop", [redirect("/robots.txt", "/robots.txt"), html("/page")], ("/page",), ("/page",), most=7),
    Host("robots-file", [redirect("/robots.txt", "file:///do-not-read/secret.txt"), html("/page")], ("/page",),
         ("/page",), most=2),
    Host("robots-back", [
        {"path": "/robots.txt", "responses": [
            {"status": 503, "headers": [], "body": ""},
            {"status": 200, "headers": [["Content-Type", "text/plain"]], "body": FORBIDS},
        ]},
        html("/page"),
    ], **{**FORBIDDEN, "most": 2}),
    Host("robots-bom", [robots("\ufeff" + FORBIDS), html("/page")], **FORBIDDEN),
    Host("robots-packed", [
        answer("/robots.txt", {"gzip": FORBIDS}, "text/plain", 200, ["Content-Encoding", "gzip"]), html("/page"),
    ], **FORBIDDEN),
    Host("robots-endless", [robots({"concat": [FORBIDS, {"endless": "# and on and on\n"}]}, then="close"),
                            html("/page")], **FORBIDDEN),
    Host("robots-two-faced", [
        {**robots(FORBIDS), "when_header": {"name": "User-Agent", "contains": "yke"}}, robots("User-agent: *\n"),
        html("/page"),
    ], **FORBIDDEN),
)  # fmt: skip

HOSTS = (*REDIRECTS, *COOKIES, *TRAPS, *SITEMAPS, *ROBOTS)

TAGGED = [["ETag", 'W/"abc"'], ["Last-Modified", "Mon, 02 Jan 2023 03:04:05 GMT"]]
UNCHANGED = {"name": "If-None-Match", "equals": 'W/"abc"'}


def answers(path: str, *responses: tuple[int, str]) -> Route:
    """The n-th request gets the n-th of (status, body)."""
    return {"path": path, "responses": [
        {"status": status, "headers": [["Content-Type", "text/plain"], ["ETag", f'"{number}"']], "body": body}
        for number, (status, body) in enumerate(responses)
    ]}  # fmt: skip


CONDITIONAL = (
    Host("weak", [
        {**answer("/", "", "text/plain", 304), "when_header": UNCHANGED}, answer("/", "v1", "text/plain", 200, *TAGGED),
    ], most=3),
    Host("ignores", [answers("/", (200, "same"), (200, "same"))], pages=("/", "/"), most=3),
    Host("gone", [answers("/", (200, "v1"), (410, ""))], failures={"/": "http_status"}, most=3),
    Host("unasked", [answers("/", (304, ""))], pages=(), failures={"/": "http_status"}, most=3),
)  # fmt: skip
