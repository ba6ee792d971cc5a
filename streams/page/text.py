"""The text of a page."""

from __future__ import annotations

import re
from typing import Final

from selectolax.lexbor import LexborHTMLParser

_NO_TEXT: Final = "script,style,noscript,iframe,noembed,noframes"
_ASCII_WHITESPACE: Final = re.compile(r"[\t\n\f\r ]+")


def body_text(tree: LexborHTMLParser, limit: int) -> str:
    """What the body element says, at most `limit` characters. Removes from `tree` the elements that say nothing.

    Text nodes are joined by a space, so that table cells and list items stay apart; templates have none. Each run of
    white space (also no-break and wide blanks) is one space.
    """
    body = tree.body
    if body is None:
        return ""
    for node in body.css(_NO_TEXT):
        node.decompose()
    return cut(" ".join(body.text(separator=" ").split()), limit)


def collapse(text: str) -> str:
    """`text` with each run of ASCII whitespace made one space, none at the ends (WHATWG Infra §4.7)."""
    return _ASCII_WHITESPACE.sub(" ", text).strip(" ")


def cut(text: str, limit: int) -> str:
    """The first `limit` characters; a blank at the cut goes too."""
    return text if len(text) <= limit else text[:limit].rstrip()
