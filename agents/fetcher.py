"""The fetcher: `fetches` → `pages`, `inbox`. HTTP under the wire clock.

An order waits for its host without a task and without a slot on the wire (`streams.policy.dispatch`); a task runs it
once its host's clock allows the request. Order of writes, each durable before the next: page → outcome → ack.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Final

from agents.deaths import find_culprit
from agents.holdings import Holding, Holdings
from agents.io.http import Exchange, HttpClient, now
from agents.jobs import Crawls, Job, Key, Recent, check_order, for_order, key_of, pause, request_of
from agents.meter import Meter
from agents.outbox import Outbox
from agents.results import Results
from streams.codecs import decode
from streams.errors import MessageError, NewerSchemaError
from streams.messages import FetchOrder, FetchOutcome
from streams.policy.dispatch import Begin, Dispatcher, Waiting
from streams.policy.in_force import InForce
from streams.policy.politeness import FOREVER, Limits
from streams.topics import FETCHES, INBOX, PAGES, Topic

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord

    from agents.delivery import Batch, Delivery, Slot
    from agents.delivery.stage import Shard
    from agents.io.http import Answer
    from streams.settings import Settings

log = logging.getLogger(__name__)

BACKLOG: Final = 2000
"""Orders that are taken and not answered; no batch is taken above it."""

LOOK: Final = 1.0
"""Seconds between two looks at whether the group still confirms us."""

REASK: Final = 1.0
"""Seconds after which the frontier may order again what the newest rules forbid now: it knows them by then, too."""

_REASKED: Final = frozenset({"window", "robots"})
_HEADERS: Final = 256 * 1024  # bytes of a page's message that are kept free for its facts
_DRAIN_SHARE: Final = 0.5  # of the grace for requests that run


class FetcherStage:
    """Reads `fetches`. `client` stands in for the one that is made from the settings."""

    name = "fetcher"
    topics: tuple[Topic, ...] = (FETCHES,)

    def __init__(self, settings: Settings, broadcast: Crawls, client: HttpClient | None = None) -> None:
        self._settings = settings
        self._broadcast = broadcast
        self._client = client or HttpClient(settings.fetch)
        self._fetcher = settings.worker.name or f"{socket.gethostname()}-{os.getpid()}"
        self._jobs: dict[Key, Job] = {}
        self._recent = Recent()
        self._in_force = InForce(broadcast.crawls, settings.frontier.politeness)
        self._dispatcher: Dispatcher[Job] = Dispatcher(self._rules, settings.fetch.per_address)
        self._open = 0
        self._owned = asyncio.Event()
        self._room = asyncio.Event()
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = FOREVER
        self._pump_soon: asyncio.Handle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None

    # ---- the stage

    async def start(self, delivery: Delivery) -> None:
        """Open the client."""
        self._delivery, self._clock = delivery, delivery.clock
        self._loop = asyncio.get_running_loop()
        self._meter = Meter(delivery.metrics.fetch)
        self._results = Results(delivery, self._meter, self._clock, self._settings.frontier.politeness, self._owned)
        self._holdings = Holdings(delivery)
        self._outbox = Outbox(delivery)
        self._most = delivery.largest(PAGES) - _HEADERS
        if self._most < self._settings.fetch.max_body:
            log.warning("bodies are cut at %d bytes, not %d: topic pages takes no more", self._most,
                        self._settings.fetch.max_body)  # fmt: skip
        metrics = delivery.metrics.fetch
        metrics.open.set_function(lambda: self._open)
        metrics.parked.set_function(lambda: len(self._dispatcher))
        metrics.body_budget.set_function(lambda: self._client.budget.used)
        await delivery.learn_time()
        self._culprit = await find_culprit(self._settings.worker.state / "run", self.name, delivery, self._broadcast)
        await self._client.start(self._culprit)
        self._broadcast.listen(self._rules_changed)
        self._watch()

    async def assigned(self, partitions: frozenset[Shard]) -> None:
        """Abort what belongs to lost partitions, go on with what came back, and let the others wait as they must."""
        numbers = {number for _, number in partitions}
        self._holdings.keep(numbers)
        for key, job in list(self._jobs.items()):
            if self._holdings.get(job.partition) is not job.holding:
                self._abort(job)
                self._forget(key)
        await self._broadcast.catch_up()  # what former owners died of
        await self._holdings.take(numbers)
        self._owned.set()
        self._pump()

    def revoked(self) -> None:
        """Start and send nothing more. What runs goes on: its partition may come back, and its order with it."""
        self._owned.clear()
        self._outbox.clear()
        for job in self._dispatcher.take_all():
            self._forget(key_of(job.order))
        for job in self._jobs.values():
            job.waiters.clear()

    async def batch(self, batch: Batch) -> None:
        """Queue orders; waits while there are enough of them."""
        while len(self._jobs) >= BACKLOG:
            self._room.clear()
            await self._room.wait()
        for record in batch.records:
            slot = self._delivery.slot(batch, record.offset, record.offset)
            order = await self._read(batch, record)
            holding = self._holdings.get(batch.partition)
            if order is None or holding is None:
                slot.done()
            else:
                self._admit(order, slot, batch.partition, holding, old=record.offset < holding.old)
        self._look()

    async def drain(self) -> None:
        """Give back what waits, finish what runs; what takes too long is aborted and given back, too."""
        self._draining = True
        for job in self._dispatcher.take_all():
            self._give_back(job, "draining")
        running = [job.task for job in self._jobs.values() if job.task is not None]
        if running:
            _, late = await asyncio.wait(running, timeout=self._settings.worker.grace * _DRAIN_SHARE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for job in list(self._jobs.values()):
            self._give_back(job, "draining")
        await self._outbox.idle()

    async def stop(self) -> None:
        """End what still runs and close all connections."""
        self._draining = True
        for timer in (self._timer, self._watch_timer, self._pump_soon):
            if timer is not None:
                timer.cancel()
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._outbox.clear()
        await self._client.close()
        self._culprit.clear()

    # ---- orders

    async def _read(self, batch: Batch, record: ConsumerRecord) -> FetchOrder | None:
        try:
            order = decode(FetchOrder, record.value)
            check_order(order, self._delivery.partitions(INBOX))
            return order
        except NewerSchemaError as error:
            self._delivery.fatal(error)
        except MessageError as error:
            await self._delivery.unreadable(batch, record, error.reason)
            return None

    def _admit(self, order: FetchOrder, slot: Slot, partition: int, holding: Holding, *, old: bool) -> None:
        key = key_of(order)
        at = now()
        known = self._recent.get(key, at)
        if known is not None:
            self._meter.joined()
            self._outbox.add(order.shard, for_order(known, order), slot)
            return
        job = self._jobs.get(key)
        if job is not None:
            self._meter.joined()
            job.waiters.append((order, slot))
            return
        job = self._jobs[key] = Job(order, partition, holding, at, [(order, slot)], order.url, order.kind)
        if old:
            self._give_back(job, "taken over")
            return
        if order.not_before:
            holding.clock.hold(order.host, self._clock.mark_at(order.not_before))
        if self._settings.fetch.per_address:
            job.task = asyncio.create_task(self._locate(job), name="locate")
        else:
            self._enqueue(job, first=False)

    async def _locate(self, job: Job) -> None:
        """Find out where an order's request will go before it waits: what shares an address shares its cap."""
        try:
            job.address = await self._client.address_of(job.url)
            self._next(job, first=False)
        except Exception as error:  # noqa: BLE001 - nothing may get lost here without a sound
            self._delivery.fatal(error)

    def _rules(self, job: Job) -> Limits | str:
        """The limits by the newest rules that are known."""
        definition = self._broadcast.crawls.get(job.order.crawl)
        if definition is not None and definition.state in ("paused", "ended"):
            return definition.state
        released = job.order.rules
        job.obey(definition, self._in_force)
        values = job.values
        if values is not None and definition is not None:
            if not values.opening(self._clock.ms(now())).open:
                return "window"
            if definition.version > released and values.robots and not job.order.robots and job.order.kind == "page":
                return "robots"
        return job.limits

    def _rules_changed(self) -> None:
        """Gaps that last and orders that wait were reckoned by other rules."""
        for holding in self._holdings.all():
            holding.clock.review(now())
        self._dispatcher.look_at_all()
        self._look()

    # ---- the wire

    def _permit(self, job: Job) -> bool:
        """Whether a request of `job` may go out, asked last right before it is sent."""
        return (
            self._owned.is_set()
            and not self._draining
            and self._holdings.get(job.partition) is job.holding
            and self._delivery.confirmed()
            and job.holding.clock.held_until(job.order.host) <= now()  # it may have asked for that while we connected
        )

    def _look(self) -> None:
        """Pump soon: once for all that happens in this turn of the loop."""
        if self._pump_soon is None:
            self._pump_soon = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Start what may start now, give back what cannot soon, and come again when time will help."""
        self._pump_soon = None
        if self._draining or not self._owned.is_set() or not len(self._dispatcher) or not self._delivery.confirmed():
            return  # the assignment, or `_watch`, looks again
        try:
            self._step()
        except Exception as error:  # noqa: BLE001 - the event loop would only log it
            self._delivery.fatal(error)

    def _step(self) -> None:
        for step in self._dispatcher.steps(now(), self._settings.fetch.concurrency - self._open):
            if isinstance(step, Begin):
                self._begin(step.item, step.ticket)
            else:
                self._give_back(step.item, step.reason, now() + REASK if step.reason in _REASKED else step.until)
        self._set_timer(self._dispatcher.wake_at())

    def _begin(self, job: Job, ticket: int) -> None:
        self._open += 1
        job.tickets.add(ticket)
        job.task = asyncio.create_task(self._run(job, ticket), name="fetch")
        # A task that is cancelled before its first step runs nothing of its own, no `finally` either.
        job.task.add_done_callback(lambda _: self._off_wire(job, ticket))

    def _off_wire(self, job: Job, ticket: int) -> None:
        """A request has ended: its host and its place are free. Said again, it changes nothing."""
        if ticket not in job.tickets:
            return
        job.tickets.remove(ticket)
        job.holding.clock.end(ticket, now())
        self._open -= 1
        self._dispatcher.ended(job.order.host, job.address)
        self._look()

    def _set_timer(self, mark: float) -> None:
        """Pump at `mark`, unless a timer will do so earlier anyway."""
        if mark == FOREVER or now() < self._timer_at <= mark:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = mark
        self._timer = self._loop.call_later(max(0.0, mark - now()), self._time_has_come)

    def _time_has_come(self) -> None:
        """The timer fired, perhaps a little early: then it is set again."""
        self._timer, self._timer_at = None, FOREVER
        self._pump()

    def _watch(self) -> None:
        """An owner that is not confirmed ends its requests: another one may be about to start its own."""
        self._watch_timer = self._loop.call_later(LOOK, self._watch)
        if self._delivery.confirmed():
            self._look()
            return
        for job in list(self._jobs.values()):
            if job.tickets:
                self._abort(job)
                self._next(job)

    async def _run(self, job: Job, ticket: int) -> None:
        """One request of a job, and what follows from it."""
        next_turn = partial(self._loop.call_soon, self._has_left, job, ticket)
        exchange = Exchange(permit=lambda: self._permit(job), on_sent=lambda _: next_turn())
        try:
            answer = await self._request(job, ticket, exchange)
            if answer is None and (until := job.holding.clock.held_until(job.order.host)) > now():
                self._give_back(job, "host", until)
                return
            if answer is None or job.broke(answer, exchange):
                self._next(job)
                return
            outcome = await self._results.conclude(job, answer)
            if outcome is None:
                self._next(job)
            else:
                self._finish(job, outcome)
        except Exception as error:  # noqa: BLE001 - nothing may get lost here without a sound
            self._delivery.fatal(error)
        finally:
            self._client.release(exchange)

    async def _request(self, job: Job, ticket: int, exchange: Exchange) -> Answer | None:
        """The wire part; None: permission ended before anything was sent."""
        answer = None
        if not job.requests:
            self._meter.started(now() - job.taken)
        try:
            answer = await self._client.fetch(request_of(job, self._settings.fetch.max_body, self._most), exchange)
            if answer is not None and (seconds := pause(answer, self._clock.ms(answer.end))):
                job.holding.clock.hold(job.order.host, answer.end + seconds)
            return answer
        finally:
            job.note(exchange, answer, self._clock, self._fetcher)
            self._off_wire(job, ticket)

    def _has_left(self, job: Job, ticket: int) -> None:
        """A request is out: the event loop writes at the end of a turn, which may be long. So far it was connecting."""
        if ticket in job.tickets:
            job.holding.clock.sent(ticket, now())
            if job.limits.spaced:  # only then somebody waits for this
                self._dispatcher.look_at(job.order.host)
                self._look()

    # ---- the end of a job

    def _next(self, job: Job, *, first: bool = True) -> None:
        """Queue the next request of a job that is still ours; `first`: before the others, however long that takes."""
        if self._draining:
            self._give_back(job, "draining")
            return
        if not self._owned.is_set() or self._holdings.get(job.partition) is not job.holding:
            self._forget(key_of(job.order))
            return
        self._enqueue(job, first=first)
        self._look()

    def _enqueue(self, job: Job, *, first: bool) -> None:
        deadline = FOREVER if first else job.taken + self._settings.fetch.defer_after
        renew = partial(self._in_force.limits, job.next_terms())
        waiting = Waiting(job, job.order.host, job.holding.clock, deadline, job.address, renew)
        self._dispatcher.add(waiting, first=first)

    def _give_back(self, job: Job, reason: str, until: float = FOREVER) -> None:
        """Answer `deferred`: it costs the URL nothing."""
        seconds = None if until == FOREVER else max(0.0, until - now())
        outcome = self._results.deferred(job, reason, seconds)
        self._answer(job, outcome)

    def _finish(self, job: Job, outcome: FetchOutcome) -> None:
        self._recent.remember(key_of(job.order), outcome, now())
        self._answer(job, outcome)

    def _answer(self, job: Job, outcome: FetchOutcome) -> None:
        """Send the outcome to everyone who waits for it."""
        self._forget(key_of(job.order))
        for order, slot in job.waiters:
            self._outbox.add(order.shard, for_order(outcome, order), slot)

    def _forget(self, key: Key) -> None:
        self._jobs.pop(key, None)
        self._room.set()

    def _abort(self, job: Job) -> None:
        if job.task is not None:
            job.task.cancel()
