"""`fyke audit`: reads the log and the rows' changelog, and lets the pure rules say what they prove.

The order of reading makes it right beside a running crawl: first how far the frontier has committed, then the ends of
the changelog and of `inbox`. The rows of every message below the commit stand before that end of the changelog, and the
candidate of every seed that was taken before that end of `inbox`. What stands behind the commit is on its way.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from agents.broadcast import Crawls
from agents.io.spool import REMOVED, Place, Row, Spool
from streams import messages as m
from streams.codecs import decode, decode_inbox, decode_seeds
from streams.definitions import CrawlDefinition
from streams.errors import MessageError
from streams.frontier.accounts import OFFENDERS, Account, Duties, account, named_in
from streams.frontier.rows import URL_KEY, State, decode_url_row
from streams.policy.audit import HostReport, Offence, Rule, audit, requests_of
from streams.state.changelog import ChangelogReader
from streams.state.fencing import NO_EPOCH
from streams.state.fold import fold
from streams.topics import CHANGELOG, CRAWLS, FAILURES, INBOX, URLS, Topic

if TYPE_CHECKING:
    from agents.io.admin import Admin

KEPT: Final = 1000
"""Offenders of a kind that are kept; all are counted."""

_MISSING: Final = 10_000  # seeds without a candidate that are looked up among the failures


@dataclass(frozen=True, slots=True)
class Offender:
    """An accepted URL that has no terminal row although it must; `why` is `lost` or `left open`, of a seed `seed`."""

    url: str
    why: str


@dataclass(slots=True)
class CrawlReport:
    """Where the accepted URLs of a crawl stand."""

    crawl: str
    state: str
    result: str
    accounts: Counter[Account] = field(default_factory=Counter)
    lost_seeds: int = 0
    offenders: list[Offender] = field(default_factory=list)

    @property
    def broken(self) -> int:
        """Number of offenders."""
        return self.lost_seeds + sum(self.accounts[name] for name in OFFENDERS)

    def offend(self, url: str, why: str) -> None:
        """Keep an offender for printing."""
        if len(self.offenders) < KEPT:
            self.offenders.append(Offender(url, why))


@dataclass(slots=True)
class Report:
    """All that an audit found. `since` (ms): the log is complete from then on; 0: from its beginning.

    `inbox`, `urls`: messages on their way. `tightest`: the hosts whose requests came nearest to their limit.
    """

    since: int = 0
    inbox: int = 0
    urls: int = 0
    unreadable: int = 0
    hosts: int = 0
    requests: int = 0
    holds: int = 0
    parallel: int = 0
    fetchers: set[str] = field(default_factory=set)
    broken: Counter[Rule] = field(default_factory=Counter)
    offences: list[Offence] = field(default_factory=list)
    tightest: list[HostReport] = field(default_factory=list)
    crawls: dict[str, CrawlReport] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether nothing is broken."""
        return not self.broken.total() and not any(crawl.broken for crawl in self.crawls.values())


