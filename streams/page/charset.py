"""Which encoding a page is in, and its text.

In this order (HTML §13.2.3.2 "determining the character encoding"): byte order mark, HTTP, a prescan of the first 1024
bytes, a declaration further down, UTF-8 by its own structure, statistics, windows-1252.
Everything ends up as UTF-8, which is what the parser reads; a page that is UTF-8 already passes through untouched.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

from resiliparse.parse.encoding import detect_encoding
from selectolax.lexbor import LexborHTMLParser

from streams.page import encodings
from streams.page.encodings import FALLBACK, UTF_8
from streams.page.prescan import declarable, from_content, prescan

PRESCAN_BYTES: Final = 1024
_SAMPLE: Final = 64 * 1024
_NOT_ASCII: Final = re.compile(rb"[\x1b\x80-\xff]")


def charset_of(body: bytes, declared: str, *, html: bool = True) -> str:
    """The name of the encoding of `body`, lower case (WHATWG Encoding §4).

    `declared`: the charset parameter of the Content-Type, "" if there is none; a label nobody knows counts as none.
    `html`: whether `<meta>` and the XML declaration are looked at.
    """
    return (
        encodings.from_bom(body)
        or encodings.lookup(declared)
        or (prescan(body[:PRESCAN_BYTES]) if html else None)
        or _undeclared(body, html=html)
    )


def _undeclared(body: bytes, *, html: bool) -> str:
    if body.isascii():
        late = _late_declaration(body) if html and len(body) > PRESCAN_BYTES else None
        return late or (_detected(body) if b"\x1b" in body else FALLBACK)  # iso-2022-jp is ASCII with escapes
    if is_utf8(body):
        return UTF_8
    return (_late_declaration(body) if html else None) or _detected(body)


def is_utf8(body: bytes) -> bool:
    """Whether `body` is UTF-8 up to a character that may have been cut off at the end."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def _late_declaration(body: bytes) -> str | None:
    """A declaration behind the prescan, as the tree builder finds it: not within scripts, titles or comments.

    Reading on is what browsers do (HTML §13.2.6.4.4 "change the encoding"). The bytes are parsed as they are, since
    the markup of every encoding that can be declared so is ASCII.
    """
    if b"charset" not in body and b"CHARSET" not in body:
        return None
    for node in LexborHTMLParser(body).css("meta[charset],meta[http-equiv=content-type i][content]"):
        attributes = node.attributes
        label = attributes.get("charset") or from_content(attributes.get("content") or "")
        if name := declarable(label or ""):
            return name
    return None


def _detected(body: bytes) -> str:
    """By statistics, on a sample that begins with the first character beyond ASCII."""
    first = _NOT_ASCII.search(body)
    sample = body[first.start() :] if first else body
    found = detect_encoding(sample, max_len=_SAMPLE, html5_compatible=False) or ""
    return encodings.lookup(_DETECTOR_NAMES.get(found, found)) or FALLBACK


# The detector speaks Python's codec names.
_DETECTOR_NAMES: Final = {
    "cp949": "euc-kr",
    "cp932": "shift_jis",
    "euc_jp": "euc-jp",
    "iso2022_jp": "iso-2022-jp",
    "mac-cyrillic": "x-mac-cyrillic",
}


def as_utf8(body: bytes, name: str) -> bytes:
    """`body` as the HTML parser takes it: its own bytes if those are UTF-8 or ASCII, else transcoded.

    Invalid UTF-8 is let through, since every string that is read from the tree comes out with U+FFFD in its place.
    """
    if name == UTF_8:
        return body.removeprefix(codecs.BOM_UTF8)
    if body.isascii() and encodings.is_ascii_based(name):
        return body
    return encodings.decode(body, name).encode("utf-8", "replace")
