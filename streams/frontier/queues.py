"""The hosts of a shard with something to do: their queues, whose turn it is, and which of them are held."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from streams.frontier.gates import Gates
from streams.frontier.hosts import Agenda, Census, CrawlQueue, HostQueue, Lane
from streams.frontier.index import queue_prefix
from streams.frontier.turn import Turn
from streams.policy.retry import phase

NEWS = 1000
"""ms for which a fetcher may not have read a change of rules yet: what it says of a gap may be out of date."""


class Hold(NamedTuple):
    """Why queues of a crawl are held: the crawl may not go on, or it has no `places` for new URLs."""

    crawl: str
    places: bool

    def room(self, gates: Gates) -> float:
        """Orders of the crawl that may go out now."""
        if gates.holds(self.crawl):
            return 0
        return min(gates.room(self.crawl), gates.places(self.crawl)) if self.places else gates.room(self.crawl)


class HostQueues:
    """Queues in memory, made when something is first put into them and forgotten when nothing is left to wait for.

    `found`: each (host, crawl, whether of pages visited again) that has a queued URL when the shard is loaded.
    """

    def __init__(self, boot: Turn, found: Iterable[tuple[str, str, bool]]) -> None:
        self.hosts: dict[str, HostQueue] = {}
        self.held: dict[Hold, OrderedDict[HostQueue, None]] = {}  # the one that waits the longest first
        self.agenda = Agenda()
        self.hosts_by_crawl: Counter[str] = Counter()  # hosts with queued URLs
        self._changed = -NEWS  # when other rules were seen last
        lanes = list(found)
        self.meet(boot, dict.fromkeys(host for host, _, _ in lanes))
        for host, crawl, revisit in lanes:
            self.lane(self.hosts[host], crawl, revisit=revisit)

    def host(self, turn: Turn, host: str) -> HostQueue:
        """The queue of a host, made when first asked for."""
        if host not in self.hosts:
            self.meet(turn, (host,))
        return self.hosts[host]

    def keep(self, turn: Turn, queue: HostQueue, **changes: Any) -> None:
        """Change a host's row."""
        queue.row = msgspec.structs.replace(queue.row, **changes)
        turn.put_host(queue.host, queue.row)

    def spend(self, turn: Turn) -> list[tuple[HostQueue, str]]:
        """Write what a turn has spent of hosts' budgets into their rows; the hosts and crawls about which that is."""
        found: list[tuple[HostQueue, str]] = []
        for (host, crawl_id), (pages, size) in turn.spent.items():
            if not (pages or size):
                continue
            queue = self.host(turn, host)
            before = queue.row.spent.get(crawl_id, (0, 0))
            now = (max(0, before[0] + pages), max(0, before[1] + size))
            self.keep(turn, queue, spent={**queue.row.spent, crawl_id: now})
            found.append((queue, crawl_id))
        turn.spent.clear()
        return found

    def schedule(self, queue: HostQueue, now: int) -> None:
        """Something about a host has changed: see when to look at it."""
        self.agenda.put(queue, max(now, queue.at(now)))

    def came_early(self, turn: Turn, host: str, seconds: float) -> None:
        """The fetcher gave an order back: so long the gap after the host's last request lasts, by the rules it knew.

        That is kept in memory only: the gap is no word of the host's, and other rules may make it shorter.
        """
        if turn.now - self._changed < NEWS:
            seconds = min(seconds, NEWS / 1000)
        queue = self.host(turn, host)
        queue.spaced(turn.now + seconds * 1000)

    def look_again(self, crawls: set[str], now: int) -> None:
        """Other rules hold for these crawls: see what they mean for every host of theirs."""
        if crawls:
            self._changed = now
        for queue in self.hosts.values() if crawls else ():
            if not crawls.isdisjoint(queue.visitors):
                self.agenda.put(queue, now)

    def meet(self, turn: Turn, hosts: Iterable[str]) -> None:
        """Make queues for those of the hosts that have none."""
        new = [host for host in hosts if host not in self.hosts]
        for host, row in zip(new, turn.hosts(new), strict=True):
            queue = self.hosts[host] = HostQueue(host, row, learned=row.delay)
            self.agenda.put(queue, turn.now)  # to be forgotten if nothing comes of it

    def lane(self, queue: HostQueue, crawl_id: str, *, revisit: bool = False) -> Lane:
        """The lane of a crawl on a host, for something to be put into it: a page that is visited again ends a hold."""
        if revisit and crawl_id in queue.held:
            self.let_go(queue, crawl_id)
        found = queue.crawls.get(crawl_id)
        if found is None:
            found = queue.held.get(crawl_id)
        if found is None:
            found = queue.idle.pop(crawl_id, None) or CrawlQueue(queue_prefix(queue.host, crawl_id))
            queue.crawls[crawl_id] = found
            self.hosts_by_crawl[crawl_id] += 1
        return found.lane(revisit=revisit)

    def emptied(self, queue: HostQueue, crawl_id: str) -> None:
        """Nothing is queued any more of a crawl on a host."""
        queue.idle[crawl_id] = queue.crawls.pop(crawl_id)
        self.hosts_by_crawl[crawl_id] -= 1

    def hold(self, queue: HostQueue, crawl_id: str, *, places: bool = False) -> None:
        """A crawl may not go on, or has nothing but new URLs and no `places` for them: its queue waits for `resume`."""
        queue.held[crawl_id] = queue.crawls.pop(crawl_id)
        self.held.setdefault(Hold(crawl_id, places), OrderedDict())[queue] = None

    def let_go(self, queue: HostQueue, crawl_id: str) -> None:
        """A queue that is held is looked at again, whatever holds it."""
        for hold in (Hold(crawl_id, places=False), Hold(crawl_id, places=True)):
            if hold in self.held:
                self.held[hold].pop(queue, None)
        queue.crawls[crawl_id] = queue.held.pop(crawl_id)

    def free(self, queue: HostQueue, crawl_id: str) -> None:
        """An order was answered: what was held until then, because the host's budget was out, is looked at again."""
        holds = (Hold(crawl_id, places=False), Hold(crawl_id, places=True))
        if crawl_id in queue.held and not any(queue in self.held.get(hold, ()) for hold in holds):
            queue.crawls[crawl_id] = queue.held.pop(crawl_id)

    def may_resume(self, gates: Gates) -> bool:
        """Whether a crawl that was held may go on."""
        return any(hold.room(gates) > 0 for hold in self.held)

    def resume(self, gates: Gates, now: int) -> None:
        """Let crawls that were held go on: not more hosts than it has orders left."""
        for hold in list(self.held):
            hosts, room = self.held[hold], hold.room(gates)
            while hosts and room > 0:
                queue, _ = hosts.popitem(last=False)
                room -= 1
                if hold.crawl in queue.held:
                    queue.crawls[hold.crawl] = queue.held.pop(hold.crawl)
                    self.schedule(queue, now)
            if not hosts:
                del self.held[hold]

    def unpark(self, queue: HostQueue) -> None:
        """Queue again what was set aside until an origin's robots.txt is asked for."""
        parked, queue.parked = queue.parked, []
        for crawl_id, fingerprint, revisit in parked:
            self.lane(queue, crawl_id, revisit=revisit).give_back(fingerprint)

    def clock_went_back(self, by: int, now: int) -> None:
        """The broker's clock was set back by so many ms."""
        self.agenda = Agenda()
        for queue in self.hosts.values():
            queue.clock_went_back(by)
            self.schedule(queue, now)

    def census(self, now: int) -> Census:
        """Numbers of hosts. Looks at all of them: for metrics, not for turns."""
        broken = sum(1 for queue in self.hosts.values() if phase(queue.row.breaker, now) == "open")
        known = sum(1 for queue in self.hosts.values() if not queue.empty)
        late = max(0.0, now - self.agenda.next_at())
        return Census(len(self.hosts), self.hosts_by_crawl.total(), known, self.agenda.due(now), broken, late)
