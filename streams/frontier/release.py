"""Just-in-time release: an order leaves when its host may be visited, and no more are out than can be answered soon.

So the lag of `fetches` is work that could run now. The fetcher owns the wire clock; here only order and window are
decided, a little ahead of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from streams.definitions import CrawlDefinition
from streams.frontier import outcomes
from streams.frontier.budgets import ABOUT_PAGES, all_out
from streams.frontier.candidates import ruled_out
from streams.frontier.closing import Closing, excluded
from streams.frontier.due import DueRows
from streams.frontier.explain import Facts
from streams.frontier.gates import Gates
from streams.frontier.guests import Guests
from streams.frontier.hops import Hops
from streams.frontier.hosts import NO_ASKS, HostQueue, waiting_hosts
from streams.frontier.index import queue_place
from streams.frontier.novelty import no_news
from streams.frontier.orders import page_order, robots_key, robots_order
from streams.frontier.queues import HostQueues
from streams.frontier.released import Out, Released
from streams.frontier.reopening import Reopening
from streams.frontier.revisits import Revisits
from streams.frontier.robots import HOPS, RobotsGate
from streams.frontier.rows import State, UrlRow
from streams.frontier.sitemaps import tell
from streams.frontier.tally import Tallies
from streams.frontier.turn import RowReader, Turn
from streams.messages import CrawlCounts, FetchOutcome, RobotsHop
from streams.policy.in_force import HostAsks
from streams.policy.limits import Effective
from streams.policy.urls import PolitenessMode

STEPS = 4000
"""Most URLs looked at in one turn, so that long runs of excluded URLs leave room for messages."""
BURST = 16
"""Most orders of one host before the next host has its turn."""
LONGEST_SHUT = 15 * 60_000
"""ms for which a URL is set aside at most that a time window of its own shuts: its rule may change meanwhile."""
LOOK_AGAIN = 1000
"""ms after which definitions are looked at again while a crawl is held."""


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """What a shard must know of its deployment. Durations in seconds."""

    shard: int
    politeness: PolitenessMode = "host"
    release_floor: int = 256
    release_seconds: float = 10.0
    unparsed_limit: int = 10_000
    answer_timeout: float = 600.0
    expire_after: float = 72 * 3600.0


class Release:
    """The hosts that wait and the orders that are out."""

    def __init__(
        self, config: ShardConfig, store: RowReader, epoch: int, crawls: Mapping[str, CrawlDefinition], tallies: Tallies
    ) -> None:
        self.released = Released(config.release_floor, config.release_seconds, config.unparsed_limit)
        self._config = config
        self._store = store
        self._epoch = epoch
        self._crawls = crawls
        self._robots = RobotsGate(config.politeness)
        self._due = DueRows(store)
        self._gates = Gates(crawls, tallies, config.politeness)
        self.reopening = Reopening(store, crawls, tallies, self._gates)
        self._closing = Closing(store, self._gates, self.released)
        self.revisits = Revisits(store, crawls, self._gates, tallies)
        self._now = 0
        self._room_left = False
        self.queues = HostQueues(Turn(store, tallies, 0), waiting_hosts(store))
        self._hops = Hops(self.released)
        self._guests = Guests(config.shard, epoch, crawls, self._gates, self.queues, self.released)

    # --- what a shard tells

    def begin(self, now: int) -> None:
        """A turn begins: before its messages are taken in, whose times are counted from the clock as it is now."""
        if now < self._now - LOOK_AGAIN:
            self._clock_went_back(now)
        self._now = now

    def wait(self, turn: Turn) -> None:
        """Queue the rows this turn leaves waiting; their entries will be in the index when the next one begins."""
        self.revisits.plan(turn)
        waiting = [(fingerprint, row) for fingerprint, row in turn.changed.items()
                   if row.state is State.WAITING and fingerprint not in self.released]  # fmt: skip
        self.queues.meet(turn, dict.fromkeys(row.host for _, row in waiting))
        hosts: dict[HostQueue, None] = {}
        for fingerprint, row in waiting:
            if row.due and not self._gates.keeps_out(row):
                self._due.note(row.due, fingerprint)
                continue
            queue = self.queues.host(turn, row.host)
            lane = self.queues.lane(queue, row.crawl, revisit=row.kept)
            if row.due:
                lane.give_back(fingerprint)
            else:
                lane.note(queue_place(row), fingerprint)
            self._closing.queued(queue, row.crawl, revisit=row.kept)
            hosts[queue] = None
        for queue in hosts:
            self.queues.schedule(queue, turn.now)

    def give_back(self, turn: Turn, host: str, crawl_id: str, fingerprint: bytes, *, revisit: bool) -> None:
        """A URL waits again that was released, or whose time has come."""
        queue = self.queues.host(turn, host)
        self.queues.lane(queue, crawl_id, revisit=revisit).give_back(fingerprint)
        self._closing.queued(queue, crawl_id, revisit=revisit)
        self.queues.schedule(queue, turn.now)

    def answered(self, turn: Turn, out: Out) -> HostQueue:
        """The order of a page is no longer out."""
        queue = self.queues.host(turn, out.host)
        self._ended(queue, out)
        turn.tallies[out.crawl].released -= 1
        turn.tallies[out.crawl].revisits -= out.revisit
        self.queues.schedule(queue, turn.now)
        return queue

    def robots_answered(self, turn: Turn, outcome: FetchOutcome, out: Out) -> None:
        """A robots.txt was fetched, or could not be."""
        queue = self.queues.host(turn, out.host)
        crawl = self._crawls.get(out.crawl)
        if out.leg == "guest":
            self._guests.answered(turn, queue, outcome, out)
        elif outcome.result == "redirected" and out.visit < HOPS and crawl is not None:
            if out.leg == "own":  # nothing of it is out here while its file is asked for elsewhere
                self._ended(queue, out)
            self._hops.send(turn, out, outcome.location)
        else:
            self._robots_over(queue, out)
            if outcome.result != "deferred":
                self.queues.keep(turn, queue, **self._robots.answered(queue.row, outcome, out.origin, turn.now))
        self.queues.schedule(queue, turn.now)

    def hop_arrived(self, turn: Turn, hop: RobotsHop) -> None:
        """The robots.txt of another host was redirected to one of ours."""
        self._guests.arrived(turn, self.queues.host(turn, self._robots.host_of(hop.url)), hop)

    def overdue(self, turn: Turn) -> None:
        """Orders that nobody answered go out again."""
        for key, out in self.released.overdue(turn.now - round(self._config.answer_timeout * 1000)):
            if out.origin:
                queue = self.queues.host(turn, out.host)
                self._robots_over(queue, out)
                self.queues.schedule(queue, turn.now)
            else:
                self.answered(turn, out)
                self.give_back(turn, out.host, out.crawl, key, revisit=out.revisit)
        self._hops.again(turn)

    # --- what a shard asks

    def facts(self, fingerprint: bytes, row: UrlRow) -> Facts:
        """What is known of a waiting URL beside its rows."""
        queue, out = self.queues.hosts.get(row.host), self.released.get(fingerprint)
        return Facts(
            out=out.at if out is not None else 0,
            next_at=queue.next_at if queue is not None else 0.0,
            robots_out=queue is not None and queue.robots_out,
            held=self._gates.holds(row.crawl),
            unplaced=not row.kept and self._gates.places(row.crawl) <= 0,
            behind=self.released.behind,
            full=self.released.room() <= 0,
        )

    def wake_at(self) -> float:
        """When something may be released next (ms); infinity when nothing waits for time alone."""
        if self._closing.busy or self.reopening.busy:
            return self._now
        times = [self._due.next_at(), self._gates.next_at(), self.revisits.next_at(), self._hops.next_at()]
        if self.released.room() > 0:
            times.append(self.queues.agenda.next_at())
        if self.queues.held or self.reopening.waiting:  # room that is left: the hosts let go on had no use for it
            times.append(self._now if self._room_left else self._now + LOOK_AGAIN)
        if (oldest := self.released.oldest()) is not None:
            times.append(oldest + self._config.answer_timeout * 1000 + 1)
        return min(times)

    def spent(self, turn: Turn) -> None:
        """Write down what the turn has spent of hosts' budgets; what waits on a host without any left is excluded."""
        for queue, crawl_id in self.queues.spend(turn):
            self._closing.queued(queue, crawl_id)

    def run(self, turn: Turn, elsewhere: Mapping[str, CrawlCounts]) -> None:
        """Release what may run now into `turn.orders`; exclusions and the like become rows."""
        self.released.measure(turn.now)
        self.released.unparsed = turn.tallies.unparsed
        self._gates.look(turn.now, elsewhere)
        self.queues.look_again(self._gates.changed, turn.now)
        self._take_due(turn)
        self.revisits.open(turn)
        self.reopening.run(turn)
        steps = self._close(turn)
        self.queues.resume(self._gates, turn.now)
        while steps > 0 and self.released.room() > 0 and (queue := self.queues.agenda.pop(turn.now)) is not None:
            if queue.empty and queue.next_at <= turn.now:
                del self.queues.hosts[queue.host]
                continue
            steps -= 1 + self._serve(turn, queue)
            self.queues.schedule(queue, turn.now)
        self.reopening.refill(turn)
        self._room_left = self.queues.may_resume(self._gates)

    # --- crawls that are over, rows that are due

    def _close(self, turn: Turn) -> int:
        """Exclude what waits of crawls that are over; returns the steps that are left."""
        self._closing.begin(self.queues.hosts)
        self._closing.sweep(turn)
        steps = STEPS
        for queue in self._closing.waiting():
            self.queues.unpark(queue)
            for crawl_id in (*queue.crawls, *queue.held):
                if rule := self._gates.over_at(queue.row, crawl_id):
                    if crawl_id in queue.held:
                        self.queues.let_go(queue, crawl_id)
                    steps -= self._closing.drop(turn, self.queues, queue, crawl_id, rule, steps)
            self.queues.schedule(queue, turn.now)
            if steps <= 0:
                self._closing.again(queue)
                break
        return steps

    def _take_due(self, turn: Turn) -> None:
        """Queue the rows whose time has come."""
        fingerprints = self._due.take(turn.now)
        turn.load(fingerprints)
        for fingerprint in fingerprints:
            row = turn.url(fingerprint)
            if row is not None and self._may_go(turn, fingerprint, row):
                self.give_back(turn, row.host, row.crawl, fingerprint, revisit=row.kept)

    def _clock_went_back(self, now: int) -> None:
        """The broker's clock was set back: nobody waits for a time that was counted from its former one."""
        by = self._now - now
        self.released.clock_went_back(by)
        self._hops.clock_went_back(by)
        self.queues.clock_went_back(by, now)

    # --- one host

    def _serve(self, turn: Turn, queue: HostQueue) -> int:
        """Release up to BURST orders of one host; returns the number of URLs looked at."""
        if queue.parked and turn.now >= queue.parked_until:
            self.queues.unpark(queue)
        asks = HostAsks(self._robots.crawl_delay(queue.row), queue.learned)
        queue.asks = asks if any(asks) else NO_ASKS
        queue.obey(self._gates.in_force.on_host(queue.host, queue.visitors, queue.asks))
        queue.shut_until = self._gates.shut_until(queue.host, {*queue.crawls, *queue.guest_crawls}, turn.now)
        self._guests.serve(turn, queue)
        self._read_ahead(turn, queue)
        steps = orders = 0
        while queue.crawls and queue.at(turn.now) <= turn.now:
            if orders >= BURST or steps >= STEPS or self.released.room() <= 0:
                break
            steps += 1
            crawl_id = next(iter(queue.crawls))
            fingerprint = self._next(queue, crawl_id)
            row = turn.url(fingerprint) if fingerprint is not None else None
            if fingerprint is not None and row is not None and self._may_go(turn, fingerprint, row):
                orders += self._offer(turn, queue, self._crawls[crawl_id], fingerprint, row)
        return steps

    def _next(self, queue: HostQueue, crawl_id: str) -> bytes | None:
        """The next URL of a crawl that may go out to a host; None: the crawl waits or is over, or nothing is queued."""
        waiting, rule = queue.crawls[crawl_id], self._gates.over_at(queue.row, crawl_id)
        if rule and (rule not in ABOUT_PAGES or waiting.peek(self._store, 1)):
            self._closing.again(queue)
        if (rule and rule not in ABOUT_PAGES) or self._gates.holds(crawl_id):
            self.queues.hold(queue, crawl_id)
            return None
        full, unplaced = all_out(self._crawls[crawl_id], queue), self._gates.places(crawl_id) <= 0
        new = not (rule or full or unplaced)
        queue.rotate(crawl_id)
        fingerprint = waiting.take(self._store, new=new)
        if fingerprint is not None:
            return fingerprint
        if not waiting.peek(self._store, 1):
            self.queues.emptied(queue, crawl_id)
        elif full and not rule:
            queue.held[crawl_id] = queue.crawls.pop(crawl_id)  # until an order is answered
        else:
            self.queues.hold(queue, crawl_id, places=True)
        return None

    def _read_ahead(self, turn: Turn, queue: HostQueue) -> None:
        """Read the rows that are likely to be released now in one call."""
        number = min(BURST, queue.room(turn.now), self.released.room())
        if number > 1:
            for crawl_id, pile in queue.crawls.items():
                if not self._gates.holds(crawl_id):
                    turn.load(pile.ahead(self._store, number, new=self._gates.places(crawl_id) > 0))

    def _may_go(self, turn: Turn, fingerprint: bytes, row: UrlRow) -> bool:
        """Whether the hint that led to a row is right: it waits, its time has come, and no order is out for it."""
        if row.state is not State.WAITING or fingerprint in self.released:
            return False
        if row.due > turn.now:
            self._due.note(row.due, fingerprint)  # the clock was set back
            return False
        return True

    def _offer(self, turn: Turn, queue: HostQueue, crawl: CrawlDefinition, key: bytes, row: UrlRow) -> int:
        """Release one URL, or say in its row why not. Returns the number of orders."""
        if rule := ruled_out(row, crawl, turn.now) or no_news(queue.row, row, crawl):  # not known when it was admitted
            turn.put(key, excluded(row, rule, turn.now))
            return 0
        if queue.unreachable(turn.now):
            breaker = queue.row.breaker
            reason = f"no answer to {breaker.probes} probes in {(turn.now - breaker.since) // 1000} s"
            outcomes.fail(turn, key, row, outcomes.Fault("host_unreachable", reason, {"probes": breaker.probes}), 1)
            return 0
        values = self._gates.rules.of(crawl).for_url(row.url)
        opening = values.opening(turn.now)
        if not opening.open:
            turn.put(key, replace(row, due=min(opening.until, turn.now + LONGEST_SHUT)))
            return 0
        if not values.robots:
            self._send(turn, queue, key, row, values, "")
            return 1
        return self._offer_by_robots(turn, queue, key, row, values)

    def _offer_by_robots(self, turn: Turn, queue: HostQueue, key: bytes, row: UrlRow, values: Effective) -> int:
        crawl = self._crawls[row.crawl]
        verdict = self._robots.ask(queue.row, row.url, turn.now)
        tell(turn, self.queues, queue, crawl, row.url)
        if verdict.order:
            self.queues.lane(queue, row.crawl, revisit=row.kept).push(key)
            probe = self._robots.probe(queue.row, verdict.order)
            out = Out(queue.host, row.crawl, 0, probe, turn.now, verdict.order)
            queue.robots_out = True
            queue.started(crawl.id, turn.now, queue.limits.pace)
            self._send_robots(turn, queue, crawl, out, verdict.order + "/robots.txt")
            return 1
        if verdict.allowed:
            self._send(turn, queue, key, row, values, verdict.version)
            return 1
        if verdict.unreachable:
            outcomes.fail(turn, key, row, verdict.unreachable, 1)
        elif verdict.hold_until:
            queue.park((row.crawl, key, row.kept), verdict.hold_until)
        else:
            turn.put(key, excluded(row, "robots", turn.now))
        return 0

    def _send(self, turn: Turn, queue: HostQueue, key: bytes, row: UrlRow, values: Effective, robots: str) -> None:
        crawl = self._crawls[row.crawl]
        others, in_force = queue.visitors - {crawl.id}, self._gates.in_force
        limits = in_force.for_url(crawl, values, queue.host, others, queue.asks)
        pace = (limits, in_force.basis(others, queue.asks))
        order = page_order(row, key, pace, values, shard=self._config.shard, epoch=self._epoch, robots=robots,
                           now=turn.now)  # fmt: skip
        turn.orders.append(order)
        self.released.add(key, Out(queue.host, row.crawl, row.visit, row.attempt, turn.now, revisit=row.kept))
        turn.tallies[row.crawl].released += 1
        turn.tallies[row.crawl].revisits += row.kept
        queue.started(row.crawl, turn.now, limits.pace, revisit=row.kept)

    def _send_robots(self, turn: Turn, queue: HostQueue, crawl: CrawlDefinition, out: Out, url: str) -> None:
        key, shard = robots_key(out.origin), self._config.shard
        values = self._gates.rules.of(crawl).for_url(url)
        pace = self._gates.in_force.for_any_url(queue.host, queue.visitors, queue.asks)
        order = robots_order(url, key, out, pace, values, shard=shard, epoch=self._epoch, now=turn.now)
        turn.orders.append(order)
        self.released.add(key, out)

    def _robots_over(self, queue: HostQueue, out: Out) -> None:
        if out.leg == "away":
            self._hops.over(out.origin)
        else:
            self._ended(queue, out)
        if out.leg != "guest":
            queue.robots_out = False

    def _ended(self, queue: HostQueue, out: Out) -> None:
        queue.ended(out.crawl, revisit=out.revisit)
        self.queues.free(queue, out.crawl)
