"""The fetcher's processes: the real holdings, clocks and dispatcher on wires that are not there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from agents.holdings import Holding, Holdings
from agents.jobs import Job as RealJob
from agents.jobs import Key, Recent, for_order, key_of
from streams import messages as m
from streams.definitions import CrawlDefinition
from streams.policy import answers, robots
from streams.policy.dispatch import Defer, Dispatcher, Waiting
from streams.policy.in_force import InForce
from streams.policy.politeness import FOREVER, Limits
from streams.topics import FETCHES, PAGES, Topic, page_partition
from tests.simulation.ring.engine import Task, until
from tests.simulation.ring.stage import Stage

if TYPE_CHECKING:
    from agents.delivery import Delivery, Slot
    from tests.simulation.ring.broker import Group, Place
    from tests.simulation.ring.ring import Ring
    from tests.simulation.ring.web import Answer

DEFER_AFTER = 5.0
HEARTBEAT = 2.0
CONCURRENCY = 48
BACKLOG = 2000
HOPS = 5
REASK = 1.0
REASKED = frozenset({"window", "robots"})


@dataclass(slots=True, eq=False)
class Job(RealJob):
    """An order being worked on, for all (order, offset) that wait for its outcome."""

    known: dict[str, CrawlDefinition] = field(default_factory=dict)  # when it began to connect
    number: int = 0  # of all that began to connect
    on_wire: bool = False
    began: float = 0.0
    work: Task | None = None


class Acks:
    """Which orders of a partition are done; commits never pass one that is not."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.taken = position
        self._done: set[int] = set()

    def skip(self, offset: int) -> None:
        """The log begins later: retention."""
        self._done.update(range(self.taken, offset))

    def done(self, offset: int) -> int:
        """The place to commit."""
        self._done.add(offset)
        while self.position in self._done:
            self._done.discard(self.position)
            self.position += 1
        return self.position