class Auditor:
    """One audit. `crawl`: of this crawl and the hosts it asked, empty: of all; the numbers of the others are left out.

    `clocks`: seconds that two fetchers' clocks may differ; `hosts`: how many of the tightest are reported.
    """

    def __init__(
        self, bootstrap: str, prefix: str, admin: Admin, *, crawl: str = "", clocks: float = 0.05, hosts: int = 10
    ) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._admin = admin
        self._crawl = crawl
        self._clocks = clocks
        self._hosts = hosts
        self._definitions = Crawls()
        self._duties = Duties()
        self._report = Report()

    async def run(self) -> Report:
        """Read everything and judge it. Raises `NewerSchemaError` where a newer release wrote."""
        admin = self._admin
        seeded = await admin.committed("frontier", URLS.name)
        applied = await admin.committed("frontier", INBOX.name)
        rows_end = await admin.end_offsets(CHANGELOG.name)
        inbox_end = await admin.end_offsets(INBOX.name)
        self._report.inbox = sum((await admin.lag("frontier", INBOX.name)).values())
        self._report.urls = sum((await admin.lag("frontier", URLS.name)).values())
        with Spool() as spool:
            await self._read_crawls()
            await self._read_rows(spool, rows_end)
            await self._read_inbox(spool, applied, inbox_end)
            await self._read_seeds(spool, seeded)
            self._judge_hosts(spool)
            self._judge_urls(spool)
        return self._report

    # --- reading

    async def _records(self, topic: Topic, ends: Mapping[int, int]) -> AsyncIterator[tuple[int, list[Any]]]:
        """The records of a topic up to `ends`, by partition in the order of the log."""
        begins = await self._admin.begin_offsets(topic.name)
        reader = ChangelogReader(self._prefix + topic.name, {"bootstrap_servers": self._bootstrap})
        starts = {partition: begins[partition] for partition in ends if partition in begins}
        async with aclosing(reader.read(starts, ends)) as stretches:
            async for stretch in stretches:
                yield stretch.partition, [r for r in stretch.records if r.offset < ends[stretch.partition]]

    async def _read_crawls(self) -> None:
        ends = await self._admin.end_offsets(CRAWLS.name)
        for definition in self._definitions.values():
            self._duties.defined(definition, 0)
        async for _, records in self._records(CRAWLS, ends):
            for record in records:
                try:
                    self._definitions.fold(record)
                    if record.value is not None:
                        self._duties.defined(decode(CrawlDefinition, record.value), record.timestamp)
                except MessageError:
                    self._report.unreadable += 1

    async def _read_rows(self, spool: Spool, ends: Mapping[int, int]) -> None:
        """Fold the changelog as recovery does: what a fenced-off owner wrote does not count."""
        epochs: dict[int, int] = {}
        async for partition, records in self._records(CHANGELOG, ends):
            folded = fold(records, epochs.get(partition, NO_EPOCH))
            epochs[partition] = folded.epoch
            spool.rows(_row(key, value) for key, value in folded.rows.items() if key.startswith(URL_KEY))

    async def _read_inbox(self, spool: Spool, applied: Mapping[int, int], ends: Mapping[int, int]) -> None:
        seen: set[int] = set()
        begins = await self._admin.begin_offsets(INBOX.name)
        async for partition, records in self._records(INBOX, ends):
            if records and partition not in seen:
                seen.add(partition)
                if begins[partition]:
                    self._report.since = max(self._report.since, records[0].timestamp)
            for record in records:
                try:
                    message = decode_inbox(record.value)
                except MessageError:
                    self._report.unreadable += 1
                else:
                    self._take(spool, message, record.timestamp, applied=record.offset < applied.get(partition, 0))

    def _take(self, spool: Spool, message: m.Inbox, at: int, *, applied: bool) -> None:
        if isinstance(message, m.Outcomes):
            for outcome in message.items:
                if isinstance(outcome, m.FetchOutcome):
                    self._duties.learn(outcome)
                    spool.requests(requests_of(outcome, self._duties.owed(outcome)))
            return
        if isinstance(message, m.Candidates):
            origins = (item.origin for item in message.items)
            spool.taken((o.partition, o.offset, o.index) for o in origins if o is not None)
        if applied:
            spool.named(named_in(message), at)

    async def _read_seeds(self, spool: Spool, taken: Mapping[int, int]) -> None:
        """Every seed that left `urls` must have come out as a candidate, or as a failure that says why not."""
        missing: dict[Place, m.Seed | None] = {}
        async for partition, records in self._records(URLS, taken):
            for record in records:
                if record.timestamp < self._report.since:
                    continue  # its candidate may be trimmed
                try:
                    seeds = [seed if isinstance(seed, m.Seed) else None for seed in decode_seeds(record.value)]
                except MessageError:
                    seeds = [None]
                places = {(partition, record.offset, number): seed for number, seed in enumerate(seeds)}
                if len(missing) < _MISSING:
                    missing |= {place: places[place] for place in spool.missing(list(places))}
        if missing:
            await self._excuse(missing)
        for seed in missing.values():
            crawl = self._of(seed.crawl if seed else m.DEFAULT_CRAWL)
            if crawl is not None:
                crawl.lost_seeds += 1
                crawl.offend(seed.url if seed else "", "seed")

    async def _excuse(self, missing: dict[Place, m.Seed | None]) -> None:
        """Take out the seeds of which `failures` says that they could not be read."""
        async for _, records in self._records(FAILURES, await self._admin.end_offsets(FAILURES.name)):
            for record in records:
                try:
                    evidence = decode(m.Failure, record.value).evidence
                except MessageError:
                    continue
                if evidence.get("topic") == URLS.name:
                    number = int(evidence.get("index", 0))
                    missing.pop((int(evidence["partition"]), int(evidence["offset"]), number), None)

    # --- judging

    def _judge_hosts(self, spool: Spool) -> None:
        report = self._report
        tightest: list[tuple[float, int, HostReport]] = []
        for number, host in enumerate(audit(spool.by_host(self._crawl), self._clocks)):
            report.hosts += 1
            report.requests += host.requests
            report.holds += host.holds
            report.parallel = max(report.parallel, host.parallel)
            report.fetchers |= host.fetchers
            report.broken.update(host.broken)
            report.offences += host.offences[: KEPT - len(report.offences)]
            heapq.heappush(tightest, (-host.margin, -number, host))
            if len(tightest) > self._hosts:
                heapq.heappop(tightest)
        report.tightest = [host for _, _, host in sorted(tightest, reverse=True)]

    def _judge_urls(self, spool: Spool) -> None:
        for url in spool.urls(self._crawl):
            crawl = self._of(url.crawl)
            if crawl is None:
                continue
            removed = url.state == REMOVED
            state = State(url.state) if url.state is not None and not removed else None
            found = account(state, url.named, self._definitions.get(url.crawl), removed=removed)
            crawl.accounts[found] += 1
            if found in OFFENDERS:
                crawl.offend(url.url, found)

    def _of(self, name: str) -> CrawlReport | None:
        """The report on a crawl; None for one that nobody asked about."""
        if not name or self._crawl not in ("", name):
            return None
        if name not in self._report.crawls:
            definition = self._definitions.get(name)
            state, result = (definition.state, definition.result) if definition else ("unknown", "")
            self._report.crawls[name] = CrawlReport(name, state, result)
        return self._report.crawls[name]

    @property
    def known(self) -> bool:
        """After `run`: whether there is such a crawl as was asked for."""
        return not self._crawl or self._crawl in self._definitions or self._crawl in self._report.crawls


def _row(key: bytes, value: bytes | None) -> Row:
    fingerprint = key[len(URL_KEY) :]
    if value is None:
        return (fingerprint, "", "", REMOVED)
    row = decode_url_row(value)
    return (fingerprint, row.crawl, row.url, int(row.state))
