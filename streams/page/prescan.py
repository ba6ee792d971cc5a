"""The encoding that a page declares in its first bytes (HTML §13.2.3.2 "prescan a byte stream")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from streams.page import encodings
from streams.page.encodings import FALLBACK, UTF_8

_UTF_16_XML: Final = {b"<\0?\0x\0": "utf-16le", b"\0<\0?\0x": "utf-16be"}
_META: Final = re.compile(rb"<meta[\t\n\f\r /]", re.IGNORECASE)
_TAG: Final = re.compile(rb"</?[A-Za-z][^\t\n\f\r >]*")
_PLAIN: Final = re.compile(rb"</?(?!meta[\t\n\f\r /])[A-Za-z][^\"'=>]*>", re.IGNORECASE)  # no attribute has a value
_BLANK: Final = rb"[\t\n\f\r ]*"
# An open quote reaches to the end of the bytes: whoever meets the end has run out of them.
_ATTRIBUTE: Final = re.compile(
    rb"[\t\n\f\r /]*(?P<name>=?[^\t\n\f\r />=]*)"
    rb"(?:" + _BLANK + rb"=" + _BLANK + rb"(?:\"(?P<double>[^\"]*)(?:\"|\Z)|'(?P<single>[^']*)(?:'|\Z)|"
    rb"(?P<bare>[^\t\n\f\r >\"'][^\t\n\f\r >]*)?))?"
)  # fmt: skip
_CONTENT: Final = re.compile(
    r"charset[\t\n\f\r ]*=[\t\n\f\r ]*"
    r"(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>[^\"'\t\n\f\r ;][^\t\n\f\r ;]*))?",
    re.IGNORECASE,
)
_XML: Final = re.compile(rb"<\?xml[^>]*?encoding[\x00-\x20]*=[\x00-\x20]*(?:\"([^\">]*)\"|'([^'>]*)')[^>]*>")


class _OutOfBytes(Exception):
    """The prescan ran into the end."""


def prescan(head: bytes) -> str | None:
    """The encoding declared in `head`, lower case, or None.

    `<meta charset>` or `<meta http-equiv=content-type content>`; failing these, the XML declaration. What stands in
    comments does not count; a declaration that is cut off at the end does not either.
    """
    for mark, name in _UTF_16_XML.items():
        if head.startswith(mark):
            return name
    try:
        return _from_meta(head)
    except _OutOfBytes:
        return _from_xml(head)


def _from_meta(head: bytes) -> str:
    at = 0
    while True:
        at = _find(head, b"<", at)
        if head.startswith(b"<!--", at):
            at = _find(head, b"-->", at + 2) + 3
        elif plain := _PLAIN.match(head, at):
            at = plain.end()
        elif meta := _META.match(head, at):
            reader = _Attributes(head, meta.end() - 1)
            if name := _declared(reader):
                return name
            at = reader.at
        elif tag := _TAG.match(head, at):
            reader = _Attributes(head, tag.end())
            for _ in reader:
                pass
            at = reader.at
        elif head[at + 1 : at + 2] in (b"!", b"/", b"?"):
            at = _find(head, b">", at) + 1
        else:
            at += 1


def _find(head: bytes, what: bytes, start: int) -> int:
    at = head.find(what, start)
    if at < 0:
        raise _OutOfBytes
    return at


class _Attributes:
    """The attributes of the tag before `at`, names in lower case; `at` ends up at its `>`."""

    def __init__(self, head: bytes, at: int) -> None:
        self._head = head
        self.at = at

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        while True:
            match = _ATTRIBUTE.match(self._head, self.at)
            if match is None or match.end() == len(self._head):
                raise _OutOfBytes
            self.at = match.end()
            if not match["name"]:
                return
            yield match["name"].lower(), match["double"] or match["single"] or match["bare"] or b""


def _declared(attributes: _Attributes) -> str | None:
    """What one `<meta>` declares, if anything; the first of equal attributes counts."""
    seen: dict[bytes, bytes] = {}
    for name, value in attributes:
        seen.setdefault(name, value)
    if b"charset" in seen:
        return declarable(seen[b"charset"].decode("latin-1"))
    if seen.get(b"http-equiv", b"").lower() != b"content-type":
        return None
    return declarable(from_content(seen.get(b"content", b"").decode("latin-1")))


def from_content(content: str) -> str:
    """The label in a `content` attribute, or "" (HTML "extracting a character encoding from a meta element")."""
    match = _CONTENT.search(content)
    return "" if match is None else match["double"] or match["single"] or match["bare"] or ""


def _from_xml(head: bytes) -> str | None:
    """What an XML declaration at the very beginning says (HTML "get an XML encoding")."""
    match = _XML.match(head)
    return None if match is None else declarable((match[1] or match[2] or b"").decode("latin-1"))


def declarable(label: str) -> str | None:
    """What a label means inside a page: UTF-16 cannot be, since the label itself was read as ASCII."""
    name = encodings.lookup(label)
    if name in ("utf-16be", "utf-16le"):
        return UTF_8
    return FALLBACK if name == "x-user-defined" else name