class FetcherWorker(Stage):
    """Owns partitions of `fetches`."""

    def __init__(self, ring: Ring, name: str, group: Group) -> None:
        self._jobs: dict[Key, Job] = {}
        self._recent = Recent()
        self._dispatcher: Dispatcher[Job] = Dispatcher(self._rules)
        self._holdings = Holdings(cast("Delivery", FetcherDelivery(ring, self, group)))
        self._acks: dict[int, Acks] = {}
        self._open = 0
        self._ready = False
        self._look = False
        self._taking: Task | None = None
        super().__init__(ring, name, group)
        self._in_force = InForce(self.crawls, ring.mode)
        self.spawn(self._main())

    # ---- membership

    def revoked(self) -> None:
        super().revoked()
        self._ready = False
        if self._taking is not None:
            self.cancel(self._taking)
        for job in self._dispatcher.take_all():
            self._forget(job)
        for job in self._jobs.values():
            job.waiters.clear()

    def assigned(self, generation: int, owned: frozenset[Place]) -> None:
        super().assigned(generation, owned)
        self._taking = self.spawn(self._take({number for _, number in owned}))

    async def _take(self, numbers: set[int]) -> None:
        committed = self.group.committed
        self._acks = {number: Acks(committed.get((FETCHES.name, number), 0)) for number in numbers}
        self._holdings.keep(numbers)
        for job in list(self._jobs.values()):
            if self._holdings.get(job.partition) is not job.holding:
                if job.work is not None:
                    self.cancel(job.work)
                self._forget(job)
        await self._holdings.take(numbers)
        self._ready = self._look = True
        self.engine.changes += 1

    # ---- orders

    async def _main(self) -> None:
        while True:
            await until(self._due, self._dispatcher.wake_at())
            self._look = False
            if self.generation is None or not self._ready:
                continue
            if len(self._jobs) < BACKLOG:
                for number in sorted(self._acks):
                    if number in self._acks:  # a rebalance may come between
                        await self._fill(number)
            await self._pump()

    def _due(self) -> bool:
        end = self.ring.broker.end
        new = self._ready and any(end(FETCHES.name, number) > acks.taken for number, acks in self._acks.items())
        return self._look or new

    async def _fill(self, number: int) -> None:
        acks, generation = self._acks[number], self.generation
        most = self.engine.random.choice((1, 4, 64))
        for offset, order in self.ring.broker.read(FETCHES.name, number, acks.taken, most):
            acks.skip(offset)
            acks.taken = offset + 1
            holding = self._holdings.get(number)
            if holding is not None:
                await self._admit(order, offset, number, holding)
            if self.generation != generation:
                return
        lost = self.ring.broker.lost[FETCHES.name, number]
        if lost > acks.taken:
            acks.skip(lost)
            acks.taken = lost

    async def _admit(self, order: m.FetchOrder, offset: int, partition: int, holding: Holding) -> None:
        key = key_of(order)
        known = self._recent.get(key, self.engine.time)
        if known is not None:
            await self._tell(known, [(order, offset)], partition)
            return
        job = self._jobs.get(key)
        if job is not None:
            job.waiters.append((order, cast("Slot", offset)))
            return
        waiters = cast("list[tuple[m.FetchOrder, Slot]]", [(order, offset)])
        job = self._jobs[key] = Job(order, partition, holding, self.engine.time, waiters, order.url, order.kind)
        if offset < holding.old:
            await self._give_back(job)
        else:
            self._dispatcher.add(self._waiting(job, self.engine.time + DEFER_AFTER))

    def _rules(self, job: Job) -> Limits | str:
        definition = self.crawls.get(job.order.crawl)
        if definition is not None and definition.state in ("paused", "ended"):
            return definition.state
        released = job.order.rules
        job.obey(definition, self._in_force)
        if job.values is not None and definition is not None:
            if not job.values.opening(self.engine.broker()).open:
                return "window"
            newer = definition.version > released and job.order.kind == "page"
            if newer and job.values.robots and not job.order.robots:
                return "robots"
        return job.limits

    def read(self) -> None:
        """Definitions were read: they hold from now on."""
        for holding in self._holdings.all():
            holding.clock.review(self.engine.time)
        self._dispatcher.look_at_all()
        self._look = self._look or len(self._dispatcher) > 0

    # ---- the wire

    async def _pump(self) -> None:
        if not self.confirmed():
            return
        deferred: list[Defer[Job]] = []
        for step in list(self._dispatcher.steps(self.engine.time, CONCURRENCY - self._open)):
            if isinstance(step, Defer):
                deferred.append(step)
                continue
            self._open += 1
            step.item.on_wire, step.item.began = True, self.engine.time
            self.ring.judge.wire.begins(self, step.item)
            work = step.item.work = self.spawn(self._run(step.item, step.ticket))
            work.resume()  # to where it connects
        again = self.engine.time + REASK
        for step in deferred:
            await self._give_back(step.item, step.reason, again if step.reason in REASKED else step.until)

    def expired(self) -> None:
        """An owner that is not confirmed ends its requests."""
        for job in list(self._jobs.values()):
            if job.on_wire and job.work is not None:
                self.cancel(job.work)
                self._next(job)

    def _permit(self, job: Job) -> bool:
        held = job.holding.clock.held_until(job.order.host) > self.engine.time
        return self._ready and self._holdings.get(job.partition) is job.holding and self.confirmed() and not held

    async def _run(self, job: Job, ticket: int) -> None:
        answer = await self._request(job, ticket)
        if answer is None and (until := job.holding.clock.held_until(job.order.host)) > self.engine.time:
            await self._give_back(job, "host", until)
            return
        outcome = None if answer is None else await self._conclude(job, answer)
        job.work = None
        if outcome is None:
            self._next(job)
            return
        self._recent.remember(key_of(job.order), outcome, self.engine.time)
        waiters = list(job.waiters)
        self._forget(job)
        await self._tell(outcome, waiters, job.partition)

    async def _request(self, job: Job, ticket: int) -> Answer | None:
        engine, clock, request = self.engine, job.holding.clock, 0
        try:
            await until(None, engine.time + engine.random.choice((0.0, 0.01, 0.2)))
            if not self._permit(job):
                return None
            clock.sent(ticket, engine.time)
            answer = self.ring.web.ask(job.url, job.order.etag)
            arrives = engine.time + engine.random.choice((0.0, 0.02, 0.05))
            request = self.ring.judge.wire.arrives(self, job, arrives, arrives + answer.seconds)
            self._touch(job)
            await until(None, arrives + answer.seconds)
            if answer.retry_after:
                clock.hold(job.order.host, engine.time + answer.retry_after)
                self.ring.judge.wire.asked_to_wait(job, engine.time + answer.retry_after)
            return answer
        finally:
            clock.end(ticket, engine.time)
            self.ring.judge.wire.left(request)
            self._open -= 1
            job.on_wire = False
            self._touch(job)

    def _touch(self, job: Job) -> None:
        self._dispatcher.look_at(job.order.host)
        self._look = True
        self.engine.changes += 1

    async def _conclude(self, job: Job, answer: Answer) -> m.FetchOutcome | None:
        order = job.order
        at = self.engine.broker()
        facts: dict[str, Any] = {"status": answer.status, "retry_after": answer.retry_after or None,
                                 "elapsed": answer.seconds}  # fmt: skip
        if order.kind == "robots":
            return self._robots(job, answer, at, facts)
        if answer.failure or answer.status >= 400:
            return outcome_of(order, "failed", failure=answer.failure or "http_status", **facts)
        if answer.location:
            return outcome_of(order, "redirected", location=answer.location, **facts)
        if answer.status == 304:
            return outcome_of(order, "unchanged", etag=answer.etag, **facts)
        partition = page_partition(order.url, self.ring.plan.shards)
        page = m.PageHeaders(
            crawl=order.crawl, url=order.url, fingerprint=order.fingerprint, visit=order.visit, shard=order.shard,
            status=200, headers=[], start=at, first_byte=at, end=at, rules=order.rules, depth=order.depth,
            priority=order.priority, source=order.source,
        )  # fmt: skip
        offset = await self.write(partial(self.append, PAGES.name, partition, (page, answer)))
        return outcome_of(order, "fetched", page=(partition, offset), etag=answer.etag, size=answer.size, **facts)

    def _robots(self, job: Job, answer: Answer, at: int, facts: dict[str, Any]) -> m.FetchOutcome | None:
        order = job.order
        if answer.failure:
            rules = robots.unreachable(order.parent, at, None)
            return outcome_of(order, "failed", failure=answer.failure, robots_rules=rules, **facts)
        verdict = answers.judge(job.url, answer.status, [answer.location.encode()], conditional=False)
        if verdict.result == "redirected" and job.hops < HOPS:
            if self.ring.key(verdict.location) != order.host:
                return outcome_of(order, "redirected", location=verdict.location, **facts)
            job.url, job.hops = verdict.location, job.hops + 1
            return None
        rules = robots.read(order.parent, answer.status, answer.body, at)
        result: m.FetchResult = "failed" if rules.access == "disallow_all" else "fetched"
        failure = "http_status" if result == "failed" else None
        return outcome_of(order, result, robots_rules=rules, failure=failure, **facts)

    # ---- the end of a job

    def _next(self, job: Job) -> None:
        job.work = None
        if not self._ready or self._holdings.get(job.partition) is not job.holding:
            self._forget(job)
            return
        self._dispatcher.add(self._waiting(job, FOREVER), first=True)
        self._look = True
        self.engine.changes += 1

    def _waiting(self, job: Job, deadline: float) -> Waiting[Job]:
        renew = partial(self._in_force.limits, job.next_terms())
        return Waiting(job, job.order.host, job.holding.clock, deadline, renew=renew)

    async def _give_back(self, job: Job, reason: str = "", at: float = FOREVER) -> None:
        seconds = None if at == FOREVER else max(0.0, at - self.engine.time)
        waiters = list(job.waiters)
        self._forget(job)
        facts: dict[str, Any] = {"gap": seconds or 0.0} if reason == "delay" else {"retry_after": seconds}
        await self._tell(outcome_of(job.order, "deferred", reason=reason, **facts), waiters, job.partition)

    async def _tell(self, outcome: m.FetchOutcome, waiters: Iterable[tuple[m.FetchOrder, Any]], partition: int) -> None:
        acks, generation = self._acks.get(partition), self.generation
        for order, offset in waiters:
            message = m.Outcomes(items=(for_order(outcome, order),))
            await self.write(partial(self.ring.deliver, order.shard, message))
            if acks is not None:
                self.group.commit(self, generation, (FETCHES.name, partition), acks.done(offset))

    def _forget(self, job: Job) -> None:
        self._jobs.pop(key_of(job.order), None)


