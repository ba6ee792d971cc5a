"""What the elements of a page say, gathered in two queries over the tree: plain anchors, and everything rarer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from selectolax.lexbor import LexborHTMLParser, LexborNode

from streams.page import directives, links
from streams.page.directives import Directives
from streams.page.text import collapse

# Every query walks the whole tree, every node of its result becomes an object: the many anchors without rel are read in
# a loop of their own that asks for one attribute only.
_PLAIN: Final = "a[href]:not([rel])"
_META: Final = ",".join((*(f"meta[name={name} i]" for name in directives.AUDIENCE), "meta[http-equiv=refresh i]"))
_RARER: Final = f"a[rel][href],area[href],frame[src],iframe[src],base[href],link[href],title,{_META}"


@dataclass(slots=True)
class Markup:
    """`hrefs`: references to follow, as written. `base`: the first `<base href>`. `nofollow`: links kept back."""

    hrefs: list[str] = field(default_factory=list)
    base: str | None = None
    nofollow: int = 0
    title: str | None = None
    directives: Directives = directives.NONE


def read(tree: LexborHTMLParser) -> Markup:
    """Gather links, base, title and directives, wherever in the document they stand."""
    found = Markup(hrefs=[_href(node) for node in tree.css(_PLAIN)])
    for node in tree.css(_RARER):
        _READERS[node.tag or ""](found, node)
    return found


def _href(node: LexborNode) -> str:
    """The reference of an anchor; an attribute without value counts as empty (it links to the page itself)."""
    try:
        return node.attrs["href"] or ""
    except KeyError:  # `a[href]` also finds the `xlink:href` of SVG, by its local name
        return node.attrs.get("xlink:href") or ""


def _anchor(found: Markup, node: LexborNode) -> None:
    if "nofollow" in links.rels(node.attrs.get("rel")):
        found.nofollow += 1
    else:
        found.hrefs.append(_href(node))


def _frame(found: Markup, node: LexborNode) -> None:
    found.hrefs.append(node.attrs["src"] or "")


def _link(found: Markup, node: LexborNode) -> None:
    if links.is_followed(links.rels(node.attrs.get("rel"))):
        _anchor(found, node)


def _base(found: Markup, node: LexborNode) -> None:
    if found.base is None:
        found.base = node.attrs["href"] or ""


def _meta(found: Markup, node: LexborNode) -> None:
    attributes = node.attributes
    content = attributes.get("content") or ""
    if (attributes.get("name") or "").lower() in directives.AUDIENCE:
        found.directives |= directives.from_meta(content)
    if (attributes.get("http-equiv") or "").lower() == "refresh" and (target := links.refresh_target(content)):
        found.hrefs.append(target)


def _title(found: Markup, node: LexborNode) -> None:
    """The first title of the document (HTML §3.1.5 "the title element"); drawings have titles of their own."""
    if found.title is None and not _is_drawn(node):
        found.title = collapse(node.text())


def _is_drawn(node: LexborNode) -> bool:
    parent = node.parent
    while parent is not None and parent.tag not in ("head", "body"):
        if parent.tag in ("svg", "math"):
            return True
        parent = parent.parent
    return False


_READERS: Final = {
    "a": _anchor, "area": _anchor, "frame": _frame, "iframe": _frame, "link": _link, "base": _base, "meta": _meta,
    "title": _title,
}  # fmt: skip
