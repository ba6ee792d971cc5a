"""One schedule from its first event to the quiet after the last: who runs, what strikes, what must have come of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

import msgspec

from agents import holdings, jobs
from streams import messages as m
from streams.codecs import encode
from streams.definitions import CrawlDefinition
from streams.frontier import sweeping
from streams.policy.urls import PolitenessMode, canonical, fingerprint, politeness_key
from streams.topics import CRAWLS, FETCHES, INBOX, PAGES, RECORDS, URLS
from tests.simulation.ring import crawls, faults, quiet
from tests.simulation.ring.broker import SESSION, Broker, Changelog, Group
from tests.simulation.ring.engine import Engine, Worker
from tests.simulation.ring.fetcher import FetcherWorker
from tests.simulation.ring.frontier import FrontierWorker
from tests.simulation.ring.judge import Broken, Judge
from tests.simulation.ring.operator import Operator
from tests.simulation.ring.orders import ANSWER_TIMEOUT
from tests.simulation.ring.parser import ExporterWorker, Folder, ParserWorker
from tests.simulation.ring.plan import Plan
from tests.simulation.ring.stage import Build, Stage
from tests.simulation.ring.web import Web
from tests.simulation.store import Disk

if TYPE_CHECKING:
    import random

    from streams.frontier.shard import Shard

BUILD = Build()
"""As it should be."""

PATIENCE = 26
"""Hours that may pass, with nothing else to wait for, after pages were lost: they are fetched again after a day."""
LIFE = 30
"""Hours after its end for which a crawl's rows live where they expire: longer than pages are kept."""


@dataclass(frozen=True)
class Verdict:
    """What came of a schedule. `invariant`: the one that was broken, "" for none."""

    plan: Plan
    events: int
    invariant: str = ""
    detail: str = ""


def run(plan: Plan, build: Build = BUILD) -> Verdict:
    """Run a schedule to its end."""
    ring = Ring(plan, build)
    with ring.time():
        try:
            ring.run()
        except Broken as broken:
            return Verdict(plan, ring.engine.events, broken.invariant, str(broken))
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises ends its process
            return Verdict(plan, ring.engine.events, f"raises {type(error).__name__}", f"{error} in {_where(error)}")
        finally:
            ring.close()
    return Verdict(plan, ring.engine.events)


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""


