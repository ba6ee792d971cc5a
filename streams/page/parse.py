"""A fetched page in, its links, title, text and directives out. Pure: the same bytes always give the same result."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
from selectolax.lexbor import LexborHTMLParser

from streams.messages import PageHeaders
from streams.page import charset, directives, encodings, links, markup, mime
from streams.page.fingerprint import content_fingerprint
from streams.page.links import Linker
from streams.page.nesting import within_bounds
from streams.page.text import body_text, cut

NOFOLLOW_LINK: Final = "nofollow:link"
NOFOLLOW_PAGE: Final = "nofollow:page"
TOO_MANY: Final = "limit:links"
TITLE_LIMIT: Final = 4096
"""Characters of a title."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`text`: characters of text kept. `links`: distinct references looked at."""

    text: int
    links: int


class ParsedPage(msgspec.Struct, frozen=True, kw_only=True):
    """What a page says.

    `links`: distinct wire URLs to follow, in the order of the page's plain anchors, then its other links. `dropped`:
    links kept back, by rule id. `content`: 16 bytes, equal for equal content. `content_type`: type and subtype, lower
    case. `charset`: name of the encoding, lower case; "" for what is no text.
    """

    title: str = ""
    text: str = ""
    links: list[str] = []
    dropped: dict[str, int] = {}
    noindex: bool = False
    content: bytes = b""
    content_type: str = ""
    charset: str = ""


def parse_page(page: PageHeaders, body: bytes, linker: Linker, limits: Limits) -> ParsedPage:
    """Parse one page by its type: HTML and XHTML, plain text, or anything else, which is kept without content."""
    response = _Response.of(page)
    essence, declared = mime.content_type(tuple(response.content_type), body)
    if mime.is_html(essence):
        name = charset.charset_of(body, declared)
        tree = LexborHTMLParser(within_bounds(charset.as_utf8(body, name)))
        return _document(tree, response, linker, limits, essence, name)
    if essence == "text/plain":
        name = charset.charset_of(body, declared, html=False)
        text = cut(encodings.decode(body[: 4 * limits.text], name), limits.text)
        content = content_fingerprint("", text)
        return ParsedPage(text=text, content=content, content_type=essence, charset=name)
    return ParsedPage(content=blake2b(body, digest_size=16).digest(), content_type=essence)


class _Response(NamedTuple):
    """What of a response the parser looks at: its URL and the lines of three headers."""

    url: str
    content_type: list[str]
    refresh: list[str]
    robots: list[str]

    @classmethod
    def of(cls, page: PageHeaders) -> _Response:
        response = cls(page.url, [], [], [])
        wanted = {
            "content-type": response.content_type, "refresh": response.refresh, "x-robots-tag": response.robots,
        }  # fmt: skip
        for name, value in page.headers:
            lines = wanted.get(name.lower())
            if lines is not None:
                lines.append(value)
        return response


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
        noindex=asked.noindex,
        content=content_fingerprint(title, text),
        content_type=essence,
        charset=name,
    )
