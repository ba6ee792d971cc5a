"""Lists of URLs: sitemaps (sitemaps.org 0.9) in XML and as text, their indexes, RSS 0.9x to 2.0, RSS 1.0, Atom.

The root element says what a document is; neither the namespace nor the Content-Type has to be right. Read are the
elements that stand directly within an entry: a `loc` of an image or a video names no page. A date belongs to the entry
it stands in, and of several `loc` in one entry to the one before it. Entries before and behind a fault are kept.

Not followed: the rule that a sitemap speaks only for its own folder and host, because a crawl has a scope.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from streams.page import charset, encodings, xml
from streams.page.dates import instant
from streams.page.decoding import Decoder
from streams.page.prescan import prescan

Kind = Literal["", "urlset", "index", "rss", "atom", "text"]
Cut = Literal["", "length", "decode", "entries"]

MAX_BYTES: Final = 50 << 20
"""Bytes of a list, unpacked (sitemaps.org: 50 MB)."""

MAX_ENTRIES: Final = 50_000
"""Entries of a list (sitemaps.org)."""

MAX_RATIO: Final = 200
"""Bytes unpacked for one byte of gzip: what repeats itself most, alternates in ten languages, reaches about 60."""

MAX_PACKINGS: Final = 2
"""gzip within gzip: a packed file that a server packed once more."""

_MAX_DEPTH: Final = 100
_HEAD: Final = 4096
_GZIP: Final = b"\x1f\x8b\x08"
_BLANKS: Final = "\ufeff\u200b \t\r\n"
_ROOT: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:\s|<\?[^>]*>|<!--(?:[^-]|-(?!->))*+-->)*+"
    rb"<(?:[\w.-]+:)?(?:urlset|sitemapindex|rss|rdf|feed)[\s>]",
    re.IGNORECASE,
)
_WEB: Final = re.compile(r"https?://[^\s<>]+\Z", re.IGNORECASE)


class Entry(NamedTuple):
    """A wire URL, and when it was changed last (ms; 0: nothing is said)."""

    url: str
    lastmod: int = 0


@dataclass(slots=True)
class Listing:
    """What a list says. `kind` "": it is none. `unusable`: entries without a URL that can be fetched.

    `cut`: it goes on behind a limit of bytes (`length`) or `entries`, or the packed bytes are damaged (`decode`).
    """

    kind: Kind = ""
    urls: list[Entry] = field(default_factory=list)
    sitemaps: list[Entry] = field(default_factory=list)
    unusable: int = 0
    cut: Cut = ""

    def add(self, url: str | None, lastmod: int) -> bool:
        """Take an entry; False when there is no room for another."""
        found = self.sitemaps if self.kind == "index" else self.urls
        if len(found) + self.unusable >= MAX_ENTRIES:
            self.cut = "entries"
            return False
        if url is None:
            self.unusable += 1
        else:
            found.append(Entry(url, lastmod))
        return True


Join = Callable[[str], str | None]
"""The wire URL of a reference, None where it leads to nothing that can be fetched."""


def is_list(body: bytes) -> bool:
    """Whether a document's root element, packed or not, is that of a list in XML. Looks at its first bytes only."""
    if body.startswith(_GZIP):
        body = Decoder("gzip", _HEAD, MAX_RATIO).feed(body[:_HEAD])
    return _ROOT.match(body[:_HEAD]) is not None


def read(body: bytes, declared: str, join: Join) -> Listing:
    """Read a list. `declared`: the charset of its Content-Type, "" for none. Never raises.

    What has no tag is read as text: one URL a line. An HTML page, or XML of another vocabulary, is no list.
    """
    body, cut = _unpacked(body)
    text = encodings.decode(body, _encoding(body, declared)).lstrip(_BLANKS)
    listing = Listing(cut=cut)
    if text.startswith("<"):
        _document(xml.events(text), join, listing)
    else:
        _lines(text, join, listing)
    return listing


def _unpacked(body: bytes) -> tuple[bytes, Cut]:
    """The list without its packing, up to the limits."""
    cut: Cut = ""
    for _ in range(MAX_PACKINGS):
        if not body.startswith(_GZIP):
            break
        decoder = Decoder("gzip", MAX_BYTES, MAX_RATIO)
        body = decoder.feed(body)
        decoder.finish()
        if decoder.result != "complete":
            cut = decoder.result
    return (body[:MAX_BYTES], "length") if len(body) > MAX_BYTES else (body, cut)


def _encoding(body: bytes, declared: str) -> str:
    """RFC 7303 §3: byte order mark, HTTP, the XML declaration, UTF-8; statistics where it cannot be UTF-8."""
    return (
        encodings.from_bom(body)
        or encodings.lookup(declared)
        or prescan(body[: charset.PRESCAN_BYTES].lstrip())
        or (encodings.UTF_8 if charset.is_utf8(body) else charset.charset_of(body, "", html=False))
    )


def _lines(text: str, join: Join, listing: Listing) -> None:
    """A sitemap as text: each line is one absolute URL. Without any it is something else."""
    for line in text.splitlines():
        url = line.strip(_BLANKS)
        if not url:
            continue
        if not listing.add(join(url) if _WEB.match(url) else None, 0):
            break
    if listing.urls:
        listing.kind = "text"
    else:
        listing.unusable = 0


@dataclass(frozen=True, slots=True)
class _Grammar:
    """Which elements mean what. `entry`: the element of one entry; all others stand directly in it."""

    kind: Kind
    entry: str
    locations: frozenset[str]
    dates: frozenset[str]


