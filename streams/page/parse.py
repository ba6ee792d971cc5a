"""A fetched page in, its links, title, text and directives out. Pure: the same bytes always give the same result."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
from selectolax.lexbor import LexborHTMLParser

from streams.messages import PageHeaders
from streams.page import charset, directives, encodings, links, markup, mime, sitemap
from streams.page.fingerprint import content_fingerprint
from streams.page.links import Linker
from streams.page.nesting import within_bounds
from streams.page.text import body_text, cut

NOFOLLOW_LINK: Final = "nofollow:link"
NOFOLLOW_PAGE: Final = "nofollow:page"
TOO_MANY: Final = "limit:links"
NO_LIST: Final = "sitemap:none"
UNUSABLE: Final = "sitemap:entry"
TITLE_LIMIT: Final = 4096
"""Characters of a title."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`text`: characters of text kept. `links`: distinct references looked at."""

    text: int
    links: int


class ParsedPage(msgspec.Struct, frozen=True, kw_only=True):
    """What a page says.

    `noindex`: it asks not to be found by searching. `links`: distinct wire URLs to follow, in the order of the page's
    plain anchors, then its other links. `dropped`: links kept back, by rule id. `content`: 16 bytes, equal for equal
    content. `content_type`: type and subtype, lower case. `charset`: name of the encoding, lower case; "" for what is
    no text. `lastmods`: of a list of URLs, ms by URL for those of which it says when they were changed. `sitemaps`: the
    parts of a list that was asked for as one.
    """

    title: str = ""
    text: str = ""
    links: list[str] = []
    dropped: dict[str, int] = {}
    noindex: bool = False
    content: bytes = b""
    content_type: str = ""
    charset: str = ""
    lastmods: dict[str, int] = {}
    sitemaps: list[str] = []


def parse_page(page: PageHeaders, body: bytes, linker: Linker, limits: Limits) -> ParsedPage:
    """Parse one page by its type: HTML and XHTML, plain text, or anything else, which is kept without content.

    What was asked for as a list of URLs is read as one, and so is, whatever its type, a page that begins like one.
    """
    response = _Response.of(page)
    essence, declared = mime.content_type(tuple(response.content_type), body)
    if page.source == "sitemap":
        return _list(body, response, linker, essence, declared)
    if sitemap.is_list(body):
        return _listing_page(body, response, linker, limits, essence, declared)
    if mime.is_html(essence):
        name = charset.charset_of(body, declared)
        tree = LexborHTMLParser(within_bounds(charset.as_utf8(body, name)))
        return _document(tree, response, linker, limits, essence, name)
    if essence == "text/plain":
        name = charset.charset_of(body, declared, html=False)
        text = cut(encodings.decode(body[: 4 * limits.text], name), limits.text)
        content = content_fingerprint("", text)
        return ParsedPage(text=text, content=content, content_type=essence, charset=name, noindex=response.hidden())
    content = blake2b(body, digest_size=16).digest()
    return ParsedPage(content=content, content_type=essence, noindex=response.hidden())


class _Response(NamedTuple):
    """What of a response the parser looks at: its URL, when it was fetched (ms) and the lines of three headers."""

    url: str
    at: int
    content_type: list[str]
    refresh: list[str]
    robots: list[str]

    @classmethod
    def of(cls, page: PageHeaders) -> _Response:
        response = cls(page.url, page.start, [], [], [])
        wanted = {
            "content-type": response.content_type, "refresh": response.refresh, "x-robots-tag": response.robots,
        }  # fmt: skip
        for name, value in page.headers:
            lines = wanted.get(name.lower())
            if lines is not None:
                lines.append(value)
        return response

    def hidden(self) -> bool:
        """Whether its headers ask that it is not to be found by searching."""
        return directives.from_headers(self.robots).hidden(self.at)


def _list(body: bytes, response: _Response, linker: Linker, essence: str, declared: str) -> ParsedPage:
    """A list of URLs, as robots.txt or an index named it: what it lists counts, nothing else does.

    X-Robots-Tag is not asked: it is about the list as a page, and sites keep their sitemaps out of search engines so.
    """
    found = sitemap.read(body, declared, linker(response.url, None).join)
    dropped = {UNUSABLE: found.unusable} if found.kind else {NO_LIST: 1}
    return ParsedPage(
        links=list(dict.fromkeys(entry.url for entry in found.urls)),
        lastmods={entry.url: entry.lastmod for entry in (*found.urls, *found.sitemaps) if entry.lastmod},
        sitemaps=list(dict.fromkeys(entry.url for entry in found.sitemaps)),
        dropped={rule: count for rule, count in dropped.items() if count},
        content=blake2b(body, digest_size=16).digest(),
        content_type=essence,
    )


def _listing_page(
    body: bytes, response: _Response, linker: Linker, limits: Limits, essence: str, declared: str
) -> ParsedPage:
    """A page that is a list of URLs, such as a feed: its entries, and the parts of an index, are its links."""
    found = _list(body, response, linker, essence, declared)
    urls = [*found.links, *found.sitemaps]
    dropped = found.dropped | ({TOO_MANY: len(urls) - limits.links} if len(urls) > limits.links else {})
    urls = urls[: limits.links]
    asked = directives.from_headers(response.robots)
    if asked.nofollow and urls:
        dropped[NOFOLLOW_PAGE] = len(urls)
        urls = []
    return msgspec.structs.replace(found, links=urls, sitemaps=[], dropped=dropped, noindex=asked.hidden(response.at))


def _document(
    tree: LexborHTMLParser, response: _Response, linker: Linker, limits: Limits, essence: str, name: str
) -> ParsedPage:
    found = markup.read(tree)
    found.hrefs.extend(filter(None, map(links.refresh_target, response.refresh)))
    urls, beyond = links.resolve(found.hrefs, linker(response.url, found.base), limits.links)
    asked = found.directives | directives.from_headers(response.robots)
    dropped = {NOFOLLOW_LINK: found.nofollow, TOO_MANY: beyond}
    if asked.nofollow:
        dropped[NOFOLLOW_PAGE] = len(urls)
        urls = []
    title = cut(found.title or "", TITLE_LIMIT)
    text = body_text(tree, limits.text)
    return ParsedPage(
        title=title,
        text=text,
        links=urls,
        dropped={rule: count for rule, count in dropped.items() if count},
        noindex=asked.hidden(response.at),
        content=content_fingerprint(title, text),
        content_type=essence,
        charset=name,
    )
