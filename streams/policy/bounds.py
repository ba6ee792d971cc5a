"""What keeps URLs out of a crawl whatever became of them before: its depth, its scope with its rules, and traps."""

from __future__ import annotations

from streams.definitions import CrawlDefinition, Scope
from streams.messages import Source
from streams.policy.scope import compile_scope
from streams.policy.traps import compile_traps

DEPTH = "depth"
ANYWHERE = Scope()
_REMEMBERED = 256


class Bounds:
    """One version of a definition, compiled. Each question is answered with what keeps a URL out, "" for nothing.

    `scope`: by wire URL; `trap`: by wire URL and now (ms).
    """

    __slots__ = ("_depth", "_sitemaps", "definition", "scope", "trap")

    def __init__(self, definition: CrawlDefinition) -> None:
        self.definition = definition
        self.scope = compile_scope(definition.scope, definition.scope_rules)
        self._sitemaps = compile_scope(ANYWHERE, definition.scope_rules)
        self.trap = compile_traps(definition.traps)
        self._depth = definition.depth

    def kept_out(self, url: str, depth: int, source: Source = "page") -> str:
        """By depth or scope. A sitemap may be anywhere, if no rule forbids it: these are about the URLs it lists."""
        if source == "sitemap":
            return self._sitemaps(url)
        return DEPTH if self._depth is not None and depth > self._depth else self.scope(url)


_compiled: dict[str, Bounds] = {}


def bounds_of(definition: CrawlDefinition) -> Bounds:
    """The bounds of a definition, compiled once until another one of the same crawl is asked about."""
    known = _compiled.get(definition.id)
    if known is None or known.definition is not definition:
        if len(_compiled) >= _REMEMBERED:
            _compiled.clear()
        known = _compiled[definition.id] = Bounds(definition)
    return known
