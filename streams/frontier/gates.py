"""What crawls' definitions say about releasing URLs now: go on, wait, or no more of them ever; and by which rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streams.definitions import CrawlDefinition
from streams.frontier import budgets
from streams.frontier.rows import HostRow, State, UrlRow
from streams.frontier.tally import Tallies
from streams.messages import Candidates, Command, CrawlCounts, Inbox, Links, RobotsHop
from streams.policy.in_force import InForce
from streams.policy.urls import PolitenessMode

NEVER = float("inf")


class Gates:
    """Asked anew in every turn, for definitions change while crawls run.

    `over`: crawls with waiting URLs that may not be released any more, and the rule that excludes them. `changed`:
    crawls of which other rules about hosts hold than in the last turn.
    """

    def __init__(
        self, crawls: Mapping[str, CrawlDefinition], tallies: Tallies, politeness: PolitenessMode = "host"
    ) -> None:
        self.over: dict[str, str] = {}
        self.changed: set[str] = set()
        self.in_force = InForce(crawls, politeness)
        self.rules = self.in_force.rules
        self._seen: dict[str, CrawlDefinition] = {}
        self._crawls = crawls
        self._tallies = tallies
        self._elsewhere: Mapping[str, CrawlCounts] = {}
        self._deadline = NEVER
        self._now = 0

    def look(self, now: int, elsewhere: Mapping[str, CrawlCounts]) -> None:
        """A turn begins. `elsewhere`: what the other shards count for each crawl."""
        self._elsewhere, self._now = elsewhere, now
        self._deadline = NEVER
        self._see()
        self.over = {}
        for crawl_id, tally in self._tallies.items():
            crawl = self._crawls.get(crawl_id)
            if crawl is None or crawl.state == "paused":
                continue
            if tally.states[State.WAITING]:
                rule = self.rule(crawl, now)
                if rule and (tally.unplaced or rule not in budgets.ABOUT_PAGES):
                    self.over[crawl_id] = rule
                if rule in ("", *budgets.ABOUT_PAGES):
                    self._deadline = min(self._deadline, budgets.deadline(crawl))
            elif tally.due and now < (end := budgets.deadline(crawl)):
                self._deadline = min(self._deadline, end)  # then nobody waits for what would come back

    def next_at(self) -> float:
        """The next deadline of a crawl with URLs that wait or come back (ms)."""
        return self._deadline

    def over_at(self, row: HostRow, crawl_id: str) -> str:
        """The rule by which a crawl's URLs on a host may not be released any more, "" for none.

        Of several it is the one that keeps out most: a budget of pages may leave another one to ask for.
        """
        rule = self.over.get(crawl_id, "")
        if rule and rule not in budgets.ABOUT_PAGES:
            return rule
        crawl = self._crawls.get(crawl_id)
        if crawl is None or crawl.state == "paused" or (crawl.host_limit is None and crawl.host_size is None):
            return rule
        on_host = budgets.over_on_host(crawl, row)
        return rule if on_host in budgets.ABOUT_PAGES and rule else on_host or rule

    def keeps_out(self, row: UrlRow) -> str:
        """The rule by which a waiting URL is not released any more, as far as its crawl is concerned; "" for none."""
        rule = self.over.get(row.crawl, "")
        return "" if row.kept and rule in budgets.ABOUT_PAGES else rule

    def holds(self, crawl_id: str) -> bool:
        """Whether all of a crawl's URLs must wait: it is unknown or paused, or uses up its concurrency."""
        if self._nothing_waits(crawl_id):
            return False  # its hints lead nowhere: they are to be forgotten, not to be kept until it may go on
        crawl = self._crawls.get(crawl_id)
        if crawl is None or crawl.state == "paused":
            return True
        return self.room(crawl_id) <= 0

    def room(self, crawl_id: str) -> float:
        """Orders of a crawl that may go out now: what its concurrency leaves to this shard."""
        if self._nothing_waits(crawl_id) or self.over.get(crawl_id, budgets.PAGES) not in budgets.ABOUT_PAGES:
            return NEVER
        crawl = self._crawls[crawl_id]
        return NEVER if crawl.concurrency is None else self._part(crawl) - self._tallies[crawl_id].released

    def places(self, crawl_id: str) -> float:
        """New URLs of a crawl that may go out now: what its page limit leaves, should all that are out succeed.

        No limit is in force for a crawl that is over: its new URLs are excluded.
        """
        crawl = self._crawls.get(crawl_id)
        if crawl is None or crawl.limit is None or crawl_id in self.over or self._nothing_waits(crawl_id):
            return NEVER
        tally = self._tallies[crawl_id]
        return crawl.limit - self._pages(crawl_id) - (tally.released - tally.revisits)

    def shut_until(self, host: str, crawl_ids: Iterable[str], now: int) -> int:
        """When a host may be asked by the time windows of these crawls (ms): not before all of them are open.

        Those of a paused crawl do not count, for it has no use for the host.
        """
        until = 0
        for crawl_id in crawl_ids:
            crawl = self._crawls.get(crawl_id)
            if crawl is not None and crawl.limits and crawl.state != "paused":
                opening = self.rules.of(crawl).for_host(host).opening(now)
                until = max(until, 0 if opening.open else opening.until)
        return until

    def _see(self) -> None:
        """Note which crawls' rules about hosts have changed since the last turn."""
        self.changed = set()
        for crawl_id in self._tallies:
            crawl, seen = self._crawls.get(crawl_id), self._seen.get(crawl_id)
            if crawl is None or crawl is seen:
                continue
            self._seen[crawl_id] = crawl
            if seen is not None and _about_hosts(crawl) != _about_hosts(seen):
                self.changed.add(crawl_id)

    def _nothing_waits(self, crawl_id: str) -> bool:
        tally = self._tallies.get(crawl_id)
        return tally is None or not tally.states[State.WAITING]

    def _part(self, crawl: CrawlDefinition) -> float:
        """Orders of a crawl that this shard may have out at a time."""
        if crawl.concurrency is None:
            return NEVER
        others = self._elsewhere.get(crawl.id, budgets.NOTHING).open
        return budgets.part(crawl.concurrency, self._tallies[crawl.id].open, others)

    def vacant(self, crawl: CrawlDefinition) -> int:
        """Places of a crawl for which no new URL of this shard waits; 0 for a crawl without limit, or that is over."""
        if crawl.limit is None or self.rule(crawl, self._now):
            return 0
        return max(0, crawl.limit - self._pages(crawl.id) - self._tallies[crawl.id].unplaced)

    def _pages(self, crawl_id: str) -> int:
        return self._tallies[crawl_id].pages + budgets.pages_of(self._elsewhere, crawl_id)

    def rule(self, crawl: CrawlDefinition, now: int) -> str:
        """The rule by which nothing more of a crawl is released, "" for none."""
        if crawl.state == "ended":
            return "cancelled" if crawl.result == "cancelled" else "ended"
        size = self._tallies[crawl.id].size + self._elsewhere.get(crawl.id, budgets.NOTHING).size
        return budgets.over(crawl, self._pages(crawl.id), size, now)


def _about_hosts(crawl: CrawlDefinition) -> tuple[object, ...]:
    return crawl.limits, crawl.delay, crawl.parallelism, crawl.robots, crawl.state == "paused"


def definitions_of(message: Inbox) -> Iterable[tuple[str, int]]:
    """The crawls that a message is about, and the version of each that must be known."""
    if isinstance(message, Links | RobotsHop):
        return ((message.crawl, 0),)
    if isinstance(message, Command):
        return ((message.crawl, message.rules),)
    if isinstance(message, Candidates):
        return {(item.crawl, 0) for item in message.items}
    return ()
