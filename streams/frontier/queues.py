"""The hosts of a shard with something to do: their queues, whose turn it is, and which of them are held."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any

import msgspec

from streams.frontier.gates import Gates
from streams.frontier.hosts import Agenda, Census, CrawlQueue, HostQueue
from streams.frontier.index import queue_prefix
from streams.frontier.turn import Turn
from streams.policy.retry import phase


class HostQueues:
    """Queues in memory, made when something is first put into them and forgotten when nothing is left to wait for.

    `found`: each (host, crawl) that has a queued URL when the shard is loaded.
    """

    def __init__(self, boot: Turn, found: Iterable[tuple[str, str]]) -> None:
        self.hosts: dict[str, HostQueue] = {}
        self.held: dict[str, OrderedDict[HostQueue, None]] = {}  # by crawl; the one that waits the longest first
        self.agenda = Agenda()
        self.hosts_by_crawl: Counter[str] = Counter()  # hosts with queued URLs
        pairs = list(found)
        self.meet(boot, dict(pairs))
        for host, crawl in pairs:
            self.queue(self.hosts[host], crawl)

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

    def look_again(self, crawls: set[str], now: int) -> None:
        """Other rules hold for these crawls: see what they mean for every host of theirs."""
        for queue in self.hosts.values() if crawls else ():
            if not crawls.isdisjoint(queue.visitors):
                self.agenda.put(queue, now)

    def meet(self, turn: Turn, hosts: Iterable[str]) -> None:
        """Make queues for those of the hosts that have none."""
        new = [host for host in hosts if host not in self.hosts]
        for host, row in zip(new, turn.hosts(new), strict=True):
            queue = self.hosts[host] = HostQueue(host, row, learned=row.delay)
            self.agenda.put(queue, turn.now)  # to be forgotten if nothing comes of it

    def queue(self, queue: HostQueue, crawl_id: str) -> CrawlQueue:
        """The queue of a crawl on a host, for something to be put into it."""
        found = queue.crawls.get(crawl_id)
        if found is None:
            found = queue.held.get(crawl_id)
        if found is None:
            found = queue.idle.pop(crawl_id, None) or CrawlQueue(queue_prefix(queue.host, crawl_id))
            queue.crawls[crawl_id] = found
            self.hosts_by_crawl[crawl_id] += 1
        return found

    def emptied(self, queue: HostQueue, crawl_id: str) -> None:
        """Nothing is queued any more of a crawl on a host."""
        queue.idle[crawl_id] = queue.crawls.pop(crawl_id)
        self.hosts_by_crawl[crawl_id] -= 1

    def hold(self, queue: HostQueue, crawl_id: str) -> None:
        """A crawl may not go on: its queue waits for `resume`."""
        queue.held[crawl_id] = queue.crawls.pop(crawl_id)
        self.held.setdefault(crawl_id, OrderedDict())[queue] = None

    def free(self, queue: HostQueue, crawl_id: str) -> None:
        """An order was answered: what was held until then, because the host's budget was out, is looked at again."""
        if crawl_id in queue.held and queue not in self.held.get(crawl_id, ()):
            queue.crawls[crawl_id] = queue.held.pop(crawl_id)

    def may_resume(self, gates: Gates) -> bool:
        """Whether a crawl that was held may go on."""
        return any(not gates.holds(crawl_id) for crawl_id in self.held)

    def resume(self, gates: Gates, now: int) -> None:
        """Let crawls that were held go on: not more hosts than it has orders left."""
        for crawl_id in list(self.held):
            if gates.holds(crawl_id):
                continue
            hosts = self.held[crawl_id]
            room = gates.room(crawl_id)
            while hosts and room > 0:
                queue, _ = hosts.popitem(last=False)
                room -= 1
                if crawl_id in queue.held:
                    queue.crawls[crawl_id] = queue.held.pop(crawl_id)
                    self.schedule(queue, now)
            if not hosts:
                del self.held[crawl_id]

    def unpark(self, queue: HostQueue) -> None:
        """Queue again what was set aside until an origin's robots.txt is asked for."""
        parked, queue.parked = queue.parked, []
        for crawl_id, fingerprint in parked:
            self.queue(queue, crawl_id).give_back(fingerprint)

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
