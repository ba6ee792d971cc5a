"""A bound on what a page may cost to parse.

The tree builder looks through its stack of open elements at many tags, and through all attributes of a tag at each new
one: a page of nothing but `<div>`, or one tag with a hundred thousand attributes, takes time by the square of its size.
Browsers stop at 512 levels. Here such a page is cut where it goes too far; real ones stay far below.

This sees honest excess, not a page that hides its depth by misplaced end tags: against that the parser has a clock.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

HARMLESS: Final = 64 * 1024
"""Bodies up to this size are never looked at: at worst they take about a second."""

MAX_DEPTH: Final = 2_000
MAX_ATTRIBUTES: Final = 2_000
_WINDOW: Final = 32 * 1024

_TAG: Final = re.compile(rb"<(/?)([A-Za-z][^\t\n\f\r />]*)")
_QUOTED: Final = re.compile(rb"\"[^\"]*\"|'[^']*'")
_SEPARATORS: Final = re.compile(rb"[\t\n\f\r /=\"']+")
# Without content, or closed by the next of their kind.
_FLAT: Final = frozenset(
    b"area base br col embed hr img input link meta param source track wbr p li dt dd option optgroup tr td th thead "
    b"tbody tfoot colgroup rp rt a button nobr form html head body".split()
)


def within_bounds(markup: bytes) -> bytes:
    """`markup` up to where it nests deeper, or a tag has more attributes, than the limits above."""
    if len(markup) <= HARMLESS:
        return markup
    return _bounded_depth(_bounded_tags(markup))


def _bounded_tags(markup: bytes) -> bytes:
    """Cut before a tag with too many attributes: it is longer than two windows, so one of them has no `>`."""
    at = 0
    while at < len(markup):
        if markup.find(b">", at, at + _WINDOW) < 0:
            start = markup.rfind(b"<", max(0, at - _WINDOW), at + 1)
            if start >= 0 and markup.find(b">", start, at) < 0 and _TAG.match(markup, start):
                end = markup.find(b">", at) + 1 or len(markup)
                if len(_SEPARATORS.findall(_QUOTED.sub(b"''", markup[start:end]))) > MAX_ATTRIBUTES:
                    return markup[:start]
                at = end
        at += _WINDOW
    return markup


def _bounded_depth(markup: bytes) -> bytes:
    """Cut where more than MAX_DEPTH elements are open. Only asked exactly where there are far more `<` than `</`."""
    if markup.count(b"<") - 2 * markup.count(b"</") <= MAX_DEPTH:
        return markup
    opened: Counter[bytes] = Counter()
    depth = 0
    for tag in _TAG.finditer(markup):
        name = tag[2].lower()
        if name in _FLAT:
            continue
        if not tag[1]:
            opened[name] += 1
            depth += 1
            if depth > MAX_DEPTH:
                return markup[: tag.start()]
        elif opened[name]:
            opened[name] -= 1
            depth -= 1
    return markup
