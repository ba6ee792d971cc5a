"""Pages that bring nothing new: the memory behind the trap `trap:novelty` (`streams.policy.traps`).

For each pattern of URLs of a crawl on a host the newest different contents are remembered, and how many pages in a row
brought none beyond them. In memory that is bounded, the pattern seen longest ago going first; into the host's row goes
only what looks like a trap: so a site without traps costs no writes, and an owner that comes new has lost no more than
the last few pages of each count.

Only the first content of a URL counts, and only content: a page visited again is known by right, and a page without any
text says nothing.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from streams.definitions import CrawlDefinition
from streams.frontier.queues import HostQueues
from streams.frontier.rows import HostRow, Novelty, State, UrlRow
from streams.frontier.turn import Turn
from streams.page.fingerprint import content_fingerprint
from streams.policy.traps import NOVELTY, pattern_of

CONTENTS = 64
"""Different contents that are remembered of a pattern."""
PATTERNS = 4096
"""Patterns that a shard remembers."""
WRITTEN = 8
"""Patterns in a host's row."""
EVERY = 25
"""Pages in a row without anything new after which, and after each so many more, the host's row says so."""
DIGEST = 8
"""Bytes of a content fingerprint that are remembered."""
NO_TEXT = content_fingerprint("", "")
NEW = Novelty(0)


class Novelties:
    """What one shard remembers."""

    def __init__(self, queues: HostQueues) -> None:
        self._queues = queues
        self._known: OrderedDict[tuple[str, str], Novelty] = OrderedDict()

    def parsed(self, turn: Turn, before: UrlRow, after: UrlRow, limit: int) -> None:
        """A page was parsed, which changed its row. `limit`: `Traps.novelty`."""
        content = after.content
        if not limit or after.state is not State.DONE or before.content or content in (b"", NO_TEXT):
            return
        host, key = after.host, pattern_key(after)
        known = self._known.pop((host, key), None)
        if known is None:
            row = self._queues.host(turn, host).row
            known = row.patterns.get(key, NEW)
        now = _after(known, content[:DIGEST])
        self._known[host, key] = now
        if len(self._known) > PATTERNS:
            self._known.popitem(last=False)
        if (now.stale and now.stale % EVERY == 0) or now.stale == limit:
            self._write(turn, host, key, now)
        elif known.stale >= min(EVERY, limit) and not now.stale:
            self._write(turn, host, key, None)

    def _write(self, turn: Turn, host: str, key: str, novelty: Novelty | None) -> None:
        """Say in a host's row what is known of a pattern; the one with the fewest pages makes room."""
        queue = self._queues.host(turn, host)
        patterns = {name: known for name, known in queue.row.patterns.items() if name != key}
        if novelty is not None:
            patterns[key] = novelty
            if len(patterns) > WRITTEN:
                del patterns[min(patterns, key=lambda name: patterns[name].stale)]
        if patterns != queue.row.patterns:
            self._queues.keep(turn, queue, patterns=patterns)


def pattern_key(row: UrlRow) -> str:
    """What a host's row calls the pattern of a URL."""
    return f"{row.crawl}\0{pattern_of(row.url)}"


def no_news(host: HostRow, row: UrlRow, crawl: CrawlDefinition) -> str:
    """`trap:novelty` if pages like this one have brought nothing new for so long that it is not fetched.

    A seed is, a sitemap, and a page that was fetched before.
    """
    limit = crawl.traps.novelty
    if not (limit and host.patterns) or row.origins or row.content or row.source == "sitemap":
        return ""
    known = host.patterns.get(pattern_key(row))
    return NOVELTY if known is not None and known.stale >= limit else ""


def _after(known: Novelty, content: bytes) -> Novelty:
    """What is known after one more page."""
    if content in known.contents:
        return msgspec.structs.replace(known, stale=known.stale + 1)
    return Novelty(0, (*known.contents[1 - CONTENTS :], content))
