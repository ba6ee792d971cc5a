"""Links of parsed pages on their way to the shards: which are worth sending, and the packs they travel in. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from streams.codecs import encode
from streams.definitions import CrawlDefinition
from streams.messages import PACK_BYTES, PACK_ITEMS, LinkParent, Links, PageHeaders
from streams.policy import urls
from streams.policy.bounds import DEPTH, bounds_of
from streams.policy.keys import canonical_by
from streams.topics import shard_of

ENDED: Final = "crawl:ended"
UNKNOWN: Final = "crawl:unknown"
LONG_URL: Final = "limit:url"

MAX_URL: Final = 8192
"""Longest URL that is followed, in characters: a server need not take more than 8000 (RFC 9110 §4.1)."""

_REMEMBERED: Final = 100_000
_MEMORY_SECONDS: Final = 600.0
_CRAWLS_REMEMBERED: Final = 32
_SITES_REMEMBERED: Final = 8192
_JSON_PER_LINK: Final = 3 + 22  # quotes and comma, and a fingerprint in base64


class Emitted:
    """The links of one crawl that were delivered lately, with the depth they were given. Saves sending them again.

    Two generations of URLs, so that forgetting costs nothing: a full or old one becomes the elder and the elder goes.
    It must forget in time, because the frontier opens a new visit for a link seen again after `seen_ttl`.
    """

    def __init__(self, seconds: float, capacity: int = _REMEMBERED) -> None:
        self._seconds = seconds
        self._capacity = capacity
        self._young: dict[str, int] = {}
        self._elder: dict[str, int] = {}
        self._turned = float("-inf")

    def depth(self, url: str) -> int | None:
        """The smallest depth `url` was delivered with; None if it was not, or that is forgotten."""
        depth = self._young.get(url)
        return self._elder.get(url) if depth is None else depth

    def add(self, delivered: Iterable[tuple[str, int]], now: float) -> None:
        """Remember what the broker has acknowledged. `now`: seconds of any steady clock."""
        self.age(now)
        for url, depth in delivered:
            known = self.depth(url)
            self._young[url] = depth if known is None else min(depth, known)

    def age(self, now: float) -> None:
        """Forget what is older than two spans, or too much."""
        if now - self._turned >= self._seconds or len(self._young) >= self._capacity:
            self._elder = self._young if now - self._turned < 2 * self._seconds else {}
            self._young = {}
            self._turned = now


@dataclass(slots=True)
class _Pack:
    """Links of one crawl for one shard that are being gathered."""

    urls: list[str] = field(default_factory=list)
    fingerprints: bytearray = field(default_factory=bytearray)
    parents: list[LinkParent] = field(default_factory=list)
    size: int = 0

    def message(self, crawl: str) -> Links:
        return Links(crawl=crawl, urls=self.urls, fingerprints=bytes(self.fingerprints), parents=self.parents)


class _Crawl:
    """One version of a crawl's definition, ready for the many links it is asked about."""

    def __init__(self, definition: CrawlDefinition) -> None:
        self._emitted: dict[int, Emitted] = {}
        self.follow(definition)

    def follow(self, definition: CrawlDefinition) -> None:
        """Take over a new version; what was delivered stays delivered."""
        self.definition = definition
        self.bounds = bounds_of(definition)
        self.key = canonical_by(definition.keys)

    def emitted(self, priority: int) -> Emitted:
        """The links that were delivered with a priority; met with another, they are sent again."""
        known = self._emitted.get(priority)
        if known is None:
            endless, ttl = self.definition.endless, self.definition.seen_ttl
            known = self._emitted[priority] = Emitted(min(_MEMORY_SECONDS, ttl / 10) if endless else _MEMORY_SECONDS)
        return known

    def age(self, now: float) -> None:
        """Forget what was delivered long ago."""
        for emitted in self._emitted.values():
            emitted.age(now)


class Packer:
    """Decides on the links of pages and gathers them, for all crawls of a process.

    `shards`: partitions of `inbox`; `key`: the politeness key of a URL.
    """

    def __init__(self, shards: int, key: Callable[[str], str]) -> None:
        self._crawls: dict[str, _Crawl] = {}
        after_scheme = len("https://")
        by_root = lru_cache(_SITES_REMEMBERED)(lambda root: shard_of(key(root), shards))
        self._shard: Callable[[str], int] = lambda url: by_root(url[: url.find("/", after_scheme) + 1])

    def turn(self, now: float) -> Turn:
        """A turn: the links of some pages, that are sent and remembered together."""
        for crawl in self._crawls.values():
            crawl.age(now)
        return Turn(self, self._shard)

    def crawl(self, definition: CrawlDefinition) -> _Crawl:
        """What is remembered of a crawl, the one asked for longest ago is forgotten."""
        known = self._crawls.pop(definition.id, None)
        if known is None:
            known = _Crawl(definition)
            if len(self._crawls) >= _CRAWLS_REMEMBERED:
                del self._crawls[next(iter(self._crawls))]
        elif known.definition is not definition:
            known.follow(definition)
        self._crawls[definition.id] = known
        return known


