"""What a crawl's definition says about releasing its URLs now: go on, wait, or no more of them ever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streams.definitions import CrawlDefinition
from streams.frontier.rows import State
from streams.frontier.tally import Tallies
from streams.policy.politeness import Limits

NEVER = float("inf")


class Gates:
    """Asked anew in every turn, for definitions change while crawls run.

    `over`: crawls with waiting URLs that may not be released any more, and the rule that excludes them.
    """

    def __init__(self, crawls: Mapping[str, CrawlDefinition], tallies: Tallies) -> None:
        self.over: dict[str, str] = {}
        self._crawls = crawls
        self._tallies = tallies
        self._elsewhere: Mapping[str, int] = {}
        self._deadline = NEVER

    def look(self, now: int, elsewhere: Mapping[str, int]) -> None:
        """A turn begins. `elsewhere`: pages that other shards count for each crawl."""
        self._elsewhere = elsewhere
        self._deadline = NEVER
        self.over = {}
        for crawl_id, tally in self._tallies.items():
            crawl = self._crawls.get(crawl_id)
            if crawl is not None and crawl.state != "paused" and tally.states[State.WAITING]:
                if rule := self._rule(crawl, now):
                    self.over[crawl_id] = rule
                elif crawl.deadline is not None:
                    self._deadline = min(self._deadline, crawl.deadline)

    def next_at(self) -> float:
        """The next deadline of a crawl with waiting URLs (ms)."""
        return self._deadline

    def holds(self, crawl_id: str) -> bool:
        """Whether a crawl's URLs must wait: it is unknown or paused, or all pages of its limit are out already."""
        crawl = self._crawls.get(crawl_id)
        if crawl is None or crawl.state == "paused":
            return True
        return crawl.limit is not None and crawl_id not in self.over and self.room(crawl_id) <= 0

    def room(self, crawl_id: str) -> float:
        """Orders that a crawl's page limit leaves, should all that are out succeed."""
        crawl = self._crawls[crawl_id]
        if crawl.limit is None or crawl_id in self.over:
            return NEVER
        return crawl.limit - self._pages(crawl_id) - self._tallies[crawl_id].released

    def limits(self, crawl_ids: Iterable[str], crawl_delay: float) -> Limits:
        """Delay and parallelism in force on a host with URLs of these crawls: the strictest, and its Crawl-delay."""
        crawls = [crawl for crawl_id in crawl_ids if (crawl := self._crawls.get(crawl_id)) is not None]
        delay = max((crawl.delay for crawl in crawls), default=0.0)
        if any(crawl.robots for crawl in crawls):
            delay = max(delay, crawl_delay)
        return Limits(delay, max(1, min((crawl.parallelism for crawl in crawls), default=1)))

    def _pages(self, crawl_id: str) -> int:
        return self._tallies[crawl_id].pages + self._elsewhere.get(crawl_id, 0)

    def _rule(self, crawl: CrawlDefinition, now: int) -> str:
        if crawl.state == "ended":
            return "cancelled" if crawl.result == "cancelled" else "ended"
        if crawl.deadline is not None and now >= crawl.deadline:
            return "deadline"
        return "limit" if crawl.limit is not None and self._pages(crawl.id) >= crawl.limit else ""
