"""robots.txt files of hosts of ours that were redirected to other hosts: sent to their shards until they are answered.

The other side (`streams.frontier.guests`) keeps what waits in memory, so a hop gets lost when its owner dies. Sent
again with the same identity it does no harm where it did not: what waits or is out there is not doubled, and of two
answers the first counts.
"""

from __future__ import annotations

from dataclasses import replace

from streams.frontier.hosts import NEVER
from streams.frontier.orders import robots_key
from streams.frontier.released import Out, Released
from streams.frontier.turn import Turn
from streams.messages import RobotsHop

SEND_AGAIN = 90_000
"""ms after which a hop is sent again that is not answered: a minute that it may wait for its host
(`streams.frontier.guests.PATIENCE`), and half a minute for the request."""


class Hops:
    """The hops that are away. In memory only: a new owner begins with the file itself."""

    def __init__(self, released: Released) -> None:
        self._released = released
        self._sent: dict[str, tuple[int, RobotsHop]] = {}  # when (ms), by origin; what was sent longest ago first

    def send(self, turn: Turn, out: Out, url: str) -> None:
        """The file that `out` asked for is at `url`, on another host."""
        away = replace(out, visit=out.visit + 1, at=turn.now, leg="away")
        self._released.add(robots_key(out.origin), away)
        self.over(out.origin)
        self._send(turn, RobotsHop(url=url, origin=out.origin, crawl=out.crawl, hop=away.visit, attempt=out.attempt))

    def over(self, origin: str) -> None:
        """The hop of an origin is not waited for any more."""
        self._sent.pop(origin, None)

    def again(self, turn: Turn) -> None:
        """Send again what is not answered."""
        while self.next_at() <= turn.now:
            _, hop = self._sent.pop(next(iter(self._sent)))
            self._send(turn, hop)

    def next_at(self) -> float:
        """When there is something to be sent again (ms)."""
        return next(iter(self._sent.values()))[0] + SEND_AGAIN if self._sent else NEVER

    def clock_went_back(self, by: int) -> None:
        """Hops have been away for as long as they were before."""
        self._sent = {origin: (at - by, hop) for origin, (at, hop) in self._sent.items()}

    def _send(self, turn: Turn, hop: RobotsHop) -> None:
        self._sent[hop.origin] = (turn.now, hop)
        turn.routed.append((hop.url, hop))