_SITEMAP_DATES: Final = frozenset({"lastmod"})
_RSS: Final = _Grammar("rss", "item", frozenset({"link", "guid"}), frozenset({"pubdate", "date"}))
_FEEDS: Final = ("rss", "atom")
_GRAMMARS: Final = {
    "urlset": _Grammar("urlset", "url", frozenset({"loc"}), _SITEMAP_DATES),
    "sitemapindex": _Grammar("index", "sitemap", frozenset({"loc"}), _SITEMAP_DATES),
    "rss": _RSS,
    "rdf": _RSS,
    "feed": _Grammar("atom", "entry", frozenset({"link"}), frozenset({"updated", "published", "modified", "issued"})),
}


@dataclass(slots=True)
class _Found:
    """What one entry has said so far. `at`: how deep it is. `text`: its own, outside of all elements."""

    at: int
    locations: list[list[str]] = field(default_factory=list)  # [reference, date]
    date: str = ""  # of the whole entry, or for the location to come
    spare: str = ""  # RSS: a guid, if nothing else names a page
    text: list[str] = field(default_factory=list)


def _document(events: Iterator[xml.Event], join: Join, listing: Listing) -> None:
    """A list in XML, as its root element says; any other document is none."""
    root = next((event.name for event in events if event.kind == "open"), "")
    grammar = _GRAMMARS.get(root)
    if grammar is not None:
        listing.kind = grammar.kind
        _Reader(grammar, listing, join).read(events)


class _Reader:
    """Reads what stands within the root element into a listing."""

    def __init__(self, grammar: _Grammar, listing: Listing, join: Join) -> None:
        self._grammar = grammar
        self._listing = listing
        self._join = join
        self._open: list[str] = []  # names of the open elements within the root
        self._found: _Found | None = None
        self._field = ""  # the element whose text is being gathered
        self._at = 0  # how deep it is
        self._pieces: list[str] = []
        self._full = False

    def read(self, events: Iterator[xml.Event]) -> None:
        """Read all, or as much as there is room for."""
        for kind, name, data in events:
            if kind == "open":
                self._opened(name, data)
            elif kind == "close":
                self._closed(name)
            elif kind == "cut":
                self._field = ""  # nobody knows how it would have gone on
            elif self._found is not None:
                self._text(self._found, xml.value(data) if kind == "text" else data)
            if self._full:
                return
        self._close_to(0)

    def _opened(self, name: str, data: str) -> None:
        if self._field and "".join(self._pieces).strip(_BLANKS):
            self._close_to(self._at)  # its end is missing
        if self._found is not None and name == self._grammar.entry and not self._field:
            self._close_to(self._found.at)  # so is that of the entry before
        if len(self._open) < _MAX_DEPTH:
            self._open.append(name)
            if not self._field:
                self._begun(name, data)

    def _begun(self, name: str, data: str) -> None:
        grammar, depth = self._grammar, len(self._open) - 1
        if self._found is None:
            if name == grammar.entry:
                self._found = _Found(depth)
        elif depth == self._found.at + 1 and (name in grammar.locations or name in grammar.dates):
            self._field, self._at, self._pieces = name, depth, []
            if grammar.kind == "atom" and name == "link" and xml.attribute(data, "rel") in ("", "alternate"):
                self._found.locations.append([xml.attribute(data, "href"), ""])

    def _text(self, found: _Found, text: str) -> None:
        if self._field:
            self._pieces.append(text)
        elif found.at == len(self._open) - 1:
            found.text.append(text)

    def _closed(self, name: str) -> None:
        """An element ends, and with it those within it whose ends are missing; one that never began is passed over."""
        for at in range(len(self._open) - 1, -1, -1):
            if self._open[at] == name:
                self._close_to(at)
                return

    def _close_to(self, depth: int) -> None:
        """Close all elements from the innermost up to the one at `depth`."""
        found = self._found
        if found is not None and self._field and self._at >= depth:
            if text := "".join(self._pieces).strip(_BLANKS).strip():
                self._said(found, self._field, text)
            self._field = ""
        if found is not None and found.at >= depth:
            self._ended(found)
            self._found = None
        del self._open[depth:]

    def _said(self, found: _Found, name: str, text: str) -> None:
        """A field of an entry is complete."""
        feed = self._grammar.kind in _FEEDS
        if name in self._grammar.dates:
            if found.locations and not feed:
                found.locations[-1][1] = found.locations[-1][1] or text
            else:
                found.date = max(found.date, text, key=instant)
        elif name == "guid":
            found.spare = text
        elif name == "loc":
            found.locations.append([text, found.date])
            found.date = ""
        elif self._grammar.kind == "rss":
            found.locations.append([text, ""])

    def _ended(self, found: _Found) -> None:
        """Hand over the URLs of an entry: of a feed's the first, of a sitemap's all."""
        locations = [location for location in found.locations if location[0]]
        if not locations:
            spare = found.spare or "".join(found.text).strip(_BLANKS)
            locations = [[spare if _WEB.match(spare) else xml.UNREADABLE, found.date]]
        feed = self._grammar.kind in _FEEDS
        for reference, date in locations[:1] if feed else locations:
            url = None if xml.UNREADABLE in reference else self._join(reference)
            if not self._listing.add(url, instant(found.date if feed else date)):
                self._full = True
                return
