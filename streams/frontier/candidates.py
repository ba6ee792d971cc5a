"""What happens to a URL that somebody names: seeds, links, redirect targets, redrives.

The row is the claim: a URL without a row gets one; a URL with a row is new only when the rules of visits say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import msgspec

from streams.definitions import CrawlDefinition, Recrawl
from streams.frontier.rows import ROW_SCHEMA, State, UrlRow, unmoved_by
from streams.frontier.turn import Turn
from streams.messages import Candidate, Failure, LinkParent, Links, Next, Origin, Source
from streams.policy.bounds import bounds_of
from streams.policy.recrawl import due_by_sitemap, visits_left
from streams.policy.urls import PolitenessMode, politeness_key

replace = msgspec.structs.replace
ORDER_BITS = 12
"""Items of one message are told apart by this many bits of `seq`: PACK_ITEMS < 4096."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Admits URLs into a shard. `politeness`: host | domain."""

    politeness: PolitenessMode

    def candidate(self, turn: Turn, item: Candidate, crawl: CrawlDefinition, seq: int, *, ordered: bool) -> None:
        """A seed or a redirect target. `ordered`: the URL's order is out."""
        row = turn.url(item.fingerprint)
        if item.origin is not None and row is not None and _replayed(item.origin, row.origins):
            return
        tally = turn.tallies[crawl.id]
        tally.activity += 1
        bounds = bounds_of(crawl)
        excluded = bounds.kept_out(item.url, item.depth, item.source)
        if not excluded and item.origin is None and item.source == "page":
            excluded = bounds.trap(item.url, turn.now)
        if row is None:
            turn.put(item.fingerprint, self._new(item, seq, excluded, turn.now))
            return
        origins = _with_origin(row.origins, item.origin)
        if not row.open and _reopens(item, row, crawl, turn.now, excluded):
            turn.put(item.fingerprint, replace(asked_for(row, item, seq, turn.now), origins=origins))
            return
        if item.refetch and row.open and not excluded and (ordered or row.state is State.FETCHED):
            # What is under way may have been asked for before the seed came: a visit of its own follows.
            turn.put(item.fingerprint, replace(row, origins=origins, then=item))
            return
        tally.duplicates += 1
        if item.lastmod and crawl.recrawl:
            self._dated(turn, item.fingerprint, item.lastmod, crawl.recrawl, seq)
            row = turn.url(item.fingerprint) or row
        met = _met(row, item.depth, item.priority, crawl) if row.open else row
        if origins != row.origins or met is not row:
            turn.put(item.fingerprint, replace(met, origins=origins))

    def too_late(self, turn: Turn, item: Candidate, crawl: CrawlDefinition, seq: int) -> None:
        """A seed that arrives when its crawl has ended: a new URL gets a row that says so, and nothing else.

        One may come between the last look for the end and its announcement; it was accepted all the same.
        """
        if turn.url(item.fingerprint) is None:
            rule = "cancelled" if crawl.result == "cancelled" else "ended"
            turn.put(item.fingerprint, self._new(item, seq, rule, turn.now))

    def links(self, turn: Turn, pack: Links, crawl: CrawlDefinition, seq: int) -> None:
        """A pack of links of one crawl; the parser has already applied scope, depth and traps."""
        joined = pack.fingerprints
        fingerprints = [joined[i : i + 16] for i in range(0, len(joined), 16)]
        dated = pack.lastmods and crawl.recrawl
        if dated:
            turn.load(fingerprints)
        stored = turn.stored(fingerprints)
        tally = turn.tallies[crawl.id]
        tally.activity += 1
        known = at = 0
        for parent in pack.parents:
            for i in range(at, min(at + parent.count, len(fingerprints))):
                fingerprint = fingerprints[i]
                data = stored.get(fingerprint)
                if data is not None and unmoved_by(data, parent.depth, parent.priority, endless=crawl.endless):
                    known += 1
                    continue
                if fingerprint in stored:
                    turn.learn(fingerprint, stored.pop(fingerprint))
                row = turn.url(fingerprint)
                if row is None:
                    turn.put(fingerprint, self._linked(pack.urls[i], crawl.id, parent, seq + i, turn.now))
                else:
                    known += self._known(turn, fingerprint, row, crawl, parent, seq + i)
            at += parent.count
        if pack.lastmods and crawl.recrawl:
            for i, (fingerprint, lastmod) in enumerate(zip(fingerprints, pack.lastmods, strict=True)):
                self._dated(turn, fingerprint, lastmod, crawl.recrawl, seq + i)
        tally.duplicates += known
        turn.links_known += known
        turn.links_new += len(fingerprints) - known

    def _linked(self, url: str, crawl: str, parent: LinkParent, seq: int, now: int) -> UrlRow:
        host = _site(url[: url.find("/", 8)], self.politeness)
        return UrlRow(
            ROW_SCHEMA, State.WAITING, parent.depth, parent.priority, crawl, url, host, 1, 0, seq, parent=parent.url,
            arrived=now,
        )  # fmt: skip

    def _new(self, item: Candidate, seq: int, excluded: str, now: int) -> UrlRow:
        return UrlRow(
            ROW_SCHEMA, State.EXCLUDED if excluded else State.WAITING, item.depth, item.priority, item.crawl, item.url,
            politeness_key(item.url, self.politeness), 1, 0, seq,
            parent=item.parent, via=item.via, visited=now if excluded else 0, outcome=excluded, headers=item.headers,
            meta=item.meta, origins=_with_origin((), item.origin), traceparent=item.traceparent, arrived=now,
            source=item.source, lastmod=item.lastmod,
        )  # fmt: skip

    @staticmethod
    def _dated(turn: Turn, fingerprint: bytes, lastmod: int, recrawl: Recrawl, seq: int) -> None:
        """A sitemap says when a URL that has a row was changed: perhaps it is due now. An older date is no news."""
        row = turn.url(fingerprint)
        if row is None or lastmod <= row.lastmod:
            return
        dated = replace(row, lastmod=lastmod)
        if not row.open and row.state is not State.EXCLUDED and visits_left(recrawl, row.visit):
            due = due_by_sitemap(recrawl, visited=row.visited, known=row.lastmod, lastmod=lastmod, now=turn.now)
            if due == turn.now:
                dated = next_visit(dated, seq, turn.now, row.depth, row.priority)
            elif due:
                dated = replace(dated, due=min(row.due or due, due))
        turn.put(fingerprint, dated)

    def _known(
        self, turn: Turn, fingerprint: bytes, row: UrlRow, crawl: CrawlDefinition, parent: LinkParent, seq: int
    ) -> bool:
        """A link to a URL that has a row; whether it counts as a duplicate."""
        if _kept_out_on_the_way(row) or (crawl.endless and _window_passed(row, crawl, turn.now)):
            depth = min(row.depth, parent.depth)
        elif parent.depth >= row.depth and (parent.priority <= row.priority or row.state is not State.WAITING):
            return True
        elif _shows_more(row, parent.depth, crawl):
            depth = parent.depth
        else:
            turn.put(fingerprint, _met(row, parent.depth, parent.priority, crawl))
            return True
        again = next_visit(row, seq, turn.now, depth, parent.priority)
        turn.put(fingerprint, replace(again, parent=parent.url, via=()))
        return False


