"""Numbers of each crawl in one shard: a mirror of the store's counters, moved from old row to new row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from streams.frontier.index import KEPT, READ, SITEMAP, SIZE
from streams.frontier.rows import State, UrlRow
from streams.messages import CrawlCounts, Progress


def _zeros() -> list[int]:
    return [0] * len(State)


@dataclass(slots=True)
class Tally:
    """One crawl's numbers. `activity` and `duplicates` live as long as the owner; the rest is derived from rows."""

    states: list[int] = field(default_factory=_zeros)
    failures: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    exclusions: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lists: dict[State, int] = field(default_factory=lambda: dict.fromkeys(READ, 0))  # sitemaps among `states`
    kept: dict[State, int] = field(default_factory=lambda: defaultdict(int))  # pages of earlier visits, by state now
    due: int = 0  # ended, and come back
    size: int = 0  # bytes of the newest bodies of all URLs
    activity: int = 0
    duplicates: int = 0
    released: int = 0  # page orders out and unanswered
    revisits: int = 0  # among them of pages that hold a place
    reopening: bool = False  # excluded rows are being looked through: some may come back

    @property
    def open(self) -> int:
        """URLs without a terminal row."""
        return self.states[State.WAITING] + self.states[State.FETCHED]

    @property
    def pages(self) -> int:
        """Pages that count against a crawl's page limit."""
        return sum(self.states[state] - number for state, number in self.lists.items()) + sum(self.kept.values())

    @property
    def unplaced(self) -> int:
        """Waiting URLs that hold no place among the pages yet."""
        return self.states[State.WAITING] - self.kept[State.WAITING]

    def shift(self, row: UrlRow, by: int) -> None:
        """Count a row in (1) or out (-1)."""
        self.states[row.state] += by
        self.size += by * row.size
        if row.state is State.FAILED:
            self.failures[row.outcome] += by
        elif row.state is State.EXCLUDED:
            self.exclusions[row.outcome] += by
        elif row.source == SITEMAP and row.state in self.lists:
            self.lists[row.state] += by
        if row.kept and row.counted and row.state not in READ:
            self.kept[row.state] += by
        if row.due and not row.open:
            self.due += by

    @property
    def empty(self) -> bool:
        """Whether no row is left and no order is out."""
        return not (any(self.states) or self.released)

    def counts(self, hosts: int) -> CrawlCounts:
        """The public form: `fetched` and `done` are pages, sitemaps are told apart."""
        states = self.states
        return CrawlCounts(
            open=self.open + self.reopening,
            activity=self.activity,
            released=self.released,
            fetched=states[State.FETCHED] - self.lists[State.FETCHED],
            done=states[State.DONE] - self.lists[State.DONE],
            failed=states[State.FAILED],
            excluded=states[State.EXCLUDED],
            duplicates=self.duplicates,
            redirected=states[State.REDIRECTED],
            hosts=hosts,
            due=self.due,
            sitemaps=self.lists[State.DONE],
            kept=sum(self.kept.values()),
            size=self.size,
            failures={name: n for name, n in self.failures.items() if n},
            exclusions={name: n for name, n in self.exclusions.items() if n},
        )


def counted(reports: Iterable[Progress]) -> dict[str, CrawlCounts]:
    """What some shards count together for each crawl, as far as budgets are about it."""
    sums: dict[str, list[int]] = {}
    for report in reports:
        for crawl, counts in report.crawls.items():
            known = sums.setdefault(crawl, [0, 0, 0, 0, 0, 0])
            numbers = (counts.done, counts.fetched, counts.kept, counts.released, counts.size, counts.open)
            for i, number in enumerate(numbers):
                known[i] += number
    return {
        crawl: CrawlCounts(done=done, fetched=fetched, kept=kept, released=released, size=size, open=waiting)
        for crawl, (done, fetched, kept, released, size, waiting) in sums.items()
    }


class Tallies(dict[str, Tally]):
    """The tallies of all crawls of a shard, by crawl id."""

    def __missing__(self, crawl: str) -> Tally:
        self[crawl] = tally = Tally()
        return tally

    @property
    def unparsed(self) -> int:
        """Pages of all crawls that wait for the parser."""
        return sum(tally.states[State.FETCHED] for tally in self.values())

    def move(self, old: UrlRow | None, new: UrlRow) -> None:
        """A row changed from `old` (None: it is new) to `new`."""
        tally = self[new.crawl]
        if old is not None:
            tally.shift(old, -1)
        tally.shift(new, 1)

    def remove(self, row: UrlRow) -> None:
        """A row is deleted."""
        self[row.crawl].shift(row, -1)

    @classmethod
    def from_counters(cls, counters: dict[bytes, int]) -> Tallies:
        """Start from the store's counters (`streams.frontier.index`)."""
        tallies = cls()
        names = {state.name.lower(): state for state in State}
        for key, number in counters.items():
            crawl, _, name = key.decode().partition("\0")
            state, _, reason = name.partition(":")
            tally = tallies[crawl]
            if name == "due":
                tally.due = number
            elif name == SIZE:
                tally.size = number
            elif state == KEPT and reason:
                tally.kept[names[reason]] = number
            elif reason == SITEMAP and names[state] in tally.lists:
                tally.lists[names[state]] = number
            elif not reason:
                tally.states[names[state]] = number
            elif state == "failed":
                tally.failures[reason] = number
            else:
                tally.exclusions[reason] = number
        return tallies
