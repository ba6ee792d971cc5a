"""Which references of a page are links to other pages, and where they lead.

Followed: `a` and `area` (also SVG's), `frame`, `iframe`, a refresh, and `link` with rel next, prev, alternate, index or
contents. Never style sheets, scripts, images or forms. `rel=nofollow` keeps a link back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final, Protocol

_FOLLOWED_RELS: Final = frozenset({"next", "prev", "alternate", "index", "contents"})
_ASCII_WHITESPACE: Final = "\t\n\f\r "
_REFRESH: Final = re.compile(
    r"[\t\n\f\r ]*(?:[0-9]+|(?=\.))[0-9.]*(?=[;,\t\n\f\r ])[\t\n\f\r ]*+[;,]?+[\t\n\f\r ]*+"
    r"(?:url[\t\n\f\r ]*=[\t\n\f\r ]*)?+(?:\"(?P<double>[^\"]*)|'(?P<single>[^']*)|(?P<bare>.+))",
    re.IGNORECASE | re.DOTALL,
)


class Join(Protocol):
    """Resolves the references of one page."""

    def join(self, href: str, /) -> str | None:
        """The wire URL of `href`, or None where it leads to nothing that can be fetched."""


class Linker(Protocol):
    """Makes the `Join` of a page; `streams.policy.urls.Joiner` is the one in use."""

    def __call__(self, page_url: str, base_href: str | None, /) -> Join:
        """`base_href`: the first `<base href>` of the page, if it has one."""


def rels(value: str | None) -> frozenset[str]:
    """The tokens of a `rel` attribute, lower case."""
    return frozenset((value or "").lower().split())


def is_followed(kind: frozenset[str]) -> bool:
    """Whether a `link` element of these rels leads to a page; an alternate style sheet does not."""
    return "stylesheet" not in kind and not kind.isdisjoint(_FOLLOWED_RELS)


def refresh_target(content: str) -> str | None:
    """The reference in a refresh, `<meta>` or header (HTML §4.2.5.3 "shared declarative refresh steps").

    None: there is none, the page only loads itself again.
    """
    match = _REFRESH.match(content)
    if match is None:
        return None
    return match["double"] or match["single"] or match["bare"] or None


def resolve(hrefs: Iterable[str], links: Join, limit: int) -> tuple[list[str], int]:
    """The distinct URLs of `hrefs` in their order, and how many distinct hrefs beyond `limit` were not looked at."""
    distinct = dict.fromkeys(hrefs)
    join = links.join
    found = dict.fromkeys(map(join, islice(distinct, limit)))
    found.pop(None, None)
    return [url for url in found if url is not None], max(0, len(distinct) - limit)