@lru_cache(maxsize=8192)
def _site(root: str, politeness: PolitenessMode) -> str:
    """Politeness key of all URLs that begin with `root` (scheme and authority): links share few of them."""
    return politeness_key(root, politeness)


def kept_out(url: str, depth: int, crawl: CrawlDefinition, source: Source = "page") -> str:
    """What keeps a URL out of a crawl by depth or scope, "" for nothing. The crawl's state is not asked here."""
    return bounds_of(crawl).kept_out(url, depth, source)


def ruled_out(row: UrlRow, crawl: CrawlDefinition, now: int) -> str:
    """As `kept_out`, with traps: but what somebody named as a seed is no trap."""
    bounds = bounds_of(crawl)
    rule = bounds.kept_out(row.url, row.depth, row.source)
    return rule or ("" if row.origins or row.source == "sitemap" else bounds.trap(row.url, now))


def refused(item: Candidate, origin: Origin, now: int) -> Failure:
    """The failure of a seed whose crawl has no rows any more that could tell its fate; it names its place in `urls`."""
    return Failure(
        url=item.url, crawl=item.crawl, visit=0, attempt=0, failure="unreadable",
        reason=f"crawl {item.crawl} has ended and its rows have expired, or its definition is gone: name another crawl",
        evidence={"topic": origin.topic, "partition": origin.partition, "offset": origin.offset, "index": origin.index},
        next=Next(action="none"), at=now, meta=item.meta, traceparent=item.traceparent,
    )  # fmt: skip


