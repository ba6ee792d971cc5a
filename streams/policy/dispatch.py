"""Who is next: fetch orders wait here for their hosts, without a task and without a slot (sans-IO).

One queue per politeness key, first come, first served; the hosts that may be asked now take turns. Whether a host may
be asked is the wire clock's decision (`streams.policy.politeness`). Units and clock are those of the wire clock.

Optionally no more than so many requests are open to one address, for hosts that share a machine. That is approximate:
a name may have several addresses and change them, other processes count for themselves, and a redirect within a host
counts where its order went.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from streams.policy.politeness import FOREVER, Limits, Renew, Start, WireClock

T = TypeVar("T")


@dataclass(slots=True)
class Waiting(Generic[T]):
    """An order in its host's queue. It goes back (`Defer`) once its host's clock holds it past `deadline`.

    `address`: where its request will go; empty: not capped. `renew`: its limits by the newest rules, for its clock.
    """

    item: T
    key: str
    clock: WireClock
    deadline: float
    address: str = ""
    renew: Renew | None = None


@dataclass(frozen=True, slots=True)
class Begin(Generic[T]):
    """Start this order's request: its clock has noted the start under `ticket`."""

    item: T
    ticket: int


@dataclass(frozen=True, slots=True)
class Defer(Generic[T]):
    """Give this order back.

    `reason`: `delay` (the gap after its host's last request), `host` (its clock otherwise), `address` (its cap), or
    what the rules said. `until`: when the clock would let it start; FOREVER: nobody knows.
    """

    item: T
    reason: str
    until: float = FOREVER


CROWDED: Final = 5.0
"""Seconds for which a host is left alone whose address had no room until its order's deadline."""


class _Addresses:
    """Requests open to each address, and the hosts that wait for room there, first come first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()
        self.waiting: dict[str, dict[str, None]] = {}

    def room(self, address: str) -> bool:
        """Whether one more request may be open; where there is no cap nobody waits."""
        return bool(self._most and address) and self._open[address] < self._most

    def enter(self, address: str) -> bool:
        """Count a request that is about to begin; False: there is no room for it."""
        if not self._most or not address:
            return True
        if self._open[address] >= self._most:
            return False
        self._open[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Count out a request that is over."""
        if self._most and address:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def next(self, address: str) -> str | None:
        """The host that waits longest for room at an address; it waits no longer."""
        hosts = self.waiting.get(address)
        if not hosts:
            return None
        host = next(iter(hosts))
        del hosts[host]
        if not hosts:
            del self.waiting[address]
        return host


Step = Begin[T] | Defer[T]
Rules = Callable[[T], Limits | str]
"""The limits that hold for an order at this moment, or the reason why it must not start at all."""


class Dispatcher(Generic[T]):
    """The queues of all hosts of one process. `per_address`: requests open to one address at most; 0: any number."""

    def __init__(self, rules: Rules[T], per_address: int = 0) -> None:
        self._rules = rules
        self._addresses = _Addresses(per_address)
        self._called: dict[str, str] = {}  # hosts to look at because there is room at an address
        self._queues: dict[str, deque[Waiting[T]]] = {}
        self._ready: deque[str] = deque()  # hosts to look at; each at most once
        self._queued: set[str] = set()  # what `_ready` holds
        self._timers: list[tuple[float, str]] = []  # a heap; an entry counts if `_wake` names its time
        self._wake: dict[str, float] = {}
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, waiting: Waiting[T], *, first: bool = False) -> None:
        """Queue an order; `first`: before the others of its host (its next wire request)."""
        queue = self._queues.get(waiting.key)
        if queue is None:
            queue = self._queues[waiting.key] = deque()
        if first:
            queue.appendleft(waiting)
        else:
            queue.append(waiting)
        self._waiting += 1
        if first or len(queue) == 1:
            self.look_at(waiting.key)

    def look_at(self, key: str) -> None:
        """Something changed for this host: a request was sent or ended, or its first order is new."""
        if key in self._queues and key not in self._queued:
            self._ready.append(key)
            self._queued.add(key)

    def look_at_all(self) -> None:
        """Something changed for all hosts: the rules."""
        for key in self._queues:
            self.look_at(key)

    def ended(self, key: str, address: str) -> None:
        """A request of this host that was begun is over."""
        self.look_at(key)
        self._addresses.leave(address)
        self._call(address)

    def steps(self, now: float, room: int) -> Iterator[Step[T]]:
        """What to do at `now`, with `room` for so many more open requests. A full process decides nothing."""
        while self._timers and self._timers[0][0] <= now:
            at, key = heapq.heappop(self._timers)
            if self._wake.get(key) == at:
                del self._wake[key]
                self.look_at(key)
        while self._ready and room > 0:
            key = self._ready.popleft()
            self._queued.discard(key)
            step = self._head(key, now)
            if step is None:
                continue
            self.look_at(key)
            room -= isinstance(step, Begin)
            yield step

    def wake_at(self) -> float:
        """When `steps` has something to say again, if nothing else happens; FOREVER: nobody waits for a time."""
        while self._timers and self._wake.get(self._timers[0][1]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else FOREVER

    def take_all(self) -> list[T]:
        """Empty all queues."""
        items = [waiting.item for queue in self._queues.values() for waiting in queue]
        self._queues.clear()
        self._ready.clear()
        self._queued.clear()
        self._timers.clear()
        self._wake.clear()
        self._addresses.waiting.clear()
        self._called.clear()
        self._waiting = 0
        return items

    def _head(self, key: str, now: float) -> Step[T] | None:
        """The step for the first order of a host; None: it waits, and a timer is set if time will help.

        A host that was called for room at an address may not have used it, or not all of it: then the next is called.
        """
        called = self._called.pop(key, "")
        step = self._step(key, now)
        if called:
            self._call(called)
        return step

    def _step(self, key: str, now: float) -> Step[T] | None:
        head = self._queues[key][0]
        limits = self._rules(head.item)
        if isinstance(limits, str):
            return Defer(self._pop(key), limits)
        decision = head.clock.decide(key, limits, now)
        if isinstance(decision, Start):
            return self._begin(key, head, limits, now)
        if now >= head.deadline or head.deadline < decision.at < FOREVER:
            return Defer(self._pop(key), "delay" if decision.spaced else "host", decision.at)
        self._set_timer(key, min(decision.at, head.deadline))
        return None

    def _begin(self, key: str, head: Waiting[T], limits: Limits, now: float) -> Step[T] | None:
        """Its host may be asked: so may its address, or it waits for a request there to end."""
        if self._addresses.enter(head.address):
            return Begin(self._pop(key), head.clock.start(key, limits, now, head.renew))
        if now >= head.deadline:
            return Defer(self._pop(key), "address", now + CROWDED)
        self._addresses.waiting.setdefault(head.address, {})[key] = None
        self._set_timer(key, head.deadline)
        return None

    def _call(self, address: str) -> None:
        """Look at the next host that waits for room at an address, if there is some."""
        while self._addresses.room(address) and (key := self._addresses.next(address)):
            if key in self._queues and key not in self._called:
                self._called[key] = address
                self.look_at(key)
                return

    def _pop(self, key: str) -> T:
        queue = self._queues[key]
        waiting = queue.popleft()
        if not queue:
            del self._queues[key]
            self._wake.pop(key, None)
        self._waiting -= 1
        return waiting.item

    def _set_timer(self, key: str, at: float) -> None:
        if self._wake.get(key, FOREVER) > at:
            self._wake[key] = at
            heapq.heappush(self._timers, (at, key))