class Turn:
    """The links of some pages. Send `messages`, and when they are durable call `delivered`."""

    def __init__(self, packer: Packer, shard: Callable[[str], int]) -> None:
        self._packer = packer
        self._shard = shard
        self._open: dict[tuple[str, int], _Pack] = {}
        self._full: list[tuple[int, bytes]] = []
        self._pending: dict[tuple[str, int], dict[str, int]] = {}
        self.sent = 0
        """Links that go out."""

    def add(
        self, page: PageHeaders, found: list[str], definition: CrawlDefinition | None
    ) -> tuple[int, dict[str, int]]:
        """Take the links of one page: how many the crawl follows, and how many each rule keeps back."""
        barred = _barred(page, definition)
        if barred or definition is None:
            return 0, {barred: len(found)} if found else {}
        crawl = self._packer.crawl(definition)
        pending = self._pending.setdefault((definition.id, page.priority), {})
        limited, depth, known = definition.depth is not None, page.depth + 1, crawl.emitted(page.priority).depth
        scope, trap = crawl.bounds.scope, crawl.bounds.trap
        followed, dropped, fresh = 0, dict[str, int](), list[str]()
        for url in found:
            rule = LONG_URL if len(url) > MAX_URL else scope(url)
            if not rule:
                before = pending.get(url)
                if before is None:
                    before = known(url)
                if before is not None and not (limited and depth < before):
                    followed += 1
                    continue
                rule = trap(url, page.end) if before is None else ""
            if rule:
                dropped[rule] = dropped.get(rule, 0) + 1
                continue
            followed += 1
            pending[url] = depth
            fresh.append(url)
        self.sent += len(fresh)
        self._gather(page, fresh, crawl, depth)
        return followed, dropped

    def _gather(self, page: PageHeaders, fresh: list[str], known: _Crawl, depth: int) -> None:
        crawl, key = known.definition.id, known.key
        shares: dict[int, list[str]] = {}
        for url in fresh:
            shares.setdefault(self._shard(url), []).append(url)
        for shard, share in shares.items():
            pack, count = self._room(crawl, shard, page), 0
            for url in share:
                size = len(url) + _JSON_PER_LINK
                if len(pack.urls) >= PACK_ITEMS or pack.size + size > PACK_BYTES:
                    _close_parent(pack, page, depth, count)
                    self._flush(crawl, shard)
                    pack, count = self._room(crawl, shard, page), 0
                pack.urls.append(url)
                pack.fingerprints += urls.fingerprint(crawl, key(url))
                pack.size += size
                count += 1
            _close_parent(pack, page, depth, count)

    def _room(self, crawl: str, shard: int, page: PageHeaders) -> _Pack:
        """The open pack of a crawl and shard; the page's own entry is counted from the start."""
        pack = self._open.setdefault((crawl, shard), _Pack())
        pack.size += len(page.url) + len(page.traceparent) + 64
        return pack

    def _flush(self, crawl: str, shard: int) -> None:
        self._full.append((shard, encode(self._open.pop((crawl, shard)).message(crawl))))

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Every pack with its shard; each is at most PACK_ITEMS links and PACK_BYTES."""
        for crawl, shard in list(self._open):
            self._flush(crawl, shard)
        yield from self._full

    def delivered(self, now: float) -> None:
        """All messages are durable: their links need not be sent again for a while."""
        for (crawl_id, priority), links in self._pending.items():
            crawl = self._packer._crawls.get(crawl_id)  # noqa: SLF001 - both are one unit
            if crawl is not None:
                crawl.emitted(priority).add(links.items(), now)


def _barred(page: PageHeaders, definition: CrawlDefinition | None) -> str:
    """The rule that keeps back all links of a page, or ""."""
    if definition is None:
        return UNKNOWN
    if definition.state == "ended":
        return ENDED
    return DEPTH if definition.depth is not None and page.depth >= definition.depth else ""


def _close_parent(pack: _Pack, page: PageHeaders, depth: int, count: int) -> None:
    if count:
        pack.parents.append(
            LinkParent(url=page.url, depth=depth, count=count, priority=page.priority, traceparent=page.traceparent)
        )
