"""XML as sites write it: a scanner that never raises and goes on behind a fault.

A conforming parser must stop at the first error (XML 1.0 §1.2 "fatal error"), and one in twenty sitemaps has one: a
bare `&`, a tag that is never closed, a page's error message in front. So this one only tells tags from text. It expands
nothing and fetches nothing: a reference to an entity of the document itself makes the value unreadable, whatever it
stands for (no external entities, no "billion laughs"). Time is linear in the length of the text, however broken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.entities import html5
from typing import Final, Literal, NamedTuple

Kind = Literal["open", "close", "text", "raw", "cut"]

UNREADABLE: Final = "\0"
"""Stands in a text for what cannot be known: a reference to an entity that is neither XML's nor HTML's."""

MAX_EVENTS: Final = 4_000_000
"""Tags and texts that are told of one document: a few seconds. 50,000 entries with ten languages each have half."""

MAX_FAULTS: Final = 10_000
"""`<` that begin nothing, after which the rest is not looked at."""

# What stands between quotes may contain `>`, but never `<` (XML 1.0 §3.1); without backtracking (possessive).
_TAG: Final = re.compile(r"""<(/?)([^\s<>/!?"'=&]+)((?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+)>""")
# An unpaired quote in a tag: it ends at its `>` all the same.
_SLOPPY: Final = re.compile(r"""<(/?)([^\s<>/!?"'=&]+)([^<>]*+)>""")
_DOCTYPE: Final = re.compile(r"""<!DOCTYPE[^\[>]*+(?:\[(?:[^\]"']++|"[^"]*+"|'[^']*+')*+\]\s*+)?>""", re.IGNORECASE)
_ATTRIBUTE: Final = re.compile(r"""([^\s=<>"'/]++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'<>]++)))?+""")
_REFERENCE: Final = re.compile(r"&(?:#([0-9]{1,8})|#[xX]([0-9A-Fa-f]{1,6})|([A-Za-z][\w.-]*));")
_LAST: Final = 0x10FFFF


class Event(NamedTuple):
    """`open` and `close`: `name` without prefix, lower case, and what else the tag says. `text`, `raw`: `data`.

    `text` still has its references, `raw` (CDATA) has none. `cut`: the document ends within a text.
    """

    kind: Kind
    name: str
    data: str


def events(text: str) -> Iterator[Event]:
    """The tags and texts of a document in their order; comments and processing instructions are left out."""
    at, faults, last = 0, 0, text.rfind(">")
    for _ in range(MAX_EVENTS):
        start = text.find("<", at)
        if start < 0:
            if text[at:].strip():
                yield Event("cut", "", "")
            return
        if start > at:
            yield Event("text", "", text[at:start])
        tag = _TAG.match(text, start) or _SLOPPY.match(text, start)
        if tag is not None:
            at = tag.end()
            yield from _told(tag)
        elif text.startswith("<![CDATA[", start):
            end = text.find("]]>", start)
            yield Event("raw", "", text[start + 9 : len(text) if end < 0 else end])
            at = end + 3
        else:
            at = _behind(text, start)
            faults += at == start + 1
        if start >= last or at < start or faults > MAX_FAULTS:
            return


def _told(tag: re.Match[str]) -> Iterator[Event]:
    slash, qualified, rest = tag.groups()
    name = qualified.rpartition(":")[2].lower()
    if slash:
        yield Event("close", name, "")
        return
    yield Event("open", name, rest)
    if rest.endswith("/"):
        yield Event("close", name, "")


def _behind(text: str, start: int) -> int:
    """Where reading goes on behind what is no tag: a comment, an instruction, a declaration, a stray `<`."""
    if text.startswith("<!--", start):
        return text.find("-->", start + 4) + 3 or -1
    if text.startswith("<?", start):
        return text.find(">", start) + 1 or -1
    if text.startswith("<!", start):
        doctype = _DOCTYPE.match(text, start)
        return doctype.end() if doctype else text.find(">", start) + 1 or -1
    return start + 1


def value(text: str) -> str:
    """A text with its references replaced (XML 1.0 §4.1, and HTML's names, which feeds use undeclared).

    A bare `&`, as in a query nobody escaped, stands for itself.
    """
    return _REFERENCE.sub(_referred, text) if "&" in text else text


def _referred(reference: re.Match[str]) -> str:
    decimal, hexadecimal, name = reference.groups()
    if name:
        return html5.get(name + ";", UNREADABLE)
    code = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(code) if 0 < code <= _LAST and not 0xD800 <= code <= 0xDFFF else UNREADABLE


def attribute(data: str, wanted: str) -> str:
    """The value of an attribute of a tag, "" where it has none. `wanted`: its name without prefix, lower case."""
    for name, double, single, bare in _ATTRIBUTE.findall(data):
        if name.rpartition(":")[2].lower() == wanted:
            return value(double or single or bare).strip()
    return ""
