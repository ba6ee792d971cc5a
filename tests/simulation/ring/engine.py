"""Processes as coroutines over virtual time: which of them goes on next is the schedule, and one seed decides it.

A coroutine gives way before each of its writes and wherever it waits. Between two such places nobody else runs, as in
an event loop; a process that dies leaves what it wrote and nothing more, one that is paused goes on later as if nothing
had happened, with what it knew.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any

FOREVER = float("inf")
EPOCH = 1_700_000_000_000
"""ms at the broker when time begins; not a round number of anything."""

TICKS = (0.0, 0.0, 0.001, 0.004, 0.02)
"""Seconds that pass with one event."""

Ready = Callable[[], bool]


class Crash(Exception):
    """The process dies here."""


@coroutine
def step() -> Generator[None, None, None]:
    """Give way once."""
    yield


@coroutine
def until(ready: Ready | None, at: float = FOREVER) -> Generator[tuple[Ready | None, float], None, None]:
    """Give way until something is so, or until a time (seconds)."""
    yield ready, at


async def when(ready: Ready) -> None:
    """Give way until something is so."""
    while not ready():
        await until(ready)


class Task:
    """A coroutine of a worker and what it waits for."""

    __slots__ = ("asked", "coro", "ready", "wake", "worker")

    def __init__(self, worker: Worker, coro: Coroutine[Any, Any, object]) -> None:
        self.worker = worker
        self.coro = coro
        self.ready: Ready | None = None
        self.wake = 0.0
        self.asked = -1  # after how many changes `ready` was asked last

    def resume(self) -> bool:
        """Go on to where it gives way next; False: it has ended."""
        try:
            waits = self.coro.send(None)
        except StopIteration:
            return False
        self.ready, self.wake = waits or (None, 0.0)
        self.asked = -1
        return True


class Worker:
    """A process. `silent`: since when nobody has heard of it, None while its heartbeats arrive."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.alive = True
        self.paused = 0.0  # until when
        self.silent: float | None = None
        self.fuse = -1  # places where it may die until it does; -1: it does not
        self.lost = False  # when it dies, its disk is lost as well
        self.twice = False  # its next message is written twice
        self.tasks: list[Task] = []

    def spawn(self, coro: Coroutine[Any, Any, object]) -> Task:
        """Start a coroutine."""
        task = Task(self, coro)
        self.tasks.append(task)
        return task

    def cancel(self, task: Task) -> None:
        """End a coroutine where it is."""
        if task in self.tasks:
            self.tasks.remove(task)
        task.coro.close()

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.alive = False
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.coro.close()

    def pause(self, until: float) -> None:
        """SIGSTOP until a time."""
        self.silent = self.engine.time if self.silent is None else self.silent
        self.paused = max(self.paused, until)

    @property
    def frozen(self) -> bool:
        """Whether it is stopped now."""
        return self.engine.time < self.paused

    def may_die(self) -> None:
        """One of the places where a plan may kill it."""
        if self.fuse >= 0:
            self.fuse -= 1
            if self.fuse < 0:
                raise Crash

    async def write(self, append: Callable[[], int]) -> int:
        """One write: others may go on before it, and it may be the last before or after which the process dies."""
        self.may_die()
        await step()
        place = append()
        if self.twice:
            self.twice = False
            place = append()
        self.may_die()
        return place


class Engine:
    """Virtual time, in seconds on a clock that never goes back and in ms at the broker; and who goes on next."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.time = 1000.0
        self.offset = EPOCH
        self.events = 0
        self.changes = 0  # of what somebody may wait for
        self.workers: list[Worker] = []
        self.died: Callable[[Worker], None] = _nobody_hears
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._set = 0

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call something at a time (seconds)."""
        self._set += 1
        heapq.heappush(self._alarms, (time, self._set, call))

    def broker(self) -> int:
        """Return the time at the broker: ms since 1970."""
        return int(self.time * 1000) + self.offset

    def mark(self, ms: float) -> float:
        """The time in seconds at which it is so late at the broker."""
        return (ms - self.offset) / 1000

    def jump(self, ms: int) -> None:
        """The broker's clock jumps; whoever waits for a time looks again."""
        self.offset += ms
        self.stir()

    def stir(self) -> None:
        """Something happened that nobody waits for: let everyone look."""
        for worker in self.workers:
            for task in worker.tasks:
                if task.ready is not None:
                    task.wake = self.time

    def event(self) -> bool:
        """Let one coroutine go on; False: none can, and none waits for a time."""
        while not (runnable := self._runnable()):
            later = self._next_at()
            if later == FOREVER:
                return False
            self.time = max(self.time, later)
        task = runnable[int(self.random.random() * len(runnable))]
        self.events += 1
        self.time += TICKS[int(self.random.random() * 5)]
        try:
            if not task.resume():
                task.worker.tasks.remove(task)
        except Crash:
            task.worker.kill()
            self.died(task.worker)
        return True

    def _next_at(self) -> float:
        """When somebody wants to go on, if nothing else happens before."""
        times = [max(task.wake, worker.paused) for worker in self.workers for task in worker.tasks]
        times += [worker.paused for worker in self.workers if worker.tasks and worker.frozen]
        times += [alarm[0] for alarm in self._alarms[:1]]
        return min(times, default=FOREVER)

    def _runnable(self) -> list[Task]:
        now = self.time
        while self._alarms and self._alarms[0][0] <= now:
            heapq.heappop(self._alarms)[2]()
        found = self._ready(now)
        if not found:
            self.changes += 1  # nobody may wait for what nobody reports
            found = self._ready(now)
        return found

    def _ready(self, now: float) -> list[Task]:
        """Tasks that may go on; one that may not is asked again when something has changed."""
        found: list[Task] = []
        changes = self.changes
        for worker in self.workers:
            if now < worker.paused:
                continue
            for task in worker.tasks:
                if now >= task.wake:
                    found.append(task)
                elif task.ready is not None and task.asked != changes:
                    if task.ready():
                        found.append(task)
                    else:
                        task.asked = changes
        return found


def _nobody_hears(_worker: Worker) -> None:
    """A process has died."""