class FetcherDelivery:
    """What the holdings ask of `agents.delivery`."""

    def __init__(self, ring: Ring, worker: FetcherWorker, group: Group) -> None:
        self.settings = SimpleNamespace(kafka=SimpleNamespace(heartbeat=HEARTBEAT))
        self._ring, self._worker, self._group = ring, worker, group

    @property
    def app(self) -> SimpleNamespace:
        return SimpleNamespace(consumer_generation_id=self._worker.generation)

    async def claim(self, topic: Topic, partitions: Iterable[int]) -> set[int]:
        committed = self._group.committed
        first = {number for number in partitions if (topic.name, number) not in committed}
        for number in first:
            await self._worker.write(lambda: 0)
            self._group.commit(self._worker, self._worker.generation, (topic.name, number), 0)
        return first

    async def ends(self, topic: Topic, partitions: Iterable[int]) -> dict[int, int]:
        return {number: self._ring.broker.end(topic.name, number) for number in partitions}

    def position(self, topic: Topic, partition: int) -> int:
        return self._group.committed.get((topic.name, partition), 0)


def outcome_of(order: m.FetchOrder, result: m.FetchResult, **facts: Any) -> m.FetchOutcome:
    """The outcome of an order."""
    return m.FetchOutcome(kind=order.kind, crawl=order.crawl, fingerprint=order.fingerprint, url=order.url,
                          visit=order.visit, attempt=order.attempt, epoch=order.epoch, rules=order.rules,
                          result=result, **facts)  # fmt: skip
