"""What kind of document a response is (WHATWG Fetch "extract a MIME type", WHATWG MIME Sniffing)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

HTML: Final = "text/html"
_HTML_TYPES: Final = frozenset({HTML, "application/xhtml+xml"})
_SNIFFED: Final = 1445
_BLANKS: Final = " \t\r\n"

_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_ESSENCE: Final = re.compile(rf"{_NAME}/{_NAME}\Z")
_ELEMENT: Final = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')
_PARAMETER: Final = re.compile(rf';[{_BLANKS}]*([^;=]*)(?:=(?:"((?:[^"\\]|\\.)*)"?[^;]*|([^;]*)))?')

# A tag of this list, then a blank or `>` (MIME Sniffing §7.1); comments may end anywhere.
_HTML_START: Final = re.compile(
    rb"[\t\n\f\r ]*<(?:!--|(?:!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body|br|p)[ >])",
    re.IGNORECASE,
)
_BINARY: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_BOMS: Final = (b"\xef\xbb\xbf", b"\xfe\xff", b"\xff\xfe")


class ContentType(NamedTuple):
    """`essence`: type and subtype in lower case; `charset`: the label as it was written, "" if there is none."""

    essence: str
    charset: str


def is_html(essence: str) -> bool:
    """Whether links are looked for. XHTML is read as HTML: much of it is not well formed."""
    return essence in _HTML_TYPES


def content_type(lines: tuple[str, ...], body: bytes) -> ContentType:
    """The type that `lines` (of Content-Type) declare or, if none can be read, the one that the first bytes show."""
    return _declared(lines) or ContentType(_sniffed(body), "")


@lru_cache(1024)
def _declared(lines: tuple[str, ...]) -> ContentType | None:
    """Fetch "extract a MIME type".

    Of several types (lines, or one line with commas) the last valid one counts; it inherits the charset of the ones
    before it if their essence is the same.
    """
    found: ContentType | None = None
    for line in lines:
        for element in _ELEMENT.findall(line):
            parsed = _parse(element)
            if parsed is None or parsed.essence == "*/*":
                continue
            if found is not None and found.essence == parsed.essence and not parsed.charset:
                continue
            found = parsed
    return found


def _parse(text: str) -> ContentType | None:
    """One MIME type (MIME Sniffing §4.4); of equal parameters the first counts."""
    essence, separator, _ = text.partition(";")
    essence = essence.strip(_BLANKS).lower()
    if _ESSENCE.match(essence) is None:
        return None
    if separator:
        for name, quoted, bare in _PARAMETER.findall(text, text.index(";")):
            if name.strip(_BLANKS).lower() == "charset" and (value := quoted or bare.strip(_BLANKS)):
                return ContentType(essence, value)
    return ContentType(essence, "")


def _sniffed(body: bytes) -> str:
    """The type of bytes that came without one (MIME Sniffing §7.1, what a crawler needs of it)."""
    head = body[:_SNIFFED]
    if _HTML_START.match(head):
        return HTML
    if head.lstrip(b"\t\n\f\r ").startswith(b"<?xml"):
        return "text/xml"
    if head.startswith(b"%PDF-"):
        return "application/pdf"
    if head.startswith(_BOMS) or _BINARY.search(head) is None:
        return "text/plain"
    return "application/octet-stream"
