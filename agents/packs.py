"""Links of parsed pages on their way to the shards: which are worth sending, and the packs they travel in. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from streams.codecs import encode
from streams.definitions import CrawlDefinition
from streams.messages import PACK_BYTES, PACK_ITEMS, Candidate, Candidates, LinkParent, Links, PageHeaders
from streams.policy import urls
from streams.policy.bounds import DEPTH, bounds_of
from streams.policy.keys import canonical_by
from streams.topics import shard_of

ENDED: Final = "crawl:ended"
UNKNOWN: Final = "crawl:unknown"
LONG_URL: Final = "limit:url"
NESTED: Final = "sitemap:nested"

MAX_URL: Final = 8192
"""Longest URL that is followed, in characters: a server need not take more than 8000 (RFC 9110 §4.1)."""

MAX_NESTING: Final = 5
"""Indexes on the way to a sitemap. The protocol knows one; loops end anyway, for a URL is read once."""

_NOTHING: Final[Mapping[str, int]] = {}
_CANDIDATE_BYTES: Final = 256  # of JSON, beside the URLs
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
    lastmods: list[int] = field(default_factory=list)
    size: int = 0

    def date(self, lastmod: int) -> None:
        """Note when the newest link was changed; the others have no date."""
        self.lastmods += [0] * (len(self.urls) - 1 - len(self.lastmods)) + [lastmod]
        self.size += len(str(lastmod)) + 1

    def message(self, crawl: str) -> Links:
        missing = len(self.urls) - len(self.lastmods) if self.lastmods else 0
        return Links(
            crawl=crawl, urls=self.urls, fingerprints=bytes(self.fingerprints), parents=self.parents,
            lastmods=self.lastmods + [0] * missing,
        )  # fmt: skip


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
        self,
        page: PageHeaders,
        found: list[str],
        definition: CrawlDefinition | None,
        lastmods: Mapping[str, int] = _NOTHING,
    ) -> tuple[int, dict[str, int]]:
        """Take the links of one page: how many the crawl follows, and how many each rule keeps back.

        `lastmods`: when some of them were changed (ms). That is news of a link that is known, too.
        """
        barred = _barred(page, definition)
        if barred or definition is None:
            return 0, {barred: len(found)} if found else {}
        crawl = self._packer.crawl(definition)
        pending = self._pending.setdefault((definition.id, page.priority), {})
        limited, depth = definition.depth is not None, depth_of_links(page)
        known: Callable[[str], int | None] = crawl.emitted(page.priority).depth
        if definition.recrawl is None:
            lastmods = _NOTHING  # nobody asks
        elif lastmods:
            known = _unknown
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
        self._gather(page, fresh, crawl, depth, lastmods)
        return followed, dropped

    def add_sitemaps(
        self, page: PageHeaders, found: list[str], definition: CrawlDefinition | None, lastmods: Mapping[str, int]
    ) -> tuple[int, dict[str, int]]:
        """Take the sitemaps that an index names; as `add`. They are not asked for their scope, their links will be."""
        barred = _barred(page, definition) or (NESTED if page.depth >= MAX_NESTING else "")
        if barred or definition is None or not found:
            return 0, {barred: len(found)} if found else {}
        key = self._packer.crawl(definition).key
        kept = [url for url in found if len(url) <= MAX_URL]
        shares: dict[int, list[Candidate]] = {}
        for url in kept:
            item = Candidate(
                url=url, fingerprint=urls.fingerprint(definition.id, key(url)), crawl=definition.id,
                depth=page.depth + 1, priority=page.priority, parent=page.url, source="sitemap",
                lastmod=lastmods.get(url, 0),
            )  # fmt: skip
            shares.setdefault(self._shard(url), []).append(item)
        for shard, items in shares.items():
            self._full.extend((shard, encode(Candidates(items=tuple(some)))) for some in _portions(items))
        return len(kept), {LONG_URL: len(found) - len(kept)} if len(kept) < len(found) else {}

    def _gather(
        self, page: PageHeaders, fresh: list[str], known: _Crawl, depth: int, lastmods: Mapping[str, int]
    ) -> None:
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
                if lastmod := lastmods.get(url):
                    pack.date(lastmod)
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


def depth_of_links(page: PageHeaders) -> int:
    """A sitemap says what a site has, so its URLs are one step away from it, however many indexes led there."""
    return 1 if page.source == "sitemap" else page.depth + 1


def _unknown(_url: str) -> int | None:
    """What `Emitted.depth` would say if it remembered nothing."""
    return None


def _portions(items: list[Candidate]) -> Iterator[list[Candidate]]:
    """Candidates in portions of at most PACK_ITEMS and about PACK_BYTES."""
    portion, size = list[Candidate](), 0
    for item in items:
        size += len(item.url) + len(item.parent) + _CANDIDATE_BYTES
        if portion and (len(portion) >= PACK_ITEMS or size > PACK_BYTES):
            yield portion
            portion, size = [], len(item.url) + len(item.parent) + _CANDIDATE_BYTES
        portion.append(item)
    yield portion


def _barred(page: PageHeaders, definition: CrawlDefinition | None) -> str:
    """The rule that keeps back all links of a page, or ""."""
    if definition is None:
        return UNKNOWN
    if definition.state == "ended":
        return ENDED
    return DEPTH if definition.depth is not None and depth_of_links(page) > definition.depth else ""


def _close_parent(pack: _Pack, page: PageHeaders, depth: int, count: int) -> None:
    if count:
        pack.parents.append(
            LinkParent(url=page.url, depth=depth, count=count, priority=page.priority, traceparent=page.traceparent)
        )
