"""The local order of waiting rows, and counters, both derived from rows alone.

The store writes these entries in the same batch as the row, also while it recovers, from the old row to the new one: so
they cannot drift. An entry is still only a hint: whoever follows one reads the row before acting.

Entries: `q host NUL crawl NUL place` → fingerprint (waiting, due now), `v host NUL crawl NUL place` → fingerprint (the
same of pages that are visited again: they wait for no place), `d due fingerprint` (waiting until due),
`f since fingerprint` (fetched, not parsed), `r due fingerprint` (ended; the next visit opens then),
`x crawl NUL rule NUL place fingerprint` (kept out). Numbers are big-endian so that bytes sort as numbers do.
"""

from __future__ import annotations

from collections.abc import Iterable

from streams.frontier.rows import URL_KEY, State, UrlRow, decode_url_row

QUEUE = b"q"
REVISITS = b"v"
DUE = b"d"
UNPARSED = b"f"
COMING_BACK = b"r"
EXCLUDED = b"x"
FINAL = frozenset({"ended", "cancelled"})
"""Rules that are never lifted."""
HEAD_START = 24 * 3600 * 1000
"""ms that each step of priority is worth in its queue."""
SIZE = "size"
KEPT = "kept"
PLACE = 16
"""Bytes of a place in a queue."""
REASONED = (State.FAILED, State.EXCLUDED)
"""States that are counted by class or rule, too."""
READ = (State.FETCHED, State.DONE)
"""States that count as pages, unless the URL is a sitemap."""
SITEMAP = "sitemap"


def queue_prefix(host: str, crawl: str, *, revisits: bool = False) -> bytes:
    """Prefix of all entries of one crawl's URLs on one host: of new ones, or of pages that are visited again."""
    return (REVISITS if revisits else QUEUE) + host.encode() + b"\0" + crawl.encode() + b"\0"


def queue_end(entry: bytes) -> bytes:
    """A key after all entries of the queue that `entry` belongs to."""
    return entry[:-PLACE] + b"\xff" * (PLACE + 1)


def queue_place(row: UrlRow) -> bytes:
    """Where a waiting row stands in its queue: by arrival, each priority above 0 being worth a head start of a day.

    So what arrives now with priority 9 overtakes all that came within nine days with priority 0, and nothing starves:
    whatever waits is overtaken only by what arrives within its head start. (Deadline scheduling with fixed places: no
    entry ever has to be moved because it got older.)
    """
    return (max(0, row.arrived) + (9 - row.priority) * HEAD_START).to_bytes(8, "big") + row.seq.to_bytes(8, "big")


def queue_entry(row: UrlRow) -> bytes:
    """Key of a waiting row's entry."""
    return queue_prefix(row.host, row.crawl, revisits=row.kept) + queue_place(row)


def comes_back(rule: str) -> bool:
    """Whether a rule may be lifted while its crawl goes on (`reopening`)."""
    return rule not in FINAL and not rule.startswith("accept:")


def excluded_prefix(crawl: str, rule: str) -> bytes:
    """Prefix of the entries of all URLs that a rule keeps out of a crawl, in the order of their queues."""
    return EXCLUDED + crawl.encode() + b"\0" + rule.encode() + b"\0"


def timed_entry(kind: bytes, at: int, fingerprint: bytes) -> bytes:
    """Key of an entry ordered by time (ms)."""
    return kind + at.to_bytes(8, "big") + fingerprint


def split_queue_entry(key: bytes) -> tuple[str, str]:
    """Host and crawl of a queue entry."""
    host, crawl, _ = key[1:].split(b"\0", 2)
    return host.decode(), crawl.decode()


def split_timed_entry(key: bytes) -> tuple[int, bytes]:
    """Time (ms) and fingerprint of an entry ordered by time."""
    return int.from_bytes(key[1:9], "big"), key[9:]


class FrontierIndexer:
    """Derives index entries and counters from a row (`streams.state.store.Indexer`)."""

    version = 6

    def __init__(self) -> None:
        self._value = b""
        self._row: UrlRow | None = None
        self._counters: dict[tuple[str, State, str, bool, bool], tuple[tuple[bytes, int], ...]] = {}

    def entries(self, key: bytes, value: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Index entries of a row: none for hosts and for terminal rows that do not come back."""
        if key[:1] != URL_KEY:
            return ()
        row = self._decoded(value)
        if row.state is State.WAITING:
            if row.due:
                return ((timed_entry(DUE, row.due, key[1:]), b""),)
            return ((queue_entry(row), key[1:]),)
        if row.state is State.EXCLUDED and not row.due and comes_back(row.outcome):
            return ((excluded_prefix(row.crawl, row.outcome) + queue_place(row) + key[1:], b""),)
        if row.state is State.FETCHED:
            return ((timed_entry(UNPARSED, row.visited, key[1:]), b""),)
        return ((timed_entry(COMING_BACK, row.due, key[1:]), b""),) if row.due else ()

    def counters(self, key: bytes, value: bytes) -> Iterable[tuple[bytes, int]]:
        """`crawl NUL state`, and for some rows `crawl NUL` and one of these.

        `state:class` for failures and exclusions, `state:sitemap` for what was read and is no page, `due` for what
        comes back, `size`: bytes of bodies, `kept:state` for pages that count though they are not read now.
        """
        if key[:1] != URL_KEY:
            return ()
        row = self._decoded(value)
        reason = row.outcome if row.state in REASONED else ""
        if row.source == SITEMAP and row.state in READ:
            reason = SITEMAP
        kept = row.kept and row.counted and row.state not in READ
        kind = (row.crawl, row.state, reason, bool(row.due) and not row.open, kept)
        known = self._counters.get(kind)
        if known is None:
            known = self._counters[kind] = _counters(*kind)
        return (*known, (f"{row.crawl}\0{SIZE}".encode(), row.size)) if row.size else known

    def _decoded(self, value: bytes) -> UrlRow:
        """The row of a value; the store asks for entries and counters of one value after the other."""
        if self._row is None or value is not self._value:
            self._row, self._value = decode_url_row(value), value
        return self._row


def _counters(crawl: str, state: State, reason: str, due: bool, kept: bool) -> tuple[tuple[bytes, int], ...]:
    how = state.name.lower()
    names = [f"{crawl}\0{how}"]
    if reason:
        names.append(f"{crawl}\0{how}:{reason}")
    if due:
        names.append(f"{crawl}\0due")
    if kept:
        names.append(f"{crawl}\0{KEPT}:{how}")
    return tuple((counter.encode(), 1) for counter in names)