def _met(row: UrlRow, depth: int, priority: int, crawl: CrawlDefinition) -> UrlRow:
    """The row of a URL that was met again: at the smallest depth, while it waits with the highest priority.

    A visit that was to ask whether the page has changed needs its links at a smaller depth: it must not end with a 304.
    """
    if row.state is not State.WAITING or priority < row.priority:
        priority = row.priority
    if depth >= row.depth and priority == row.priority:
        return row
    met = replace(row, depth=min(row.depth, depth), priority=priority)
    again = row.state is State.WAITING and brings_links_into_reach(row.depth, depth, crawl)
    return replace(met, etag="", last_modified="") if again else met


def brings_links_into_reach(old: int, new: int, crawl: CrawlDefinition) -> bool:
    """Whether links of a page handled at depth `old` are reached only when it counts as depth `new`.

    With a depth limit any shorter way matters: the page's links enter one level higher, and so do theirs.
    """
    return crawl.depth is not None and new < old


def _shows_more(row: UrlRow, depth: int, crawl: CrawlDefinition) -> bool:
    """Whether a URL that was handled at its row's depth must be handled again at `depth`.

    What was handled: a page's links, or the target of a redirect. While a visit is open the row's depth is lowered
    instead; what was out by then is noticed when it has been parsed.
    """
    return row.state in (State.DONE, State.REDIRECTED) and brings_links_into_reach(row.depth, depth, crawl)


def _reopens(item: Candidate, row: UrlRow, crawl: CrawlDefinition, now: int, excluded: str) -> bool:
    """Whether a candidate opens a new visit of a URL whose last visit has ended."""
    if excluded:
        return False
    seed = item.origin is not None
    if item.refetch or _kept_out_on_the_way(row) or (row.state is State.EXCLUDED and seed):
        return True
    return _shows_more(row, item.depth, crawl) or ((seed or crawl.endless) and _window_passed(row, crawl, now))


def _window_passed(row: UrlRow, crawl: CrawlDefinition, now: int) -> bool:
    """Whether the last visit ended `seen_ttl` ago: then a seed, in an endless crawl also a link, opens a new one."""
    return not row.open and now - row.visited >= crawl.seen_ttl * 1000


def _kept_out_on_the_way(row: UrlRow) -> bool:
    """Whether only the way on which the URL was met (too deep, a redirect out of scope) kept it out."""
    return row.state is State.EXCLUDED and (row.outcome == "depth" or row.outcome.startswith("scope"))


def next_visit(row: UrlRow, seq: int, now: int, depth: int, priority: int) -> UrlRow:
    """The row with its next visit open. One at a smaller depth needs the page's links: it must not end with a 304."""
    again = replace(row, state=State.WAITING, visit=row.visit + 1, attempt=0, depth=depth, priority=priority, seq=seq,
                    arrived=now, due=0, outcome="", status=0, page=None, then=None)  # fmt: skip
    return replace(again, etag="", last_modified="") if depth < row.depth else again


def asked_for(row: UrlRow, item: Candidate, seq: int, now: int) -> UrlRow:
    """The row with a visit open for a candidate: the next one, or one that was just opened for another reason."""
    depth = min(row.depth, item.depth)
    again = row if row.open else next_visit(row, seq, now, depth, item.priority)
    return replace(again, depth=depth, headers=item.headers, meta=item.meta, parent=item.parent, via=item.via,
                   source=item.source, traceparent=item.traceparent, then=None)  # fmt: skip


def _replayed(origin: Origin, taken: tuple[Origin, ...]) -> bool:
    """Whether a seed at this position was taken before: positions of one partition only grow."""
    return any(
        (origin.offset, origin.index) <= (seen.offset, seen.index)
        for seen in taken
        if (seen.topic, seen.partition) == (origin.topic, origin.partition)
    )


def _with_origin(taken: tuple[Origin, ...], origin: Origin | None) -> tuple[Origin, ...]:
    if origin is None:
        return taken
    others = tuple(o for o in taken if (o.topic, o.partition) != (origin.topic, origin.partition))
    return (*others, origin)
