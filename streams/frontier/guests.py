"""robots.txt files that were redirected to a host of ours: asked for under our host's clock, window and holds.

RFC 9309 §2.3.1.2 wants redirects followed also to other hosts. The shard of the host that is asked decides when: its
`Retry-After`, breaker and window hold for guests as for its own URLs, also after a restart. The answer is passed on to
the shard of the origin that the file is for. What waits here is kept in memory: if it gets lost, the origin's shard
sends it again (`streams.frontier.hops`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from streams.definitions import CrawlDefinition
from streams.frontier.gates import Gates
from streams.frontier.hosts import HostQueue
from streams.frontier.orders import guest_key, robots_key, robots_order
from streams.frontier.queues import HostQueues
from streams.frontier.released import Out, Released
from streams.frontier.turn import Turn
from streams.messages import FetchOutcome, Outcomes, RobotsHop

PATIENCE = 60_000
"""ms a guest waits for its host. Who would wait longer is told at once, for its own URLs wait as long."""


class Guests:
    """Takes hops in, lets them out as orders, passes the answers on."""

    def __init__(
        self,
        shard: int,
        epoch: int,
        crawls: Mapping[str, CrawlDefinition],
        gates: Gates,
        queues: HostQueues,
        released: Released,
    ) -> None:
        self._shard = shard
        self._epoch = epoch
        self._crawls = crawls
        self._gates = gates
        self._queues = queues
        self._released = released

    def arrived(self, turn: Turn, queue: HostQueue, hop: RobotsHop) -> None:
        """A hop wants to go to one of our hosts. It may be the same again: one that is out is let be.

        One that waits is replaced, or refused if its host has been told to be left alone for long meanwhile. One that
        was answered is asked for once more, and the origin's shard takes no notice of the second answer.
        """
        if self._is_out(hop):
            return
        shut = self._gates.shut_until(queue.host, (hop.crawl,), turn.now)
        held = max(queue.row.not_before, queue.row.breaker.until, shut) - turn.now
        guests = {name: guest for name, guest in (queue.guests or {}).items() if name != hop.origin}
        if held > PATIENCE:
            refuse(turn, hop, f"{queue.host} is left alone for {held // 1000} s", held / 1000)
        else:
            guests[hop.origin] = hop
        queue.guests = guests or None
        self._queues.schedule(queue, turn.now)

    def _is_out(self, hop: RobotsHop) -> bool:
        out = self._released.get(guest_key(hop.origin))
        return out is not None and (out.visit, out.attempt) == (hop.hop, hop.attempt)

    def serve(self, turn: Turn, queue: HostQueue) -> None:
        """Let out as many as the host's window takes; guests go before the host's own URLs, for hosts wait for them."""
        while queue.guests and queue.at(turn.now) <= turn.now and self._released.room() > 0:
            hop = queue.guests.pop(next(iter(queue.guests)))
            crawl = self._crawls.get(hop.crawl)
            if crawl is None:
                continue  # its definition was deleted: nobody waits for the answer
            if queue.unreachable(turn.now):
                refuse(turn, hop, f"{queue.host} does not answer")
                continue
            out = Out(queue.host, hop.crawl, hop.hop, hop.attempt, turn.now, hop.origin, "guest")
            key = guest_key(hop.origin)
            self._supersede(turn, key)
            queue.started(hop.crawl, turn.now, queue.limits.pace)
            values = self._gates.rules.of(crawl).for_url(hop.url)
            self._released.add(key, out)
            pace = self._gates.in_force.for_any_url(queue.host, queue.visitors, queue.asks)
            order = robots_order(hop.url, key, out, pace, values, shard=self._shard, epoch=self._epoch,
                                 now=turn.now)  # fmt: skip
            turn.orders.append(order)

    def _supersede(self, turn: Turn, key: bytes) -> None:
        """The origin has gone on to another hop: the one that is out, here or on another host, is not waited for."""
        out = self._released.get(key)
        if out is not None:
            self._released.answer(key, out.visit, out.attempt)
            self._over(self._queues.host(turn, out.host), out)
            self._queues.schedule(self._queues.host(turn, out.host), turn.now)

    def _over(self, queue: HostQueue, out: Out) -> None:
        queue.ended(out.crawl)
        self._queues.free(queue, out.crawl)

    def answered(self, turn: Turn, queue: HostQueue, outcome: FetchOutcome, out: Out) -> None:
        """The answer to a guest came: it is the origin's. Its requests were reported here already."""
        self._over(queue, out)
        turn.routed.append((out.origin, _outcomes(
            msgspec.structs.replace(outcome, fingerprint=robots_key(out.origin), requests=())
        )))  # fmt: skip


def _outcomes(outcome: FetchOutcome) -> Outcomes:
    return Outcomes(items=(outcome,))


def refuse(turn: Turn, hop: RobotsHop, reason: str, seconds: float | None = None) -> None:
    """Tell the origin's shard that its robots.txt cannot be had, and for how long at least."""
    turn.routed.append((hop.origin, _outcomes(FetchOutcome(
        kind="robots", crawl=hop.crawl, fingerprint=robots_key(hop.origin), url=hop.url, visit=hop.hop,
        attempt=hop.attempt, result="failed", failure="host_unreachable", reason=reason, retry_after=seconds,
    ))))  # fmt: skip
