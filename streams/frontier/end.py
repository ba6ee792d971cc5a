"""The exact end of a sealed crawl, decided by the owner of one shard from what all shards published.

Two rounds over the ends of `inbox`. Every shard must report nothing open at a position that covers the ends; then, for
ends read after that, the same again with the same owner (epoch) and no activity in between. Whatever was on its way
during the first round has arrived by the second and would show as activity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from streams.messages import CrawlCounts, Progress

NOTHING = CrawlCounts()
Result = Literal["exhausted", "limit", "size", "deadline"]
BUDGETS: tuple[Result, ...] = ("limit", "size", "deadline")


@dataclass(slots=True)
class EndWatch:
    """Watches one crawl. `step` is called again and again with ends read before the call."""

    crawl: str
    shards: int
    _ends: Sequence[int] | None = None
    _first: dict[int, tuple[int, int]] | None = None

    def step(self, progress: Mapping[int, Progress], ends: Sequence[int]) -> bool:
        """Whether the end is certain. `ends`: end offset of each partition of `inbox`, read just before this call."""
        if self._ends is None:
            self._ends = ends
            return False
        marks = self._marks(progress, self._ends)
        if marks is None:
            if self._anything_open(progress):
                self._restart()
            return False
        if self._first is None:
            self._first, self._ends = marks, None
            return False
        if marks == self._first:
            return True
        self._restart()
        return False

    def _marks(self, progress: Mapping[int, Progress], ends: Sequence[int]) -> dict[int, tuple[int, int]] | None:
        """Epoch and activity by shard, if every shard reports nothing open at or beyond `ends`."""
        marks: dict[int, tuple[int, int]] = {}
        for shard in range(self.shards):
            report = progress.get(shard)
            if report is None or report.position < ends[shard]:
                return None
            counts = report.crawls.get(self.crawl, NOTHING)
            if _left(counts):
                return None
            marks[shard] = (report.epoch, counts.activity)
        return marks

    def _anything_open(self, progress: Mapping[int, Progress]) -> bool:
        return any(_left(report.crawls.get(self.crawl, NOTHING)) for report in progress.values())

    def _restart(self) -> None:
        self._ends = self._first = None


def seems_over(crawl: str, progress: Mapping[int, Progress], shards: int) -> bool:
    """A cheap look before the expensive one: every shard has reported, none with an open URL."""
    return len(progress) >= shards and not any(_left(report.crawls.get(crawl, NOTHING)) for report in progress.values())


def _left(counts: CrawlCounts) -> int:
    """URLs that are open or will be: what comes back by itself is not over."""
    return counts.open + counts.due


def result_of(crawl: str, reports: Iterable[Progress]) -> Result:
    """How a crawl ended: by the first of its budgets that kept any URL out, else exhausted."""
    rules: set[str] = set()
    for report in reports:
        rules.update(report.crawls.get(crawl, NOTHING).exclusions)
    return next((budget for budget in BUDGETS if budget in rules), "exhausted")