class Ring:
    """Brokers, sites and processes of one schedule."""

    answer_timeout = ANSWER_TIMEOUT

    def __init__(self, plan: Plan, build: Build) -> None:
        self.plan = plan
        self.build = build
        self.engine = Engine(plan.seed)
        self.engine.died = self._died
        self.broker = Broker(self.engine)
        self.web = Web(plan)
        self.mode: PolitenessMode = "domain" if "domain" in plan.quirks else "host"
        self.expires = "expiry" in plan.quirks
        self.expire_after = (LIFE if self.expires else 1000) * 3600.0
        self.judge = Judge(self.engine, plan.shards, self.expire_after)
        self.changelogs = [Changelog(partial(self.judge.row, shard)) for shard in range(plan.shards)]
        self.folder = Folder()
        self.floor = self.engine.random.choice((2, 16, 256)) if plan.hosts < 1000 else 256
        self._disks: dict[tuple[str, int], Disk] = {}
        self._born = 0
        groups = [(INBOX.name, plan.shards), (FETCHES.name, plan.shards), (PAGES.name, plan.shards), (RECORDS.name, 1)]
        kinds: list[type[Stage]] = [FrontierWorker, FetcherWorker, ParserWorker, ExporterWorker]
        self.groups = [Group(self.engine, [(topic, p) for p in range(n)]) for topic, n in groups]
        self.groups[0].places.append((URLS.name, 0))
        self.kinds = list(zip(kinds, self.groups, (plan.workers, plan.workers, plan.workers, 1), strict=True))
        self._define_crawls(self.engine.random)
        self.operator = Operator(self)
        self.engine.workers.append(self.operator)
        for kind, group, number in self.kinds:
            for _ in range(number):
                group.join(self._start(kind, group, f"{kind.__name__}{self._number()}"))
        self._faults = list(plan.faults)
        visits = sum(crawl.recrawl.rounds or 1 if crawl.recrawl else 1 for crawl in self.judge.definitions.values())
        self._most = 5000 + 500 * len(self.web.pages) * visits + 3000 * len(plan.faults)
        self.hours = 0
        """That passed because nobody had anything to do, since pages were lost last."""
        self._expiring = 0

    @contextmanager
    def time(self) -> Iterator[None]:
        """Let the fetchers live in virtual time, with chance from the schedule; make a build's mistakes."""
        # What is forgotten while its page is lost is looked at each second for a day: here each ten minutes.
        patches = [(sweeping, "LOOK_AGAIN", 600_000),
                   (holdings, "now", lambda: self.engine.time), (holdings, "WireClock", self.build.clock),
                   (jobs, "random", self.engine.random)]  # fmt: skip
        with ExitStack() as stack:
            for target, name, value in (*patches, *self.build.patches):
                stack.enter_context(patch.object(target, name, value))
            yield

    def run(self) -> None:
        """Let everything happen. Raises `Broken`."""
        while self.advance():
            pass
        quiet.check(self)

    def advance(self) -> bool:
        """Let one thing happen; False: nothing does any more."""
        while self._faults and self._faults[0].at <= self.engine.events:
            faults.strike(self, self._faults.pop(0))
        for group in self.groups:
            if group.pending:
                group.coordinate()
        if self.engine.events > self._most:
            raise self.judge.broken("it ends", f"{sum(self.judge.open.values())} URLs open after {self._most} events")
        return self.engine.event() or self._hour()

    def workers(self, kind: type[Stage]) -> list[Stage]:
        """The processes of a stage."""
        return [worker for worker in self.engine.workers if isinstance(worker, kind)]

    def kill(self, worker: Stage) -> None:
        """Kill a process; it is started again."""
        worker.kill()
        self._died(worker)

    def pause(self, worker: Stage, seconds: float) -> None:
        """Stop a process for a while."""
        worker.pause(self.engine.time + seconds)
        worker.group.watch(worker)

    def close(self) -> None:
        """End all coroutines."""
        for worker in self.engine.workers:
            worker.kill()

    # ---- what the processes ask

    def key(self, url: str) -> str:
        """The politeness key of a URL."""
        return politeness_key(url, self.mode)

    def disk(self, worker: str, shard: int) -> Disk:
        """A worker's store of a shard."""
        return self._disks.setdefault((worker, shard), Disk())

    def deliver(self, shard: int, message: m.Inbox | bytes) -> int:
        """Append to the inbox."""
        self.judge.arrived(shard, self.broker.end(INBOX.name, shard), message)
        return self.broker.append(INBOX.name, shard, message)

    def release(self, partition: int, order: m.FetchOrder, shard: Shard) -> int:
        """Append an order."""
        self.judge.orders.appended(shard, order)
        return self.broker.append(FETCHES.name, partition, order)

    def define(self, key: bytes, value: bytes) -> int:
        """Append a definition."""
        self.judge.defined(msgspec.json.decode(value, type=CrawlDefinition))
        return self.broker.append(CRAWLS.name, 0, (key, value))

    def candidate(self, seed: m.Seed, offset: int) -> m.Candidate:
        """What the intake makes of a seed."""
        key = fingerprint(seed.crawl, canonical(seed.url))
        return m.Candidate(url=seed.url, fingerprint=key, crawl=seed.crawl, refetch=seed.refetch,
                           priority=seed.priority, origin=m.Origin(URLS.name, 0, offset))  # fmt: skip

    # ---- crawls

    def _define_crawls(self, random: random.Random) -> None:
        self.seeds: dict[str, list[str]] = {}
        self.late: dict[str, list[str]] = {}
        for number in range(self.plan.crawls):
            crawl = crawls.definition(f"c{number}", self.plan, self.web, self.engine.broker(), random)
            self.seeds[crawl.id], self.late[crawl.id] = [], []
            self.define(crawl.id.encode(), encode(crawl))
            for url in (self.web.names[0], *random.sample(self.web.names, min(2, self.plan.urls))):
                self.seed(crawl.id, url)
            sealed = msgspec.structs.replace(crawl, version=2, state="sealed", seal={0: self.broker.end(URLS.name, 0)})
            self.define(crawl.id.encode(), encode(sealed))

    def seed(self, name: str, url: str, *, refetch: bool = False, late: bool = False) -> None:
        """Somebody produces a seed; `late`: after the crawl's seal."""
        (self.late if late else self.seeds)[name].append(url)
        priority = self.engine.random.randrange(10) if "priorities" in self.plan.quirks else m.DEFAULT_PRIORITY
        self.broker.append(URLS.name, 0, m.Seed(url=url, crawl=name, refetch=refetch, priority=priority))

    def jump(self, ms: int) -> None:
        """The broker's clock jumps; whoever waits for the end of a day waits for longer."""
        self.judge.jump(ms)
        self.engine.jump(ms)
        self.hours = min(self.hours, 0) if ms < 0 else self.hours

    # ---- processes

    def join(self, stage: int) -> None:
        """Another process joins a stage."""
        kind, group, _ = self.kinds[stage]
        group.join(self._start(kind, group, f"{kind.__name__}{self._number()}"))

    def _number(self) -> int:
        self._born += 1
        return self._born

    def _start(self, kind: type[Stage], group: Group, name: str) -> Stage:
        worker = kind(self, name, group)
        self.engine.workers.append(worker)
        return worker

    def _died(self, worker: Worker) -> None:
        """A process was killed: its supervisor starts it again, at once or after its session has ended."""
        assert isinstance(worker, Stage)
        self.engine.workers.remove(worker)
        if worker.lost:
            self._disks = {place: disk for place, disk in self._disks.items() if place[0] != worker.name}
        worker.silent = self.engine.time if worker.silent is None else worker.silent
        worker.group.watch(worker)
        self.judge.trouble()
        delay = self.engine.random.choice((0.5, 2.0, SESSION + 5.0))
        self.engine.at(self.engine.time + delay, partial(self._restart, worker))

    def _restart(self, dead: Stage) -> None:
        """A member of the same name takes the place of the dead one."""
        group = dead.group
        worker = self._start(type(dead), group, dead.name)
        if dead in group.members:
            group.members[group.members.index(dead)] = worker
        for place, owner in group.assignment.items():
            if owner is dead:
                group.assignment[place] = worker
        group.restarted(worker)

    def _hour(self) -> bool:
        """Nothing happens any more. An hour passes all the same while something waits for time alone.

        That is: pages that were lost, which are fetched again after a day (how long `pages` is kept), and the rows of
        finished crawls. Lost pages may be lost again, so the day begins anew whenever some are; and whenever the clock
        is set back. No more than that: what has waited for longer is lost.
        """
        judge = self.judge
        lost = bool(sum(judge.open.values())) and self.hours < PATIENCE
        ended = judge.ended.keys() == judge.definitions.keys()
        old = self.expires and ended and any(judge.urls) and self._expiring < LIFE + 2
        if not (lost or old):
            return False
        self.hours += 1
        self._expiring += old and not lost
        self.engine.time += 3600.0
        self.engine.stir()
        return True
