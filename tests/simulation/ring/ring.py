"""One schedule from its first event to the quiet after the last: who runs, what strikes, what must have come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

import msgspec

from agents import holdings
from streams import messages as m
from streams.codecs import encode
from streams.definitions import CrawlDefinition, Scope
from streams.policy.urls import canonical, fingerprint
from streams.topics import CRAWLS, FETCHES, INBOX, PAGES, RECORDS, URLS
from tests.simulation.ring.broker import SESSION, Broker, Changelog, Group
from tests.simulation.ring.engine import Engine, Worker
from tests.simulation.ring.fetcher import FetcherWorker
from tests.simulation.ring.frontier import FrontierWorker
from tests.simulation.ring.judge import Broken, Judge
from tests.simulation.ring.parser import ExporterWorker, Folder, ParserWorker
from tests.simulation.ring.plan import Fault, Plan
from tests.simulation.ring.stage import Build, Stage
from tests.simulation.ring.web import Web
from tests.simulation.store import Disk

if TYPE_CHECKING:
    import random

    from streams.frontier.shard import Shard

BUILD = Build()
"""As it should be."""

HOUR = 3_600_000
PAUSES = (1.0, 5.0, 15.0, 30.0, 90.0)
JUMPS = (600_000, -600_000, HOUR, -HOUR)


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

    answer_timeout = 600.0

    def __init__(self, plan: Plan, build: Build) -> None:
        self.plan = plan
        self.build = build
        self.engine = Engine(plan.seed)
        self.engine.died = self._died
        self.broker = Broker(self.engine)
        self.web = Web(plan)
        self.judge = Judge(self.engine, plan.shards)
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
        for kind, group, number in self.kinds:
            for _ in range(number):
                group.join(self._start(kind, group, f"{kind.__name__}{self._number()}"))
        self._faults = list(plan.faults)
        self._most = 3000 + 400 * len(self.web.pages) * plan.crawls + 3000 * len(plan.faults)
        self._hours = 0

    @contextmanager
    def time(self) -> Iterator[None]:
        """Let the fetchers' holdings live in virtual time."""
        now, clock = patch.object(holdings, "now", lambda: self.engine.time), self.build.clock
        with now, patch.object(holdings, "WireClock", clock):
            yield

    def run(self) -> None:
        """Let everything happen. Raises `Broken`."""
        while self.advance():
            pass
        self._finish()

    def advance(self) -> bool:
        """Let one thing happen; False: nothing does any more."""
        while self._faults and self._faults[0].at <= self.engine.events:
            self._strike(self._faults.pop(0))
        for group in self.groups:
            if group.pending:
                group.coordinate()
        if self.engine.events > self._most:
            raise self.judge.broken("it ends", f"{sum(self.judge.open.values())} URLs open after {self._most} events")
        return self.engine.event() or self._operate()

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

    def disk(self, worker: str, shard: int) -> Disk:
        """A worker's store of a shard."""
        return self._disks.setdefault((worker, shard), Disk())

    def deliver(self, shard: int, message: m.Inbox | bytes) -> int:
        """Append to the inbox."""
        self.judge.arrived(message)
        return self.broker.append(INBOX.name, shard, message)

    def release(self, partition: int, order: m.FetchOrder, shard: Shard) -> int:
        """Append an order."""
        self.judge.released(shard, order)
        return self.broker.append(FETCHES.name, partition, order)

    def define(self, key: bytes, value: bytes) -> int:
        """Append a definition."""
        definition = msgspec.json.decode(value, type=CrawlDefinition)
        reached = self._required(definition) if definition.state == "ended" else ()
        self.judge.defined(definition, reached, late=bool(self.late.get(definition.id)))
        return self.broker.append(CRAWLS.name, 0, (key, value))

    def candidate(self, seed: m.Seed, offset: int) -> m.Candidate:
        """What the intake makes of a seed."""
        key = fingerprint(seed.crawl, canonical(seed.url))
        return m.Candidate(url=seed.url, fingerprint=key, crawl=seed.crawl, refetch=seed.refetch,
                           origin=m.Origin(URLS.name, 0, offset))  # fmt: skip

    # ---- crawls

    def _define_crawls(self, random: random.Random) -> None:
        self.seeds: dict[str, list[str]] = {}
        self.late: dict[str, list[str]] = {}
        for number in range(self.plan.crawls):
            crawl = self._definition(f"c{number}", random)
            self.seeds[crawl.id] = [self.web.names[0], *random.sample(self.web.names, min(2, self.plan.urls))]
            self.late[crawl.id] = []
            self.define(crawl.id.encode(), encode(crawl))
            for url in self.seeds[crawl.id]:
                self.broker.append(URLS.name, 0, m.Seed(url=url, crawl=crawl.id))
            self.update(crawl.id, state="sealed", seal={0: self.broker.end(URLS.name, 0)})

    def _definition(self, name: str, random: random.Random) -> CrawlDefinition:
        quirks = self.plan.quirks
        hosts = [origin[7:] for origin in self.web.origins]
        scope = Scope(mode="host", values=tuple(hosts[: len(hosts) // 2 + 1])) if "scope" in quirks else Scope()
        bounded = "traps" in quirks or ("depth" in quirks and random.random() < 0.7)
        return CrawlDefinition(
            id=name, delay=random.choice((0.0, 0.5, 3.0)) if "delays" in quirks else 0.0,
            parallelism=random.randint(1, 3), robots="robots" in quirks and random.random() < 0.8, scope=scope,
            depth=random.randint(1, 6) if bounded else None,
            limit=random.randint(1, self.plan.urls) if "limit" in quirks and random.random() < 0.6 else None,
        )  # fmt: skip

    def update(self, name: str, **changes: object) -> None:
        """Publish the next version of a crawl's definition, unless it has ended."""
        known = self.judge.definitions[name]
        if known.state != "ended":
            self.define(name.encode(), encode(msgspec.structs.replace(known, version=known.version + 1, **changes)))

    def _required(self, crawl: CrawlDefinition) -> list[bytes]:
        if crawl.limit is not None:
            return []
        reached = self.web.reach(crawl, self.seeds[crawl.id], crawl.robots)
        return [fingerprint(crawl.id, canonical(url)) for url in reached]

    # ---- processes

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

    # ---- faults

    def _strike(self, fault: Fault) -> None:
        workers = [worker for worker in self.engine.workers if isinstance(worker, Stage)]
        strike: dict[str, Callable[[Fault, Stage], None]] = {
            "kill": self._kill, "pause": self._pause, "rebalance": self._rebalance, "join": self._join,
            "jump": self._jump, "lose": self._lose, "expire": self._expire, "twice": self._twice, "seed": self._seed,
            "update": self._change,
        }  # fmt: skip
        self.judge.trouble()
        if workers:
            strike[fault.kind](fault, workers[fault.who % len(workers)])
        self.engine.stir()

    def _kill(self, fault: Fault, worker: Stage) -> None:
        worker.fuse = fault.much % 12
        worker.lost = fault.much % 5 == 0

    def _pause(self, fault: Fault, worker: Stage) -> None:
        self.pause(worker, PAUSES[fault.much % len(PAUSES)])

    def _rebalance(self, fault: Fault, worker: Stage) -> None:
        worker.group.shuffle()

    def _join(self, fault: Fault, worker: Stage) -> None:
        kind, group, _ = self.kinds[fault.who % 3]
        group.join(self._start(kind, group, f"{kind.__name__}{self._number()}"))

    def _jump(self, fault: Fault, worker: Stage) -> None:
        self.judge.jumped = True
        self.engine.jump(JUMPS[fault.much % len(JUMPS)])

    def _lose(self, fault: Fault, worker: Stage) -> None:
        self.broker.trim(FETCHES.name, fault.who % self.plan.shards)

    def _expire(self, fault: Fault, worker: Stage) -> None:
        self.broker.trim(PAGES.name, fault.who % self.plan.shards)

    def _twice(self, fault: Fault, worker: Stage) -> None:
        worker.twice = True

    def _seed(self, fault: Fault, worker: Stage) -> None:
        name = f"c{fault.who % self.plan.crawls}"
        url = self.web.names[fault.much % len(self.web.names)]
        self.late[name].append(url)
        self.broker.append(URLS.name, 0, m.Seed(url=url, crawl=name, refetch=fault.much % 3 == 0))

    def _change(self, fault: Fault, worker: Stage) -> None:
        name = f"c{fault.who % self.plan.crawls}"
        known = self.judge.definitions[name]
        if fault.much % 3 == 0 and known.state != "paused":
            self.update(name, state="paused")
            self.engine.at(self.engine.time + 20.0, partial(self._resume, name))
        elif fault.much % 3 == 1:
            self.update(name, delay=known.delay + 1.0 if fault.much % 2 else known.delay / 4)
        else:
            self.update(name, parallelism=known.parallelism + (2 if fault.much % 2 else -1) or 1)

    def _resume(self, name: str) -> None:
        if self.judge.definitions[name].state == "paused":
            self.update(name, state="sealed")

    def _operate(self) -> bool:
        """Nothing happens any more. While URLs are open time passes all the same, as long as a page is kept."""
        if self._hours >= 30 * (1 + len(self.plan.faults)) or not sum(self.judge.open.values()):
            return False
        self._hours += 1
        self.engine.time += 3600.0
        self.engine.stir()
        return True

    # ---- what must have come of it

    def _finish(self) -> None:
        judge = self.judge
        shards = {n: s for worker in self.engine.workers if isinstance(worker, FrontierWorker)
                  for n, s in worker.shards.items()}  # fmt: skip
        owners = {n: self.groups[0].assignment[INBOX.name, n].name for n in range(self.plan.shards)}
        judge.quiet({n: self.disk(name, n) for n, name in owners.items()}, shards)
        if missing := judge.definitions.keys() - judge.ended.keys():
            raise judge.broken("it ends", f"nobody announced the end of {sorted(missing)}")
        for crawl in judge.definitions.values():
            self._as_walked(crawl)
        self._written_once()

    def _as_walked(self, crawl: CrawlDefinition) -> None:
        """The rows are those that a walk of the sites finds, each in a state that it may end in."""
        seeds, late = self.seeds[crawl.id], self.late[crawl.id]
        must = self.web.reach(crawl, seeds, crawl.robots)
        may = self.web.reach(crawl, [*seeds, *late], crawl.robots) if late else must
        rows = {row.url: row for row in self.judge.urls.values() if row.crawl == crawl.id}
        if strange := rows.keys() - may.keys():
            raise self.judge.broken("nothing is invented", f"{sorted(strange)[:3]} of {crawl.id}")
        if crawl.limit is not None:
            return
        if lost := must.keys() - rows.keys():
            raise self.judge.broken("nothing is lost", f"{crawl.id} never met {sorted(lost)[:3]}")
        for url, row in rows.items():
            state = row.state.name.lower()
            shut_out = row.outcome == "ended" and late and (url not in must or row.visit > 1)
            if state not in may[url] and not shut_out:
                raise self.judge.broken(
                    "the right end", f"{url} of {crawl.id} is {state} ({row.outcome}), not {set(may[url])}"
                )

    def _written_once(self) -> None:
        lines = self.folder.lines
        if len(set(lines)) != len(lines):
            raise self.judge.broken("written once", f"{len(lines) - len(set(lines))} lines too many")
        done = {
            (key, row.visit) for key, row in self.judge.urls.items() if row.state.name == "DONE" and row.status != 304
        }
        if lost := done - set(lines):
            raise self.judge.broken("nothing is lost", f"{len(lost)} records are missing")
